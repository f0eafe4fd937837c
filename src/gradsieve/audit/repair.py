"""Clean and go on: the data without its suspect rows, or with them repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradsieve.errors import InputError

if TYPE_CHECKING:
    from gradsieve.audit.result import Audit


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
    """Some rows of a frame, a tensor or a sparse matrix as one of its kind, of anything else as an array."""
    if hasattr(array, "iloc"):
        return array.iloc[rows]
    if hasattr(array, "tocsr"):
        return array.tocsr()[rows]
    return array[rows] if hasattr(array, "shape") else np.asarray(array)[rows]


def repaired(audit: Audit, y: ArrayLike) -> Any:
    """A copy of the targets in which flagged rows have what is suggested, of several outputs those that are off."""
    check_rows(audit, 0, y)
    targets = repaired_array(audit, np.array(y))
    if not hasattr(y, "iloc"):
        return targets
    frame: Any = y  # of pandas: the rows keep their names, and so do the columns
    named = {"columns": frame.columns} if hasattr(frame, "columns") else {"name": frame.name}
    return type(frame)(targets, index=frame.index, **named)


def repaired_array(audit: Audit, targets: NDArray[Any]) -> NDArray[Any]:
    """``targets``, repaired."""
    flagged = np.flatnonzero(audit.flagged)
    suggested = audit.suggested[flagged]
    if audit.task == "regression":
        if not np.issubdtype(targets.dtype, np.floating):
            targets = targets.astype(np.float64)
        if targets.size != audit.given.size:
            raise InputError(
                f"y has the shape {targets.shape}, but {audit.given.shape[1]} targets of a row were audited."
            )
        own = targets[flagged].reshape(suggested.shape)
        targets[flagged] = np.where(replaced(audit), suggested, own).reshape(len(flagged), *targets.shape[1:])
        return targets
    # How y spells a class is seen where it gives it.
    classes, first = np.unique(audit.given, return_index=True)
    unspelt = np.setdiff1d(suggested, classes)
    if len(unspelt):
        name = audit.names[unspelt[0]]
        raise InputError(f"class {name} is suggested, but no row of y has it, so its spelling there is unknown.")
    targets[flagged] = targets[first[np.searchsorted(classes, suggested)]]
    return targets


def replaced(audit: Audit) -> NDArray[np.bool_]:
    """(flagged, q) which targets of the flagged rows are not to be kept: those that are off, or all where none is."""
    assert audit.off is not None
    off = audit.off[audit.flagged]
    return off | ~off.any(1, keepdims=True)


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
