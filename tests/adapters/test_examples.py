"""The examples run as printed, and every framework trains as a plain loop does: same rows kept, same weights."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gradsieve import RobustLoss

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDS = {  # example: the library that it is about
    "plain_pytorch": "torch",
    "lightning_example": "lightning",
    "huggingface_example": "transformers",
    "skorch_example": "skorch",
    "accelerate_example": "accelerate",
}
EPOCHS = 2  # of ten steps


@pytest.fixture(params=NEEDS)
def example(request):
    """The name of an example whose library is installed."""
    library = NEEDS[request.param]
    pytest.importorskip(library, reason=f"{library} is not installed: pip install gradsieve[dev]")
    return request.param


def train(name, monkeypatch):
    """The rows that an example keeps in its first twenty steps, the rates, and the final weights."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    robust = RobustLoss(F.cross_entropy, 0.4, ramp=2)
    kept, rates = [], []

    def note(loss, *_):
        kept.append(loss.kept.tolist())
        rates.append(loss.rate)

    robust.register_forward_hook(note)
    network = importlib.import_module(name).train(robust, EPOCHS)
    return kept, rates, network.state_dict()


def test_every_framework_keeps_the_rows_of_a_plain_loop_and_ends_with_its_weights(example, monkeypatch):
    kept, rates, weights = train("plain_pytorch", monkeypatch)
    assert [len(rows) for rows in kept] == [102] * 10 + [76] * 10  # floor(0.8 * 128), floor(0.6 * 128)
    their_kept, their_rates, their_weights = train(example, monkeypatch)
    assert their_rates == rates
    assert their_kept == kept
    assert their_weights.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(their_weights[name], weight, rtol=0, atol=1e-6)


def test_the_example_runs_and_learns_through_wrong_labels(example):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{example}.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = float(done.stdout.split("clean test accuracy ")[-1].split(";")[0])
    assert accuracy > 0.9
