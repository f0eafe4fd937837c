"""A judgement by a CUDA graph equals the one by single kernels."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradsieve import RobustLoss
from gradsieve.dropin.replay import MOST_KINDS, TIMES, Replays

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")

CRITERIA = {
    "cross-entropy": (nn.CrossEntropyLoss(), True),
    "squared error": (F.mse_loss, False),
    "huber": (nn.HuberLoss(delta=0.5), False),
    "binary": (nn.BCEWithLogitsLoss(), False),
}


def batches(has_classes, count, rows=96, device="cuda"):
    torch.manual_seed(0)
    for _ in range(count):
        targets = torch.randint(-1, 5, (rows,)) if has_classes else torch.rand(rows, 5)
        yield torch.randn(rows, 5, device=device), targets.to(device)


def judged(robust, outputs, targets):
    outputs = outputs.clone().requires_grad_()
    loss = robust(outputs, targets)
    loss.backward()
    return [loss.detach(), outputs.grad, robust.scores, robust.kept, robust.kept_share, robust.agreement]


def without_replays(criterion, **options):
    robust = RobustLoss(criterion, 0.3, **options)
    robust.replays.works = False
    return robust


@pytest.mark.parametrize("score", ["gradient", "loss"])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
@pytest.mark.parametrize(("criterion", "has_classes"), CRITERIA.values(), ids=CRITERIA)
def test_closed_forms_give_what_autograd_gives(criterion, has_classes, score, rate):
    """With a broken output too, which is dropped and has no effect."""
    if has_classes:
        criterion = nn.CrossEntropyLoss(ignore_index=-1)
    robust = RobustLoss(criterion, rate, score=score)
    for outputs, targets in batches(has_classes, 3, device="cpu"):
        outputs[5, 2] = torch.nan
        found, expected = (outputs.clone().requires_grad_() for _ in range(2))
        loss = robust.closed(found, targets)
        kept, scores = robust.kept, robust.scores
        other = robust.by_autograd(expected, targets, None)
        torch.testing.assert_close(loss, other)
        loss.backward()
        other.backward()
        assert found.grad.isfinite().all()
        torch.testing.assert_close(found.grad, expected.grad)
        torch.testing.assert_close(scores, robust.scores, equal_nan=True)
        assert torch.equal(kept, robust.kept)


@needs_gpu
@pytest.mark.parametrize("score", ["gradient", "loss"])
@pytest.mark.parametrize(("criterion", "has_classes"), CRITERIA.values(), ids=CRITERIA)
def test_every_batch_fares_as_step_by_step(criterion, has_classes, score):
    if has_classes:
        criterion = nn.CrossEntropyLoss(ignore_index=-1)
    robust, plain = RobustLoss(criterion, 0.3, score=score), without_replays(criterion, score=score)
    for outputs, targets in batches(has_classes, TIMES + 4):
        for found, expected in zip(judged(robust, outputs, targets), judged(plain, outputs, targets), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert len(robust.replays.graphs) == 1


@needs_gpu
def test_a_later_batch_changes_nothing_of_an_earlier_one():
    robust = RobustLoss(nn.CrossEntropyLoss(), 0.3)
    free = [(outputs.requires_grad_(), targets.clamp(min=0)) for outputs, targets in batches(True, TIMES + 2)]
    losses, scores = [], []
    for outputs, targets in free:
        losses.append(robust(outputs, targets))
        scores.append(robust.scores)
    torch.stack(losses).sum().backward()
    plain = without_replays(nn.CrossEntropyLoss())
    for (outputs, targets), seen in zip(free, scores, strict=True):
        _, gradient, expected, *_ = judged(plain, outputs.detach(), targets)
        assert torch.equal(outputs.grad, gradient)
        assert torch.equal(seen, expected)


@needs_gpu
def test_rates_and_shapes_have_graphs_of_their_own_and_odd_batches_none():
    robust = RobustLoss(F.mse_loss, 0.4, ramp=2)
    for _ in range(2):
        for outputs, targets in batches(False, TIMES + 1):
            robust(outputs.requires_grad_(), targets)
        robust(torch.randn(7, 5, device="cuda", requires_grad=True), torch.randn(7, 5, device="cuda"))
        robust.step()
    assert len(robust.replays.graphs) == 2
    assert len(robust.kept) == 4  # floor(0.6 * 7)


@needs_gpu
def test_half_precision_and_a_scaled_loss():
    robust, plain = RobustLoss(nn.CrossEntropyLoss(), 0.3), without_replays(nn.CrossEntropyLoss())
    for outputs, targets in batches(True, TIMES + 2):
        found, expected = (outputs.bfloat16().requires_grad_() for _ in range(2))
        for each, robust_loss in ((found, robust), (expected, plain)):
            (robust_loss(each, targets.clamp(min=0)) * 1024.0).backward()
        assert found.grad.dtype == torch.bfloat16
        assert torch.equal(found.grad, expected.grad)


def test_a_loss_can_be_copied_and_saved_with_what_it_has_captured():
    robust = RobustLoss(nn.CrossEntropyLoss(), 0.3)
    robust.replays.seen["kind"] = 5
    outputs, targets = torch.randn(8, 3), torch.randint(3, (8,))
    expected = robust(outputs, targets)
    for other in (copy.deepcopy(robust), pickle.loads(pickle.dumps(robust))):
        assert isinstance(other.replays, Replays)
        assert not other.replays.seen
        assert torch.equal(other(outputs, targets), expected)


def test_a_judgement_of_another_criterion_is_another_kind():
    robust = RobustLoss(nn.MSELoss(), 0.3)
    before = robust.settings()
    robust.criterion = nn.L1Loss()
    assert robust.settings() != before


def test_a_rate_that_rises_long_has_its_last_captured_and_leaves_no_counts_behind(monkeypatch):
    monkeypatch.setattr("gradsieve.dropin.replay.Replay", lambda judge, *batch: judge)
    robust = RobustLoss(nn.MSELoss(), 0.4, ramp=3 * MOST_KINDS)
    (batch,) = batches(False, 1, device="cpu")
    for _ in range(3 * MOST_KINDS + 1):
        for _ in range(TIMES):
            robust.replays.judge(robust.judge, *batch, robust.settings())
        robust.step()
    assert len(robust.replays.graphs) == MOST_KINDS
    assert any(kind[0] == robust.settings() for kind in robust.replays.graphs)
    assert len(robust.replays.seen) <= 1
