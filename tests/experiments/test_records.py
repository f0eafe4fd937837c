"""Records: what is kept of a run, how files of them grow, and that the command in each trains that run."""

import json
import shlex
import sys
from dataclasses import replace

import pytest

from gradsieve.cli import main
from gradsieve.errors import InputError
from gradsieve.experiments.grid import Scope, make_cells
from gradsieve.experiments.publish import publish
from gradsieve.experiments.records import epoch_seconds, in_order, make_record, merge, read_records, write_records
from gradsieve.training import loop
from gradsieve.training.command import train_command

(CELL,) = make_cells("table2", Scope(rows=("CF10-pf-45",), methods=("prl-l",), seeds=(3,)))


def summary(**changes):
    versions = {"torch": "2.13", "device": "NVIDIA H200", "commit": "abc"}
    figures = {"last10_mean": 0.7, "last": 0.71, "purity": 0.8, "seconds": 12.345, "precision": "bf16"}
    return {"metric": "accuracy", "run": CELL.run.to_json(), "versions": versions, **figures, **changes}


HISTORY = [{"test": 0.65, "seconds": 9.0}, {"test": 0.74, "seconds": 11.0}, {"test": 0.71, "seconds": 14.0}]
RECORD = make_record(CELL, summary(), HISTORY)


def test_a_record_says_where_it_stands_what_came_out_and_where_it_comes_from():
    assert RECORD == {
        "row": "CF10-pf-45",
        "method": "prl-l",
        "seed": 3,
        "preset": "authors",
        "epochs": 49,
        "last10_mean": 0.7,
        "last": 0.71,
        "purity": 0.8,
        "seconds": 12.3,
        "command": "gradsieve train --data cifar10 --corruption pairflip --rate 0.45 --method prl-l --preset authors "
        "--seed 3 --compile shared",
        "commit": "abc",
        "device": "NVIDIA H200",
        "torch": "2.13",
        "precision": "bf16",
        "best": 0.74,
        "best_epoch": 2,
        "curve": [0.65, 0.74, 0.71],
    }


def test_records_of_two_states_of_a_code_are_not_put_together():
    """Their mean would be that of neither."""
    old, new = ({**RECORD, "seed": seed, "sources": {"mine:Mine": f"{seed}ab"}} for seed in (1, 2))
    assert merge([old], [{**old, "seed": 3}, {**RECORD, "seed": 4}], where="here")
    with pytest.raises(InputError, match="here would hold runs of mine:Mine from two states of its code"):
        merge([old], [new], where="here")


def test_what_is_not_a_number_becomes_null():
    record = make_record(CELL, summary(last=None, last10_mean=None), [{"test": None}, {"test": 0.5}])
    assert (record["last"], record["best"], record["curve"]) == (None, 0.5, [None, 0.5])
    json.dumps(record, allow_nan=False)


def test_the_first_epoch_does_not_count_as_time():
    assert epoch_seconds([9.0, 11.0, 14.0, 16.0]) == 2.0
    assert epoch_seconds([9.0]) == 9.0
    (timed,) = make_cells("table4", Scope(methods=("standard",)))
    assert make_record(timed, summary(), HISTORY)["epoch_seconds"] == 2.5


CELLS = [
    *make_cells("table2", Scope(rows=("CF100-pf-45",), seeds=(4,), preset="proper", data_dir="here")),
    *make_cells("table3", Scope(rows=("CF10-sym-70",), seeds=(1,), data_dir="here")),
    *make_cells("passes", Scope(rows=("CF10-pf-45",), seeds=(1,), data_dir="here")),
    *make_cells("no-batchnorm", Scope(rows=("CF10-pf-45",), seeds=(1,), data_dir="here")),
    *make_cells("table4", Scope(data_dir="here")),
    *make_cells("table1", Scope(rows=("clean", "mixture-40"), seeds=(1,), data_dir="here")),
    *make_cells("table2", Scope(data="digits", seeds=(1,), epochs=3, model_options={"hidden": [8, 8]})),
]


class Caught(Exception):  # noqa: N818  # it is not an error
    pass


def test_the_command_of_a_record_trains_that_very_run(monkeypatch):
    """For every kind of variant, through the command's own arguments."""

    def catch(run, *rest, **options):
        raise Caught(run)

    monkeypatch.setattr(loop, "train", catch)
    odd = replace(CELLS[0].run, corruption_seed=5, learning_rate=0.00123456789)
    for run in (*(cell.run for cell in CELLS), odd):
        words = shlex.split(train_command(run).replace("DIR", "here"))
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(Caught) as caught:
            main()
        assert caught.value.args[0] == run


def test_files_are_lists_with_a_value_a_line(tmp_path):
    path = tmp_path / "table2.json"
    assert read_records(path) == []
    write_records(path, [RECORD])
    assert read_records(path) == [RECORD]
    assert '\n  "curve": [0.65, 0.74, 0.71]\n }\n]\n' in path.read_text()
    for content, says in (("{", "cannot be read"), ("[1]", "cannot be read"), ('[{"row": "x"}]', "without 'method'")):
        path.write_text(content)
        with pytest.raises(InputError, match=says):
            read_records(path)


def test_another_figure_for_the_same_run_is_never_silent(tmp_path):
    publish(tmp_path, {"table2": [RECORD]})
    before = (tmp_path / "table2.json").read_text()
    publish(tmp_path, {"table2": [RECORD]})
    assert (tmp_path / "table2.json").read_text() == before
    other = {**RECORD, "last10_mean": 0.6}
    with pytest.raises(
        InputError, match=r"another figure for CF10-pf-45 prl-l 3 authors 49 .last10_mean is 0\.7 there"
    ):
        publish(tmp_path, {"table1": [RECORD], "table2": [{**RECORD, "seed": 4}, other]})
    assert (tmp_path / "table2.json").read_text() == before
    assert not (tmp_path / "table1.json").exists()  # nothing was written, as the error says
    assert merge([RECORD], [other], where="", replace=True) == [other]


def test_a_run_of_one_table_is_published_in_every_table_that_has_it(tmp_path):
    """Half of the ablation are runs of Table 2: neither is run twice, whichever came first."""

    def record_of(name, **chosen):
        (cell,) = make_cells(name, Scope(rows=("CF10-pf-45",), seeds=(3,), data_dir="somewhere", **chosen))
        return make_record(cell, summary(), HISTORY)

    plain, other = record_of("table2", methods=("spl",)), record_of("passes", methods=("spl",), variants=("reforward",))
    for order in (("table2", plain), ("passes", other)), (("passes", other), ("table2", plain)):
        folder = tmp_path / order[0][0]
        for name, record in order:
            publish(folder, {name: [record]})
        assert read_records(folder / "table2.json") == [plain]
        index, reforward = read_records(folder / "passes.json")
        assert reforward == other
        assert index == {**plain, "variant": "index"}
        assert sorted(path.name for path in folder.iterdir()) == ["passes.json", "table2.json"]  # no row, no table


def test_the_same_figure_again_may_add_what_was_not_known():
    bare = {name: value for name, value in RECORD.items() if name != "curve"}
    assert merge([bare], [{**RECORD, "commit": "later"}], where="") == [RECORD]


def test_a_model_set_by_hand_is_another_run():
    """A network of half the width must not stand as, or against, a figure of the paper's network."""
    (narrow,) = make_cells(
        "table2", Scope(rows=(CELL.row,), methods=("prl-l",), seeds=(3,), model_options={"width": 0.5})
    )
    record = make_record(narrow, summary(last10_mean=0.6), HISTORY)
    assert record["model_options"] == {"width": 0.5}
    assert merge([RECORD], [record], where="") == [RECORD, record]


def test_records_lie_as_in_the_table():
    chosen = Scope(rows=("CF10-pf-45", "CF10-sym-30"), methods=("co-prl-l", "sever", "spl"), seeds=(2, 1))
    cells = make_cells("table2", chosen)
    records = [make_record(replace(cell), summary(), HISTORY) for cell in cells]
    other = {**RECORD, "row": "digits-sym-40"}
    places = [(each["row"], each["method"], each["seed"]) for each in in_order("table2", [other, *records])]
    assert places == [
        *(("CF10-sym-30", method, seed) for method in ("spl", "co-prl-l", "sever") for seed in (1, 2)),
        *(("CF10-pf-45", method, seed) for method in ("spl", "co-prl-l", "sever") for seed in (1, 2)),
        ("digits-sym-40", "prl-l", 3),
    ]
