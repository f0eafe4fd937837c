"""A message names arguments as the caller writes them: by Python's names, or by flags of the running command."""

import ast
import dataclasses
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from typer.main import get_command

import gradsieve as package
from gradsieve.arguments import again, argument, elsewhere, flags, spelled
from gradsieve.audit.command import audit_command
from gradsieve.audit.file import audit_file
from gradsieve.cli.options import app, flags_of
from gradsieve.data.fetch import fetch
from gradsieve.errors import GradsieveError, InputError
from gradsieve.experiments.bench import bench, find_workload
from gradsieve.experiments.grid import Scope, read_seeds
from gradsieve.experiments.publish import publish_folder
from gradsieve.experiments.ray_pool import read_cluster
from gradsieve.experiments.reproduce import dry_run, reproduce
from gradsieve.experiments.sweep import sweep_file
from gradsieve.experiments.workers import Task, attempt
from gradsieve.files.fit import fit_file, predict_file
from gradsieve.report.html import check_out
from gradsieve.streams.encoder import Encoder
from gradsieve.tables.encoding import Encoding, NumberColumn
from gradsieve.tables.frame import Frame
from gradsieve.tables.targets import Targets
from gradsieve.training.loop import train
from gradsieve.training.run import Run, make_run
from gradsieve.training.tally import Tally

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

SOURCE = Path(package.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def leaves(command, name=""):
    """Every command by what a person types to call it."""
    for each, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, f"{name} {each}".strip())
    if not hasattr(command, "commands"):
        yield name, command


COMMANDS = dict(leaves(get_command(app)))


# How an argument is spelled.

FLAGS = {"targets": "--target", "bad_rows": "--bad-rows", "resume": "--resume", "jobs": "--jobs"}
FLAGS |= {"method_options": "--method-option", "categorical": "--categorical"}


@pytest.mark.parametrize(
    ("given", "in_python", "in_a_shell"),
    [
        (["targets"], "targets", "--target"),
        (["bad_rows", "skip"], "bad_rows='skip'", "--bad-rows skip"),
        (["resume", True], "resume=True", "--resume"),
        (["jobs", 1], "jobs=1", "--jobs 1"),
        (["categorical", "zip code"], "categorical='zip code'", "--categorical 'zip code'"),
        (["method_options", {"balanced": True}], "method_options={'balanced': True}", "--method-option balanced=true"),
        (["method_options", {"passes": "one"}], "method_options={'passes': 'one'}", "--method-option passes=one"),
        (["ramp", 3], "ramp=3", "ramp=3"),  # which this command does not have
    ],
)
def test_an_argument_is_spelled_as_its_caller_writes_it(given, in_python, in_a_shell):
    assert argument(*given) == in_python
    with spelled(FLAGS):
        assert argument(*given) == in_a_shell
    assert argument(*given) == in_python


def test_the_way_out_to_another_place_is_spelled_likewise():
    assert elsewhere() == "Choose another folder as out."
    with spelled({"to": "--to"}):
        assert elsewhere("Make room", what="file", name="to") == "Make room, or choose another file as --to."


def test_what_can_be_resumed_is_told_to_whoever_can():
    assert again() == "try again (a run or a streamed fit goes on with resume=True)"
    with spelled({"resume": "--resume"}):
        assert again() == "try again (a run or a streamed fit goes on with --resume)"
    with spelled({"out": "--out"}):
        assert again() == "try again"


def test_threads_that_read_for_a_command_speak_its_language():
    said = []
    with spelled(FLAGS):
        thread = threading.Thread(target=lambda: said.append(argument("targets")))
        thread.start()
        thread.join()
    assert said == ["--target"]


@pytest.mark.parametrize(
    ("command", "name", "flag"),
    [
        ("fit", "targets", "--target"),
        ("fit", "method_options", "--method-option"),
        ("fit", "categorical", "--categorical"),
        ("train", "data_dir", "--data-dir"),
        ("reproduce", "gpus_per_run", "--gpus-per-run"),
        ("data fetch", "to", "--to"),
    ],
)
def test_a_command_knows_its_flags_by_the_names_that_python_has(command, name, flag):
    assert flags_of(COMMANDS[command])[name] == flag


def test_processes_that_train_for_a_command_speak_its_language(tmp_path):
    (tmp_path / "file").touch()
    task = Task(make_run("digits", epochs=1), tmp_path / "file")
    assert attempt(task).text.endswith("Choose another folder as out.")
    assert attempt(task._replace(flags={"out": "--out"})).text.endswith("Choose another folder as --out.")


def test_what_is_wrong_in_a_file_is_not_laid_to_a_flag():
    content = {**make_run("digits").to_json(), "epochs": 0}
    with spelled(flags_of(COMMANDS["train"])), pytest.raises(InputError, match=r"^epochs is 0"):
        Run.from_json(content)


def test_a_warning_names_the_flags_of_the_command_that_has_them():
    tally = Tally.empty(2, torch.device("cpu"))
    tally.seen_of_class += 100
    tally.kept_of_class[0] += 100
    assert tally.forsaken().endswith("(drop_rate), or let the rate rise more slowly (ramp).")
    with spelled(flags_of(COMMANDS["train"])):
        assert "trim every class alike (--method-option balanced=true)" in tally.forsaken()
        assert tally.forsaken().endswith("(--drop-rate), or let the rate rise more slowly (--ramp).")
    with spelled(flags_of(COMMANDS["reproduce"])):
        assert not FLAG.search(tally.forsaken())


# What the source says.

# These files write whole commands, so they may contain flags; methods_page describes both Python and the command.
WRITE_COMMANDS = {"training/command.py", "training/versions.py", "audit/command.py", "experiments/results_table.py"}
WRITE_COMMANDS |= {"report/methods_page.py"}
OF_A_NAMED_COMMAND = re.compile(r"(gradsieve|ray) [a-z]+ --")  # gradsieve train --bounds
TREES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
LIBRARY = {name: tree for name, tree in TREES.items() if not name.startswith("cli/")}


def texts(tree):
    """Every string in the source that is not a docstring."""
    nodes = list(ast.walk(tree))
    remarks = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in remarks]


@pytest.mark.parametrize("name", sorted(LIBRARY.keys() - WRITE_COMMANDS))
def test_below_the_commands_no_message_spells_a_flag(name):
    words = [text for text in texts(LIBRARY[name]) if isinstance(text, str)]
    assert not [text for text in words if FLAG.search(text) and not OF_A_NAMED_COMMAND.search(text)]


def named_arguments():
    """The names that the source gives to `argument`, and where."""
    for place, tree in TREES.items():
        for node in ast.walk(tree):
            is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "argument"
            if is_call and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value, place


def python_names():
    """Every parameter and field below the commands."""
    for tree in LIBRARY.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def test_every_argument_that_is_named_is_one_in_python_and_a_flag_of_some_command():
    named = dict(named_arguments())
    assert named
    known = {name for command in COMMANDS.values() for name in flags_of(command)}
    assert not {name: place for name, place in named.items() if name not in known}
    assert not named.keys() - set(python_names())


def test_every_setting_of_a_run_has_its_flag():
    assert not {field.name for field in dataclasses.fields(Run)} - flags_of(COMMANDS["train"]).keys()


# Messages about the same faults in Python and by the command.


class Fault(NamedTuple):
    """One mistake, made twice; the message names these arguments."""

    call: Any
    command: list[str]
    names: list[str]


def options(given):
    """What is given to a function, as words for its command."""
    words = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        each = value if isinstance(value, list) else [value]
        words += [flag if one is True else f"{flag}={one}" for one in each if one is not None]
    return words


def of_file(function, command, data, *names, target="y", out="out", **given):
    """A fault of a function of (data, targets, out), and of its command."""
    words = options({"target": target, "out": out, **given})
    return Fault(partial(function, data, target or (), out, **given), [command, data, *words], list(names))


def of_audit(source, *names, target="y", out="out", clean=None, repair=None):
    """A fault of an audit."""
    words = options({"target": target, "out": out, "clean": clean, "repair": repair})
    places = [each and Path(each) for each in (source, out, clean, repair)]
    return Fault(
        partial(audit_command, *places, targets=[target] if target else []), ["audit", source, *words], list(names)
    )


def of_names(column):
    """A fault of the column that names the rows of an audit."""
    return Fault(
        partial(audit_file, "table.csv", "y", id_column=column),
        ["audit", "table.csv", "--target", "y", "--id", column, "--out", "out"],
        ["id_column"],
    )


def of_run(*names, out="out", save_every=30.0, **given):
    """A fault of a run."""
    return Fault(
        lambda: train(make_run(**{"data": "digits", **given}), out, save_every=save_every),
        ["train", *options({**given, "out": out, "save_every": save_every})],
        list(names),
    )


def of_grid(name, *names, out="out", jobs=None, **given):
    """A fault of a grid."""
    words = options({**given, "out": out, "jobs": jobs})
    return Fault(
        partial(reproduce, name, Scope(**given), Path(out), jobs=jobs), ["reproduce", name, *words], list(names)
    )


fit, sweep = partial(of_file, fit_file, "fit"), partial(of_file, sweep_file, "sweep")
FAULTS = {
    "no target": fit("table.csv", "targets", target=None),
    "no such target": fit("table.csv", "targets", target="z"),
    "no such column to ignore": fit("table.csv", "ignore", ignore=["z"]),
    "a target ignored": fit("table.csv", "ignore", ignore=["y"]),
    "codes as an amount": fit("table.csv", "categorical", "targets", categorical=["y"], task="regression"),
    "dates as a target": fit("table.csv", "categorical", target="the day"),
    "a target that is the same everywhere": fit("table.csv", "targets", target="same", task="regression"),
    "one class": fit("table.csv", "targets", target="same", task="classification"),
    "as many classes as rows": fit("table.csv", "targets", "task", task="classification"),
    "codes too large": fit("large.csv", "categorical", task="classification"),
    "a word among numbers": fit("word.csv", "categorical"),
    "a folder that is there": fit("table.csv", "out", out="full"),
    "a folder below a file": fit("table.csv", "out", out="file/out"),
    "no stream to resume": fit("table.csv", "resume", resume=True),
    "no stream to skip rows of": fit("table.csv", "bad_rows", bad_rows="skip"),
    "shards in memory": fit("rows.parquet", "bad_rows", "stream", bad_rows="skip"),
    "no stream": fit("table.csv", "stream", stream=True),
    "a stream that is begun": fit("rows.parquet", "resume", "out", out="begun", stream=True),
    "a target of images": fit("images", "targets"),
    "amounts of images": fit("images", "task", target=None, task="regression"),
    "a rate beyond 1": fit("table.csv", "drop_rate", drop_rate=1.5),
    "a rate in words": fit("table.csv", "drop_rate", drop_rate="much"),
    "no epochs": fit("table.csv", "epochs", epochs=0),
    "batches of one": fit("table.csv", "batch_size", batch_size=1),
    "a seed below 0": fit("table.csv", "seed", seed=-1),
    "no such device": fit("table.csv", "device", device="tpu"),
    "predictions that are there": Fault(
        lambda: predict_file("model", "table.csv", "file"), ["predict", "model", "table.csv", "--out=file"], ["out"]
    ),
    "too few trials": sweep("table.csv", "trials", trials=1),
    "a sweep of no target": sweep("table.csv", "targets", target=None),
    "an audit without a place": of_audit("table.csv", "out", out=None),
    "an audit that is there": of_audit("table.csv", "out", out="full"),
    "an audit of no target": of_audit("table.csv", "targets", target=None),
    "one copy for two": of_audit("table.csv", "clean", "repair", clean="new.csv", repair="new.csv"),
    "a copy of another format": of_audit("rows.parquet", clean="new.csv"),
    "names of rows that are no column": of_names("nix"),
    "names of rows that are the target": of_names("y"),
    "targets of a run": of_audit("run", "targets", "clean", "repair"),
    "a run of no epochs": of_run("epochs", epochs=0),
    "a run of batches of one": of_run("batch_size", "method", batch_size=1),
    "a run that keeps no row": of_run("batch_size", "drop_rate", batch_size=4, drop_rate=0.8),
    "a run's rate": of_run("drop_rate", drop_rate=1.5),
    "a rate of nothing": of_run("rate", "corruption", rate=0.3),
    "a run's preset": of_run("preset", preset="best"),
    "a run's unit": of_run("schedule_unit", schedule_unit="hour"),
    "a run's learning rate": of_run("learning_rate", learning_rate=-1.0),
    "a run's device": of_run("device", device="tpu"),
    "crops of what is no image": of_run("augment", augment="crop-flip"),
    "graphs on a CPU": of_run("engine", engine="captured", device="cpu"),
    "states before they are made": of_run("save_every", save_every=-1.0),
    "no folder of data": of_run("data_dir", data="cifar10"),
    "words in a table": of_run("data_options", data="table", data_dir="word.csv"),
    "a run into a file": of_run("out", out="file"),
    "a run into another's folder": of_run("out", out="full"),
    "a run below a file": of_run("out", out="file/out"),
    "seeds in words": Fault(lambda: read_seeds("some"), ["reproduce", "table2", "--seeds=some"], ["seeds"]),
    "no such cluster": Fault(lambda: read_cluster("slurm"), ["reproduce", "table2", "--cluster=slurm"], ["cluster"]),
    "one and a half GPUs": Fault(
        lambda: read_cluster("ray", 1.5),
        ["reproduce", "table2", "--cluster=ray", "--gpus-per-run=1.5"],
        ["gpus_per_run"],
    ),
    "a share of a GPU for no cluster": Fault(
        lambda: read_cluster(None, 0.25),
        ["reproduce", "table2", "--dry-run", "--gpus-per-run=0.25"],
        ["gpus_per_run", "cluster"],
    ),
    "no jobs": of_grid("table2", "jobs", jobs=0),
    "time beside others": of_grid("table4", "jobs", jobs=2),
    "a grid's preset": of_grid("table2", "preset", preset="best"),
    "a grid without its data": of_grid("table2", "data_dir"),
    "a grid in a file": of_grid("table2", "out", out="file"),
    "a grid in another's folder": of_grid("table2", "out", out="full"),
    "publishing below a file": Fault(
        lambda: publish_folder(SOURCE.parents[1] / "results", Path("file/to")),
        ["publish", str(SOURCE.parents[1] / "results"), "--to=file/to"],
        ["to"],
    ),
    "data below a file": Fault(
        lambda: fetch("mnist", Path("file/to")), ["data", "fetch", "mnist", "--to=file/to"], ["to"]
    ),
    "a report in a folder": Fault(lambda: check_out(Path("full")), ["report", "run", "--out=full"], ["out"]),
    "a report nowhere": Fault(lambda: check_out(Path("no/r.html")), ["report", "run", "--out=no/r.html"], ["out"]),
    "a report over another file": Fault(lambda: check_out(Path("file")), ["report", "run", "--out=file"], ["out"]),
    "too few turns": Fault(lambda: bench(find_workload("mlp"), [], turns=1), ["bench", "--turns=1"], ["turns"]),
    "a workload of one row": Fault(lambda: find_workload("mlp", 1), ["bench", "--batch-size=1"], ["batch_size"]),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files to make mistakes about."""
    monkeypatch.chdir(tmp_path)
    days = [f"2024-01-{day:02d}" for day in range(1, 31)]
    rows = [f"{row},{row % 7}.5,{row * 1.25},1,{day}" for row, day in enumerate(days)]
    Path("table.csv").write_text("\n".join(["a,b,y,same,the day", *rows]))
    Path("large.csv").write_text("\n".join(["a,y", *(f"{row % 9},{2**53 + row % 2}" for row in range(30))]))
    Path("word.csv").write_text("\n".join(["a,y", "many,1", *(f"{row},{row * 1.25}" for row in range(30))]))
    pq.write_table(pa.table({"a": np.arange(40.0), "y": np.arange(40.0) * 1.25}), "rows.parquet")
    for folder in ("full", "begun/fit", "images/dark", "run"):
        Path(folder).mkdir(parents=True)
    for file in ("full/letter", "file", "images/dark/1.png"):
        Path(file).write_text("mine")
    Path("begun/fit/config.json").write_text("{}")
    Path("run/config.json").write_text("{}")


def message(call):
    with pytest.raises(GradsieveError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", FAULTS)
def test_a_message_speaks_to_who_called(name, here, gradsieve):
    call, words, names = FAULTS[name]
    command = COMMANDS[" ".join(words[:2])] if words[0] == "data" else COMMANDS[words[0]]
    own = flags_of(command)
    in_python, answer = message(call), gradsieve(*words)
    assert not FLAG.search(in_python)
    assert not [each for each in names if not re.search(rf"(?<![\w-]){each}\b", in_python)], in_python
    assert answer.code == 2
    in_a_shell = answer.err.splitlines()[-1].removeprefix("error: ")
    real = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    assert {own[each] for each in names} <= set(FLAG.findall(in_a_shell)) <= real, in_a_shell
    assert not [each for each in own if "_" in each and re.search(rf"\b{each}\b", in_a_shell)], in_a_shell
    with spelled(own):  # and the rest is the same, word for word
        assert message(call) == in_a_shell
    assert not flags()


def test_a_row_found_bad_on_the_way_speaks_to_who_called():
    targets = Targets("regression", ["y"], [], [0.0], [1.0])
    encoder = Encoder(Encoding([NumberColumn("a", 0.0, 1.0, False)]), targets, ["y"], True, "stop")
    rows = Frame(Path("rows.parquet"), {"a": np.array([1.0, np.inf]), "y": np.array([1.0, 2.0])})
    assert message(lambda: encoder.usable(rows)).endswith("leave such rows out with bad_rows='skip'.")
    with spelled(flags_of(COMMANDS["fit"])):
        assert message(lambda: encoder.usable(rows)).endswith("leave such rows out with --bad-rows skip.")


def test_a_note_speaks_to_who_called(here, gradsieve):
    Path("words.csv").write_text("\n".join(["a,y", *(f'"{row % 9},5",{row * 1.25}' for row in range(30))]))
    notes = []
    assert "epochs" in message(lambda: fit_file("words.csv", "y", "out", epochs=0, note=notes.append))
    said = gradsieve("fit", "words.csv", "--target=y", "--out=out", "--epochs=0").err
    assert any("or give categorical='a' if they are words" in each for each in notes)
    assert "or give --categorical a if they are words" in said


def test_an_estimate_speaks_to_who_called(here, gradsieve):
    given = {"data": "digits", "rows": ("sym-40",), "methods": ("spl",), "seeds": (1, 2), "epochs": 1, "device": "cpu"}
    plan = dry_run("table2", Scope(**given), Path("grid"), jobs=2)
    assert "with jobs=2 if they" in list(plan.lines())[-1]
    words = ["--data=digits", "--rows=sym-40", "--methods=spl", "--seeds=2", "--epochs=1", "--device=cpu", "--jobs=2"]
    assert "with --jobs 2 if they" in gradsieve("reproduce", "table2", *words, "--out=grid", "--dry-run").out
