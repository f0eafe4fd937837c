"""The short way on a CPU gives what the usual way gives, or None."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradsieve import RobustLoss
from gradsieve.dropin.short import short_form, smallest
from gradsieve.errors import InputError
from gradsieve.scores.loss import row_losses
from gradsieve.scores.loss_gradient import loss_gradient_norm
from gradsieve.selection import keep_smallest


def name(criterion):
    return getattr(criterion, "__name__", None) or type(criterion).__name__


CRITERIA = [F.mse_loss, nn.MSELoss(), F.cross_entropy, nn.CrossEntropyLoss()]


def trimmed(criterion, score, outputs, targets, count):
    form = short_form(criterion, score)
    return form and form(outputs, targets, count)


def batch(criterion, rows=40, seed=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    outputs = 3 * torch.randn(rows, 5, generator=draw, dtype=dtype)
    if "ntropy" in repr(criterion):
        return outputs, torch.randint(5, (rows,), generator=draw)
    return outputs, torch.randn(rows, 5, generator=draw, dtype=dtype)


def reference(criterion, score, outputs, targets, rate):
    """Scores, selection, and the criterion's own mean and gradient."""
    losses = row_losses(criterion, outputs, targets)
    values = losses if score == "loss" else loss_gradient_norm(criterion, outputs, targets)
    kept = keep_smallest(values, rate, ties=losses)
    free = outputs.clone().requires_grad_()
    loss = criterion(free[kept], targets[kept])
    return loss.detach(), torch.autograd.grad(loss, free)[0], kept, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", ["gradient", "loss"])
@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), rate=st.sampled_from([0.05, 0.3, 0.5, 0.9]))
def test_loss_gradient_and_rows_are_those_of_the_usual_way(criterion, score, dtype, seed, rate):
    outputs, targets = batch(criterion, seed=seed, dtype=dtype)
    loss, gradient, kept, _ = reference(criterion, score, outputs, targets, rate)
    free = outputs.clone().requires_grad_()
    found = trimmed(criterion, score, free, targets, len(kept))
    if found is not None:
        assert torch.equal(torch.from_numpy(found.kept).nonzero().squeeze(1), kept)
        torch.testing.assert_close(found.loss.detach(), loss)
        torch.testing.assert_close(torch.autograd.grad(found.loss, free)[0], gradient)


@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
def test_ordinary_batches_go_the_short_way(criterion):
    found = [trimmed(criterion, "gradient", *batch(criterion, seed=seed), 25) for seed in range(50)]
    assert sum(each is not None for each in found) >= 48


@pytest.mark.parametrize("score", ["gradient", "loss"])
@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
def test_the_loss_tells_the_same_of_a_batch(criterion, score):
    outputs, targets = batch(criterion)
    loss, gradient, kept, values = reference(criterion, score, outputs, targets, 0.3)
    free = outputs.clone().requires_grad_()
    robust = RobustLoss(criterion, 0.3, score=score, rows=100)
    robust(free, targets, rows=torch.arange(40) + 50).backward()
    assert torch.equal(robust.kept, kept)
    assert torch.equal(robust.scores, values)
    assert robust.kept_share == 28 / 40
    torch.testing.assert_close(free.grad, gradient)
    torch.testing.assert_close(robust(outputs, targets), loss)
    assert robust.ledger.dropped.sum() == 12
    if "ntropy" in repr(criterion):
        torch.testing.assert_close(robust.agreement, (outputs.argmax(1) == targets)[kept].float().mean())


@pytest.mark.parametrize("shape", [(30,), (30, 1), (30, 2, 3)])
def test_squares_of_any_shape(shape):
    outputs, targets = torch.randn(shape), torch.randn(shape)
    loss, gradient, kept, _ = reference(F.mse_loss, "gradient", outputs, targets, 0.4)
    free = outputs.clone().requires_grad_()
    found = trimmed(F.mse_loss, "gradient", free, targets, len(kept))
    torch.testing.assert_close(found.loss.detach(), loss)
    torch.testing.assert_close(torch.autograd.grad(found.loss, free)[0], gradient)


@pytest.mark.parametrize("criterion", [F.mse_loss, F.cross_entropy], ids=name)
def test_rows_that_do_not_lie_side_by_side(criterion):
    outputs, targets = batch(criterion)
    layouts = [outputs.t().contiguous().t()]
    if criterion is F.mse_loss:
        outputs, targets = torch.randn(40, 3, 4, 4), torch.randn(40, 3, 4, 4).to(memory_format=torch.channels_last)
        layouts = [outputs.to(memory_format=torch.channels_last)]
    for values in layouts:
        _, gradient, kept, _ = reference(criterion, "gradient", outputs, targets, 0.3)
        free = values.clone().requires_grad_()
        found = trimmed(criterion, "gradient", free, targets, len(kept))
        torch.testing.assert_close(torch.autograd.grad(found.loss, free)[0], gradient)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
def test_a_broken_row_does_no_harm(criterion, bad):
    outputs, targets = batch(criterion)
    outputs[3] = bad
    free = outputs.clone().requires_grad_()
    RobustLoss(criterion, 0.3)(free, targets).backward()
    assert free.grad.isfinite().all()
    assert not free.grad[3].any()


def test_ties_and_near_ties_are_left_to_the_usual_way():
    outputs, targets = torch.tensor([[1.0], [2.0], [2.0], [3.0]]), torch.zeros(4, 1)
    assert trimmed(F.mse_loss, "gradient", outputs, targets, 2) is None
    assert trimmed(F.mse_loss, "gradient", outputs, targets, 3) is not None
    assert smallest(np.array([1.0, 1.0 + 1e-7, 2.0]), 1) is None
    assert RobustLoss(F.mse_loss, 0.5)(outputs, targets) == 2.5  # rows 0 and 1: the first of equals


def test_labels_that_are_ignored_or_wrong_are_left_to_the_usual_way():
    outputs, targets = batch(F.cross_entropy)
    for label in (-100, -1, 5, 10**15):
        targets[7] = label
        assert trimmed(F.cross_entropy, "gradient", outputs, targets, 25) is None


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(ignore_index=2),
        nn.CrossEntropyLoss(torch.ones(5)),
        F.l1_loss,
        nn.HuberLoss(),
    ],
    ids=name,
)
def test_other_criteria_are_not_for_it(criterion):
    assert trimmed(criterion, "gradient", *batch(criterion), 25) is None


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (torch.tensor(1.0), torch.tensor(2.0), "outputs is a single number"),
        (torch.ones(4, 2), [1, 2], "targets is a list"),
        (torch.ones(4, 2), torch.zeros(4, dtype=torch.int32), "int64 classes"),
    ],
)
def test_what_is_no_batch_is_named(outputs, targets, message):
    criterion = F.cross_entropy if "int64" in message else F.mse_loss
    with pytest.raises(InputError, match=message):
        RobustLoss(criterion, 0.3)(outputs, targets)


@pytest.mark.parametrize("low", [-20.0, -100.0])
@pytest.mark.parametrize("score", ["gradient", "loss"])
def test_logits_far_below_nothing_are_left_to_the_usual_way(score, low):
    """Their exponentials are denormal, or 0."""
    outputs, targets = batch(F.cross_entropy)
    assert trimmed(F.cross_entropy, score, outputs + low, targets, 25) is None
    assert trimmed(F.cross_entropy, score, outputs, targets, 25) is not None


def test_half_precision_and_a_target_with_a_gradient_are_not_for_it():
    outputs, targets = batch(F.mse_loss)
    assert trimmed(F.mse_loss, "gradient", outputs.bfloat16(), targets.bfloat16(), 25) is None
    targets.requires_grad_()
    RobustLoss(F.mse_loss, 0.3)(outputs, targets).backward()
    assert targets.grad.any()


def test_a_gradient_of_the_gradient_is_that_of_the_kept_rows():
    outputs, targets = batch(F.cross_entropy, dtype=torch.float64)
    _, _, kept, _ = reference(F.cross_entropy, "gradient", outputs, targets, 0.3)
    found = []
    for loss, rows in ((RobustLoss(F.cross_entropy, 0.3), slice(None)), (F.cross_entropy, kept)):
        free = outputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(free[rows], targets[rows]), free, create_graph=True)
        found += torch.autograd.grad(gradient.square().sum(), free)
    torch.testing.assert_close(*found)


def test_a_gradient_of_the_gradient_of_squares_is_refused_and_not_wrong():
    outputs, targets = batch(F.mse_loss)
    loss = RobustLoss(F.mse_loss, 0.3)(outputs.requires_grad_(), targets)
    with pytest.raises(InputError, match="can be taken only once"):
        torch.autograd.grad(loss, outputs, create_graph=True)


def test_outputs_too_large_for_the_short_way_are_left_to_the_usual_one():
    outputs, targets = batch(F.cross_entropy)
    outputs[4] *= 1e4
    assert trimmed(F.cross_entropy, "gradient", outputs, targets, 25) is None
    _, gradient, kept, _ = reference(F.cross_entropy, "gradient", outputs, targets, 0.3)
    free = outputs.clone().requires_grad_()
    robust = RobustLoss(F.cross_entropy, 0.3)
    robust(free, targets).backward()
    assert torch.equal(robust.kept, kept)
    torch.testing.assert_close(free.grad, gradient)


def test_a_loss_that_has_judged_can_be_copied_and_saved():
    robust = RobustLoss(F.mse_loss, 0.3)
    robust(*batch(F.mse_loss))
    for other in (copy.deepcopy(robust), pickle.loads(pickle.dumps(robust))):
        assert torch.equal(other.scores, robust.scores)


@pytest.mark.parametrize("score", ["gradient", "loss"])
@pytest.mark.parametrize("shift", [-30, -51, -100, -1000, 60])
def test_logits_far_from_0_keep_the_same_rows(score, shift):
    for seed in range(10):
        outputs, targets = batch(F.cross_entropy, rows=64, seed=seed)
        *_, kept, _ = reference(F.cross_entropy, score, outputs.double(), targets, 0.3)
        robust = RobustLoss(F.cross_entropy, 0.3, score=score)
        robust(outputs + shift, targets)
        assert set(robust.kept.tolist()) == set(kept.tolist())


@pytest.mark.parametrize("criterion", CRITERIA, ids=name)
def test_a_batch_without_rows_is_one_clear_error(criterion):
    outputs, targets = batch(criterion, rows=3)
    with pytest.raises(InputError, match="row"):
        RobustLoss(criterion, 0.3)(outputs[:0], targets[:0])


@pytest.mark.parametrize("shift", [0.0, 30.0, 42.5, 60.0, 88.0])
def test_logits_that_are_large_throughout_keep_the_same_rows(shift):
    """A constant added to a row's logits does not change softmax, though exp may overflow single precision."""
    classes = torch.arange(8) % 5
    outputs = (5 + 0.1 * torch.arange(8))[:, None] * F.one_hot(classes, 5)
    outputs[0] = 2.0 * F.one_hot(classes[0], 5) + shift  # the least confident row, which is dropped
    robust = RobustLoss(F.cross_entropy, 0.125)
    robust(outputs, classes)
    assert robust.kept.tolist() == [1, 2, 3, 4, 5, 6, 7]
