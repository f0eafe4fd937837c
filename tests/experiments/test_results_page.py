"""Tables and pictures from records, and that docs/results.md is what results/*.json says."""

import json
from pathlib import Path

import pytest

from gradsieve.experiments.experiment import EXPERIMENTS
from gradsieve.experiments.records import read_records
from gradsieve.experiments.results_page import main, read_results, results_page
from gradsieve.experiments.results_table import draw_records, pictures_of, report_page
from gradsieve.report.bands import draw_bands, over_seeds

ROOT = Path(__file__).resolve().parents[2]


def record(row="CF10-pf-45", method="prl-l", seed=1, **changes):
    return {
        "row": row,
        "method": method,
        "seed": seed,
        "preset": "authors",
        "epochs": 49,
        "last10_mean": 0.7,
        "last": 0.71,
        "seconds": 10.0,
        "command": "gradsieve train",
        "commit": "abc",
        "device": "a device",
        **changes,
    }


def lines(page):
    """The cells of every line of a page's tables."""
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in page.splitlines() if line.startswith("|")]


def test_the_page_of_results_is_what_the_records_render_to():
    results, trials = ROOT / "results", read_records(ROOT / "results" / "trials.json")
    assert (ROOT / "docs" / "results.md").read_text() == results_page(read_results(results), trials), "run `make docs`"


def test_every_file_of_results_belongs_to_an_experiment_and_every_figure_is_on_the_page():
    page = (ROOT / "docs" / "results.md").read_text()
    for path in (ROOT / "results").glob("*.json"):
        experiment = EXPERIMENTS[path.stem if path.stem != "trials" else "table2"]
        for each in json.loads(path.read_text()):
            assert each["row"] in experiment.rows
            assert each["commit"] in page


def test_ours_stands_under_the_papers_with_its_spread():
    records = [record(seed=seed, last10_mean=mean) for seed, mean in enumerate((0.70, 0.71, 0.72))]
    page = report_page("table2", [*records, record(method="sever")], [])
    assert lines(page) == [
        ["row", "", "prl-l", "sever"],
        ["---"] * 4,
        ["CF10-pf-45", "paper", "71.42±0.24", ""],
        ["", "gradsieve", "71.00±1.00 (3)", "70.00 (1)"],
        ["", "last epoch", "71.00±0.00 (3)", "71.00 (1)"],
    ]
    assert "Runs: 4; seeds: 0, 1, 2; a device; commit abc; 40 s in all." in page


def test_a_trial_stands_beside_the_run_in_which_nothing_was_changed():
    trials = [record(change="--ramp 20", last10_mean=0.5), record(method="spl", change="another eps (a branch)")]
    narrow = record(model_options={"width": 0.5}, last10_mean=0.3)
    others = [
        record(seed=2, last10_mean=0.1),
        record(preset="proper", last10_mean=0.2),
        narrow,
        record(last10_mean=0.66),
    ]
    page = results_page({"table2": others}, trials)
    assert lines(page)[-2:] == [
        ["CF10-pf-45", "prl-l", "authors", "1", "`--ramp 20`", "50.00", "66.00", "71.42±0.24"],
        ["CF10-pf-45", "spl", "authors", "1", "another eps (a branch)", "70.00", "", "58.95±0.59"],
    ]
    assert "Trials" not in results_page({"table2": others}, [])


def test_every_trial_is_told():
    told = (ROOT / "docs" / "reproduction.md").read_text()
    for trial in read_records(ROOT / "results" / "trials.json"):
        assert f"{100 * trial['last10_mean']:.2f}" in told, trial["change"]


def test_what_nobody_ran_stays_blank():
    table = lines(report_page("table2", [record()], [], blanks=True))
    experiment = EXPERIMENTS["table2"]
    assert table[0] == ["row", "", *experiment.methods]
    assert [line[0] for line in table[2:] if line[0]] == list(experiment.rows)
    ours = {tuple(line[2:]) for line in table if line[1] == "gradsieve"}
    assert ours == {("",) * 9, ("",) * 6 + ("70.00 (1)",) + ("",) * 2}


def test_presets_lengths_and_models_do_not_mix():
    short = {"epochs": 3, "command": "gradsieve train --epochs 3"}
    narrow = record(model_options={"width": 0.5}, curve=[0.1])
    page = report_page("table2", [record(), record(preset="proper"), record(**short), narrow], [])
    assert list(pictures_of("table2", [narrow])) == ["table2-authors-49-width-0.5.png"]
    titles = [line for line in page.splitlines() if line.startswith("###")]
    assert titles == [
        "### Preset authors, 3 epochs (set by hand)",
        "### Preset authors, 49 epochs",
        "### Preset authors, 49 epochs, width=0.5 (set by hand)",
        "### Preset proper, 49 epochs",
    ]


def test_what_is_not_a_number_is_said_to_be_so():
    page = report_page("table1", [record(row="linadv-10", last=None), record(row="linadv-10", seed=2)], [])
    assert ["", "gradsieve", "0.700±0.000 (2)"] in lines(page)
    assert ["", "last epoch", "not a number"] in lines(page)


def test_plain_training_at_its_best_epoch_is_told():
    page = report_page(
        "table2", [record(method="standard", seed=seed, best=best) for seed, best in ((1, 0.6), (2, 0.62))], []
    )
    assert "Stopped at its best epoch by the test labels, standard would reach: CF10-pf-45 61.00." in page


def test_times_are_compared_by_ratio_only_where_plain_training_was_timed():
    timed = [
        record(method=method, variant="groupnorm", epoch_seconds=seconds)
        for method, seconds in (("standard", 0.2), ("prl-l", 0.244))
    ]
    table = lines(report_page("table4", timed, []))
    assert table[2:] == [
        ["CF10-pf-45", "paper", "37.03", "54.80"],
        ["", "gradsieve", "0.20 (1)", "0.24 (1)"],
        ["", "paper, ratio", "1.00", "1.48"],
        ["", "gradsieve, ratio", "1.00", "1.22"],  # of the times, not of what is printed of them
    ]
    assert lines(report_page("table4", timed[1:], []))[-1] == ["", "gradsieve, ratio", ""]


# Pictures.


def test_a_band_is_the_spread_over_the_seeds():
    mean, spread = over_seeds([[0.5, 0.6, 0.9], [0.7, 0.6]])
    assert mean == pytest.approx([0.6, 0.6])
    assert spread == pytest.approx([0.02**0.5, 0])
    assert over_seeds([[0.5]]) == ([0.5], [0.0])


def test_pictures_are_drawn_from_records_and_linked_from_the_page(tmp_path):
    curves = [
        record(row, method, seed, curve=[0.1 * seed, 0.5, 0.7])
        for row in ("CF10-pf-45", "CF10-sym-50")
        for method in ("spl", "prl-l")
        for seed in (1, 2)
    ]
    assert draw_records("table2", [record(method="standard")], tmp_path) == []
    (tmp_path / "table2.json").write_text(json.dumps(curves))
    main(tmp_path, tmp_path / "results.md")
    page = (tmp_path / "results.md").read_text()
    assert "](results-table2-authors-49.png)" in page
    assert (tmp_path / "results-table2-authors-49.png").stat().st_size > 5000
    assert draw_records("table4", [record(variant="groupnorm", curve=[0.1])], tmp_path) == []


def test_curves_that_are_lost_are_named_and_many_panels_have_room(tmp_path):
    panels = {f"row {number}": {"good": [[0.1, 0.9], [0.2, 0.8]], "lost": [[-20.0, None]]} for number in range(5)}
    draw_bands(panels, tmp_path / "deep" / "bands.png")
    assert (tmp_path / "deep" / "bands.png").read_bytes().startswith(b"\x89PNG")
