"""robust_step: the methods' steps, for a user's own network and optimizer."""

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradsieve import METHODS, RobustLoss, robust_step
from gradsieve.errors import InputError

ROWS = 24


def network(seed=0, norm=True):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU(), nn.Linear(8, 3))


def batch(task="classification"):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 6, generator=draw)
    if task == "classification":
        return inputs, torch.randint(3, (ROWS,), generator=draw)
    return inputs, torch.randn(ROWS, 3, generator=draw)


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_method_steps_as_it_does_in_our_loop(name, task):
    method = METHODS[name]
    if task not in method.tasks:
        return
    criterion = F.cross_entropy if task == "classification" else F.mse_loss
    models = [network(seed) for seed in range(method.networks)]
    others = copy.deepcopy(models)
    inputs, targets = batch(task)
    found = robust_step(
        models if len(models) > 1 else models[0], inputs, targets, criterion=criterion, drop_rate=0.3, method=name
    )
    rule = method(criterion)
    expected = rule.step(others, inputs, targets, 0.3)
    for other in others:
        rule.finish(other)
    assert [each.kept.tolist() for each in found] == [each.kept.tolist() for each in expected]
    for model, other in zip(models, others, strict=True):
        torch.testing.assert_close(gradients(model), gradients(other), rtol=0, atol=0)


class Joined(nn.Module):
    """A network with two inputs and a flag."""

    def __init__(self, seed):
        super().__init__()
        self.network = network(seed)

    def forward(self, left, right, sign=1):
        return sign * self.network(torch.cat([left, right], 1))


class Whole(Joined):
    """The same network with one input."""

    def forward(self, inputs):
        return super().forward(inputs[:, :2], inputs[:, 2:], -1)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("by_name", [True, False])
def test_a_batch_of_several_inputs_is_that_of_one(name, by_name):
    method = METHODS[name]
    task = method.tasks[0]
    criterion = F.cross_entropy if task == "classification" else F.mse_loss
    inputs, targets = batch(task)
    several = {"left": inputs[:, :2], "right": inputs[:, 2:], "sign": -1}
    steps, models = [], []
    for kind, given in ((Whole, inputs), (Joined, several if by_name else tuple(several.values()))):
        made = [kind(seed) for seed in range(method.networks)]
        step = robust_step(made, given, targets, criterion=criterion, drop_rate=0.3, method=name)
        steps.append(step)
        models.append(made)
    for one, other in zip(*steps, strict=True):
        assert one.kept.tolist() == other.kept.tolist()
        torch.testing.assert_close(one.loss, other.loss)
    for one, other in zip(*models, strict=True):
        torch.testing.assert_close(gradients(one), gradients(other))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": torch.ones(3, 2)}, r"inputs\['a'\] is of shape \(3, 2\) on cpu, but targets has 24 rows"),
        ((torch.ones(ROWS, 2), torch.tensor(1.0)), r"inputs\[1\] is of shape \(\) on cpu"),
        ({}, "inputs is a dict, but must be a tensor .* or a dict or tuple of such tensors"),
        ("text", "inputs is a str, but must be a tensor"),
        (None, "inputs is a NoneType, but must be a tensor"),
    ],
)
def test_several_inputs_must_have_the_rows_of_the_targets(inputs, message):
    with pytest.raises(InputError, match=message):
        robust_step(network(), inputs, batch()[1], criterion=F.cross_entropy, drop_rate=0.3)


def test_the_second_pass_keeps_dropped_rows_out_of_batchnorm():
    inputs, targets = batch("regression")
    targets[:4] = 100.0
    inputs[:4] = 100.0
    model, plain = network(), network()
    robust_step(model, inputs, targets, criterion=F.mse_loss, drop_rate=0.2)
    plain(inputs)
    assert model[1].running_mean.abs().max() < 1 < plain[1].running_mean.abs().max()


def test_gradients_add_up_as_those_of_backward_do():
    model, once = network(norm=False), network(norm=False)
    robust_step(once, *batch(), criterion=F.cross_entropy, drop_rate=0.3)
    for _ in range(2):
        robust_step(model, *batch(), criterion=F.cross_entropy, drop_rate=0.3)
    torch.testing.assert_close(gradients(model), [2 * gradient for gradient in gradients(once)])


def test_an_optimizer_of_ones_own_learns_through_wrong_targets():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 6, generator=draw)
    truth = inputs @ torch.randn(6, 3, generator=draw)
    given = truth.clone()
    given[:80] = 40.0
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(150):
        optimizer.zero_grad()
        robust_step(model, inputs, given, criterion=F.mse_loss, drop_rate=0.2)
        optimizer.step()
    assert F.mse_loss(model(inputs), truth) < 1e-3


REFUSED = {
    "rate": ({"drop_rate": 1.5}, "drop_rate is 1.5"),
    "method": ({"method": "prl"}, "There is no method 'prl'"),
    "option": ({"passses": "index"}, "There is no option of prl-l 'passses'. Did you mean 'passes'"),
    "option value": ({"passes": "twice"}, "passes is 'twice'"),
    "task": ({"method": "huber"}, "huber is made for regression"),
    "two": ({"method": "co-prl-l"}, "co-prl-l trains 2 networks, but models has 1"),
    "trimmed": ({"criterion": RobustLoss(F.cross_entropy, 0.3)}, "a RobustLoss, which drops rows itself"),
    "level": ({"method": "spl", "level": "data"}, "a step sees a batch"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_choices_are_refused(arguments, message):
    model = network()
    with pytest.raises(InputError, match=message):
        robust_step(model, *batch(), **({"criterion": F.cross_entropy, "drop_rate": 0.3} | arguments))
    assert gradients(model) == [None] * 6


def test_bad_batches_are_refused():
    inputs, targets = batch()
    model = network()
    same = "the same network twice"
    for models, rows, labels, message in (
        (model, inputs[:3], targets, "inputs has 3 rows, but targets 24"),
        (model, inputs[:0], targets[:0], "inputs is empty"),
        (model, inputs.numpy(), targets, "inputs is a ndarray"),
        (model, inputs, torch.tensor(1), "targets is of shape"),
        (model, inputs, targets.to("meta"), "on cpu, meta"),
        ([model, model], inputs, targets, same),
        (network().requires_grad_(False), inputs, targets, "models has no trainable parameter"),
    ):
        method = "co-prl-l" if message is same else "prl-l"
        with pytest.raises(InputError, match=message):
            robust_step(models, rows, labels, criterion=F.cross_entropy, drop_rate=0.3, method=method)
    assert gradients(model) == [None] * 6


def test_a_step_needs_no_gradients_of_the_program_around():
    model, same = network(), network()
    same.load_state_dict(model.state_dict())
    robust_step(model, *batch(), criterion=F.cross_entropy, drop_rate=0.3)
    with torch.no_grad():
        robust_step(same, *batch(), criterion=F.cross_entropy, drop_rate=0.3)
        assert not torch.is_grad_enabled()
    assert all(map(torch.equal, gradients(model), gradients(same)))
    with torch.inference_mode(), pytest.raises(InputError, match=r"use torch\.no_grad in its place"):
        robust_step(same, *batch(), criterion=F.cross_entropy, drop_rate=0.3)


@pytest.mark.parametrize("method", ["prl-l", "prl-g", "sever", "ignormclip", "coordinate-median"])
def test_replicas_compute_no_gradients_of_rows(method):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, (inputs, targets) = nn.DataParallel(network().to(device)), (each.to(device) for each in batch())
    options = {"criterion": F.cross_entropy, "drop_rate": 0.3, "method": method}
    if method == "prl-l":  # takes none
        robust_step(model, inputs, targets, **options)
    else:
        with pytest.raises(InputError, match=f"{method} takes each row's gradient, .*Pass the network inside"):
            robust_step(model, inputs, targets, **options)
        assert gradients(model) == [None] * 6


class Wrapped(nn.Module):
    """A model that returns more than the tensor for the loss."""

    def __init__(self, wrap):
        super().__init__()
        self.model, self.wrap = network(norm=False), wrap

    def forward(self, inputs):
        return self.wrap(self.model(inputs))


@dataclass
class Answer:
    loss: torch.Tensor | None
    logits: torch.Tensor


WRAPPED = {
    "tuple": (
        lambda logits: (logits, None),
        r"returns a tuple \(\[0\] of shape \(\d+, 3\), \[1\] a NoneType\).*such as model\(inputs\)\[0\]\.$",
    ),
    "dict": (
        lambda logits: {"loss": logits.mean(), "logits": logits},
        r"returns a dict \(\['loss'\] of shape \(\), \['logits'\] of.*such as model\(inputs\)\['logits'\]\.$",
    ),
    "dataclass": (
        lambda logits: Answer(None, logits),
        r"returns a Answer \(\.loss a NoneType, \.logits of .*such as model\(inputs\)\.logits\.$",
    ),
    "many": (lambda logits: [logits] * 8, r"\[4\] of shape \(\d+, 3\), 3 more\)"),
    "nothing": (lambda logits: None, r"returns a NoneType, but one tensor .* that the loss takes\.$"),
}


@pytest.mark.parametrize(("wrap", "message"), WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("name", METHODS)
def test_a_model_that_returns_no_tensor_is_refused_before_any_gradient(name, rate, wrap, message):
    method = METHODS[name]
    task = method.tasks[0]
    criterion = F.cross_entropy if task == "classification" else F.mse_loss
    models = [network(norm=False) for _ in range(method.networks - 1)] + [Wrapped(wrap)]
    with pytest.raises(InputError, match=message):
        robust_step(models, *batch(task), criterion=criterion, drop_rate=rate, method=name)
    assert all(gradient is None for model in models for gradient in gradients(model))


def test_the_way_out_of_a_model_that_returns_more():
    class First(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, inputs):
            return self.model(inputs)[0]

    model, plain = First(Wrapped(lambda logits: (logits, None))), network(norm=False)
    for each in (model, plain):
        robust_step(each, *batch(), criterion=F.cross_entropy, drop_rate=0.3)
    torch.testing.assert_close(gradients(model), gradients(plain))


# Rows without a label.


@pytest.mark.parametrize("method", ["prl-l", "spl", "prl-g"])
def test_rows_without_a_label_are_left_out_before_rows_are_counted(method):
    draw = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(100, 6, generator=draw), torch.randint(3, (100,), generator=draw)
    network = nn.Linear(6, 3)
    some = targets.clone()
    some[::4] = 7
    has_label = some != 7
    ignoring = partial(F.cross_entropy, ignore_index=7)
    (found,) = robust_step(network, inputs, some, criterion=ignoring, drop_rate=0.3, method=method)
    gradient = network.weight.grad.clone()
    network.zero_grad()
    (alone,) = robust_step(
        network, inputs[has_label], targets[has_label], criterion=F.cross_entropy, drop_rate=0.3, method=method
    )
    assert torch.equal(found.kept, has_label.nonzero().squeeze(1)[alone.kept])
    assert len(found.kept) == 52  # floor(0.7 * 75)
    assert torch.equal(found.loss, alone.loss)
    assert torch.equal(gradient, network.weight.grad)
    assert found.scores is None or torch.equal(found.scores.isnan(), ~has_label)


def test_class_weights_may_be_of_half_precision_as_the_network_is():
    torch.manual_seed(0)
    network, inputs, targets = nn.Linear(4, 5).bfloat16(), torch.randn(16, 4).bfloat16(), torch.randint(5, (16,))
    criterion = nn.CrossEntropyLoss(torch.rand(5)).bfloat16()
    (selection,) = robust_step(network, inputs, targets, criterion=criterion, drop_rate=0.25)
    assert len(selection.kept) == 12
    assert network.weight.grad.isfinite().all()


def test_a_batch_without_a_label_leaves_no_gradient():
    model, (inputs, targets) = network(), batch()
    (found,) = robust_step(model, inputs, torch.full_like(targets, -100), criterion=F.cross_entropy, drop_rate=0.3)
    assert found.loss == 0
    assert len(found.kept) == 0
    assert all(gradient is None for gradient in gradients(model))


def test_bad_arguments_have_one_error():
    inputs, targets = torch.randn(8, 6), torch.randint(3, (8,))
    with pytest.raises(InputError, match="criterion is 5"):
        robust_step(nn.Linear(6, 3), inputs, targets, criterion=5, drop_rate=0.3)
    with pytest.raises(InputError, match="task is 'nope', but must be 'classification' or 'regression'"):
        robust_step(nn.Linear(6, 3), inputs, targets, criterion=F.cross_entropy, drop_rate=0.3, task="nope")
    (found,) = robust_step(nn.Linear(6, 3), inputs, targets, criterion=F.cross_entropy, drop_rate=np.float32(0.25))
    assert len(found.kept) == 6


def batch_norm_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(("rows", "rate"), [(2, 0.1), (2, 0.5), (3, 0.5)])
@pytest.mark.parametrize("bare", [0, 5], ids=["all rows have labels", "some have none"])
def test_a_last_batch_of_which_one_row_would_stay_trains_batch_norm_in_one_pass(rows, rate, bare):
    network = batch_norm_network()
    inputs, targets = torch.randn(rows + bare, 6), torch.randint(3, (rows + bare,))
    targets[rows:] = -100
    (found,) = robust_step(network, inputs, targets, criterion=F.cross_entropy, drop_rate=rate)
    assert len(found.kept) == 1
    twin = copy.deepcopy(network)
    twin.zero_grad()
    F.cross_entropy(twin(inputs[:rows])[found.kept], targets[found.kept]).backward()
    torch.testing.assert_close([p.grad for p in network.parameters()], [p.grad for p in twin.parameters()])


@pytest.mark.parametrize("method", ["prl-g", "sever"])
def test_a_method_without_such_a_form_trains_on_the_pixels_of_one_row(method):
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 3))
    inputs, targets = torch.randn(2, 2, 6, 6), torch.tensor([0, 1])
    (found,) = robust_step(network, inputs, targets, criterion=F.cross_entropy, drop_rate=0.5, method=method)
    assert len(found.kept) == 1
    with pytest.raises(ValueError, match="more than 1 value per channel"):  # torch's own words
        robust_step(
            batch_norm_network(), torch.randn(2, 6), targets, criterion=F.cross_entropy, drop_rate=0.5, method=method
        )
