"""Targets as users give them: a frame's types, missing labels, and dates, which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsieve.errors import InputError


def read_targets(y: Any) -> Any:
    """``y`` ready for scikit-learn's checks; missing labels are refused here, where their row is named."""
    dtype = getattr(y, "dtype", None)
    if dtype is None and not isinstance(y, list | tuple):
        return y
    values = np.asarray(y, dtype=None if isinstance(dtype, np.dtype) else object)
    if values.dtype.kind == "O":
        check_none_is_missing(values)
        plain = getattr(dtype, "numpy_dtype", None)  # of pandas' nullable integers and booleans
        if isinstance(plain, np.dtype) and plain.kind in "iub":
            return values.astype(plain)
    return y


def check_no_dates(name: str, values: Any) -> None:
    """Refuse dates, which numpy would take for numbers in a unit that depends on their source."""
    dtype = getattr(values, "dtype", None)
    dtypes = getattr(values, "dtypes", ()) if dtype is None else [dtype]  # a frame has one for each column
    for column, each in enumerate(dtypes):
        if getattr(each, "kind", None) in ("m", "M"):
            where = f"Column {values.columns[column]!r} of {name}" if dtype is None else name
            raise InputError(
                f"{where} holds dates or durations ({each}). Give numbers, such as days since the first: "
                "(dates - dates.min()) / numpy.timedelta64(1, 'D')."
            )


def check_none_is_missing(values: np.ndarray) -> None:
    for row, value in enumerate(values.ravel()) if values.ndim == 1 else ():
        if is_missing(value):
            raise InputError(
                f"y[{row}] is missing ({value!r}). Leave such rows out, with their rows of X: y.notna() finds them in "
                "a pandas Series."
            )


def is_missing(value: Any) -> bool:
    """None, NaN, NaT, or pandas' NA, which is neither equal to itself nor not."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True
    except ValueError:  # a list or array: left to scikit-learn
        return False
