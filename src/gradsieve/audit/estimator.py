"""The audit of the rows that an estimator was fitted to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.audit.judging import judge, read_outputs
from gradsieve.audit.result import Audit
from gradsieve.choosing.reading import class_numbers
from gradsieve.errors import InputError
from gradsieve.estimators.learnt_rate import LEARN

if TYPE_CHECKING:  # scikit-learn is optional: only users with a fitted estimator have it
    from gradsieve.estimators.estimator import RobustClassifier, RobustRegressor


OTHER_CLASS = (
    "Give the y that it was fitted to. If all rows of this class have weight 0, the estimator does not know it: fit it "
    "without these rows."
)
# The attributes in which scikit-learn's meta-estimators keep what they fitted, and to what if not to X and y.
INNER = {
    "best_estimator_": "",
    "regressor_": ", with fitted.transformer_.transform(numpy.c_[y]) for y",
    "estimator_": "",
}


def audit_estimator(fitted: RobustClassifier | RobustRegressor, X: ArrayLike, y: ArrayLike) -> Audit:
    """The audit of the rows that an estimator was fitted to, in their order."""
    name, classifier = type(fitted).__name__, cast("RobustClassifier", fitted)
    if hasattr(fitted, "steps"):
        raise InputError(
            f"fitted is a {name}, whose last step was fitted: give fitted[-1], with fitted[:-1].transform(X) for X."
        )
    inner = next((each for each in INNER if hasattr(fitted, each)), None)
    if inner and not hasattr(fitted, "estimators_"):  # an ensemble's estimator_ is not fitted
        raise InputError(f"fitted is a {name}, which has fitted another estimator: give fitted.{inner}{INNER[inner]}.")
    if not hasattr(fitted, "_was_fitted_to"):
        raise InputError(
            f"fitted is a {name}, but only a RobustClassifier or RobustRegressor can be audited, with the X and y "
            "that it was fitted to. Fit one."
        )
    if not hasattr(fitted, "row_scores_"):
        raise InputError(f"This {name} is not fitted yet. Call fit(X, y) first, then audit the same X and y.")
    targets: NDArray[Any] = np.asarray(y)
    for what, rows in (("y", targets), ("X", X)):
        check_length(what, rows, fitted)
    if fitted._task == "classification":
        names = tuple(str(each) for each in classifier.classes_)
        given, outputs = class_numbers(targets.ravel(), classifier.classes_, OTHER_CLASS), classifier.predict_proba(X)
    else:
        given = targets.astype(np.float64).reshape(len(targets), -1)
        names, outputs = output_names(y, given.shape[1]), fitted.predict(X).reshape(len(given), -1)
        if outputs.shape != given.shape:
            raise InputError(f"y has {given.shape[1]} targets, but this {name} was fitted to {outputs.shape[1]}.")
    if not fitted._was_fitted_to(X, given):
        raise InputError(
            f"X and y have as many rows as this {name} was fitted to, but other values, or another order. An audit is "
            "of the rows that were trained on: give those very X and y."
        )
    return judge(
        fitted._task,
        names,
        given,
        read_outputs(fitted._task, given, outputs),
        fitted.row_scores_,
        seen=fitted.times_seen_,
        dropped=fitted.times_dropped_,
        method=fitted.method,
        run=name,
        most=fitted.drop_rate_ if fitted.drop_rate == LEARN else 1.0,
    )


def check_length(what: str, rows: Any, fitted: RobustClassifier | RobustRegressor) -> None:
    length, fitted_to = rows.shape[0] if hasattr(rows, "shape") else len(rows), len(fitted.row_scores_)
    if length != fitted_to:
        raise InputError(
            f"{what} has {length} rows, but this {type(fitted).__name__} was fitted to {fitted_to}. Give the X and y "
            "that it was fitted to: an audit is of the rows that were trained on."
        )


def output_names(y: Any, outputs: int) -> tuple[str, ...]:
    """The columns of a frame; else y, or y0, y1, ..."""
    if hasattr(y, "columns"):
        return tuple(str(name) for name in y.columns)
    return ("y",) if outputs == 1 else tuple(f"y{place}" for place in range(outputs))
