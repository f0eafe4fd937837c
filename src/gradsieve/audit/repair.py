"""The audited data without the flagged rows, or with their targets repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.errors import InputError
from gradsieve.mistakes.kinds import POWERS_OF_TEN
from gradsieve.mistakes.scatter import spread

if TYPE_CHECKING:
    from gradsieve.audit.result import Audit

NEAR_TEN = 0.1  # a factor fitted to several outputs is taken for a power of ten if it is off by less than this share
ROUNDED = 1e-5  # targets are those that were audited if they are off by no more than this share, as in single precision
MOST_DECIMALS = 9  # a column that needs more was not rounded


def clean(audit: Audit, *arrays: Any) -> Any:
    """Each of the arrays, or frames of pandas, without the flagged rows."""
    if not arrays:
        raise InputError("clean() was given no array. Give those that belong to the audit, as in audit.clean(X, y).")
    for place, array in enumerate(arrays):
        check_rows(audit, place, array)
    kept = np.flatnonzero(~audit.flagged)
    found = tuple(taken(array, kept) for array in arrays)
    return found[0] if len(found) == 1 else found


def taken(array: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of an array; frames, tensors and sparse matrices keep their type."""
    if hasattr(array, "iloc"):
        return array.iloc[rows]
    if hasattr(array, "tocsr"):
        return array.tocsr()[rows]
    return array[rows] if hasattr(array, "shape") else np.asarray(array)[rows]


def repaired(audit: Audit, y: ArrayLike) -> Any:
    """A copy of the targets with flagged rows repaired; of several outputs, those that are off."""
    check_rows(audit, 0, y)
    targets = repaired_array(audit, np.array(y))
    if not hasattr(y, "iloc"):
        return targets
    frame: Any = y  # of pandas, with the same index and columns
    named = {"columns": frame.columns} if hasattr(frame, "columns") else {"name": frame.name}
    return type(frame)(targets, index=frame.index, **named)


def repaired_array(audit: Audit, targets: NDArray[Any]) -> NDArray[Any]:
    """``targets``, repaired."""
    if audit.task == "regression":
        if targets.size != audit.given.size:
            raise InputError(
                f"y has the shape {targets.shape}, but {audit.given.shape[1]} targets of a row were audited."
            )
        numbers = targets.astype(np.float64).reshape(audit.given.shape)
        check_audited(targets, ~(np.abs(numbers - audit.given) <= ROUNDED * np.abs(audit.given)))
        if not np.issubdtype(targets.dtype, np.floating):  # whole numbers stay whole: repaired ones are rounded
            targets = targets.astype(np.int64 if np.issubdtype(targets.dtype, np.integer) else np.float64)
        flagged, found = np.flatnonzero(audit.flagged), repaired_targets(audit)
        own, is_new = targets[flagged].reshape(found.shape), found != audit.given[flagged]
        own[is_new] = found[is_new]
        targets[flagged] = own.reshape(len(flagged), *targets.shape[1:])
        return targets
    class_of: dict[Any, int] = {}  # a class may have several spellings, such as 1 and 01, but a spelling has one class
    rows = zip(targets.ravel().tolist(), audit.given.tolist(), strict=True)
    check_audited(targets, np.array([class_of.setdefault(spelling, number) != number for spelling, number in rows]))
    # If an input is missing, the prediction is too uncertain to change the class.
    flagged = np.flatnonzero(audit.flagged & ~audit.has_gap)
    suggested = audit.suggested[flagged]
    # The spelling of a class in y is taken from a row of that class.
    classes, first = np.unique(audit.given, return_index=True)
    unspelt = np.setdiff1d(suggested, classes)
    if len(unspelt):
        name = audit.names[unspelt[0]]
        raise InputError(f"class {name} is suggested, but no row of y has it, so its spelling there is unknown.")
    targets[flagged] = targets[first[np.searchsorted(classes, suggested)]]
    return targets


def repaired_targets(audit: Audit) -> NDArray[np.float64]:
    """(flagged, q) repaired targets of the flagged rows, rounded to the decimals of their column.

    A flipped sign is turned back, and a power of ten divided out. Other targets that are off become the network's
    prediction, unless the row lacks an input: then the prediction is too uncertain, and they stay.
    """
    assert audit.kind is not None
    given, expected = audit.given[audit.flagged], audit.suggested[audit.flagged]
    kind, is_off = audit.kind[audit.flagged][:, None], replaced(audit)
    guessed = np.where(is_off & ~audit.has_gap[audit.flagged][:, None], expected, given)
    turned = np.where(np.abs(-given - expected) < np.abs(given - expected), -given, given)
    divided = undo_scaling(given, expected, is_off, spread(audit.given))
    found = np.where(kind == "sign flipped", turned, np.where(kind == "scaled", divided, np.nan))
    found = np.where(np.isnan(found), guessed, found)
    for output, digits in enumerate(map(decimals, audit.given.T)):
        if digits is not None:
            found[:, output] = np.round(found[:, output], digits) + 0.0  # and no -0
    return found


def undo_scaling(
    given: NDArray[Any], expected: NDArray[Any], is_off: NDArray[np.bool_], units: NDArray[Any]
) -> NDArray[np.float64]:
    """(n, q) rows that were multiplied by a power of ten, divided by it; NaN if the factor is no power of ten.

    A single output is only called scaled if the factor is one. For several, each in its unit, the factor is fitted.
    """
    is_alone = is_off.sum(1) == 1
    tens = np.array(POWERS_OF_TEN)
    ours, theirs = np.where(is_off, given / units, 0), np.where(is_off, expected / units, 0)
    missed = ((ours[None] / tens[:, None, None] - theirs) ** 2).sum(2)  # (tens, n)
    ten = tens[missed.argmin(0)]
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = (ours * theirs).sum(1) / (theirs**2).sum(1)
        is_ten = np.abs(factor / ten - 1) < NEAR_TEN
    divided = np.where(is_off | ~is_alone[:, None], given / ten[:, None], given)
    return np.where((is_alone | is_ten)[:, None], divided, np.nan)


def decimals(column: NDArray[Any]) -> int | None:
    """The number of decimals of a column; None if it is not rounded."""
    counts = range(MOST_DECIMALS + 1)
    return next((count for count in counts if (np.round(column, count) == column).all()), None)


def replaced(audit: Audit) -> NDArray[np.bool_]:
    """(flagged, q) which targets of the flagged rows to replace: those that are off, or all if none is."""
    assert audit.off is not None
    off = audit.off[audit.flagged]
    return off | ~off.any(1, keepdims=True)


def check_audited(targets: NDArray[Any], differs: NDArray[np.bool_]) -> None:
    """Refuse targets of which some rows differ from the audit's: it would repair other rows than those it flagged."""
    if differs.any():
        row = int(np.argwhere(differs)[0, 0])
        raise InputError(
            f"y[{row}] is {targets.tolist()[row]!r}, which does not fit the audit: y has changed since, or its rows "
            "are in another order. Give the y that was audited, as it was, or audit this one."
        )


def check_rows(audit: Audit, place: int, array: Any) -> None:
    """An array must have a row for each row of the audit."""
    shape = getattr(array, "shape", None)
    if not shape and not hasattr(array, "__len__"):
        raise InputError(f"array {place} is {array!r}, but must have a row for each of the audit's {len(audit)}.")
    length = shape[0] if shape else len(array)
    if length != len(audit):
        raise InputError(
            f"array {place} has {length} rows, but the audit has {len(audit)}. Give the arrays that were audited."
        )
