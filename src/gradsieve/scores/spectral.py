"""How far each row's gradient lies along the direction in which the rows' gradients vary most: SEVER's score.

The direction is the top right singular vector of the centred matrix of gradients, rows x parameters, which is too
large to hold. But a row's place along it is, up to the singular value, the row's entry in the top *left*
singular vector, and that is an eigenvector of the rows x rows Gram matrix: summed parameter by parameter, found by
power iteration. So the memory is rows x the largest parameter, not rows x all of them, and there is no SVD.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.ranks import gather_rows
from gradsieve.scores.outer_products import as_real
from gradsieve.scores.row_gradients import RowPass


def gradient_gram(rows: RowPass) -> Tensor:
    """Inner products of the gradients of all ranks' rows, (N, N)."""
    (losses,) = gather_rows([rows.losses]).values
    own_lines = torch.zeros(len(rows.losses), len(losses), dtype=torch.float64, device=losses.device)
    for _, share in rows.by_parameter():
        flat = as_real(share).flatten(1)  # (rows of this rank, size of the parameter)
        own_lines += flat @ gather_rows([flat]).values[0].T
    (gram,) = gather_rows([own_lines]).values
    gram.diagonal().masked_fill_(losses.isnan(), torch.nan)  # the derivative of abs is 0 at NaN
    return gram


def spectral_scores(gram: Tensor, iterations: int) -> Tensor:
    """Squared projection of each centred row on the top direction, (N,), by power iteration on the Gram matrix.

    A row whose gradient is not finite scores NaN, and the others score as if it were not there.
    """
    sound = gram.diagonal().isfinite()
    pairs, rows = sound & sound.unsqueeze(1), sound.sum().clamp(min=1)
    centred = gram.where(pairs, 0.0)
    centred = centred - centred.sum(0, keepdim=True) / rows
    centred = (centred - centred.sum(1, keepdim=True) / rows).where(pairs, 0.0)
    # The start is always the same, and unlikely to be orthogonal to the top direction.
    direction = torch.arange(1, len(gram) + 1, dtype=gram.dtype, device=gram.device).sin()
    for _ in range(iterations):
        direction = centred @ direction
        direction = direction / direction.norm().clamp(min=torch.finfo(gram.dtype).tiny)
    return ((direction @ centred @ direction) * direction.square()).where(sound, torch.nan)
