"""A grid at an address: copied file by file in a safe order, never run twice, killed and resumed to the same bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from gradsieve.errors import RunFolderError
from gradsieve.experiments import reproduce, workers
from gradsieve.experiments.grid import Scope, cell_path
from gradsieve.experiments.remote_folder import Mirror, Remote, is_address, mirrored, remote_at, working_folder
from gradsieve.training.folder import RunFolder, read_folder
from gradsieve.training.loop import train

SCOPE = Scope(
    data="digits",
    rows=("sym-40",),
    methods=("spl", "prl-l"),
    seeds=(1,),
    epochs=6,
    model_options={"hidden": [8]},
    device="cpu",
)
# What a user's process does, with a copy after every save.
KILLED = """
import sys
from functools import partial
from pathlib import Path
from gradsieve.experiments import remote_folder, reproduce
from gradsieve.training import loop
from tests_scope import SCOPE
remote_folder.EVERY = 0.01
loop.train = partial(loop.train, save_every=0.0)
with remote_folder.mirrored(Path(sys.argv[1])) as (folder, mirror):
    reproduce.reproduce("table2", SCOPE, folder, mirror=mirror)
"""


@pytest.fixture
def memory():
    """A file system that lives in this process."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def names(files):
    return sorted(path.removeprefix("/grid/") for path in files.find("/grid"))


def run_grid(address):
    with mirrored(Path(address)) as (folder, mirror):
        return reproduce.reproduce("table2", SCOPE, folder, mirror=mirror).records["table2"]


def test_addresses_survive_a_path():
    assert remote_at(Path("s3://bucket/grid/")) == Remote("s3://bucket/grid")
    assert remote_at(Path("file:///shared/grid")) == remote_at("file:///shared/grid") == Remote("file:///shared/grid")
    assert is_address(Path("gs://bucket/a b"))
    assert not any(map(is_address, ("runs/grid", "/runs/grid", "runs/a:b", "C:/runs")))


def test_what_changed_is_copied_and_what_names_the_others_comes_last(memory, tmp_path, monkeypatch):
    (tmp_path / "state").mkdir()
    for name in ("state/manifest.json", "result.json", "weights", "state/one", "state/lock", "config.json.part"):
        (tmp_path / name).write_text(name)
    written = []
    for name in ("put_file", "pipe_file"):
        plain = getattr(memory, name)
        target = 1 if name == "put_file" else 0
        monkeypatch.setattr(
            memory, name, lambda *each, plain=plain, target=target: written.append(each[target]) or plain(*each)
        )
    mirror = Mirror(Remote("memory://grid"), tmp_path)
    mirror.push()
    assert {"/grid/weights", "/grid/state/one"} == set(written[:2])
    assert {"/grid/result.json", "/grid/state/manifest.json"} == set(written[2:])
    written.clear()
    mirror.push()
    assert not written
    (tmp_path / "state/two").write_text("2")
    (tmp_path / "state/one").unlink()
    mirror.push()
    assert written == ["/grid/state/two"]
    assert names(memory) == ["result.json", "state/manifest.json", "state/two", "weights"]
    copy = Mirror(Remote("memory://grid"), tmp_path / "copy")
    copy.pull()
    assert (tmp_path / "copy/state/two").read_text() == "2"
    (tmp_path / "copy/state/two").unlink()
    copy.push()  # it knows what it has from there
    assert "state/two" not in names(memory)


def test_a_manifest_is_never_newer_than_the_states_beside_it(memory, tmp_path, monkeypatch):
    """A run that saves while its states travel: what arrives is what was there when the copy began."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state/manifest.json").write_text("one")
    (tmp_path / "state/one").write_text("1")
    plain = memory.put_file

    def slow(source, target):
        plain(source, target)
        (tmp_path / "state/manifest.json").write_text("two, three")

    monkeypatch.setattr(memory, "put_file", slow)
    mirror = Mirror(Remote("memory://grid"), tmp_path)
    mirror.push()
    assert memory.cat("/grid/state/manifest.json") == b"one"
    mirror.push()
    assert memory.cat("/grid/state/manifest.json") == b"two, three"


@pytest.mark.parametrize("name", ["manifest.json", "config.json"])  # what a run cannot go on without
def test_a_copy_that_is_killed_half_way_leaves_the_files_as_they_were(name, tmp_path, monkeypatch):
    local, remote = tmp_path / "run", tmp_path / "remote"
    local.mkdir()
    mirror = Mirror(Remote(f"file://{remote}"), local)
    (local / name).write_text("before")
    mirror.push()
    (local / name).write_text("afterwards")

    def half(files, *paths):
        Path(paths[0 if isinstance(paths[1], bytes) else 1]).write_text("after")
        raise KeyboardInterrupt

    for way in ("pipe_file", "put_file"):
        monkeypatch.setattr(LocalFileSystem, way, half)
    with pytest.raises(KeyboardInterrupt):
        mirror.push()
    assert (remote / name).read_text() == "before"
    copy = Mirror(mirror.remote, tmp_path / "copy")
    copy.pull()
    assert [path.name for path in copy.local.iterdir()] == [name]
    monkeypatch.undo()
    mirror.push()
    assert (remote / name).read_text() == "afterwards"


def test_a_grid_in_memory_is_that_of_a_folder_and_is_never_run_twice(memory, tmp_path, gradsieve, monkeypatch):
    plain = reproduce.reproduce("table2", SCOPE, tmp_path / "grid").records["table2"]
    assert [record["last10_mean"] for record in run_grid("memory://grid")] == [each["last10_mean"] for each in plain]
    local = {
        path.relative_to(tmp_path / "grid").as_posix() for path in (tmp_path / "grid").rglob("*") if path.is_file()
    }
    assert set(names(memory)) == local - {name for name in local if name.endswith("lock")}
    monkeypatch.setattr(workers, "working_folder", None)  # nothing is run again
    command = ("reproduce", "table2", "--data", "digits", "--rows", "sym-40", "--methods", "spl,prl-l", "--seeds", "1")
    command += ("--epochs", "6", "--model-option", "hidden=[8]", "--device", "cpu", "--out", "memory://grid")
    assert "to run: 0" in gradsieve(*command, "--dry-run").out
    done = gradsieve(*command)
    assert done.code == 0
    assert "memory://grid/table2.md" in done.out
    assert "holds another grid" in gradsieve(*command, "--preset", "proper").err


def test_a_grid_that_is_killed_goes_on_from_its_copy_elsewhere(tmp_path, monkeypatch):
    remote = tmp_path / "remote"
    address = f"file://{remote}"
    lines = Path(__file__).read_text().split("SCOPE = ", 1)[1].split("\n)\n", 1)[0]
    (tmp_path / "tests_scope.py").write_text(f"from gradsieve.experiments.grid import Scope\nSCOPE = {lines}\n)\n")
    (tmp_path / "killed.py").write_text(KILLED)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # killed, it leaves what it has there
    process = subprocess.Popen([sys.executable, "killed.py", address], cwd=tmp_path, env=environment)
    try:
        deadline = time.monotonic() + 100
        while not list(remote.glob("runs/*/*/state/manifest.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    finished = [path.stat().st_mtime_ns for path in remote.glob("runs/*/*/result.json")]
    begun = []
    load = RunFolder.load_state

    def noted(folder):
        found = load(folder)
        begun.append(found is not None)
        return found

    monkeypatch.setattr(RunFolder, "load_state", noted)
    assert len(run_grid(address)) == 2
    assert begun[0], "the run that was killed began from a state"
    assert [path.stat().st_mtime_ns for path in remote.glob("runs/*/*/result.json")][: len(finished)] == finished
    assert not any(path.is_file() for path in remote.glob("runs/*/*/state/*"))
    for cell in reproduce.plan("table2", SCOPE, remote):
        alone = train(cell.run, tmp_path / cell.method).summary
        there = read_folder(cell_path(remote, cell))
        assert there.result()["weights_sha256"] == alone["weights_sha256"]
        assert there.weights()  # and they are what was written


def test_a_run_that_is_stopped_leaves_its_state_at_the_address(memory, tmp_path):
    def stopped():
        with working_folder(tmp_path, Remote("memory://grid")) as folder:
            (folder / "state").mkdir(parents=True)
            (folder / "state/one").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert names(memory) == ["state/one"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("xyz://bucket/grid", "is at no address that fsspec knows"),
        ("ocilake://bucket/grid", "a package for this kind of address is missing"),
    ],
)
def test_an_address_that_cannot_be_reached_is_one_error(address, said, gradsieve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = gradsieve("reproduce", "table2", "--data", "digits", "--out", address)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_what_a_service_raises_is_one_error(memory, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(memory, "pipe_file", refuse)
    monkeypatch.setattr(memory, "put_file", refuse)
    with pytest.raises(RunFolderError, match=r"memory://grid cannot be read or written \(Access Denied\)"):
        run_grid("memory://grid")
    run = reproduce.plan("table2", SCOPE, tmp_path)[0].run
    outcome = workers.attempt(workers.Task(run, tmp_path, Remote("memory://grid")))
    assert outcome.kind == "error"


def test_features_need_a_folder(memory):
    with mirrored(Path("memory://grid")) as (folder, mirror), pytest.raises(RunFolderError, match="CelebA's features"):
        reproduce.reproduce("table1", Scope(), folder, mirror=mirror)
    assert not names(memory)
