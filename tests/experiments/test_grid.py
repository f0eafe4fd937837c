"""Which runs an experiment is made of."""

from dataclasses import replace

import pytest

from gradsieve.errors import InputError
from gradsieve.experiments.grid import Scope, make_cells, read_seeds
from gradsieve.training.engines import STEPS_TO_PAY_BACK

ONE = {"seeds": (1,)}


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("table1", 5 * (5 * 4 * 8 + 1)),  # and clean training beside it
        ("table2", 12 * 9 * 3),
        ("table3", 6 * 5 * 3),
        ("table4", 3),
        ("passes", 4 * 2 * 2 * 2 * 3),
        ("no-batchnorm", 4 * 2 * 2 * 3),
        ("curves", 5 * (5 * 4 * 8 + 1) + 12 * 9 * 3),
    ],
)
def test_a_whole_experiment(name, runs):
    cells = make_cells(name, Scope())
    assert len(cells) == runs
    assert len({cell.folder for cell in cells}) == runs
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_a_row_is_what_its_name_says():
    (cell,) = make_cells("table2", Scope(rows=("CF100-pf-35",), methods=("prl-l",), **ONE))
    run = cell.run
    assert (run.data, run.corruption, run.rate, run.drop_rate) == ("cifar100", "pairflip", 0.35, 0.35)
    assert (run.epochs, run.batch_size, run.ramp, run.decay, run.preset) == (49, 128, 15, "constant", "authors")
    assert run.model_options == {"always_dropout": True}
    (cell,) = make_cells("table1", Scope(rows=("uninoise-20",), methods=("co-prl-l",), **ONE))
    run = cell.run
    assert (run.data, run.corruption, run.rate) == ("celeba-features", "uninoise", 0.2)
    assert (run.model, run.epochs, run.batch_size, run.learning_rate) == ("mlp", 100, 512, 3e-4)


def test_clean_training_is_plain_whatever_the_methods():
    (cell,) = make_cells("table1", Scope(rows=("clean",), methods=("prl-l",), **ONE))
    assert (cell.run.method, cell.run.corruption, cell.run.drop_rate) == ("standard", "none", 0)


def test_table3_drops_exactly_so_much():
    cells = make_cells("table3", Scope(rows=("CF10-pf-45",), **ONE))
    assert [cell.run.drop_rate for cell in cells] == [0.35, 0.4, 0.45, 0.5, 0.55]
    assert {cell.run.rate for cell in cells} == {0.45}
    cells = make_cells("table3", Scope(rows=("CF10-sym-70",), **ONE))
    assert [cell.run.drop_rate for cell in cells] == [0.6, 0.65, 0.7, 0.75, 0.8]  # in floats, 0.7 - 0.05 is less


@pytest.mark.parametrize(("row", "share"), [("sym-5", "-0.05"), ("sym-95", "1")])
def test_a_share_that_cannot_be_dropped_is_named_with_its_row(row, share):
    scope = Scope(rows=(row,), data="digits", seeds=(1,))
    with pytest.raises(InputError, match=rf"digits-{row} at eps.* would drop the share {share} .* of the variants"):
        make_cells("table3", scope)
    assert len(make_cells("table3", replace(scope, variants=("eps",)))) == 1


def test_table4_is_long_enough_for_its_steps_to_be_compiled():
    for cell in make_cells("table4", Scope(**ONE)):
        assert cell.run.epochs * (50_000 // cell.run.batch_size) >= STEPS_TO_PAY_BACK[cell.run.compile]
        assert cell.run.ramp == 0  # all steps keep as many rows: one program


def test_some_variants_of_a_table():
    cells = make_cells("table3", Scope(rows=("CF10-pf-45",), variants=("eps+0.05", "eps-0.10"), **ONE))
    assert [cell.variant for cell in cells] == ["eps-0.10", "eps+0.05"]


@pytest.mark.parametrize("preset", ["authors", "proper"])
def test_equal_runs_of_different_experiments_share_their_folder(preset):
    """Half of the ablation, the middle of Table 3 and half of no-batchnorm are runs of Table 2."""
    scope = Scope(rows=("CF10-pf-45",), preset=preset, **ONE)
    table2 = {cell.folder: cell.run for cell in make_cells("table2", scope)}
    shared = {}
    for name in ("table3", "table4", "passes", "no-batchnorm"):
        cells = make_cells(name, scope)
        same = [cell for cell in cells if cell.folder in table2]
        assert all(cell.run == table2[cell.folder] for cell in same)
        shared[name] = (len(same), len(cells))
    assert shared == {"table3": (1, 5), "table4": (0, 3), "passes": (4, 8), "no-batchnorm": (2, 4)}


def test_the_ablation_is_score_by_passes_by_networks():
    cells = make_cells("passes", Scope(rows=("CF10-sym-50",), **ONE))
    assert {(cell.method, cell.run.method_options["passes"]) for cell in cells} == {
        (method, passes) for method in ("spl", "prl-l", "co-teaching", "co-prl-l") for passes in ("index", "reforward")
    }


OWN = """
from gradsieve.corruptions.corruption import serves

@serves("classification")
def first_up(inputs, targets, rate, generator):
    return targets

@serves("regression")
def scaled(inputs, targets, rate, generator):
    return targets
"""


def test_a_corruption_of_ones_own_is_a_row(write_module):
    write_module("mine", OWN)
    (cell,) = make_cells("table2", Scope(data="digits", rows=("mine:first_up-40",), methods=("spl",), **ONE))
    assert (cell.row, cell.run.corruption, cell.run.rate) == ("digits-mine:first_up-40", "mine:first_up", 0.4)
    assert cell.folder == "digits-mine.first_up-40/spl-seed1"
    with pytest.raises(InputError, match="made for regression, but table2 is classification"):
        make_cells("table2", Scope(data="digits", rows=("mine:scaled-40",)))
    with pytest.raises(InputError, match=r"'mine:no_such' cannot be imported"):
        make_cells("table2", Scope(data="digits", rows=("mine:no_such-40",)))
    with pytest.raises(InputError, match="A corruption of yours needs another data set"):
        make_cells("table2", Scope(rows=("mine:first_up-40",)))


def test_other_data_under_the_same_corruptions():
    cells = make_cells("table2", Scope(data="digits", methods=("spl",), epochs=3, **ONE))
    assert [cell.row for cell in cells] == [f"digits-{row}-{rate}" for row in ("sym", "pf") for rate in RATES[row]]
    assert all(cell.run.data == "digits" and cell.run.epochs == 3 for cell in cells)


RATES = {"sym": (30, 50, 70), "pf": (25, 35, 45)}


def test_what_is_named_twice_is_run_once():
    twice = Scope(data="digits", rows=("sym-40", "sym-40"), methods=("spl", "spl"), **ONE)
    assert [cell.label for cell in make_cells("table2", twice)] == ["digits-sym-40 spl seed 1"]


def test_a_row_on_data_for_both_tasks_goes_to_the_table_that_it_suits():
    cells = make_cells("curves", Scope(data="table", rows=("linadv-30", "sym-40"), methods=("standard",), **ONE))
    assert [(cell.experiment, cell.row) for cell in cells] == [
        ("table1", "table-linadv-30"),
        ("table2", "table-sym-40"),
    ]
    assert [cell.run.data_options for cell in cells] == [{}, {"task": "classification"}]  # amounts are its own way


def test_curves_are_of_the_tables_that_have_the_row_or_the_method():
    chosen = make_cells("curves", Scope(rows=("clean", "CF10-pf-45"), methods=("standard", "spl"), **ONE))
    assert [(cell.experiment, cell.label) for cell in chosen] == [
        ("table1", "clean standard seed 1"),
        ("table2", "CF10-pf-45 standard seed 1"),
        ("table2", "CF10-pf-45 spl seed 1"),
    ]
    assert {cell.experiment for cell in make_cells("curves", Scope(methods=("huber",)))} == {"table1"}
    assert {cell.experiment for cell in make_cells("curves", Scope(data="digits"))} == {"table2"}


@pytest.mark.parametrize(
    ("name", "scope", "says"),
    [
        ("table5", {}, "There is no experiment 'table5'"),
        ("table2", {"rows": ("CF10-pf-44",)}, "Did you mean 'CF10-pf-45'"),
        ("table2", {"rows": ("linadv-10",)}, "There is no row 'linadv-10'"),
        ("table2", {"methods": ("prl",)}, "Did you mean 'prl-l'"),
        ("table3", {"variants": ("eps+0.5",)}, r"no variant 'eps\+0.5'. Did you mean 'eps\+0.05'"),
        ("table2", {"variants": ("eps+0.05",)}, "There are: none"),
        (
            "curves",
            {"rows": ("CF10-pf-45",), "methods": ("huber",)},
            "No run of curves has all .* CF10-pf-45, huber",
        ),
        ("table2", {"methods": ("huber",)}, "method huber is made for regression, but table2 is classification: there"),
        ("table2", {"data": "landmarks"}, "landmarks is made for regression, but table2 is classification: .* digits"),
        (
            "table2",
            {"data": "digits", "rows": ("linadv-30",)},
            "corruption linadv is made for regression, .* symmetric",
        ),
        ("table2", {"data": "digits", "rows": ("sym-0",)}, "a corruption and a percentage"),
        ("table2", {"data": "digits", "rows": ("CF10-sym-30",)}, "such as sym-30"),
        ("table2", {"data": "digits", "rows": ("sym",)}, "a corruption and a percentage"),
        ("table2", {"preset": "author"}, "preset is 'author'"),
        ("table2", {"epochs": 0}, "epochs is 0"),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(name, scope, says):
    with pytest.raises(InputError, match=says):
        make_cells(name, Scope(**scope))


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (1, 2, 3)), ("2,5", (2, 5)), ("4-6", (4, 5, 6)), ("7-7", (7,)), ("1-2,9", (1, 2, 9))]
)
def test_seeds(text, seeds):
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "x", "-1", "5-3", "1,,2", "1.5"])
def test_seeds_that_are_none(text):
    with pytest.raises(InputError, match="must be how many"):
        read_seeds(text)
