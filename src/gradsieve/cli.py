"""The command ``gradsieve``: thin faces of functions. Torch is imported inside the commands, so help is instant."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from gradsieve.corruptions import CORRUPTIONS
from gradsieve.data import DATASETS
from gradsieve.errors import GradsieveError, InputError
from gradsieve.methods import DEFAULT_METHOD, METHODS
from gradsieve.models import MODELS
from gradsieve.schedule import SCHEDULES

app = typer.Typer(
    help="Train through wrong labels and targets: drop the rows whose gradient is largest, update on the rest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
TABLES = {"methods": METHODS, "corruptions": CORRUPTIONS, "models": MODELS, "data": DATASETS, "schedules": SCHEDULES}


def names(table: Any) -> str:
    return ", ".join(table)


Pairs = list[str]


@app.command("list")
def list_command(as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
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
    method: Annotated[str, typer.Option(help=names(METHODS))] = DEFAULT_METHOD,
    corruption: Annotated[str, typer.Option(help=names(CORRUPTIONS))] = "none",
    rate: Annotated[float, typer.Option(help="Share of rows to corrupt.")] = 0.0,
    drop_rate: Annotated[float | None, typer.Option(help="Share of rows to drop; as --rate if not given.")] = None,
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
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    bounds: Annotated[bool, typer.Option("--bounds", help="Measure the gradient's error beside its bound.")] = False,
    save_every: Annotated[float, typer.Option(help="Seconds between two resumable states.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json instead of words.")] = False,
) -> None:
    """Train one network (or two) on corrupted targets, test on clean ones, and leave a folder with all of it."""
    from gradsieve.training.loop import Interrupted, run_label, train
    from gradsieve.training.run import make_run

    run = make_run(
        data,
        method,
        corruption=corruption,
        rate=rate,
        drop_rate=drop_rate,
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
    )
    folder = out or Path("runs") / f"{run_label(run)}-seed{seed}".replace(" ", "-").replace(":", ".")
    try:
        result = train(run, folder, resume=resume, save_every=save_every, bounds=bounds, show=not as_json)
    except Interrupted as stop:
        typer.echo(f"{stop}. The same command with --resume goes on from there.", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(result.summary, indent=2))
        return
    typer.echo(
        f"{run_label(run)}: {result.metric} {result.last:.4f}, mean of the last ten epochs {result.last10_mean:.4f}, "
        f"purity of the kept rows {result.purity:.3f}. {folder}"
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the picture.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Digits with 40 % wrong labels, faces with 30 % wrong landmarks: plain training beside PRL(L) and Co-PRL(L)."""
    from gradsieve.experiments.demo import run_demo

    run_demo(out, seed=seed)


@app.command()
def bench(
    workload: Annotated[str, typer.Option(help="cnn9, cnn9-quarter, cnn9-quarter-group or mlp.")] = "mlp",
    methods: Annotated[str, typer.Option(help="Names, separated by commas; all that fit if not given.")] = "",
    drop_rate: Annotated[float, typer.Option()] = 0.45,
    turns: Annotated[int, typer.Option(help="Steps of each method, taken in turns.")] = 30,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """What a robust step costs on this machine, as a ratio to a plain one."""
    from gradsieve.experiments.bench import bench, find_workload

    chosen = [name.strip() for name in methods.split(",") if name.strip()]
    measured = bench(find_workload(workload), chosen, drop_rate=drop_rate, turns=turns, device=device)
    if as_json:
        typer.echo(json.dumps(measured, indent=2))
        return
    typer.echo(f"{workload} on {measured['device']}, {measured['threads']} threads, drop rate {drop_rate:g}")
    for name, row in measured["methods"].items():
        spread = f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
        typer.echo(f"{name:18} {row['ms']:8.2f} ms   {row['ratio']:5.2f} x standard   (quartiles {spread})")


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


def main() -> None:
    """Run the command; an error that we foresaw, like a warning, is one line and not a trace."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    sys.path.append(os.getcwd())  # methods, models and schedules of yours: module:name
    try:
        app()
    except GradsieveError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
