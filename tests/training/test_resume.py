"""A run that is killed, interrupted or resumed ends with the bits of the run that was left alone."""

import json
import random
import signal
import time

import pytest

from gradsieve.data.table import read_csv, split
from gradsieve.errors import CheckpointError
from gradsieve.training import trainer
from gradsieve.training.folder import open_folder, read_folder
from gradsieve.training.interrupt import Interrupted
from gradsieve.training.loop import train
from gradsieve.training.run import make_run
from gradsieve.training.setting import prepare
from gradsieve.training.trainer import start

COMMON = ["train", "--epochs", "4", "--ramp", "2", "--json"]
DIGITS = [
    *COMMON,
    "--data",
    "digits",
    "--batch-size",
    "64",
    "--corruption",
    "pairflip",
    "--rate",
    "0.3",
    "--model-option",
    "hidden=[16]",
]
FACES = [*COMMON, "--data", "landmarks", "--corruption", "signflip", "--rate", "0.25", "--batch-size", "16"]
FACES += ["--data-option", "train=160", "--data-option", "test=16", "--data-option", "size=28"]
FACES += ["--model", "cnn9", "--model-option", "width=0.03"]
RUNS = {
    "prl-l": [*DIGITS, "--method", "prl-l"],
    "spl, level data": [*DIGITS, "--method", "spl", "--method-option", "level=data"],
    "two networks with BatchNorm and dropout": [*FACES, "--method", "co-prl-l", "--preset", "authors"],
}
KILLS = 20  # of each of these


ASIDE = ("seconds", "versions", "bound", "figures_sha256")  # times, and a sum that knows them


def outcome(path):
    """All that a finished run leaves, but the time it took."""
    folder = read_folder(path)
    result = {name: value for name, value in folder.result().items() if name not in ASIDE}
    metrics = [{name: value for name, value in record.items() if name != "seconds"} for record in folder.metrics()]
    folder.weights()
    folder.ledger()
    return result, metrics


@pytest.fixture(scope="module")
def undisturbed(command, tmp_path_factory):
    """What each of the runs gives when it is left alone."""
    outcomes = {}

    def find(name):
        if name not in outcomes:
            path = tmp_path_factory.mktemp("undisturbed") / "run"
            assert command.run(*RUNS[name], "--out", path) == 0
            outcomes[name] = outcome(path)
        return outcomes[name]

    return find


@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_again_and_again_ends_with_the_same_bits(name, command, undisturbed, tmp_path):
    """Saving after every step, so that many kills fall into a save. A run that gets through is followed by another."""
    moments = random.Random(0)
    kills, finished = 0, []
    while kills < KILLS or not finished:
        path = tmp_path / f"run{len(finished)}"
        command.start(*RUNS[name], "--out", path, "--save-every", "0", "--resume")
        if kills < KILLS:
            time.sleep(moments.uniform(0, 0.4))
            command.signal(signal.SIGKILL)
        status = command.wait()
        assert status in (0, -signal.SIGKILL), command.log.read_text()
        if status == 0:
            finished.append(path)
        kills += status != 0
    for path in finished:
        assert outcome(path) == undisturbed(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["spl, level data", "two networks with BatchNorm and dropout"])
def test_a_signal_leaves_a_state_to_go_on_from(name, number, command, undisturbed, tmp_path):
    path = tmp_path / "run"
    command.start(*RUNS[name], "--out", path)
    deadline = time.monotonic() + 30
    while not (path / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    command.signal(number)
    assert command.wait() == 130
    said = command.log.read_text()
    assert "stopped in epoch" in said
    assert "--resume" in said
    assert "Traceback" not in said
    assert not read_folder(path).finished
    assert len(read_folder(path).states()) == 1
    assert command.run(*RUNS[name], "--out", path, "--resume") == 0
    assert outcome(path) == undisturbed(name)


@pytest.mark.parametrize("step", [1, 4, 5, 7, 8])
def test_a_run_goes_on_from_any_step(step, faces, stop_at, tmp_path):
    """In the middle of an epoch, and where one ends: an epoch of these has 4 steps."""
    run = faces(epochs=3, preset="authors")
    stop_at(run, tmp_path / "run", step)
    train(run, tmp_path / "run", resume=True)
    train(run, tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_buffers_that_no_state_dict_shows_go_on_too(digits, write_module, stop_at, tmp_path):
    write_module("scaled", SCALED)
    run = digits(model="scaled:Scaled", model_options={})
    folder = stop_at(run, tmp_path / "run", 30)
    tensors, _ = folder.load_state()
    assert tensors["buffers.network0.scale"] != 1
    assert len(tensors["buffers.network0.seen"]) == 30
    train(run, tmp_path / "run", resume=True)
    whole = train(run, tmp_path / "whole")
    assert not any("scale" in name for name in whole.weights)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


SCALED = """
import torch
from torch import nn

class Scaled(nn.Linear):
    def __init__(self, input_shape, outputs):
        super().__init__(64, outputs)
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self.register_buffer("seen", torch.zeros(0), persistent=False)
        self.register_buffer("turns", torch.ones(2, dtype=torch.complex64), persistent=False)
        self.register_buffer("links", torch.eye(2).to_sparse(), persistent=False)

    def forward(self, inputs):
        inputs = inputs.flatten(1)
        if self.training:
            self.scale.lerp_(inputs.abs().mean(), 0.1)
            self.seen = torch.cat([self.seen, self.scale[None]])
        return super().forward(inputs / self.scale)
"""


def test_the_seconds_before_a_stop_count(digits, stop_at, tmp_path):
    folder = stop_at(digits(), tmp_path / "run", 30)
    before = folder.load_state()[1]["seconds"]
    assert train(digits(), tmp_path / "run", resume=True).summary["seconds"] > before > 0


def test_a_finished_run_is_read_and_not_trained_again(digits, tmp_path):
    path = tmp_path / "run"
    first = train(digits(), path)
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}
    again = train(digits(), path, resume=True)
    assert again.summary == first.summary
    assert again.history == first.history
    assert all(again.weights[name].equal(tensor) for name, tensor in first.weights.items())
    assert again.ledger.score_sum.equal(first.ledger.score_sum)
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()} == before


def test_resume_starts_a_run_that_is_not_there(digits, tmp_path):
    started = train(digits(), tmp_path / "no" / "such" / "folder", resume=True)
    assert started.weights.keys() == train(digits()).weights.keys()
    assert read_folder(tmp_path / "no" / "such" / "folder").finished


@pytest.mark.parametrize(
    "left", [[], ["state"], ["state/lock"], ["config.json.part"], ["state/lock", "config.json.part"]]
)
def test_a_run_killed_before_it_wrote_anything_can_be_started(digits, tmp_path, left):
    path = tmp_path / "run"
    path.mkdir()
    for name in left:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).mkdir() if name == "state" else (path / name).write_text("{")
    train(digits(epochs=1), path)
    assert json.loads((path / "config.json").read_text()) == digits(epochs=1).to_json()


@pytest.mark.parametrize("other", ["training", "test"])
def test_a_state_does_not_go_on_with_other_data(other, tmp_path):
    """The same settings name the same file, but not what is in it."""
    rows = tmp_path / "rows.csv"
    given = [[i % 7, i % 5, i % 3] for i in range(80)]
    write_rows(rows, given)
    changed = int(split(read_csv(rows))[other == "test"][0])
    run = make_run("table", "prl-l", data_dir=str(rows), epochs=3, batch_size=16, drop_rate=0.2)
    setting = prepare(run)
    folder = open_folder(tmp_path / "run", run, resume=False)
    folder.create()
    state = start(setting)
    folder.save_state(state.tensors(), state.meta())
    folder.release()
    given[changed][2] += 1
    write_rows(rows, given)
    with pytest.raises(CheckpointError, match=f"other {other} rows"):
        train(run, tmp_path / "run", resume=True)


def write_rows(path, rows):
    path.write_text("a,b,y\n" + "\n".join(",".join(map(str, row)) for row in rows))


def test_a_state_from_before_it_knew_the_test_rows_goes_on(digits, stop_at, tmp_path):
    folder = stop_at(digits(), tmp_path / "run", 30)
    tensors, meta = folder.load_state()
    meta.pop("test_sha256")
    folder.save_state(tensors, meta)
    train(digits(), tmp_path / "run", resume=True)
    train(digits(), tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_ctrl_c_in_the_last_test_is_no_end_of_it(digits, monkeypatch, tmp_path):
    """Whoever trains many runs would go on with the next one."""
    run, real = digits(epochs=2), trainer.test_metric
    tests = []

    def interrupted(*args):
        tests.append(None)
        if len(tests) == 2:
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(trainer, "test_metric", interrupted)
    with pytest.raises(Interrupted, match="stopped after epoch 2"):
        train(run, tmp_path / "run")
    train(run, tmp_path / "run", resume=True)
    assert len(tests) == 2
    train(run, tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
