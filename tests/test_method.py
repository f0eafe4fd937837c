"""A step of every kind: what it trains on, what it leaves in ``.grad``, and what it leaves alone."""

import copy
import math
from typing import get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from gradsieve import ranks
from gradsieve.counts import keep_count
from gradsieve.errors import InputError
from gradsieve.method import Look, Scores, make_method, take
from gradsieve.methods import METHODS
from gradsieve.methods.coordinate_median import middle

FEATURES, CLASSES = 6, 4
seeds = st.integers(0, 2**31)
DROPPING = [name for name in METHODS if METHODS[name].drops_rows and name != "min-sgd"]  # that one drops at any rate
PASSES = [(name, passes) for name in DROPPING for passes in get_args(get_type_hints(METHODS[name])["passes"])]
BOTH_PASSES = [name for name in DROPPING if (name, "index") in PASSES]
BY_SHARES = ("prl-g", "co-prl-g")  # in one pass these need rows that do not mix


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def plain(outputs=CLASSES):
    """A network that does not mix rows, without randomness."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, outputs))


def mixing(outputs=CLASSES):
    """A network with BatchNorm, which mixes rows, and dropout."""
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Dropout(0.3), nn.Linear(8, outputs)
    )


def batch(rows=20, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, FEATURES, generator=draw), torch.randint(CLASSES, (rows,), generator=draw)


def regression(rows=20, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, FEATURES, generator=draw), torch.randn(rows, CLASSES, generator=draw)


def gradients(network):
    return [parameter.grad for parameter in network.parameters()]


def flat(network):
    return torch.cat([gradient.flatten() for gradient in gradients(network)])


def step(method, networks, inputs, targets, rate, seed=3):
    """A step from a fixed random state, and the gradients that it leaves."""
    torch.manual_seed(seed)
    selections = method.step(networks, inputs, targets, rate)
    return selections, [flat(network) for network in networks]


def networks_for(name, make):
    return [make() for _ in range(METHODS[name].networks)]


# ---------------------------------------------------------------------------------- nothing dropped


@settings(max_examples=10, deadline=None)
@given(seed=seeds, rows=st.integers(2, 40), rate=st.sampled_from([0, 0.0]))
@pytest.mark.parametrize("scoring", ["eval", "train"])
@pytest.mark.parametrize(("name", "passes"), PASSES)
def test_at_rate_0_a_step_is_plain_training_bit_for_bit(name, passes, scoring, seed, rows, rate):
    torch.manual_seed(seed)
    networks = networks_for(name, mixing)
    twins = copy.deepcopy(networks)
    inputs, targets = batch(rows, seed)
    method = METHODS[name](F.cross_entropy, passes=passes, scoring=scoring)
    selections, found = step(method, networks, inputs, targets, rate, seed)
    random_numbers = torch.get_rng_state()
    standard, expected = step(METHODS["standard"](F.cross_entropy), twins, inputs, targets, 0.0, seed)
    assert all(map(torch.equal, found, expected))
    assert torch.equal(torch.get_rng_state(), random_numbers)
    for network, twin in zip(networks, twins, strict=True):
        assert all(map(torch.equal, network.buffers(), twin.buffers()))
    for selection, plain_one in zip(selections, standard, strict=True):
        assert torch.equal(selection.kept, torch.arange(rows))
        assert torch.equal(selection.loss, plain_one.loss)


@pytest.mark.parametrize(("name", "messages"), [("standard", 1), ("huber", 1), ("prl-l", 2)])
def test_a_method_that_never_drops_rows_counts_them_once(name, messages, monkeypatch):
    """Over ranks, a count is a message: of the rows of a batch, and of those that are kept."""
    counted = []
    monkeypatch.setattr(ranks, "total", lambda count, device: counted.append(count) or count)
    METHODS[name](F.mse_loss).step([plain()], torch.randn(8, FEATURES), torch.randn(8, CLASSES), 0.5)
    assert len(counted) == messages


def test_standard_is_what_a_plain_loop_does():
    network = mixing()
    twin = copy.deepcopy(network)
    inputs, targets = batch()
    (selection,), (found,) = step(METHODS["standard"](F.cross_entropy), [network], inputs, targets, 0.5)
    torch.manual_seed(3)
    loss = F.cross_entropy(twin(inputs), targets)
    loss.backward()
    torch.testing.assert_close(found, flat(twin))
    torch.testing.assert_close(selection.loss, loss.detach())
    assert selection.scores is None


# ------------------------------------------------------------------------------- index and reforward


@pytest.mark.parametrize("rate", [0.2, 0.45, 0.9])
@pytest.mark.parametrize("name", BOTH_PASSES)
def test_both_passes_agree_where_rows_do_not_meet(name, rate):
    networks = networks_for(name, plain)
    inputs, targets = batch()
    results = []
    for passes in ("index", "reforward"):
        method = METHODS[name](F.cross_entropy, passes=passes)
        results.append(step(method, copy.deepcopy(networks), inputs, targets, rate))
    (one, one_gradients), (other, other_gradients) = results
    assert all(torch.equal(a.kept, b.kept) for a, b in zip(one, other, strict=True))
    for a, b in zip(one_gradients, other_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "passes"), PASSES)
@pytest.mark.parametrize("make", [plain, mixing])
def test_the_gradient_is_that_of_the_mean_loss_over_the_kept_rows(name, passes, make):
    networks = networks_for(name, make)
    twins = copy.deepcopy(networks)
    inputs, targets = batch()
    if make is mixing and name in BY_SHARES and passes == "index":
        with pytest.raises(InputError, match="passes is 'index', but the network's BatchNorm mixes rows"):
            METHODS[name](F.cross_entropy, passes=passes).step(networks, inputs, targets, 0.3)
        return
    # In eval form scoring draws no random numbers, so that the dropout of the pass that trains is the same.
    method = METHODS[name](F.cross_entropy, passes=passes, scoring="eval")
    selections, found = step(method, networks, inputs, targets, 0.3)
    torch.manual_seed(3)
    if passes == "index":
        losses = [
            F.cross_entropy(outputs[selection.kept], targets[selection.kept])
            for outputs, selection in zip([twin(inputs) for twin in twins], selections, strict=True)
        ]
    else:
        losses = [
            F.cross_entropy(twin(inputs[selection.kept]), targets[selection.kept])
            for twin, selection in zip(twins, selections, strict=True)
        ]
    for twin, loss, gradient, selection in zip(twins, losses, found, selections, strict=True):
        loss.backward()
        torch.testing.assert_close(gradient, flat(twin))
        torch.testing.assert_close(selection.loss, loss.detach())
        assert len(selection.kept) == 14


@pytest.mark.parametrize("scoring", ["eval", "train"])
@pytest.mark.parametrize("name", DROPPING)
def test_reforward_keeps_dropped_rows_out_of_batch_norm(name, scoring):
    networks = networks_for(name, mixing)
    twins = copy.deepcopy(networks)
    inputs, targets = batch()
    method = METHODS[name](F.cross_entropy, passes="reforward", scoring=scoring)
    selections = method.step(networks, inputs, targets, 0.4)
    for network, twin, selection in zip(networks, twins, selections, strict=True):
        twin(inputs[selection.kept])
        assert all(map(torch.equal, network.buffers(), twin.buffers()))
        assert network[1].num_batches_tracked == 1


@pytest.mark.parametrize("name", [name for name in BOTH_PASSES if name not in BY_SHARES])
def test_index_lets_batch_norm_see_every_row(name):
    networks = networks_for(name, mixing)
    twins = copy.deepcopy(networks)
    inputs, targets = batch()
    METHODS[name](F.cross_entropy, passes="index").step(networks, inputs, targets, 0.4)
    for network, twin in zip(networks, twins, strict=True):
        twin(inputs)
        assert all(map(torch.equal, network.buffers(), twin.buffers()))


@pytest.mark.parametrize("scoring", ["eval", "train"])
@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].drops_rows])
def test_looking_leaves_the_network_as_it_was(name, scoring):
    network = mixing()
    before = copy.deepcopy(network.state_dict())
    random_numbers = torch.get_rng_state()
    look = METHODS[name](F.cross_entropy, scoring=scoring).look(network, *batch())
    assert look.scores is not None
    assert look.scores.values.shape == (20,)
    assert not look.scores.values.requires_grad
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())
    assert all(gradient is None for gradient in gradients(network))
    assert all(module.training for module in network.modules())
    if scoring == "eval":
        assert torch.equal(torch.get_rng_state(), random_numbers)


def test_scoring_uses_the_form_that_was_asked_for():
    network = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES))
    inputs, targets = batch()
    inputs = 5 * inputs + 2
    scores = {
        form: METHODS["prl-l"](F.cross_entropy, scoring=form).look(network, inputs, targets).scores.values
        for form in ("eval", "train")
    }
    score = METHODS["prl-l"](F.cross_entropy).scores
    torch.testing.assert_close(scores["train"], score(copy.deepcopy(network)(inputs), targets).values)
    torch.testing.assert_close(scores["eval"], score(copy.deepcopy(network).eval()(inputs), targets).values)
    assert not torch.allclose(scores["train"], scores["eval"])


# ---------------------------------------------------------------------------------------- selection


@settings(max_examples=25, deadline=None)
@given(seed=seeds, percent=st.integers(0, 99), rows=st.integers(2, 30), broken=st.integers(0, 2))
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("name", DROPPING)
def test_how_many_rows_stay_depends_on_the_rate_alone(name, balanced, seed, percent, rows, broken):
    inputs, targets = batch(rows, seed)
    inputs[:broken] = math.nan
    inputs[-1] = inputs[0]
    method = METHODS[name](F.cross_entropy, balanced=balanced)
    for selection in method.step(networks_for(name, plain), inputs, targets, percent / 100):
        assert selection.kept.shape == (keep_count(percent / 100, rows),)
        assert selection.scores is None or selection.scores.shape == (rows,)


@pytest.mark.parametrize("name", [name for name in DROPPING if "regression" in METHODS[name].tasks])
@pytest.mark.parametrize("broken", ["inputs", "targets"])
@pytest.mark.parametrize("criterion", [F.mse_loss, F.l1_loss, F.huber_loss, nn.SmoothL1Loss(beta=0.0)])
def test_a_row_of_nan_is_dropped_and_does_not_reach_the_gradient(name, criterion, broken):
    inputs, targets = regression()
    (inputs if broken == "inputs" else targets)[7] = math.nan
    networks = networks_for(name, plain)
    for selection in METHODS[name](criterion, passes="reforward").step(networks, inputs, targets, 0.1):
        assert 7 not in selection.kept
        assert selection.loss.isfinite()
    assert all(flat(network).isfinite().all() for network in networks)


@pytest.mark.parametrize(("name", "alone"), [("co-teaching", "spl"), ("co-prl-l", "prl-l"), ("co-prl-g", "prl-g")])
def test_each_network_trains_on_the_rows_that_the_other_kept(name, alone):
    networks = networks_for(name, plain)
    inputs, targets = batch()
    own = [METHODS[alone](F.cross_entropy).step([copy.deepcopy(n)], inputs, targets, 0.5)[0] for n in networks]
    together = METHODS[name](F.cross_entropy).step(networks, inputs, targets, 0.5)
    assert not torch.equal(own[0].kept, own[1].kept)
    assert [s.kept.tolist() for s in together] == [own[1].kept.tolist(), own[0].kept.tolist()]
    for selection, mine in zip(together, own, strict=True):  # only rows are exchanged: each has its own scores
        torch.testing.assert_close(selection.scores, mine.scores)


def test_balanced_trimming_takes_the_targets_as_classes():
    targets = torch.tensor([0] * 90 + [1] * 10)
    outputs = torch.tensor([[4.0, 0.0, 0.0, 0.0]]).expand(100, -1)  # the second class is hard
    for balanced, share in ((False, 0), (True, 8)):
        method = METHODS["prl-l"](F.cross_entropy, balanced=balanced)
        kept = method.select(method.scores(outputs, targets), targets, 0.2)
        assert int(targets[kept].sum()) == share


def test_spl_at_the_level_of_the_data_trims_once_an_epoch_and_not_in_the_batch():
    network, (inputs, targets) = plain(), batch(50)
    method = METHODS["spl"](F.cross_entropy, level="data")
    with torch.no_grad():
        rows = method.epoch_rows(lambda net: net(inputs), [network], targets, 0.3)
        losses = F.cross_entropy(network(inputs), targets, reduction="none")
    assert rows.tolist() == sorted(losses.argsort()[:35].tolist())
    assert METHODS["spl"](F.cross_entropy).epoch_rows(lambda net: net(inputs), [network], targets, 0.3) is None
    (selection,) = method.step([network], inputs, targets, 0.3)
    assert len(selection.kept) == 50


def test_taking_all_rows_is_no_copy():
    values = torch.arange(5)
    assert take(values, torch.arange(5)) is values
    assert take(values, torch.tensor([1, 3])).tolist() == [1, 3]


# ------------------------------------------------------------------------------------- make_method


def test_a_method_is_made_with_its_options():
    method = make_method("prl-l", METHODS, F.cross_entropy, "classification", {"passes": "index", "balanced": True})
    assert isinstance(method, METHODS["prl-l"])
    assert (method.passes, method.balanced, method.scoring) == ("index", True, "eval")
    assert make_method("normclip", METHODS, F.mse_loss, "regression", {"norm": 0.1}).norm == 0.1


@pytest.mark.parametrize(
    ("name", "task", "options", "message"),
    [
        (
            "bootstrap",
            "regression",
            {},
            r"bootstrap is made for classification, but this is a regression task\. .*prl-g",
        ),
        ("huber", "classification", {}, r"huber is made for regression, .* Methods for classification: standard"),
        ("prl-m", "classification", {}, r"There is no method 'prl-m'\. Did you mean 'prl-[lg]'"),
        (
            "prl-l",
            "regression",
            {"pases": "index"},
            r"no option of prl-l 'pases'\. Did you mean 'passes'\? There are: bal",
        ),
        ("prl-l", "regression", {"criterion": F.l1_loss}, r"no option of prl-l 'criterion'"),
        ("prl-l", "regression", {"networks": 3}, r"no option of prl-l 'networks'"),
        ("prl-l", "regression", {"passes": "twice"}, r"passes is 'twice', but PRLL takes 'index' or 'reforward'"),
        ("prl-g", "regression", {"passes": "twice"}, r"passes is 'twice', but PRLG takes 'auto' or 'index' or 'refor"),
        ("decouple", "classification", {"passes": "reforward"}, r"passes is 'reforward', but Decouple takes 'index'"),
        ("spl", "regression", {"scoring": "test"}, r"scoring is 'test', but SPL takes 'eval' or 'train'"),
        ("co-teaching", "classification", {"level": "data"}, r"level is 'data', but CoTeaching takes 'batch'"),
        ("bootstrap", "classification", {"form": "firm"}, r"form is 'firm', but Bootstrap takes 'hard' or 'soft'"),
        ("prl-l", "regression", {"balanced": True}, r"balanced=True .* this task has no classes"),
        ("prl-l", "classification", {"balanced": "yes"}, r"balanced is 'yes', but PRLL takes True or False"),
        ("normclip", "regression", {"norm": 0}, r"norm is 0, but NormClip takes a number above 0"),
        ("ignormclip", "regression", {"norm": math.nan}, r"norm is nan, but IgNormClip takes a number above 0"),
        ("huber", "regression", {"delta": "1"}, r"delta is '1', but Huber takes a number above 0"),
        ("bootstrap", "classification", {"trust": 1.1}, r"trust is 1\.1, but Bootstrap takes a share from 0 to 1"),
        ("min-sgd", "regression", {"group": 2.5}, r"group is 2\.5, but MinSGD takes a whole number from 0 up"),
        ("min-sgd", "regression", {"group": True}, r"group is True, but MinSGD takes a whole number from 0 up"),
        ("sever", "regression", {"iterations": -1}, r"iterations is -1, but Sever takes a whole number from 1 up"),
    ],
)
def test_what_cannot_work_is_refused_in_words(name, task, options, message):
    with pytest.raises(InputError, match=message):
        make_method(name, METHODS, F.mse_loss, task, options)


# ------------------------------------------------------------------------------------ each method


def opinions(network, inputs):
    with torch.no_grad():
        return network(inputs).argmax(1)


def test_decouple_trains_on_every_row_at_first_and_then_where_the_two_disagree():
    networks = [plain(), plain()]
    inputs, targets = batch(60)
    method = METHODS["decouple"](F.cross_entropy)
    disagreed = (opinions(networks[0], inputs) != opinions(networks[1], inputs)).nonzero().squeeze(1)
    assert 0 < len(disagreed) < 60
    for rate, rows in ((0.0, torch.arange(60)), (0.3, disagreed)):
        twins = copy.deepcopy(networks)
        selections, found = step(method, twins, inputs, targets, rate)
        for network, selection, gradient in zip(networks, selections, found, strict=True):
            assert torch.equal(selection.kept, rows)
            network.zero_grad()
            F.cross_entropy(network(inputs)[rows], targets[rows]).backward()
            torch.testing.assert_close(gradient, flat(network))


def test_decouple_keeps_rows_of_which_any_labelled_place_is_predicted_differently():
    class Fixed(torch.nn.Module):
        """Predicts given classes (N, places)."""

        def __init__(self, classes):
            super().__init__()
            self.logits = torch.nn.Parameter(F.one_hot(torch.tensor(classes), CLASSES).float().movedim(-1, 1))

        def forward(self, inputs):
            return self.logits[inputs]

    targets = torch.tensor([[0, 1, -100], [2, 2, 2], [1, 0, -100]])
    networks = [Fixed([[0, 1, 3], [2, 2, 0], [1, 1, 0]]), Fixed([[0, 1, 2], [2, 2, 1], [0, 0, 0]])]
    selections = METHODS["decouple"](F.cross_entropy).step(networks, torch.arange(3), targets, 0.3)
    assert [selection.kept.tolist() for selection in selections] == [[1, 2], [1, 2]]
    assert [bool(networks[0].logits.grad[row].any()) for row in range(3)] == [False, True, True]


def brier(outputs, targets):
    return (outputs.sigmoid() - targets).square().mean(1)


@pytest.mark.parametrize(("name", "options"), [("decouple", {}), ("bootstrap", {}), ("bootstrap", {"form": "soft"})])
@pytest.mark.parametrize(("criterion", "outputs"), [(brier, 1), (F.binary_cross_entropy_with_logits, 3)])
def test_a_network_that_cannot_predict_classes_is_refused(name, options, criterion, outputs):
    """With one output every network predicts class 0, and two of them never disagree."""
    method = METHODS[name](criterion, **options)
    networks = [plain(outputs) for _ in range(method.networks)]
    with pytest.raises(InputError, match=r"which of several classes .* use cross-entropy"):
        method.step(networks, torch.randn(6, FEATURES), torch.ones(6, outputs), 0.3)
    assert not any(gradient is not None for network in networks for gradient in gradients(network))


def test_decouple_skips_a_step_without_disagreement():
    network = plain()
    twins = [network, copy.deepcopy(network)]
    selections = METHODS["decouple"](F.cross_entropy).step(twins, *batch(), 0.3)
    assert [len(selection.kept) for selection in selections] == [0, 0]
    assert all(gradient is None for twin in twins for gradient in gradients(twin))
    assert [float(selection.loss) for selection in selections] == [0.0, 0.0]


def kept_by_min_sgd(losses, group):
    method = METHODS["min-sgd"](F.mse_loss, group=group)
    return method.select(Scores(torch.tensor(losses)), torch.zeros(len(losses)), 0.0).tolist()


@pytest.mark.parametrize(
    ("losses", "group", "kept"),
    [
        ([3.0, 1.0, 2.0], 0, [1]),
        ([1.0, 1.0, 1.0], 0, [0]),
        ([math.nan, 2.0, math.inf], 0, [1]),
        ([3.0, 1.0, 2.0, 5.0, 4.0, 6.0], 2, [1, 2, 4]),
        ([3.0, 1.0, 2.0, 5.0, 4.0], 3, [1, 4]),  # the last group is short
        ([3.0, 1.0, 2.0, math.nan], 3, [1, 3]),  # the last group has only a broken row
        ([math.nan, math.inf, math.nan, math.nan], 2, [1, 2]),
        ([2.0, 1.0], 5, [1]),
        ([2.0, 1.0], 1, [0, 1]),
    ],
)
def test_min_sgd_keeps_the_smallest_loss_of_the_batch_or_of_each_group(losses, group, kept):
    assert kept_by_min_sgd(losses, group) == kept


@pytest.mark.parametrize(
    ("name", "options"), [("spl", {}), ("co-teaching", {}), ("min-sgd", {}), ("min-sgd", {"group": 4})]
)
def test_a_loss_that_falls_without_end_is_no_small_one(name, options):
    method = METHODS[name](F.poisson_nll_loss, **options)
    outputs, targets = torch.tensor([[1.0], [0.5], [0.2], [0.1]]), torch.tensor([[1.0], [torch.inf], [1.0], [1.0]])
    assert 1 not in method.select(method.scores(outputs, targets), targets, 0.25)


@settings(max_examples=100, deadline=None)
@given(losses=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.5]), min_size=1, max_size=30), group=st.integers(1, 8))
def test_min_sgd_in_groups_equals_a_loop(losses, group):
    starts = range(0, len(losses), group)
    naive = [min(range(start, min(start + group, len(losses))), key=lambda row: losses[row]) for start in starts]
    assert kept_by_min_sgd(losses, group) == naive


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_min_sgd_trains_on_that_row_whatever_the_rate(rate):
    network, (inputs, targets) = plain(), batch()
    twin = copy.deepcopy(network)
    best = F.cross_entropy(network(inputs), targets, reduction="none").argmin()
    (selection,), (found,) = step(METHODS["min-sgd"](F.cross_entropy), [network], inputs, targets, rate)
    assert selection.kept.tolist() == [int(best)]
    F.cross_entropy(twin(inputs[best : best + 1]), targets[best : best + 1]).backward()
    torch.testing.assert_close(found, flat(twin))


@pytest.mark.parametrize("trust", [0.8, 0.3, 1.0])
@pytest.mark.parametrize("form", ["hard", "soft"])
def test_bootstrap_equals_its_formula(form, trust):
    outputs, targets = torch.randn(5, CLASSES, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    found = METHODS["bootstrap"](F.cross_entropy, form=form, trust=trust).losses(outputs, targets)
    for row in range(5):
        probability = [float(p) for p in outputs[row].softmax(0)]
        predicted = max(range(CLASSES), key=probability.__getitem__)
        expected = 0.0
        for k in range(CLASSES):
            opinion = float(k == predicted) if form == "hard" else probability[k]
            expected -= (trust * float(k == targets[row]) + (1 - trust) * opinion) * math.log(probability[k])
        assert float(found[row]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", ["hard", "soft"])
def test_bootstrap_has_no_opinion_on_places_without_a_label(form):
    """Padding must not be learnt: the loss of a row is that of its labelled places, each as a row of its own."""
    outputs = torch.randn(4, CLASSES, 5, requires_grad=True)  # logits of five places a row
    targets = torch.randint(CLASSES, (4, 5))
    targets[:, 3:] = -100
    targets[3] = -100
    method = METHODS["bootstrap"](F.cross_entropy, form=form)
    found = method.losses(outputs, targets)
    for row in range(3):
        alone = method.losses(outputs[row, :, :3].T, targets[row, :3]).mean()
        torch.testing.assert_close(found[row], alone)
    assert found[3] == 0
    (gradient,) = torch.autograd.grad(found.sum(), outputs)
    assert gradient[:3, :, :3].abs().sum(1).min() > 0
    assert gradient[:, :, 3:].abs().max() == 0


def test_soft_bootstrap_lowers_the_entropy_of_its_opinion():
    """The gradient is 0.95 of the label's and 0.05 of the entropy's: the gradient of a constant opinion would be 0."""
    outputs = torch.randn(5, CLASSES, requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3, 0])
    METHODS["bootstrap"](F.cross_entropy, form="soft").losses(outputs, targets).sum().backward()
    again = outputs.detach().requires_grad_()
    entropy = -(again.softmax(1) * again.log_softmax(1)).sum()
    (0.95 * F.cross_entropy(again, targets, reduction="sum") + 0.05 * entropy).backward()
    torch.testing.assert_close(outputs.grad, again.grad)
    label_alone = 0.95 * (again.detach().softmax(1) - F.one_hot(targets, CLASSES))
    assert not torch.allclose(outputs.grad, label_alone, atol=1e-3)


@pytest.mark.parametrize("norm", [0.1, 1.0, 100.0])
@pytest.mark.parametrize(("criterion", "make_batch"), [(F.cross_entropy, batch), (F.mse_loss, regression)])
def test_ignormclip_equals_a_loop_that_clips_each_row(norm, criterion, make_batch):
    network, (inputs, targets) = plain(), make_batch()
    inputs = inputs * torch.linspace(0.01, 3, len(inputs))[:, None]  # some rows are clipped, some are not
    rows = []
    for row in range(len(inputs)):
        network.zero_grad()
        criterion(network(inputs[row : row + 1]), targets[row : row + 1]).backward()
        gradient = flat(network).clone()
        rows.append(gradient * min(1.0, norm / float(gradient.norm())))
    network.zero_grad()
    (selection,), (found,) = step(METHODS["ignormclip"](criterion, norm=norm), [network], inputs, targets, 0.0)
    torch.testing.assert_close(found, torch.stack(rows).mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(selection.loss, criterion(network(inputs), targets).detach())
    assert len(selection.kept) == len(inputs)


def test_normclip_limits_the_whole_gradient_and_keeps_its_direction():
    network, (inputs, targets) = plain(), regression()
    targets = 50 * targets
    (_, (whole,)) = step(METHODS["standard"](F.mse_loss), [network], inputs, targets, 0.0)
    for norm in (0.5, 1e6):
        network.zero_grad()
        method = METHODS["normclip"](F.mse_loss, norm=norm)
        method.step([network], inputs, targets, 0.0)
        assert torch.equal(flat(network), whole)  # the limit is on the sum over all ranks: nothing happens before
        method.finish(network)
        torch.testing.assert_close(flat(network), whole * min(1.0, norm / float(whole.norm())))


@pytest.mark.parametrize("delta", [0.3, 1.0, 5.0])
def test_huber_equals_its_two_cases(delta):
    outputs, targets = torch.randn(8, 3), 2 * torch.randn(8, 3)
    found = METHODS["huber"](F.mse_loss, delta=delta).losses(outputs, targets)
    for row in range(8):
        distances = (outputs[row] - targets[row]).abs().tolist()
        elements = [d * d / 2 if d <= delta else delta * (d - delta / 2) for d in distances]
        assert float(found[row]) == pytest.approx(sum(elements) / 3, rel=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 20])
def test_the_coordinate_median_equals_a_loop(rows):
    network, (inputs, targets) = plain(), batch(rows)
    alone = []
    for row in range(rows):
        network.zero_grad()
        F.cross_entropy(network(inputs[row : row + 1]), targets[row : row + 1]).backward()
        alone.append(flat(network).clone())
    halfway = []
    for coordinate in torch.stack(alone, dim=1).tolist():
        ordered = sorted(coordinate)
        halfway.append((ordered[(rows - 1) // 2] + ordered[rows // 2]) / 2)
    network.zero_grad()
    (selection,), (found,) = step(METHODS["coordinate-median"](F.cross_entropy), [network], inputs, targets, 0.0)
    torch.testing.assert_close(found, torch.tensor(halfway), rtol=1e-5, atol=1e-7)
    assert len(selection.kept) == rows


def test_the_median_of_one_value_for_all_rows_is_that_value():
    """The shares of an unused parameter are an expanded 0, of which torch's median reads memory outside the tensor."""
    for _ in range(200):
        junk = [torch.full((size,), torch.nan) for size in (4, 40, 160)]
        del junk
        assert torch.equal(middle(torch.zeros(()).expand(40, 2, 2)), torch.zeros(2, 2))


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_the_median_of_a_program_is_that_of_numbers(rows):
    """Equal values, infinity and NaN, which makes its coordinate NaN; a traced program always uses torch's median."""
    values = torch.randn(rows, 6, 5, dtype=torch.float64).round(decimals=1)
    values[rows // 2, 0], values[-1, 1], values[0, 2] = torch.nan, torch.inf, -torch.inf
    traced = make_fx(middle, tracing_mode="fake")(values)
    for laid_out in (values, values.permute(2, 1, 0).contiguous().permute(2, 1, 0)):
        found = middle(laid_out)
        torch.testing.assert_close(found, traced(values), rtol=0, atol=0, equal_nan=True)
        assert found[0].isnan().all()
        assert not found[3:].isnan().any()


@pytest.mark.parametrize("name", ["prl-g", "prl-l", "spl"])
def test_gross_outliers_are_dropped_from_a_regression(name):
    network, (inputs, targets) = plain(), regression(40)
    targets[::5] += 100.0
    (selection,) = METHODS[name](F.mse_loss).step([network], inputs, targets, 0.2)
    assert selection.kept.tolist() == [row for row in range(40) if row % 5]


def test_a_method_of_your_own_overrides_one_hook():
    class KeepLongRows(METHODS["standard"]):
        """Rank by the inputs, without the network."""

        drops_rows = True

        def look(self, network, inputs, targets):
            return Look(None, Scores(-inputs.norm(dim=1)))

    inputs, targets = batch()
    (selection,) = KeepLongRows(F.cross_entropy).step([plain()], inputs, targets, 0.75)
    assert selection.kept.tolist() == sorted(inputs.norm(dim=1).argsort()[-5:].tolist())


@pytest.mark.parametrize("passes", ["index", "reforward"])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_what_hooks_of_your_own_give_is_one_number_per_row(passes, rate):
    """Of a mean loss a mean would be taken again, and the gradient would be too small by the number of rows."""

    class MeanLoss(METHODS["spl"]):
        def losses(self, outputs, targets):
            return F.cross_entropy(outputs, targets)

        def scores(self, outputs, targets):
            return Scores(F.cross_entropy(outputs, targets, reduction="none"))

    class ScoresOfSome(METHODS["standard"]):
        drops_rows = True

        def scores(self, outputs, targets):
            return Scores(F.cross_entropy(outputs, targets, reduction="none")[1:])

    for kind, message in (
        (MeanLoss, r"losses\(.*shape \(\) for"),
        (ScoresOfSome, r"scores\(.*shape \(19,\) for 20 rows"),
    ):
        network = plain()
        with pytest.raises(InputError, match=message):
            kind(F.cross_entropy, passes=passes).step([network], *batch(), rate)
        assert not any(gradient is not None for gradient in gradients(network))
