"""The command ``gradsieve``: thin faces of functions. Torch is imported inside the commands, so help is instant."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gradsieve.corruptions import CORRUPTIONS
from gradsieve.data import DATASETS
from gradsieve.data.published import PUBLISHED
from gradsieve.errors import GradsieveError, InputError, RankError
from gradsieve.experiments.experiment import PARTS
from gradsieve.methods import DEFAULT_METHOD, METHODS
from gradsieve.models import MODELS
from gradsieve.schedule import SCHEDULES

app = typer.Typer(
    help="Train through wrong labels and targets: drop the rows whose gradient is largest, update on the rest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: fetch public ones, check what is there.", no_args_is_help=True)
app.add_typer(data_app, name="data")
TABLES = {"methods": METHODS, "corruptions": CORRUPTIONS, "models": MODELS, "data": DATASETS, "schedules": SCHEDULES}


def names(table: Any) -> str:
    return ", ".join(table)


Pairs = list[str]
# Options of several commands.
Target = Annotated[list[str] | None, typer.Option(help="Column to predict; more than once for several.")]
TaskName = Annotated[str | None, typer.Option(help="classification or regression; by the target if not given.")]
Ignored = Annotated[list[str] | None, typer.Option(help="Column to leave out.")]
Categorical = Annotated[list[str] | None, typer.Option(help="Column of codes, though they are numbers.")]
MethodName = Annotated[str, typer.Option(help=names(METHODS))]
RateOrAuto = Annotated[str, typer.Option(help="Share of rows to drop; auto lets held-out rows choose.")]
FitSeed = Annotated[int, typer.Option(help="Of weights and row order.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """Everything that can be chosen: methods, corruptions, models, data sets, schedules."""
    from gradsieve.report.listing import listing

    entries = listing(TABLES)
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    for kind, rows in entries.items():
        table = Table(title=kind, title_justify="left", box=None, pad_edge=False)
        for column in ("name", "for", "what it does"):
            table.add_column(column, no_wrap=column == "name")
        for row in rows:
            table.add_row(row["name"], ", ".join(row.get("tasks", ())), row["summary"])
        Console().print(table, "")


@app.command()
def train(
    data: Annotated[str, typer.Option(help=names(DATASETS))] = "digits",
    method: MethodName = DEFAULT_METHOD,
    corruption: Annotated[str, typer.Option(help=names(CORRUPTIONS))] = "none",
    rate: Annotated[float, typer.Option(help="Share of rows to corrupt.")] = 0.0,
    drop_rate: Annotated[str | None, typer.Option(help="Share to drop, or auto; as --rate if not given.")] = None,
    epochs: Annotated[int | None, typer.Option(help="As the data set's recipe if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, corruption, row order and dropout.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; a name under runs/ if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from where the folder stands, or start it.")] = False,
    preset: Annotated[str, typer.Option(help="proper, or authors to train as their code does.")] = "proper",
    data_dir: Annotated[Path | None, typer.Option(help="Where the files of the data set are.")] = None,
    model: Annotated[str | None, typer.Option(help=names(MODELS))] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    decay: Annotated[str | None, typer.Option(help="Learning rate: constant or linear.")] = None,
    schedule: Annotated[str | None, typer.Option(help=f"{names(SCHEDULES)}, or module:function of yours.")] = None,
    ramp: Annotated[int | None, typer.Option(help="Length of the schedule's rise.")] = None,
    schedule_unit: Annotated[str | None, typer.Option(help="epoch or step.")] = None,
    method_option: Annotated[Pairs | None, typer.Option(help="name=value, for example form=soft.")] = None,
    model_option: Annotated[Pairs | None, typer.Option(help="name=value, for example norm=group.")] = None,
    data_option: Annotated[Pairs | None, typer.Option(help="name=value, for example target=price.")] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    augment: Annotated[str, typer.Option(help="none, or crop-flip for images.")] = "none",
    engine: Annotated[str, typer.Option(help="auto, plain or captured (each step one CUDA graph).")] = "auto",
    compile: Annotated[
        str, typer.Option(help="torch.compile: auto (where it pays), shared (by many runs), on, off.")
    ] = "auto",
    batchnorm: Annotated[str, typer.Option(help="Over several ranks: sync, as one rank has it, or local.")] = "sync",
    bounds: Annotated[bool, typer.Option("--bounds", help="Measure the gradient's error beside its bound.")] = False,
    save_every: Annotated[float, typer.Option(help="Seconds between two resumable states.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json instead of words.")] = False,
) -> None:
    """Train one network (or two) on corrupted targets, test on clean ones, and leave a folder with all of it."""
    from gradsieve import ranks
    from gradsieve.training.loop import Interrupted, run_label, train
    from gradsieve.training.run import make_run

    ready = partial(
        make_run,
        data,
        method,
        corruption=corruption,
        rate=rate,
        drop_rate=None if drop_rate is None else rate_or_auto(drop_rate),  # type: ignore[arg-type]  # checked there
        preset=preset,  # type: ignore[arg-type]  # checked there
        seed=seed,
        method_options=pairs("--method-option", method_option),
        model_options=pairs("--model-option", model_option),
        data_options=pairs("--data-option", data_option),
        data_dir=str(data_dir) if data_dir else None,
        epochs=epochs,
        model=model,
        batch_size=batch_size,
        learning_rate=learning_rate,
        decay=decay,
        schedule=schedule,
        ramp=ramp,
        schedule_unit=schedule_unit,
        device=device,
        precision=precision,
        augment=augment,
        engine=engine,
        compile=compile,
        batchnorm=batchnorm,
    )
    with ranks.joined(device):
        run, is_first = ranks.agreed(ready), ranks.is_first()
        folder = out or Path("runs") / f"{run_label(run)}-seed{seed}".replace(" ", "-").replace(":", ".")
        try:
            result = train(run, folder, resume=resume, save_every=save_every, bounds=bounds, show=not as_json)
        except Interrupted as stop:
            if is_first:
                typer.echo(f"{stop}. The same command with --resume goes on from there.", err=True)
            raise typer.Exit(130) from None
    if not is_first:
        return
    if as_json:
        typer.echo(json.dumps(result.summary, indent=2))
        return
    typer.echo(
        f"{run_label(run)}: {result.metric} {result.last:.4f}, mean of the last ten epochs {result.last10_mean:.4f}, "
        f"purity of the kept rows {result.purity:.3f}. {folder}"
    )


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="CSV, Parquet, Arrow, NPZ; or a folder of shards or class folders.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; nothing in it is code.")],
    target: Target = None,
    task: TaskName = None,
    ignore: Ignored = None,
    categorical: Categorical = None,
    method: MethodName = DEFAULT_METHOD,
    drop_rate: RateOrAuto = "0.2",
    epochs: Annotated[int, typer.Option()] = 100,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a step, at most; up to 256 if not given.")] = None,
    seed: FitSeed = 0,
    device: Device = "auto",
    stream: Annotated[bool | None, typer.Option(help="Read Parquet and Arrow as they pass; above 1 GB anyway.")] = None,
    bad_rows: Annotated[str, typer.Option(help="Rows that cannot be read in a stream: stop or skip.")] = "stop",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stream from where the folder stands.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fit a network to your own file, and list the rows whose targets look wrong."""
    from gradsieve.estimators.progress import lines
    from gradsieve.files.fit import fit_file
    from gradsieve.training.interrupt import Interrupted

    try:
        summary = fit_file(
            data,
            target or [],
            out,
            task=task,  # type: ignore[arg-type]  # checked there
            ignore=ignore or [],
            categorical=categorical or [],
            method=method,
            drop_rate=rate_or_auto(drop_rate),
            epochs=epochs,
            batch_size="auto" if batch_size is None else batch_size,
            seed=seed,
            device=device,
            stream=stream,
            bad_rows=bad_rows,  # type: ignore[arg-type]  # checked there
            resume=resume,
            note=lambda text: typer.echo(text, err=True),
            tell=lines(method, epochs, sys.stderr),
        )
    except Interrupted as stop:
        typer.echo(f"{stop}. The same command with --resume goes on from there.", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    typer.echo(
        f"{summary['task']} of {', '.join(summary['target'])}: {summary['rows']} rows, {summary['dropped']} dropped "
        f"as suspicious (the first of {out / 'rows.csv'}). Predict with: gradsieve predict {out} FILE"
    )


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Folder that gradsieve fit wrote.")],
    data: Annotated[Path, typer.Argument(help="A file with the same columns, in any order.")],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; printed if not given.")] = None,
) -> None:
    """Predict from a file with a model that gradsieve fit made."""
    from gradsieve.files.fit import predictions, write_predictions

    if out is None:
        for piece in predictions(model, data):
            typer.echo(piece, nl=False)
        return
    write_predictions(model, data, out)
    typer.echo(str(out))


@app.command()
def sweep(
    data: Annotated[Path, typer.Argument(help="A file as for fit.")],
    out: Annotated[Path, typer.Option(help="Folder of the sweep; the same command goes on from there.")],
    target: Target = None,
    task: TaskName = None,
    ignore: Ignored = None,
    categorical: Categorical = None,
    trials: Annotated[int, typer.Option(help="Settings to try.")] = 30,
    space: Annotated[str | None, typer.Option(help="module:function of yours, trial -> settings.")] = None,
    method: MethodName = DEFAULT_METHOD,
    epochs: Annotated[int, typer.Option()] = 50,
    seed: FitSeed = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Search the settings of a fit, judged by held-out rows that are as wrong as the others; then fit the best."""
    from gradsieve.experiments.sweep import default_space, sweep_file
    from gradsieve.registry import import_object

    result = sweep_file(
        data,
        target or [],
        out,
        trials=trials,
        space=import_object(space) if space else default_space,
        task=task,  # type: ignore[arg-type]  # checked there
        ignore=ignore or [],
        categorical=categorical or [],
        method=method,
        epochs=epochs,
        seed=seed,
        device=device,
        note=lambda text: typer.echo(text, err=True),
    )
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    sure = "" if result["decided"] else ", but the rows hardly tell"
    way = f"Predict with: gradsieve predict {out / 'model'} FILE"
    typer.echo(f"best of {result['trials']}: {result['settings']}{sure}. {way}")


@app.command()
def audit(
    source: Annotated[Path, typer.Argument(help="A file as for fit, or the folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="New folder for the audit; audit in the run's if not given.")] = None,
    target: Target = None,
    task: TaskName = None,
    ignore: Ignored = None,
    categorical: Categorical = None,
    method: MethodName = DEFAULT_METHOD,
    drop_rate: Annotated[
        str, typer.Option(help="Share of rows to drop; learn: as many as seem wrong; auto lets held-out rows choose.")
    ] = "learn",
    epochs: Annotated[int, typer.Option()] = 50,
    seed: FitSeed = 0,
    device: Device = "auto",
    clean: Annotated[Path | None, typer.Option(help="New CSV: the file without the flagged rows.")] = None,
    repair: Annotated[Path | None, typer.Option(help="New CSV: the file with their targets as suggested.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which rows are wrong: a suspicion for every row of a file or of a run, and what it should perhaps have been."""
    from gradsieve.audit.command import audit_command
    from gradsieve.estimators.progress import lines

    found = audit_command(
        source,
        out,
        clean,
        repair,
        targets=target or [],
        task=task,  # type: ignore[arg-type]  # checked there
        ignore=ignore or [],
        categorical=categorical or [],
        method=method,
        drop_rate=rate_or_auto(drop_rate),
        epochs=epochs,
        seed=seed,
        device=device,
        note=lambda text: typer.echo(text, err=True),
        tell=lines(method, epochs, sys.stderr),
    )
    if as_json:
        typer.echo(json.dumps(found.summary(), indent=2))
        return
    from rich.console import Console

    Console().print(found)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the picture.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Digits with 40 % wrong labels, faces with 30 % wrong landmarks: plain training beside PRL(L) and Co-PRL(L)."""
    from gradsieve.experiments.demo import run_demo

    run_demo(out, seed=seed)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs and audits, or folders of such folders.")],
    out: Annotated[Path, typer.Option(help="The HTML file; an older report is replaced.")] = Path("report.html"),
    rows: Annotated[int, typer.Option(min=0, help="How many of the most suspect rows of each are shown.")] = 50,
    audit: Annotated[bool, typer.Option("--audit", help="Audit the runs that have no audit yet.")] = False,
    source: Annotated[list[Path] | None, typer.Option(help="A file that was audited, to show its rows.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures as PNG and PDF.")] = None,
) -> None:
    """One HTML file about runs and audits, to be opened and mailed: it loads nothing from anywhere."""
    from gradsieve.report.html import check_out, write_report
    from gradsieve.report.pictures import save_pictures
    from gradsieve.report.subjects import read_subjects

    check_out(out)
    subjects = read_subjects(folders, rows, audit, source or [], lambda text: typer.echo(text, err=True))
    write_report(subjects, out)
    if figures is not None:
        typer.echo(f"figures: {len(save_pictures(subjects, figures))} files in {figures}")
    typer.echo(f"report: {out}")


@app.command()
def bench(
    workload: Annotated[str, typer.Option(help="cnn9, cnn9-group, cnn9-quarter, cnn9-quarter-group or mlp.")] = "mlp",
    methods: Annotated[str, typer.Option(help="Names, separated by commas; all that fit if not given.")] = "",
    batch_size: Annotated[int | None, typer.Option(help="Rows of a step; the workload's own if not given.")] = None,
    drop_rate: Annotated[float, typer.Option()] = 0.45,
    turns: Annotated[int, typer.Option(help="Turns that the methods take.")] = 30,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    engine: Annotated[str, typer.Option(help="plain, captured or compiled; auto: the last on a GPU.")] = "auto",
    peers: Annotated[bool, typer.Option("--peers", help="The authors' way, Opacus, torch.func beside ours.")] = False,
    floors: Annotated[bool, typer.Option(help="The layers' products alone.")] = True,
    ranks: Annotated[str, typer.Option(help="Such as 1,2,4: over so many processes; selection's share.")] = "",
    as_json: AsJson = False,
) -> None:
    """What a robust step costs on this machine, as a ratio to a plain one."""
    from gradsieve.experiments.bench import bench, find_workload

    chosen = [name.strip() for name in methods.split(",") if name.strip()]
    if ranks:
        bench_ranks(workload, chosen, ranks, as_json, batch_size, drop_rate, turns, device)
        return
    options: dict[str, Any] = {"device": device, "engine": engine, "peers": peers, "floors": floors}
    measured = bench(find_workload(workload, batch_size), chosen, drop_rate=drop_rate, turns=turns, **options)
    if as_json:
        typer.echo(json.dumps(measured, indent=2))
        return
    from rich.console import Console

    from gradsieve.report.bench_table import bench_table

    Console().print(bench_table(workload, measured))


def bench_ranks(
    workload: str,
    methods: list[str],
    worlds: str,
    as_json: bool,
    batch_size: int | None,
    drop_rate: float,
    turns: int,
    device: str,
) -> None:
    """The other half of ``bench``: one method, over several numbers of processes."""
    from rich.console import Console

    from gradsieve.experiments.rank_bench import rank_bench
    from gradsieve.report.rank_table import rank_table

    if len(methods) > 1 or not all(each.isdigit() for each in listed(worlds)):
        raise InputError(f"ranks is {worlds!r}: give numbers, such as 1,2,4, and one method at most.")
    options: dict[str, Any] = {"batch_size": batch_size, "drop_rate": drop_rate, "turns": turns, "device": device}
    counts = [int(each) for each in listed(worlds)]
    measured = rank_bench(workload, counts, *methods, **options)
    if as_json:
        typer.echo(json.dumps(measured, indent=2))
    else:
        Console().print(rank_table(measured))


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help=names(PARTS))],
    rows: Annotated[str, typer.Option(help="Such as CF10-pf-45,CF10-sym-50; all if not given.")] = "",
    methods: Annotated[str, typer.Option(help="Separated by commas; the paper's if not given.")] = "",
    seeds: Annotated[str, typer.Option(help="How many (3), which (2,5), or from where to where (4-6).")] = "",
    preset: Annotated[str, typer.Option(help="authors, to train as their code does, or proper.")] = "authors",
    data_dir: Annotated[Path | None, typer.Option(help="Where the files of the data sets are.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the grid, or s3://...; if not given, in runs/.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time, in processes of their own; 1 if not given.")] = None,
    cluster: Annotated[str | None, typer.Option(help="ray, or ray://host:port: run there, as many as fit.")] = None,
    gpus_per_run: Annotated[float | None, typer.Option(help="On a cluster; 0.25 lets four share a GPU.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Another length than the paper's; the report says so.")] = None,
    data: Annotated[str | None, typer.Option(help="Another data set; rows are then sym-40, linadv-30, ...")] = None,
    model_option: Annotated[Pairs | None, typer.Option(help="name=value, for example width=0.5.")] = None,
    device: Device = "auto",
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Print the runs and how long they will take.")] = False,
    as_json: AsJson = False,
) -> None:
    """A table or figure of the paper: run what is not finished yet, and set ours beside theirs."""
    from gradsieve.experiments.grid import Choice, read_seeds
    from gradsieve.experiments.grid_folder import default_folder
    from gradsieve.experiments.ray_pool import read_cluster
    from gradsieve.experiments.remote_folder import mirrored
    from gradsieve.experiments.reproduce import dry_run, reproduce

    choice = Choice(
        rows=listed(rows),
        methods=listed(methods),
        seeds=read_seeds(seeds) if seeds else (),
        preset=preset,  # type: ignore[arg-type]  # checked where the runs are made
        epochs=epochs,
        data=data,
        data_dir=str(data_dir) if data_dir else None,
        model_options=pairs("--model-option", model_option),
        device=device,
    )
    where = read_cluster(cluster, gpus_per_run) if cluster else None
    with mirrored(out or default_folder(choice)) as (folder, mirror):
        place = folder if mirror is None else mirror.remote.url
        if is_dry:
            plan = dry_run(experiment, choice, folder, jobs, where)
            typer.echo(json.dumps(plan.to_json(), indent=1) if as_json else "\n".join(plan.lines()))
            return
        given: dict[str, Any] = {"jobs": jobs, "show": not as_json, "cluster": where, "mirror": mirror}
        try:
            records, failures = reproduce(experiment, choice, folder, **given)
        except KeyboardInterrupt:
            typer.echo(f"stopped. What is finished is in {place}; the same command goes on from there.", err=True)
            raise typer.Exit(130) from None
        if as_json:
            typer.echo(json.dumps(records, indent=1))
        else:
            for name in records:
                typer.echo(f"{(folder / f'{name}.md').read_text()}\n{place}/{name}.md")
    for cell, reason in failures:
        typer.echo(f"{cell.label} has no result: {reason}", err=True)
    if failures:
        raise typer.Exit(1)


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Folder of a grid, or a copy of the JSON files in it.")],
    to: Annotated[Path, typer.Option(help="Folder of the published records.")] = Path("results"),
) -> None:
    """Add the records of a grid to those that are published; a figure that is there is never changed."""
    from gradsieve.report.records import publish_folder

    for path in publish_folder(folder, to):
        typer.echo(path)


@data_app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help=names(PUBLISHED))],
    to: Annotated[Path, typer.Option(help="Folder of data sets, for --data-dir of other commands.")] = Path("data"),
) -> None:
    """Fetch a public data set, go on where a download broke off, and compare its SHA-256."""
    from gradsieve.data.fetch import fetch

    fetch(name, to, typer.echo)


@data_app.command("check")
def check_command(
    folder: Annotated[Path, typer.Argument(help="Where the data sets are.")],
    as_json: AsJson = False,
) -> None:
    """Which data sets are complete in a folder, and which files of the others are missing or damaged."""
    from gradsieve.data.check import check_folder

    findings = check_folder(folder)
    if as_json:
        typer.echo(json.dumps([asdict(each) | {"state": each.state} for each in findings], indent=1))
    else:
        typer.echo("\n".join(line for each in findings for line in each.lines()))
    if any(each.problems for each in findings):
        raise typer.Exit(1)


def listed(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def rate_or_auto(text: str) -> float | str:
    """A number, or the word as it is: whether that is a rate is checked where it is used."""
    try:
        return float(text)
    except ValueError:
        return text


def pairs(argument: str, given: Pairs | None) -> dict[str, Any]:
    """``name=value`` arguments as a dictionary; a value that reads as JSON is what it says there."""
    options = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{argument} is {pair!r}, but must read name=value.")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def check_alone(command: str = "--help") -> None:
    """Several ranks share a run of ``train``. Of any other command each would be a copy, at work on the same files."""
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if ranks > 1 and command != "train" and not command.startswith("-"):
        raise RankError(
            f"gradsieve {command} works in one process, but torchrun has started {ranks} of it. Start it without "
            "torchrun. What ranks can share is gradsieve train, and RobustLoss in a loop of your own.",
            quiet=os.environ["RANK"] != "0",
        )


def main() -> None:
    """Run the command; an error that we foresaw, like a warning, is one line and not a trace."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    sys.path.append(os.getcwd())  # methods, models and schedules of yours: module:name
    try:
        check_alone(*sys.argv[1:2])
        app()
    except GradsieveError as error:
        if not getattr(error, "quiet", False):  # of several ranks, the first speaks
            typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
