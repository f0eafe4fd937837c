"""Which rows are kept: those with the smallest scores, exactly as many as asked for.

Every sort is stable and ties go to the smaller row index, so a selection is a function of its
inputs alone (``topk`` is not). NaN sorts last: a row without a score is dropped first. Under
``torch.distributed`` there is one threshold for the global batch, so that N ranks keep the rows that
one rank would keep: dropping rank by rank would keep corrupted rows that happen to be on one rank. For
the threshold, ranks exchange the scores of all rows or, for very large batches, histograms, which are smaller.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradsieve.counts import check_rate, keep_count
from gradsieve.errors import InputError
from gradsieve.ranks import MOST_GATHERED, gather_rows, keep_by_radix
from gradsieve.tracing import compares_pairs, is_traced


def keep_smallest(
    scores: Tensor, drop_rate: float, *, ties: Tensor | None = None, classes: Tensor | None = None
) -> Tensor:
    """Indices of the floor((1 - drop_rate) * N) rows with the smallest scores (at least one), ascending.

    - ``scores``: one score per row, (N,); large is suspicious. Rows with a NaN score are dropped first.
    - ``ties``: (N,), breaks ties between equal scores; rows that are still equal are ordered by index.
    - ``classes``: (N,), the class of each row: each class loses about the same share, its best row last of all. The
      total number of rows stays exact.
    """
    rate = check_rate("drop_rate", drop_rate)
    return _keep(scores, ties, classes, lambda rows: keep_count(rate, rows))


def keep_first(scores: Tensor, count: int, *, ties: Tensor | None = None) -> Tensor:
    """Indices of the ``count`` rows with the smallest scores, ascending."""
    return _keep(scores, ties, None, lambda rows: min(count, rows))


def _keep(scores: Tensor, ties: Tensor | None, classes: Tensor | None, count_of: Callable[[int], int]) -> Tensor:
    if not isinstance(scores, Tensor):
        raise InputError(f"scores is a {type(scores).__name__}, but must be a tensor: torch.as_tensor(scores).")
    if scores.dim() != 1:
        raise InputError(f"scores has shape {tuple(scores.shape)}, but must be one score per row, (N,).")
    for name, values in (("ties", ties), ("classes", classes)):
        if values is not None and values.shape != scores.shape:
            raise InputError(f"{name} has shape {tuple(values.shape)}, but scores has {tuple(scores.shape)}.")
    keys = [scores.detach(), *([] if ties is None else [ties.detach()])]
    # Trimming class by class needs each row's rank in its class, and so every row.
    gathered = gather_rows([*keys, classes]) if classes is not None else gather_rows(keys, MOST_GATHERED)
    rows = sum(gathered.sizes)
    if rows == 0:
        raise InputError("scores is empty: a batch needs at least one row.")
    if not gathered.values:
        return keep_by_radix(keys[0], keys[1] if ties is not None else None, count_of(rows))
    keys = gathered.values[: len(keys)]
    if classes is not None:
        keys = [place_in_class(keys, gathered.values[-1]), *keys]
    return gathered.kept_here(first_rows(keys, count_of(rows)))


def first_rows(keys: list[Tensor], count: int) -> Tensor:
    """The ``count`` rows that come first by the first key, then by the next, then by index, ascending."""
    first, rows = keys[0], keys[0].shape[0]
    if first.device.type == "cpu" and not is_traced(first):
        # A threshold is faster than sorting. On a GPU, counting the rows below it would wait for the device.
        kept = smallest_if_untied(first, count)
        if kept is not None:
            return kept
    if compares_pairs(first):
        return where(how_many_precede(keys) < count, count)
    is_kept = torch.zeros(rows, dtype=torch.bool, device=first.device)
    return where(is_kept.index_fill_(0, lexical_order(keys)[:count], True), count)


def smallest_if_untied(values: Tensor, count: int) -> Tensor | None:
    """The ``count`` rows of smallest value, ascending; None if values are equal at the threshold, or it is NaN."""
    kept = (values <= values.kthvalue(count).values).nonzero().squeeze(1)
    return kept if kept.shape[0] == count else None


def where(mask: Tensor, count: int) -> Tensor:
    """Where a mask is True, ascending: ``nonzero`` for a known ``count``, without waiting for the device."""
    if compares_pairs(mask):
        so_far = mask.cumsum(0)
        places = (so_far <= torch.arange(count, device=mask.device)[:, None]).sum(1)  # fuses, unlike a scatter
        if not torch.compiler.is_compiling():  # torch.compile cannot set attributes of tensors
            places.is_kept = mask  # type: ignore[attr-defined]  # for ``mask_of``
        return places
    rows = torch.arange(mask.shape[0], device=mask.device)
    place = (mask.cumsum(0) - 1).where(mask, count)  # rows that are not wanted go behind the others
    return rows.new_empty(count + 1).scatter_(0, place, rows)[:count]


def mask_of(rows: Tensor) -> Tensor | None:
    """The mask in which ``where`` found these rows, if traced: using it avoids the search for the rows."""
    return getattr(rows, "is_kept", None)


def how_many_precede(keys: list[Tensor]) -> Tensor:
    """Each row's place in the order by the keys and its index, by comparing all pairs.

    A compiler makes this one kernel, which is faster than sorting a few rows. Without a compiler, it is slower.
    """
    row = torch.arange(keys[0].shape[0], device=keys[0].device)
    precedes = row < row[:, None]  # (N, N): entry i, j is whether row j comes before row i
    for key in reversed(keys):
        other, own = key[None, :], key[:, None]
        less = (other < own) | (own.isnan() & ~other.isnan())
        same = (other == own) | (own.isnan() & other.isnan())
        precedes = less | (same & precedes)
    return precedes.sum(1)


def lexical_order(keys: list[Tensor]) -> Tensor:
    """Row indices sorted by the first key, then by the next, then by index."""
    order = keys[-1].argsort(stable=True)
    for key in reversed(keys[:-1]):
        order = order[key[order].argsort(stable=True)]
    return order


def place_in_class(keys: list[Tensor], classes: Tensor) -> Tensor:
    """For each row, the share of its own class that ranks before it: 0 for the best, then 1/n, 2/n, ...

    A row without a score (NaN) gets infinity: it is never the best of its class. Keeping the rows with the smallest
    values drops the same share of every class without a count per class, so that shapes stay static.
    """
    order = lexical_order([classes, *keys])
    grouped = classes[order]
    first = torch.searchsorted(grouped, grouped)
    size = torch.searchsorted(grouped, grouped, right=True) - first
    place = torch.empty(len(classes), device=classes.device)
    place[order] = (torch.arange(len(classes), device=classes.device) - first) / size
    return place.masked_fill(keys[0].isnan(), torch.inf)
