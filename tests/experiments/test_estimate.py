"""How long a grid takes is told from what is known, and it is said what that is."""

import pytest

from gradsieve.experiments.estimate import estimate, in_words
from gradsieve.experiments.grid import Scope, make_cells

CELLS = make_cells(
    "table2", Scope(rows=("CF10-pf-45", "CF100-pf-45"), methods=("spl", "prl-l", "co-prl-l"), seeds=(1,))
)


def test_without_a_finished_run_a_constant_is_stated():
    guess = estimate(CELLS, [], "cuda")
    steps = 49 * 390
    assert guess.seconds == pytest.approx([steps * 0.0022, steps * 0.0022, 2 * steps * 0.0022] * 2)
    assert guess.total == pytest.approx(sum(guess.seconds))
    assert guess.basis == "a stated 2.2 ms a step of one cnn9 on cuda"


def test_finished_runs_of_the_method_count_before_those_of_others():
    """CIFAR-100 has as many images as CIFAR-10; two networks take twice as long as one."""
    guess = estimate(CELLS, [(CELLS[0], 49.0), (CELLS[1], 98.0)], "cuda")
    assert guess.seconds == pytest.approx([49, 98, 2 * 73.5] * 2)
    assert guess.basis == "the seconds of finished runs"


@pytest.mark.parametrize(("name", "data", "row"), [("table2", "table", "sym-30"), ("table1", "landmarks", "linadv-10")])
def test_what_nobody_measured_is_not_made_up(name, data, row):
    (cell,) = make_cells(name, Scope(data=data, rows=(row,), methods=("spl",), seeds=(1,)))
    guess = estimate([cell], [], "cpu")
    assert guess.total is None
    assert "finish a run first" in guess.basis
    assert in_words(guess.total) == "unknown"


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.2, "3 s"), (90, "90 s"), (1800, "30 min"), (9000, "2.5 h"), (9e5, "10 days")]
)
def test_times_in_words(seconds, words):
    assert in_words(seconds) == words
