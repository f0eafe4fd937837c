"""The loop of the released code, against its parts written out for one batch."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

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


def test_the_rate_is_there_an_epoch_before_it_is_with_us():
    assert loop.rates(0.45, 10, 12) == pytest.approx([0.05 * epoch for epoch in range(1, 10)] + [0.45] * 3)
