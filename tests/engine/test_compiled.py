"""A compiled step (traced, lowered, run by a program) equals the plain step."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradsieve.engine.compiled import Programs, compiled_step
from gradsieve.methods import METHODS
from gradsieve.models.build import build

CAN_BE_TRACED = [name for name in METHODS if not METHODS[name].decides_on_host]
ROWS, CLASSES = 12, 4
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def cnn9(norm):
    return build("cnn9", (3, 28, 28), CLASSES, {"norm": norm, "width": 0.04, "dropout": 0.0})


def convolutions(norm):
    """All kinds of layers in cnn9, with every pair of neighbours, but fewer of them: cnn9 itself takes long."""
    make = {"batch": nn.BatchNorm2d, "group": lambda channels: nn.GroupNorm(1, channels)}[norm]
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1, bias=False), make(4), nn.LeakyReLU(0.01), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 5, 3, bias=False), make(5), nn.LeakyReLU(0.01), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(5, CLASSES)),
    )


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def as_traced(graph):
    """Runs the trace as it is, without torch's compiler, which is slow."""
    return graph


NETWORKS = {"batch": lambda: convolutions("batch"), "group": lambda: convolutions("group"), "mlp": mlp}


def batch(task="classification", dtype=torch.float32):
    inputs = torch.rand(ROWS, 3, 28, 28, dtype=dtype)
    return inputs, torch.randint(CLASSES, (ROWS,)) if task == "classification" else torch.randn(
        ROWS, CLASSES, dtype=dtype
    )


def assert_same_step(method, networks, programs, rate, steps=2):
    """Compare steps by a program and by Python from the same weights: same rows, same gradients, same statistics."""
    twins = copy.deepcopy(networks)
    for _ in range(steps):
        inputs, targets = batch(method.tasks[0], next(networks[0].parameters()).dtype)
        for twin in twins:
            twin.zero_grad()
        found = compiled_step(programs, method, networks, inputs, targets, rate)
        expected = method.step(twins, inputs, targets, rate)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one.kept, other.kept)
            torch.testing.assert_close(one.loss, other.loss, rtol=1e-4, atol=1e-5)
            if other.scores is not None:
                torch.testing.assert_close(one.scores, other.scores, rtol=1e-3, atol=1e-4)
        for network, twin in zip(networks, twins, strict=True):
            for mine, theirs in zip(network.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-2, atol=1e-4)
            for mine, theirs in zip(network.buffers(), twin.buffers(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", CAN_BE_TRACED)
def test_a_traced_step_is_the_step(name, network, rate):
    if name in ("coordinate-median", "sever") and network != "mlp":
        pytest.skip("every row's whole gradient, over many parameters")
    criterion = F.cross_entropy if METHODS[name].tasks[0] == "classification" else F.mse_loss
    networks = [NETWORKS[network]().double() for _ in range(METHODS[name].networks)]
    assert_same_step(METHODS[name](criterion), networks, Programs(as_traced), rate)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["co-prl-l", "prl-g"])
def test_a_traced_step_of_the_papers_network(name, norm):
    networks = [cnn9(norm).double() for _ in range(METHODS[name].networks)]
    assert_same_step(METHODS[name](F.cross_entropy), networks, Programs(as_traced), 0.4)


def test_the_form_of_a_network_is_part_of_a_program():
    network, programs = convolutions("batch").double(), Programs(as_traced)
    method = METHODS["standard"](F.cross_entropy)
    for form in (True, False, True):
        assert_same_step(method, [network.train(form)], programs, 0.0, steps=1)
    assert len(programs.made) == 2


CHANGES = {
    "itself": lambda weight: weight.add_(1),
    "a row": lambda weight: [row.add_(1) for row in weight],
    "a part": lambda weight: [part.add_(1) for part in weight.split(1)],
    "a view": lambda weight: weight.detach().view(-1).add_(1),
    "in a list": lambda weight: torch._foreach_add_([weight], 1.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_weight_that_is_changed_between_two_casts_is_cast_twice(change):
    def function(changed, same):
        sums = [changed.double().sum(), same.double().sum()]
        CHANGES[change](changed)
        return [*sums, changed.double().sum(), same.double().sum()]

    traced = []
    programs = Programs(lambda graph: traced.append(graph) or graph)
    found = programs.run("casts", function, torch.zeros(3), torch.ones(3))
    assert [float(each) for each in found] == [0, 3, 3, 3]
    casts = [node for node in traced[0].graph.nodes if node.target is torch.ops.aten._to_copy.default]
    assert len(casts) == 3  # a tensor that no operation changes is cast only once


def test_a_program_is_made_once_for_its_shapes():
    networks, programs, method = [mlp()], Programs(as_traced), METHODS["prl-l"](F.cross_entropy)
    for _ in range(3):
        compiled_step(programs, method, networks, *batch(), 0.25)
    assert len(programs.made) == 1
    compiled_step(programs, method, networks, *batch(), 0.251)  # keeps one row less
    assert len(programs.made) == 2
    compiled_step(programs, method, networks, *batch(), 0.26)  # keeps as many
    assert len(programs.made) == 2
    assert programs.seconds > 0


def test_the_network_keeps_its_own_tensors():
    network = convolutions("batch")
    before = [*network.parameters(), *network.buffers()]
    compiled_step(Programs(as_traced), METHODS["prl-l"](F.cross_entropy), [network], *batch(), 0.25)
    assert all(one is other for one, other in zip(before, [*network.parameters(), *network.buffers()], strict=True))


def test_tied_weights_stay_tied():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    network[3].weight = network[2].weight
    assert_same_step(METHODS["prl-l"](F.cross_entropy), [network], Programs(as_traced), 0.25)


def test_by_the_real_compiler():
    assert_same_step(METHODS["prl-l"](F.cross_entropy), [mlp()], Programs(), 0.25, steps=1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_two_networks_in_one_program_do_not_share_their_dropout(device):
    """With the same dropout masks, both networks make the same mistakes, and an exchange of rows cannot find them."""
    one = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(8 * 26 * 26, CLASSES)).to(device)
    inputs, targets = (tensor.to(device) for tensor in batch())
    method, programs = METHODS["co-teaching"](F.cross_entropy, passes="index"), Programs()
    networks = [one, copy.deepcopy(one)]
    looks = [compiled_step(programs, method, networks, inputs, targets, 0.5) for _ in range(2)]
    scores = [selection.scores for look in looks for selection in look]  # of equal networks, twice each
    assert not any(torch.equal(a, b) for number, a in enumerate(scores) for b in scores[:number])


@pytest.mark.parametrize("name", ["spl", "prl-l", "co-prl-l"])
def test_one_pass_of_all_rows_of_which_some_count(name):
    networks = [convolutions("batch").double() for _ in range(METHODS[name].networks)]
    assert_same_step(METHODS[name](F.cross_entropy, passes="index"), networks, Programs(as_traced), 0.4)


def test_a_broken_row_that_is_dropped_leaves_no_trace_in_a_traced_step():
    class Breaks(nn.Module):
        def forward(self, outputs):
            return torch.where(torch.arange(ROWS)[:, None] == 3, torch.nan, outputs)

    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, CLASSES), Breaks())
    method = METHODS["prl-l"](F.cross_entropy, passes="index")
    (found,) = compiled_step(Programs(as_traced), method, [network], *batch(), 0.25)
    assert 3 not in found.kept
    assert network[1].weight.grad.isfinite().all()
