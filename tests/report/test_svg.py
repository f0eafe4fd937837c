"""Figures: axes with round numbers, lines within their frame, histograms that count every row, the same as pictures."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from gradsieve.report.figures import Line, Lines, histogram, line, log_ticks, short, ticks, unseen, value_range
from gradsieve.report.figures import test_figure as curves_figure
from gradsieve.report.markup import Html, tag, text
from gradsieve.report.svg import HEIGHT, WIDTH, Scale, draw, draw_histogram, draw_lines


def paths(drawing):
    """The lines of a drawing, as lists of strokes of points."""
    tree = ElementTree.fromstring(drawing)
    found = [each.get("d") for each in tree.iter("path") if (each.get("class") or "").startswith("line")]
    return [[points(part) for part in path.split("M")[1:]] for path in found]


def points(part):
    return [tuple(map(float, point.split())) for point in part.split("h")[0].split("L")]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.03, 0.97), (-0.1, 0.9), (1, 120), (0, 7e-9), (-3e6, 5e6), (1, 2), (0.9441, 0.9442)]
)
def test_ticks_are_round_few_and_within(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-9 * abs(low) <= tick <= high + 1e-9 * abs(high) for tick in found)
    steps = np.diff(found)
    assert np.allclose(steps, steps[0])
    mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0] * (1 + 1e-9)))
    assert min(abs(mantissa - round_number) for round_number in (1, 2, 5, 10)) < 1e-6


def test_axes_without_extent_do_not_break():
    assert ticks(3, 3) == [3]
    assert log_ticks(0.01, 1000) == pytest.approx([0.01, 0.1, 1, 10, 100, 1000])
    assert log_ticks(2, 3) == [2, 3]
    assert [short(value) for value in (0, 0.25, 1e-7, 20000.0, 3e12)] == ["0", "0.25", "1e-7", "20000", "3e12"]


def test_a_scale_maps_ends_to_ends_and_logarithms_evenly():
    assert [Scale(0, 10, 100, 0)(value) for value in (0, 5, 10)] == [100, 50, 0]
    assert Scale(1, 100, 0, 10, log=True)(10) == pytest.approx(5)


def test_lines_run_from_left_to_right_within_the_frame_and_break_where_a_value_is_missing():
    figure = Lines("a title", "metric", (line("one", [0.5, 0.6, None, 0.9]), line("two", [0.1, math.nan, 0.3, 0.2])))
    first, second = paths(draw_lines(figure))
    assert [len(stroke) for stroke in first] == [2, 1]
    assert [len(stroke) for stroke in second] == [1, 2]
    for x, y in (point for path in (first, second) for stroke in path for point in stroke):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    assert first[0][0][1] > first[1][0][1]  # 0.9 stands higher than 0.5: y grows downwards


def test_what_falls_out_of_the_picture_is_named():
    figure = curves_figure("r2", "r2", {"good": [{"test": 0.9}], "lost": [{"test": -30.0}]})
    assert unseen(figure) == ["lost"]
    assert value_range(figure)[0] >= -0.1
    assert "lost (below the picture)" in draw(figure)


@pytest.mark.parametrize("values", [[], [None], [1.0], [0.0, 0.0], [1e300, -1e300], [5, 5, 5]])
@pytest.mark.parametrize("log", [False, True])
def test_odd_curves_are_drawn_all_the_same(values, log):
    drawing = draw_lines(Lines("title", "y", (line("a", values),), log=log))
    ElementTree.fromstring(drawing)
    assert "nan" not in drawing
    assert "inf" not in drawing


def test_long_curves_keep_their_last_value():
    found = line("long", list(range(10_001)))
    assert len(found.x) <= 402
    assert (found.x[0], found.x[-1], found.y[-1]) == (1, 10_001, 10_000)


def test_a_histogram_counts_every_row_that_has_a_value():
    draws = np.random.default_rng(0)
    groups = {
        "kept": draws.exponential(size=1000),
        "dropped": np.append(draws.exponential(size=50) + 9, [np.inf, np.nan]),
    }
    figure = histogram("scores", "score", groups)
    assert [sum(counts) for counts in figure.counts.values()] == [1000, 51]  # NaN is no value, inf is a large one
    assert figure.open_ended
    edges = np.array(figure.edges)
    inner = (groups["kept"] >= edges[0]) & (groups["kept"] < edges[3])
    assert sum(figure.counts["kept"][:3]) == inner.sum()


def test_bars_stand_on_each_other_and_are_as_high_as_their_counts():
    figure = histogram("t", "x", {"a": np.array([0.0, 0.0, 1.0]), "b": np.array([0.0, 1.0])})
    bars = list(ElementTree.fromstring(draw_histogram(figure)).iter("rect"))
    first = min(float(bar.get("x")) for bar in bars)
    left = {bar.get("class"): bar for bar in bars if float(bar.get("x")) == first}
    heights, tops = ({name: float(bar.get(what)) for name, bar in left.items()} for what in ("height", "y"))
    assert heights["bar f0"] == pytest.approx(2 * heights["bar f1"], abs=0.2)
    assert tops["bar f1"] + heights["bar f1"] == pytest.approx(tops["bar f0"], abs=0.2)


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf]])
def test_no_histogram_of_nothing(values):
    assert histogram("t", "x", {"a": np.array(values)}) is None


@pytest.mark.parametrize("values", [[3.0], [0.0] * 500, [0.0] * 500 + [7.0], [-2.0, -2.0]])
def test_histograms_of_equal_values(values):
    figure = histogram("t", "x", {"a": np.array(values)})
    assert sum(figure.counts["a"]) == len(values)
    ElementTree.fromstring(draw_histogram(figure))


def test_figures_speak_to_those_who_do_not_see_them():
    figure = Lines("Accuracy", "accuracy", (Line("a <b>", (1.0, 2.0), (0.25, 0.75)),))
    tree = ElementTree.fromstring(draw_lines(figure))
    assert tree.get("role") == "img"
    assert tree.get("aria-label") == "Accuracy. accuracy by epoch. a <b> from 0.25 to 0.75."
    assert tree.find("title").text == tree.get("aria-label")


def test_markup_escapes_whatever_is_not_markup():
    assert (
        tag("p", "<b>", Html("<i></i>"), None, 3, ["&"], class_='"x"')
        == '<p class="&quot;x&quot;">&lt;b&gt;<i></i>3&amp;</p>'
    )
    assert tag("img", src="a", alt=None, hidden=True, open=False) == '<img src="a" hidden>'
    assert text("a\x00b\ud800\x1b\ufeff") == "a\ufffdb\ufffd\ufffd\ufffd"
    text("\udcff").encode()
