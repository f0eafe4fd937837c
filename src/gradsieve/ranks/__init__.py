"""Several processes that work on one batch: rows gathered, counts and gradients added up, decisions taken together.

Without ``torch.distributed`` every function here is the identity. The global batch is the concatenation of the ranks'
batches in rank order; shards may differ in size or be empty.
"""

from gradsieve.ranks.batchnorm import BatchNormOver, average_statistics, meets_ranks, norm_over_ranks
from gradsieve.ranks.collectives import (
    Gathered,
    gather_rows,
    gather_tensors,
    largest,
    own_part,
    parts,
    sum_gradients,
    sum_over_ranks,
    tensors_from_first,
    total,
)
from gradsieve.ranks.group import alone, is_first, joined, rank, world_size
from gradsieve.ranks.radix import MOST_GATHERED, keep_by_radix
from gradsieve.ranks.together import agreed, from_first, gather_json, require_alike

__all__ = [
    "BatchNormOver",
    "Gathered",
    "MOST_GATHERED",
    "agreed",
    "alone",
    "average_statistics",
    "from_first",
    "gather_json",
    "gather_rows",
    "gather_tensors",
    "is_first",
    "joined",
    "keep_by_radix",
    "largest",
    "meets_ranks",
    "norm_over_ranks",
    "own_part",
    "parts",
    "rank",
    "require_alike",
    "sum_gradients",
    "sum_over_ranks",
    "tensors_from_first",
    "total",
    "world_size",
]
