"""A captured loop equals the plain loop: the same rows and weights, and the same bits after a kill and a resume."""

import signal

import pytest
import torch

from gradsieve.methods import METHODS
from gradsieve.training.engines import CapturedEngine, CaptureError, PlainEngine
from gradsieve.training.feed import Feed, epoch_order
from gradsieve.training.folder import RunFolder
from gradsieve.training.interrupt import Interrupted
from gradsieve.training.loop import train
from gradsieve.training.progress import Progress
from gradsieve.training.repeatable import reproducible
from gradsieve.training.run import make_run
from gradsieve.training.setting import prepare
from gradsieve.training.trainer import Trainer, start

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")

CAPTURED = [name for name in METHODS if not METHODS[name].decides_on_host]
FACES = {
    "corruption": "signflip",
    "rate": 0.25,
    "epochs": 3,
    "ramp": 2,
    "batch_size": 32,
    "model": "cnn9",
    "model_options": {"width": 0.125},
    "data_options": {"train": 800, "test": 64, "size": 28},
    "precision": "fp32",
    "device": "cuda",
    "compile": "off",
}
DIGITS = {
    "corruption": "pairflip",
    "rate": 0.3,
    "epochs": 3,
    "ramp": 2,
    "batch_size": 64,
    "device": "cuda",
    "compile": "off",
}


def run_of(method, **changes):
    if "regression" in METHODS[method].tasks:
        return make_run("landmarks", method, **(FACES | changes))
    return make_run("digits", method, **(DIGITS | changes))


def follow(run, engine, steps):
    """The ledger's dropped counts after every step, and the state at the end."""
    setting = prepare(run)
    trail = []
    with reproducible(run.seed, setting.device):
        state = start(setting)
        driver = engine(setting, state, Feed(setting.data.train, setting.device))
        while len(trail) < steps:
            rows = torch.arange(len(driver.feed), device=setting.device)
            for _ in driver.steps(epoch_order(run.seed, state.epoch, rows)):
                state.step += 1
                trail.append(state.ledger.dropped.clone())
                if len(trail) == steps:
                    break
            state.epoch, state.step = state.epoch + 1, 0
    return trail, state


@pytest.mark.parametrize("method", CAPTURED)
def test_fifty_steps_keep_the_same_rows_and_end_in_the_same_weights(method):
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.backends.cudnn.flags(allow_tf32=False):
        plain, one = follow(run_of(method), PlainEngine, 50)
        captured, other = follow(run_of(method), CapturedEngine, 50)
    assert all(map(torch.equal, plain, captured))
    for name, weights in one.weights().items():
        torch.testing.assert_close(other.weights()[name], weights, rtol=0, atol=1e-5)
    for name, column in one.tally.tensors().items():
        torch.testing.assert_close(other.tally.tensors()[name], column)


@pytest.mark.parametrize("method", ["prl-l", "co-prl-l"])
def test_a_resumed_run_ends_with_the_same_bits(method, tmp_path):
    class Stop(Progress):
        def step(self, done, total):
            if done == 31:
                signal.raise_signal(signal.SIGINT)

    run = run_of(method)
    whole = train(run)
    setting, folder = prepare(run), RunFolder(tmp_path / "run", run)
    folder.create()
    with reproducible(run.seed, setting.device), pytest.raises(Interrupted):
        Trainer(setting, start(setting), folder, Stop(), None, save_every=30.0).train()
    folder.release()
    resumed = train(run, tmp_path / "run", resume=True)
    assert all(torch.equal(whole.weights[name], resumed.weights[name]) for name in whole.weights)


REPLACING = """
import torch
from torch import nn

class Replacing(nn.Linear):
    def __init__(self, input_shape, outputs):
        super().__init__(64, outputs)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, inputs):
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * inputs.detach().abs().mean()
        return super().forward(inputs / self.scale)
"""


def test_a_network_that_replaces_its_buffers_runs_step_by_step(capsys, tmp_path, monkeypatch):
    """A graph would go on reading the first ones."""
    (tmp_path / "replacing_on_gpu.py").write_text(REPLACING)
    monkeypatch.syspath_prepend(tmp_path)
    settings = DIGITS | {"model": "replacing_on_gpu:Replacing", "model_options": {}}
    result = train(make_run("digits", "prl-l", **settings), show=True)
    assert "replaces its buffer 'scale' in a step" in capsys.readouterr().out
    plain = train(make_run("digits", "prl-l", engine="plain", **settings))
    assert all(result.weights[name].equal(tensor) for name, tensor in plain.weights.items())
    with pytest.raises(CaptureError, match="instead of writing into it"):
        train(make_run("digits", "prl-l", engine="captured", **settings))


def test_a_method_that_decides_on_the_host_runs_step_by_step(capsys):
    run = make_run("digits", "decouple", **(DIGITS | {"epochs": 1}))
    train(run, show=True)
    assert "decouple decides on the host how many rows it keeps" in capsys.readouterr().out


READS_BACK = """
import torch

class Asks(torch.nn.Module):
    def forward(self, inputs):
        return inputs if float(inputs.sum()) > -1e9 else -inputs

def reads_back(input_shape, outputs):
    return torch.nn.Sequential(torch.nn.Flatten(), Asks(), torch.nn.Linear(64, outputs))
"""


def test_a_model_that_cannot_be_captured_runs_step_by_step(capsys, tmp_path, monkeypatch):
    (tmp_path / "model_that_asks.py").write_text(READS_BACK)
    monkeypatch.syspath_prepend(tmp_path)
    settings = DIGITS | {"epochs": 1, "model": "model_that_asks:reads_back", "model_options": {}}
    train(make_run("digits", "prl-l", **settings), show=True)
    assert "steps run one by one: the step cannot be captured" in capsys.readouterr().out
