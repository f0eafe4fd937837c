"""Commands that train on a known data set: ``list``, ``train``, ``demo``, ``bench``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gradsieve.cli.options import (
    AsJson,
    Device,
    MethodName,
    MethodOption,
    Pairs,
    app,
    listed,
    names,
    pairs,
    rate_or_auto,
    resumable,
)
from gradsieve.corruptions import CORRUPTIONS
from gradsieve.data import DATASETS
from gradsieve.errors import InputError
from gradsieve.methods import DEFAULT_METHOD, METHODS
from gradsieve.models import MODELS
from gradsieve.schedule import SCHEDULES

TABLES = {"methods": METHODS, "corruptions": CORRUPTIONS, "models": MODELS, "data": DATASETS, "schedules": SCHEDULES}


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the methods, corruptions, models, data sets and schedules to choose from."""
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
    rate: Annotated[float | None, typer.Option(help="Share of rows to corrupt.")] = None,
    drop_rate: Annotated[str | None, typer.Option(help="Share of rows to drop, or auto; default: --rate.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Default: from the data set's recipe.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights, row order and dropout.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; default: in runs/, named after it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it.")] = False,
    preset: Annotated[str, typer.Option(help="proper, or authors: train as the authors' code does.")] = "proper",
    corruption_seed: Annotated[int | None, typer.Option(help="Default: --seed; 0 with preset authors.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data set's files.")] = None,
    model: Annotated[str | None, typer.Option(help=names(MODELS))] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    decay: Annotated[str | None, typer.Option(help="Learning rate: constant or linear.")] = None,
    schedule: Annotated[str | None, typer.Option(help=f"{names(SCHEDULES)}, or your own module:function.")] = None,
    ramp: Annotated[int | None, typer.Option(help="How long the drop rate rises, in schedule units.")] = None,
    schedule_unit: Annotated[str | None, typer.Option(help="epoch or step.")] = None,
    method_option: MethodOption = None,
    model_option: Annotated[Pairs | None, typer.Option(help="name=value, for example norm=group.")] = None,
    data_option: Annotated[Pairs | None, typer.Option(help="name=value, for example target=price.")] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    augment: Annotated[str, typer.Option(help="none, or crop-flip for images.")] = "none",
    engine: Annotated[str, typer.Option(help="auto, plain or captured (each step is one CUDA graph).")] = "auto",
    compile: Annotated[
        str, typer.Option(help="torch.compile: auto (if it pays back), shared (with other runs), on or off.")
    ] = "auto",
    batchnorm: Annotated[str, typer.Option(help="Over several ranks: sync (as on one rank) or local.")] = "sync",
    bounds: Annotated[bool, typer.Option("--bounds", help="Measure the gradient's error and its bounds.")] = False,
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print result.json instead of words.")] = False,
) -> None:
    """Train one network (or two) on corrupted targets, test it on clean ones, and save everything in a folder."""
    from gradsieve import ranks
    from gradsieve.training.loop import run_label, train
    from gradsieve.training.run import make_run

    if rate is None and corruption != "none":
        raise InputError(f"--rate is missing: the share of rows for --corruption {corruption} to corrupt.")
    ready = partial(
        make_run,
        data,
        method,
        corruption=corruption,
        rate=rate or 0.0,
        drop_rate=None if drop_rate is None else rate_or_auto(drop_rate),  # type: ignore[arg-type]  # checked there
        preset=preset,  # type: ignore[arg-type]  # checked there
        seed=seed,
        corruption_seed=corruption_seed,
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
        with resumable(speaks=is_first):
            result = train(run, folder, resume=resume, save_every=save_every, bounds=bounds, show=not as_json)
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
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the picture.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Compare plain training with PRL(L) and Co-PRL(L) on digits with 40 % and faces with 30 % wrong targets."""
    from gradsieve.experiments.demo import run_demo

    run_demo(out, seed=seed)


@app.command()
def bench(
    workload: Annotated[str, typer.Option(help="cnn9, cnn9-group, cnn9-quarter, cnn9-quarter-group or mlp.")] = "mlp",
    methods: Annotated[str, typer.Option(help="Names, separated by commas; default: all that apply.")] = "",
    batch_size: Annotated[int | None, typer.Option(help="Rows per step; default: the workload's own.")] = None,
    drop_rate: Annotated[float, typer.Option()] = 0.45,
    turns: Annotated[int, typer.Option(help="How many turns each method takes.")] = 30,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    engine: Annotated[str, typer.Option(help="plain, captured, compiled or auto (compiled on a GPU).")] = "auto",
    peers: Annotated[bool, typer.Option("--peers", help="Also time the authors' way, Opacus and torch.func.")] = False,
    floors: Annotated[bool, typer.Option(help="Also time the layers' products alone.")] = True,
    ranks: Annotated[str, typer.Option(help="Numbers of processes to time a step over, such as 1,2,4.")] = "",
    as_json: AsJson = False,
) -> None:
    """Time each method's step against a plain one on this machine."""
    from gradsieve.experiments.bench import bench, find_workload

    chosen = list(listed(methods))
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
    """``bench --ranks``: one method, over several numbers of processes."""
    from rich.console import Console

    from gradsieve.experiments.rank_bench import rank_bench
    from gradsieve.report.rank_table import rank_table

    if len(methods) > 1 or not all(each.isdigit() for each in listed(worlds)):
        raise InputError(f"--ranks is {worlds!r}: give numbers, such as 1,2,4, and one method at most.")
    options: dict[str, Any] = {"batch_size": batch_size, "drop_rate": drop_rate, "turns": turns, "device": device}
    counts = [int(each) for each in listed(worlds)]
    measured = rank_bench(workload, counts, *methods, **options)
    if as_json:
        typer.echo(json.dumps(measured, indent=2))
    else:
        Console().print(rank_table(measured))
