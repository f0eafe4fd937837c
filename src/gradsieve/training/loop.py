"""A run from beginning to end: its folder, its rate, its training, its result."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gradsieve import ranks
from gradsieve.arguments import argument
from gradsieve.data.validate import check_seconds
from gradsieve.theory import check_breakdown
from gradsieve.training.auto_rate import settle_rate
from gradsieve.training.interrupt import stop_request
from gradsieve.training.probe import Probe
from gradsieve.training.progress import make_progress
from gradsieve.training.rank_books import of_this_rank
from gradsieve.training.rank_start import require_same_run, shares_in_words
from gradsieve.training.repeatable import refuse_inference_mode, reproducible
from gradsieve.training.result import Result, finish, read_result
from gradsieve.training.run import Run, most_dropped
from gradsieve.training.setting import at_rate, prepare
from gradsieve.training.shared_folder import open_shared
from gradsieve.training.trainer import Trainer, start


def train(
    run: Run,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    save_every: float = 30.0,
    bounds: bool = False,
    show: bool = False,
) -> Result:
    """Train, test after every epoch, and write the folder ``out`` (nothing if it is None).

    The result has the figures on the test rows, a record of every epoch, the weights, and the ledger, which counts how
    often each row was dropped.
    ``resume`` goes on from the folder's last state, or starts a new run. A state is saved every ``save_every`` seconds
    and on Ctrl-C; a run that is killed and resumed ends with the same bits. ``bounds`` measures, once an epoch, the
    gradient's error beside the paper's bound on it. Under ``torch.distributed`` the ranks share every batch, and the
    first one writes.
    """
    refuse_inference_mode()
    check_seconds(argument("save_every"), save_every)
    require_same_run(run, out, bounds)
    folder = None if out is None else open_shared(Path(out), run, resume)
    if folder is not None and folder.finished:
        return read_result(folder)
    setting = ranks.agreed(lambda: prepare(run))
    state = ranks.agreed(lambda: start(setting))
    ranks.require_alike("training rows", {"SHA-256": state.data_sha256})
    ranks.require_alike("test rows", {"SHA-256": state.test_sha256})
    is_auto = isinstance(run.drop_rate, str)
    if ranks.is_first():
        check_breakdown(run.rate if is_auto else max(run.rate, most_dropped(run)))
    try:
        if folder is not None:
            folder.create()
            if folder.finished:  # by another process, while this one loaded the data
                return read_result(folder)
        with (
            stop_request(),  # here and not only in Trainer.train(): choosing a rate trains several candidates
            reproducible(run.seed, setting.device),
            make_progress(show and ranks.is_first(), run_label(run), run.epochs) as progress,
        ):
            if ranks.world_size() > 1:
                progress.note(shares_in_words(setting, state))
            picked, state.clock = {}, time.monotonic()  # choosing a rate is work of the run, too
            if is_auto:
                pick = settle_rate(setting, folder.path if folder is not None else None, progress.note)
                setting, picked = at_rate(setting, pick.rate), {"pick": pick.to_json()}
            saved = folder.load_state() if folder is not None else None
            if saved is not None:
                tensors, meta = saved
                stream = (run.seed, "dropout", meta["epoch"], meta["step"])
                state.restore(of_this_rank(tensors, stream), meta)
            probe = Probe.of(setting) if bounds else None
            trainer = Trainer(setting, state, folder, progress, probe, save_every)
            trainer.train()
        return finish(replace(setting, run=run), state, folder, {**trainer.manner(), **picked})
    finally:
        if folder is not None:
            folder.release()


def run_label(run: Run) -> str:
    """A run in a few words."""
    corruption = "clean" if run.corruption == "none" else f"{run.corruption} {run.rate:g}"
    return f"{run.data} {corruption} {run.method}"
