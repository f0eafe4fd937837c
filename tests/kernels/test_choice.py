"""Which kernel a convolution gets: those measured for cnn9, and none if a kernel would be wrong."""

import subprocess
import sys

import pytest
import torch
from torch import nn

pytest.importorskip("triton.tools.tensor_descriptor")

from gradsieve.kernels import available, choice, ops
from gradsieve.kernels.choice import kernel_for
from gradsieve.models.cnn9 import cnn9

ON_GPU = torch.cuda.is_available()
DEVICE, KIND = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)


@pytest.fixture
def interpreted(monkeypatch):
    """Let kernels be chosen also if they are interpreted on the CPU."""
    if not ON_GPU:
        monkeypatch.setattr(choice, "can_run", lambda activations, gradient: True)


def maps_of(layer, rows, size, kind=KIND, device=DEVICE):
    """An input of the layer and a gradient at its output, channels last."""
    layer = layer.to(device, kind)
    activations = torch.randn(rows, layer.in_channels, *size, device=device, dtype=kind)
    gradient = torch.randn_like(layer(activations))
    return tuple(values.contiguous(memory_format=torch.channels_last) for values in (activations, gradient))


def form_of(layer, size, rows=1):
    return kernel_for(layer, *maps_of(layer, rows, size))


@pytest.mark.usefixtures("interpreted")
def test_cnn9_gets_the_forms_that_were_measured():
    network = cnn9((3, 32, 32), 10)
    sides = [32] * 3 + [16] * 3 + [8, 6, 4]
    convolutions = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    forms = [form_of(layer, (side, side)) for layer, side in zip(convolutions, sides, strict=True)]
    assert [form.name for form in forms] == ["first"] + ["direct"] * 2 + ["gram_shifted"] * 3 + ["gram_small"] * 3
    assert [form.stores for form in forms] == [True] * 3 + [False] * 6


CHOSEN = {  # layer, size of its input, form, whether it stores
    "first": (lambda: nn.Conv2d(3, 16, 3, padding=1), (9, 8), "first", True),
    "direct": (lambda: nn.Conv2d(16, 16, 3, padding="same"), (9, 12), "direct", True),
    "direct, too large to store": (lambda: nn.Conv2d(64, 64, 3), (10, 11), "direct", False),
    "gram_small": (lambda: nn.Conv2d(16, 32, 3, padding="valid"), (6, 5), "gram_small", False),
    "gram_shifted": (lambda: nn.Conv2d(64, 64, 3, padding=1), (16, 16), "gram_shifted", False),
    "few channels": (lambda: nn.Conv2d(16, 16, 3, padding=1), (16, 16), "direct", True),
}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("make", "size", "name", "stores"), CHOSEN.values(), ids=CHOSEN)
def test_the_chosen_form_gives_the_norms(make, size, name, stores):
    layer = make()
    activations, gradient = maps_of(layer, 1, size)
    form = kernel_for(layer, activations, gradient)
    assert (form.name, form.stores) == (name, stores)
    layer.zero_grad()
    layer(activations).backward(gradient)
    expected = layer.weight.grad.float()  # of the only row
    tolerance = {"rtol": 2e-2 if ON_GPU else 1e-4, "atol": 0}
    torch.testing.assert_close(form.squared_norm(activations, gradient), expected.square().sum()[None], **tolerance)
    if stores:
        got, products = form.squared_norm_and_products(activations, gradient)
        torch.testing.assert_close(got, expected.square().sum()[None], **tolerance)
        stored = products.view(layer.out_channels, 3, 3, layer.in_channels).permute(0, 3, 1, 2).float()
        assert (stored - expected).norm() < tolerance["rtol"] * expected.norm()
    parts = ops.row_norms(name, activations, gradient, form.padding)
    assert parts.shape == ops.PARTS[name](activations, gradient).shape  # the shape that a compiler assumes


class OtherConvolution(nn.Conv2d):
    pass


UNSUPPORTED = {
    "5x5": lambda: nn.Conv2d(16, 16, 5, padding=2),
    "3x1": lambda: nn.Conv2d(16, 16, (3, 1)),
    "stride": lambda: nn.Conv2d(16, 16, 3, padding=1, stride=2),
    "dilation": lambda: nn.Conv2d(16, 16, 3, padding=1, dilation=2),
    "groups": lambda: nn.Conv2d(32, 32, 3, padding=1, groups=2),
    "reflect": lambda: nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
    "padding of 2": lambda: nn.Conv2d(16, 16, 3, padding=2),
    "padding on one side": lambda: nn.Conv2d(16, 16, 3, padding=(1, 0)),
    "inputs between": lambda: nn.Conv2d(12, 16, 3, padding=1),
    "outputs": lambda: nn.Conv2d(16, 10, 3, padding=1),
    "outputs of the first": lambda: nn.Conv2d(3, 10, 3, padding=1),
    "no useful tile": lambda: nn.Conv2d(48, 64, 3, padding=1),
    "subclass": lambda: OtherConvolution(16, 16, 3, padding=1),
}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("make", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_other_layers_are_left_to_pytorch(make):
    assert form_of(make(), (9, 9)) is None


@pytest.mark.usefixtures("interpreted")
def test_other_maps_are_left_to_pytorch():
    layer = nn.Conv2d(16, 32, 3, padding=1)
    activations, gradient = maps_of(layer, 2, (6, 6))
    assert kernel_for(layer, activations, gradient) is not None
    assert kernel_for(layer, activations.contiguous(), gradient) is None
    assert kernel_for(layer, activations, gradient.contiguous()) is None
    assert kernel_for(layer, activations[:1], gradient) is None
    assert kernel_for(layer, activations[:0], gradient[:0]) is None
    assert kernel_for(layer, activations[0], gradient[0]) is None


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not ON_GPU, reason="no GPU"))])
def test_full_precision_is_left_to_pytorch(kind, device):
    layer = nn.Conv2d(16, 16, 3, padding=1)
    assert kernel_for(layer, *maps_of(layer, 1, (6, 6), kind, device)) is None


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_the_cpu_is_left_to_pytorch(kind):
    layer = nn.Conv2d(16, 16, 3, padding=1)
    assert kernel_for(layer, *maps_of(layer, 1, (6, 6), kind, "cpu")) is None


def test_triton_is_not_imported_before_it_is_asked_for():
    code = "import sys, gradsieve.kernels.choice; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert available()
