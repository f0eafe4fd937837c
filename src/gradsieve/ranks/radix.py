"""The smallest of very many scores over ranks, exactly, without gathering them: two rounds of histograms.

The bits of a float, rightly turned, sort as the float does. The first round counts the upper half of the bits, which
tells in which of its 65,536 values the threshold lies; the second counts the lower half of the scores in there, which
tells the threshold to the last bit. Only rows at the threshold itself are gathered, to be told apart by the second key
and their place. (Scores in double precision take four rounds.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.ranks.collectives import gather_rows, sum_over_ranks

DIGIT = 16  # bits that a round counts
HISTOGRAM_BYTES = 2**DIGIT * 4
RADIX_BYTES = 2 * HISTOGRAM_BYTES  # of a selection in single precision
MOST_GATHERED = 2 * RADIX_BYTES  # up to here gathering the keys moves less: sums go around twice


def keep_by_radix(scores: Tensor, ties: Tensor | None, count: int) -> Tensor:
    """This rank's rows among the ``count`` of all ranks that come first by score, then by ``ties``, then by place."""
    keys, bits = sortable(scores)
    stays, inside = torch.zeros_like(keys, dtype=torch.bool), torch.ones_like(keys, dtype=torch.bool)
    for shift in range(bits - DIGIT, -1, -DIGIT):
        digit = (keys >> shift) & (2**DIGIT - 1)
        if shift == bits - DIGIT:
            digit = digit ^ 2 ** (DIGIT - 1)  # the sign: what is negative comes first
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
    """Integers that sort as the scores do, NaN last and all alike, and how many of their bits count."""
    scores = scores.double() if scores.dtype == torch.float64 else scores.float()
    kind, bits = (torch.int64, 64) if scores.dtype == torch.float64 else (torch.int32, 32)
    scores = (scores + 0.0).masked_fill(scores.isnan(), torch.nan)  # -0 is 0; one NaN stands for all
    pattern = scores.view(kind)
    # The bits of a negative float run backwards.
    return (pattern ^ ((pattern >> (bits - 1)) & torch.iinfo(kind).max)).long(), bits
