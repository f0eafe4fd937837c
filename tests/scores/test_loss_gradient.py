"""The score of PRL(L): closed forms against autograd, and where its ranking differs from the loss."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradsieve.errors import InputError
from gradsieve.methods import METHODS
from gradsieve.scores.loss_gradient import loss_gradient_norm, ranks_as_loss

ROWS, CLASSES, PIXELS = 7, 4, (2, 3)
many = settings(max_examples=200, deadline=None)
seeds = st.integers(0, 2**31)


def norms_by_autograd(function, outputs, targets, **options):
    """The oracle: one backward per row, through torch's own sum over the row's elements."""
    norms = []
    for row in range(len(outputs)):
        output = outputs[row : row + 1].clone().requires_grad_()
        target = targets[row : row + 1]
        counted = counted_elements(function, target, **options)
        loss = function(output, target, reduction="sum", **options) / counted
        has_labels = function is F.cross_entropy and not target.is_floating_point()
        # The root mean square over positions with labels.
        positions = counted if has_labels and target.dim() > 1 else 1
        norms.append(torch.autograd.grad(loss, output)[0].norm() * positions**0.5)
    return torch.stack(norms)


def counted_elements(function, target, ignore_index=-100, **_):
    if function is not F.cross_entropy:
        return target.numel()
    if target.is_floating_point():
        return target[0, 0].numel()
    return max(1, int((target != ignore_index).sum()))


def draw(seed, kind, space=()):
    """Outputs and targets in double precision. ``space`` is what follows rows and classes."""
    torch.manual_seed(seed)
    outputs = 3 * torch.randn(ROWS, CLASSES, *space, dtype=torch.float64)
    if kind == "classes":
        targets = torch.randint(CLASSES, (ROWS, *space))
        targets[0] = targets[1].view(-1)[0] = 1  # the class to ignore: at a whole row, and at a part of one
        return outputs, targets
    if kind == "probabilities":
        return outputs, torch.randn_like(outputs).softmax(1)
    if kind == "binary":
        return outputs, torch.randint(2, outputs.shape).double()
    return outputs, 3 * torch.randn_like(outputs)


WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.0], dtype=torch.float64)
CASES = [
    *[
        (F.cross_entropy, kind, {**weight, **smoothing, **ignored})
        for kind in ("classes", "probabilities")
        for weight in ({}, {"weight": WEIGHT})
        for smoothing in ({}, {"label_smoothing": 0.1})
        for ignored in ({}, {"ignore_index": 1})
        if not (ignored and kind == "probabilities")  # torch refuses
    ],
    (F.binary_cross_entropy_with_logits, "binary", {}),
    (F.binary_cross_entropy_with_logits, "numbers", {}),
    (F.binary_cross_entropy_with_logits, "binary", {"weight": WEIGHT}),
    (F.binary_cross_entropy_with_logits, "binary", {"pos_weight": WEIGHT}),
    (F.binary_cross_entropy_with_logits, "binary", {"weight": WEIGHT.flip(0), "pos_weight": WEIGHT}),
    (F.mse_loss, "numbers", {}),
    (F.l1_loss, "numbers", {}),
    (F.huber_loss, "numbers", {}),
    (F.huber_loss, "numbers", {"delta": 2.5}),
    (F.smooth_l1_loss, "numbers", {}),
    (F.smooth_l1_loss, "numbers", {"beta": 0.3}),
    (F.smooth_l1_loss, "numbers", {"beta": 0.0}),
]
MODULES = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.huber_loss: nn.HuberLoss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
}


def case_name(value):
    return value.__name__ if callable(value) else "-".join(value) if isinstance(value, dict) else None


@pytest.fixture
def no_autograd(monkeypatch):
    """A score that needs autograd fails with this."""

    def fail(*_):
        raise AssertionError("autograd was used")

    monkeypatch.setattr("gradsieve.scores.loss_gradient.by_autograd", fail)


@pytest.mark.usefixtures("no_autograd")
@pytest.mark.parametrize("space", [(), PIXELS], ids=["rows", "pixels"])
@pytest.mark.parametrize(("function", "kind", "options"), CASES, ids=case_name)
def test_closed_forms_equal_autograd(function, kind, options, space):
    elementwise = function is not F.cross_entropy
    if elementwise and space:  # there a weight is one of the last dimension
        options = {name: value[:3] if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    for seed in range(3):
        outputs, targets = draw(seed, kind, space)
        expected = norms_by_autograd(function, outputs, targets, **options)
        for criterion in (partial(function, **options), MODULES[function](**options)):
            norms = loss_gradient_norm(criterion, outputs, targets)
            torch.testing.assert_close(norms, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("no_autograd")
@pytest.mark.parametrize("function", [F.mse_loss, F.l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits])
def test_one_number_a_row_needs_no_second_dimension(function):
    outputs, targets = torch.randn(9, dtype=torch.float64), torch.rand(9, dtype=torch.float64)
    torch.testing.assert_close(
        loss_gradient_norm(function, outputs, targets), norms_by_autograd(function, outputs, targets), rtol=1e-6, atol=0
    )


def test_a_loss_of_your_own_is_differentiated():
    def focal(outputs, targets):
        log_probability = -F.cross_entropy(outputs, targets, reduction="none")
        return -((1 - log_probability.exp()) ** 2) * log_probability

    outputs, targets = draw(0, "classes")
    expected = []
    for row in range(ROWS):
        output = outputs[row : row + 1].clone().requires_grad_()
        expected.append(torch.autograd.grad(focal(output, targets[row : row + 1]).sum(), output)[0].norm())
    torch.testing.assert_close(loss_gradient_norm(focal, outputs, targets), torch.stack(expected))


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (F.mse_loss, {"weight": torch.rand(ROWS, CLASSES, dtype=torch.float64)}),
        (F.huber_loss, {"weight": torch.rand(ROWS, CLASSES, dtype=torch.float64)}),
    ],
    ids=case_name,
)
def test_an_option_that_the_closed_form_does_not_know_falls_to_autograd(function, options):
    outputs, targets = draw(0, "numbers")
    elements = function(outputs.requires_grad_(), targets, reduction="none", **options).mean(1)
    (expected,) = torch.autograd.grad(elements.sum(), outputs)
    norms = loss_gradient_norm(partial(function, **options), outputs, targets)
    torch.testing.assert_close(norms, expected.norm(dim=1))
    assert not torch.allclose(norms, loss_gradient_norm(function, outputs, targets))


def test_a_subclass_of_a_loss_module_is_differentiated_not_guessed():
    class Doubled(nn.MSELoss):
        def forward(self, input, target):
            return 2 * super().forward(input, target)

    outputs, targets = draw(0, "numbers")
    doubled, plain = (loss_gradient_norm(loss, outputs, targets) for loss in (Doubled(), nn.MSELoss()))
    torch.testing.assert_close(doubled, 2 * plain)


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.enable_grad])
def test_scores_are_free_of_graphs_and_need_none(grad_mode):
    outputs, targets = draw(0, "numbers")
    with grad_mode():
        for criterion in (F.mse_loss, lambda o, t: (o - t).square().mean(1)):
            assert not loss_gradient_norm(criterion, outputs.clone().requires_grad_(), targets).requires_grad


def test_a_loss_of_your_own_needs_a_graph_that_inference_mode_forbids():
    outputs, targets = draw(0, "numbers")
    with torch.inference_mode():
        loss_gradient_norm(F.mse_loss, outputs, targets)  # a closed form needs none
        made_there = outputs.clone()
        with pytest.raises(InputError, match="inference_mode does not allow"):
            loss_gradient_norm(lambda o, t: (o - t).square().mean(1), outputs, targets)
    with pytest.raises(InputError, match="inference_mode does not allow"):
        loss_gradient_norm(lambda o, t: (o - t).square().mean(1), made_there, targets)


def test_half_precision_is_left_before_the_score_is_taken():
    outputs, targets = torch.randn(ROWS, CLASSES).bfloat16(), torch.randint(CLASSES, (ROWS,))
    norms = loss_gradient_norm(F.cross_entropy, outputs, targets)
    assert norms.dtype == torch.float32
    torch.testing.assert_close(norms, loss_gradient_norm(F.cross_entropy, outputs.float(), targets))


def test_complex_outputs_have_a_closed_form_for_absolute_error_too():
    outputs, targets = torch.randn(2, 6, 3, dtype=torch.complex128)
    own = loss_gradient_norm(lambda o, t: (o - t).abs().mean(1), outputs, targets)
    torch.testing.assert_close(loss_gradient_norm(F.l1_loss, outputs, targets), own)


@pytest.mark.parametrize("criterion", [*MODULES, lambda o, t: (o - t).abs().mean(1)], ids=case_name)
def test_a_broken_row_has_no_score(criterion):
    """The derivative of abs at NaN is 0 in torch: as a score, it would put the row before all others."""
    outputs = torch.randn(4, 3)
    targets = torch.tensor([0, 1, 2, 0]) if criterion is F.cross_entropy else torch.rand(4, 3)
    outputs[1, 0] = math.nan
    assert loss_gradient_norm(criterion, outputs, targets).isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("function", MODULES, ids=case_name)
def test_a_rank_without_rows_has_no_scores(function):
    kinds = [(0, CLASSES), (0, CLASSES, *PIXELS)] if function is F.cross_entropy else [(0,), (0, 3)]
    for shape in kinds:
        assert loss_gradient_norm(function, torch.zeros(shape), torch.zeros(shape)).shape == (0,)
    if function is F.cross_entropy:
        classes = torch.zeros(0, dtype=torch.long)
        assert loss_gradient_norm(function, torch.zeros(0, CLASSES), classes).shape == (0,)


# ------------------------------------------------------------------ against the ranking of the loss


@many
@given(seed=seeds, rate=st.sampled_from([0.1, 0.3, 0.5, 0.9]), rows=st.integers(2, 50))
@pytest.mark.parametrize("loss", ["two classes", "one logit", "squared error", "squared error, one output"])
def test_prl_l_keeps_what_spl_keeps_with_two_classes_and_under_squared_error(loss, seed, rate, rows):
    draw = torch.Generator().manual_seed(seed)
    criterion, outputs, targets = {
        "two classes": (F.cross_entropy, (rows, 2), torch.randint(2, (rows,), generator=draw)),
        "one logit": (
            F.binary_cross_entropy_with_logits,
            (rows, 1),
            torch.randint(2, (rows, 1), generator=draw).double(),
        ),
        "squared error": (F.mse_loss, (rows, 5), torch.randn(rows, 5, generator=draw, dtype=torch.float64)),
        "squared error, one output": (F.mse_loss, (rows,), torch.randn(rows, generator=draw, dtype=torch.float64)),
    }[loss]
    outputs = 3 * torch.randn(outputs, generator=draw, dtype=torch.float64)
    by_gradient, by_loss = (METHODS[name](criterion) for name in ("prl-l", "spl"))
    gradient_scores, loss_scores = by_gradient.scores(outputs, targets), by_loss.scores(outputs, targets)
    assert torch.equal(gradient_scores.values.argsort(), loss_scores.values.argsort())
    assert torch.equal(by_gradient.select(gradient_scores, targets, rate), by_loss.select(loss_scores, targets, rate))


CALM = [0.08, 0.28, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08]
TORN = [0.10, 0.30, 0.34, 0.05, 0.05, 0.10, 0.03, 0.03, 0.00, 0.00]


@pytest.mark.parametrize(("name", "survivor"), [("prl-l", "calm"), ("spl", "torn")])
def test_gradient_and_loss_disagree_on_the_papers_example(name, survivor):
    """Section 3.6: TORN has the smaller loss, CALM the smaller gradient."""
    logits, targets = torch.tensor([CALM, TORN]).clamp_min(1e-6).log(), torch.tensor([1, 1])
    method = METHODS[name](F.cross_entropy)
    kept = method.select(method.scores(logits, targets), targets, drop_rate=0.5)
    assert ["calm", "torn"][kept.item()] == survivor


def test_with_ten_classes_the_rankings_often_differ():
    torch.manual_seed(0)
    outputs, targets = torch.randn(100, 50, 10), torch.randint(10, (100, 50))
    differing = 0
    for batch, labels in zip(outputs, targets, strict=True):
        kept = [
            method.select(method.scores(batch, labels), labels, 0.3)
            for method in (METHODS["prl-l"](F.cross_entropy), METHODS["spl"](F.cross_entropy))
        ]
        differing += not torch.equal(*kept)
    assert differing > 50


@pytest.mark.parametrize("criterion", [F.l1_loss, partial(F.huber_loss, delta=0.1), nn.SmoothL1Loss(beta=0.1)])
def test_where_the_gradient_saturates_the_loss_decides(criterion):
    outputs, targets = torch.zeros(6, 1), torch.tensor([[5.0], [-1.0], [4.0], [-3.0], [2.0], [6.0]])
    method = METHODS["prl-l"](criterion)
    scores = method.scores(outputs, targets)
    assert len(scores.values.unique()) == 1
    assert method.select(scores, targets, 0.5).tolist() == [1, 3, 4]


@pytest.mark.parametrize(
    ("criterion", "alike"),
    [
        (F.mse_loss, True),
        (nn.MSELoss(reduction="sum"), True),
        (partial(F.mse_loss, reduction="sum"), True),
        (partial(F.mse_loss, weight=torch.ones(1)), False),
        (type("Own", (nn.MSELoss,), {})(), False),
        (F.huber_loss, False),
        (F.binary_cross_entropy_with_logits, False),
        (F.cross_entropy, False),
    ],
)
def test_where_equal_scores_mean_equal_losses_there_are_no_ties_to_break(criterion, alike):
    assert ranks_as_loss(criterion) == alike
    targets = torch.tensor([0, 1, 1]) if criterion is F.cross_entropy else torch.rand(3, 2)
    if not (isinstance(criterion, partial) and "weight" in criterion.keywords):
        assert (METHODS["prl-l"](criterion).scores(torch.randn(3, 2), targets).ties is None) == alike


@given(seed=seeds, space=st.sampled_from([(), PIXELS]), weighs=st.booleans(), ignored=st.sampled_from([-100, 1]))
@settings(max_examples=60, deadline=None)
def test_log_probabilities_are_scored_at_the_logits_that_they_come_from(seed, space, weighs, ignored):
    """At log-probabilities the gradient is -1 at the given class of every row, which cannot rank rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(ROWS, CLASSES, *space, generator=generator)
    targets = torch.randint(CLASSES, (ROWS, *space), generator=generator)
    options = {"ignore_index": ignored, "weight": torch.rand(CLASSES, generator=generator) + 0.5 if weighs else None}
    expected = norms_by_autograd(F.cross_entropy, logits, targets, **options)
    for criterion in (nn.NLLLoss(**options, reduction="sum"), partial(F.nll_loss, **options)):
        found = loss_gradient_norm(criterion, logits.log_softmax(1), targets)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_log", [False, True])
def test_a_divergence_is_ranked_at_the_logits(is_log):
    """At log-probabilities its gradient is minus the target, whatever the network predicts."""
    torch.manual_seed(0)
    logits, wanted = torch.randn(20, 5), torch.randn(20, 5).softmax(1)
    free = logits.clone().requires_grad_()
    F.kl_div(free.log_softmax(1), wanted, reduction="none").mean(1).sum().backward()
    criteria = [nn.KLDivLoss(reduction="batchmean", log_target=is_log), partial(F.kl_div, log_target=is_log)]
    for criterion in criteria:
        found = loss_gradient_norm(criterion, logits.log_softmax(1), wanted.log() if is_log else wanted)
        torch.testing.assert_close(found, free.grad.norm(dim=1))


def test_rows_of_few_labels_are_not_taken_for_wrong_ones():
    """The same mistakes at each position, of which 2, 4, 8 or 16 have a label."""
    torch.manual_seed(0)
    logits = torch.randn(1, 5, 16).expand(4, 5, 16)[:, :, :1].expand(4, 5, 16)
    labels = torch.zeros(4, 16, dtype=torch.int64)
    for row, count in enumerate((2, 4, 8, 16)):
        labels[row, count:] = -100
    found = loss_gradient_norm(F.cross_entropy, logits, labels)
    torch.testing.assert_close(found, found[-1].expand(4))
    torch.testing.assert_close(found[0], loss_gradient_norm(F.cross_entropy, logits[:1, :, 0], labels[:1, 0])[0])
    torch.testing.assert_close(loss_gradient_norm(F.nll_loss, logits.log_softmax(1), labels), found)
