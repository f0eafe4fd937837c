"""``drop_rate="auto"``: before a run begins, candidates train on some of its rows and the others vote for a rate.

The pick is written to pick.json in the run's folder, for a killed run to go on with. A run that is killed before
that chooses again, with the same outcome.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsieve import ranks, seeds
from gradsieve.arguments import elsewhere
from gradsieve.choosing.electorate import Part, electorate
from gradsieve.choosing.pick import RatePick, no_pick
from gradsieve.choosing.picture import summary
from gradsieve.choosing.rates import race
from gradsieve.data import Rows
from gradsieve.errors import CheckpointError, GradsieveError
from gradsieve.training.evaluate import common_answer, predict_together
from gradsieve.training.files import digest, finite, read_json, write_json
from gradsieve.training.progress import Progress
from gradsieve.training.repeatable import reproducible
from gradsieve.training.setting import Setting, at_rate, fingerprint
from gradsieve.training.trainer import Trainer, start

PICK = "pick.json"


def settle_rate(setting: Setting, folder: Path | None, note: Callable[[str], None]) -> RatePick:
    """The pick of a run, one for all ranks: that in the first one's folder, or a new one, which is written there."""
    path = None if folder is None else folder / PICK

    def known() -> dict[str, Any] | None:
        if path is None or not path.exists():
            return None
        return read_pick(path, fingerprint(setting.data.train)).to_json()

    def new() -> dict[str, Any]:
        pick = choose_rate(setting)
        if path is not None:
            write_pick(path, pick, fingerprint(setting.data.train))
        return pick.to_json()

    found = ranks.from_first(ranks.agreed(known))
    if found is not None:
        return RatePick.from_json(found)
    pick = RatePick.from_json(ranks.from_first(ranks.agreed(new)))
    note(summary(pick))
    if pick.warning and ranks.is_first():
        warnings.warn(pick.warning, UserWarning, stacklevel=3)  # the caller of train()
    return pick


def write_pick(path: Path, pick: RatePick, data_sha256: str) -> None:
    """Write a pick, with the SHA-256 of the rows that it was made with and of the file's own values."""
    values = finite({**pick.to_json(), "data_sha256": data_sha256})
    write_json(path, {**values, "sha256": digest(values)})


def read_pick(path: Path, data_sha256: str) -> RatePick:
    """The pick in a file, or one error if it is damaged or was made with other rows."""
    made_with = data_sha256
    try:
        values = read_json(path)
        if "sha256" in values:  # files of older versions have none
            if values.pop("sha256") != digest(values):
                raise CheckpointError("its SHA-256 is not the one that was recorded")
            made_with = values.pop("data_sha256")
        pick = RatePick.from_json(values)
    except (AttributeError, KeyError, TypeError, GradsieveError) as error:
        raise CheckpointError(f"{path} is damaged: it is not a pick ({error}). Delete it to choose again.") from error
    if made_with != data_sha256:
        raise CheckpointError(
            f"{path} was chosen by other training rows: the data has changed since. "
            f"{elsewhere('Put it back as it was, delete the file to choose again')}"
        )
    return pick


def choose_rate(setting: Setting) -> RatePick:
    """Train candidates at several rates on part of the training rows; other training rows vote for one of them."""
    if not setting.method.drops_rows:
        return no_pick()
    train, seed = setting.data.train, setting.run.seed
    on_part = cache(partial(on_rows, setting))

    def begin(rate: float, part: Part) -> Runner:
        return Runner(candidate(at_rate(on_part(part.trained), rate)), train.inputs[part.voters])

    return race(begin, electorate(len(train), seed), train.targets.numpy(), seed=seed)


def candidate(setting: Setting) -> Trainer:
    """A run to choose a rate by: it shows and writes nothing."""
    return Trainer(setting, start(setting), None, Progress(), None, math.inf, warns=False)


def on_rows(setting: Setting, rows: Tensor) -> Setting:
    """The same run on some of its training rows; two of them stand in for the test rows, whose scores go unused."""
    train = setting.data.train
    some = Rows(train.inputs[rows], train.targets[rows])
    data = replace(setting.data, train=some, test=Rows(some.inputs[:2], some.targets[:2]))
    steps = len(rows) // min(setting.run.batch_size, len(rows))
    clean, is_corrupted = setting.clean_targets[rows], setting.is_corrupted[rows]
    return replace(setting, data=data, clean_targets=clean, is_corrupted=is_corrupted, steps_an_epoch=steps)


class Runner:
    """A candidate: the run at one drop rate, trained on the rows that do not vote. ``inputs`` are those that do."""

    def __init__(self, trainer: Trainer, inputs: Tensor) -> None:
        self.trainer, self.inputs = trainer, inputs

    def train(self, share: float) -> None:
        trainer, state = self.trainer, self.trainer.state
        with reproducible(seeds.derive(trainer.run.seed, "candidate", state.epoch), trainer.setting.device):
            trainer.train(until=max(1, round(share * trainer.run.epochs)))

    def predict(self) -> NDArray:
        setting = self.trainer.setting
        outputs = [predict_together(each, self.inputs, setting.device) for each in self.trainer.state.networks]
        return common_answer(setting.data.task, torch.stack(outputs))
