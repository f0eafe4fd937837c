"""The folder of a run: what is damaged is noticed, what is another's is refused, and nothing is lost."""

import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from gradsieve.errors import CheckpointError, GradsieveError, RunFolderError
from gradsieve.training import folder as folders
from gradsieve.training.files import read_tensors, write_whole
from gradsieve.training.folder import RunFolder, open_folder, read_folder
from gradsieve.training.loop import train
from gradsieve.training.result import load_result


@pytest.fixture(scope="module")
def run(digits):
    return digits(epochs=1, model_options={"hidden": [8]})


@pytest.fixture(scope="module")
def weights_sha256(run, tmp_path_factory):
    """Of the run that nothing happened to."""
    return train(run, tmp_path_factory.mktemp("whole") / "run").summary["weights_sha256"]


@pytest.fixture(scope="module")
def stopped_once(run, stop_at, tmp_path_factory):
    return stop_at(run, tmp_path_factory.mktemp("stopped") / "run", 7).path


@pytest.fixture
def stopped(run, stopped_once, tmp_path):
    """The folder of a run that stopped after 7 of its 22 steps, with the states of steps 6 and 7."""
    shutil.copytree(stopped_once, tmp_path / "run")
    return RunFolder(tmp_path / "run", run)


@pytest.fixture
def finished(run, tmp_path):
    train(run, tmp_path / "run")
    return RunFolder(tmp_path / "run", run)


def files_of(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}


def flip(content, bit):
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


# Damage.


def test_no_flipped_bit_and_no_truncation_of_a_state_loads(stopped):
    path = stopped.path / "state" / stopped.states()[-1]["file"]
    content, chance = path.read_bytes(), random.Random(0)
    flips = [flip(content, bit) for bit in chance.sample(range(8 * len(content)), 500)]
    truncations = [
        content[:length] for length in [0, 1, 7, 8, len(content) - 1, *chance.sample(range(len(content)), 59)]
    ]
    for damaged in flips + truncations:
        path.write_bytes(damaged)
        with pytest.raises(
            CheckpointError, match=r"state-000000007.* is damaged.* Delete it to go on from state-000000006"
        ):
            stopped.load_state()
    path.write_bytes(content)
    assert stopped.load_state()[1]["step"] == 7


@pytest.mark.parametrize("damage", ["a flipped bit", "truncated", "empty", "gone", "foreign bytes"])
def test_after_a_damaged_state_the_one_before_it_leads_to_the_same_bits(damage, run, stopped, weights_sha256):
    path = stopped.path / "state" / stopped.states()[-1]["file"]
    content = path.read_bytes()
    damaged = {
        "a flipped bit": flip(content, 4 * len(content)),
        "truncated": content[: len(content) // 2],
        "empty": b"",
        "foreign bytes": b"\x80\x04\x95" + os.urandom(100),
    }
    if damage in damaged:
        path.write_bytes(damaged[damage])
        before = files_of(stopped.path)
        with pytest.raises(CheckpointError, match="Delete it to go on from state-000000006"):
            train(run, stopped.path, resume=True)
        assert files_of(stopped.path) == before
    path.unlink()
    assert train(run, stopped.path, resume=True).summary["weights_sha256"] == weights_sha256


def test_when_every_state_is_damaged_the_run_can_start_again(run, stopped, weights_sha256):
    for state in stopped.states():
        (stopped.path / "state" / state["file"]).write_bytes(b"")
    with pytest.raises(CheckpointError, match="go on from"):
        train(run, stopped.path, resume=True)
    (stopped.path / "state" / stopped.states()[-1]["file"]).unlink()
    with pytest.raises(CheckpointError, match=r"Delete the folder .*state to start this run from the beginning"):
        train(run, stopped.path, resume=True)
    shutil.rmtree(stopped.path / "state")
    assert train(run, stopped.path, resume=True).summary["weights_sha256"] == weights_sha256


@pytest.mark.parametrize("newest", ["there", "gone"])
def test_a_kill_between_a_state_and_its_list_leaves_the_old_states_sound(newest, stopped, monkeypatch):
    """Without a step in between, too, and where the state that has the step already was deleted."""
    tensors, meta = stopped.load_state()
    if newest == "gone":
        (stopped.path / "state" / stopped.states()[-1]["file"]).unlink()
    expected = stopped.load_state()[1]
    with monkeypatch.context() as patch:
        patch.setattr(folders, "write_json", None)
        with pytest.raises(TypeError):
            stopped.save_state(tensors, meta | {"seconds": 0.0})
    assert stopped.load_state()[1] == expected
    stopped.save_state(tensors, meta | {"seconds": 0.0})
    assert stopped.load_state()[1] == meta | {"seconds": 0.0}
    assert len(list((stopped.path / "state").glob("state-*"))) == 2


def test_no_damage_to_the_list_of_states_changes_the_result(run, stopped):
    """A bit of it may flip so that a state is not found any more, but never so that a wrong one loads."""
    path = stopped.path / "state" / "manifest.json"
    content, chance = path.read_bytes(), random.Random(0)
    for bit in chance.sample(range(8 * len(content)), 300):
        path.write_bytes(flip(content, bit))
        try:
            loaded = stopped.load_state()
        except CheckpointError:
            continue
        assert loaded is None or loaded[1]["step"] in (6, 7)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"null", b"3", b'{"a": 1}', b"[1]", b"[null]", b'[{"file": 3}]']
)
def test_a_list_of_states_that_is_none_is_one_error(content, run, stopped, weights_sha256):
    (stopped.path / "state" / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged.* Delete the folder"):
        train(run, stopped.path, resume=True)
    shutil.rmtree(stopped.path / "state")
    assert train(run, stopped.path, resume=True).summary["weights_sha256"] == weights_sha256


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b"[]", b"{}"])
def test_a_damaged_config_is_one_error_that_names_it(content, run, stopped):
    (stopped.path / "config.json").write_bytes(content)
    before = files_of(stopped.path)
    with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
        train(run, stopped.path, resume=True)
    with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
        read_folder(stopped.path)
    assert files_of(stopped.path) == before


def test_no_flipped_bit_of_the_config_goes_unnoticed(run, stopped):
    path = stopped.path / "config.json"
    content = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(content)), 200):
        path.write_bytes(flip(content, bit))
        # Blanks mean nothing to JSON: another one there is no other run.
        with contextlib.suppress(ValueError):
            if json.loads(path.read_bytes()) == run.to_json():
                continue
        with pytest.raises(RunFolderError):
            open_folder(stopped.path, run, resume=True)


@pytest.mark.parametrize("name", ["weights", "ledger"])
def test_damage_to_what_a_run_leaves_is_noticed(name, finished):
    path = finished.path / f"{name}.safetensors"
    content = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(content)), 60):
        path.write_bytes(flip(content, bit))
        with pytest.raises(CheckpointError, match=f"{name}.safetensors is damaged"):
            getattr(finished, name)()
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{name}.safetensors cannot be read"):
        train(finished.run, finished.path, resume=True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"3", b'{"metric": "accuracy"}'])
def test_a_damaged_result_is_one_error(content, finished):
    (finished.path / "result.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"result\.json is damaged"):
        train(finished.run, finished.path, resume=True)


def test_damaged_metrics_are_one_error(finished):
    (finished.path / "metrics.jsonl").write_bytes(b'{"epoch": 1\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):
        train(finished.run, finished.path, resume=True)


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
def test_no_flipped_bit_of_the_figures_goes_unnoticed(name, finished):
    path, result = finished.path / name, load_result(finished.path)
    figures = {key: value for key, value in result.summary.items() if key != "figures_sha256"}
    content, noticed = path.read_bytes(), 0
    for bit in random.Random(0).sample(range(8 * len(content)), 200):
        path.write_bytes(flip(content, bit))
        try:
            found = load_result(finished.path)
        except CheckpointError:
            noticed += 1
            continue
        # Blanks mean nothing to JSON, and a sum under another name is none.
        assert {key: found.summary[key] for key in result.summary if key != "figures_sha256"} == figures
        assert found.history == result.history
    assert noticed > 100


OLD_RESULTS = {
    "other width": ({"outputs": 11}, "weights do not fit the network"),
    "no width": ({"outputs": None}, "weights do not fit the network"),
    "no network": ({"input_shape": "many"}, "weights do not fit the network"),
    "no run": ({"run": {"data": "digits"}}, "holds no run"),
    "no settings": ({"run": 3}, "holds no run"),
    "a word": ({"last": "high"}, "is no number"),
}


@pytest.mark.parametrize("name", OLD_RESULTS)
def test_a_damaged_result_of_before_figures_had_a_sum_is_one_error(name, finished):
    changes, says = OLD_RESULTS[name]
    path = finished.path / "result.json"
    summary = {key: value for key, value in json.loads(path.read_text()).items() if key != "figures_sha256"}
    path.write_text(json.dumps(summary))
    assert "digits" in repr(load_result(finished.path))
    path.write_text(json.dumps(summary | changes))
    with pytest.raises(CheckpointError, match=says):
        load_result(finished.path).networks()


def test_a_line_that_is_no_record_is_one_error(finished):
    summary = json.loads((finished.path / "result.json").read_text())
    del summary["figures_sha256"]
    (finished.path / "result.json").write_text(json.dumps(summary))
    (finished.path / "metrics.jsonl").write_text("3\n")
    with pytest.raises(CheckpointError, match=r"a line of its metrics\.jsonl is not the record of an epoch"):
        load_result(finished.path)


def test_a_file_with_the_right_checksum_that_holds_no_tensors_is_one_error(tmp_path):
    (tmp_path / "file").write_bytes(b"anything")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_tensors(tmp_path / "file", hashlib.sha256(b"anything").hexdigest())


# Whose folder it is.


def test_a_state_of_another_run_is_refused(run, digits, stop_at, stopped, tmp_path):
    other = stop_at(digits(epochs=1, seed=5, model_options={"hidden": [8]}), tmp_path / "other", 9)
    shutil.rmtree(stopped.path / "state")
    shutil.copytree(other.path / "state", stopped.path / "state")
    with pytest.raises(CheckpointError, match="belongs to another run"):
        train(run, stopped.path, resume=True)


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_another_run_is_refused_and_left_as_it_is(resume, digits, stopped):
    before = files_of(stopped.path)
    with pytest.raises(RunFolderError) as caught:
        train(digits(epochs=3, seed=4, model_options={"hidden": [8]}), stopped.path, resume=resume)
    said = str(caught.value)
    for difference in ("epochs is 1 there, 3 here", "seed is 0 there, 4 here", "corruption_seed is 0 there, 4 here"):
        assert difference in said
    assert "batch_size" not in said
    assert files_of(stopped.path) == before


@pytest.mark.parametrize(("kind", "word"), [("stopped", "begun"), ("finished", "finished")])
def test_a_run_that_is_there_needs_the_word_resume(kind, word, run, request):
    folder = request.getfixturevalue(kind)
    before = files_of(folder.path)
    with pytest.raises(
        RunFolderError, match=rf"holds this run already, {word}\. Add resume=True, or choose another folder as out\."
    ):
        train(run, folder.path)
    assert files_of(folder.path) == before


@pytest.mark.parametrize("name", ["thesis.tex", "state/thesis.tex", ".hidden"])
def test_a_folder_with_anything_else_in_it_is_refused(name, run, tmp_path):
    (tmp_path / "mine" / name).parent.mkdir(parents=True)
    (tmp_path / "mine" / name).write_text("mine")
    for resume in (True, False):
        with pytest.raises(RunFolderError, match="not empty and not a run folder"):
            train(run, tmp_path / "mine", resume=resume)
    assert files_of(tmp_path / "mine") == {name: b"mine"}


def test_a_file_is_no_folder(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError, match="is a file"):
        train(run, tmp_path / "file")
    with pytest.raises(RunFolderError, match="Not a directory"):
        train(run, tmp_path / "file" / "run")
    with pytest.raises(RunFolderError, match="not a run folder"):
        read_folder(tmp_path)


def test_two_processes_cannot_have_one_folder(command, tmp_path):
    path = tmp_path / "run"
    command.start("train", "--data=digits", "--epochs=100000", f"--out={path}", "--json")
    try:
        deadline = time.monotonic() + 60
        while not (path / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(RunFolderError, match="in use by another process"):
            train(read_folder(path).run, path, resume=True)
    finally:
        command.signal(signal.SIGINT)
        status = command.wait()
    assert status == 130, command.log.read_text()
    assert read_folder(path).load_state() is not None  # the refused one did no harm


def test_a_folder_that_another_run_took_in_the_meantime_is_refused(run, digits, tmp_path):
    ours = open_folder(tmp_path / "run", run, resume=False)
    theirs = open_folder(tmp_path / "run", digits(seed=9), resume=False)
    theirs.create()
    theirs.release()
    with pytest.raises(RunFolderError, match="holds another run"):
        ours.create()
    ours.release()
    assert read_folder(tmp_path / "run").run.seed == 9


# Places that cannot be written to.


@contextlib.contextmanager
def unprivileged():
    """As somebody whom the permissions of files bind; for root nothing is read-only."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_place():
    """A folder that everybody can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.usefixtures("weights_sha256")  # so that all is imported: an interpreter may lie in root's own folder
@pytest.mark.parametrize("name", ["run", "deep/er/run"])
def test_a_read_only_place_is_one_error(name, run, open_place):
    os.chmod(open_place, 0o555)
    with unprivileged(), pytest.raises(RunFolderError, match=r"cannot be made or written to .*Permission denied"):
        train(run, open_place / name)
    assert not any(open_place.iterdir())


@pytest.mark.usefixtures("weights_sha256")
def test_a_place_that_cannot_be_looked_into_is_one_error(run, open_place):
    os.chmod(open_place, 0o000)
    with unprivileged(), pytest.raises(RunFolderError, match=r"cannot be .*\(Permission denied"):
        train(run, open_place / "run")
    os.chmod(open_place, 0o700)


def test_a_run_whose_folder_became_read_only_goes_on_when_it_is_writable_again(
    run, stopped, open_place, weights_sha256
):
    path = Path(shutil.copytree(stopped.path, open_place / "run"))
    folders = [path, path / "state"]
    for folder in folders:
        os.chmod(folder, 0o555)
    before = files_of(path)
    with unprivileged(), pytest.raises(RunFolderError, match="Permission denied"):
        train(run, path, resume=True)
    assert files_of(path) == before
    for folder in folders:
        os.chmod(folder, 0o755)
    assert train(run, path, resume=True).summary["weights_sha256"] == weights_sha256


@contextlib.contextmanager
def largest_file(size):
    """No file may grow beyond ``size``: as on a full disk, a write ends in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_state_that_does_not_fit_leaves_the_one_before_it(run, stopped, weights_sha256):
    before = files_of(stopped.path)
    with (
        largest_file(4000),
        pytest.raises(RunFolderError, match=r"could not be written .* untouched.* try again .*resume=True"),
    ):
        train(run, stopped.path, resume=True, save_every=0)
    assert files_of(stopped.path) == before
    assert train(run, stopped.path, resume=True, save_every=0).summary["weights_sha256"] == weights_sha256


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "weights.safetensors", "ledger.safetensors", "result.json"]
)
def test_a_full_disk_at_any_file_leaves_a_run_to_resume(name, run, stopped, weights_sha256):
    """/dev/full answers as a full disk does."""
    (stopped.path / f"{name}.part").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match=rf"{name} could not be written \(No space left on device\)"):
        train(run, stopped.path, resume=True)
    assert not stopped.finished
    assert not (stopped.path / f"{name}.part").exists()
    assert stopped.load_state()[1]["step"] == 7
    assert train(run, stopped.path, resume=True).summary["weights_sha256"] == weights_sha256


def test_what_was_there_before_a_failed_write_stays(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"old")
    with largest_file(10), pytest.raises(RunFolderError):
        write_whole(path, b"new and longer than ten bytes")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_rests_of_a_kill_inside_a_save_are_cleared_away(run, stopped):
    rest = stopped.path / "state" / "state-000000008.safetensors.part"
    rest.write_bytes(b"half a state")
    folder = open_folder(stopped.path, run, resume=True)
    folder.create()
    assert not rest.exists()
    folder.release()


def test_only_two_states_are_kept_while_a_run_works_and_none_after(run, stopped):
    assert sorted(path.name for path in (stopped.path / "state").glob("state-*")) == [
        "state-000000006.safetensors",
        "state-000000007.safetensors",
    ]
    train(run, stopped.path, resume=True)
    assert not (stopped.path / "state").exists()


def test_a_folder_is_free_again_after_an_error(run, stopped):
    path = stopped.path / "state" / stopped.states()[-1]["file"]
    content = path.read_bytes()
    path.write_bytes(b"")
    errors = []
    for _ in range(2):
        try:
            train(run, stopped.path, resume=True)
        except GradsieveError as error:  # with the trace that it holds on to
            errors.append(error)
    assert [type(error) for error in errors] == [CheckpointError, CheckpointError]
    path.write_bytes(content)
    train(run, stopped.path, resume=True)
