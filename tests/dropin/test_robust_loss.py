"""RobustLoss: the plain loss at rate 0, exact counts, the same rows as the methods keep, any criterion and shape."""

import copy
import gc
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gradsieve import METHODS, RobustLoss
from gradsieve.counts import keep_count
from gradsieve.errors import InputError
from gradsieve.schedule import wait

ROWS, CLASSES = 40, 5


class Focal(nn.Module):
    """A user's own loss, with a reduction, a label that it ignores, and a parameter."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction, self.ignore_index = reduction, -1
        self.power = nn.Parameter(torch.tensor(2.0))

    def forward(self, outputs, targets):
        counted = targets != self.ignore_index
        chosen = outputs.log_softmax(1).gather(1, targets.where(counted, 0).unsqueeze(1)).squeeze(1)
        losses = (-((1 - chosen.exp()) ** self.power) * chosen).where(counted, 0.0)
        return losses if self.reduction == "none" else losses.sum() / counted.sum()


def log_cosh(outputs, targets):
    """A user's own loss, one number per row."""
    return (outputs - targets).cosh().log().sum(1)


def classes(seed=0, *shape):
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(ROWS, CLASSES, *shape, generator=draw).requires_grad_()
    return outputs, torch.randint(CLASSES, (ROWS, *shape), generator=draw)


def numbers(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, 3, generator=draw).requires_grad_(), torch.randn(ROWS, 3, generator=draw)


WEIGHTS = torch.rand(CLASSES, generator=torch.Generator().manual_seed(0)) + 0.5
CRITERIA = {
    "cross_entropy": (F.cross_entropy, classes),
    "weighted": (nn.CrossEntropyLoss(weight=WEIGHTS), classes),
    "smoothed": (partial(F.cross_entropy, label_smoothing=0.1), classes),
    "summed": (nn.CrossEntropyLoss(reduction="sum"), classes),
    "nll": (nn.NLLLoss(), lambda: (classes()[0].log_softmax(1).detach().requires_grad_(), classes()[1])),
    "focal": (Focal(), classes),
    "mse": (nn.MSELoss(), numbers),
    "l1": (F.l1_loss, numbers),
    "huber": (nn.HuberLoss(delta=0.5), numbers),
    "bce": (F.binary_cross_entropy_with_logits, lambda: (numbers()[0], (numbers()[1] > 0).float())),
    "probabilities": (
        nn.BCELoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        lambda: (numbers()[0].sigmoid().detach().requires_grad_(), (numbers()[1] > 0).float()),
    ),
    "log_cosh": (log_cosh, numbers),
    "images": (F.cross_entropy, partial(classes, 0, 4, 3)),
}
EACH = pytest.mark.parametrize(("criterion", "batch"), CRITERIA.values(), ids=CRITERIA)
SCORES = pytest.mark.parametrize("score", ["gradient", "loss"])
UNITS = pytest.mark.parametrize("unit", ["row", "element"])


def plain(criterion, outputs, targets):
    loss = criterion(outputs, targets)
    return loss if loss.dim() == 0 else loss.mean()


def gradient(loss, outputs):
    return torch.autograd.grad(loss, outputs)[0]


@EACH
@SCORES
def test_rate_0_is_the_plain_criterion_bit_for_bit(criterion, batch, score):
    outputs, targets = batch()
    expected = plain(criterion, outputs, targets)
    found = RobustLoss(criterion, 0.0, score=score)(outputs, targets)
    assert torch.equal(found, expected)
    assert torch.equal(gradient(found, outputs), gradient(expected, outputs))


@EACH
def test_eval_mode_is_the_plain_criterion(criterion, batch):
    outputs, targets = batch()
    assert torch.equal(RobustLoss(criterion, 0.5).eval()(outputs, targets), plain(criterion, outputs, targets))


@EACH
@SCORES
@given(rate=st.integers(0, 99).map(lambda percent: percent / 100))
@settings(max_examples=15, deadline=None)
def test_the_count_is_exact_and_the_loss_is_the_criterion_over_the_kept_rows(criterion, batch, score, rate):
    outputs, targets = batch()
    robust = RobustLoss(criterion, rate, score=score)
    loss = robust(outputs, targets)
    assert len(robust.kept) == keep_count(rate, ROWS)
    assert robust.kept_share.item() == pytest.approx(keep_count(rate, ROWS) / ROWS)
    torch.testing.assert_close(loss, plain(criterion, outputs[robust.kept], targets[robust.kept]))
    dropped = torch.ones(ROWS, dtype=torch.bool).index_fill_(0, robust.kept, False)
    assert (gradient(loss, outputs)[dropped] == 0).all()


@EACH
@pytest.mark.parametrize(("score", "method"), [("gradient", "prl-l"), ("loss", "spl")])
def test_it_keeps_the_rows_of_the_methods_index_pass(criterion, batch, score, method):
    outputs, targets = batch()
    task = "regression" if targets.is_floating_point() else "classification"
    assert task in METHODS[method].tasks
    rule = METHODS[method](criterion, passes="index")
    (selection,) = rule.step([nn.Identity()], outputs, targets, 0.3)
    robust = RobustLoss(criterion, 0.3, score=score)
    loss = robust(outputs, targets)
    assert robust.kept.tolist() == selection.kept.tolist()
    torch.testing.assert_close(robust.scores, selection.scores)
    if criterion not in (CRITERIA["weighted"][0], CRITERIA["summed"][0]):  # the methods take the mean of the rows
        torch.testing.assert_close(loss.detach(), selection.loss)


@pytest.mark.parametrize("criterion", [F.cross_entropy, F.mse_loss])
@pytest.mark.parametrize("ignored", [0, 7])
def test_order_does_not_matter(criterion, ignored):
    outputs, targets = classes() if criterion is F.cross_entropy else numbers()
    if criterion is F.cross_entropy:
        targets[:ignored] = -100
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    robust = RobustLoss(criterion, 0.3)
    loss, kept = robust(outputs, targets), set(robust.kept.tolist())
    shuffled = robust(outputs[order], targets[order])
    assert set(order[robust.kept].tolist()) == kept
    torch.testing.assert_close(shuffled, loss)


@pytest.mark.parametrize("ignored", [[], [1, 4]])
def test_ties_go_to_the_smaller_index(ignored):
    outputs, targets = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)
    targets[ignored] = -100
    robust = RobustLoss(F.cross_entropy, 0.5)
    robust(outputs, targets)
    assert robust.kept.tolist() == ([0, 2, 3] if ignored else [0, 1, 2, 3])


def test_the_loss_breaks_ties_of_saturated_gradients():
    outputs, targets = torch.tensor([[9.0], [3.0], [5.0], [2.0]]), torch.zeros(4, 1)
    robust = RobustLoss(F.l1_loss, 0.5)
    robust(outputs, targets)
    assert robust.kept.tolist() == [1, 3]


# Labels that are ignored.


@SCORES
@given(seed=st.integers(0, 10_000), rate=st.integers(0, 99).map(lambda percent: percent / 100))
@settings(max_examples=60, deadline=None)
def test_ignored_rows_are_as_if_they_were_not_there(score, seed, rate):
    outputs, targets = classes(seed)
    is_ignored = torch.rand(ROWS, generator=torch.Generator().manual_seed(seed)) < 0.3
    targets[is_ignored] = -100
    robust = RobustLoss(F.cross_entropy, rate, score=score)
    loss, kept, share = robust(outputs, targets), robust.kept, robust.kept_share
    others = (~is_ignored).nonzero().squeeze(1)
    expected = robust(outputs[others], targets[others])
    assert kept.tolist() == others[robust.kept].tolist()
    torch.testing.assert_close(share, robust.kept_share)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(loss, outputs), gradient(expected, outputs))


@pytest.mark.parametrize(
    "criterion",
    [partial(F.cross_entropy, ignore_index=-1), Focal(), nn.CrossEntropyLoss(WEIGHTS, ignore_index=-1)],
    ids=["cross_entropy", "focal", "weighted"],
)
@pytest.mark.parametrize("balanced", [False, True])
def test_a_criterion_says_itself_what_it_ignores(criterion, balanced):
    outputs, targets = classes()
    targets[::4] = -1
    robust = RobustLoss(criterion, 0.5, balanced=balanced)
    loss = robust(outputs, targets)
    assert len(robust.kept) == 15
    assert (targets[robust.kept] >= 0).all()
    torch.testing.assert_close(loss, criterion(outputs[robust.kept], targets[robust.kept]))


@UNITS
def test_a_batch_without_any_label_has_loss_and_gradient_0(unit):
    outputs, targets = classes(0, 3)
    robust = RobustLoss(F.cross_entropy, 0.3, unit=unit)
    loss = robust(outputs, torch.full_like(targets, -100))
    assert loss == 0
    assert (gradient(loss, outputs) == 0).all()
    assert len(robust.kept) == 0
    assert robust.kept_share == 0


# Shapes and units.


def test_pixels_are_trimmed_as_if_each_were_a_row():
    outputs, targets = classes(0, 4, 3)
    targets[:, 1, 1] = -100
    robust = RobustLoss(F.cross_entropy, 0.3, unit="element")
    loss, kept = robust(outputs, targets), robust.kept
    assert len(kept) == keep_count(0.3, ROWS * 11)
    flat = outputs.permute(0, 2, 3, 1).reshape(-1, CLASSES), targets.flatten()
    torch.testing.assert_close(loss, RobustLoss(F.cross_entropy, 0.3)(*flat))
    assert kept.tolist() == kept.sort().values.tolist()
    assert 1 * 3 + 1 not in kept


def test_tokens_with_their_classes_last():
    outputs, targets = classes(0, 7)
    last = outputs.detach().movedim(1, -1).contiguous()  # (N, T, C)
    for unit in ("row", "element"):
        expected = RobustLoss(F.cross_entropy, 0.3, unit=unit)
        robust = RobustLoss(F.cross_entropy, 0.3, unit=unit, class_dim=-1)
        torch.testing.assert_close(robust(last, targets), expected(outputs, targets))
        assert robust.kept.tolist() == expected.kept.tolist()
        torch.testing.assert_close(robust.eval()(last, targets), F.cross_entropy(outputs, targets))
    with pytest.raises(InputError, match="class_dim=-1"):
        RobustLoss(F.cross_entropy, 0.3)(last, targets)


def test_probabilities_as_targets_and_single_outputs_as_elements():
    outputs, _ = classes(0, 4)
    soft = torch.randn(ROWS, CLASSES, 4).softmax(1)
    robust = RobustLoss(F.cross_entropy, 0.25, unit="element")
    robust(outputs, soft)
    assert len(robust.kept) == ROWS * 4 * 3 // 4
    assert robust.agreement is None
    points, wanted = numbers()
    robust = RobustLoss(F.mse_loss, 0.5, unit="element")
    loss = robust(points, wanted)
    torch.testing.assert_close(loss, ((points - wanted) ** 2).flatten().sort().values[: ROWS * 3 // 2].mean())


class Own(nn.CrossEntropyLoss):
    """A subclass, whose options the loss does not read."""


@pytest.mark.parametrize("score", ["gradient", "loss"])
@pytest.mark.parametrize("criterion", [F.cross_entropy, Own(), nn.NLLLoss()], ids=["function", "own", "nll"])
def test_rows_of_partly_ignored_pixels_are_ranked_by_what_they_have(criterion, score):
    outputs, targets = classes(0, 6)
    if isinstance(criterion, nn.NLLLoss):
        outputs = outputs.log_softmax(1).detach().requires_grad_()
    targets[0] = -100
    targets[1, :5] = -100
    robust = RobustLoss(criterion, 0.5, score=score)
    loss = robust(outputs, targets)
    assert 0 not in robust.kept
    assert len(robust.kept) == 19
    torch.testing.assert_close(loss, criterion(outputs[robust.kept], targets[robust.kept]))
    # the score of the row with one label is that of a row of only this place
    alone = RobustLoss(criterion, 0.5, score=score)
    alone(outputs[1:2, :, 5:], targets[1:2, 5:])
    torch.testing.assert_close(robust.scores[1], alone.scores[0])


# Broken rows.


def test_rows_with_nan_targets_or_outputs_go_first_and_leave_no_trace():
    outputs, targets = numbers()
    targets[3], targets[5, 1] = torch.nan, torch.inf
    robust = RobustLoss(F.mse_loss, 0.1)
    loss = robust(outputs, targets)
    assert not {3, 5} & set(robust.kept.tolist())
    assert gradient(loss, outputs).isfinite().all()


@pytest.mark.parametrize("ignored", [[], [7]])
def test_a_row_of_nan_logits_goes_first(ignored):
    outputs, targets = classes()
    targets[ignored] = -100
    broken = outputs.detach().clone()
    broken[3] = torch.nan
    broken.requires_grad_()
    robust = RobustLoss(F.cross_entropy, 0.1)
    loss = robust(broken, targets)
    assert 3 not in robust.kept
    assert loss.isfinite()
    assert gradient(loss, broken).isfinite().all()


@SCORES
def test_a_row_whose_loss_falls_without_end_goes_first(score):
    """An infinite count under the Poisson loss has a loss of minus infinity, but is not a good row."""
    outputs, targets = torch.tensor([[1.0], [0.5], [0.2], [0.1]]), torch.tensor([[1.0], [torch.inf], [1.0], [1.0]])
    robust = RobustLoss(nn.PoissonNLLLoss(), 0.25, score=score, rows=4)
    assert robust(outputs, targets, rows=torch.arange(4)).isfinite()
    assert robust.kept.tolist() == [0, 2, 3]
    assert robust.ledger.mean_score[1] == torch.inf


@SCORES
@pytest.mark.parametrize("broken", [torch.inf, -torch.inf])
def test_a_row_of_infinite_logits_goes_first_though_it_is_flat_there(score, broken):
    """Half-precision logits soon overflow to infinity, and those that agree with their targets have a gradient of 0."""
    outputs, targets = torch.tensor([2.0, broken, -1.0, 1.0]), torch.tensor([1.0, float(broken > 0), 1.0, 0.0])
    robust = RobustLoss(nn.BCEWithLogitsLoss(), 0.25, score=score)
    assert robust(outputs, targets).isfinite()
    assert robust.kept.tolist() == [0, 2, 3]


@SCORES
def test_a_row_of_infinite_loss_goes_first_though_it_is_flat_there(score):
    robust = RobustLoss(lambda outputs, targets: targets - outputs.clamp(min=0).log(), 0.25, score=score)
    assert robust(torch.tensor([2.0, -1.0, 0.5, 1.0]), torch.ones(4)).isfinite()
    assert robust.kept.tolist() == [0, 2, 3]


# The schedule and the state.


def test_the_rate_follows_the_time():
    robust = RobustLoss(F.cross_entropy, 0.4, ramp=4)
    rates = []
    for _ in range(5):
        rates.append(robust.rate)
        robust.step()
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    robust = RobustLoss(F.cross_entropy, partial(wait, drop_rate=0.3, ramp=2))
    assert (robust.rate, robust.T) == (0.0, 1)
    robust.at(3)
    assert robust.rate == 0.3


def test_a_function_can_be_an_estimate_that_changes():
    estimates = iter([0.0, 0.25, 0.5])
    robust = RobustLoss(F.cross_entropy, lambda T: next(estimates))
    for count in (40, 30, 20):
        robust(*classes())
        assert len(robust.kept) == count
        if count > 20:
            robust.step()


def test_a_saved_loss_goes_on_where_it_stood(tmp_path):
    def build():
        return RobustLoss(nn.CrossEntropyLoss(WEIGHTS.clone()), 0.4, ramp=4, rows=100)

    robust, ids = build(), torch.arange(60, 100)
    robust(*classes(), rows=ids)
    robust.step()
    torch.save(robust.state_dict(), tmp_path / "state.pt")
    again = build()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (again.T, again.rate) == (2, 0.2)
    for loss in (robust, again, copy.deepcopy(again)):
        loss(*classes(1), rows=ids)
    for name, column in robust.ledger.tensors().items():
        assert torch.equal(column, again.ledger.tensors()[name])
    assert robust.ledger.judged[60:].tolist() == [2] * 40
    assert robust.ledger.judged[:60].sum() == 0


# The ledger and the figures.


def test_the_ledger_counts_what_was_judged_and_dropped():
    outputs, targets = classes()
    outputs = outputs.detach().clone()
    targets[5], outputs[5] = -100, torch.nan  # neither its label nor its score counts
    ids = torch.randperm(90)[:ROWS]
    robust = RobustLoss(F.cross_entropy, 0.5, rows=90)
    robust(outputs, targets, rows=ids)
    assert robust.ledger.judged.sum() == 39
    assert robust.ledger.dropped.sum() == 39 - 19
    assert [column[ids[5]] for column in robust.ledger.tensors().values()] == [0, 0, 0, 0]
    assert (robust.ledger.dropped[ids[robust.kept]] == 0).all()
    torch.testing.assert_close(robust.ledger.mean_score[ids[0]], robust.scores[0])
    before = robust.ledger.judged.clone()
    robust.eval()(outputs, targets, rows=ids)
    assert torch.equal(robust.ledger.judged, before)


def test_agreement_is_the_share_of_kept_labels_that_are_predicted():
    outputs, targets = classes()
    for ignored in (0, 5):
        targets[:ignored] = -100
        robust = RobustLoss(F.cross_entropy, 0.3)
        robust(outputs, targets)
        right = outputs.argmax(1) == targets
        torch.testing.assert_close(robust.agreement, right[robust.kept].float().mean())


def test_agreement_leaves_out_what_is_ignored_though_it_be_a_class():
    """Two of a row's three labels count, and the network predicts both."""
    targets = torch.tensor([[1, 2, 0]]).expand(8, 3)
    outputs = F.one_hot(targets, 3).movedim(2, 1).float()
    robust = RobustLoss(nn.CrossEntropyLoss(ignore_index=0), 0.5)
    robust(outputs, targets)
    assert robust.agreement == 1


@pytest.mark.parametrize("length", [20, 4000], ids=["held", "too large to be held"])
def test_labels_without_places_among_the_outputs_agree_with_nothing(length):
    def ctc(outputs, targets):  # (N, T, C) with (N, L)
        lengths = (torch.full((len(outputs),), each.shape[1]) for each in (outputs, targets))
        return F.ctc_loss(outputs.log_softmax(2).transpose(0, 1), targets, *lengths, reduction="none")

    outputs, targets = torch.randn(8, length, 40), torch.randint(1, 40, (8, 5))
    robust = RobustLoss(ctc, 0.25)
    torch.testing.assert_close(robust(outputs, targets), ctc(outputs[robust.kept], targets[robust.kept]).mean())
    assert robust.agreement is None


def test_balanced_keeps_some_of_every_class():
    outputs, targets = classes()
    targets[:] = 0
    targets[:4] = 1  # a rare class whose rows all have a large loss
    outputs = outputs.detach().clone()
    outputs[:, 0] += 9.0
    robust = RobustLoss(F.cross_entropy, 0.5)
    robust(outputs, targets)
    assert (targets[robust.kept] == 1).sum() == 0
    robust = RobustLoss(F.cross_entropy, 0.5, balanced=True)
    robust(outputs, targets)
    assert (targets[robust.kept] == 1).sum() == 2


# Half precision, compilers, accumulation.


def test_autocast_ranks_in_single_precision():
    torch.manual_seed(0)
    network, inputs = nn.Linear(6, CLASSES), torch.randn(ROWS, 6)
    targets = classes()[1]
    robust = RobustLoss(F.cross_entropy, 0.3)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = network(inputs)
        loss = robust(outputs, targets)
    assert outputs.dtype == torch.bfloat16
    assert robust.scores.dtype == torch.float32
    loss.backward()
    assert network.weight.grad.isfinite().all()


@SCORES
@pytest.mark.parametrize("ignored", [[], [7]])
def test_class_weights_may_be_of_half_precision_as_the_logits_are(score, ignored):
    outputs, targets = classes()
    targets[ignored] = -100
    half = outputs.detach().bfloat16().requires_grad_()
    criterion, wide = nn.CrossEntropyLoss(WEIGHTS).bfloat16(), nn.CrossEntropyLoss(WEIGHTS.bfloat16().float())
    robust, expected = RobustLoss(criterion, 0.3, score=score), RobustLoss(wide, 0.3, score=score)
    torch.testing.assert_close(robust(half, targets).float(), expected(half.float(), targets), rtol=0.01, atol=0)
    assert torch.equal(robust.kept, expected.kept)
    assert gradient(robust(half, targets), half).isfinite().all()


@pytest.mark.parametrize("name", ["cross_entropy", "weighted", "mse", "l1", "images"])
def test_it_compiles_in_one_graph(name):
    criterion, batch = CRITERIA[name]
    torch._dynamo.reset()
    robust = RobustLoss(criterion, 0.3)
    compiled = torch.compile(robust, fullgraph=True, backend="aot_eager")
    outputs, targets = batch()
    for rows in (ROWS, 30, 20):
        found, kept = compiled(outputs[:rows], targets[:rows]), robust.kept
        expected = robust(outputs[:rows], targets[:rows])
        torch.testing.assert_close(found, expected)
        assert kept.tolist() == robust.kept.tolist()
        torch.testing.assert_close(gradient(found, outputs), gradient(expected, outputs))


@SCORES
def test_losses_that_come_and_go_leave_a_compiled_one_as_it_is(score):
    torch._dynamo.reset()
    outputs, targets = classes()
    others = [RobustLoss(lambda outputs, targets: (outputs - targets).abs(), 0.3)]
    compiled = torch.compile(RobustLoss(F.cross_entropy, 0.3, score=score), fullgraph=True, backend="eager")
    expected = compiled(outputs, targets)
    with torch._dynamo.config.patch(error_on_recompile=True):
        others.append(RobustLoss(lambda outputs, targets: (outputs - targets).square(), 0.3))
        assert torch.equal(compiled(outputs, targets), expected)
        others.clear()
        gc.collect()
        assert torch.equal(compiled(outputs, targets), expected)


def test_micro_batches_are_trimmed_one_by_one():
    outputs, targets = numbers()
    robust = RobustLoss(F.mse_loss, 0.25)
    losses = [robust(outputs[part], targets[part]) for part in (slice(0, 20), slice(20, 40))]
    gradient_of_both = gradient(sum(losses) / 2, outputs)
    assert [(gradient_of_both[part] != 0).any(1).sum() for part in (slice(0, 20), slice(20, 40))] == [15, 15]


# Bad input: one error, before any weight changes.


def reduces(outputs, targets):
    return F.cross_entropy(outputs, targets)


REFUSED_WHEN_BUILT = {
    "rate": ({"drop_rate": 1.0}, "drop_rate is 1.0"),
    "rate text": ({"drop_rate": "0.3"}, "drop_rate is '0.3'"),
    "rate unknown": ({"drop_rate": "auto"}, "find_drop_rate runs your loop"),
    "rate function": ({"drop_rate": lambda T: -1.0}, "drop_rate is -1.0"),
    "ramp and function": ({"drop_rate": lambda T: 0.1, "ramp": 3}, "ramp is for"),
    "ramp": ({"ramp": -1}, "ramp is -1"),
    "score": ({"score": "gradients"}, "score is 'gradients'"),
    "unit": ({"unit": "pixel"}, "unit is 'pixel', but must be 'row' or 'element'"),
    "rows": ({"rows": 0}, "rows is 0"),
    "criterion": ({"criterion": "mse"}, "criterion is 'mse'"),
    "criterion of three": ({"criterion": nn.GaussianNLLLoss()}, "asks for 3 arguments, input, target, var"),
    "pos_weight": (
        {"criterion": nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), "unit": "element"},
        "has a pos_weight for each column",
    ),
    "weight": (
        {"criterion": nn.BCELoss(weight=torch.ones(3)), "unit": "element"},
        "has a weight for each column",
    ),
}


def test_another_drop_rate_holds_from_now_on():
    robust = RobustLoss(F.mse_loss, 0.2, ramp=4)
    robust.at(2)
    robust.drop_rate = 0.4
    assert robust.rate == pytest.approx(0.2)
    robust.at(4)
    robust(torch.arange(10.0), torch.zeros(10))
    assert len(robust.kept) == 6
    with pytest.raises(InputError, match=r"drop_rate is 1\.5"):
        robust.drop_rate = 1.5
    assert robust.drop_rate == robust.rate == 0.4
    robust.ramp = 8
    assert robust.rate == pytest.approx(0.2)
    with pytest.raises(InputError, match="ramp is -1"):
        robust.ramp = -1
    assert robust.ramp == 8


def test_labels_may_be_bytes_as_for_torch_itself():
    outputs, labels = torch.randn(8, 3), torch.arange(8) % 3
    robust = RobustLoss(F.cross_entropy, 0.25)
    assert robust(outputs, labels.byte()) == robust(outputs, labels)
    assert robust.eval()(outputs, labels.byte()) == F.cross_entropy(outputs, labels.byte())


def test_a_loss_of_three_arguments_becomes_one_of_two():
    """What its error message advises."""
    torch.manual_seed(0)
    outputs, targets = torch.randn(8, 2), torch.randn(8)

    def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1].exp(), reduction="none")

    smallest = likelihood(outputs, targets).sort().values[:6]
    assert RobustLoss(likelihood, 0.25, score="loss")(outputs, targets).item() == pytest.approx(smallest.mean().item())


def test_weights_of_rows_come_with_the_targets():
    """What the error about a criterion with a weight for each row advises."""
    outputs, labels, weights = torch.randn(8, 2), torch.ones(8, 2), torch.rand(8, 1).expand(8, 2)

    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        labels, weights = targets.unbind(-1)
        return F.binary_cross_entropy_with_logits(outputs, labels, weights, reduction="none").mean(1)

    losses = F.binary_cross_entropy_with_logits(outputs, labels, weights, reduction="none").mean(1)
    loss = RobustLoss(weighted, 0.25, score="loss")(outputs, torch.stack([labels, weights], -1))
    assert loss.item() == pytest.approx(losses.sort().values[:6].mean().item())


@pytest.mark.parametrize(("arguments", "message"), REFUSED_WHEN_BUILT.values(), ids=REFUSED_WHEN_BUILT)
def test_bad_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(InputError, match=message):
        RobustLoss(**({"criterion": F.cross_entropy, "drop_rate": 0.3} | arguments))


REFUSED_WHEN_CALLED = {
    "reduces": (RobustLoss(reduces, 0.3), classes, "a loss per row is needed"),
    "rows differ": (RobustLoss(F.mse_loss, 0.3), lambda: (torch.ones(4, 2), torch.ones(3, 2)), "first dimension"),
    "broadcast": (RobustLoss(F.mse_loss, 0.3), lambda: (torch.ones(4, 1), torch.ones(4)), "element by element"),
    "label": (RobustLoss(F.cross_entropy, 0.3), lambda: (torch.ones(2, 3), torch.tensor([0, 7])), r"targets\[1\] is 7"),
    "empty": (RobustLoss(F.mse_loss, 0.3), lambda: (torch.ones(0, 1), torch.ones(0, 1)), "at least one row"),
    "balanced numbers": (RobustLoss(F.mse_loss, 0.3, balanced=True), numbers, "a class for each row"),
    "balanced images": (RobustLoss(F.cross_entropy, 0.3, balanced=True), partial(classes, 0, 3), "a class for each"),
    "tuple": (RobustLoss(F.mse_loss, 0.3), lambda: ((torch.ones(2), None), torch.ones(2)), r"such as outputs\[0\]\."),
    **{
        f"a weight for each row of {name}": (
            RobustLoss(criterion, 0.3),
            lambda: (torch.ones(4, 2), torch.ones(4, 2)),
            r"weight of shape \(4, \d\), one for each row",
        )
        for name, criterion in {
            "logits": nn.BCEWithLogitsLoss(weight=torch.ones(4, 1)),
            "probabilities": nn.BCELoss(weight=torch.ones(4, 1)),
            "squares": partial(F.mse_loss, weight=torch.ones(4, 2)),
        }.items()
    },
    "class_dim": (RobustLoss(F.cross_entropy, 0.3, class_dim=5), partial(classes, 0, 3), "class_dim is 5, but"),
    "devices": (RobustLoss(F.mse_loss, 0.3), lambda: (torch.ones(2), torch.ones(2, device="meta")), "on cpu, but"),
}


@pytest.mark.parametrize(("robust", "batch", "message"), REFUSED_WHEN_CALLED.values(), ids=REFUSED_WHEN_CALLED)
def test_bad_batches_are_refused(robust, batch, message):
    with pytest.raises(InputError, match=message):
        robust(*batch())


def test_weights_that_do_not_fit_the_classes_are_named_as_torch_names_them():
    with pytest.raises(RuntimeError, match="weight tensor should be defined either for all 5 classes"):
        RobustLoss(nn.CrossEntropyLoss(torch.ones(4)), 0.3)(*classes())


def test_row_numbers_are_checked_against_the_ledger():
    batch = numbers()
    with pytest.raises(InputError, match="There is no ledger"):
        RobustLoss(F.mse_loss, 0.3)(*batch, rows=torch.arange(ROWS))
    robust = RobustLoss(F.mse_loss, 0.3, rows=ROWS)
    for wrong, message in ((torch.arange(1, ROWS + 1), "from 1 to 40"), (torch.arange(3), "rows has 3 entries")):
        with pytest.raises(InputError, match=message):
            robust(*batch, rows=wrong)
    assert robust.books().judged.sum() == 0


def weighted(outputs, targets):
    return targets[:, 1] * F.cross_entropy(outputs, targets[:, 0].long(), reduction="none")


def both(outputs, targets):
    kind = F.cross_entropy(outputs[:, : CLASSES - 1], targets[:, 0].long(), reduction="none")
    return kind + F.mse_loss(outputs[:, CLASSES - 1], targets[:, 1], reduction="none")


@pytest.mark.parametrize("criterion", [weighted, both])
def test_what_else_belongs_to_a_row_goes_beside_its_target(criterion):
    """Weights of rows, or the targets of two heads: scores equal those by a backward pass for each row."""
    outputs, targets = classes()
    packed = torch.stack([(targets % (CLASSES - 1)).float(), torch.rand(ROWS)], 1)
    robust = RobustLoss(criterion, 0.3)
    loss = robust(outputs, packed)
    losses = criterion(outputs, packed)
    norms = torch.stack([torch.autograd.grad(each, outputs, retain_graph=True)[0].norm() for each in losses])
    kept = norms.argsort()[: keep_count(0.3, ROWS)].sort().values
    assert robust.kept.tolist() == kept.tolist()
    torch.testing.assert_close(loss, losses[kept].mean())


def test_weights_are_told_where_to_go():
    """The third argument, the row numbers, is easily taken for weights."""
    batch, weights = numbers(), torch.rand(ROWS)
    for robust in (RobustLoss(F.mse_loss, 0.3), RobustLoss(F.mse_loss, 0.3, rows=ROWS)):
        with pytest.raises(InputError, match=r"Weights .* beside the targets, for the criterion to multiply by"):
            robust(*batch, weights)


def test_a_ledger_that_no_call_has_numbers_for_is_not_shown():
    """A ledger of zeros would say that no row was ever dropped."""
    robust = RobustLoss(F.mse_loss, 0.3, rows=ROWS)
    assert robust.ledger.judged.sum() == 0  # nothing has happened yet
    robust(*numbers())
    with pytest.raises(InputError, match=r"The ledger is empty: no call has said which rows it got\. Pass"):
        _ = robust.ledger
    robust(*numbers(), rows=torch.arange(ROWS))
    assert robust.ledger.judged.tolist() == [1] * ROWS


LEDGERS = [
    (100, None, r"has a ledger of 100 rows, but this loss has no ledger\. Build it with rows=100\."),
    (None, 100, r"has no ledger, but this loss has a ledger of 100 rows\. Build it without rows=\."),
    (100, 60, r"has a ledger of 100 rows, but this loss has a ledger of 60 rows\. Build it with rows=100\."),
]


@pytest.mark.parametrize(("theirs", "ours", "message"), LEDGERS)
def test_a_ledger_goes_where_one_of_its_size_is(theirs, ours, message):
    saved, robust = (RobustLoss(F.mse_loss, 0.3, rows=rows) for rows in (theirs, ours))
    saved.at(5)
    with pytest.raises(InputError, match=message):
        robust.load_state_dict(saved.state_dict())
    if None in (theirs, ours):
        robust.load_state_dict(saved.state_dict(), strict=False)
        assert robust.T == 5


CHANGING = [{"drop_rate": 0.4, "ramp": 5}, {"drop_rate": lambda T: 0.1 * T}]


@pytest.mark.parametrize("schedule", CHANGING, ids=["ramp", "function"])
def test_a_schedule_that_nobody_moves_on_is_noticed(schedule, monkeypatch, recwarn):
    """By the rows seen, if the size of the data set is known; otherwise after many batches."""
    robust = RobustLoss(F.mse_loss, **schedule, rows=ROWS)
    for _ in range(2):
        robust(*numbers())
    assert not recwarn.list
    with pytest.warns(UserWarning, match="but every row was seen twice at T = 1, with a rate of 0") as caught:
        robust(*numbers())
    assert caught[0].filename == __file__
    monkeypatch.setattr("gradsieve.dropin.scheduled.LONG_WAIT", 3)
    robust = RobustLoss(F.mse_loss, **schedule)
    for _ in range(3):
        robust(*numbers())
    with pytest.warns(
        UserWarning, match=r"3 batches were at T = 1.* Call step\(\).* If an epoch is longer than that, all"
    ):
        robust(*numbers())
    recwarn.clear()
    robust(*numbers())
    assert not recwarn.list  # once is enough


@pytest.mark.parametrize("tell", [RobustLoss.step, lambda robust: robust.at(1)], ids=["step", "at"])
def test_a_schedule_that_is_moved_on_or_has_nothing_to_move_is_left_alone(tell, monkeypatch, recwarn):
    monkeypatch.setattr("gradsieve.dropin.scheduled.LONG_WAIT", 1)
    told = [RobustLoss(F.mse_loss, **schedule, rows=ROWS) for schedule in CHANGING]
    for robust in told:
        tell(robust)
    for robust in (*told, RobustLoss(F.mse_loss, 0.4), RobustLoss(F.mse_loss, 0.4, ramp=1)):
        for _ in range(5):
            robust(*numbers())
    assert not recwarn.list


@pytest.mark.parametrize("criterion", [nn.NLLLoss(), nn.NLLLoss(weight=WEIGHTS), F.nll_loss])
def test_log_probabilities_are_trimmed_as_the_logits_that_they_come_from(criterion):
    """Ranking by the loss would differ: with more than two classes the gradient keeps other rows."""
    outputs, targets = classes()
    of_logits = nn.CrossEntropyLoss(weight=getattr(criterion, "weight", None))
    found, expected = (RobustLoss(each, 0.3) for each in (criterion, of_logits))
    losses = found(outputs.log_softmax(1), targets), expected(outputs, targets)
    assert found.kept.tolist() == expected.kept.tolist()
    by_loss = RobustLoss(of_logits, 0.3, score="loss")
    by_loss(outputs, targets)
    assert found.kept.tolist() != by_loss.kept.tolist()
    torch.testing.assert_close(found.scores, expected.scores)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(gradient(loss, outputs) for loss in losses))


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("criterion", [F.kl_div, nn.KLDivLoss(reduction="batchmean"), nn.KLDivLoss(log_target=True)])
@pytest.mark.parametrize("unit", ["row", "element"])
def test_divergences_of_pixels_are_trimmed_as_distributions(criterion, unit):
    """An element is a pixel with all its classes, whichever dimension these are in; a row is all of its pixels."""
    outputs, _ = classes(0, 4)
    given = classes(1, 4)[0].detach().softmax(1)
    logs, targets = outputs.log_softmax(1), given.log() if getattr(criterion, "log_target", False) else given
    robust = RobustLoss(criterion, 0.25, unit=unit)
    loss = robust(logs, targets)
    scores = (outputs.softmax(1) - given).detach().movedim(1, -1).flatten(0, 1 if unit == "element" else 0)
    norms = scores.flatten(1).norm(dim=1)
    assert robust.kept.tolist() == norms.argsort()[: len(norms) * 3 // 4].sort().values.tolist()
    last = RobustLoss(criterion, 0.25, unit=unit, class_dim=-1)
    torch.testing.assert_close(last(logs.movedim(1, -1), targets.movedim(1, -1)), loss)
    assert torch.equal(last.kept, robust.kept)


@pytest.mark.parametrize("criterion", [nn.KLDivLoss(reduction="batchmean"), partial(F.kl_div, reduction="batchmean")])
def test_a_mean_over_rows_stays_one_where_their_pixels_are_trimmed(criterion):
    """Otherwise the gradient would be divided by the number of pixels in a row."""
    outputs, _ = classes(0, 4)
    logs, targets = outputs.log_softmax(1), classes(1, 4)[0].detach().softmax(1)
    torch.testing.assert_close(RobustLoss(criterion, 0.0, unit="element")(logs, targets), criterion(logs, targets))


def test_a_criterion_of_columns_is_told_that_it_gets_single_outputs():
    robust = RobustLoss(lambda outputs, targets: ((outputs - targets) ** 2).mean(1), 0.3, unit="element")
    with pytest.raises(InputError, match=r"single outputs \(120,\) and targets \(120,\) by unit='element'.*unit='row'"):
        robust(*numbers())


def test_nothing_can_be_told_before_the_first_batch():
    with pytest.raises(InputError, match="Nothing was judged yet"):
        _ = RobustLoss(F.mse_loss, 0.3).kept


# Changes between calls.


def test_a_criterion_may_change_between_calls():
    outputs, targets = classes()
    robust = RobustLoss(nn.CrossEntropyLoss(), 0.3)
    robust(outputs, targets)
    for change in ({"weight": WEIGHTS}, {"label_smoothing": 0.3}, {"ignore_index": 2}, {"reduction": "sum"}):
        for name, value in change.items():
            setattr(robust.criterion, name, value)
        anew = RobustLoss(copy.deepcopy(robust.criterion), 0.3)
        assert torch.equal(robust(outputs, targets), anew(outputs, targets))
        assert torch.equal(robust.kept, anew.kept)
    twin = copy.deepcopy(robust)
    twin.criterion.reduction = "mean"
    assert not torch.equal(twin(outputs, targets), robust(outputs, targets))
    robust.criterion = nn.MultiMarginLoss()
    assert torch.equal(robust(outputs, targets), RobustLoss(nn.MultiMarginLoss(), 0.3)(outputs, targets))
    with pytest.raises(AttributeError):
        robust.rate = 0.5


def test_the_options_of_a_partial_may_change_between_calls():
    outputs, targets = classes()
    robust = RobustLoss(partial(F.cross_entropy), 0.3)
    robust(outputs, targets)
    for change in ({"label_smoothing": 0.3}, {"weight": WEIGHTS}, {"ignore_index": 2}, {"reduction": "sum"}):
        robust.criterion.keywords.update(change)
        anew = RobustLoss(copy.deepcopy(robust.criterion), 0.3)
        assert torch.equal(robust(outputs, targets), anew(outputs, targets))
        assert torch.equal(robust.kept, anew.kept)


def test_memory_that_the_next_batch_takes_does_not_change_what_is_told():
    outputs, targets = classes()
    robust = RobustLoss(F.cross_entropy, 0.3)
    robust(outputs, targets)
    before = robust.agreement, robust.scores
    targets.copy_((targets + 1) % CLASSES)
    assert torch.equal(robust.agreement, before[0])
    assert torch.equal(robust.scores, before[1])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_a_ledger_keeps_its_precision_when_the_model_changes_its_own(kind):
    outputs, targets = classes()
    robust = RobustLoss(F.cross_entropy, 0.3, rows=ROWS)
    robust(outputs, targets, rows=torch.arange(ROWS))
    before = robust.ledger.score_sum.clone()
    robust.to(kind)
    assert torch.equal(robust.ledger.score_sum, before)
    robust(outputs.detach().to(kind), targets, rows=range(ROWS))
    assert (robust.ledger.judged == 2).all()


@pytest.mark.parametrize("score", ["gradient", "loss"])
def test_a_ledger_has_no_graph(score):
    outputs, targets = classes()
    robust = RobustLoss(Focal(), 0.3, score=score, rows=ROWS)
    robust(outputs, targets, rows=np.arange(ROWS, dtype=np.uint8))
    assert not robust.ledger.score_sum.requires_grad
    copy.deepcopy(robust)


def test_elements_without_a_label_are_in_no_mean():
    outputs, targets = classes()
    targets[::2] = -100
    robust = RobustLoss(nn.CrossEntropyLoss(reduction="none"), 0.0)
    trained = robust(outputs, targets)
    torch.testing.assert_close(trained, robust.eval()(outputs, targets))
    torch.testing.assert_close(trained, F.cross_entropy(outputs, targets))


def of_tokens(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def of_rows(outputs, targets):
    """The mean over a row's labels: NaN for a row without any."""
    return of_tokens(outputs, targets).sum(1) / (targets != -100).sum(1)


def of_columns(outputs, targets):
    """Several values for each row, but not one for each label."""
    return of_rows(outputs, targets).unsqueeze(1).expand(-1, CLASSES)


for each in (of_tokens, of_rows, of_columns):
    each.ignore_index = -100


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("is_bare", [False, True], ids=["all rows have labels", "a row has none"])
@pytest.mark.parametrize("criterion", [of_tokens, of_rows, of_columns, nn.CrossEntropyLoss(reduction="none")])
def test_a_mean_counts_what_the_criterion_gives_for_labels(criterion, is_bare, rate):
    outputs, targets = classes(0, 7)
    targets[::2, 4:], targets[1, 1:] = -100, -100
    targets[3] = -100 if is_bare else targets[3]
    robust = RobustLoss(criterion, rate)
    loss, kept = robust(outputs, targets), robust.kept
    given = criterion(outputs[kept], targets[kept])
    expected = given[targets[kept] != -100].mean() if given.shape == targets[kept].shape else given.mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(loss, outputs), gradient(expected, outputs))
    if not rate:
        torch.testing.assert_close(robust.eval()(outputs, targets), expected)


class KnownFlags(nn.Module):
    """Several yes-or-no targets for each row, some of them unknown."""

    ignore_index = -1

    def forward(self, outputs, targets):
        losses = F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none")
        return losses.where(targets >= 0, 0.0)


@pytest.mark.parametrize("unit", ["row", "element"])
def test_labels_may_be_of_the_shape_of_the_outputs(unit):
    outputs, _ = classes()
    targets = torch.randint(-1, 2, outputs.shape, generator=torch.Generator().manual_seed(0))
    targets[3] = -1
    robust = RobustLoss(KnownFlags(), 0.5, unit=unit)
    loss, kept = robust(outputs, targets), robust.kept
    given, labels = (values if unit == "row" else values.flatten() for values in (outputs, targets))
    torch.testing.assert_close(loss, KnownFlags()(given[kept], labels[kept])[labels[kept] >= 0].mean())
    judged = (targets >= 0).any(1) if unit == "row" else targets >= 0
    assert robust.kept_share == len(kept) / judged.sum()
    assert robust.agreement is None


def test_bad_arguments_have_one_error_each():
    outputs, targets = classes()
    for arguments, message in (
        ({"criterion": nn.CrossEntropyLoss}, "it is a class"),
        ({"criterion": RobustLoss(F.cross_entropy, 0.3)}, "a RobustLoss, which drops rows itself"),
        ({"balanced": "no"}, "balanced is 'no', but must be True or False"),
        ({"class_dim": "last"}, "class_dim is 'last'"),
    ):
        with pytest.raises(InputError, match=message):
            RobustLoss(**{"criterion": F.cross_entropy, "drop_rate": 0.3, **arguments})
    targets[3] = CLASSES
    with pytest.raises(InputError, match=r"targets\[3\] is 5"):
        RobustLoss(F.cross_entropy, 0.3).eval()(outputs, targets)
    robust = RobustLoss(F.cross_entropy, 0.3, rows=ROWS)
    with pytest.raises(InputError, match="rows is a str"):
        robust(*classes(), rows="all")


def test_targets_of_yes_and_no():
    torch.manual_seed(0)
    outputs, targets = torch.rand(10, 1), torch.rand(10, 1) > 0.5
    for criterion in (nn.MSELoss(), nn.HuberLoss()):
        found, expected = (RobustLoss(criterion, 0.3)(outputs, given) for given in (targets, targets.float()))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("name", "value"), [("score", "loss"), ("balanced", True), ("unit", "element")])
def test_an_option_that_is_set_later_holds_from_then_on(name, value):
    torch.manual_seed(0)
    outputs, targets = torch.randn(40, 5), torch.randint(5, (40,))
    if name == "unit":
        targets = torch.randn(40, 5)
    criterion = F.mse_loss if name == "unit" else F.cross_entropy
    later, at_once = RobustLoss(criterion, 0.3), RobustLoss(criterion, 0.3, **{name: value})
    setattr(later, name, value)
    torch.testing.assert_close(later(outputs, targets), at_once(outputs, targets))
    assert torch.equal(later.kept, at_once.kept)


class Halved:
    """A loss of one's own that is no module."""

    ignore_index = -100

    def __call__(self, outputs, targets):
        return F.cross_entropy(outputs, targets, ignore_index=self.ignore_index, reduction="none") / 2


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, Own, Halved])
@pytest.mark.parametrize("wrap", [lambda criterion: criterion, partial], ids=["plain", "partial"])
def test_a_label_that_a_criterion_ignores_only_later_counts_no_more(kind, wrap):
    torch.manual_seed(0)
    outputs, targets = torch.randn(40, 5), torch.randint(5, (40,))
    changed, made_so = kind(), kind()
    later = RobustLoss(wrap(changed), 0.3)
    later(outputs, targets)
    changed.ignore_index = made_so.ignore_index = 2
    at_once = RobustLoss(wrap(made_so), 0.3)
    torch.testing.assert_close(later(outputs, targets), at_once(outputs, targets))
    assert torch.equal(later.kept, at_once.kept)
    assert 2 not in targets[later.kept]
