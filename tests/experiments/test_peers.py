"""The peers make the same step as the method that they are timed beside."""

import pytest
import torch

from gradsieve.experiments import peers
from gradsieve.experiments.peers import PEERS
from gradsieve.experiments.workloads import Workload, set_up
from gradsieve.method import make_method
from gradsieve.methods import METHODS

CPU = torch.device("cpu")
WORKLOADS = {
    "classes": Workload("mlp", (6,), 4, 20, model_options=(("hidden", [8]), ("norm", "group"))),
    "numbers": Workload("mlp", (6,), 4, 20, "regression", (("hidden", [8]),)),
    "images": Workload("cnn9", (3, 32, 32), 4, 4, model_options=(("norm", "group"), ("width", 0.05), ("dropout", 0.0))),
}


def weights_after(step, setup):
    step()
    step()
    return torch.cat([parameter.detach().flatten() for parameter in setup.networks[0].parameters()])


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", PEERS)
def test_two_steps_of_a_peer_are_two_steps_of_the_method(name, workload):
    workload = WORKLOADS[workload]
    setup, own = set_up(workload, CPU), set_up(workload, CPU)
    if reason := PEERS[name].obstacle(setup.networks[0]):
        pytest.skip(reason)
    rule = make_method(name.split(": ")[1], METHODS, workload.criterion, workload.task, {})
    start = torch.cat([parameter.detach().flatten() for parameter in own.networks[0].parameters()])

    def step():
        own.optimizers[0].zero_grad()
        rule.step(own.networks, own.inputs, own.targets, 0.45)
        own.optimizers[0].step()

    found = weights_after(PEERS[name].make(workload, setup, 0.45), setup)
    expected = weights_after(step, own)
    assert not torch.allclose(start, expected, atol=1e-4)
    # Adam's first steps go by the sign of a gradient: where that is rounding, so is the step.
    assert (found - expected).abs().gt(1e-5).float().mean() < 0.02


def test_a_library_that_is_not_there_and_batch_norm_are_obstacles(monkeypatch):
    mixing = set_up(Workload("mlp", (6,), 4, 20, model_options=(("norm", "batch"),)), CPU).networks[0]
    assert PEERS["authors: prl-l"].obstacle(mixing) is None
    assert "mixes rows" in PEERS["torch.func: prl-g"].obstacle(mixing)
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert PEERS["opacus: prl-g"].obstacle(mixing) == "opacus is not installed"
