"""The pictures of a pick show every rate, the pick and the estimate."""

import pytest
from rich.console import Console

from gradsieve.choosing import RATES
from gradsieve.choosing.pick import RatePick, too_few
from gradsieve.choosing.picture import figure, summary, table
from gradsieve.errors import InputError

PICK = RatePick(
    rate=0.23,
    winner=0.2,
    estimate=0.234,
    interval=(0.21, 0.27),
    rates=RATES,
    margins=(-0.5, -0.1, 0.0, 0.02, -0.2, -0.3),
    errors=(0.05, 0.04, 0.0, 0.03, 0.04, 0.05),
    trained=(0.3, 0.6, 1.0, 1.0, 0.3, 0.3),
)


def test_the_terminal_has_a_line_for_each_rate():
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table(PICK))
    lines = captured.get().splitlines()
    assert summary(PICK) in lines[0]
    assert "dropping 0.23" in summary(PICK)
    rows = [line for line in lines if "±" in line]
    assert [row.split()[0] for row in rows] == [f"{rate:g}" for rate in RATES]
    assert "the winner" in rows[2]
    bars = [row.count("█") for row in rows]
    assert bars[0] == max(bars) > bars[5] > bars[1] > bars[2] == 0
    assert "ahead" in rows[3]


def test_the_figure_has_the_margins_and_the_interval():
    pytest.importorskip("matplotlib")
    (axes,) = figure(PICK).axes
    drawn = [list(line.get_ydata()) for line in axes.lines]
    assert list(PICK.margins) in drawn
    assert axes.get_xlabel() == "drop rate"


def test_no_vote_no_picture():
    with pytest.raises(InputError, match="too few"):
        table(too_few(20))
