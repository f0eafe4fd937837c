"""The kernels as operators of PyTorch, so that they can stand in a compiled program."""

from __future__ import annotations

import torch
from torch import Tensor

from gradsieve.kernels.direct import direct, direct_parts
from gradsieve.kernels.first import first, first_parts
from gradsieve.kernels.gram import gram_shifted, gram_shifted_parts, gram_small, gram_small_parts
from gradsieve.kernels.kept import kept_sum as launch_kept_sum

STORING = {"first": first, "direct": direct}
PARTS = {
    "first": first_parts,
    "direct": direct_parts,
    "gram_small": gram_small_parts,
    "gram_shifted": gram_shifted_parts,
}


@torch.library.custom_op("gradsieve::row_norms", mutates_args=())
def row_norms(form: str, activations: Tensor, gradient: Tensor, padding: int) -> Tensor:
    """The squared norm of each row's weight gradient in parts (N, programs): a compiler fuses their sum with others."""
    if form == "gram_shifted":
        return gram_shifted(activations, gradient)
    if form == "gram_small":
        return gram_small(activations, gradient, padding)
    return STORING[form](activations, gradient, padding)


@row_norms.register_fake
def _(form: str, activations: Tensor, gradient: Tensor, padding: int) -> Tensor:
    return PARTS[form](activations, gradient)


@torch.library.custom_op("gradsieve::row_norms_and_products", mutates_args=())
def row_norms_and_products(form: str, activations: Tensor, gradient: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """The same, and the weight gradients themselves: (N, outputs x 9 x inputs)."""
    products = room_for_products(activations, gradient)
    return STORING[form](activations, gradient, padding, store=products), products


@row_norms_and_products.register_fake
def _(form: str, activations: Tensor, gradient: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    return PARTS[form](activations, gradient), room_for_products(activations, gradient)


def room_for_products(activations: Tensor, gradient: Tensor) -> Tensor:
    return gradient.new_empty(len(gradient), 9 * gradient.shape[1] * activations.shape[1])


@torch.library.custom_op("gradsieve::kept_sum", mutates_args=())
def kept_sum(products: Tensor, kept: Tensor) -> Tensor:
    """The sum over the rows ``kept`` of (N, M) products, in single precision: (M,)."""
    return launch_kept_sum(products, kept)


@kept_sum.register_fake
def _(products: Tensor, kept: Tensor) -> Tensor:
    return products.new_empty(products.shape[1], dtype=torch.float32)
