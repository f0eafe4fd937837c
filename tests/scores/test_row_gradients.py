"""Row gradients of whole networks: against rows run alone, against layers with parameters per row, and their sum."""

import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from gradsieve.errors import InputError
from gradsieve.methods.coordinate_median import middle
from gradsieve.scores import row_gradients as row_gradients_module
from gradsieve.scores.row_by_row import mixes_rows, rows_apart
from gradsieve.scores.row_gradients import row_gradient_norms, row_gradients, row_pass
from gradsieve.scores.spectral import gradient_gram

EXACT = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def shares_only(monkeypatch):
    """Fail if the rows run one by one, which would hide a wrong rule."""
    monkeypatch.setattr(row_gradients_module, "rows_apart", lambda *_: pytest.fail("the rows ran one by one"))


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def rows_of(*shape, classes=3):
    return torch.randn(shape, dtype=torch.float64), torch.randint(classes, shape[:1])


def trainable(network):
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def rows_alone(network, inputs, targets):
    """The oracle where no layer mixes rows: one backward for each row."""
    rows = []
    for i in range(len(inputs)):
        loss = cross_entropy(network(inputs[i : i + 1]), targets[i : i + 1]).sum()
        parameters = list(trainable(network).values())
        rows.append(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))
    return dict(zip(trainable(network), map(torch.stack, zip(*rows, strict=True)), strict=True))


def rows_with_parameters_of_their_own(network, inputs, targets):
    """The oracle for any network: layers in which row i has its own copy of the parameters.

    Row i's share is the gradient of all losses with respect to row i's copy.
    """
    network = copy.deepcopy(network)
    own = {
        name: p.detach().expand(len(inputs), *p.shape).clone().requires_grad_()
        for name, p in trainable(network).items()
    }

    def forward(layer, names, x):
        if isinstance(layer, nn.BatchNorm2d):
            normalised = F.batch_norm(x, layer.running_mean, layer.running_var, None, None, layer.training)
            return normalised * own[names["weight"]][:, :, None, None] + own[names["bias"]][:, :, None, None]
        per_row = [{key: own[name][i] for key, name in names.items()} for i in range(len(x))]
        plain = copy.copy(layer)
        plain.__dict__ = {key: value for key, value in vars(layer).items() if key != "forward"}
        return torch.cat([functional_call(plain, values, (row[None],)) for values, row in zip(per_row, x, strict=True)])

    for path, layer in network.named_modules():
        names = {key: f"{path}.{key}" for key, _ in layer.named_parameters(recurse=False)}
        if names:
            layer.forward = lambda x, layer=layer, names=names: forward(layer, names, x)
    cross_entropy(network(inputs), targets).sum().backward()
    return {name: parameters.grad for name, parameters in own.items()}


def batch_gradient(network, inputs, targets):
    network = copy.deepcopy(network)
    loss = cross_entropy(network(inputs), targets).sum()
    gradients = torch.autograd.grad(loss, list(trainable(network).values()), allow_unused=True, materialize_grads=True)
    return dict(zip(trainable(network), gradients, strict=True))


def norms_of(gradients):
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1).norm(dim=1)


def assert_rows(network, inputs, targets, expected, **tolerance):
    tolerance = tolerance or EXACT
    torch.testing.assert_close(row_gradients(network, cross_entropy, inputs, targets), expected, **tolerance)
    norms = row_gradient_norms(network, cross_entropy, inputs, targets)
    torch.testing.assert_close(norms, norms_of(expected), **tolerance)


def conv_network(norm=nn.BatchNorm2d, activation=lambda: nn.ReLU(inplace=True)):
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        norm(4),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, bias=False),
        norm(6),
        activation(),
        nn.Flatten(),
        nn.Linear(24, 3),
    ).double()


class Lambda(nn.Module):
    """A network with parts, given as a function of the parts and the input."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


# ------------------------------------------------------------------ networks of known layers


@pytest.mark.usefixtures("shares_only")
@pytest.mark.parametrize("form", ["train", "eval"])
def test_batch_norm_network(form):
    network, (inputs, targets) = conv_network().train(form == "train"), rows_of(5, 2, 10, 10)
    expected = rows_with_parameters_of_their_own(network, inputs, targets)
    assert_rows(network, inputs, targets, expected)
    if form == "eval":
        assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_shares_of_a_batch_norm_network_add_up_to_the_batch_gradient():
    network, (inputs, targets) = conv_network(), rows_of(16, 2, 10, 10)
    shares = row_gradients(network, cross_entropy, inputs, targets)
    summed = {name: share.sum(0) for name, share in shares.items()}
    torch.testing.assert_close(summed, batch_gradient(network, inputs, targets), **EXACT)


@pytest.mark.usefixtures("shares_only")
@pytest.mark.parametrize("norm", [lambda c: nn.GroupNorm(2, c), lambda c: nn.InstanceNorm2d(c, affine=True)])
@pytest.mark.parametrize("activation", [nn.ReLU, lambda: nn.ReLU(inplace=True), lambda: nn.LeakyReLU(0.1, True)])
def test_in_place_activation_behind_any_layer(norm, activation):
    network, (inputs, targets) = conv_network(norm, activation), rows_of(5, 2, 10, 10)
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_in_place_activation_behind_linear_with_positions():
    network = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(True), nn.Linear(6, 5), nn.PReLU(), nn.Flatten(), nn.Linear(15, 3)
    ).double()
    inputs, targets = rows_of(5, 3, 4)
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_residual_added_in_place():
    def forward(self, x):
        x = F.relu_(self.first(x))
        out = self.second(x)
        out += x
        return self.head(F.relu_(out))

    network = Lambda(forward, first=nn.Linear(4, 6), second=nn.Linear(6, 6), head=nn.Linear(6, 3)).double()
    inputs, targets = rows_of(5, 4)
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_layer_called_twice_adds_before_the_norm():
    network = Lambda(
        lambda self, x: self.head(self.body(self.body(x).tanh())), body=nn.Linear(4, 4), head=nn.Linear(4, 3)
    )
    inputs, targets = rows_of(5, 4)
    assert_rows(network.double(), inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_tied_embedding_and_linear():
    embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = embedding.weight
    network = Lambda(lambda self, x: self.head(self.embedding(x).mean(1).tanh()), embedding=embedding, head=head)
    inputs, targets = torch.randint(7, (5, 6)), torch.randint(7, (5,))
    assert_rows(network.double(), inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_frozen_parameters_are_left_out():
    network, (inputs, targets) = conv_network(lambda c: nn.GroupNorm(2, c)), rows_of(5, 2, 10, 10)
    network[0].requires_grad_(False)
    network[5].weight.requires_grad_(False)
    found = row_gradients(network, cross_entropy, inputs, targets)
    assert "0.weight" not in found
    assert "5.weight" not in found
    assert "5.bias" in found
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_unused_layers_have_shares_of_zero():
    def forward(self, x):
        self.called_only(x)
        with torch.no_grad():
            x = self.without_graph(x)
        return self.head(x)

    parts = {name: nn.Linear(4, 4) for name in ("unused", "called_only", "without_graph")}
    network, (inputs, targets) = Lambda(forward, **parts, head=nn.Linear(4, 3)).double(), rows_of(5, 4)
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_keyword_call_and_a_users_hook_that_changes_the_output():
    network = Lambda(lambda self, x: self.head(input=self.body(input=x)), body=nn.Linear(4, 4), head=nn.Linear(4, 3))
    network.double().body.register_forward_hook(lambda layer, args, output: output * 3)
    inputs, targets = rows_of(5, 4)
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_dropout_draws_one_mask_for_outputs_and_gradients():
    network, (inputs, targets) = nn.Sequential(nn.Linear(4, 50), nn.Dropout(), nn.Linear(50, 3)).double(), rows_of(5, 4)
    row_gradients(network, cross_entropy, inputs, targets)  # the first pass also watches the layers
    torch.manual_seed(1)
    shares = row_gradients(network, cross_entropy, inputs, targets)
    torch.manual_seed(1)
    expected = batch_gradient(network, inputs, targets)
    torch.testing.assert_close({name: share.sum(0) for name, share in shares.items()}, expected, **EXACT)


@pytest.mark.usefixtures("shares_only")
def test_the_watching_pass_leaves_no_trace():
    """The same seed gives the same masks and statistics, whether the layers were checked before or not."""
    network = nn.Sequential(conv_network(), nn.Dropout(), nn.Linear(3, 3).double())
    inputs, targets = rows_of(5, 2, 10, 10)
    plain, seen = copy.deepcopy(network), copy.deepcopy(network)
    torch.manual_seed(1)
    expected = cross_entropy(plain(inputs), targets)
    after = torch.rand(())
    torch.manual_seed(1)
    found = row_pass(seen, cross_entropy, inputs, targets).losses
    assert torch.equal(torch.rand(()), after)
    assert torch.equal(found, expected)
    torch.testing.assert_close(dict(seen.named_buffers()), dict(plain.named_buffers()), rtol=0, atol=0)


# -------------------------------------------------------------------- the pass and its manners


def test_one_parameters_shares_are_held_at_a_time():
    network, (inputs, targets) = nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)]).double(), rows_of(5, 4, classes=4)
    rows = row_pass(network, cross_entropy, inputs, targets)
    weights = [weakref.ref(share) for name, share in rows.by_parameter() if name.endswith("weight")]
    assert [weight() for weight in weights] == [None] * 5


def test_the_pass_gives_outputs_losses_and_one_parameter_at_a_time():
    network, (inputs, targets) = conv_network(), rows_of(6, 2, 10, 10)
    rows = row_pass(network, cross_entropy, inputs, targets)
    torch.testing.assert_close(rows.outputs, network(inputs).detach())
    torch.testing.assert_close(rows.losses, cross_entropy(network(inputs), targets).detach())
    assert not rows.outputs.requires_grad
    gram = torch.zeros(6, 6, dtype=torch.float64)
    for _, share in rows.by_parameter():
        gram += share.flatten(1) @ share.flatten(1).T
    torch.testing.assert_close(gram.diagonal().sqrt(), rows.norms(), **EXACT)


def test_the_form_at_the_time_of_the_pass_counts():
    """The form and statistics of the pass count, not those at the time when norms are computed."""
    network, (inputs, targets) = conv_network().eval(), rows_of(5, 2, 10, 10)
    rows = row_pass(network, cross_entropy, inputs, targets)
    expected = norms_of(rows_alone(network, inputs, targets))
    network.train()(inputs + 5)
    torch.testing.assert_close(rows.norms(), expected, **EXACT)


@pytest.mark.parametrize("fallback", [False, True])
def test_grad_fields_and_hooks_are_left_alone(fallback):
    network, (inputs, targets) = conv_network(lambda c: nn.GroupNorm(2, c), nn.Tanh), rows_of(5, 2, 10, 10)
    if fallback:
        network.append(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3).double()))
    marks = [torch.full_like(p, 7) for p in network.parameters()]
    for parameter, mark in zip(network.parameters(), marks, strict=True):
        parameter.grad = mark
    row_gradient_norms(network, cross_entropy, inputs, targets)
    for parameter, mark in zip(network.parameters(), marks, strict=True):
        assert parameter.grad is mark
        assert parameter.requires_grad
        assert (mark == 7).all()
    assert not any(layer._forward_hooks for layer in network.modules())


@pytest.mark.parametrize("place", ["forward", "loss", "rule"])
def test_hooks_are_removed_after_an_exception(place, monkeypatch):
    def fail(*_):
        raise ArithmeticError

    network, (inputs, targets) = conv_network(), rows_of(5, 2, 10, 10)
    if place == "forward":
        network.append(Lambda(fail))
    if place == "rule":
        monkeypatch.setattr(row_gradients_module, "collect_uses", fail)
    with pytest.raises(ArithmeticError):
        row_gradients(network, fail if place == "loss" else cross_entropy, inputs, targets)
    assert not any(layer._forward_hooks for layer in network.modules())


@pytest.mark.parametrize("parts", [{}, {"attention": nn.MultiheadAttention(4, 2, batch_first=True)}])
def test_under_no_grad(parts):
    def forward(self, x):
        x = self.attention(x, x, x, need_weights=False)[0] if hasattr(self, "attention") else x
        return self.head(x.mean(1))

    network, (inputs, targets) = Lambda(forward, **parts, head=nn.Linear(4, 3)).double(), rows_of(5, 6, 4)
    expected = rows_alone(network, inputs, targets)
    with torch.no_grad():
        assert_rows(network, inputs, targets, expected)
        assert not torch.is_grad_enabled()


def test_autocast_is_close_and_accumulates_wide():
    network = conv_network().float()
    inputs, targets = torch.randn(16, 2, 10, 10), torch.randint(3, (16,))
    expected = row_gradient_norms(network, cross_entropy, inputs, targets)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            network(inputs)  # leaves cached casts of the weights, which have no graph
        shares = row_gradients(network, cross_entropy, inputs, targets)
        found = row_gradient_norms(network, cross_entropy, inputs, targets)
    assert {share.dtype for share in shares.values()} == {torch.float32}
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.05, atol=1e-3)
    torch.testing.assert_close(found, norms_of(shares), rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("last", [nn.Identity, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))])
def test_bfloat16_network(last):
    network = nn.Sequential(conv_network().eval(), last().double())
    network.unused = Lambda(None, layer=nn.Linear(3, 3))
    network.forward = lambda x: network[1](network[0](x))
    inputs, targets = rows_of(16, 2, 10, 10)
    expected = row_gradient_norms(network, cross_entropy, inputs, targets).float()
    rows = row_pass(network.bfloat16(), cross_entropy, inputs.bfloat16(), targets)
    assert {share.dtype for _, share in rows.by_parameter()} == {torch.float32}
    torch.testing.assert_close(rows.norms(), expected, rtol=0.1, atol=1e-2)


def test_permuting_rows_permutes_norms():
    network, (inputs, targets) = conv_network(), rows_of(8, 2, 10, 10)
    order = torch.randperm(8)
    norms = row_gradient_norms(network, cross_entropy, inputs, targets)
    permuted = row_gradient_norms(network, cross_entropy, inputs[order], targets[order])
    torch.testing.assert_close(permuted, norms[order], **EXACT)


# ----------------------------------------------------- what has no rule, and what looks as if it had


def attend(self, x):
    return self.head(self.core(x, x, x, need_weights=False)[0].mean(1))


def recur(self, x):
    return self.head(self.core(x)[0][:, -1])


def add_own_parameter(self, x):
    return self.head(self.core * x)


def add_up(self, x):
    return self.head(self.core(x).mean(1))


def follow(self, x):
    return self.head(self.core(x))


def use_weight_elsewhere(self, x):
    return self.head(x) + F.linear(x, self.head.weight)


def use_weight_as_input(self, x):
    return self.head(x) * self.head(self.core.unsqueeze(0)).sum()


def add_positions(self, x):  # as many positions as the batch has rows
    return self.head((x + self.core(torch.arange(5))).tanh().mean(1))


def put_positions_first(self, x):
    return self.head(self.core(x.transpose(0, 1)).tanh().mean(0))


def fold_positions_into_rows(self, x):
    return self.head(self.core(x.flatten(0, 1)).tanh().unflatten(0, x.shape[:2]).mean(1))


def order_of(x):
    """Rows by size, as recurrent networks sort them by length; and back."""
    order = x[:, 0].argsort(descending=True)
    return order, order.argsort()


def sort_rows(self, x):
    order, back = order_of(x)
    return self.head(self.core(x[order]).tanh()[back])


def sort_and_put_back(self, x):
    order, _ = order_of(x)
    ascending = self.core(x[order]).tanh()
    restored = torch.empty_like(ascending)
    restored[order] = ascending
    return self.head(restored)


def select_rows(self, x):
    order, back = order_of(x)
    return self.head(self.core(x.index_select(0, order)).tanh().index_select(0, back))


def flip_rows(self, x):
    return self.head(self.core(x.flip(0)).tanh().flip(0))


def roll_rows(self, x):
    return self.head(self.core(x.roll(1, 0)).tanh().roll(-1, 0))


def gather_rows(self, x):
    order, back = (each[:, None].expand_as(x) for each in order_of(x))
    return self.head(self.core(x.gather(0, order)).tanh().gather(0, back))


def pick_one_position(self, x):  # an index too, but the rows stay in their order
    return self.head(self.core(x)[torch.arange(len(x)), (x[:, :, 0] > 0).sum(1) - 1])


def overwrite_input(self, x):
    x = self.core(x)
    out = self.head(x)
    x.zero_()
    return out


class Reversed(torch.autograd.Function):
    """As domain adaptation has it, and written as older code is: torch.func cannot follow it."""

    @staticmethod
    def forward(ctx, values):
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def reverse(self, x):
    return self.head(Reversed.apply(self.core * x).tanh())


def differentiate(self, x):
    """The slope of an energy, as forces and Hamiltonian networks have it."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.core(x).tanh().sum(), x, create_graph=True)
        return self.head(slope)


HARD = {
    "attention": (attend, nn.MultiheadAttention(4, 2, batch_first=True), (5, 5, 4)),
    "transformer": (add_up, nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), (5, 5, 4)),
    "lstm": (recur, nn.LSTM(4, 4, batch_first=True), (5, 5, 4)),
    "gru": (recur, nn.GRU(4, 4, batch_first=True), (5, 5, 4)),
    "own_parameter": (add_own_parameter, nn.Parameter(torch.rand(4)), (5, 4)),
    "reversed_gradient": (reverse, nn.Parameter(torch.rand(4)), (5, 4)),
    "slope": (differentiate, nn.Linear(4, 2), (5, 4)),
    "weight_elsewhere": (use_weight_elsewhere, None, (5, 4)),
    "parameter_as_input": (use_weight_as_input, nn.Parameter(torch.rand(4)), (5, 4)),
    "weight_norm": (follow, nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (5, 4)),
    "positions": (add_positions, nn.Embedding(5, 4), (5, 5, 4)),
    "positions_first": (put_positions_first, nn.Linear(4, 4), (5, 5, 4)),
    "sorted": (sort_rows, nn.Linear(4, 4), (5, 4)),
    "sorted_and_put_back": (sort_and_put_back, nn.Linear(4, 4), (5, 4)),
    "selected": (select_rows, nn.Linear(4, 4), (5, 4)),
    "flipped": (flip_rows, nn.Linear(4, 4), (5, 4)),
    "rolled": (roll_rows, nn.Linear(4, 4), (5, 4)),
    "gathered": (gather_rows, nn.Linear(4, 4), (5, 4)),
    "positions_in_rows": (fold_positions_into_rows, nn.Linear(4, 4), (5, 3, 4)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # vmap is slow on some operations
@pytest.mark.parametrize("name", HARD)
def test_falls_back_to_rows_one_by_one(name):
    forward, core, shape = HARD[name]
    network, (inputs, targets) = Lambda(forward, core=core, head=nn.Linear(4, 3)).double(), rows_of(*shape)
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))
    rows = row_pass(network, cross_entropy, inputs, targets)
    torch.testing.assert_close(rows.outputs, network(inputs).detach(), **EXACT)
    torch.testing.assert_close(rows.losses, cross_entropy(network(inputs), targets).detach(), **EXACT)


@pytest.mark.usefixtures("shares_only")
def test_an_index_that_leaves_the_rows_in_order_is_no_obstacle():
    network, (inputs, targets) = Lambda(pick_one_position, core=nn.Linear(4, 4), head=nn.Linear(4, 3)), rows_of(9, 5, 4)
    assert_rows(network.double(), inputs, targets, rows_alone(network, inputs, targets))


def test_rows_that_only_happened_to_be_in_order_are_watched_on():
    network, (inputs, targets) = Lambda(sort_rows, core=nn.Linear(4, 4), head=nn.Linear(4, 3)).double(), rows_of(9, 4)
    first = inputs[:, 0].argmax()
    row_gradient_norms(network, cross_entropy, inputs[first, None], targets[first, None])
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


def count_anew(self, x):
    self.calls = self.calls + 1
    return self.core(x) * self.scale


def count_in_place(self, x):
    self.calls += 1
    return self.core(x) * self.scale


def remember_the_last(self, x):  # of each row: vmap cannot write that
    self.calls.copy_(x.detach().sum())
    return self.core(x) * self.scale


class Spectral(nn.Module):
    """A Fourier layer: its weights are complex, and multiply frequencies."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.complex128))
        self.head = nn.Linear(4, 3).double()

    def forward(self, inputs):
        return self.head(torch.fft.irfft(torch.fft.rfft(inputs) * self.weight, n=4))


def test_complex_parameters_count_with_both_their_parts():
    network, (inputs, targets) = Spectral(), rows_of(6, 4)
    found = row_pass(network, cross_entropy, inputs, targets)
    expected = rows_alone(network, inputs, targets)
    parts = [torch.view_as_real(each) if each.is_complex() else each for each in expected.values()]
    flat = torch.cat([each.flatten(1) for each in parts], 1)
    torch.testing.assert_close(found.norms(), flat.norm(dim=1), **EXACT)
    torch.testing.assert_close(gradient_gram(found), flat @ flat.T, **EXACT)
    rows = torch.tensor([0, 3, 5])
    for name, gradient in found.gradient(rows).items():
        torch.testing.assert_close(gradient, expected[name][rows].sum(0), **EXACT)
    torch.testing.assert_close(middle(expected["weight"][:3]).real, expected["weight"].real[:3].median(0).values)
    torch.testing.assert_close(middle(expected["weight"][:3]).imag, expected["weight"].imag[:3].median(0).values)


def test_a_layer_of_complex_weights_runs_row_by_row():
    core = nn.Linear(3, 4, dtype=torch.complex128)
    network = Lambda(lambda self, x: self.head(self.core(torch.fft.rfft(x)).abs()), core=core, head=nn.Linear(4, 3))
    network.head.double()  # double() as a whole would make the weights of the core real
    inputs, targets = rows_of(6, 4)
    expected = rows_alone(network, inputs, targets)
    torch.testing.assert_close(row_gradients(network, cross_entropy, inputs, targets), expected, **EXACT)
    squares = sum(each.abs().square().flatten(1).sum(1) for each in expected.values())
    torch.testing.assert_close(row_gradient_norms(network, cross_entropy, inputs, targets), squares.sqrt(), **EXACT)


@pytest.mark.parametrize("forward", [count_anew, count_in_place, remember_the_last])
def test_rows_run_one_by_one_leave_no_trace_in_buffers(forward):
    network, (inputs, targets) = Lambda(forward, core=nn.Linear(4, 3)).double(), rows_of(5, 4)
    network.scale = nn.Parameter(torch.rand(3, dtype=torch.float64))
    network.register_buffer("calls", torch.zeros((), dtype=torch.float64))
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))
    network.calls.zero_()
    row_gradients(network, cross_entropy, inputs, targets)
    assert network.calls.item() == (inputs.sum() if forward is remember_the_last else 1)


@pytest.mark.parametrize("name", HARD)
def test_refuses_the_same_with_batch_norm_in_train_form(name):
    forward, core, shape = HARD[name]
    norm = Lambda(lambda self, x: self.norm(x.flatten(0, -2)).view_as(x), norm=nn.BatchNorm1d(4))
    network = nn.Sequential(norm, Lambda(forward, core=core, head=nn.Linear(4, 3))).double()
    network[0].requires_grad_(False)  # the shape is another matter
    inputs, targets = rows_of(*shape)
    with pytest.raises(InputError, match="BatchNorm in train form") as caught:
        row_gradient_norms(network, cross_entropy, inputs, targets)
    assert "module '1" in str(caught.value)
    assert "network.eval()" in str(caught.value)
    network.eval()
    assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


@pytest.mark.usefixtures("shares_only")
def test_an_unused_module_without_a_rule_is_no_obstacle():
    network = Lambda(lambda self, x: self.body(x), body=conv_network(), unused=nn.LSTM(2, 2).double())
    inputs, targets = rows_of(5, 2, 10, 10)
    found = row_gradients(network, cross_entropy, inputs, targets)
    assert not found["unused.weight_ih_l0"].any()
    assert found["body.0.weight"].any()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_part_that_hides_its_parameters_is_refused_and_not_forgotten(use_reentrant):
    def forward(self, x):
        return self.head(checkpoint(self.core, x.requires_grad_(), use_reentrant=use_reentrant))

    parts = {"core": nn.Linear(4, 4), "head": nn.Linear(4, 3)}
    network, (inputs, targets) = Lambda(forward, **parts).double(), rows_of(5, 4)
    if use_reentrant:
        with pytest.raises(InputError, match="use_reentrant=False"):
            row_gradient_norms(network, cross_entropy, inputs, targets)
    else:
        assert_rows(network, inputs, targets, rows_alone(network, inputs, targets))


def test_input_overwritten_after_the_layer_read_it_is_never_used():
    parts = {"core": nn.Linear(4, 4), "head": nn.Linear(4, 3)}
    network, (inputs, targets) = Lambda(overwrite_input, **parts).double(), rows_of(5, 4)
    with pytest.raises(RuntimeError, match="inplace"):  # as in any backward of this network
        row_gradient_norms(network, cross_entropy, inputs, targets)


def test_nor_is_one_that_no_backward_would_miss():
    """After a frozen part only our own record holds the input, so autograd does not notice the change."""

    def overwrite_features(self, x):
        features = self.core(x).detach()
        outputs = self.head(features)
        return outputs + features.mul_(2).sum(1, keepdim=True)

    parts = {"core": nn.Linear(4, 4), "head": nn.Linear(4, 3)}
    network, (inputs, targets) = Lambda(overwrite_features, **parts).double(), rows_of(5, 4)
    with pytest.raises(RuntimeError, match="inplace"):  # of the rows, run one by one
        row_gradients(network, cross_entropy, inputs, targets)


def test_the_reference_equals_the_loop():
    network, (inputs, targets) = conv_network().eval(), rows_of(5, 2, 10, 10)
    found = rows_apart(network, cross_entropy, inputs, targets).gradients
    torch.testing.assert_close(found, rows_alone(network, inputs, targets), **EXACT)


def test_mixes_rows():
    assert mixes_rows(conv_network())
    assert not mixes_rows(conv_network().eval())
    assert mixes_rows(conv_network(lambda c: nn.BatchNorm2d(c, track_running_stats=False)).eval())
    assert not mixes_rows(conv_network(lambda c: nn.InstanceNorm2d(c, affine=True)))


def test_refusals_name_the_way_out():
    network, (inputs, targets) = conv_network().eval(), rows_of(5, 2, 10, 10)
    with pytest.raises(InputError, match="reduction to 'none'"):
        row_gradient_norms(network, F.cross_entropy, inputs, targets)
    with pytest.raises(InputError, match="one loss per row"):
        row_gradient_norms(network, cross_entropy, inputs[:0], targets[:0])
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        row_gradient_norms(network, cross_entropy, inputs, targets)
    pair = Lambda(lambda self, x: (self.body(x),), body=network)
    with pytest.raises(InputError, match="returns a tuple"):
        row_gradient_norms(pair, lambda outputs, t: cross_entropy(outputs[0], t), inputs, targets)
    with pytest.raises(InputError, match="Unfreeze"):
        row_gradient_norms(network.requires_grad_(False), cross_entropy, inputs, targets)


@pytest.mark.parametrize(
    ("wrap", "way"),
    [
        (nn.DataParallel, r"Give network\.module"),
        (lambda network: torch.jit.trace(network, torch.zeros(1, 4)), "Give the module it was made from"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_networks_that_hide_their_layers_are_refused(wrap, way):
    network = wrap(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(InputError, match=way):
        row_gradient_norms(network, cross_entropy, torch.randn(5, 4), torch.zeros(5, dtype=torch.long))


def test_a_penalty_inside_the_loss_is_refused_and_not_forgotten():
    network, (inputs, targets) = conv_network().eval(), rows_of(5, 2, 10, 10)

    def penalised(outputs, targets):
        return cross_entropy(outputs, targets) + network[0].weight.square().sum()

    with pytest.raises(InputError, match=r"uses the parameter 0\.weight itself"):
        row_gradient_norms(network, penalised, inputs, targets)


def test_a_loss_may_work_in_place():
    network, (inputs, targets) = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double(), rows_of(5, 4)

    def in_place(outputs, targets):
        return cross_entropy(outputs.mul_(2), targets)

    found = row_gradients(network, in_place, inputs, targets)
    doubled = nn.Sequential(*network, Lambda(lambda self, x: 2 * x))
    torch.testing.assert_close(found, rows_alone(doubled, inputs, targets), **EXACT)


def test_a_loss_that_cuts_the_graph_is_refused():
    network, (inputs, targets) = conv_network(), rows_of(5, 2, 10, 10)
    with pytest.raises(InputError, match="must not detach"):
        row_gradient_norms(network, lambda outputs, t: cross_entropy(outputs.detach(), t), inputs, targets)
