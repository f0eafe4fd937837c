"""The lowered forms give what the functions give that they replace."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradsieve.engine import lowering
from gradsieve.engine.lowering import Lowered

SHAPES = [(5, 6), (5, 6, 3), (4, 6, 5, 3), (2, 6, 3, 2, 2)]
BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def compare(layer, inputs):
    """A layer and its twin under the lowered forms: outputs, gradients and statistics."""
    twin = copy.deepcopy(layer)
    ours, theirs = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    with Lowered():
        found = layer(ours)
    expected = twin(theirs)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    for mine, other in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    for mine, other in zip(layer.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, other)


def filled(layer):
    torch.manual_seed(0)
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    return layer.double()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": 0.3}, {"track_running_stats": False}])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape, options, training):
    layer = filled(BATCH_NORMS[len(shape)](6, **options)).train(training)
    compare(layer, torch.randn(shape, dtype=torch.float64) + 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(shape, groups, affine):
    if len(shape) == 2 and groups == 6:
        pytest.skip("a single value has no deviation")
    compare(filled(nn.GroupNorm(groups, 6, affine=affine)), torch.randn(shape, dtype=torch.float64) + 2)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_scale_and_shift_of_each_row(norm):
    """The gradient at a scale and shift (N, C) is each row's share of the gradient at (C,)."""
    maps = torch.randn(3, 4, 2, 2, dtype=torch.float64)
    weight, bias = (torch.rand(4, dtype=torch.float64).expand(3, 4).clone().requires_grad_() for _ in range(2))
    output_weights = torch.randn_like(maps)

    def run(weight, bias):
        if norm == "batch":
            return lowering.batch_norm(maps, None, None, weight, bias, training=True)
        return lowering.group_norm(maps, 2, weight, bias)

    (run(weight, bias) * output_weights).sum().backward()
    shared = [values.detach()[0].clone().requires_grad_() for values in (weight, bias)]
    (run(*shared) * output_weights).sum().backward()
    for rows, total in zip((weight, bias), shared, strict=True):
        torch.testing.assert_close(rows.grad.sum(0), total.grad)


def test_half_precision_stays():
    maps = torch.randn(3, 4, 5, 5, dtype=torch.bfloat16)
    with Lowered():
        assert nn.BatchNorm2d(4)(maps).dtype == torch.bfloat16
        assert F.group_norm(maps, 2).dtype == torch.bfloat16


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(
    "options",
    [(2,), (2, 2), ((2, 3), None), ([2, 3], (2, 3)), (2, 1), (3, 2, 1), (2, 2, 0, 2), (4,)],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_max_pooling(options, graph, layout):
    """The windows of some cases tile the maps. With ties, the gradient goes to only one of the maxima."""
    maps = torch.randint(3, (2, 4, 8, 6)).float().contiguous(memory_format=layout)
    if graph:
        compare(nn.MaxPool2d(*options), maps)
    with Lowered():
        found = nn.MaxPool2d(*options)(maps)
    assert found.equal(nn.MaxPool2d(*options)(maps))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("channels", [1, 3, 8, 9])
def test_convolution_of_few_channels(channels):
    layer = nn.Conv2d(channels, 16, 3, padding=1).cuda().bfloat16()
    inputs = torch.randn(4, channels, 8, 8, device="cuda", dtype=torch.bfloat16)
    with Lowered():
        found = layer(inputs)
    torch.testing.assert_close(found, layer(inputs), rtol=2e-2, atol=2e-2)
