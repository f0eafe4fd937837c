"""A scoring pass leaves the network as it was."""

import math
import warnings

import pytest
import torch
from torch import nn

from gradsieve.scores.form import scoring_form


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 4, 3),
        nn.BatchNorm1d(4),
        nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
        nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4, track_running_stats=False)),
        nn.InstanceNorm1d(4),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


def snapshot(network):
    tensors = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    tracking = [getattr(module, "track_running_stats", None) for module in network.modules()]
    return tensors, modes, tracking


def assert_unchanged(network, before):
    tensors, modes, tracking = snapshot(network)
    assert tensors.keys() == before[0].keys()
    assert all(torch.equal(tensor, before[0][name]) for name, tensor in tensors.items())
    assert (modes, tracking) == before[1:]


@pytest.mark.parametrize("form", ["eval", "train"])
@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_modes_and_statistics_are_as_before(form, mode):
    network = make_network().train(mode != "eval")
    if mode == "mixed":
        network[1].eval()  # a frozen BatchNorm
    before, statistics = snapshot(network), network[1].running_mean
    with scoring_form(network, form):
        assert all(module.training == (form == "train") for module in network.modules())
        network(torch.randn(6, 2, 5) + 3)
    assert_unchanged(network, before)
    assert network[1].running_mean is statistics  # the same tensor: an optimizer or a graph may hold it


@pytest.mark.parametrize("form", ["eval", "train"])
def test_an_exception_leaves_no_trace_either(form):
    network = make_network()
    network[3].eval()
    before = snapshot(network)
    with pytest.raises(RuntimeError, match="expected input"), scoring_form(network, form):
        network(torch.randn(6, 7, 5))
    assert_unchanged(network, before)


def test_a_row_of_nan_that_was_only_scored_does_not_reach_the_statistics():
    network = make_network()
    before = snapshot(network)
    with scoring_form(network, "train"):
        network(torch.full((6, 2, 5), math.nan))
    assert_unchanged(network, before)


def test_train_form_computes_what_training_computes_and_eval_form_what_testing_does():
    inputs = torch.randn(6, 2, 5) + 3
    network, twin = make_network(), make_network()
    with scoring_form(network, "train"):
        torch.manual_seed(1)
        scored = network(inputs)
    torch.manual_seed(1)
    assert torch.equal(scored, twin(inputs))
    with scoring_form(network, "eval"):
        scored = network(inputs)
    assert torch.equal(scored, make_network().eval()(inputs))


def test_eval_form_draws_no_random_numbers():
    network = make_network()
    before = torch.get_rng_state()
    with scoring_form(network, "eval"):
        network(torch.ones(6, 2, 5))
    assert torch.equal(torch.get_rng_state(), before)


class Stubborn(nn.Dropout):
    """Keeps its form when the network around it changes to train or eval."""

    def train(self, mode=True):
        return super().train(True)


def test_a_module_with_a_train_of_its_own_is_asked():
    network = nn.Sequential(nn.Linear(2, 2), Stubborn(), nn.Sequential(Stubborn(), nn.Dropout()))
    with scoring_form(network, "eval"):
        assert [module.training for module in network.modules()] == [False, False, True, False, True, False]
    assert all(module.training for module in network.modules())


def test_a_module_that_is_there_twice_or_left_open_does_no_harm():
    shared = nn.Dropout()
    network = nn.Sequential(shared, nn.Sequential(shared))
    network.register_module("later", None)
    with scoring_form(network, "eval"):
        assert not shared.training
    assert shared.training


def test_a_scripted_module_changes_form_where_it_keeps_it():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script is deprecated, but still in use
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.9)))
    network = nn.Sequential(scripted, nn.Dropout(0.9))
    with scoring_form(network, "eval"):
        assert torch.equal(network(torch.ones(8, 2)), network(torch.ones(8, 2)))
    assert (network(torch.ones(8, 2)) == 0).any()
    assert (scripted(torch.ones(8, 2)) == 0).any()
