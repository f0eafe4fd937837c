"""``drop_rate="auto"`` of a run: candidates on some of its rows, chosen by others, before the run itself begins.

The pick is written to pick.json in the run's folder. A run that is killed after that goes on with it; one that is
killed before chooses again, and the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsieve import seeds
from gradsieve.choosing.electorate import Part, electorate
from gradsieve.choosing.pick import RatePick, no_pick
from gradsieve.choosing.picture import summary
from gradsieve.choosing.rates import race
from gradsieve.data import Rows
from gradsieve.errors import CheckpointError, GradsieveError
from gradsieve.training.evaluate import predict_together
from gradsieve.training.files import read_json, write_json
from gradsieve.training.repeatable import reproducible
from gradsieve.training.setting import Setting, at_rate

if TYPE_CHECKING:
    from gradsieve.training.loop import Trainer

PICK = "pick.json"
Start = Callable[[Setting], "Trainer"]  # a run before its first step, that writes nothing


def settle_rate(setting: Setting, start: Start, folder: Path | None, note: Callable[[str], None]) -> RatePick:
    """The pick of a run: the one in its folder, or a new one, which is written there."""
    path = None if folder is None else folder / PICK
    if path is not None and path.exists():
        return read_pick(path)
    pick = choose_rate(setting, start)
    if path is not None:
        write_json(path, pick.to_json())
    note(summary(pick))
    if pick.warning:
        warnings.warn(pick.warning, UserWarning, stacklevel=3)  # of whoever called train()
    return pick


def read_pick(path: Path) -> RatePick:
    """A pick from its file, or one error."""
    try:
        return RatePick.from_json(read_json(path))
    except (AttributeError, TypeError, GradsieveError) as error:
        raise CheckpointError(f"{path} is damaged: it is not a pick ({error}). Delete it to choose again.") from error


def choose_rate(setting: Setting, start: Start) -> RatePick:
    """Candidates at every rate on a sample of the training rows; other training rows choose."""
    if not setting.method.drops_rows:
        return no_pick()
    train, seed = setting.data.train, setting.run.seed
    on_part = cache(partial(on_rows, setting))

    def begin(rate: float, part: Part) -> Runner:
        return Runner(start(at_rate(on_part(part.trained), rate)), train.inputs[part.voters])

    return race(begin, electorate(len(train), seed), train.targets.numpy(), seed=seed)


def on_rows(setting: Setting, rows: Tensor) -> Setting:
    """The same run on some of its training rows, and on two of them in the place of the test rows: nobody looks."""
    train = setting.data.train
    some = Rows(train.inputs[rows], train.targets[rows])
    data = replace(setting.data, train=some, test=Rows(some.inputs[:2], some.targets[:2]))
    steps = len(rows) // min(setting.run.batch_size, len(rows))
    clean, is_corrupted = setting.clean_targets[rows], setting.is_corrupted[rows]
    return replace(setting, data=data, clean_targets=clean, is_corrupted=is_corrupted, steps_an_epoch=steps)


class Runner:
    """A candidate on one part of the rows: the run at one rate, on those that do not vote."""

    def __init__(self, trainer: Trainer, inputs: Tensor) -> None:
        self.trainer, self.inputs = trainer, inputs

    def train(self, share: float) -> None:
        trainer, state = self.trainer, self.trainer.state
        with reproducible(seeds.derive(trainer.run.seed, "candidate", state.epoch), trainer.setting.device):
            trainer.train(until=max(1, round(share * trainer.run.epochs)))

    def predict(self) -> NDArray:
        setting = self.trainer.setting
        outputs = torch.stack(
            [predict_together(each, self.inputs, setting.device) for each in self.trainer.state.networks]
        )
        if setting.data.task == "classification":
            outputs = outputs.softmax(-1)
        return outputs.double().mean(0).cpu().numpy()
