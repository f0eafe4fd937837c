"""Reading the pickles of CIFAR's python distribution without letting them run anything.

A pickle is a program: it may call whatever it names. Here it can only reach stand-ins for the names that a pickled
byte array needs, which record what the file says and nothing else. Not even NumPy's own reconstruction runs, because
it trusts the types that a file declares.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from gradsieve.errors import InputError


class _Type:
    """Stands for numpy.dtype: the code of an element type, such as u1."""

    def __init__(self, code: bytes | str, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and fields, which bytes do not have."""


class _Array:
    """Stands for numpy.ndarray: an array of bytes."""

    def __init__(self, *_: Any) -> None:
        self.values = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, fortran, data = state
        if kind.code not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"an array of {kind.code!r}, not of bytes")
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # the same since NumPy 2
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


class _BytesUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which no data file needs")
        return _ALLOWED[module_name, global_name]


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of numbers, text, lists and byte arrays."""
    try:
        with open(path, "rb") as file:
            loaded = _BytesUnpickler(file, encoding="bytes").load()
        return {_plain(key): _plain(value) for key, value in loaded.items()}
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise InputError(f"{path} is damaged or not a CIFAR file: {error}. Get it again.") from error


def _plain(value: Any) -> Any:
    """A value with stand-ins replaced by their arrays, and the byte strings of Python 2 by text."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    return value.values if isinstance(value, _Array) else value
