"""The smallest of very many scores over ranks, exactly, by two rounds of histograms instead of gathering them.

With negative numbers' bits flipped, the bits of floats sort as the floats do. The first round counts the 65,536 values
of the upper 16 bits, and so finds the threshold's upper bits; the second counts the lower bits of the scores that share
them, and so finds the threshold exactly. Only the rows at the threshold are gathered, to be ordered by the second key
and their position. (Scores in double precision take four rounds.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.ranks.collectives import gather_rows, sum_over_ranks

DIGIT = 16  # bits that a round counts
HISTOGRAM_BYTES = 2**DIGIT * 4
RADIX_BYTES = 2 * HISTOGRAM_BYTES  # both histograms of a selection in single precision
MOST_GATHERED = 2 * RADIX_BYTES  # bytes of keys up to which gathering sends less: sums are sent around twice


def keep_by_radix(scores: Tensor, ties: Tensor | None, count: int) -> Tensor:
    """This rank's rows among the ``count`` of all ranks that come first by score, then by ``ties``, then by place."""
    keys, bits = sortable(scores)
    stays, inside = torch.zeros_like(keys, dtype=torch.bool), torch.ones_like(keys, dtype=torch.bool)
    for shift in range(bits - DIGIT, -1, -DIGIT):
        digit = (keys >> shift) & (2**DIGIT - 1)
        if shift == bits - DIGIT:
            digit = digit ^ 2 ** (DIGIT - 1)  # flip the sign bit, so that negative numbers come first
        up_to = counted(digit[inside]).cumsum(0)
        threshold = int(torch.searchsorted(up_to, count))
        stays |= inside & (digit < threshold)
        inside &= digit == threshold
        count -= int(up_to[threshold - 1]) if threshold else 0
    at_threshold = inside.nonzero().squeeze(1)
    everyone = gather_rows([at_threshold if ties is None else ties[at_threshold]])
    order = torch.arange(len(everyone.values[0]), device=keys.device)
    if ties is not None:
        order = everyone.values[0].argsort(stable=True)
    stays[at_threshold[everyone.kept_here(order[:count])]] = True
    return stays.nonzero().squeeze(1)


def counted(digits: Tensor) -> Tensor:
    """How often each digit occurs, over all ranks."""
    return sum_over_ranks(torch.bincount(digits, minlength=2**DIGIT).int())


def sortable(scores: Tensor) -> tuple[Tensor, int]:
    """Integers that sort as the scores do, with every NaN equal and last, and their number of bits."""
    scores = scores.double() if scores.dtype == torch.float64 else scores.float()
    kind, bits = (torch.int64, 64) if scores.dtype == torch.float64 else (torch.int32, 32)
    scores = (scores + 0.0).masked_fill(scores.isnan(), torch.nan)  # -0 becomes 0, and every NaN the same one
    pattern = scores.view(kind)
    # Among negative floats the bits sort in reverse: flip them, except for the sign.
    return (pattern ^ ((pattern >> (bits - 1)) & torch.iinfo(kind).max)).long(), bits
