"""Every network of the table: shapes, gradients, independence of rows, and errors that help."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from gradsieve.errors import InputError
from gradsieve.models import MODELS
from gradsieve.models.blocks import GROUP_VALUES, AlwaysDropout2d, norm
from gradsieve.models.build import build, options_of

SMALL = {"cnn9": {"width": 0.0625}, "landmark-cnn": {"width": 0.25}, "mlp": {"hidden": (24, 16)}, "resnet32": {}}
INPUTS = {
    "mlp": [(7,), (1, 8, 8)],
    "cnn9": [(3, 32, 32), (1, 28, 28), (2, 29, 34)],
    "landmark-cnn": [(1, 32, 32), (3, 64, 64), (3, 5, 9)],
    "resnet32": [(3, 32, 32), (1, 8, 8), (1, 3, 2)],
}
CASES = [
    (name, shape, kind)
    for name in MODELS
    for shape in INPUTS[name]
    for kind in ("batch", "group", "none")
    if (name, kind) != ("resnet32", "none")
]


def make(name: str, shape: tuple[int, ...], **options) -> nn.Module:
    torch.manual_seed(0)
    return build(name, shape, 4, {**SMALL[name], **options})


def parameters(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters())


@pytest.mark.parametrize(("name", "shape", "kind"), CASES)
def test_outputs_have_their_shape_and_gradients_reach_every_parameter(name, shape, kind):
    network = make(name, shape, norm=kind)
    outputs = network(torch.rand(6, *shape))
    outputs.square().sum().backward()
    assert outputs.shape == (6, 4)
    # A bias before BatchNorm has a gradient of 0 up to rounding, so only its presence is asked for.
    assert all(each.grad is not None and each.grad.isfinite().all() for each in network.parameters())
    assert all(each.grad.any() for each in network.parameters() if each.dim() > 1)


@pytest.mark.parametrize(("name", "shape", "kind"), CASES)
def test_eval_form_is_deterministic_tells_inputs_apart_and_does_not_mix_rows(name, shape, kind):
    network = make(name, shape, norm=kind).eval()
    inputs = torch.rand(4, *shape)
    with torch.no_grad():
        outputs = network(inputs)
        assert torch.equal(outputs, network(inputs))
        assert torch.allclose(network(inputs[:1]), outputs[:1], atol=1e-5)
    assert (outputs.std(0) > 1e-6).all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["batch", "group"])
def test_only_batchnorm_mixes_rows_while_training(name, kind):
    options = {"dropout": 0.0} if name == "cnn9" else {}
    network = make(name, INPUTS[name][0], norm=kind, **options)
    inputs = torch.rand(6, *INPUTS[name][0])
    others = torch.cat([inputs[:1], 3 * inputs[1:]])
    with torch.no_grad():
        same = torch.allclose(network(inputs)[0], network(others)[0], atol=1e-5)
    assert same == (kind == "group")


@pytest.mark.parametrize("name", ["cnn9", "landmark-cnn", "resnet32"])
def test_channels_last_gives_the_same(name):
    network = make(name, (3, 32, 32)).eval()
    inputs = torch.rand(2, 3, 32, 32)
    expected = network(inputs)
    network.to(memory_format=torch.channels_last)
    assert torch.allclose(network(inputs.to(memory_format=torch.channels_last)), expected, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_hooks_see_outputs_that_nothing_overwrites(name):
    network = make(name, INPUTS[name][0])
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for module in network.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, __, output: seen.append((output, output.detach().clone())))
    network(torch.rand(3, *INPUTS[name][0])).sum().backward()
    assert seen
    assert all(torch.equal(output, copy) for output, copy in seen)


def test_cnn9_has_the_layers_of_the_paper():
    network = build("cnn9", (3, 32, 32), 10)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    channels = [3, 128, 128, 128, 256, 256, 256, 512, 256, 128]
    assert [layer.in_channels for layer in convolutions] == channels[:-1]
    assert [layer.out_channels for layer in convolutions] == channels[1:]
    assert [layer.padding[0] for layer in convolutions] == [1] * 6 + [0] * 3
    pairs = pairwise(channels)
    # Weights of a convolution, weight and bias of its BatchNorm; then the linear layer.
    assert parameters(network) == sum(9 * a * b + 2 * b for a, b in pairs) + 128 * 10 + 10 == 4_432_522


def test_a_bias_before_batch_norm_would_change_nothing():
    """The authors' convolutions have one; ours don't, unless there is no norm to take it off again."""
    network = build("cnn9", (3, 28, 28), 4, {"width": 0.05, "dropout": 0.0}).double()
    images = torch.rand(6, 3, 28, 28, dtype=torch.float64)
    outputs = network(images)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.bias = nn.Parameter(torch.randn(layer.out_channels, dtype=torch.float64))
    torch.testing.assert_close(network(images), outputs)
    assert all(
        layer.bias is not None
        for layer in build("cnn9", (3, 28, 28), 4, {"norm": "none", "width": 0.05}).modules()
        if isinstance(layer, nn.Conv2d)
    )


def test_resnet32_and_landmark_cnn_have_their_size():
    assert parameters(build("resnet32", (3, 32, 32), 10)) == 464_154  # 0.46 million, He et al. 2016, Table 6
    network = build("landmark-cnn", (3, 64, 64), 10)
    images = torch.rand(2, 3, 64, 64)
    assert network.features(images).shape == (2, 512)
    assert torch.equal(network.head(network.features(images)), network(images))


def test_dropout_is_off_in_eval_unless_it_is_always_on():
    inputs = torch.rand(2, 3, 32, 32)
    proper, always = (make("cnn9", (3, 32, 32), always_dropout=value).eval() for value in (False, True))
    assert torch.equal(proper(inputs), proper(inputs))
    assert not torch.equal(always(inputs), always(inputs))
    assert sum(isinstance(layer, AlwaysDropout2d) for layer in always.modules()) == 2
    assert not any(layer.training for layer in always.modules() if isinstance(layer, nn.BatchNorm2d))


@pytest.mark.parametrize("channels", [1, 3, 16, 40, 48, 128, 512])
@pytest.mark.parametrize("positions", [1, 2, 1024])
def test_groups_divide_the_channels_and_are_large_enough(channels, positions):
    layer = norm("group", channels, positions=positions)
    assert isinstance(layer, nn.GroupNorm)
    size = channels // layer.num_groups * positions
    assert size >= GROUP_VALUES or layer.num_groups == 1
    if positions == 1024 and channels in (1, 3, 16, 128, 512):
        assert layer.num_groups == min(32, channels)


def test_every_option_has_a_default_and_every_builder_a_summary():
    assert list(options_of("cnn9")) == ["norm", "width", "dropout", "always_dropout"]
    for name in MODELS:
        assert MODELS.summary(name).endswith(".")
        assert "norm" in options_of(name)


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "options", "message"),
    [
        ("cnn9", (3, 32, 32), 10, {"droput": 0.1}, "no cnn9 option 'droput'. Did you mean 'dropout'.*always_dropout"),
        ("mlp", (3,), 10, {"width": 2}, "There are: hidden, norm"),
        ("cnn8", (3, 32, 32), 10, {}, "no model 'cnn8'. Did you mean 'cnn9'"),
        ("cnn9", (3, 27, 32), 10, {}, "28x28 or more, but these are 27x32"),
        ("cnn9", (784,), 10, {}, r"images \(channels, height, width\).*\(784,\)"),
        ("cnn9", (3, 32, 32), 10, {"norm": "layer"}, "norm is 'layer', but it must be one of: batch, group, none"),
        ("cnn9", (3, 32, 32), 10, {"dropout": 1.0}, "dropout is 1.0"),
        ("landmark-cnn", (1, 32, 32), 10, {"width": 0}, "width is 0"),
        ("resnet32", (3, 32, 32), 10, {"norm": "none"}, "must be one of: batch, group"),
        ("mlp", (3,), 0, {}, "0 outputs"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_way_out(name, shape, outputs, options, message):
    with pytest.raises(InputError, match=message):
        build(name, shape, outputs, options)
