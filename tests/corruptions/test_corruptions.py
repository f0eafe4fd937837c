"""Every corruption, whatever the table holds: exact counts, chosen rows only, nothing else touched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradsieve.corruptions import CORRUPTIONS
from gradsieve.corruptions.corruption import Corrupted, serves
from gradsieve.corruptions.pairflip import derangement
from gradsieve.corruptions.reference import fit_predict
from gradsieve.counts import part
from gradsieve.errors import InputError

CASES = [(name, task) for name in CORRUPTIONS for task in CORRUPTIONS[name].tasks]
every_corruption = pytest.mark.parametrize(("name", "task"), CASES)
rates = st.sampled_from([0.0, 0.1, 0.29, 0.3, 0.45, 0.5, 0.9, 0.99]) | st.floats(0, 0.999)
seeds = st.integers(0, 2**32)
# deadline: the first example imports, and this machine may be busy
some = settings(max_examples=40, deadline=None)
many = settings(max_examples=200, deadline=None)


def data(task: str, rows: int, outputs: int, seed: int, images: bool = False) -> tuple[Tensor, Tensor]:
    """Random inputs with targets of ``task``; of q target columns no two are alike."""
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 3, generator=random)
    if images:
        inputs = torch.randint(0, 256, (rows, 3, 4, 4), generator=random, dtype=torch.uint8)
    if task == "regression":
        return inputs, torch.randn(rows, outputs, generator=random)
    return inputs, torch.randint(0, outputs, (rows,), generator=random)


def corrupt(name: str, inputs: Tensor, targets: Tensor, rate: float, seed: int = 0, **options) -> Corrupted:
    return CORRUPTIONS[name](inputs, targets, rate, torch.Generator().manual_seed(seed), **options)


def classes_of(task: str, outputs: int) -> dict[str, int]:
    return {"classes": outputs} if task == "classification" else {}


@every_corruption
@given(rows=st.integers(1, 40), outputs=st.integers(2, 6), rate=rates, seed=seeds, images=st.booleans())
@many
def test_exactly_the_chosen_rows_change_and_nothing_else(name, task, rows, outputs, rate, seed, images):
    inputs, targets = data(task, rows, outputs, seed, images)
    inputs_before, targets_before = inputs.clone(), targets.clone()
    changed, is_corrupted = corrupt(name, inputs, targets, rate, seed, **classes_of(task, outputs))
    assert torch.equal(inputs, inputs_before)
    assert torch.equal(targets, targets_before)
    assert changed.data_ptr() != targets.data_ptr()
    assert changed.dtype == targets.dtype
    assert changed.shape == targets.shape
    assert is_corrupted.dtype == torch.bool
    assert is_corrupted.shape == (rows,)
    assert int(is_corrupted.sum()) == (0 if name == "none" else part(rate, rows))
    assert torch.equal(changed[~is_corrupted], targets[~is_corrupted])
    assert changed.isfinite().all()
    if task == "classification":  # a corrupted class is wrong, and a class
        assert (changed != targets).equal(is_corrupted)
        assert (changed >= 0).all()
        assert (changed < outputs).all()


@every_corruption
@given(rows=st.integers(1, 30), rate=rates, seed=seeds)
@some
def test_the_same_seed_gives_the_same_corruption(name, task, rows, rate, seed):
    inputs, targets = data(task, rows, 4, seed)
    first = corrupt(name, inputs, targets, rate, seed, **classes_of(task, 4))
    second = corrupt(name, inputs, targets, rate, seed, **classes_of(task, 4))
    assert torch.equal(first.targets, second.targets)
    assert torch.equal(first.is_corrupted, second.is_corrupted)


@every_corruption
def test_rate_0_is_the_identity(name, task):
    inputs, targets = data(task, 20, 4, 0)
    changed, is_corrupted = corrupt(name, inputs, targets, 0)
    assert torch.equal(changed, targets)
    assert not is_corrupted.any()


@pytest.mark.parametrize("name", ["uninoise", "pairflip", "linadv"])
@given(rows=st.integers(1, 40), outputs=st.integers(2, 10), rate=rates, seed=seeds)
@many
def test_every_chosen_regression_row_changes(name, rows, outputs, rate, seed):
    inputs, targets = data("regression", rows, outputs, seed)
    changed, is_corrupted = corrupt(name, inputs, targets, rate, seed)
    assert (changed != targets).any(1).equal(is_corrupted)


@given(columns=st.integers(2, 40))
def test_pairflip_moves_every_column_and_keeps_points_together(columns):
    source = derangement(columns)
    assert source.sort().values.equal(torch.arange(columns))
    assert (source != torch.arange(columns)).all()
    if columns % 2 == 0 and columns >= 4:
        x, y = source.view(-1, 2).unbind(1)
        assert (x % 2 == 0).all()
        assert y.equal(x + 1)


def test_pairflip_gives_the_eyes_the_mouth():
    assert derangement(10).tolist() == [6, 7, 8, 9, 0, 1, 2, 3, 4, 5]


def test_pairflip_gives_the_next_class():
    changed, is_corrupted = corrupt("pairflip", torch.zeros(30, 1), torch.arange(30) % 10, 0.5)
    assert changed[is_corrupted].equal((torch.arange(30)[is_corrupted] + 1) % 10)


def test_symmetric_reaches_every_wrong_class_about_equally():
    changed, is_corrupted = corrupt("symmetric", torch.zeros(9000, 1), torch.zeros(9000).long(), 0.5, classes=10)
    counts = changed[is_corrupted].bincount(minlength=10)
    assert counts[0] == 0
    assert counts[1:].min() > 400  # 500 expected


@given(rate=rates, seed=seeds)
@many
def test_signflip_negates(rate, seed):
    inputs, targets = data("regression", 17, 2, seed)
    changed, is_corrupted = corrupt("signflip", inputs, targets, rate, seed)
    assert changed.equal(torch.where(is_corrupted[:, None], -targets, targets))


def test_uninoise_is_uniform_between_minus_5_and_5():
    changed, is_corrupted = corrupt("uninoise", torch.zeros(4000, 1), torch.full((4000, 2), 9.0), 0.5)
    drawn = changed[is_corrupted]
    assert drawn.abs().max() <= 5
    assert drawn.mean().abs() < 0.3
    assert abs(drawn.var().item() - 100 / 12) < 0.5


@pytest.mark.parametrize("images", [False, True])
def test_linadv_is_one_linear_map_of_the_inputs(images):
    inputs, targets = data("regression", 400, 2, 1, images)
    changed, is_corrupted = corrupt("linadv", inputs, targets, 0.5)
    features = inputs[is_corrupted].flatten(1).double() / (255 if images else 1)
    fit = torch.linalg.lstsq(features, changed[is_corrupted].double())
    assert (features @ fit.solution - changed[is_corrupted]).abs().max() < 1e-3
    assert 0.5 < fit.solution.std() < 1.6  # N(0, 1) of 6 or 96 numbers


def test_mixture_splits_the_rows_evenly():
    inputs, targets = torch.zeros(300, 2), torch.full((300, 2), 7.0)
    changed, is_corrupted = corrupt("mixture", inputs, targets, 0.3)
    rows = changed[is_corrupted]
    followed, flipped = (rows == 0).all(1), (rows == -7).all(1)  # zero inputs map to zero
    assert (int(followed.sum()), int(flipped.sum()), len(rows)) == (30, 30, 90)
    assert rows[~followed & ~flipped].abs().max() <= 5


def test_instance_flips_the_rows_of_least_margin_to_the_most_probable_wrong_class():
    outputs = torch.tensor([[3.0, 0, 1], [2, 1.5, 0], [0, 0.1, 5], [1, 1.1, 0.9], [4, 3.5, 9]])
    targets = torch.tensor([0, 0, 2, 0, 1])
    changed, is_corrupted = corrupt("instance", torch.zeros(5, 1), targets, 0.4, outputs=outputs)
    assert is_corrupted.tolist() == [False, True, False, True, False]
    assert changed.tolist() == [0, 1, 2, 1, 1]


def test_instance_breaks_ties_by_row():
    targets = torch.zeros(10).long()
    _, is_corrupted = corrupt("instance", torch.zeros(10, 1), targets, 0.3, outputs=torch.zeros(10, 2))
    assert is_corrupted.nonzero().flatten().tolist() == [0, 1, 2]


def test_adversarial_takes_the_least_probable_wrong_class():
    outputs = torch.tensor([[3.0, 0, 1], [0, 2, 1]]).repeat(5, 1)
    changed, is_corrupted = corrupt("adversarial", torch.zeros(10, 1), torch.zeros(10).long(), 0.9, outputs=outputs)
    assert changed[is_corrupted].equal(torch.tensor([1, 2]).repeat(5)[is_corrupted])


def test_adversarial_takes_the_far_end_of_the_observed_range():
    targets = torch.tensor([[-1.0, 10], [3, 20], [0, 12], [0, 18]])
    outputs = torch.tensor([[-1.0, 10], [3, 20], [2, 14], [0, 16]])
    far = torch.tensor([[3.0, 20], [-1, 10], [-1, 20], [3, 10]])
    changed, is_corrupted = corrupt("adversarial", torch.zeros(4, 1), targets, 0.75, outputs=outputs)
    assert changed[is_corrupted].equal(far[is_corrupted])


def test_the_reference_model_learns_classes_and_targets():
    inputs = torch.randn(600, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.stack([inputs[:, 0] * inputs[:, 1], inputs[:, 2]], 1)
    fitted = fit_predict(inputs, targets, torch.Generator().manual_seed(1))
    assert (fitted - targets).square().mean() < 0.1 * targets.var()
    images = torch.zeros(5000, 2, 2, 2, dtype=torch.uint8)  # two chunks; constant pixels too
    images[::2, 0] = 200
    fitted = fit_predict(images, torch.eye(2)[torch.arange(5000) % 2], torch.Generator().manual_seed(1))
    assert (fitted.argmax(1) == torch.arange(5000) % 2).all()


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, float("nan"), "0.3", True, None])
@every_corruption
def test_a_rate_outside_0_to_1_is_named(name, task, rate):
    inputs, targets = data(task, 10, 3, 0)
    with pytest.raises(InputError, match="rate is"):
        corrupt(name, inputs, targets, rate)


@every_corruption
def test_what_no_corruption_can_work_on_is_refused(name, task):
    inputs, targets = data(task, 10, 3, 0)
    with pytest.raises(InputError, match="9 rows and targets has 10"):
        corrupt(name, inputs[:9], targets, 0.3)
    with pytest.raises(InputError, match="0 rows"):
        corrupt(name, inputs[:0], targets[:0], 0.3)
    with pytest.raises(InputError, match="shape"):
        corrupt(name, inputs, targets[:, None], 0.3)
    with pytest.raises(InputError, match=r"inputs\[4\] holds nan"):
        corrupt(name, inputs.index_fill(0, torch.tensor([4]), torch.nan), targets, 0.3)
    with pytest.raises(InputError, match=f"no option of {name} 'clases'"):
        corrupt(name, inputs, targets, 0.3, clases=3)


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if len(CORRUPTIONS[name].tasks) == 1])
def test_targets_of_the_other_task_are_refused_with_the_names_that_fit(name):
    (task,) = CORRUPTIONS[name].tasks
    other = "regression" if task == "classification" else "classification"
    with pytest.raises(InputError, match=f"'{name}' is made for {task}, .* For {other} there are: none, .*adversarial"):
        corrupt(name, *data(other, 10, 3, 0), 0.3)


@pytest.mark.parametrize("name", ["symmetric", "pairflip", "instance", "adversarial"])
def test_labels_and_classes_must_agree(name):
    inputs, targets = data("classification", 10, 3, 0)
    with pytest.raises(InputError, match="number of classes is 1,"):
        corrupt(name, inputs, torch.zeros_like(targets), 0.3)
    with pytest.raises(InputError, match="number of classes is 'ten'"):
        corrupt(name, inputs, targets, 0.3, classes="ten")
    targets[7] = 5
    with pytest.raises(InputError, match=r"targets\[7\] is 5, but there are 3 classes \(0 to 2\)"):
        corrupt(name, inputs, targets, 0.3, classes=3)
    targets[7] = -1
    with pytest.raises(InputError, match=r"targets\[7\] is -1"):
        corrupt(name, inputs, targets, 0.3)


@pytest.mark.parametrize("name", ["instance", "adversarial"])
def test_outputs_of_another_model_must_fit(name):
    inputs, targets = data("classification", 10, 3, 0)
    for shape in [(9, 3), (10,), (10, 4)]:
        with pytest.raises(InputError, match="outputs has the shape"):
            corrupt(name, inputs, targets, 0.3, outputs=torch.zeros(shape), classes=3)
    outputs = torch.zeros(10, 3)
    outputs[6, 1] = torch.inf
    with pytest.raises(InputError, match=r"outputs\[6\]"):
        corrupt(name, inputs, targets, 0.3, outputs=outputs)


def test_pairflip_needs_two_columns():
    with pytest.raises(InputError, match="only one"):
        corrupt("pairflip", *data("regression", 10, 1, 0), 0.3)


@every_corruption
def test_each_says_in_one_line_what_it_does(name, task):
    assert 10 < len(CORRUPTIONS.summary(name)) < 110


def shifted(targets: Tensor, rows: int) -> Tensor:
    return torch.cat([(targets[:rows] + 1) % 3, targets[rows:]])


def own(answer) -> Corrupted:
    """What a corruption of the user's makes of six rows."""
    inputs, targets = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    function = serves("classification")(lambda inputs, targets, rate, generator: answer(targets))
    corrupted = function(inputs, targets, 0.3, torch.Generator())
    assert targets.tolist() == [0, 1, 2, 0, 1, 2], "the truth stays what it was"
    return corrupted


def test_a_corruption_of_ones_own_may_return_targets_alone():
    assert own(lambda targets: shifted(targets, 2)).is_corrupted.tolist() == [True] * 2 + [False] * 4
    assert own(lambda targets: targets.fill_(0)).is_corrupted.tolist() == [False, True, True, False, True, True]


def test_rows_may_be_called_corrupted_that_look_as_before():
    marked = torch.tensor([True] * 3 + [False] * 3)
    assert own(lambda targets: (shifted(targets, 2), marked)).is_corrupted.tolist() == marked.tolist()


def test_of_targets_in_columns_a_row_has_changed_where_one_of_them_has():
    targets = torch.zeros(3, 2)
    function = serves("regression")(
        lambda inputs, targets, rate, generator: targets + torch.tensor([[0, 0], [0, 1], [1, 1.0]])
    )
    assert function(torch.zeros(3, 1), targets, 0.3, torch.Generator()).is_corrupted.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda targets: (shifted(targets, 2), torch.zeros(6, dtype=torch.bool)),
            "2 rows that its is_corrupted calls cl",
        ),
        (lambda targets: (targets, torch.zeros(6)), r"not 6 times yes or no \(torch.bool\)"),
        (lambda targets: (targets, torch.zeros(5, dtype=torch.bool)), "not 6 times yes or no"),
        (lambda targets: targets[:5], r"returns \(5,\), torch.int64, but must return targets as it got them, \(6,\)"),
        (lambda targets: targets.float(), r"returns \(6,\), torch.float32, but"),
        (lambda targets: None, r"returns NoneType, but must return targets .* or Corrupted\(targets, is_corrupted\)"),
        (lambda targets: (targets,) * 3, "returns tuple, but"),
    ],
)
def test_what_a_corruption_of_ones_own_may_not_return(answer, message):
    with pytest.raises(InputError, match=message):
        own(answer)


def test_a_corruption_of_ones_own_may_not_write_to_the_inputs():
    """The network would be trained on them, beside targets that are called clean."""

    @serves("classification")
    def centred(inputs, targets, rate, generator):
        inputs -= inputs.mean(0)
        return targets

    inputs, targets = torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    with pytest.raises(InputError, match=r"'centred' changes the inputs in place.*inputs\.clone\(\)"):
        centred(inputs, targets, 0.3, torch.Generator())


def test_a_function_without_its_tasks_is_told_how_to_get_them(write_module):
    write_module("mine", "def plain(inputs, targets, rate, generator):\n    return targets\n")
    with pytest.raises(InputError, match=r"is no corruption: it has no tasks\. Put @.*serves\('classification'\) over"):
        CORRUPTIONS["mine:plain"]
