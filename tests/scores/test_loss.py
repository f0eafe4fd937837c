"""One loss per row, from every form that a criterion can take and every shape of output."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradsieve.errors import InputError
from gradsieve.scores.loss import row_losses
from gradsieve.scores.loss_gradient import loss_gradient_norm


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class OwnModule(nn.Module):
    """A loss module as people write them: it averages unless told otherwise."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, outputs, targets):
        losses = (outputs - targets).abs().pow(1.5)
        return losses if self.reduction == "none" else losses.mean()


class OwnMSE(nn.MSELoss):
    """A subclass may compute something else: it is called, and its options are not read."""

    def forward(self, input, target):
        return 3 * super().forward(input, target)


def own_per_row(outputs, targets):
    return (outputs - targets).square().sum(1)


def own_with_reduction(outputs, targets, power=2.0, reduction="mean"):
    losses = (outputs - targets).abs() ** power
    return losses.mean() if reduction == "mean" else losses


def own_power_first(power, outputs, targets):
    return ((outputs - targets).abs() ** power).mean(1)


class Unhashable:
    """Defines equality, so Python gives it no hash."""

    def __eq__(self, other):
        return isinstance(other, Unhashable)

    def __call__(self, outputs, targets, reduction="mean"):
        losses = (outputs - targets).abs()
        return losses.mean() if reduction == "mean" else losses


FORMS = {
    "own object without a hash": (Unhashable(), lambda d: d.abs()),
    "function": (F.mse_loss, lambda d: d.square()),
    "partial": (partial(F.huber_loss, delta=0.5), lambda d: F.huber_loss(d, 0 * d, reduction="none", delta=0.5)),
    "partial of a partial": (partial(partial(F.mse_loss), reduction="sum"), lambda d: d.square()),
    "partial with a reduction": (partial(F.mse_loss, reduction="mean"), lambda d: d.square()),
    "partial of a module": (partial(nn.MSELoss()), lambda d: d.square()),
    "module": (nn.L1Loss(), lambda d: d.abs()),
    "module with a reduction": (
        nn.SmoothL1Loss(reduction="sum", beta=2.0),
        lambda d: F.smooth_l1_loss(d, 0 * d, reduction="none", beta=2.0),
    ),
    "own function per row": (own_per_row, lambda d: 4 * d.square()),
    "own function with a reduction": (own_with_reduction, lambda d: d.square()),
    "partial of an own function": (partial(own_with_reduction, power=1.0), lambda d: d.abs()),
    "partial that binds the first argument": (partial(own_power_first, 3.0), lambda d: d.abs() ** 3),
    "lambda": (lambda outputs, targets: (outputs - targets).abs(), lambda d: d.abs()),
    "own module": (OwnModule(), lambda d: d.abs() ** 1.5),
    "own module that says none": (OwnModule("none"), lambda d: d.abs() ** 1.5),
    "subclass of a module": (OwnMSE(), lambda d: 3 * d.square()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_criterion_gives_one_loss_per_row(form):
    criterion, of_difference = FORMS[form]
    outputs, targets = torch.randn(5, 4), torch.randn(5, 4)
    torch.testing.assert_close(row_losses(criterion, outputs, targets), of_difference(outputs - targets).mean(1))


def test_the_users_module_keeps_its_own_reduction():
    for module in (OwnModule("sum"), OwnMSE(reduction="sum"), nn.CrossEntropyLoss(reduction="sum")):
        targets = torch.tensor([0, 1]) if isinstance(module, nn.CrossEntropyLoss) else torch.randn(2, 3)
        row_losses(module, torch.randn(2, 3), targets)
        assert module.reduction == "sum"


def token_loss(outputs, targets):  # (N, T, C), (N, T) -> (N, T)
    return F.cross_entropy(outputs.mT, targets, reduction="none")


SHAPES = {
    "classes": (F.cross_entropy, (6, 5), lambda: torch.randint(5, (6,))),
    "probabilities": (F.cross_entropy, (6, 5), lambda: torch.rand(6, 5).softmax(1)),
    "pixels": (F.cross_entropy, (6, 5, 2, 3), lambda: torch.randint(5, (6, 2, 3))),
    "pixels with probabilities": (nn.CrossEntropyLoss(), (6, 5, 2, 3), lambda: torch.rand(6, 5, 2, 3).softmax(1)),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), (6, 5), lambda: torch.randint(5, (6,))),
    "tokens": (token_loss, (6, 7, 5), lambda: torch.randint(5, (6, 7))),
    "one number": (F.mse_loss, (6,), lambda: torch.randn(6)),
    "vectors": (nn.L1Loss(), (6, 4), lambda: torch.randn(6, 4)),
    "images": (F.huber_loss, (6, 3, 2, 2), lambda: torch.randn(6, 3, 2, 2)),
    "logit": (F.binary_cross_entropy_with_logits, (6,), lambda: torch.randint(2, (6,)).float()),
    "labels": (nn.BCEWithLogitsLoss(pos_weight=torch.rand(4)), (6, 4), lambda: torch.randint(2, (6, 4)).float()),
    "log-probabilities": (F.nll_loss, (6, 5), lambda: torch.randint(5, (6,))),
}


@pytest.mark.parametrize("name", SHAPES)
def test_for_every_shape_the_mean_over_the_rows_is_torchs_own(name):
    criterion, shape, make_targets = SHAPES[name]
    outputs, targets = torch.randn(shape), make_targets()
    losses = row_losses(criterion, outputs, targets)
    assert losses.shape == (6,)
    torch.testing.assert_close(losses.mean(), criterion(outputs, targets).mean())
    for i in range(6):  # and a row's loss is that of the row alone
        torch.testing.assert_close(losses[i], criterion(outputs[i : i + 1], targets[i : i + 1]).mean())


@pytest.mark.parametrize("ignored", [-100, 3])
def test_ignored_elements_leave_the_mean_of_their_row_and_ignored_rows_have_no_loss(ignored):
    criterion = partial(F.cross_entropy, ignore_index=ignored)
    outputs = torch.randn(3, 4, 5)
    targets = torch.randint(3, (3, 5))
    targets[0, :2] = ignored
    targets[1] = ignored
    losses = row_losses(criterion, outputs, targets)
    torch.testing.assert_close(losses[0], F.cross_entropy(outputs[:1, :, 2:], targets[:1, 2:]))
    assert losses[1] == 0
    torch.testing.assert_close(losses[2], F.cross_entropy(outputs[2:], targets[2:]))
    flat = row_losses(criterion, outputs[:, :, 0], targets[:, 0])
    assert flat[:2].tolist() == [0, 0]
    assert flat[2] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_half_precision_is_left_before_the_loss_is_taken(name, dtype):
    criterion, shape, make_targets = SHAPES[name]
    outputs, targets = torch.randn(shape).to(dtype), make_targets()
    targets = targets.to(dtype) if targets.is_floating_point() else targets
    losses = row_losses(criterion, outputs, targets)
    assert losses.dtype == torch.float32
    wide_targets = targets.float() if targets.is_floating_point() else targets
    torch.testing.assert_close(losses, row_losses(criterion, outputs.float(), wide_targets))


@pytest.mark.parametrize(
    "make",
    [
        lambda weight: nn.CrossEntropyLoss(weight),
        lambda weight: nn.NLLLoss(weight),
        lambda weight: nn.BCEWithLogitsLoss(weight, pos_weight=weight),
        lambda weight: partial(F.cross_entropy, weight=weight),
    ],
)
def test_weights_leave_half_precision_with_the_outputs(make):
    outputs, weight = torch.randn(9, 3).log_softmax(1).bfloat16(), torch.rand(3).bfloat16()
    is_binary = isinstance(make(weight), nn.BCEWithLogitsLoss)
    targets = torch.rand(9, 3).bfloat16() if is_binary else torch.randint(3, (9,))
    wide = targets.float() if is_binary else targets
    for judge in (row_losses, loss_gradient_norm):
        found, expected = judge(make(weight), outputs, targets), judge(make(weight.float()), outputs.float(), wide)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


class Focal(nn.Module):
    """A user's own loss, with a weight for each class and a parameter."""

    def __init__(self, weight):
        super().__init__()
        self.power = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("weight", weight)

    def forward(self, outputs, targets):
        losses = F.cross_entropy(outputs, targets, self.weight, reduction="none")
        return (1 - (-losses).exp()) ** self.power * losses


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_a_loss_of_your_own_holds_leaves_half_precision_too(dtype):
    outputs, targets = torch.randn(9, 3).to(dtype), torch.randint(3, (9,))
    criterion = Focal(torch.rand(3)).to(dtype)
    wide = Focal(criterion.weight.float())
    for judge in (row_losses, loss_gradient_norm):
        found, expected = judge(criterion, outputs, targets), judge(wide, outputs.float(), targets)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    row_losses(criterion, outputs, targets).sum().backward()
    assert criterion.power.grad.dtype == criterion.weight.dtype == dtype


def test_gradients_flow_through_the_losses():
    outputs = torch.randn(4, 3, requires_grad=True)
    row_losses(F.cross_entropy, outputs, torch.tensor([0, 1, 2, 0])).mean().backward()
    expected = outputs.detach().softmax(1) - F.one_hot(torch.tensor([0, 1, 2, 0]), 3)
    torch.testing.assert_close(outputs.grad, expected / 4)


def test_a_nan_stays_in_its_row():
    targets = torch.tensor([[1.0, 2.0], [math.nan, 0.0], [0.0, 0.0]])
    assert row_losses(F.mse_loss, torch.zeros(3, 2), targets).isnan().tolist() == [False, True, False]


def test_a_rank_without_rows_has_no_losses():
    assert row_losses(F.cross_entropy, torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)).shape == (0,)
    assert row_losses(F.mse_loss, torch.zeros(0, 3, 2), torch.zeros(0, 3, 2)).shape == (0,)


@pytest.mark.parametrize(
    "criterion", [lambda o, t: (o - t).square().mean(), lambda o, t: (o - t).sum(0), lambda o, t: (o - t).flatten()]
)
def test_a_loss_that_mixes_the_rows_is_refused(criterion):
    with pytest.raises(InputError, match=r"The loss gives shape .* for 5 rows, but a loss per row .* reduction='none'"):
        row_losses(criterion, torch.randn(5, 4), torch.randn(5, 4))


@pytest.mark.parametrize(
    "criterion", [F.mse_loss, nn.MSELoss(), partial(F.l1_loss), F.binary_cross_entropy_with_logits]
)
@pytest.mark.parametrize("shapes", [((6, 1), (6,)), ((6,), (6, 1)), ((6, 4), (6, 1)), ((6, 4), (6, 3))])
def test_shapes_that_torch_would_broadcast_are_refused(criterion, shapes):
    outputs, targets = map(torch.zeros, shapes)
    with pytest.raises(InputError, match=r"element by element\. Reshape one of them"):
        row_losses(criterion, outputs, targets)


@pytest.mark.parametrize("shapes", [((6, 3), (5,)), ((6, 3), ()), ((), (6,))])
def test_outputs_and_targets_must_have_as_many_rows(shapes):
    outputs, targets = torch.zeros(shapes[0]), torch.zeros(shapes[1], dtype=torch.long)
    with pytest.raises(InputError, match="the first dimension of both must be the rows"):
        row_losses(F.cross_entropy, outputs, targets)


class OwnSquare(nn.MSELoss):
    """A loss of the user's own, which is not looked into."""

    def forward(self, input, target):
        return (input - target).square()


@pytest.mark.parametrize("criterion", [lambda o, t: (o - t).abs(), OwnSquare()])
@pytest.mark.parametrize("shapes", [((6, 1), (6,)), ((6,), (6, 1))])
@pytest.mark.parametrize("of_rows", [row_losses, loss_gradient_norm])
def test_a_loss_of_ones_own_that_compares_every_row_with_every_other_is_refused(criterion, shapes, of_rows):
    """The mean over a row's elements would be its loss, and hardly depend on its own target."""
    outputs, targets = map(torch.randn, shapes)
    with pytest.raises(InputError, match=r"gives shape \(6, 6\)\. Reshape one of them, .* targets\.view_as\(outputs\)"):
        of_rows(criterion, outputs, targets)


def test_a_loss_may_widen_a_target_to_all_outputs_and_give_any_number_of_values():
    outputs, targets = torch.randn(6, 4), torch.randn(6, 1)
    torch.testing.assert_close(
        row_losses(lambda o, t: (o - t) ** 2, outputs, targets), ((outputs - targets) ** 2).mean(1)
    )
    assert row_losses(lambda o, t: (o - t).repeat(1, 9), outputs, targets).shape == (6,)


@pytest.mark.parametrize(
    ("criterion", "targets", "way"),
    [
        (F.cross_entropy, torch.zeros(6), r"Pass targets\.long\(\)"),
        (F.cross_entropy, torch.zeros(6, dtype=torch.int32), r"Pass targets\.long\(\)"),
        (F.cross_entropy, torch.zeros(6, 1, dtype=torch.long), r"Pass targets\.squeeze\(1\)"),
        (nn.BCEWithLogitsLoss(), torch.zeros(6, 3, dtype=torch.long), r"Pass targets\.float\(\)"),
        (nn.BCELoss(), torch.zeros(6, 3, dtype=torch.bool), r"Pass targets\.float\(\)"),
    ],
)
@pytest.mark.parametrize("of_rows", [row_losses, loss_gradient_norm])
def test_targets_of_the_wrong_kind_or_shape_are_told_what_to_pass(criterion, targets, way, of_rows):
    with pytest.raises(InputError, match=way):
        of_rows(criterion, torch.rand(6, 3), targets)


def test_complex_outputs_are_ranked_by_both_their_parts():
    outputs, targets = torch.randn(2, 6, 3, dtype=torch.cfloat)
    norms = loss_gradient_norm(lambda o, t: torch.view_as_real(o - t).square().sum((1, 2)), outputs, targets)
    torch.testing.assert_close(norms, 2 * torch.linalg.vector_norm(outputs - targets, dim=1))
