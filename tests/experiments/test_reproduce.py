"""Small grids from beginning to end: run once, killed, interrupted, resumed, and refused where they must be."""

import fcntl
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

from gradsieve.errors import CheckpointError, GradsieveError, InputError, RunFolderError
from gradsieve.experiments import features, reproduce
from gradsieve.experiments.features import FeatureSettings
from gradsieve.experiments.grid import Scope, cell_path
from gradsieve.experiments.watch import LiveTable, Watch
from gradsieve.experiments.workers import Outcome, Task, run_in_workers
from gradsieve.training.folder import read_folder
from gradsieve.training.loop import train
from gradsieve.training.run import make_run

DIGITS = Scope(
    data="digits",
    rows=("sym-40",),
    methods=("spl", "prl-l"),
    seeds=(1, 2),
    epochs=3,
    model_options={"hidden": [8]},
    device="cpu",
)
LONG = 60  # epochs that leave time for a signal


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def outcome(path):
    """What a finished run leaves, but the time it took, and the sum that knows it."""
    result = read_folder(path).result()
    return {name: value for name, value in result.items() if name not in ("seconds", "versions", "figures_sha256")}


def choose(**changes):
    return Scope(**{**DIGITS.__dict__, **changes})


def test_a_grid_is_run_once_and_grows(tmp_path, capsys):
    out = tmp_path / "grid"
    first = reproduce.reproduce("table2", DIGITS, out, show=True).records["table2"]
    said = capsys.readouterr().out
    assert re.search(r"\[4/4\] digits-sym-40 prl-l seed 2: accuracy 0\.\d+ in \d+ s, time left 0 s", said)
    assert [(record["method"], record["seed"]) for record in first] == [
        ("spl", 1),
        ("spl", 2),
        ("prl-l", 1),
        ("prl-l", 2),
    ]
    record = first[2]
    alone = train(
        make_run(
            "digits",
            "prl-l",
            corruption="symmetric",
            rate=0.4,
            preset="authors",
            seed=1,
            epochs=3,
            model_options={"hidden": [8]},
            device="cpu",
        )
    )
    assert record["last10_mean"] == alone.last10_mean
    assert (record["preset"], record["epochs"], record["device"]) == ("authors", 3, "cpu x 1")
    assert len(record["curve"]) == 3
    page = (out / "table2.md").read_text()
    assert "3 epochs, hidden=[8] (set by hand)" in page
    assert "| digits-sym-40 | gradsieve | " in page
    assert (out / "table2-authors-3-hidden-8.png").read_bytes().startswith(b"\x89PNG")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    more = reproduce.reproduce("table2", choose(methods=("standard",), seeds=(1,)), out, show=True).records["table2"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert more[1:] == first  # and what was there stays in the report
    assert capsys.readouterr().out.count("[") == 1


SCORE = "from gradsieve.methods.prl_l import PRLL\n\n\nclass Mine(PRLL):\n    pass\n"


def test_old_and_new_code_have_no_mean_in_common(tmp_path, write_module):
    """Of an edited method neither are old figures shown, nor new ones averaged with them."""
    out = tmp_path / "grid"
    scope = choose(methods=("standard", "mine:Mine"), epochs=1)
    write_module("mine", SCORE)
    (first, *_) = (record for record in run_grid(scope, out) if record["method"] == "mine:Mine")
    write_module("mine", f"{SCORE}    drops_more = True\n")
    for again in (scope, replace(scope, seeds=(1, 2, 3))):
        with pytest.raises(RunFolderError, match=r"mine\.py has changed since\. Delete it and the others of that code"):
            reproduce.reproduce("table2", again, out)
        with pytest.raises(RunFolderError, match=r"mine\.py has changed since"):
            reproduce.dry_run("table2", again, out)
    for folder in (out / "runs" / "digits-sym-40").glob("mine.Mine-*"):
        shutil.rmtree(folder)
    (new,) = (record for record in run_grid(replace(scope, seeds=(2,)), out) if record["method"] == "mine:Mine")
    assert new["sources"].keys() == first["sources"].keys() == {"mine:Mine"}
    assert new["sources"] != first["sources"]


def run_grid(scope, out):
    return reproduce.reproduce("table2", scope, out).records["table2"]


def test_cifar_from_its_binary_files(cifar, tmp_path):
    """Rows of the paper have its figure beside ours; equal runs of two experiments are run once."""
    options = {"model_options": {"width": 0.03}, "data_dir": str(cifar), "epochs": 1, "device": "cpu", "seeds": (1,)}
    scope = Scope(rows=("CF10-pf-45",), methods=("co-prl-l",), **options)
    (record,) = reproduce.reproduce("table2", scope, tmp_path).records["table2"]
    assert "| CF10-pf-45 | paper | 73.78±0.17 |" in (tmp_path / "table2.md").read_text()
    assert record["command"].startswith(
        "gradsieve train --data cifar10 --data-dir DIR --corruption pairflip --rate 0.45"
    )
    seen = []

    class Seen(Watch):
        def started(self, cell):
            seen.append(cell.variant)

    cells = reproduce.plan("table3", scope, tmp_path)
    reproduce.run_cells(cells, tmp_path, jobs=1, watch=Seen(cells, tmp_path, 1, "cpu"))
    assert seen == ["eps-0.10", "eps-0.05", "eps+0.05", "eps+0.10"]


def test_the_folder_of_the_data_may_be_spelled_otherwise(cifar, tmp_path, monkeypatch):
    monkeypatch.chdir(cifar.parent)
    chosen = {"rows": ("CF10-pf-45",), "methods": ("spl",), "seeds": (1,)}
    whole, short = (
        reproduce.plan("table2", Scope(data_dir=folder, **chosen), tmp_path) for folder in (str(cifar), cifar.name)
    )
    assert whole == short


def test_table4_tells_seconds_and_ratios(cifar, tmp_path):
    scope = Scope(
        methods=("standard", "prl-l"), model_options={"width": 0.03}, data_dir=str(cifar), device="cpu", epochs=2
    )
    records = reproduce.reproduce("table4", scope, tmp_path).records["table4"]
    assert all(record["epoch_seconds"] > 0 for record in records)
    page = (tmp_path / "table4.md").read_text()
    assert "|  | paper, ratio | 1.00 | 1.48 |" in page
    assert re.search(r"\|  \| gradsieve, ratio \| 1\.00 \| \d+\.\d\d \|", page)
    with pytest.raises(InputError, match="measures time"):
        reproduce.reproduce("table4", scope, tmp_path, jobs=2)


def test_table1_makes_its_features_first(write_faces, tmp_path, monkeypatch):
    small = FeatureSettings(size=16, width=0.1, batch_size=16, epochs=1)
    monkeypatch.setattr(features, "FeatureSettings", lambda: small)
    faces, out = write_faces(tmp_path / "celeba"), tmp_path / "grid"
    scope = Scope(
        rows=("linadv-30", "clean"),
        methods=("prl-l",),
        seeds=(1,),
        epochs=2,
        data_dir=str(tmp_path),
        model_options={"hidden": [8]},
        device="cpu",
    )
    records = reproduce.reproduce("table1", scope, out).records["table1"]
    assert [(record["row"], record["method"]) for record in records] == [("linadv-30", "prl-l"), ("clean", "standard")]
    page = (out / "table1.md").read_text()
    assert "| clean | gradsieve |" in page
    assert "2 epochs, hidden=[8], 60/20/40 images instead of CelebA's (set by hand)" in page
    faces.rename(tmp_path / "elsewhere")  # finished runs need neither images nor features
    assert reproduce.reproduce("table1", scope, out).records["table1"] == records


# Killed, interrupted, out of disk.


def start(out):
    """The command in a process of its own, with one run in a worker."""
    command = [
        sys.executable,
        "-m",
        "gradsieve",
        "reproduce",
        "table2",
        "--data=digits",
        "--rows=sym-40",
        "--device=cpu",
    ]
    command += ["--methods=prl-l", "--seeds=1", f"--epochs={LONG}", "--model-option=hidden=[8]", "--jobs=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, f"--out={out}"], env=environment, stdout=subprocess.DEVNULL)


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def begun(out):
    return len(list(out.rglob("metrics.jsonl")))


def is_in_use(path):
    """Whether a worker still holds the run's lock: it saves first, and lets go then."""
    lock = path / "state" / "lock"
    if not lock.exists():
        return False
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_killed_grid_goes_on_to_the_same_bits(tmp_path):
    """Its worker notices that it is gone, saves what it is at and leaves."""
    out, scope = tmp_path / "grid", choose(methods=("prl-l",), seeds=(1,), epochs=LONG)
    (cell,) = reproduce.plan("table2", scope, out)
    path = cell_path(out, cell)
    process = start(out)
    wait_for(lambda: begun(out) == 1)
    process.kill()
    process.wait()
    wait_for(lambda: read_folder(path).finished or read_folder(path).states())
    wait_for(lambda: not is_in_use(path))
    reproduce.reproduce("table2", scope, out)
    train(cell.run, tmp_path / "undisturbed")
    assert outcome(path) == outcome(tmp_path / "undisturbed")


@pytest.mark.parametrize(("jobs", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_an_interrupted_grid_leaves_states_to_go_on_from(tmp_path, jobs, number):
    """Ctrl-C, or the end of a time limit, with the runs in this process or in others."""
    scope = choose(seeds=(1,), epochs=4000)

    def interrupt():
        wait_for(lambda: begun(tmp_path) == jobs)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce("table2", scope, tmp_path, jobs=jobs)
    folders = [read_folder(path.parent) for path in tmp_path.rglob("config.json")]
    assert [len(folder.states()) for folder in folders] == [1] * jobs
    assert not any(folder.finished for folder in folders)


class EndsItsReader:
    def __reduce__(self):
        return os._exit, (7,)


def test_a_worker_that_dies_is_noticed(tmp_path):
    ended = []
    run_in_workers([Task(EndsItsReader(), tmp_path)], 1, lambda number: None, lambda *each: ended.append(each))
    assert ended == [(0, Outcome("crash", "Its process died (exit code 7)."))]


def test_a_full_disk_stops_the_grid_and_keeps_what_is_finished(tmp_path):
    second = cell_path(tmp_path, reproduce.plan("table2", DIGITS, tmp_path)[1])
    (tmp_path / "out" / second.relative_to(tmp_path)).mkdir(parents=True)
    out = tmp_path / "out"
    out.joinpath("grid.json").write_text(
        json.dumps({"preset": "authors", "epochs": 3, "data": "digits", "model_options": {"hidden": [8]}})
    )
    blocked = out / second.relative_to(tmp_path) / "config.json.part"
    blocked.symlink_to("/dev/full")
    with pytest.raises(GradsieveError, match=r"prl-l seed 1: .*No space left.* try again, and it goes on"):
        reproduce.reproduce("table2", DIGITS, out)
    assert [record["method"] for record in json.loads((out / "table2.json").read_text())] == ["spl"]
    assert len(reproduce.reproduce("table2", DIGITS, out).records["table2"]) == 4


def test_a_full_disk_under_a_picture_is_one_error_too(tmp_path):
    scope = choose(methods=("spl",), seeds=(1,))
    (tmp_path / "grid.json").write_text(
        json.dumps({"preset": "authors", "epochs": 3, "data": "digits", "model_options": {"hidden": [8]}})
    )
    (tmp_path / "table2-authors-3-hidden-8.png.part").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match=r"table2-authors-3-hidden-8\.png could not be written .No space left"):
        reproduce.reproduce("table2", scope, tmp_path)
    assert [record["method"] for record in json.loads((tmp_path / "table2.json").read_text())] == ["spl"]
    reproduce.reproduce("table2", scope, tmp_path)
    assert (tmp_path / "table2-authors-3-hidden-8.png").exists()


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    real = reproduce.attempt
    monkeypatch.setattr(
        reproduce,
        "attempt",
        lambda task: Outcome("diverged", "It became NaN. Try less.") if task.run.method == "spl" else real(task),
    )
    records, failures = reproduce.reproduce("table2", DIGITS, tmp_path, show=True)
    assert [record["method"] for record in records["table2"]] == ["prl-l", "prl-l"]
    assert [(cell.method, cell.seed, reason) for cell, reason in failures] == [
        ("spl", seed, "It became NaN. Try less.") for seed in (1, 2)
    ]
    said = capsys.readouterr().out
    assert "[1/4] digits-sym-40 spl seed 1: no result (It became NaN), time left" in said


# Refused.


def test_the_folder_of_another_grid_is_refused(tmp_path):
    reproduce.reproduce("table2", choose(methods=("spl",), seeds=(1,)), tmp_path)
    for change in ({"preset": "proper"}, {"epochs": 4}, {"model_options": {}}):
        with pytest.raises(RunFolderError, match=f"holds another grid .{next(iter(change))} is .* there"):
            reproduce.reproduce("table2", choose(**change), tmp_path)
        with pytest.raises(RunFolderError, match="holds another grid"):
            reproduce.dry_run("table2", choose(**change), tmp_path)
    result = next(tmp_path.rglob("result.json"))
    written = json.loads(result.read_text())
    result.write_text(json.dumps(written | {"run": written["run"] | {"batch_size": 64}}))
    with pytest.raises(RunFolderError, match=r"holds another run .batch_size is 64 there, 128 here"):
        reproduce.reproduce("table2", DIGITS, tmp_path)
    result.write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        reproduce.reproduce("table2", DIGITS, tmp_path)


def altered(line):
    return json.dumps(json.loads(line) | {"test": 0.99})


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", ["", "{}", "[]", altered])
def test_a_damaged_run_is_named_before_another_begins(tmp_path, name, content):
    """Its figures would be in the table."""
    scope = choose(methods=("spl",), seeds=(1,))
    reproduce.reproduce("table2", scope, tmp_path)
    file = next(tmp_path.rglob(name))
    written = file.read_text()
    if content is not altered:
        file.write_text(content)
    elif name == "result.json":
        file.write_text(json.dumps(json.loads(written) | {"last10_mean": 0.99}))
    else:
        file.write_text("".join(f"{altered(line)}\n" for line in written.splitlines()))
    for act in (reproduce.reproduce, reproduce.dry_run):
        with pytest.raises(CheckpointError, match=r"damaged.* Delete .*/spl-seed1 to train this run again\."):
            act("table2", DIGITS, tmp_path)
    assert len(list((tmp_path / "runs").rglob("config.json"))) == 1
    shutil.rmtree(file.parent)
    assert len(run_grid(DIGITS, tmp_path)) == 4


def test_a_damaged_grid_has_a_way_out(tmp_path):
    run_grid(choose(methods=("spl",), seeds=(1,)), tmp_path)
    (tmp_path / "grid.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"grid\.json is damaged .* Put it back as it was, or choose another"):
        run_grid(DIGITS, tmp_path)


def test_a_grid_that_never_ran_does_not_hold_its_folder(tmp_path):
    """As after data that was not there."""
    with pytest.raises(InputError, match="gradsieve data fetch cifar10"):
        reproduce.reproduce("table2", Scope(rows=("CF10-pf-45",), device="cpu"), tmp_path / "grid")
    assert (tmp_path / "grid" / "grid.json").exists()
    reproduce.dry_run("table2", DIGITS, tmp_path / "grid")
    reproduce.claim(tmp_path / "grid", DIGITS)
    assert json.loads((tmp_path / "grid" / "grid.json").read_text())["data"] == "digits"


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match="not empty and not the folder of a grid"):
        reproduce.reproduce("table2", DIGITS, tmp_path)
    with pytest.raises(RunFolderError, match="is a file, but a grid needs a folder"):
        reproduce.reproduce("table2", DIGITS, tmp_path / "letter.txt")
    with pytest.raises(RunFolderError, match="cannot be made"):
        reproduce.reproduce("table2", DIGITS, tmp_path / "letter.txt" / "grid")


def test_missing_data_and_options_are_found_before_the_first_run(tmp_path):
    scope = Scope(rows=("CF10-pf-45",), data_dir=str(tmp_path), device="cpu")
    with pytest.raises(InputError, match="cifar10: there is no data_batch_1"):
        reproduce.reproduce("table2", scope, tmp_path / "a")
    with pytest.raises(InputError, match="passes"):
        reproduce.reproduce("passes", choose(methods=("spl", "decouple")), tmp_path / "b")
    with pytest.raises(InputError, match="no mlp option 'width'"):
        reproduce.reproduce("table2", choose(model_options={"width": 1}), tmp_path / "d")
    with pytest.raises(InputError, match="jobs is 0"):
        reproduce.reproduce("table2", DIGITS, tmp_path / "c", jobs=0)
    assert not list(tmp_path.rglob("config.json"))


# Shown.


def test_a_table_of_words_serves_the_tables_of_classes(tmp_path):
    file = tmp_path / "things.csv"
    file.write_text("a,b,kind\n" + "".join(f"{row},{row % 7},{('low', 'high')[row // 20]}\n" for row in range(40)))
    scope = Scope(
        ("sym-30",), data="table", data_dir=str(file), methods=("standard",), seeds=(1,), epochs=2, device="cpu"
    )
    records, failures = reproduce.reproduce("table2", scope, tmp_path / "grid", show=False)
    assert not failures
    (record,) = records["table2"]
    assert record["row"] == "table-sym-30"
    assert "--data-option task=classification" in record["command"]


def test_two_tables_do_not_share_a_grid(tmp_path):
    """Finished runs of the one would pass as those of the other."""
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    one.write_text("a,b,c\n" + "".join(f"{row},{row % 7},{row // 20}\n" for row in range(40)))
    other.write_text(one.read_text().replace("6,6,0", "6,6,1"))
    scope = Scope(("sym-30",), data="table", data_dir=str(one), methods=("standard",), epochs=1, device="cpu")
    out = tmp_path / "grid"
    (first,) = run_grid(replace(scope, seeds=(1,)), out)
    for seed in (1, 2):
        for act in (reproduce.reproduce, reproduce.dry_run):
            with pytest.raises(RunFolderError, match=r"holds a grid of other data: .*other\.csv is not what"):
                act("table2", replace(scope, data_dir=str(other), seeds=(seed,)), out)
    moved = one.rename(tmp_path / "moved.csv")  # the same content in another place is the same data
    assert run_grid(replace(scope, data_dir=str(moved), seeds=(1, 2)), out)[0] == first
    moved.write_text(other.read_text())
    with pytest.raises(RunFolderError, match=r"has changed since\. Put it back as it was, or choose another folder"):
        run_grid(replace(scope, data_dir=str(moved), seeds=(1,)), out)
    with pytest.raises(InputError, match=r"table: there is no"):
        reproduce.dry_run("table2", replace(scope, data_dir=str(one)), out)


def test_a_folder_of_your_own_data_is_one_grid(tmp_path, write_module):
    """What is in it, nobody but its source knows."""
    write_module("mine", "from gradsieve.data.digits import DIGITS as MINE\n")
    (tmp_path / "a").mkdir()
    scope = choose(data="mine:MINE", seeds=(1,), methods=("spl",), data_dir=str(tmp_path / "a"))
    run_grid(scope, tmp_path / "grid")
    (tmp_path / "file").write_text("")
    for other in (tmp_path / "b", tmp_path / "file"):
        with pytest.raises(RunFolderError, match="holds a grid of other data"):
            run_grid(replace(scope, data_dir=str(other)), tmp_path / "grid")
    with pytest.raises(RunFolderError, match="other data: a source without a folder is not what its runs"):
        run_grid(replace(scope, data_dir=None), tmp_path / "grid")
    run_grid(replace(scope, data_dir=None), tmp_path / "c")


def test_the_live_table_shows_what_is_at_work_and_what_has_ended(tmp_path):
    console_module = pytest.importorskip("rich.console")
    cells = reproduce.plan("table2", DIGITS, tmp_path)
    watch = LiveTable(cells, tmp_path, 2, "cpu")
    watch.found(cells[0], {"metric": "accuracy", "last10_mean": 0.8125, "seconds": 12.0})
    watch.finished(cells[1], None, "It became NaN. Try less.")
    watch.started(cells[2])
    folder = cell_path(tmp_path, cells[2])
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("{}\n{}\n")
    with console_module.Console(width=100, file=io.StringIO()) as console, console.capture() as capture:
        console.print(watch.table())
    shown = capture.get()
    assert "2 of 4 runs, time left" in shown
    assert "accuracy 0.8125 in 12 s" in shown
    assert "no result (It became NaN)" in shown
    assert "epoch 2/3" in shown
    assert watch.seconds_left() == pytest.approx((12 / 3 + 12) / 2)
