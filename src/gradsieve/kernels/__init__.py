"""Triton kernels for the norms of the rows' weight gradients of 3x3 convolutions, on NVIDIA GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_WANTED = ContextVar("kernels", default=True)


@cache
def available() -> bool:
    """Whether a Triton that the kernels can use (3.4 or newer) can be imported."""
    try:
        import triton.tools.tensor_descriptor  # pyright: ignore[reportMissingImports] # noqa: F401
    except (ImportError, OSError):  # not there, too old, or there without the libraries that it loads
        return False
    return True


def enabled() -> bool:
    """Whether the kernels may be chosen here."""
    return _WANTED.get() and available()


@contextmanager
def without_kernels() -> Iterator[None]:
    """PyTorch operations alone, to compare with."""
    token = _WANTED.set(False)
    try:
        yield
    finally:
        _WANTED.reset(token)
