"""gradsieve fit on a stream: as good as in memory, resumed to the same bits, and one error for each fault."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from gradsieve.choosing import electorate
from gradsieve.errors import CheckpointError, InputError, RunFolderError
from gradsieve.files import fit as files_fit
from gradsieve.files.fit import fit_file, predict_file
from gradsieve.files.prepare import prepare
from gradsieve.streams import fit as stream_fit
from gradsieve.streams import rows as stream_rows
from gradsieve.streams import survey as stream_survey
from gradsieve.streams.rows import most_suspicious
from gradsieve.tables.model_folder import load_model
from gradsieve.training.files import read_tensors
from gradsieve.training.folder import RunFolder
from gradsieve.training.interrupt import Interrupted

ROWS = 3000
OPTIONS = {"ignore": ["kind"], "drop_rate": 0.1, "epochs": 4, "device": "cpu"}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def fit(data, out, target="y", **changes):
    return fit_file(data, [target], out, **{**OPTIONS, "stream": True, **changes})


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def bits(folder):
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "rows.csv", "ledger.safetensors")}


@pytest.fixture(scope="module")
def streamed(shards, tmp_path_factory):
    """A folder that tests only read."""
    out = tmp_path_factory.mktemp("streamed") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradsieve.streams.feed.window_size", lambda inputs: 400)
        return out, fit(shards, out)


def test_a_fit_does_not_go_on_under_other_code(shards, tmp_path, write_module):
    score = "from gradsieve.methods.prl_l import PRLL\n\n\nclass Mine(PRLL):\n    pass\n"
    write_module("mine", score)
    summary = fit(shards, tmp_path / "out", method="mine:Mine", epochs=1)
    assert fit(shards, tmp_path / "out", method="mine:Mine", epochs=1, resume=True) == summary
    write_module("mine", f"{score}    drops_more = True\n")
    with pytest.raises(RunFolderError, match=r"holds a fit of other code: mine\.py has changed since"):
        fit(shards, tmp_path / "out", method="mine:Mine", epochs=1, resume=True)


def test_a_finished_fit_of_a_method_that_drops_no_rows_returns_what_it_returned_before(shards, tmp_path):
    summary = fit(shards, tmp_path / "out", method="standard", epochs=1)
    assert summary["drop_rate"] == 0
    assert fit(shards, tmp_path / "out", method="standard", epochs=1, resume=True) == summary


def test_a_stream_is_fitted_as_well_as_a_table_in_memory(shards, streamed, tmp_path):
    out, summary = streamed
    fit(shards, tmp_path / "memory", stream=False)
    ours, theirs = read(out / "rows.csv"), read(tmp_path / "memory" / "rows.csv")
    assert summary["rows"] == len(ours) == len(theirs) == ROWS
    assert summary["dropped"] == 300
    assert [*ours[0]] == [*theirs[0]]
    wrong = [{int(row["row"]) for row in rows[:300] if int(row["row"]) % 10 == 1} for rows in (ours, theirs)]
    assert len(wrong[0]) >= len(wrong[1]) - 5 >= 285  # every tenth row is wrong, from the first on
    given, predicted = (np.array([float(row[name]) for row in ours]) for name in ("given", "predicted"))
    honest = np.array([int(row["row"]) % 10 != 1 for row in ours])
    assert 1 - np.var((given - predicted)[honest]) / np.var(given[honest]) > 0.97


def test_rows_that_no_step_saw_have_scores_on_the_scale_of_the_others(shards, tmp_path):
    """SPL goes by losses, and what is known of a row in the end is a gradient."""
    out = tmp_path / "m"
    fit(shards, out, method="spl", epochs=1, batch_size=65)
    ledger = read_tensors(out / "ledger.safetensors", json.loads((out / "model.json").read_text())["ledger_sha256"])
    scores = np.empty(ROWS)
    for row in read(out / "rows.csv"):
        scores[int(row["row"]) - 1] = float(row["score"])
    seen = ledger["scored"].numpy() > 0
    assert (~seen).sum() == 39
    assert 0.5 < np.median(scores[~seen]) / np.median(scores[seen]) < 2


def test_the_folder_is_that_of_every_fit_and_the_ledger(streamed):
    out, summary = streamed
    assert sorted(path.name for path in out.iterdir()) == [
        "ledger.safetensors",
        "model.json",
        "model.safetensors",
        "rows.csv",
    ]
    about = json.loads((out / "model.json").read_text())
    ledger = read_tensors(out / "ledger.safetensors", about["ledger_sha256"])
    assert sum(column.nbytes for column in ledger.values()) == 16 * ROWS
    assert int(ledger["judged"].max()) == OPTIONS["epochs"]
    assert summary["streamed"]
    assert about["fit"]["rows"] == ROWS


def test_amounts_are_learnt_from_inputs_without_the_correlations_of_the_sample(shards, streamed):
    """Which here is all of the table: the encoding is the one of a fit in memory."""
    out, _ = streamed
    ours, theirs = load_model(out).encoding, prepare(shards, ["y"], None, ["kind"], [], print).encoding
    assert ours.columns == theirs.columns
    assert np.array_equal(ours.decorrelation.matrix, theirs.decorrelation.matrix)
    found = {int(line.split(",")[0]): float(line.split(",")[1]) for line in predict_file(out, shards).splitlines()[1:]}
    rows = read(out / "rows.csv")
    listed = [float(row["predicted"]) for row in rows]
    np.testing.assert_allclose([found[int(row["row"])] for row in rows], listed, rtol=1e-4, atol=1e-5)


def test_predict_streams_too(shards, streamed, monkeypatch, tmp_path):
    out, _ = streamed
    whole = predict_file(out, shards)
    monkeypatch.setattr(files_fit, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr("gradsieve.tables.shard_frames.SLICE", 128)
    parts = list(files_fit.predictions(out, shards))
    assert len(parts) > 20

    def figures(text):
        return np.array([[float(cell) for cell in line.split(",")] for line in text.splitlines()[1:]])

    np.testing.assert_allclose(figures("".join(parts)), figures(whole), rtol=1e-4, atol=1e-5)
    predict_file(out, shards, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == "".join(parts)


def test_predicting_from_a_damaged_shard_leaves_nothing(shards, streamed, monkeypatch, tmp_path):
    copy = shutil.copytree(shards, tmp_path / "copy")
    monkeypatch.setattr(files_fit, "MOST_IN_MEMORY", 0)
    pieces = files_fit.predictions(streamed[0], copy)
    next(pieces)
    (copy / "part-2.parquet").unlink()
    monkeypatch.setattr(files_fit, "predictions", lambda *_: pieces)
    with pytest.raises(InputError, match=r"part-2\.parquet is not there any more"):
        files_fit.write_predictions(streamed[0], copy, tmp_path / "p.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


@pytest.mark.parametrize("method", ["standard", "co-prl-l"])
def test_other_methods(shards, tmp_path, method, small_windows):
    """Without scores every row has its gradient in the end; two networks judge every row twice."""
    small_windows(400)
    fit(shards, tmp_path / "m", method=method, epochs=2)
    rows = read(tmp_path / "m" / "rows.csv")
    assert len(rows) == ROWS
    assert np.mean([int(row["row"]) % 10 == 1 for row in rows[:100]]) > 0.9


def test_classes_that_no_sample_has_seen(columns, write_shards, tmp_path, monkeypatch):
    table = columns()
    table["kind"][1234] = "rare"
    monkeypatch.setattr(stream_survey, "SAMPLE", 200)
    fit(write_shards(tmp_path / "d", table), tmp_path / "m", "kind", ignore=["y"], epochs=1)
    assert json.loads((tmp_path / "m" / "model.json").read_text())["targets"]["classes"] == ["high", "low", "rare"]


@pytest.mark.parametrize("codes", [["01", "1", "1.0"], [1, 2, 3]], ids=["text", "numbers"])
def test_codes_are_those_of_a_table_in_memory(columns, write_shards, tmp_path, codes):
    table = columns(600) | {"code": [codes[row % 3] for row in range(600)]}
    shards, found = write_shards(tmp_path / "t", table), []
    for stream in (True, False):
        fit(shards, tmp_path / f"{stream}", categorical=["code"], ignore=["kind"], stream=stream, epochs=1)
        found.append(next(each for each in load_model(tmp_path / f"{stream}").encoding.columns if each.name == "code"))
    assert found[0] == found[1]
    assert found[0].categories == [str(code) for code in codes]
    assert found[0].as_written == (codes[0] == "01")


def test_words_among_numbers_are_no_class_in_a_stream_either(columns, write_shards, tmp_path):
    codes = [("0", "1", "none")[2 if row % 20 == 0 else row % 2] for row in range(400)]
    shards, found = write_shards(tmp_path / "t", columns(400) | {"code": codes}), []
    for stream in (True, False):
        notes = []
        done = fit(
            shards, tmp_path / f"{stream}", "code", ignore=["kind", "y"], stream=stream, epochs=1, note=notes.append
        )
        assert any("20 rows are left out" in note and "read 'none' count as missing" in note for note in notes)
        found.append((done["rows"], load_model(tmp_path / f"{stream}").targets.classes))
    assert found == [(380, ["0", "1"])] * 2


def test_rows_csv_lists_the_most_suspicious_alone(shards, streamed, tmp_path, monkeypatch, small_windows):
    small_windows(400)
    monkeypatch.setattr(stream_rows, "LISTED", 50)
    fit(shards, tmp_path / "m")
    ours, whole = read(tmp_path / "m" / "rows.csv"), read(streamed[0] / "rows.csv")
    assert len(ours) == 50
    names = ("row", "score", "kept", "given")  # the last bits of a prediction depend on the rows beside it
    assert [[row[name] for name in names] for row in ours] == [[row[name] for name in names] for row in whole[:50]]


def test_the_most_suspicious_rows_are_those_of_a_stable_sort():
    scores = torch.tensor([0.5, 2.0, torch.nan, 1.0, 2.0, torch.inf, 0.5])
    assert most_suspicious(scores, 4).tolist() == [5, 1, 4, 3]
    assert most_suspicious(scores, 100).tolist() == [5, 1, 4, 3, 0, 6]


def test_the_share_to_drop_is_chosen_by_the_sample_and_kept_by_a_fit_that_goes_on(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_fit, "ASKED_ROWS", 1000)
    monkeypatch.setattr(electorate, "MOST_PARTS", 1)
    with pytest.raises(Interrupted, match="stopped in epoch 2"):
        fit(shards, tmp_path / "m", drop_rate="auto", epochs=2, tell=lambda record: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(stream_fit, "choose_rate", None)
    summary = fit(shards, tmp_path / "m", drop_rate="auto", epochs=2, resume=True)
    assert summary["drop_rate"] == summary["pick"]["rate"] >= 0.1
    fit(shards, tmp_path / "known", drop_rate=summary["drop_rate"], epochs=2)
    assert bits(tmp_path / "m") == bits(tmp_path / "known")


def test_large_tables_are_streamed_without_being_asked(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(files_fit, "MOST_IN_MEMORY", 1000)
    assert fit(shards, tmp_path / "m", stream=None, epochs=1)["streamed"]


# Bad rows.


@pytest.fixture
def faulty(columns, write_shards, tmp_path):
    table = columns()
    table["a"][[7, 1500, 2999]] = np.inf
    table["y"][[20, 21]] = np.nan
    return write_shards(tmp_path / "faulty", table)


def test_bad_rows_are_counted_or_stop_the_fit(faulty, tmp_path, gradsieve):
    command = ["fit", faulty, "--target", "y", "--stream", "--epochs", 2, "--out", tmp_path / "m"]
    stopped = gradsieve(*command)
    assert stopped.code == 2
    assert "part-0.parquet, row 8, column a: inf is not finite" in stopped.err
    assert not (tmp_path / "m").exists()
    done = gradsieve(*command, "--bad-rows", "skip", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert (summary["bad_rows"], summary["rows"]) == (3, ROWS - 5)
    assert "2 rows are left out: they have no target" in done.err
    assert done.err.count("is not a finite number") == 3
    assert {int(row["row"]) for row in read(tmp_path / "m" / "rows.csv")} == {
        row for row in range(1, ROWS + 1) if row not in (8, 1501, 3000, 21, 22)
    }


def test_hardly_a_row_that_can_be_used(columns, write_shards, tmp_path):
    table = columns(100)
    table["a"][5:] = np.inf
    with pytest.raises(InputError, match="fewer rows can be used than a batch has"):
        fit(write_shards(tmp_path / "d", table), tmp_path / "m", bad_rows="skip")


# Stopped, killed, resumed.


def test_ctrl_c_in_the_middle_of_an_epoch_and_resume_end_with_the_same_bits(
    shards, streamed, tmp_path, small_windows, monkeypatch
):
    small_windows(400)
    out, done = tmp_path / "m", threading.Event()

    def interrupt(record):
        if not done.is_set():
            done.set()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped in epoch 2 after step 1"):
        fit(shards, out, tell=interrupt)
    assert sorted(path.name for path in out.iterdir()) == ["fit"]
    with pytest.raises(RunFolderError, match=r"holds a fit that has not ended"):
        predict_file(out, shards)
    with pytest.raises(RunFolderError, match=r"already holds an unfinished fit\. Add resume=True, or choose .* as out"):
        fit(shards, out)
    with pytest.raises(RunFolderError, match=r"holds another run .drop_rate is 0.1 there, 0.3 here.\. Choose"):
        fit(shards, out, resume=True, drop_rate=0.3)
    summary = fit(shards, out, resume=True)
    assert bits(out) == bits(streamed[0])
    assert fit(shards, out, resume=True) == summary  # finished: nothing is run again
    with pytest.raises(RunFolderError, match=r"holds another fit .drop_rate is 0.1 there, 0.3 here.\. Choose"):
        fit(shards, out, resume=True, drop_rate=0.3)


CHILD = """
import sys
from pathlib import Path
from gradsieve.files.fit import fit_file
from gradsieve.streams import feed, trainer
feed.window_size, trainer.SAVING = lambda inputs: 400, 0
options = {"ignore": ["kind"], "drop_rate": 0.1, "epochs": 4, "device": "cpu"}
fit_file(Path(sys.argv[1]), ["y"], Path(sys.argv[2]), **options, stream=True, resume=True, save_every=0)
"""


def test_killed_a_fit_goes_on_to_the_same_bits(shards, streamed, tmp_path):
    out = tmp_path / "m"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(shards), str(out)])
    began, last = time.monotonic(), 0
    while last < 25 and child.poll() is None and time.monotonic() - began < 60:  # in the second epoch
        time.sleep(0.02)
        states = (out / "fit" / "state").glob("state-*.safetensors")
        last = max((int(path.stem.removeprefix("state-")) for path in states), default=0)
    child.kill()
    child.wait()
    assert last >= 25
    assert not (out / "model.json").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradsieve.streams.feed.window_size", lambda inputs: 400)
        fit(shards, out, resume=True)
    assert bits(out) == bits(streamed[0])
    assert not (out / "fit").exists()


def test_a_fit_from_before_inputs_were_decorrelated_does_not_go_on(shards, tmp_path):
    out = tmp_path / "m"
    with pytest.raises(Interrupted):
        fit(shards, out, tell=lambda record: os.kill(os.getpid(), signal.SIGINT))
    config = out / "fit" / "config.json"
    before = json.loads(config.read_text())
    del before["decorrelated"]
    config.write_text(json.dumps(before))
    with pytest.raises(
        RunFolderError, match=r"holds another run .decorrelated is None there.*Choose another .* as out"
    ):
        fit(shards, out, resume=True)


def test_a_state_does_not_go_on_with_other_data(shards, columns, write_shards, tmp_path):
    data, out = shutil.copytree(shards, tmp_path / "data"), tmp_path / "m"
    with pytest.raises(Interrupted):
        fit(data, out, tell=lambda record: os.kill(os.getpid(), signal.SIGINT))
    write_shards(data, columns(seed=1))
    with pytest.raises(RunFolderError, match=r"fit holds a run of other data, or the data has changed since"):
        fit(data, out, resume=True)


# Faults.


def test_a_shard_that_disappears_in_the_middle_loses_nothing(shards, streamed, tmp_path, small_windows):
    small_windows(400)
    data, out, away = shutil.copytree(shards, tmp_path / "data"), tmp_path / "m", tmp_path / "away"

    def remove(record):
        if (data / "part-1.parquet").exists():
            shutil.move(data / "part-1.parquet", away)

    with pytest.raises(InputError, match=r"part-1\.parquet is not there any more\. Put it back.*resume=True"):
        fit(data, out, tell=remove, save_every=0)
    shutil.move(away, data / "part-1.parquet")
    fit(data, out, resume=True)
    assert bits(out) == bits(streamed[0])


def test_damage_in_the_middle_is_one_error(shards, tmp_path, small_windows):
    small_windows(400)
    data, out = shutil.copytree(shards, tmp_path / "data"), tmp_path / "m"
    path = data / "part-1.parquet"

    def damage(record):
        content, status = path.read_bytes(), path.stat()
        path.write_bytes(b"PAR1" + b"\xff" * (len(content) // 2) + content[len(content) // 2 + 4 :])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # by the disk, and not by a hand

    with pytest.raises(InputError, match=r"part-1\.parquet cannot be read as Parquet: it is damaged"):
        fit(data, out, tell=damage)


@pytest.mark.parametrize("name", ["ledger.safetensors", "rows.csv", "model.safetensors", "model.json"])
def test_a_full_disk_at_the_end_leaves_a_fit_to_resume(shards, streamed, tmp_path, small_windows, name):
    """/dev/full answers as a full disk does."""
    small_windows(400)
    out = tmp_path / "m"

    def fill(record):
        if not (out / f"{name}.part").is_symlink():
            (out / f"{name}.part").symlink_to("/dev/full")

    with pytest.raises(RunFolderError, match=rf"{name} could not be written \(No space left on device\).*resume=True"):
        fit(shards, out, tell=fill)
    trained = []
    fit(shards, out, resume=True, tell=trained.append)
    assert not trained  # all epochs were done
    assert bits(out) == bits(streamed[0])


def test_a_fit_with_nothing_left_to_train_saves_nothing(shards, streamed, tmp_path, small_windows, monkeypatch):
    small_windows(400)
    out = tmp_path / "m"
    with monkeypatch.context() as patch:
        patch.setattr(stream_fit, "finish", None)
        with pytest.raises(TypeError):
            fit(shards, out)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_state", None)
        fit(shards, out, resume=True)
    assert bits(out) == bits(streamed[0])


def test_a_full_disk_in_the_middle_leaves_the_state_before(shards, streamed, tmp_path, small_windows):
    small_windows(400)
    out = tmp_path / "m"

    def fill(record):
        for number in range(200):
            part = out / "fit" / "state" / f"state-{number:09d}.safetensors.part"
            if not part.is_symlink():
                part.symlink_to("/dev/full")

    with pytest.raises(RunFolderError, match=r"could not be written \(No space left on device\).*resume=True"):
        fit(shards, out, tell=fill, save_every=0)
    fit(shards, out, resume=True)
    assert bits(out) == bits(streamed[0])


def test_a_damaged_state_is_an_error_that_says_how_to_go_on(shards, tmp_path):
    out = tmp_path / "m"
    with pytest.raises(Interrupted):
        fit(shards, out, tell=lambda record: os.kill(os.getpid(), signal.SIGINT))
    state = next((out / "fit" / "state").glob("state-*.safetensors"))
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="is damaged: its SHA-256"):
        fit(shards, out, resume=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target": "yy"}, "Did you mean 'y'?"),
        ({"ignore": ["y"]}, "ignore names a target"),
        ({"bad_rows": "mend"}, "no way with bad rows 'mend'"),
        ({"method": "prl"}, "no method 'prl'"),
        ({"drop_rate": 1.5}, "drop_rate is 1.5"),
        ({"task": "ranking"}, "no task 'ranking'"),
        ({"batch_size": 0}, "batch_size"),
        ({"target": "town", "ignore": [], "task": "regression"}, "column town"),
        ({"method": "spl", "method_options": {"level": "data"}}, "SPL looks at all rows at once"),
        ({"target": "kind", "method": "spl", "method_options": {"level": "data"}, "ignore": []}, "SPL looks at all"),
    ],
)
def test_refused_before_anything_is_written(shards, tmp_path, changes, says):
    with pytest.raises(InputError) as error:
        fit(shards, tmp_path / "m", **changes)
    assert says in str(error.value)
    assert not (tmp_path / "m").exists()


def test_what_only_streams_can_do_is_not_asked_of_others(shards, tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,2\n2,3\n")
    with pytest.raises(InputError, match="cannot be streamed"):
        fit_file(tmp_path / "t.csv", ["y"], tmp_path / "m", stream=True)
    with pytest.raises(InputError, match="resume=True is for tables that are streamed"):
        fit_file(tmp_path / "t.csv", ["y"], tmp_path / "m", resume=True)
    with pytest.raises(InputError, match="bad_rows='skip' is for tables that are streamed"):
        fit_file(shards, ["y"], tmp_path / "m", bad_rows="skip")
    assert not (tmp_path / "m").exists()
