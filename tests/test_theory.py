"""The bounds hold on random problems and in networks; the paper's examples come out as printed."""

from __future__ import annotations

import copy
from fractions import Fraction
from math import inf, sqrt

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from gradsieve import theory
from gradsieve.counts import keep_count, part
from gradsieve.errors import InputError
from gradsieve.models import MODELS
from gradsieve.models.build import build
from gradsieve.theory import (
    check_breakdown,
    corollary1,
    corollary1_rate,
    corollary2_rate,
    gradient_error,
    lemma1,
    lemma2_sufficient,
    probe_rows,
    theorem2,
)

seeds = st.integers(0, 2**31)
many = settings(max_examples=150, deadline=None)
SLACK = 1 + 1e-9


def problem(seed: int, rows: int, q: int, d: int, epsilon: float, force: float):
    """Problem 2 in numbers: W_i (m, q, d), clean alpha_i, and delta_i of an adversary in a share of the rows."""
    draw = torch.Generator().manual_seed(seed)
    W = torch.randn(rows, q, d, generator=draw, dtype=torch.float64)
    alpha = torch.randn(rows, q, generator=draw, dtype=torch.float64)
    if seed % 2:  # aligned rows: the clean mean is as large as it can be, and the adversary reverses it
        W, alpha = W[:1].expand(rows, q, d), alpha[:1].expand(rows, q)
    is_corrupted = torch.zeros(rows, dtype=torch.bool)
    is_corrupted[torch.randperm(rows, generator=draw)[: part(epsilon, rows)]] = True
    delta = torch.where(is_corrupted[:, None], -force * alpha, alpha)
    C = float(torch.linalg.matrix_norm(W, 2).max())
    k = float(alpha.norm(dim=1).max())
    return draw, W, alpha, delta, is_corrupted, C, k


def mean_gradient(factors: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    return torch.einsum("mq,mqd->md", factors, W).mean(0)


shapes = {
    "seed": seeds,
    "rows": st.integers(2, 40),
    "q": st.integers(1, 5),
    "d": st.integers(1, 8),
    "epsilon": st.floats(0, 0.49),
    "force": st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e3]),
}


@many
@given(**shapes)
def test_lemma_1_holds_whichever_rows_are_kept(seed, rows, q, d, epsilon, force):
    draw, W, alpha, delta, is_corrupted, C, k = problem(seed, rows, q, d, epsilon, force)
    kept = torch.randperm(rows, generator=draw)
    if seed % 3:  # the worst filter keeps every corrupted row
        kept = kept[is_corrupted[kept].argsort(descending=True, stable=True)]
    kept = kept[: keep_count(epsilon, rows)]
    dropped = 1 - len(kept) / rows
    assume(dropped < 0.5)
    v = max(delta[kept][is_corrupted[kept]].norm(dim=1).tolist(), default=0.0)
    error = float((mean_gradient(alpha, W) - mean_gradient(delta[kept], W[kept])).norm())
    assert error <= lemma1(dropped, C, k, v) * SLACK + 1e-9


@many
@given(**shapes)
def test_theorem_2_holds_after_trimming_by_norm(seed, rows, q, d, epsilon, force):
    _, W, alpha, delta, is_corrupted, C, k = problem(seed, rows, q, d, epsilon, force)
    kept = delta.norm(dim=1).argsort(stable=True)[: keep_count(epsilon, rows)]
    dropped = 1 - len(kept) / rows
    assume(dropped < 0.5)
    error = float((mean_gradient(alpha, W) - mean_gradient(delta[kept], W[kept])).norm())
    assert error <= theorem2(dropped, C, k) * SLACK + 1e-9
    assert max(delta[kept][is_corrupted[kept]].norm(dim=1).tolist(), default=0.0) <= k * SLACK


@many
@given(**shapes)
def test_corollary_1_holds_after_trimming_whole_gradients(seed, rows, q, d, epsilon, force):
    _, W, alpha, delta, *_ = problem(seed, rows, q, d, epsilon, force)
    clean, given_ = (torch.einsum("mq,mqd->md", factors, W) for factors in (alpha, delta))
    kept = given_.norm(dim=1).argsort(stable=True)[: keep_count(epsilon, rows)]
    dropped = 1 - len(kept) / rows
    assume(dropped < 0.5)
    L = float(clean.norm(dim=1).max())
    assert float((clean.mean(0) - given_[kept].mean(0)).norm()) <= corollary1(dropped, L) * SLACK + 1e-9


@given(e=st.fractions(0, Fraction(49, 100)), m=st.integers(1, 1000))
def test_the_bounds_equal_the_papers_derivations(e, m):
    n, x = (1 - e) * m, (1 - 2 * e) * m
    # Appendix, corollary 1, the last right line; the printed end of it, 4L - 2L e/(1-e), is 4L at e = 0.
    assert x * (2 * e - 2) / n + 2 == 4 * e
    assert corollary1(float(e), 3.0) == pytest.approx(float(4 * e * 3))
    # Lemma 1 before and after putting in x, and Theorem 2 as Lemma 1 at v = k.
    k, v = 2, 5
    line = x * (m - n) / (n * m) * k + (n - x) / m * k + (m - n) / m * k + (n - x) / n * v
    assert lemma1(float(e), 1.0, k, v) == pytest.approx(float(line))
    assert lemma1(float(e), 3.0, k, k) == pytest.approx(theorem2(float(e), 3.0, k))


def test_the_rates_of_the_corollaries_grow_with_the_root_of_the_dimension():
    assert corollary1_rate(0.1, 10_000, entry=0.01) == pytest.approx(corollary1(0.1, 1.0))
    assert corollary2_rate(0.1, 100, C=2.0) == pytest.approx(10 * corollary2_rate(0.1, 1, C=2.0))


def test_a_rate_from_one_half_on_warns_and_leaves_no_bound():
    check_breakdown(0.49)  # a warning would be an error here
    for rate in (0.5, 0.7):
        with pytest.warns(UserWarning, match="bounds do not hold"):
            check_breakdown(rate)
        assert lemma1(rate, 1, 1, 1) == theorem2(rate, 1, 1) == corollary1(rate, 1) == inf


@many
@given(seed=seeds, q=st.integers(3, 12), sharpness=st.floats(0.1, 4))
def test_lemma_2_is_sufficient_for_the_order_of_the_norms(seed, q, sharpness):
    draw = torch.Generator().manual_seed(seed)
    alpha, beta = (sharpness * torch.randn(2, 200, q, generator=draw, dtype=torch.float64)).softmax(-1)
    k = seed % q
    y = F.one_hot(torch.tensor(k), q)
    smaller_loss = alpha[:, k] >= beta[:, k]
    holds = lemma2_sufficient(alpha, beta, k) & smaller_loss
    assert ((alpha - y).norm(dim=1) >= (beta - y).norm(dim=1) - 1e-12)[holds].all()


def test_the_papers_two_predictions_swap_places():
    """Section 3.6: TORN has the smaller cross-entropy, CALM the smaller gradient."""
    calm = torch.tensor([0.08, 0.28, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08], dtype=torch.float64)
    torn = torch.tensor([0.10, 0.30, 0.34, 0.05, 0.05, 0.10, 0.03, 0.03, 0.00, 0.00], dtype=torch.float64)
    y = F.one_hot(torch.tensor(1), 10)
    assert -torn[1].log() < -calm[1].log()
    assert (torn - y).norm() > (calm - y).norm()
    assert lemma2_sufficient(torn, calm, 1)
    assert not lemma2_sufficient(calm, torn, 1)


def test_the_papers_quadratic_has_less_gradient_where_it_has_more_loss():
    points = torch.tensor([[1000.0, 1.0], [495.0, -49.5]], dtype=torch.float64, requires_grad=True)
    phi = 0.5 * points[:, 0] ** 2 + 50 * points[:, 1] ** 2
    norms = torch.autograd.grad(phi.sum(), points)[0].norm(dim=1)
    assert phi.tolist() == [500_050, 245_025]
    assert norms.tolist() == pytest.approx([sqrt(1000**2 + 100**2), sqrt(495**2 + 4950**2)])
    assert phi[0] > phi[1]
    assert norms[0] < norms[1]


def squared_error(outputs, targets):
    return (outputs - targets).square().mean(1)


def row_cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def probe(task: str, rows: int = 20, wrong: int = 6, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 1, 5, 5, generator=draw)
    is_corrupted = torch.arange(rows) < wrong
    if task == "regression":
        clean = torch.randn(rows, 3, generator=draw)
        return inputs, clean, torch.where(is_corrupted[:, None], 4 - 5 * clean, clean), is_corrupted, squared_error
    clean = torch.randint(3, (rows,), generator=draw)
    return inputs, clean, torch.where(is_corrupted, (clean + 1) % 3, clean), is_corrupted, row_cross_entropy


def naive(network, loss, inputs, clean, corrupted, kept):
    """The error and C, row by row and by singular values."""
    parameters = list(network.parameters())

    def gradient(targets, i):
        value = loss(network(inputs[i : i + 1]), targets[i : i + 1]).sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)])

    everything = torch.stack([gradient(clean, i) for i in range(len(inputs))]).mean(0)
    filtered = torch.stack([gradient(corrupted, i) for i in kept.tolist()]).mean(0)
    norms = []
    for row in inputs:
        outputs = network(row[None])[0]
        jacobian = torch.stack(
            [torch.cat([g.flatten() for g in torch.autograd.grad(o, parameters, retain_graph=True)]) for o in outputs]
        )
        norms.append(torch.linalg.matrix_norm(jacobian, 2))
    return float((everything - filtered).norm()), float(max(norms))


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("chunk", [1, 2**26])
def test_the_measured_error_equals_a_loop_and_stays_below_its_bounds(task, chunk, monkeypatch):
    monkeypatch.setattr(theory, "CHUNK_VALUES", chunk)
    torch.manual_seed(0)
    network = build("mlp", (1, 5, 5), 3, {"hidden": (16, 16), "norm": "group"})
    inputs, clean, corrupted, is_corrupted, loss = probe(task)
    scores = theory.loss_layer_gradients(loss, network(inputs), corrupted).norm(dim=1)
    kept = scores.argsort(stable=True)[:14]
    measured = gradient_error(network, loss, inputs, clean, corrupted, is_corrupted, kept)
    error, C = naive(network, loss, inputs, clean, corrupted, kept)
    assert measured.error == pytest.approx(error, rel=1e-4)
    assert pytest.approx(C, rel=1e-4) == measured.C
    assert measured.epsilon == 0.3
    assert 0 < measured.error <= min(measured.lemma1, measured.theorem2)
    assert measured.v <= measured.k
    mask = torch.zeros(20, dtype=torch.bool).index_fill(0, kept, True)
    again = gradient_error(network, loss, inputs, clean, corrupted, is_corrupted, mask)
    assert again.error == pytest.approx(measured.error, rel=1e-4)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, task=st.sampled_from(["classification", "regression"]))
def test_lemma_1_holds_in_a_network_for_any_kept_rows(seed, task):
    torch.manual_seed(seed % 1000)
    network = build("mlp", (1, 5, 5), 3, {"hidden": (8,)})
    inputs, clean, corrupted, is_corrupted, loss = probe(task, seed=seed)
    kept = torch.randperm(20)[:12]
    measured = gradient_error(network, loss, inputs, clean, corrupted, is_corrupted, kept)
    assert measured.error <= measured.lemma1 * (1 + 1e-5)


def test_the_measurement_leaves_the_network_as_it_was():
    torch.manual_seed(0)
    network = build("cnn9", (1, 28, 28), 3, {"width": 0.03, "always_dropout": True, "norm": "batch"})
    network.train()
    next(iter(network.children())).eval()  # a part that its owner froze
    first = next(iter(network.parameters()))
    first.grad = torch.ones_like(first)
    before, modes = copy.deepcopy(network.state_dict()), [module.training for module in network.modules()]
    draw = torch.Generator().manual_seed(0)
    inputs, clean = torch.rand(6, 1, 28, 28, generator=draw), torch.arange(6) % 3
    is_corrupted = torch.arange(6) < 2
    corrupted = torch.where(is_corrupted, (clean + 1) % 3, clean)
    arguments = (network, row_cross_entropy, inputs, clean, corrupted, is_corrupted, torch.arange(2, 6))
    with torch.no_grad():  # where metrics are usually taken
        measured = gradient_error(*arguments)
    assert measured == gradient_error(*arguments)  # always-on dropout, too, was off
    assert measured.error <= measured.lemma1
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    grads = [each.grad for each in network.parameters()]
    assert grads[0] is not None
    assert (grads[0] == 1).all()
    assert grads[1:] == [None] * (len(grads) - 1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["batch", "group"])
def test_every_network_can_be_measured(name, kind):
    torch.manual_seed(0)
    network = build(name, (1, 28, 28), 3, {"norm": kind, **({"width": 0.06} if name == "cnn9" else {})})
    inputs, clean, is_corrupted = torch.rand(3, 1, 28, 28), torch.arange(3), torch.arange(3) < 1
    corrupted = torch.where(is_corrupted, 2, clean)
    kept = torch.arange(2)  # the worst choice: the corrupted row stays
    measured = gradient_error(network, row_cross_entropy, inputs, clean, corrupted, is_corrupted, kept)
    assert 0 < measured.error <= measured.lemma1 < inf


def test_frozen_parameters_do_not_count():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(25, 4), nn.Tanh(), nn.Linear(4, 3))
    inputs, clean, corrupted, is_corrupted, loss = probe("regression")
    kept = torch.arange(6, 20)
    whole = gradient_error(network, loss, inputs, clean, corrupted, is_corrupted, kept)
    network[1].requires_grad_(False)
    head = gradient_error(network, loss, inputs, clean, corrupted, is_corrupted, kept)
    assert head.error < whole.error
    hidden = network[:3](inputs)  # the Jacobian of a linear layer has the norm of its input and the bias's 1
    expected = (hidden.square().sum(1) + 1).sqrt().max().item()
    assert pytest.approx(expected, rel=1e-5) == head.C
    assert head.v == 0


def test_no_bound_where_more_rows_are_corrupted_than_dropped_and_none_needed_where_nothing_happens():
    network = build("mlp", (1, 5, 5), 3, {"hidden": (8,)})
    inputs, clean, corrupted, is_corrupted, loss = probe("regression")
    short = gradient_error(network, loss, inputs, clean, corrupted, is_corrupted, torch.arange(18))
    assert short.lemma1 == short.theorem2 == inf
    assert 0 < short.error < inf
    nothing = torch.zeros_like(is_corrupted)
    calm = gradient_error(network, loss, inputs, clean, clean, nothing, torch.arange(20))
    assert calm.error == calm.lemma1 == calm.theorem2 == calm.epsilon == calm.v == 0


def test_a_loss_that_is_already_averaged_is_refused():
    network = build("mlp", (1, 5, 5), 3, {})
    inputs, clean, corrupted, is_corrupted, _ = probe("classification")
    with pytest.raises(InputError, match="reduction='none'"):
        gradient_error(network, F.cross_entropy, inputs, clean, corrupted, is_corrupted, torch.arange(14))


@many
@given(seed=seeds, rows=st.integers(2, 80), share=st.floats(0, 0.9), size=st.integers(1, 60), epsilon=st.floats(0, 0.8))
def test_a_probe_has_its_size_and_never_more_corrupted_rows_than_its_share(seed, rows, share, size, epsilon):
    is_corrupted = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < share
    assume(not is_corrupted.all())
    chosen = probe_rows(is_corrupted, size, epsilon, torch.Generator().manual_seed(seed))
    assert torch.equal(chosen, probe_rows(is_corrupted, size, epsilon, torch.Generator().manual_seed(seed)))
    assert torch.equal(chosen, chosen.unique())
    wrong = int(is_corrupted[chosen].sum())
    assert wrong == min(part(epsilon, len(chosen)), int(is_corrupted.sum()))
    if size <= int((~is_corrupted).sum()):
        assert len(chosen) == size


def test_a_probe_without_clean_rows_is_refused():
    with pytest.raises(InputError, match="0 of 5 are clean"):
        probe_rows(torch.ones(5, dtype=torch.bool), 3, 0.4, torch.Generator())
