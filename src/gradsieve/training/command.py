"""The command line that trains a given run."""

from __future__ import annotations

import shlex

from gradsieve.arguments import pair
from gradsieve.training.run import Run, make_run


def train_command(run: Run) -> str:
    """The command that trains exactly this run; DIR stands for the data's folder."""
    ours = run.to_json()
    given = {"corruption": run.corruption, "rate": run.rate, "preset": run.preset, "seed": run.seed}
    usual = make_run(run.data, run.method, **given).to_json()
    words = ["gradsieve", "train", "--data", run.data]
    words += ["--data-dir", "DIR"] if run.data_dir else []
    words += ["--corruption", run.corruption, "--rate", repr(run.rate)] if run.corruption != "none" else []
    words += ["--method", run.method, "--preset", run.preset, "--seed", str(run.seed)]
    for name, value in ours.items():
        if name in ("data_dir", "device", "sources") or value == usual[name]:
            continue
        if not isinstance(value, dict):
            words += [f"--{name.replace('_', '-')}", str(value)]
            continue
        for option, setting in value.items():
            if usual[name].get(option) != setting:
                words += [f"--{name.removesuffix('s').replace('_', '-')}", pair(option, setting)]
    return shlex.join(words)
