"""The folder of a grid. Experiments with the same settings (grid.json) can share it: equal runs are trained once.

grid.json         the settings that all of its runs have in common
features/         CelebA's features, for Table 1
runs/ROW/...      one folder per run
EXPERIMENT.json   the records of its finished runs; beside it the table (.md) and the curves as pictures
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from gradsieve.arguments import elsewhere
from gradsieve.data.table import find_csv
from gradsieve.errors import CheckpointError, MissingExtraError, RunFolderError
from gradsieve.experiments.experiment import FEATURES, PARTS
from gradsieve.experiments.features import other_images
from gradsieve.experiments.grid import Cell, Scope, cell_path
from gradsieve.experiments.records import Record, in_order, is_of, make_record, merge, read_records, write_records
from gradsieve.experiments.remote_folder import is_address
from gradsieve.experiments.results_table import draw_records, report_page
from gradsieve.ranks.together import differences
from gradsieve.training.files import read_json, write_json, write_whole
from gradsieve.training.folder import RunFolder
from gradsieve.training.result import require_whole
from gradsieve.training.sources import changed_code

GRID = "grid.json"
BARE = {GRID, f"{GRID}.part"}  # left by a grid that ended before its first run: no more than this counts as empty
ELSEWHERE = ("data_dir", "device")  # settings of a run that do not influence its result
OWN_DATA = ("data_sha256", "data_dir")  # either of them identifies a user's own data
ASIDE = (*ELSEWHERE, "sources")  # not compared as settings; sources are compared by changed_code()


def claim(out: Path, scope: Scope) -> None:
    """Make the folder and write grid.json, or check that it belongs to this grid already."""
    if is_ours(out, scope):
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{out} cannot be made ({error.strerror}). {elsewhere()}") from error
    write_json(out / GRID, {**in_common(scope), **own_data(scope)})


def is_ours(out: Path, scope: Scope) -> bool:
    """True if the folder is this grid's already, False if it is free, else an error."""
    if is_address(out):
        raise RunFolderError(f"{out} is an address and not a folder: work on a copy of it (remote_folder.mirrored).")
    try:
        if out.exists() and not out.is_dir():
            raise RunFolderError(f"{out} is a file, but a grid needs a folder. {elsewhere()}")
        names = {path.name for path in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise RunFolderError(f"{out} cannot be looked into ({error.strerror}). {elsewhere()}") from error
    if names <= BARE:
        return False
    if GRID not in names:
        raise RunFolderError(f"{out} is not empty and not the folder of a grid. {elsewhere()}")
    theirs = read_json(out / GRID, elsewhere("Put it back as it was"))
    differing = settings_of_another(theirs, in_common(scope))
    if differing:
        raise RunFolderError(f"{out} holds another grid ({differing}). {elsewhere()}")
    known = {name: theirs[name] for name in OWN_DATA if name in theirs}  # none in a grid.json of an older version
    if known and known != own_data(scope):
        raise RunFolderError(
            f"{out} holds a grid of other data: {scope.data_dir or 'a source without a folder'} is not what its runs "
            f"were made of, or has changed since. {elsewhere('Put it back as it was')}"
        )
    return True


def settings_of_another(theirs: Any, ours: Mapping[str, Any]) -> str:
    """How the settings in a file differ from ours, in words; empty if they do not."""
    theirs = theirs if isinstance(theirs, dict) else {}
    return differences({name: theirs.get(name) for name in ours}, ours)


def default_folder(scope: Scope) -> Path:
    """The folder of a grid that is given none, named after its settings."""
    length = None if scope.epochs is None else f"{scope.epochs}-epochs"
    return Path("runs") / "-".join(filter(None, ("grid", scope.data, scope.preset, length))).replace(":", ".")


def in_common(scope: Scope) -> dict[str, Any]:
    """The settings that all runs of a grid share."""
    return {
        "preset": scope.preset,
        "epochs": scope.epochs,
        "data": scope.data,
        "model_options": dict(scope.model_options),
    }


def own_data(scope: Scope) -> dict[str, str]:
    """What identifies a user's own data: its SHA-256 or folder. Empty for published sets, which need only a name."""
    if scope.data_dir is None or (scope.data != "table" and ":" not in (scope.data or "")):
        return {}
    path = find_csv(Path(scope.data_dir)) if scope.data == "table" else Path(scope.data_dir)
    if path.is_file():
        return {"data_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return {"data_dir": str(path.resolve())}


def result_of(cell: Cell, out: Path) -> dict[str, Any] | None:
    """The result of a finished run, None if it is not finished. Its data may have been in another folder."""
    folder = RunFolder(cell_path(out, cell), cell.run)
    if not folder.finished:
        return None
    with naming_way_out(folder.path):
        result = folder.result()
    ours = cell.run.to_json()
    # Settings added since the run was made count as having their default.
    theirs = {each.name: each.default for each in fields(cell.run) if each.default is not MISSING} | result["run"]
    differing = settings_of_another(theirs, {name: value for name, value in ours.items() if name not in ASIDE})
    if differing:
        raise RunFolderError(f"{folder.path} holds another run ({differing}). {elsewhere()}")
    code = changed_code(theirs.get("sources"), cell.run.sources)
    if code:  # results of old and of new code must not be averaged
        raise RunFolderError(
            f"{folder.path} holds a run of other code: {code}. Delete it and the others of that code to train them "
            "again, put the code back as it was, or choose another folder for the grid."
        )
    with naming_way_out(folder.path):  # checked now, before other runs are trained: the table needs its figures
        require_whole(folder.path, result, folder.metrics())
    return result


@contextmanager
def naming_way_out(path: Path) -> Iterator[None]:
    """Add to the error about a damaged run what to do about it."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{error} Delete {path} to train this run again.") from error


def record_of(cell: Cell, out: Path) -> Record:
    """The record of a finished run."""
    folder = RunFolder(cell_path(out, cell), cell.run)
    record = make_record(cell, folder.result(), folder.metrics())
    images = other_images(out / "features") if cell.run.data == FEATURES else {}
    return {**record, "images": images} if images else record


def write_reports(name: str, cells: Sequence[Cell], out: Path) -> dict[str, list[Record]]:
    """Write records, table and curves of all finished runs, those of earlier calls included."""
    reports = {}
    for part in PARTS[name]:
        path = out / f"{part}.json"
        new = [record_of(cell, out) for cell in cells if cell.experiment == part and result_of(cell, out) is not None]
        codes = {place: sha256 for cell in cells for place, sha256 in cell.run.sources.items()}
        old = [record for record in read_records(path) if is_of(record, codes)]
        records = in_order(part, merge(old, new, where=str(path), replace=True))
        if not records:
            continue
        write_records(path, records)
        try:
            pictures = draw_records(part, records, out)
        except MissingExtraError:  # no reason to fail: pictures can be drawn later from the records
            pictures = []
        write_whole(out / f"{part}.md", report_page(part, records, pictures).encode())
        reports[part] = records
    return reports
