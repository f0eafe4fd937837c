"""Commands for a user's own files: ``fit``, ``predict``, ``sweep``, ``audit``, ``report``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from gradsieve.cli.options import (
    AsJson,
    Categorical,
    Device,
    FitSeed,
    Ignored,
    MethodName,
    MethodOption,
    RateOrAuto,
    Target,
    TaskName,
    app,
    note,
    pairs,
    rate_or_auto,
    resumable,
    stoppable,
)
from gradsieve.methods import DEFAULT_METHOD


@app.command()
def fit(
    data: Annotated[
        Path, typer.Argument(help="CSV, Parquet, Arrow or NPZ file, or folder of shards or class folders.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the model. It contains no code.")],
    target: Target = None,
    task: TaskName = None,
    ignore: Ignored = None,
    categorical: Categorical = None,
    method: MethodName = DEFAULT_METHOD,
    method_option: MethodOption = None,
    drop_rate: RateOrAuto = "0.2",
    epochs: Annotated[int, typer.Option()] = 100,
    batch_size: Annotated[int | None, typer.Option(help="Most rows per step; default: up to 256.")] = None,
    seed: FitSeed = 0,
    device: Device = "auto",
    stream: Annotated[bool | None, typer.Option(help="Stream Parquet and Arrow; default: above 1 GB.")] = None,
    bad_rows: Annotated[str, typer.Option(help="If a streamed row is bad: stop, or skip it.")] = "stop",
    resume: Annotated[bool, typer.Option("--resume", help="Continue a streamed fit from its last checkpoint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fit a network to your own file, and list the rows whose targets look wrong."""
    from gradsieve.estimators.progress import lines
    from gradsieve.files.fit import fit_file

    with stoppable("There is no model yet; the same command starts over."), resumable():
        summary = fit_file(
            data,
            target or [],
            out,
            task=task,  # type: ignore[arg-type]  # checked there
            ignore=ignore or [],
            categorical=categorical or [],
            method=method,
            method_options=pairs("--method-option", method_option),
            drop_rate=rate_or_auto(drop_rate),
            epochs=epochs,
            batch_size="auto" if batch_size is None else batch_size,
            seed=seed,
            device=device,
            stream=stream,
            bad_rows=bad_rows,  # type: ignore[arg-type]  # checked there
            resume=resume,
            note=note,
            tell=lines(method, epochs, sys.stderr),
        )
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    typer.echo(
        f"{summary['task']} of {', '.join(summary['target'])}: {summary['rows']} rows, {summary['dropped']} dropped "
        f"as suspicious (the first of {out / 'rows.csv'}). Predict with: gradsieve predict {shlex.quote(str(out))} FILE"
    )


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Model folder written by gradsieve fit.")],
    data: Annotated[Path, typer.Argument(help="A file with the same columns, in any order.")],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; default: print them.")] = None,
) -> None:
    """Predict the rows of a file with a model from gradsieve fit."""
    from gradsieve.files.fit import predictions, write_predictions

    if out is None:
        for piece in predictions(model, data):
            typer.echo(piece, nl=False)
        return
    write_predictions(model, data, out)
    typer.echo(str(out))


@app.command()
def sweep(
    data: Annotated[Path, typer.Argument(help="The same kinds of file as for fit.")],
    out: Annotated[Path, typer.Option(help="Folder for the sweep; repeat the command to continue.")],
    target: Target = None,
    task: TaskName = None,
    ignore: Ignored = None,
    categorical: Categorical = None,
    trials: Annotated[int, typer.Option(help="How many settings to try.")] = 30,
    space: Annotated[str | None, typer.Option(help="Your search space, module:function: trial -> settings.")] = None,
    method: MethodName = DEFAULT_METHOD,
    epochs: Annotated[int, typer.Option()] = 50,
    seed: FitSeed = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Search for the best settings of a fit, judged by held-out rows as wrong as the others; then fit with them."""
    from gradsieve.experiments.sweep import sweep_file
    from gradsieve.registry import import_object

    with stoppable(f"Trials that are done are in {out}; the same command goes on from there."):
        result = sweep_file(
            data,
            target or [],
            out,
            trials=trials,
            space=import_object(space) if space else None,
            task=task,  # type: ignore[arg-type]  # checked there
            ignore=ignore or [],
            categorical=categorical or [],
            method=method,
            epochs=epochs,
            seed=seed,
            device=device,
            note=note,
        )
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    sure = "" if result["decided"] else ", but the vote was close"
    way = f"Predict with: gradsieve predict {shlex.quote(str(out / 'model'))} FILE"
    typer.echo(f"best of {result['trials']}: {result['settings']}{sure}. {way}")


@app.command()
def audit(
    source: Annotated[Path, typer.Argument(help="A file as for fit, or the folder of a finished run.")],
    out: Annotated[
        Path | None, typer.Option(help="New folder for the audit; default: audit/ in the run's folder.")
    ] = None,
    target: Target = None,
    task: TaskName = None,
    ignore: Ignored = None,
    categorical: Categorical = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column that names the rows in the audit; not used as an input.")
    ] = None,
    method: MethodName = DEFAULT_METHOD,
    method_option: MethodOption = None,
    drop_rate: Annotated[
        str, typer.Option(help="Share of rows to drop; learn: as many as seem wrong; auto: held-out rows choose.")
    ] = "learn",
    epochs: Annotated[int, typer.Option()] = 50,
    seed: FitSeed = 0,
    device: Device = "auto",
    clean: Annotated[
        Path | None, typer.Option(help="New file: the CSV or Parquet source without the flagged rows.")
    ] = None,
    repair: Annotated[Path | None, typer.Option(help="New file: the source with the flagged targets repaired.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find wrong rows: how suspect each row of a file or run is, and what its target may have been."""
    from gradsieve.audit.command import audit_command
    from gradsieve.estimators.progress import lines

    with stoppable("There is no audit yet; the same command starts over."):
        found = audit_command(
            source,
            out,
            clean,
            repair,
            targets=target or [],
            task=task,  # type: ignore[arg-type]  # checked there
            ignore=ignore or [],
            categorical=categorical or [],
            id_column=id_column,
            method=method,
            method_options=pairs("--method-option", method_option),
            drop_rate=rate_or_auto(drop_rate),
            epochs=epochs,
            seed=seed,
            device=device,
            note=note,
            tell=lines(method, epochs, sys.stderr),
        )
    if as_json:
        typer.echo(json.dumps(found.summary(), indent=2))
        return
    from rich.console import Console

    Console().print(found)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs and audits, or folders of such folders.")],
    out: Annotated[Path, typer.Option(help="The HTML file; an older report is replaced.")] = Path("report.html"),
    rows: Annotated[int, typer.Option(min=0, help="How many of the most suspect rows to show for each.")] = 50,
    audit: Annotated[bool, typer.Option("--audit", help="Audit runs that have no audit yet.")] = False,
    source: Annotated[list[Path] | None, typer.Option(help="An audited file, to show its rows.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder to write the figures to, as PNG and PDF.")] = None,
) -> None:
    """Write one self-contained HTML file about runs and audits, to open or to mail."""
    from gradsieve.report.html import check_out, write_report
    from gradsieve.report.pictures import save_pictures
    from gradsieve.report.subjects import read_subjects

    check_out(out)
    subjects = read_subjects(folders, rows, audit, source or [], note)
    write_report(subjects, out)
    if figures is not None:
        typer.echo(f"figures: {len(save_pictures(subjects, figures))} files in {figures}")
    typer.echo(f"report: {out}")
