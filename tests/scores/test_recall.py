"""A second pass that reuses the products of the first gives what an ordinary second pass gives."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from gradsieve.models.build import build
from gradsieve.scores.recall import first_pass, take


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Writes(nn.Module):
    def forward(self, inputs):
        return F.leaky_relu_(inputs, 0.3)


class Own(nn.Module):
    """A custom layer that mixes rows, which cannot be detected."""

    def forward(self, values):
        return values - values.mean(0)


def frozen(layer):
    return layer.requires_grad_(False)


NETWORKS = {  # by name: the network, the shape of its rows, and how many of its products are reused
    "mlp": (lambda: build("mlp", (6,), 3, {"hidden": [8, 8]}), (6,), 3),
    "norms": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)), (6,), 2),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3)), (6,), 2),
    "tokens": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3)), (5, 6), 2),
    "convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), nn.GroupNorm(2, 8), nn.LeakyReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 4, 2, dilation=1, bias=False), nn.Flatten(), nn.Linear(4, 3)),
        ),
        (4, 8, 8),
        3,
    ),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(12, 3)), (2, 5), 2),
    "frozen": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), frozen(nn.Linear(8, 8)), nn.Linear(8, 3)), (6,), 3),
    "until dropout": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 3)),
        (6,),
        2,
    ),
    "until batch norm": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
        (6,),
        2,
    ),
    "until a module of one's own": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), Own(), nn.Linear(8, 3)),
        (6,),
        2,
    ),
    "until something in place": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 3)),
        (6,),
        2,
    ),
    "until a view is written to": (
        lambda: nn.Sequential(
            *(nn.Conv1d(2, 4, 3), nn.Conv1d(4, 4, 1), nn.Flatten(), nn.LeakyReLU(0.5, inplace=True)), nn.Linear(12, 3)
        ),
        (2, 5),
        2,
    ),
    "until a module of one's own that writes": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), Writes(), nn.Linear(8, 3)),
        (6,),
        2,
    ),
    "one product and the rest": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), (6,), 0),
    "one product": (lambda: nn.Sequential(nn.Linear(6, 3)), (6,), 1),
    "cnn9 with GroupNorm": (lambda: build("cnn9", (3, 32, 32), 3, {"norm": "group", "width": 0.05}), (3, 32, 32), 3),
    "resnet32": (lambda: build("resnet32", (3, 32, 32), 3, {"norm": "group"}), (3, 32, 32), None),
}


def gradients_of(network, outputs, targets):
    network.zero_grad()
    F.cross_entropy(outputs, targets).backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("form", ["eval", "train"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_second_pass_is_an_ordinary_one(name, form):
    make, shape, recalled = NETWORKS[name]
    network = make().train()
    twin = copy.deepcopy(network)
    inputs, targets, rows = torch.randn(12, *shape), torch.randint(3, (12,)), torch.tensor([0, 3, 4, 8, 9])
    first = first_pass(network, inputs, form)
    if recalled is not None:
        assert len(first.products) == recalled
    if form == "eval":
        with torch.no_grad():
            torch.testing.assert_close(first.outputs, copy.deepcopy(network).eval()(inputs))
    assert all(map(torch.equal, network.buffers(), twin.buffers()))
    assert all(module.training for module in network.modules())
    torch.manual_seed(1)
    again = first.again(rows)
    found = gradients_of(network, again, targets[rows])
    torch.manual_seed(1)
    ordinary = twin(inputs[rows])
    expected = gradients_of(twin, ordinary, targets[rows])
    torch.testing.assert_close(again, ordinary)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(dict(network.named_buffers()), dict(twin.named_buffers()))


def test_the_second_pass_multiplies_nothing_on_its_way_forward():
    network = build("mlp", (6,), 3, {"hidden": [8, 8]})
    first = first_pass(network, torch.randn(12, 6), "eval")
    with FlopCounterMode(display=False) as counter:
        outputs = first.again(torch.arange(6))
    assert counter.get_total_flops() == 0
    with FlopCounterMode(display=False) as counter:
        outputs.sum().backward()
    assert counter.get_total_flops() == 2 * 6 * (2 * 8 * 3 + 2 * 8 * 8 + 6 * 8)


def test_all_rows_and_inputs_that_want_a_gradient():
    network = build("mlp", (6,), 3, {"hidden": [8]})
    inputs = torch.randn(5, 6, requires_grad=True)
    first_pass(network, inputs, "eval").again(torch.arange(5)).sum().backward()
    found, inputs.grad = inputs.grad, None
    network(inputs).sum().backward()
    torch.testing.assert_close(found, inputs.grad)


def test_a_network_with_hooks_or_another_forward_is_asked_in_the_ordinary_way():
    rows = torch.tensor([1, 2])
    for alter in (
        lambda network: network.register_forward_hook(lambda *_: None),
        lambda network: network[1].register_forward_pre_hook(lambda *_: None),
        lambda network: setattr(network, "forward", network.forward),
        lambda network: setattr(
            network[1], "forward", lambda values: F.linear(values - values.mean(0), torch.eye(8, 6))
        ),
    ):
        network = build("mlp", (6,), 3, {"hidden": [8]})
        alter(network)
        first = first_pass(network, torch.randn(5, 6), "eval")
        assert not first.products
        assert torch.equal(first.again(rows), network(first.inputs[rows]))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm((5, 6)), (5, 6)),  # normalises over the rows
        (nn.Flatten(0), (5, 6)),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), (5, 1, 6, 6)),
        (nn.Conv2d(1, 1, 3, padding="same"), (5, 1, 6, 6)),
        (nn.Conv2d(5, 5, 3), (5, 6, 6)),  # one image, no batch
        (nn.Linear(5, 5), (5,)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), (5, 6)),
    ],
    ids=lambda value: str(value).split("(")[0],
)
def test_what_is_out_of_the_ordinary_is_not_recalled(layer, shape):
    assert not first_pass(nn.Sequential(layer), torch.randn(shape), "eval").products


def test_rows_are_picked_in_the_layout_they_have():
    images, rows = torch.randn(5, 3, 4, 4), torch.tensor([1, 4])
    last = images.contiguous(memory_format=torch.channels_last)
    for values in (images, last, images[:, 0], images[0, 0, 0]):
        assert torch.equal(take(values, rows[:1]), values[rows[:1]])
    assert take(last, rows).is_contiguous(memory_format=torch.channels_last)
    assert take(images, torch.arange(5)) is images


def test_convolutions_in_the_layout_channels_last():
    network = NETWORKS["convolutions"][0]().to(memory_format=torch.channels_last)
    inputs, rows = torch.randn(12, 4, 8, 8).contiguous(memory_format=torch.channels_last), torch.tensor([0, 3, 8])
    found = gradients_of(network, first_pass(network, inputs, "eval").again(rows), torch.tensor([0, 1, 2]))
    expected = gradients_of(network, network(inputs[rows]), torch.tensor([0, 1, 2]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(7, 3), (7,), (7, 2, 3)])
@pytest.mark.parametrize("rows", [[0], [6], [1, 2, 5], [0, 3, 4, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_the_traced_gradient_of_picked_rows_is_the_usual_one(shape, rows):
    def gradient(values, rows, weights):
        values = values.detach().requires_grad_()
        (found,) = torch.autograd.grad((take(values, rows) * weights).sum(), values)
        return found

    values, rows = torch.randn(shape), torch.tensor(rows)
    weights = torch.randn(len(rows), *shape[1:])
    traced = make_fx(gradient, tracing_mode="fake")(values, rows, weights)
    assert traced(values, rows, weights).equal(gradient(values, rows, weights))
