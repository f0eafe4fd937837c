"""From a run's records and final predictions to an audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradsieve.audit.cautions import cautions
from gradsieve.audit.flags import rank_classes, rank_targets
from gradsieve.audit.result import Audit
from gradsieve.audit.suspicion import ranks, suspicion
from gradsieve.data import Task
from gradsieve.mistakes.kinds import KINDS, diagnose, single_output_kinds
from gradsieve.mistakes.scatter import residual_scale
from gradsieve.mistakes.share import score as loss_layer_score
from gradsieve.mistakes.widths import no_gaps, off_outputs
from gradsieve.training.ledger import Ledger


class Answers(NamedTuple):
    """The robust network's final predictions for the rows."""

    suggested: NDArray[Any]  # (N,) classes, or (N, q) targets
    confidence: NDArray[np.float32] | None  # (N,) probability of the suggested class; None for targets
    score: NDArray[np.float32]  # (N,) the loss-layer gradient of the given target


def read_outputs(task: Task, given: NDArray[Any], outputs: NDArray[Any]) -> Answers:
    """The answers from (N, K) probabilities or (N, q) predictions, for rows with ``given`` targets."""
    score = loss_layer_score(task, given, outputs).astype(np.float32)
    if task == "regression":
        return Answers(outputs, None, score)
    return Answers(outputs.argmax(1).astype(np.int32), outputs.max(1).astype(np.float32), score)


def joined(parts: Iterable[Answers]) -> Answers:
    """The answers for consecutive parts of the rows as one."""
    suggested, confidence, score = zip(*parts, strict=True)
    sure = None if confidence[0] is None else np.concatenate(confidence)
    return Answers(np.concatenate(suggested), sure, np.concatenate(score))


def mean_scores(ledger: Ledger) -> NDArray[np.float32]:
    """(N,) the mean score of each row, NaN for one that was never scored."""
    return ledger.mean_score.where(ledger.scored > 0, torch.nan).numpy()


def judge(
    task: Task,
    names: tuple[str, ...],
    given: NDArray[Any],  # (N,) class numbers, or (N, q) targets
    answers: Answers,
    mean_score: NDArray[np.floating[Any]],  # (N,) over the run; NaN where the row was never scored
    *,
    seen: NDArray[Any],  # (N,) how often the row was judged,
    dropped: NDArray[Any],  # and dropped
    method: str,
    run: str,
    most: float = 1.0,  # of classes, the largest share of rows that may be flagged
    row: NDArray[np.int64] | None = None,
    targets: tuple[str, ...] = (),
    gaps: Mapping[str, NDArray[np.bool_]] | None = None,  # (N,) where an input is missing, by its name
    files: NDArray[np.object_] | None = None,
    ids: NDArray[np.object_] | None = None,
) -> Audit:
    """Rank the rows, flag the most suspect, and tell what the network expected instead."""
    if np.isnan(mean_score).all():  # the method has no scores: take the final ones
        mean_score = answers.score
    gaps = gaps or {}
    missing = np.stack(list(gaps.values()), axis=1) if gaps else no_gaps(len(given))
    diagnosis = diagnose(given, answers.suggested, missing) if task == "regression" else None
    if diagnosis is None:
        ranking = rank_classes(mean_score, given, answers.suggested, method, missing, most)
    else:
        ranking = rank_targets(mean_score, diagnosis)
    rank = ranks(ranking.scores)
    flagged = (rank <= ranking.flagged) & ~np.isnan(ranking.scores)
    suspect, source = suspicion(ranking.scores, int(flagged.sum())), ranking.source
    warnings = [*([ranking.caution] if ranking.caution else []), *cautions(flagged, gaps)]
    del ranking  # frees an array as long as the rows before more are made
    off = kind = None
    if diagnosis is not None:
        scale = residual_scale(given, answers.suggested, ~flagged)
        off = off_outputs(given, answers.suggested, missing, diagnosis.widths, scale)
        number = single_output_kinds(given, answers.suggested, missing, diagnosis.number, off, flagged)
        words = np.array([*KINDS, ""], dtype=object)
        kind = words[np.where(flagged, number, np.int8(-1))]
        del diagnosis, number
    return Audit(
        task=task,
        names=names,
        row=np.arange(len(given)) if row is None else row,
        suspicion=suspect,
        rank=rank,
        flagged=flagged,
        given=given,
        suggested=answers.suggested,
        confidence=answers.confidence,
        seen=seen,
        dropped=dropped,
        mean_score=mean_score,
        off=off,
        kind=kind,
        rate=float(flagged.mean()) if len(flagged) else 0.0,
        rate_source=source,
        method=method,
        run=run,
        warnings=tuple(warnings),
        gaps=gaps,
        files=files,
        targets=targets,
        ids=ids,
    )
