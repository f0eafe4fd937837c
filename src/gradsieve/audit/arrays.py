"""Audits with the arrays of cleanlab, in and out.

cleanlab's ``get_label_quality_scores`` is ``label_quality`` here, and ``find_label_issues`` is ``issue_mask``, or, with
``return_indices_ranked_by``, ``ranked_issues``. Each takes an audit, or labels with out-of-sample probabilities.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.audit.judging import judge, read_outputs
from gradsieve.audit.result import Audit
from gradsieve.choosing.reading import SUM_TOLERANCE
from gradsieve.errors import InputError


def label_quality(source: Audit | ArrayLike, pred_probs: ArrayLike | None = None) -> NDArray[np.float64]:
    """(N,) label quality from 0, surely wrong, to 1, in the order of the source; NaN for rows never scored."""
    audit = as_audit(source, pred_probs)
    return np.where(np.isnan(audit.mean_score), np.nan, 1 - audit.suspicion)


def issue_mask(source: Audit | ArrayLike, pred_probs: ArrayLike | None = None) -> NDArray[np.bool_]:
    """(N,) True where a row is flagged."""
    return as_audit(source, pred_probs).flagged.copy()


def ranked_issues(source: Audit | ArrayLike, pred_probs: ArrayLike | None = None) -> NDArray[np.int64]:
    """The positions of the flagged rows, the most suspect first."""
    audit = as_audit(source, pred_probs)
    found = np.flatnonzero(audit.flagged)
    return found[np.argsort(audit.rank[found], kind="stable")]


def as_audit(source: Audit | ArrayLike, pred_probs: ArrayLike | None) -> Audit:
    if isinstance(source, Audit):
        if pred_probs is not None:
            raise InputError("pred_probs is given beside an audit, which has its own. Leave it out.")
        return source
    if pred_probs is None:
        raise InputError("pred_probs is missing: give an audit, or labels with the probabilities of their classes.")
    return audit_probabilities(source, pred_probs)


def audit_probabilities(labels: ArrayLike, pred_probs: ArrayLike) -> Audit:
    """The audit of labels (N,), 0 to K - 1, by probabilities (N, K) of a network that was not trained on the row."""
    given, probabilities = check_labels(labels, pred_probs)
    answers = read_outputs("classification", given, probabilities)
    once = np.ones(len(given), dtype=np.int64)
    return judge(
        "classification",
        tuple(str(number) for number in range(probabilities.shape[1])),
        given,
        answers,
        answers.score,
        seen=once,
        dropped=(answers.suggested != given).astype(np.int64),
        method="pred_probs",
        run="labels",
    )


def check_labels(labels: ArrayLike, pred_probs: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Both as arrays, checked."""
    given, probabilities = np.asarray(labels), np.asarray(pred_probs, dtype=np.float64)
    if given.ndim != 1 or probabilities.shape[:1] != given.shape or probabilities.ndim != 2:
        raise InputError(
            f"labels has the shape {given.shape} and pred_probs {probabilities.shape}, but must be (N,) and (N, K)."
        )
    if not len(given) or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"labels is {len(given)} values of {given.dtype}, but must be class numbers, 0 to K - 1.")
    outside = np.flatnonzero((given < 0) | (given >= probabilities.shape[1]))
    if len(outside):
        row = int(outside[0])
        raise InputError(f"labels[{row}] is {given[row]}, but pred_probs has {probabilities.shape[1]} classes, from 0.")
    wrong = np.flatnonzero(
        ~(np.abs(probabilities.sum(1) - 1) <= SUM_TOLERANCE) | ~(probabilities >= -SUM_TOLERANCE).all(1)
    )
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"pred_probs[{row}] is {probabilities[row].tolist()}, but must be probabilities that sum to 1."
        )
    return given.astype(np.int64), probabilities
