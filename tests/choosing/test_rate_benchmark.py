"""The benchmark of drop rates: one file a cell, none twice, none stopped by another, and tables of all of them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
FEW = ["--sets", "digits", "--rows", "250", "--epochs", "2", "--rates", "0", "0.3", "--corruptions", "pairflip"]


@pytest.fixture
def rate(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("rate", FOLDER / "rate.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rate", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ProcessPoolExecutor", Here)
    return module


class Here:
    """Cells one by one in this process, which a test can look into."""

    def __init__(self, *options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, *arguments):
        return Done(function, arguments)


class Done:
    def __init__(self, function, arguments):
        self.error = None
        try:
            self.text = function(*arguments)
        except ZeroDivisionError as error:
            self.error = error

    def exception(self):
        return self.error

    def result(self):
        return self.text


@pytest.fixture
def run(rate, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(rate, "as_completed", list)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["rate.py", *FEW, "--seeds", "0", "--out", str(tmp_path), *arguments])
        rate.main()
        return capsys.readouterr().out

    return call


def test_cells_are_measured_once_and_shown(rate, run, monkeypatch, tmp_path):
    shown = run()
    lines = {path.stem: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert sorted(lines) == ["digits_none_0.0_0_250_2", "digits_pairflip_0.3_0_250_2"]
    line = lines["digits_pairflip_0.3_0_250_2"]
    assert line["moved"] == pytest.approx(0.3)
    assert len(line["test_of_rate"]) == 6
    assert line["picks"]["auto, among the six"] in range(6)
    assert "| vote |" in shown
    assert "within 1 of the true rate's run" in shown
    assert "| clean: at most half a point below Standard | " in shown
    monkeypatch.setattr(rate, "measure", None)
    again = run()  # from the files
    assert "0 of 2 cells to run" in again
    assert again.split("**")[1:] == shown.split("**")[1:]
    assert run("--show").strip() in shown


def test_what_auto_picks_is_what_the_estimators_would(rate, run, tmp_path):
    """The candidates of a cell run once, and "auto" sees no more of them than in a race of its own."""
    run()
    cell = rate.Cell("digits", "pairflip", 0.3, 0, 250, 2)
    problem = rate.make_problem(cell, rate.load("digits", None))
    from gradsieve.estimators.auto_rate import choose_rate

    pick = choose_rate(problem.fits)
    assert json.loads((tmp_path / f"{cell.key}.json").read_text())["pick"] == pick.to_json()


def test_a_cell_that_fails_stops_no_other(rate, run, monkeypatch, tmp_path):
    measure = rate.measure

    def sometimes(cell, data):
        return measure(cell, data) if cell.rate else 1 / 0

    monkeypatch.setattr(rate, "measure", sometimes)
    assert "digits_none_0.0_0_250_2  failed: ZeroDivisionError" in run()
    assert [path.stem for path in tmp_path.iterdir()] == ["digits_pairflip_0.3_0_250_2"]


def test_tables_are_put_into_a_page(rate, run, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- benchmarks/rate.py all: begin -->old<!-- benchmarks/rate.py all: end -->\nafter\n")
    run("--into", str(page))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| fixed 0.2 |" in text
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="has no lines"):
        run("--show", "--into", str(page))


def test_real_targets_have_criteria_of_their_own(rate, monkeypatch):
    monkeypatch.setitem(rate.BENCHES, "landmarks", rate.Bench("landmarks", "cnn", rows=250, epochs=1))
    data = rate.load.__wrapped__("landmarks", None)
    line = rate.measure(rate.Cell("landmarks", "signflip", 0.3, 0, 250, 1), data)
    assert set(rate.CRITERIA["regression"]) | set(rate.FIXED) < set(line["picks"])
    assert "R2" in "\n".join(rate.markdown([line]))


def test_means_over_the_seeds_are_judged_like_single_runs(rate):
    """The third of three runs misses, and does harm; their mean does neither."""
    line = {"task": "classification", "data": "digits", "corruption": "pairflip", "rate": 0.3}
    line |= {"moved": 0.3, "moved_by_clean": 0.3}
    line |= {"known": 0.9, "standard": 0.9, "winner": 0.9, "test_of_rate": [0.9] * 6, "picks": {"vote": 0}}
    pick = {"rate": 0.2, "estimate": 0.3, "warning": ""}
    runs = [line | {"auto": auto, "seed": seed, "pick": pick} for seed, auto in enumerate((0.91, 0.9, 0.87))]
    page = "\n".join(rate.markdown(runs))
    assert "| missed, 2 of 3 | met, 1 of 1 |" in page
    assert "| missed, 1 of 3 are, the worst -3.000 | met, 0 of 1 are, the worst -0.667 |" in page
    assert "| digits, pairflip 0.3, seed 2 | 0.2 | 0.870 | 0.900 | 0.900 |  |" in page


def test_what_matters_most_is_run_first(rate):
    cells = [
        rate.Cell(data, "none", 0.0, seed, 250, 2)
        for seed in range(3)
        for data in ("landmarks", "digits", "digits-cnn")
    ]
    assert [(cell.seed, cell.data) for cell in rate.by_urgency(cells, None)] == [
        *((seed, data) for seed in (2, 1, 0) for data in ("digits-cnn", "digits")),
        *((seed, "landmarks") for seed in (2, 1, 0)),
    ]
