"""The paper's bounds on the error of a filtered gradient, and how to measure that error in a network.

Liu et al. 2021. A row's gradient is its loss-layer gradient (q,) times the Jacobian of its outputs (q, d),
and a corrupted target reaches only the first factor. The bounds are in terms of

- C, the largest operator norm of a Jacobian;
- k, the largest loss-layer gradient under the clean targets;
- v, the largest loss-layer gradient of a corrupted row that was kept;
- epsilon, the share of rows that are dropped, which must be at least the share that is corrupted. From 0.5 on
  the bounds do not hold, and are inf.

The measurement needs the truth about the corruption. It is a metric: no method sees it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from gradsieve.counts import check_rate, exact, part
from gradsieve.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs (N, q), targets -> a loss per row (N,)
BREAKDOWN = 0.5  # the rate from which corrupted rows may be the majority, and the bounds no longer hold
CHUNK_VALUES = 2**26  # Jacobian entries held at once: 256 MiB of float32, or one row if that is more


def check_breakdown(rate: float) -> None:
    """Warn if ``rate`` is 0.5 or more. A run calls it once, before it starts."""
    if rate >= BREAKDOWN:
        warnings.warn(
            f"The rate is {rate:g}. From {BREAKDOWN} on, corrupted rows may be the majority and the paper's "
            "bounds do not hold: training may work, but nothing is guaranteed.",
            UserWarning,
            stacklevel=2,
        )


def lemma1(epsilon: float, C: float, k: float, v: float) -> float:
    """Lemma 1, for any filter: C k (3e - 4e^2)/(1-e) + C v e/(1-e)."""
    e = epsilon
    return C * (k * (3 * e - 4 * e**2) + v * e) / (1 - e) if e < BREAKDOWN else inf


def theorem2(epsilon: float, C: float, k: float) -> float:
    """Theorem 2, after dropping the rows with the largest loss-layer gradients, so that v <= k: 4 e C k."""
    return 4 * epsilon * C * k if epsilon < BREAKDOWN else inf


def corollary1(epsilon: float, L: float) -> float:
    """Corollary 1, after dropping the rows with the largest gradients, if clean ones are at most L: 4 e L.

    The proof in the appendix loses a minus sign where it puts x = (1-2e) m and n = (1-e) m into
    x L (2e - 2)/n + 2L, and arrives at 4L - 2L e/(1-e), which does not even vanish at e = 0.
    By Theorem 1, the bound is also the gradient norm that SGD reaches in many small steps.
    """
    return 4 * epsilon * L if epsilon < BREAKDOWN else inf


def corollary1_rate(epsilon: float, d: int, entry: float = 1.0) -> float:
    """O(e sqrt(d)) of Corollary 1: PRL(G), if each of a clean gradient's d entries is at most ``entry``."""
    return corollary1(epsilon, entry * sqrt(d))


def corollary2_rate(epsilon: float, q: int, C: float = 1.0, entry: float = 1.0) -> float:
    """O(e sqrt(q)) of Corollary 2: PRL(L), if each of the q loss-layer entries is at most ``entry``.

    Under cross-entropy, k is at most sqrt(2) for any q, so ``theorem2`` is tighter.
    """
    return theorem2(epsilon, C, entry * sqrt(q))


def lemma2_sufficient(alpha: Tensor, beta: Tensor, k: int) -> Tensor:
    """Lemma 2: a sufficient condition for PRL(L) to drop alpha before beta although its cross-entropy is smaller.

    Both are probabilities (..., q), with alpha_k >= beta_k at the true class k. The condition,
    Var alpha - Var beta >= q/(q-1)^2 (alpha_k - beta_k)(2 - alpha_k - beta_k) over the other classes,
    implies ||alpha - y|| >= ||beta - y||.
    """
    q = alpha.shape[-1]
    others = torch.arange(q, device=alpha.device) != k
    variances = [p[..., others].var(-1, correction=0) for p in (alpha, beta)]
    a, b = alpha[..., k], beta[..., k]
    return variances[0] - variances[1] >= q / (q - 1) ** 2 * (a - b) * (2 - a - b)


class GradientError(NamedTuple):
    """||mean clean gradient - mean gradient of the kept rows as given||, and its bounds."""

    error: float
    lemma1: float  # inf if it does not hold: epsilon from 0.5 on, or more rows corrupted than dropped
    theorem2: float  # likewise; it is for filters by loss-layer gradient, and the error may exceed it if v > k
    C: float
    k: float
    v: float  # 0 if no corrupted row was kept
    epsilon: float  # share of the rows that were dropped


def gradient_error(
    network: nn.Module,
    loss: Loss,
    inputs: Tensor,
    clean_targets: Tensor,
    corrupted_targets: Tensor,
    is_corrupted: Tensor,
    kept: Tensor,
) -> GradientError:
    """Measure the gradient error on a probe batch (see ``probe_rows``) of which only the rows ``kept`` are kept.

    ``kept`` holds row indices or is a mask. The network runs in eval mode, where rows do not mix, and is left
    as it was: mode, gradients and statistics.
    """
    rows = len(inputs)
    parameters = [each for each in network.parameters() if each.requires_grad]
    with eval_form(network), torch.enable_grad():
        outputs = network(inputs)  # (N, q)
        is_corrupted = is_corrupted.to(outputs.device)
        kept = torch.arange(rows, device=outputs.device)[kept.to(outputs.device)]
        alpha = loss_layer_gradients(loss, outputs, clean_targets)  # (N, q)
        delta = loss_layer_gradients(loss, outputs, corrupted_targets)
        # Both means share the Jacobians, so one backward pass gives their difference.
        pull = alpha / rows
        pull[kept] -= delta[kept] / len(kept)
        differences = torch.autograd.grad(outputs, parameters, pull, allow_unused=True)
        C = largest_jacobian_norm(network, inputs, outputs.numel() // rows)
    error = sqrt(sum(float(each.double().square().sum()) for each in differences if each is not None))
    k = float(alpha.reshape(rows, -1).norm(dim=1).max())
    wrong = delta[kept][is_corrupted[kept]]  # (B, q)
    v = float(wrong.reshape(len(wrong), -1).norm(dim=1).max()) if len(wrong) else 0.0
    epsilon = (rows - len(kept)) / rows
    if int(is_corrupted.sum()) > rows - len(kept):
        return GradientError(error, inf, inf, C, k, v, epsilon)
    return GradientError(error, lemma1(epsilon, C, k, v), theorem2(epsilon, C, k), C, k, v, epsilon)


def loss_layer_gradients(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """d loss_i / d output_i for every row, (N, q)."""
    outputs = outputs.detach().requires_grad_()
    losses = loss(outputs, targets)
    if losses.shape != outputs.shape[:1]:
        raise InputError(
            f"The loss of {len(outputs)} rows has shape {tuple(losses.shape)}, but each row needs its own: "
            "pass reduction='none', and average over the outputs of a row."
        )
    return torch.autograd.grad(losses.sum(), outputs)[0]


def largest_jacobian_norm(network: nn.Module, inputs: Tensor, q: int) -> float:
    """The largest operator norm of a row's Jacobian (q, d), by the top eigenvalue of its Gram matrix."""
    parameters = {name: each.detach() for name, each in network.named_parameters() if each.requires_grad}

    def row_outputs(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(network, parameters, (row[None],)).flatten()

    def gram(row: Tensor) -> Tensor:
        jacobians = jacrev(row_outputs)(parameters, row)  # each (q, *parameter's shape)
        flat = [each.flatten(1) for each in jacobians.values()]
        return torch.stack([each @ each.T for each in flat]).sum(0)  # (q, q)

    chunk = max(1, CHUNK_VALUES // (q * sum(each.numel() for each in parameters.values())))
    grams = vmap(gram, chunk_size=chunk)(inputs)  # (N, q, q)
    return sqrt(float(torch.linalg.eigvalsh(grams.double())[:, -1].max().clamp_min(0)))


@contextmanager
def eval_form(network: nn.Module) -> Iterator[None]:
    """Put every module in eval mode, then back as it was; one by one, because always-on dropout ignores eval()."""
    modes = [(module, module.training) for module in network.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def probe_rows(is_corrupted: Tensor, size: int, epsilon: float, generator: torch.Generator) -> Tensor:
    """Sorted indices of ``size`` rows, floor(epsilon * size) of them corrupted and the others clean.

    If there are not as many corrupted rows, fewer are corrupted; if there are not enough clean ones, fewer are
    chosen. The corrupted share never exceeds epsilon, as the bounds require.
    """
    corrupted, clean = is_corrupted.nonzero().flatten(), (~is_corrupted).nonzero().flatten()
    enough = int(len(clean) / (1 - exact(check_rate("epsilon", epsilon))))
    size = min(size, len(is_corrupted), enough)
    if size < 1:
        raise InputError(f"A probe needs a clean row, but {len(clean)} of {len(is_corrupted)} are clean.")
    count = min(part(epsilon, size), len(corrupted))
    chosen = [
        rows[torch.randperm(len(rows), generator=generator)[:number]]
        for rows, number in ((corrupted, count), (clean, size - count))
    ]
    return torch.cat(chosen).sort().values
