"""The update from stored weight gradients: their sum over the rows that are kept."""

# Triton comes with the CUDA builds of PyTorch only, and pyright does not see what jit makes of a function.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from gradsieve.errors import InputError
from gradsieve.kernels import tiles
from gradsieve.kernels.tiles import KeptTile


@triton.jit
def kept_sum_kernel(
    stored, kept, sums, size, stored_stride, count, BLOCK_COLUMNS: tl.constexpr, BLOCK_ROWS: tl.constexpr
):
    """Sum some columns over the kept rows, without gathering the rows first."""
    column = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    total = tl.zeros((BLOCK_COLUMNS,), tl.float32)
    # How many rows are kept changes during training: as a constant it would compile the kernel anew.
    for start in range(0, count, BLOCK_ROWS):
        turn = start + tl.arange(0, BLOCK_ROWS)
        row = tl.load(kept + turn, mask=turn < count, other=0)
        wanted = (turn < count)[:, None] & (column < size)[None, :]
        values = tl.load(stored + row[:, None] * stored_stride + column[None, :], mask=wanted, other=0.0)
        total += tl.sum(values.to(tl.float32), 0)
    tl.store(sums + column, total, mask=column < size)


def kept_sum(stored: Tensor, kept: Tensor, tile: KeptTile | None = None) -> Tensor:
    """The sum over the rows at the positions ``kept`` (int64) of ``stored`` (N, M), in single precision: (M,)."""
    if kept.dtype != torch.int64 or kept.ndim != 1 or stored.ndim != 2 or stored.stride(1) != 1:
        raise InputError(
            f"stored has strides {stored.stride()} and kept is {kept.dtype} of shape {tuple(kept.shape)}, but kept_sum "
            "takes an (N, M) buffer whose rows' values stand side by side, and a list of int64 positions."
        )
    size, tile = stored.shape[1], tile or tiles.KEPT
    sums = torch.empty(size, dtype=torch.float32, device=stored.device)
    kept_sum_kernel[(triton.cdiv(size, tile.columns),)](
        stored,
        kept.contiguous(),
        sums,
        size,
        stored.stride(0),
        len(kept),
        BLOCK_COLUMNS=tile.columns,
        BLOCK_ROWS=tile.rows,
        num_warps=tile.warps,
    )
    return sums
