"""The folder of a run.

config.json          the run
pick.json            the drop rate that was chosen, for a run with drop_rate="auto"
metrics.jsonl        one line an epoch
result.json          written last: a folder that has it is finished
weights.safetensors  the networks, with their SHA-256 in result.json
ledger.safetensors   what happened to each row
state/               while the run is not finished: its last two resumable states, with their SHA-256
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from gradsieve.arguments import argument, elsewhere
from gradsieve.errors import CheckpointError, InputError, RunFolderError
from gradsieve.ranks.together import differences
from gradsieve.training.files import finite, read_json, read_tensors, take, write_json, write_tensors, write_whole
from gradsieve.training.run import Run
from gradsieve.training.sources import changed_code

RESULT_KEYS = {"metric", "last", "last10_mean", "purity", "run", "weights_sha256", "ledger_sha256"}
# What a run leaves if it is killed before its config.json is written. A folder with no more than this counts as empty.
BARE = {"state", "state/lock", "config.json.part"}
KEPT_STATES = 2  # should the newest be damaged, the one before it can be used


@dataclass
class RunFolder:
    """The folder of one run, locked by the process that works on it."""

    path: Path
    run: Run
    _lock: IO[str] | None = None

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def result(self) -> dict[str, Any]:
        path = self.path / "result.json"
        result = read_json(path)
        if not isinstance(result, dict) or not result.keys() >= RESULT_KEYS:
            raise CheckpointError(f"{path} is damaged: it is not the result of a run.")
        return result

    def create(self) -> None:
        """Make the folder and lock it: two processes must not write into one run."""
        self._lock = take(self.path, self.path / "state" / "lock")  # held until release()
        check_same(self.path, self.run)  # another process may have written here since open_folder() checked
        write_json(self.path / "config.json", self.run.to_json())
        for part in (self.path / "state").glob("*.part"):  # left by a process killed while saving
            part.unlink()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_metrics(self, history: list[dict[str, Any]]) -> None:
        lines = [json.dumps(finite(record), allow_nan=False) + "\n" for record in history]
        write_whole(self.path / "metrics.jsonl", "".join(lines).encode())

    def save_state(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Save a state to resume from, as the newest."""
        # The metadata is stored as a tensor, so that one checksum covers everything.
        text = json.dumps({"run": self.run.to_json(), **meta}).encode()
        tensors = {**tensors, "meta": torch.frombuffer(bytearray(text), dtype=torch.uint8)}
        # A new file name: if the process is killed before the manifest is written, the listed states are still sound.
        manifest = self.path / "state" / "manifest.json"
        listed = re.findall(r"state-(\d+)", manifest.read_text()) if manifest.exists() else []
        name = f"state-{max(map(int, listed), default=0) + 1:09d}.safetensors"
        sha256 = write_tensors(self.path / "state" / name, tensors)
        states = [*self.states(), {"file": name, "sha256": sha256}][-KEPT_STATES:]
        write_json(manifest, states)
        for old in (self.path / "state").glob("state-*.safetensors"):
            if old.name not in {state["file"] for state in states}:
                old.unlink()

    def states(self) -> list[dict[str, str]]:
        """The states in the manifest whose files still exist, newest last."""
        manifest = self.path / "state" / "manifest.json"
        if not manifest.exists():
            return []
        try:
            states = read_json(manifest)
            return [state for state in states if state["sha256"] and (manifest.parent / state["file"]).exists()]
        except (CheckpointError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{manifest} is damaged: it does not list states. Delete the folder {manifest.parent} to start this "
                "run from the beginning."
            ) from error

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest state, None if there is none yet, or one error that says how to go on."""
        states = self.states()
        if not states:
            return None
        path = self.path / "state" / states[-1]["file"]
        try:
            tensors = read_tensors(path, states[-1]["sha256"])
            meta = json.loads(bytes(tensors.pop("meta").tolist()))
            if meta.pop("run") != self.run.to_json():
                raise CheckpointError(f"{path} belongs to another run.")
        except (CheckpointError, KeyError, ValueError) as error:
            way_out = (
                f"Delete it to go on from {states[-2]['file']}, the state before it."
                if len(states) > 1
                else f"Delete the folder {path.parent} to start this run from the beginning."
            )
            raise CheckpointError(f"{error} {way_out}") from error
        return tensors, meta

    def finish(self, result: dict[str, Any], weights: dict[str, Tensor], ledger: dict[str, Tensor]) -> dict[str, Any]:
        """Write a finished run's results and delete its states, which are not needed any more."""
        sums = {
            "weights_sha256": write_tensors(self.path / "weights.safetensors", weights),
            "ledger_sha256": write_tensors(self.path / "ledger.safetensors", ledger),
        }
        result = {**result, **sums}
        write_json(self.path / "result.json", result)
        shutil.rmtree(self.path / "state", ignore_errors=True)
        return result

    def weights(self) -> dict[str, Tensor]:
        """The weights of a finished run, checked against their SHA-256."""
        return read_tensors(self.path / "weights.safetensors", self.result()["weights_sha256"])

    def ledger(self) -> dict[str, Tensor]:
        """The columns of a finished run's ledger, checked likewise."""
        return read_tensors(self.path / "ledger.safetensors", self.result()["ledger_sha256"])

    def metrics(self) -> list[dict[str, Any]]:
        """One record per epoch."""
        path = self.path / "metrics.jsonl"
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged or cannot be read ({error}).") from error


def open_folder(path: Path, run: Run, resume: bool) -> RunFolder:
    """The folder for a run, refused if it holds anything else. Nothing is written yet."""
    folder = RunFolder(path, run)
    try:
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file, but a run needs a folder. {elsewhere()}")
        if all(entry.relative_to(path).as_posix() in BARE for entry in path.rglob("*")):
            return folder
        is_run = (path / "config.json").exists()
    except OSError as error:
        raise RunFolderError(f"{path} cannot be looked into ({error.strerror}). {elsewhere()}") from error
    if not is_run:
        raise RunFolderError(f"{path} is not empty and not a run folder. {elsewhere()}")
    check_same(path, run)
    if not resume:
        state = "finished" if folder.finished else "begun"
        raise RunFolderError(f"{path} holds this run already, {state}. {elsewhere('Add ' + argument('resume', True))}")
    return folder


def check_same(path: Path, run: Run) -> None:
    """Refuse a folder that holds another run, and say where the two differ."""
    config, ours = path / "config.json", run.to_json()
    theirs = read_json(config) if config.exists() else ours
    if theirs == ours:
        return
    if not isinstance(theirs, dict) or not theirs:
        raise CheckpointError(f"{config} is damaged: it is not a run. {elsewhere()}")
    require_same(path, "run", theirs, ours)


def require_same(path: Path, kind: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse a folder made with other settings, data or code of a user's own parts (``sources``)."""
    code = changed_code(theirs.get("sources"), ours.get("sources", {}))
    is_other_data = theirs.get("data_sha256") != ours.get("data_sha256")
    told_apart = ("sources", "data_sha256")  # by SHA-256, which says nothing to a reader
    theirs, ours = ({name: each[name] for name in each if name not in told_apart} for each in (theirs, ours))
    if theirs != ours:
        raise RunFolderError(f"{path} holds another {kind} ({differences(theirs, ours)}). {elsewhere()}")
    if is_other_data:
        raise RunFolderError(
            f"{path} holds a {kind} of other data, or the data has changed since. {elsewhere('Put it back as it was')}"
        )
    if code:
        raise RunFolderError(
            f"{path} holds a {kind} of other code: {code}. Put the code back as it was, or choose another folder."
        )


def read_folder(path: Path) -> RunFolder:
    """The existing folder of a run."""
    config = Path(path) / "config.json"
    if not config.exists():
        raise RunFolderError(f"{path} is not a run folder: it has no config.json.")
    try:
        return RunFolder(Path(path), Run.from_json(read_json(config)))
    except InputError as error:
        raise CheckpointError(f"{config} is damaged: {error}") from error
