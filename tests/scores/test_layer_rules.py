"""Every rule against rows run one at a time, and against a layer with separate parameters for each row."""

import pytest
import torch
from torch import nn

from gradsieve.scores import layer_rules, outer_products
from gradsieve.scores import row_gradients as row_gradients_module
from gradsieve.scores.layer_rules import RULES, has_rule
from gradsieve.scores.row_gradients import row_gradient_norms, row_gradients, row_pass

CASES = {  # name: layer, three shapes of its input
    "linear": (lambda: nn.Linear(6, 4), [(5, 6), (3, 2, 6), (4, 3, 2, 6)]),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), [(3, 4, 5), (2, 4, 1), (5, 4, 8)]),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1), [(3, 4, 5, 6), (2, 4, 1, 1), (5, 4, 3, 2)]),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), [(3, 2, 3, 4, 2), (2, 2, 2, 2, 2), (4, 2, 2, 3, 3)]),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), [(3, 4, 5), (2, 4, 1), (5, 4, 3)]),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 6, 3), [(3, 4, 3, 2), (2, 4, 1, 1), (5, 4, 2, 4)]),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(2, 4, 2), [(3, 2, 3, 1, 2), (2, 2, 1, 1, 1), (4, 2, 2, 2, 2)]),
    "batch_norm1d": (lambda: nn.BatchNorm1d(4), [(5, 4), (3, 4, 2), (2, 4, 7)]),
    "batch_norm2d": (lambda: nn.BatchNorm2d(4), [(5, 4, 1, 1), (3, 4, 2, 3), (2, 4, 5, 1)]),
    "batch_norm3d": (lambda: nn.BatchNorm3d(2), [(5, 2, 1, 1, 1), (3, 2, 2, 3, 2), (2, 2, 2, 2, 1)]),
    "group_norm": (lambda: nn.GroupNorm(2, 4), [(5, 4), (3, 4, 2), (2, 4, 3, 3)]),
    "layer_norm": (lambda: nn.LayerNorm((2, 4)), [(5, 2, 4), (3, 3, 2, 4), (2, 3, 2, 2, 4)]),
    "rms_norm": (lambda: nn.RMSNorm(4), [(5, 4), (3, 2, 4), (2, 3, 2, 4)]),
    "instance_norm1d": (lambda: nn.InstanceNorm1d(4, affine=True), [(5, 4, 3), (3, 4, 2), (2, 4, 7)]),
    "instance_norm2d": (lambda: nn.InstanceNorm2d(4, affine=True), [(5, 4, 2, 1), (3, 4, 2, 3), (2, 4, 5, 2)]),
    "instance_norm3d": (
        lambda: nn.InstanceNorm3d(2, affine=True),
        [(5, 2, 1, 1, 2), (3, 2, 2, 3, 2), (2, 2, 2, 2, 1)],
    ),
    "embedding": (lambda: nn.Embedding(7, 3, padding_idx=2), [(5,), (3, 9), (4, 2, 3)]),
    "prelu": (lambda: nn.PReLU(), [(5, 4), (3, 4, 2), (2, 4, 3, 3)]),
    "prelu_per_channel": (lambda: nn.PReLU(4), [(5, 4), (3, 4, 2), (2, 4, 3, 3)]),
}
VARIANTS = {  # name: layer, shape of its input
    "linear_no_bias": (lambda: nn.Linear(6, 4, bias=False), (3, 6)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (3, 4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False), (3, 4, 5, 4)),
    "strided": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 0)), (3, 4, 6, 7)),
    "dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=(2, 1), padding=2), (3, 4, 6, 5)),
    "same": (lambda: nn.Conv2d(4, 6, (2, 4), padding="same", dilation=(1, 2)), (3, 4, 6, 7)),
    "valid": (lambda: nn.Conv1d(4, 6, 2, padding="valid"), (3, 4, 6)),
    "reflect": (lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="reflect"), (3, 4, 5, 6)),
    "replicate": (lambda: nn.Conv3d(2, 4, 3, padding=1, padding_mode="replicate"), (3, 2, 3, 4, 2)),
    "circular": (lambda: nn.Conv1d(4, 6, 4, padding="same", padding_mode="circular"), (3, 4, 6)),
    "everything": (
        lambda: nn.Conv3d(4, 6, (2, 3, 1), (1, 2, 1), (0, 2, 1), (2, 1, 1), 2, padding_mode="circular"),
        (3, 4, 4, 5, 2),
    ),
    "transpose_grouped": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=1, output_padding=(1, 2), groups=2),
        (3, 4, 3, 4),
    ),
    "transpose_dilated": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=2, dilation=2), (3, 4, 5)),
    "layer_norm_no_bias": (lambda: nn.LayerNorm(4, bias=False), (3, 2, 4)),
    "rms_norm_eps": (lambda: nn.RMSNorm((2, 4), eps=0.1), (3, 5, 2, 4)),
    "embedding_no_padding": (lambda: nn.Embedding(7, 3), (3, 9)),
    "embedding_wide": (lambda: nn.Embedding(50, 8), (3, 4)),
}
REDUCTIONS = {"sum": lambda errors: errors.sum(1), "mean": lambda errors: errors.mean(1)}
PRECISIONS = {"single": (torch.float32, 1e-4, 1e-5), "double": (torch.float64, 1e-9, 1e-11)}


def squared_error(reduction):
    return lambda outputs, targets: REDUCTIONS[reduction]((outputs - targets).square().flatten(1))


def example(make, shape, dtype, seed=0):
    """A layer with parameters and statistics away from their defaults, an input and targets for it."""
    torch.manual_seed(seed)
    layer = make().to(dtype)
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5).mul_(torch.randn(()).sign() if tensor.requires_grad else 1)
    is_embedding = isinstance(layer, nn.Embedding)
    inputs = torch.randint(7, shape) if is_embedding else torch.randn(shape, dtype=dtype) + 0.3
    with torch.no_grad():
        targets = torch.randn_like(layer.eval()(inputs))
    return layer, inputs, targets


def gradients_of_rows_alone(network, loss, inputs, targets):
    """The oracle where no layer mixes rows: one backward for each row."""
    rows = []
    for i in range(len(inputs)):
        losses = loss(network(inputs[i : i + 1]), targets[i : i + 1])
        rows.append(torch.autograd.grad(losses.sum(), list(network.parameters())))
    return {
        name: torch.stack(shares)
        for (name, _), shares in zip(network.named_parameters(), zip(*rows, strict=True), strict=True)
    }


def norms_of(gradients):
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1).norm(dim=1)


def assert_equal(found, expected, dtype):
    _, rtol, atol = next(precision for precision in PRECISIONS.values() if precision[0] == dtype)
    # A sum of large terms that nearly cancel is only as exact as its terms, and processors add them in any order.
    gradients = expected.values() if isinstance(expected, dict) else [expected]
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=max(atol, torch.finfo(dtype).eps * largest))


@pytest.fixture(autouse=True)
def _shares_only(monkeypatch):
    """Fail if the rows run one by one, which would hide a wrong rule."""
    monkeypatch.setattr(row_gradients_module, "rows_apart", lambda *_: pytest.fail("the rows ran one by one"))


@pytest.fixture(params=["gram", "built"])
def norm_form(request, monkeypatch):
    """Force one of the two ways to compute a norm, whatever the cost rule says."""
    for module in (layer_rules, outer_products):
        monkeypatch.setattr(module, "gram_is_cheaper", lambda *_: request.param == "gram")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "index"), [(name, index) for name in CASES for index in range(3)])
def test_shares_are_the_gradients_of_the_rows_alone(name, index, reduction, precision):
    make, shapes = CASES[name]
    dtype = PRECISIONS[precision][0]
    layer, inputs, targets = example(make, shapes[index], dtype)
    loss = squared_error(reduction)
    expected = gradients_of_rows_alone(layer, loss, inputs, targets)
    assert has_rule(layer)
    assert_equal(row_gradients(layer, loss, inputs, targets), expected, dtype)
    assert_equal(row_gradient_norms(layer, loss, inputs, targets), norms_of(expected), dtype)
    assert_totals(layer, loss, inputs, targets, expected, dtype)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_a_layer(name, norm_form):
    make, shape = VARIANTS[name]
    layer, inputs, targets = example(make, shape, torch.float64)
    expected = gradients_of_rows_alone(layer, squared_error("sum"), inputs, targets)
    assert_equal(row_gradients(layer, squared_error("sum"), inputs, targets), expected, torch.float64)
    found = row_gradient_norms(layer, squared_error("sum"), inputs, targets)
    assert_equal(found, norms_of(expected), torch.float64)
    assert_totals(layer, squared_error("sum"), inputs, targets, expected, torch.float64)


def assert_totals(layer, loss, inputs, targets, expected, dtype):
    """The gradient of some rows is the sum of their shares, whether or not shares were held on the way."""
    rows = torch.tensor([1, 0]) if len(inputs) > 1 else torch.tensor([0])
    found = row_pass(layer, loss, inputs, targets)
    norms, held = found.measure()
    assert_equal(norms, norms_of(expected), dtype)
    for each in (found, held):
        totals = each.gradient(rows)
        assert totals.keys() == expected.keys()
        assert_equal(totals, {name: shares[rows].sum(0) for name, shares in expected.items()}, dtype)


SLIDING = {
    "padded": (lambda: nn.Conv2d(4, 6, 3, padding=1), (3, 4, 5, 6)),
    "unpadded": (lambda: nn.Conv2d(4, 6, 3), (2, 4, 4, 5)),
    "uneven": (lambda: nn.Conv2d(4, 6, (2, 3), padding=(1, 0)), (3, 4, 5, 6)),
    "same": (lambda: nn.Conv2d(4, 6, (2, 4), padding="same"), (3, 4, 6, 7)),
    "line": (lambda: nn.Conv1d(4, 6, 3, padding=2), (3, 4, 7)),
    "volume": (lambda: nn.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 1)), (2, 2, 3, 3, 4)),
}


@pytest.mark.parametrize("name", SLIDING)
def test_forms_of_a_convolution_that_slides_pixel_by_pixel(name):
    make, shape = SLIDING[name]
    layer, inputs, targets = example(make, shape, torch.float64)
    gradient = torch.randn_like(targets)
    share = RULES[type(layer)]["weight"].share(layer, inputs, gradient)
    squares = share.flatten(1).square().sum(1)
    assert outer_products.slides_one_by_one(layer)
    assert_equal(outer_products.pixel_gram_squared_norm(layer, inputs, gradient), squares, torch.float64)
    if isinstance(layer, nn.Conv2d):
        for build in (outer_products.products_by_line, outer_products.products_of_windows):
            assert_equal(layer_rules.as_weights(layer, build(layer, inputs, gradient)), share, torch.float64)


@pytest.mark.parametrize("options", [{"stride": 2}, {"dilation": 2}, {"groups": 2}, {"padding_mode": "reflect"}])
def test_other_convolutions_do_not_slide_so(options):
    assert not outer_products.slides_one_by_one(nn.Conv2d(4, 6, 3, padding=1, **options))


@pytest.mark.parametrize("name", [name for name in CASES if RULES[type(CASES[name][0]())].get("weight")])
def test_both_ways_to_the_norm(name, norm_form):
    make, shapes = CASES[name]
    for shape in shapes:
        layer, inputs, targets = example(make, shape, torch.float64)
        gradient = torch.randn_like(targets)
        weight = RULES[type(layer)]["weight"]
        expected = weight.share(layer, inputs, gradient).flatten(1).square().sum(1)
        assert_equal(weight.measure(layer, inputs, gradient, False).squared_norm, expected, torch.float64)


def test_norm_of_a_linear_row_is_the_product_of_two_norms():
    gradient, activations = torch.randn(5, 4), torch.randn(5, 6)
    found = RULES[nn.Linear]["weight"].measure(nn.Linear(6, 4), activations, gradient, False).squared_norm.sqrt()
    torch.testing.assert_close(found, gradient.norm(dim=1) * activations.norm(dim=1))


@pytest.mark.parametrize("form", ["train", "eval", "no_statistics"])
@pytest.mark.parametrize("name", ["batch_norm1d", "batch_norm2d", "batch_norm3d"])
def test_batch_norm_uses_the_statistics_of_the_forward(name, form):
    """The oracle gives each row its own scale and shift, after normalisation written out by hand."""
    for shape in CASES[name][1]:
        layer, inputs, targets = example(CASES[name][0], shape, torch.float64)
        if form == "no_statistics":
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        layer.train(form == "train")
        others = [dim for dim in range(inputs.ndim) if dim != 1]
        mean, variance = inputs.mean(others), inputs.var(others, unbiased=False)
        if form == "eval":
            mean, variance = layer.running_mean, layer.running_var
        per_channel = (-1, *[1] * (inputs.ndim - 2))
        normalised = (inputs - mean.view(per_channel)) / (variance.view(per_channel) + layer.eps).sqrt()
        own = [p.detach().expand(len(inputs), -1).clone().requires_grad_() for p in layer.parameters()]
        weight, bias = (p.view(len(inputs), *per_channel) for p in own)
        loss = squared_error("mean")
        expected = torch.autograd.grad(loss(normalised * weight + bias, targets).sum(), own)
        found = row_gradients(layer, loss, inputs, targets)
        assert_equal(found, dict(zip(["weight", "bias"], expected, strict=True)), torch.float64)


@pytest.mark.parametrize("training", [True, False])
def test_instance_norm_with_running_statistics(training):
    layer, inputs, targets = example(
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (3, 4, 2, 3), torch.float64
    )
    layer.train(training)
    buffers = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    found = row_gradients(layer, squared_error("sum"), inputs, targets)
    layer.load_state_dict(buffers, strict=False)
    expected = gradients_of_rows_alone(layer, squared_error("sum"), inputs, targets)
    assert_equal(found, expected, torch.float64)


def test_embedding_that_divides_by_the_tokens_count(norm_form):
    """torch divides by the count in the whole batch, so the oracle is the sum alone."""
    layer, inputs, targets = example(
        lambda: nn.Embedding(7, 3, padding_idx=2, scale_grad_by_freq=True), (3, 9), torch.float64
    )
    found = row_gradients(layer, squared_error("sum"), inputs, targets)
    squared_error("sum")(layer(inputs), targets).sum().backward()
    assert_equal(found["weight"].sum(0), layer.weight.grad, torch.float64)
    norms = row_gradient_norms(layer, squared_error("sum"), inputs, targets)
    assert_equal(norms, norms_of(found), torch.float64)


def test_channels_last_and_strided_inputs():
    layer, inputs, targets = example(lambda: nn.Conv2d(4, 6, 3, padding=1), (3, 4, 5, 6), torch.float64)
    expected = gradients_of_rows_alone(layer, squared_error("sum"), inputs, targets)
    doubled = torch.stack([inputs, inputs], -1)
    for same in (inputs.contiguous(memory_format=torch.channels_last), doubled[..., 1]):
        assert_equal(row_gradients(layer, squared_error("sum"), same, targets), expected, torch.float64)


@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d"])
def test_pieces_of_any_size_give_the_same(name, norm_form, monkeypatch):
    layer, inputs, targets = example(CASES[name][0], CASES[name][1][2], torch.float64)
    expected = gradients_of_rows_alone(layer, squared_error("sum"), inputs, targets)
    for window_bytes in (1, 2 * 8 * inputs[0].numel() * 9, 2**30):
        monkeypatch.setattr(outer_products, "WINDOW_BYTES", {"cpu": window_bytes})
        assert_equal(row_gradients(layer, squared_error("sum"), inputs, targets), expected, torch.float64)
        norms = row_gradient_norms(layer, squared_error("sum"), inputs, targets)
        assert_equal(norms, norms_of(expected), torch.float64)


def test_cost_rule_counts_two_gram_matrices():
    assert outer_products.gram_is_cheaper(positions=1, inputs=512, outputs=256)
    assert not outer_products.gram_is_cheaper(positions=1024, inputs=1152, outputs=128)
    assert outer_products.gram_is_cheaper(positions=16, inputs=1152, outputs=128)


def test_float16_sums_do_not_overflow():
    gradient, activations = torch.full((1, 4), 100.0).half(), torch.full((1, 512), 100.0).half()
    found = RULES[nn.Linear]["weight"].measure(nn.Linear(512, 4), activations, gradient, False).squared_norm
    torch.testing.assert_close(found.item(), 4 * 512 * 1e8)


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def test_only_a_layer_known_through_and_through_has_a_rule():
    patched = nn.Linear(2, 3)
    patched.forward = lambda x: x
    assert not has_rule(patched)
    assert not has_rule(Doubled(2, 3))
    assert not has_rule(nn.ReLU())
    assert not has_rule(nn.Linear(2, 3).requires_grad_(False))
    assert not has_rule(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)))
    assert has_rule(nn.Linear(2, 3))


def test_a_rule_of_ones_own():
    """The decorator is what the error message advises."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return x * self.factor

    @layer_rules.rule("factor", Scale)
    def scale_factor(layer, activations, gradient):
        return activations * gradient

    try:
        network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), Scale())
        inputs, targets = torch.randn(5, 3), torch.randn(5, 4)
        found = row_gradients(network, squared_error("sum"), inputs, targets)
        squared_error("sum")(network(inputs), targets).sum().backward()
        torch.testing.assert_close(found["2.factor"].sum(0), network[2].factor.grad)
    finally:
        del RULES[Scale]


def test_embedding_norm_never_builds_the_table():
    """A row's share would have ten billion entries."""
    layer = nn.Embedding(1, 1)
    layer.num_embeddings, layer.embedding_dim = 10**7, 1000
    ids, gradient = torch.tensor([[5, 9_999_999, 5]]), torch.randn(1, 3, 1000)
    found = RULES[nn.Embedding]["weight"].measure(layer, ids, gradient, False).squared_norm
    expected = (gradient[:, 0] + gradient[:, 2]).square().sum(1) + gradient[:, 1].square().sum(1)
    torch.testing.assert_close(found, expected)
