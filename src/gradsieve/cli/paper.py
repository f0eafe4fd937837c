"""Commands for the paper's tables and their data: ``reproduce``, ``publish``, ``data fetch``, ``data check``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gradsieve.cli.options import AsJson, Device, Pairs, app, data_app, listed, names, note, pairs, stoppable
from gradsieve.data.published import PUBLISHED
from gradsieve.experiments.experiment import PARTS


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help=names(PARTS))],
    rows: Annotated[str, typer.Option(help="Such as CF10-pf-45,CF10-sym-50; default: all.")] = "",
    methods: Annotated[str, typer.Option(help="Separated by commas; default: the paper's.")] = "",
    variants: Annotated[str, typer.Option(help="Columns of table3, passes, ..., such as eps+0.05; default: all.")] = "",
    seeds: Annotated[str, typer.Option(help="How many (3), which ones (2,5), or a range (4-6).")] = "",
    preset: Annotated[str, typer.Option(help="authors: train as the authors' code does; or proper.")] = "authors",
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data sets' files.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the grid, or s3://...; default: in runs/.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time, each in its own process; default: 1.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Run on Ray: ray, or ray://host:port.")] = None,
    gpus_per_run: Annotated[float | None, typer.Option(help="On a cluster: 0.25 lets four runs share a GPU.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Default: the paper's. The table states any other.")] = None,
    data: Annotated[str | None, typer.Option(help="Another data set; its rows are sym-40, linadv-30, ...")] = None,
    model_option: Annotated[Pairs | None, typer.Option(help="name=value, for example width=0.5.")] = None,
    device: Device = "auto",
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Only print the runs and how long they will take.")] = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of the paper: run what is not finished yet, and compare the figures."""
    from gradsieve.experiments.grid import Scope, read_seeds
    from gradsieve.experiments.grid_folder import default_folder
    from gradsieve.experiments.ray_pool import read_cluster
    from gradsieve.experiments.remote_folder import mirrored
    from gradsieve.experiments.reproduce import dry_run, reproduce

    scope = Scope(
        rows=listed(rows),
        methods=listed(methods),
        variants=listed(variants),
        seeds=read_seeds(seeds) if seeds else (),
        preset=preset,  # type: ignore[arg-type]  # checked where the runs are made
        epochs=epochs,
        data=data,
        data_dir=str(data_dir) if data_dir else None,
        model_options=pairs("--model-option", model_option),
        device=device,
    )
    where = read_cluster(cluster, gpus_per_run)
    with mirrored(out or default_folder(scope)) as (folder, mirror):
        place = folder if mirror is None else mirror.remote.url
        if is_dry:
            plan = dry_run(experiment, scope, folder, jobs, where)
            typer.echo(json.dumps(plan.to_json(), indent=1) if as_json else "\n".join(plan.lines()))
            return
        given: dict[str, Any] = {"jobs": jobs, "show": not as_json, "cluster": where, "mirror": mirror}
        with stoppable(f"What is finished is in {place}; the same command goes on from there."):
            records, failures = reproduce(experiment, scope, folder, **given)
        if as_json:
            typer.echo(json.dumps(records, indent=1))
        else:
            for name in records:
                typer.echo(f"{(folder / f'{name}.md').read_text()}\n{place}/{name}.md")
    for cell, reason in failures:
        note(f"{cell.label} has no result: {reason}")
    if failures:
        raise typer.Exit(1)


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Folder of a grid, or a copy of its JSON files.")],
    to: Annotated[Path, typer.Option(help="Folder of the published records.")] = Path("results"),
) -> None:
    """Add the records of a grid to the published ones. A published figure is never changed."""
    from gradsieve.experiments.publish import publish_folder

    for path in publish_folder(folder, to):
        typer.echo(path)


@data_app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help=names(PUBLISHED))],
    to: Annotated[Path, typer.Option(help="Folder for data sets: --data-dir of other commands.")] = Path("data"),
) -> None:
    """Fetch a public data set, resume a broken download, and check its SHA-256."""
    from gradsieve.data.fetch import fetch

    fetch(name, to, typer.echo)


@data_app.command("check")
def check_command(
    folder: Annotated[Path, typer.Argument(help="Folder with the data sets.")],
    as_json: AsJson = False,
) -> None:
    """Check which data sets in a folder are complete, and which files are missing or damaged."""
    from gradsieve.data.check import check_folder

    findings = check_folder(folder)
    if as_json:
        typer.echo(json.dumps([asdict(each) | {"state": each.state} for each in findings], indent=1))
    else:
        typer.echo("\n".join(line for each in findings for line in each.lines()))
    if any(each.problems for each in findings):
        raise typer.Exit(1)
