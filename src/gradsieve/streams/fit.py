"""``gradsieve fit`` on a table that does not fit into memory.

It writes the same folder as every fit (``gradsieve.tables.model_folder``), except that rows.csv lists only the most
suspicious rows; ledger.safetensors has the figures of all. During the fit, the folder holds its state in fit/.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from gradsieve.arguments import argument, elsewhere
from gradsieve.choosing import AUTO, largest_rate
from gradsieve.choosing.pick import RatePick
from gradsieve.choosing.picture import summary as pick_summary
from gradsieve.counts import keep_count
from gradsieve.data import Task
from gradsieve.errors import InputError, RunFolderError
from gradsieve.estimators.auto_rate import choose_rate
from gradsieve.estimators.fitting import Fits, start
from gradsieve.estimators.plan import Plan
from gradsieve.method import Method
from gradsieve.methods import METHODS
from gradsieve.registry import sources, unknown
from gradsieve.selection import keep_first
from gradsieve.streams.encoder import BadRows, Encoded, Encoder
from gradsieve.streams.feed import BlockFeed
from gradsieve.streams.rows import listed_rows, score_rows
from gradsieve.streams.survey import Surveyed, survey
from gradsieve.streams.trainer import StreamTrainer
from gradsieve.tables.frame import Frame
from gradsieve.tables.model_folder import Design, Model, about, check_new, read_content, returned, save_model
from gradsieve.tables.shards import Shards
from gradsieve.tables.targets import given_targets, task_of
from gradsieve.training.auto_rate import PICK, read_pick, write_pick
from gradsieve.training.files import write_tensors
from gradsieve.training.folder import RunFolder, check_same, require_same
from gradsieve.training.interrupt import stop_request
from gradsieve.training.repeatable import reproducible
from gradsieve.training.setting import choose_device
from gradsieve.training.tally import forsaken

FIT = "fit"  # the folder of a fit that is not finished
ASKED_ROWS = 2**15  # rows of the sample with which a drop rate is chosen
VOTE_EPOCHS = 20  # least epochs of that choice: an epoch of a sample has few steps
NOTED = 3  # bad rows that are named in notes


@dataclass(frozen=True)
class StreamFit:
    """Everything that determines the result of a fit, like a run's config.json; a resume must have the same."""

    data_sha256: str
    target: list[str]
    inputs: list[str]
    categorical: list[str]
    task: Task | None
    bad_rows: BadRows
    plan: dict[str, Any]
    decorrelated: Task = "regression"  # the task whose inputs are; fits from before that cannot be resumed

    def to_json(self) -> dict[str, Any]:
        codes = sources(self.plan["method"])
        return {**asdict(self), "sources": codes} if codes else asdict(self)


def fit_stream(
    shards: Shards,
    targets: Sequence[str],
    out: Path,
    *,
    task: Task | None,
    ignore: Sequence[str],
    categorical: Sequence[str],
    drop_rate: float | str,
    hidden: Sequence[int],
    bad_rows: BadRows,
    resume: bool,
    save_every: float,
    note: Callable[[str], None],
    tell: Callable[[dict[str, Any]], None],
    **options: Any,  # fields of the plan
) -> dict[str, Any]:
    """Fit a network to a table in files, read in slices; returns a summary."""
    began = time.monotonic()
    check_names(options["method"], drop_rate, bad_rows)
    shards = shards.with_text({*categorical} & {*targets})
    header = Frame(shards.path, dict.fromkeys(shards.columns, np.empty(0)), shards=shards)
    roles = header.roles(targets, ignore, categorical)
    names, inputs, words = roles
    settings = {**options, "drop_rate": drop_rate, "hidden": list(hidden)}
    task = task_of(roles, task)
    fit = StreamFit(shards.sha256, names, inputs, words, task, bad_rows, settings)
    if resume and (out / "model.json").exists():
        return finished(out, fit)
    folder = find_folder(out, fit, resume)
    note = first_few(note)
    known = survey(shards, roles, task, options["seed"], bad_rows, note)
    plan = Plan(task=known.targets.task, outputs=known.targets.outputs, drop_rate=largest_rate(drop_rate), **options)
    check_method(plan.make_method(), plan.task)
    design = Design("mlp", {"hidden": list(hidden)}, [known.encoding.size], plan.outputs)
    encoder = Encoder(known.encoding, known.targets, known.real_valued, plan.used_rate > 0, bad_rows, note)
    folder.create()
    try:
        pick = None
        if drop_rate == AUTO:
            pick = settle_rate(folder.path / PICK, shards.sha256, plan, known, encoder, design.build)
            note(pick.warning or pick_summary(pick))
            plan = replace(plan, drop_rate=pick.rate)
            encoder = replace(encoder, drops=plan.used_rate > 0)
        sample = encoder.part(known.sample)
        feed = BlockFeed(shards, encoder, plan.seed, choose_device(plan.device))
        trainer = start_trainer(plan, design, feed, known.filled, sample)
        trainer.keep_in(folder, save_every, began)
        with reproducible(plan.seed, trainer.feed.device), stop_request() as stop:
            trainer.restore()
            trainer.train(stop, tell)
        if sentence := forsaken(*trainer.of_class(), known.targets.classes):
            warnings.warn(f"In epoch {plan.epochs}, {sentence}", UserWarning, stacklevel=3)  # the caller of fit_file()
        summary = finish(trainer, design, sample, pick, out, fit)
        shutil.rmtree(folder.path, ignore_errors=True)
        return summary
    finally:
        folder.release()


def start_trainer(plan: Plan, design: Design, feed: BlockFeed, rows: int, sample: Encoded) -> StreamTrainer:
    """A plan ready for its first step; its networks are checked on a row."""
    networks = [
        start(plan, design.build, number, sample.inputs, feed.device) for number in range(plan.make_method().networks)
    ]
    trainer = StreamTrainer(plan, networks, feed, rows)
    trainer.watch(sample.rows, sample.targets)
    for network in networks:
        trainer.method.require(network, trainer.batch_size, feed.device)
    return trainer


def finish(
    trainer: StreamTrainer, design: Design, sample: Encoded, pick: RatePick | None, out: Path, fit: StreamFit
) -> dict[str, Any]:
    """Score every row and write the folder; returns the summary."""
    plan, feed, encoder = trainer.plan, trainer.blocks, trainer.blocks.encoder
    networks, ledger = [network.cpu().eval() for network in trainer.networks], trainer.ledger.cpu()
    scores = score_rows(feed.shards, encoder, trainer.method, networks, ledger, sample)
    usable = int((~scores.isnan()).sum())
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[keep_first(scores, keep_count(plan.used_rate, usable))] = True
    last = trainer.state.history[-1]
    summary = {
        "data": str(feed.shards.path),
        "task": plan.task,
        "target": encoder.targets.names,
        "rows": usable,
        "inputs": len(encoder.encoding.columns),
        "dropped": usable - int(kept.sum()),
        "loss": last["loss"],
        "seconds": trainer.state.elapsed(),
        "streamed": True,
        "bad_rows": last.get("bad_rows", 0),
        "waited": feed.waited,
    }
    if pick is not None:
        summary["pick"] = pick.to_json()
    books = {"ledger_sha256": write_tensors(out / "ledger.safetensors", ledger.tensors())}
    model = Model(encoder.targets, encoder.encoding, 0, design, networks)
    rows = listed_rows(feed.shards, encoder, networks, scores, kept)
    save_model(out, model, {**about(summary, plan), **books, "stream": fit.to_json()}, rows, is_ours=True)
    return returned(summary, plan, out)


def check_names(method: str, drop_rate: float | str, bad_rows: str) -> None:
    """Refuse options that are wrong whatever the rows."""
    if bad_rows not in get_args(BadRows):
        raise InputError(unknown("way with bad rows", bad_rows, dict.fromkeys(get_args(BadRows))))
    largest_rate(drop_rate)
    METHODS[method]


def check_method(method: Method, task: Task) -> None:
    """Refuse methods that need all rows of an epoch in memory."""
    outputs = torch.zeros(4, 2)
    targets = outputs if task == "regression" else outputs[:, 0].long()
    chosen = method.epoch_rows(lambda network: outputs, [nn.Identity()] * method.networks, targets, 0.5)
    if method.balanced or chosen is not None:
        raise InputError(
            f"{type(method).__name__} looks at all rows at once, which a stream does not have in memory. Choose "
            f"another {argument('method')}, or other {argument('method_options')}."
        )


def finished(out: Path, fit: StreamFit) -> dict[str, Any]:
    """What the fit of a finished folder returned, if it is this fit."""
    content = read_content(out)
    if not isinstance(content.get("stream"), dict):
        raise RunFolderError(f"{out} holds another fit (one that was not streamed). {elsewhere()}")
    require_same(out, "fit", content["stream"], fit.to_json())
    shutil.rmtree(out / FIT, ignore_errors=True)  # left if the fit was killed after its last file
    return returned(content["fit"], Plan(**content["plan"]), out)


def find_folder(out: Path, fit: StreamFit, resume: bool) -> RunFolder:
    """The folder of a fit's state; nothing is written yet. A fit that was begun needs ``resume``."""
    folder = RunFolder(out / FIT, fit)  # type: ignore[arg-type]  # it needs only to_json of a run
    if not (folder.path / "config.json").exists():
        check_new(out, beside=FIT)
        return folder
    if not resume:
        raise RunFolderError(f"{out} already holds an unfinished fit. {elsewhere('Add ' + argument('resume', True))}")
    check_same(folder.path, fit)  # type: ignore[arg-type]
    return folder


def settle_rate(
    path: Path,
    data_sha256: str,
    plan: Plan,
    known: Surveyed,
    encoder: Encoder,
    make_network: Callable[[int], nn.Module],
) -> RatePick:
    """Choose the drop rate with some rows of the sample; a resumed fit keeps its rate."""
    if path.exists():
        return read_pick(path, data_sha256)
    rows = known.sample.take(np.arange(len(known.sample)) % -(-len(known.sample) // ASKED_ROWS) == 0)
    rows, _ = encoder.usable(rows)
    inputs = encoder.part(rows).inputs.numpy()
    targets_at = partial(known.targets.scaled, given_targets(rows, known.targets))
    pick = choose_rate(Fits(replace(plan, epochs=max(plan.epochs, VOTE_EPOCHS)), inputs, targets_at, make_network))
    write_pick(path, pick, data_sha256)
    return pick


def first_few(note: Callable[[str], None]) -> Callable[[str], None]:
    """The same function, except that it names only the first few rows that are left out."""
    named: set[str] = set()

    def limited(text: str) -> None:
        if not text.startswith("left out: "):
            note(text)
        elif text not in named and len(named) < NOTED:
            named.add(text)
            note(text)

    return limited
