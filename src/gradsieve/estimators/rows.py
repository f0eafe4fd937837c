"""Which rows an epoch visits: each as often as its weight says, in batches of equal size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsieve import seeds

BATCH = 256  # rows in a batch of a large set
STEPS = 16  # about the number of batches in an epoch of a small set
COPIES = 10  # whole weights count copies if their mean is no larger: else an epoch would take too long


def canonical_order(inputs: NDArray, targets: NDArray, weights: NDArray | None = None) -> Tensor:
    """The rows sorted by their content: a shuffled table then gives the same network, bit for bit.

    It also makes a row of weight 2 the same as two rows, wherever in the table the second one is. Rows that differ only
    in their ``weights`` are sorted by them: their order may matter, since they are not visited alike.
    """
    rows = len(inputs)
    parts = [inputs, targets, *([] if weights is None else [np.asarray(weights, dtype=np.float64)])]
    content = np.concatenate([as_bytes(part.reshape(rows, -1)) for part in parts], axis=1)
    keys = np.ascontiguousarray(content).view(np.dtype((np.void, content.shape[1]))).ravel()
    return torch.from_numpy(np.argsort(keys, kind="stable"))


def as_bytes(values: NDArray) -> NDArray[np.uint8]:
    """(N, bytes) of (N, d) numbers; 0.0 and -0.0 are the same number."""
    return np.ascontiguousarray(values + values.dtype.type(0)).view(np.uint8)


def visits(order: Tensor, weights: NDArray | None, seed: int) -> Callable[[int], Tensor]:
    """A function of the epoch: the rows of ``order``, each as often as it is visited then.

    Whole weights are numbers of copies. Others are scaled to mean 1, and a row of weight 1.3 is visited once in every
    epoch and a second time in three epochs of ten. So every method works with weights, and drops a share of them.
    """
    if weights is None:
        return lambda epoch: order
    given = torch.from_numpy(np.asarray(weights, dtype=np.float64))[order]
    if not is_copies(weights):
        given = given / given.mean()

    def of_epoch(epoch: int) -> Tensor:
        chance = torch.rand(len(given), generator=seeds.generator(seed, "visits", epoch), dtype=torch.float64)
        times = (given + chance).floor().long()  # a whole number stays as it is
        rows = order.repeat_interleave(times)
        return rows if len(rows) else order[given.argmax()][None]

    return of_epoch


def is_copies(weights: NDArray) -> bool:
    """Whether the weights can be taken for numbers of copies without too long an epoch."""
    return bool((weights == np.floor(weights)).all()) and weights.sum() <= COPIES * len(weights)


def batch_rows(rows: int, batch_size: int | str) -> int:
    """The size of an epoch's batches: at most ``batch_size``, and such that hardly any row is left over.

    Rows left over are the last of a shuffled order, different ones in every epoch. With batches of equal size, every
    step drops the same share.
    """
    most = min(BATCH, max(STEPS, rows // STEPS)) if isinstance(batch_size, str) else batch_size
    return max(1, rows // -(-rows // most))
