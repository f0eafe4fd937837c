"""The loop of the released code, against its parts written out for one batch."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradsieve import METHODS, make_run
from gradsieve.training.setting import prepare

FILE = Path(__file__).parents[2] / "benchmarks" / "authors_loop.py"
SPEC = importlib.util.spec_from_file_location("authors_loop", FILE)
loop = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(loop)

KEEP = 5


def small_networks():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 4)) for _ in range(2)]


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(9, 3, 2, 2, generator=generator), torch.randint(4, (9,), generator=generator)


@pytest.mark.parametrize("method", ["spl", "co-teaching", "prl-l", "co-prl-l"])
def test_each_network_learns_from_the_rows_of_smallest_score_of_its_own_or_of_the_other(method):
    images, labels = batch()
    networks, expected = small_networks(), small_networks()
    loop.step(networks, images, labels, method, KEEP)

    kept = []
    for network in expected:
        outputs = network(images).detach()
        of_loss = F.cross_entropy(outputs, labels, reduction="none")
        of_gradient = (outputs.softmax(1) - F.one_hot(labels, 4)).norm(dim=1)
        kept.append((of_gradient if method.endswith("prl-l") else of_loss).argsort()[:KEEP])
    for own, network in enumerate(expected):
        rows = kept[1 - own] if method.startswith("co-") else kept[own]
        outputs = network(images[rows]) if method.endswith("prl-l") else network(images)[rows]
        (F.cross_entropy(outputs, labels[rows]) / KEEP).backward()
        found = [parameter.grad for parameter in networks[own].parameters()]
        torch.testing.assert_close(found, [parameter.grad for parameter in network.parameters()])


def test_standard_learns_from_all_rows_and_divides_once():
    images, labels = batch()
    (network, _), (expected, _) = small_networks(), small_networks()
    loop.step([network], images, labels, "standard", KEEP)
    F.cross_entropy(expected(images), labels).backward()
    assert torch.equal(network[2].weight.grad, expected[2].weight.grad)


def test_labels_are_drawn_by_themselves():
    labels = np.arange(20_000) % 10
    wrong = loop.corrupted(labels, "symmetric", 0.3, 10)
    assert abs((wrong != labels).mean() - 0.3) < 0.01
    assert set((wrong - labels)[wrong != labels] % 10) == set(range(1, 10))
    flipped = loop.corrupted(labels, "pairflip", 0.45, 10)
    assert set((flipped - labels) % 10) == {0, 1}


def test_a_run_of_ours_takes_the_labels_of_the_released_code(monkeypatch):
    monkeypatch.setitem(sys.modules, "authors_loop", loop)
    run = make_run("digits", "spl", corruption="authors_loop:drawn_symmetric", rate=0.3, preset="authors", seed=5)
    setting = prepare(run)
    drawn = loop.corrupted(setting.clean_targets.numpy(), "symmetric", 0.3, 10)
    assert torch.equal(setting.data.train.targets, torch.from_numpy(drawn))
    assert torch.equal(setting.is_corrupted, setting.data.train.targets != setting.clean_targets)


def test_labels_of_ours_are_wrong_in_exactly_that_share_and_those_of_a_run():
    images, labels = torch.zeros(200, 3, 2, 2), torch.arange(200) % 10
    wrong = loop.exactly_corrupted(images, labels, "symmetric", 0.3, 10)
    assert int((wrong != labels).sum()) == 60
    run = make_run("digits", "spl", corruption="symmetric", rate=0.3, preset="authors", seed=5)
    setting = prepare(run)
    rows = setting.data.train
    ours = loop.exactly_corrupted(rows.inputs, setting.clean_targets, "symmetric", 0.3, 10)
    assert torch.equal(ours, rows.targets)


@pytest.mark.parametrize("method", ["spl", "co-teaching", "prl-l", "co-prl-l"])
def test_divided_once_and_looked_at_aside_a_step_is_that_of_our_method(method):
    """What is left between the two loops is labels, the rise of the rate, biases and precision."""
    images, labels = batch()
    networks, ours = small_networks(), small_networks()[: METHODS[method].networks]
    loop.step(networks[: len(ours)], images, labels, method, KEEP, divide=False, looks=False)
    passes = METHODS[method].paper_passes
    METHODS[method](F.cross_entropy, passes=passes, scoring="train").step(ours, images, labels, 1 - KEEP / 9)
    for network, own in zip(networks, ours, strict=False):
        expected = [parameter.grad for parameter in own.parameters()]
        torch.testing.assert_close([parameter.grad for parameter in network.parameters()], expected)
        torch.testing.assert_close(network[1].running_var, own[1].running_var)


def test_the_rate_is_there_an_epoch_before_it_is_with_us():
    assert loop.rates(0.45, 10, 12) == pytest.approx([0.05 * epoch for epoch in range(1, 10)] + [0.45] * 3)
