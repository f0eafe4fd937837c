"""Standardising columns to mean 0 and standard deviation 1 on the training rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradsieve.errors import InputError


def standardise(train: Tensor, *others: Tensor) -> list[Tensor]:
    """``train`` and ``others`` (N, d), standardised by ``train``, as float32; a constant column becomes 0."""
    mean, std = mean_and_std(train)
    return [((part.double() - mean) / std).float() for part in (train, *others)]


def mean_and_std(train: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (d,) for ``standardise``; 1 for constant columns."""
    train_double = train.double()
    mean, std = train_double.mean(0), train_double.std(0, correction=0)
    std[is_constant(train)] = 1
    return mean, std


def standardise_targets(names: Sequence[str], train: Tensor, *others: Tensor) -> list[Tensor]:
    """As ``standardise``, but a constant target is an error: there is nothing to learn."""
    constant = is_constant(train)
    if constant.any():
        column = int(constant.nonzero()[0])
        raise InputError(
            f"The target {names[column]} is {train[0, column].item():g} in all {len(train)} training rows. "
            "Leave it out, or use more rows."
        )
    return standardise(train, *others)


def is_constant(values: Tensor) -> Tensor:
    """(d,) bool, by comparing values: rounding can give equal values a tiny standard deviation."""
    low, high = values.aminmax(dim=0)
    return low == high
