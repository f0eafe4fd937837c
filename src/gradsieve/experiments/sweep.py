"""A search over the settings of a fit, on a file some of whose targets are wrong.

All trials train on the same rows and are scored on the same held-out rows, which have as many wrong targets. Optuna is
guided by that score; between the best trials the held-out rows vote, row by row (``gradsieve.choosing.vote``).

journal.log    every trial, in Optuna's journal, from which a killed sweep goes on
answers/       each trial's predictions for the held-out rows
sweep.json     the winner, and how confident the vote is
model/         the winner, fitted to all rows: the folder of a fit
"""

from __future__ import annotations

import hashlib
import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradsieve import seeds
from gradsieve.arguments import argument, elsewhere
from gradsieve.choosing.pick import LEAST_ROWS
from gradsieve.choosing.vote import choose, noisy_mean
from gradsieve.counts import part
from gradsieve.data import Task
from gradsieve.data.validate import check_count
from gradsieve.errors import GradsieveError, InputError, MissingExtraError, RunFolderError
from gradsieve.estimators.answers import mean_outputs
from gradsieve.estimators.fitting import fit_networks
from gradsieve.estimators.plan import Plan
from gradsieve.files.fit import save_fit
from gradsieve.files.prepare import Prepared, prepare
from gradsieve.methods import DEFAULT_METHOD
from gradsieve.registry import sources
from gradsieve.tables.frame import as_names
from gradsieve.tables.model_folder import Design, about
from gradsieve.training.files import read_json, take, write_json, write_whole
from gradsieve.training.folder import require_same

Space = Callable[[Any], Mapping[str, Any]]  # an Optuna trial -> fields of a Plan, and "hidden"

JUDGES = 0.2  # the share of rows that is held out to judge trials
MOST_JUDGES = 5_000  # held-out rows at most, however large the file
FINALISTS = 5  # trials with the best scores, among which the held-out rows vote
STARTUP = 10  # random trials before Optuna's sampler starts to learn from them
# What a sweep leaves if it is killed before its config.json is written. A folder with no more counts as empty.
BARE = {"answers", "journal.log", "config.json.part"}


def image_space(trial: Any) -> dict[str, Any]:
    """The default search space for a folder of images."""
    return {
        "drop_rate": trial.suggest_float("drop_rate", 0.0, 0.5, step=0.05),
        "learning_rate": trial.suggest_float("learning_rate", 3e-4, 1e-2, log=True),
    }


def table_space(trial: Any) -> dict[str, Any]:
    """The default search space for a table: the same, and the network's layers."""
    return image_space(trial) | {
        "hidden": [trial.suggest_categorical("width", [32, 128, 256])] * trial.suggest_int("depth", 1, 3),
    }


def sweep_file(
    data: str | Path,
    targets: str | Sequence[str],
    out: str | Path,
    *,
    trials: int = 30,
    space: Space | None = None,
    task: Task | None = None,
    ignore: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    method: str = DEFAULT_METHOD,
    epochs: int = 50,
    seed: int = 0,
    device: str = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Try settings, let held-out rows choose between the best, and fit the winner to all rows.

    Returns the content of sweep.json: the ``settings`` of the winner and its ``score``, all ``finalists``, whether the
    vote clearly ``decided`` between them, and the folder of the ``model``.
    If ``out`` holds the same sweep, interrupted or with fewer trials, it is continued.
    """
    check_count(argument("trials"), trials, 2)
    data, out, targets, ignore, categorical = Path(data), Path(out), *map(as_names, (targets, ignore, categorical))
    prepared = prepare(data, targets, task, ignore, categorical, note)
    space = space or (image_space if prepared.side else table_space)
    rows = len(prepared.inputs)
    if rows < LEAST_ROWS:
        raise InputError(f"{data} has {rows} rows, but a sweep needs {LEAST_ROWS}: a fifth of them judge.")
    fixed = {"method": method, "epochs": epochs, "seed": seed, "device": device}
    base = Plan(task=prepared.targets.task, outputs=prepared.targets.outputs, **fixed)
    content = hashlib.sha256(np.ascontiguousarray(prepared.inputs).data)
    content.update(repr(prepared.given.tolist()).encode())
    identity = {"target": prepared.targets.names, "data_sha256": content.hexdigest(), **fixed}
    codes = sources(method)
    with taken(out, {**identity, "sources": codes} if codes else identity):
        study = open_study(out / "journal.log")
        trained, judges = split(rows, seed)
        while (done := len(ended(study))) < trials:
            trial = ask(study, seed, done)
            began = time.monotonic()
            try:
                settings = drawn(space, trial)
                answers = try_out(base, settings, prepared, trained, judges)
            except GradsieveError as error:
                if isinstance(error, InputError):
                    raise
                study.tell(trial, state=states().PRUNED)  # it diverged: counts as a trial, without a score
                note(f"trial {done + 1}/{trials} has diverged")
                continue
            save_answers(answer_path(out, trial.number), answers)
            trial.set_user_attr("settings", settings)
            score = noisy_mean(answers, judged(prepared, judges))
            study.tell(trial, score)
            note(f"trial {done + 1}/{trials}: {score:.4f} in {time.monotonic() - began:.1f} s, {settings}")
        return finish(study, out, base, prepared, judges, str(data))


def ask(study: Any, seed: int, number: int) -> Any:
    """The next trial. Each gets a new sampler with its own seed, so that a continued sweep draws the same settings."""
    optuna = library()
    study.sampler = optuna.samplers.TPESampler(
        seed=seeds.derive(seed, "trial", number) % 2**32, n_startup_trials=STARTUP
    )
    return study.ask()


def drawn(space: Space, trial: Any) -> dict[str, Any]:
    """The settings of a trial."""
    try:
        return dict(space(trial))
    except (TypeError, ValueError) as error:  # no mapping, or other choices than in earlier trials
        raise InputError(
            f"The space gives no settings ({error}). It must return them by name, and offer the same choices as "
            f"in earlier trials. {elsewhere('Correct it')}"
        ) from error


def split(rows: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on, and held-out rows that judge."""
    order = torch.randperm(rows, generator=seeds.generator(seed, "sweep")).numpy()
    count = min(MOST_JUDGES, part(JUDGES, rows))
    return np.sort(order[count:]), np.sort(order[:count])


def try_out(base: Plan, settings: Mapping[str, Any], prepared: Prepared, trained: NDArray, judges: NDArray) -> NDArray:
    """A trial's predictions for the held-out rows: probabilities (N, C), or outputs (N, q)."""
    plan, design = apply(base, settings, prepared)
    scaled = prepared.scaled(plan.used_rate > 0)
    fitted = fit_networks(plan, prepared.inputs[trained], scaled[trained], design.build)
    answers = mean_outputs(fitted.networks, prepared.inputs[judges], plan.task)
    if not np.isfinite(answers).all():  # possible even if training was stable: these rows may be more extreme
        raise GradsieveError("Answers for the rows that judge are NaN or infinite: the training has diverged.")
    return answers


def apply(base: Plan, settings: Mapping[str, Any], prepared: Prepared) -> tuple[Plan, Design]:
    """The plan and the network of some settings."""
    changes, design = dict(settings), prepared.design()
    hidden = changes.pop("hidden", None)
    try:
        if hidden is not None:
            design = replace(design, options={**design.options, "hidden": list(hidden)})
        return replace(base, **changes), design
    except TypeError as error:
        raise InputError(
            f"The space gives {dict(settings)}, but a fit has no such setting, or takes no such value ({error})."
        ) from error


def judged(prepared: Prepared, judges: NDArray) -> NDArray:
    """The targets of the held-out rows, scaled like the predictions, and clipped as for training that drops rows."""
    return prepared.scaled(drops=True)[judges]


def finish(study: Any, out: Path, base: Plan, prepared: Prepared, judges: NDArray, data: str) -> dict[str, Any]:
    """Let the held-out rows vote between the best trials, and fit the winner to all rows."""
    done = [trial for trial in ended(study) if trial.state == states().COMPLETE]
    best = sorted(done, key=lambda trial: -trial.value)[:FINALISTS]
    if len(best) < 2:
        raise GradsieveError(f"{out}: fewer than two trials have an answer; the others diverged. Narrow the space.")
    answers = np.stack([np.load(answer_path(out, trial.number), allow_pickle=False) for trial in best])
    choice = choose(answers, judged(prepared, judges), names=[trial.number for trial in best], seed=base.seed)
    settings = study.trials[choice.name].user_attrs["settings"]
    plan, design = apply(base, settings, prepared)
    result = {
        "data": data,
        "trials": len(ended(study)),
        "settings": settings,
        "score": study.trials[choice.name].value,
        "finalists": [{"trial": trial.number, "score": trial.value, **trial.user_attrs["settings"]} for trial in best],
        "confidence": choice.confidence,
        "decided": choice.decided,
        "model": str(out / "model"),
    }
    written = out / "sweep.json"  # written after the model; if it is missing or differs, the model is fitted again
    if not (out / "model" / "model.json").exists() or not written.exists() or read_json(written) != result:
        save_winner(out / "model", plan, design, prepared, result)
        write_json(written, result)
    return result


def save_winner(folder: Path, plan: Plan, design: Design, prepared: Prepared, result: Mapping[str, Any]) -> None:
    """Fit to all rows, and write a model folder like any fit's. A model from fewer trials is replaced."""
    fitted = fit_networks(plan, prepared.inputs, prepared.scaled(plan.used_rate > 0), design.build)
    if forsaken := fitted.forsaken(prepared.targets.classes):
        warnings.warn(forsaken, UserWarning, stacklevel=4)  # the caller of sweep_file()
    summary = {"data": result["data"], "rows": len(prepared.given), "loss": fitted.history[-1]["loss"]}
    save_fit(folder, prepared, design, fitted, {**about(summary, plan), "sweep": dict(result)}, is_ours=True)


@contextmanager
def taken(out: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """The folder of a sweep, new or begun with the same settings, locked for this process while the block runs."""
    library()  # nothing is made without it
    make_folder(out, settings)
    with take(out, out / "journal.log"):
        make_folder(out, settings)  # another process may have written here since the first check
        write_json(out / "config.json", dict(settings))
        yield


def make_folder(out: Path, settings: Mapping[str, Any]) -> None:
    """Make the folder, unless it is there and not this sweep's."""
    config = out / "config.json"
    try:
        if config.exists():
            require_same(out, "sweep", read_json(config), settings)
        elif out.exists() and not (out.is_dir() and {str(path.relative_to(out)) for path in out.rglob("*")} <= BARE):
            raise RunFolderError(f"{out} is there already and no sweep. {elsewhere()}")
        (out / "answers").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{out} cannot be made or read ({error.strerror}). {elsewhere()}") from error


def open_study(journal: Path) -> Any:
    """The study of a sweep, new or continued. Trials that a killed process left running are marked as failed."""
    optuna = library()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(storage=storage, study_name="sweep", direction="maximize", load_if_exists=True)
    for trial in study.get_trials(states=[states().RUNNING]):
        study.tell(trial.number, state=states().FAIL)
    return study


def ended(study: Any) -> list[Any]:
    """The trials that have ended, with a score or because they diverged."""
    return study.get_trials(deepcopy=False, states=[states().COMPLETE, states().PRUNED])


def save_answers(path: Path, answers: NDArray) -> None:
    content = io.BytesIO()
    np.save(content, answers, allow_pickle=False)
    write_whole(path, content.getvalue())


def answer_path(out: Path, number: int) -> Path:
    return out / "answers" / f"{number}.npy"


def states() -> Any:
    return library().trial.TrialState


def library() -> Any:
    """Optuna, an optional dependency."""
    try:
        import optuna  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("optuna", "sweep", "A search over settings") from error
    return optuna
