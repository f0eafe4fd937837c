"""SEVER's scores against a dense singular value decomposition."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradsieve.methods import METHODS
from gradsieve.scores.row_gradients import row_gradients, row_pass
from gradsieve.scores.spectral import gradient_gram, spectral_scores

many = settings(max_examples=50, deadline=None)


def by_svd(gradients):
    """The definition: squared projections of the centred rows on the top right singular vector."""
    centred = gradients - gradients.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    return (centred @ directions[0]).square()


def squared_error(outputs, targets):
    return F.mse_loss(outputs, targets, reduction="none").mean(1)


@many
@given(seed=st.integers(0, 2**31), rows=st.integers(3, 40), size=st.integers(2, 60), strength=st.floats(2.0, 50.0))
def test_scores_are_those_of_the_singular_value_decomposition(seed, rows, size, strength):
    draw = torch.Generator().manual_seed(seed)
    gradients = torch.randn(rows, size, generator=draw, dtype=torch.float64)
    along, loads = torch.randn(size, generator=draw), torch.randn(rows, generator=draw)
    gradients = gradients + strength * loads.outer(along).double()  # some direction stands out, more or less
    expected = by_svd(gradients)
    scores = spectral_scores(gradients @ gradients.T, iterations=2000)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))


def make_regression(outliers):
    torch.manual_seed(0)
    inputs = torch.randn(40, 6)
    targets = inputs @ torch.randn(6, 2) + 0.1 * torch.randn(40, 2)
    inputs[outliers] += 2.0  # an attack that pulls in one direction
    targets[outliers] += 20.0
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), inputs, targets


def test_scores_of_a_network_are_those_of_its_gradient_matrix():
    network, inputs, targets = make_regression(outliers=[3, 8, 20])
    gradients = row_gradients(network, squared_error, inputs, targets)
    matrix = torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1).double()
    gram = gradient_gram(row_pass(network, squared_error, inputs, targets))
    torch.testing.assert_close(gram, matrix @ matrix.T, rtol=1e-4, atol=1e-4)
    expected = by_svd(matrix)
    scores = spectral_scores(gram, METHODS["sever"](F.mse_loss).iterations)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))


@pytest.mark.parametrize("outliers", [[0, 1, 2, 3, 4, 5, 6, 7], [1, 5, 9, 13, 22, 30, 31, 39]])
def test_sever_drops_planted_outliers(outliers):
    network, inputs, targets = make_regression(outliers)
    (selection,) = METHODS["sever"](F.mse_loss).step([network], inputs, targets, 0.2)
    assert len(selection.kept) == 32
    assert not set(selection.kept.tolist()) & set(outliers)


@pytest.mark.parametrize("broken", [[0], [5, 11], []])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_row_has_no_score_and_does_not_reach_the_others(broken, value):
    network, inputs, targets = make_regression(outliers=[3, 8, 20])
    targets[broken] = value
    sound = [row for row in range(40) if row not in broken]
    scores = spectral_scores(gradient_gram(row_pass(network, squared_error, inputs, targets)), 200)
    alone = spectral_scores(gradient_gram(row_pass(network, squared_error, inputs[sound], targets[sound])), 200)
    torch.testing.assert_close(scores[sound], alone)
    assert scores[broken].isnan().all()


def test_rows_that_all_agree_score_0_and_go_by_index():
    network, inputs, targets = make_regression(outliers=[])
    inputs, targets = inputs[:1].expand(10, -1), targets[:1].expand(10, -1)
    gram = gradient_gram(row_pass(network, squared_error, inputs, targets))
    assert spectral_scores(gram, 20).abs().max() < 1e-6 * gram.abs().max()
    assert torch.equal(spectral_scores(torch.zeros(4, 4), 20), torch.zeros(4))
