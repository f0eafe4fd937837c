"""Publishing: adds records of finished runs to a folder of records, in every table that the run belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradsieve.arguments import elsewhere
from gradsieve.errors import InputError
from gradsieve.experiments.experiment import EXPERIMENTS
from gradsieve.experiments.grid import Scope, make_cells
from gradsieve.experiments.records import Record, departures, in_order, key, merge, read_records, write_records

Place = tuple[Any, ...]  # a key of `records.key`


def publish_folder(folder: Path, to: Path) -> list[Path]:
    """Add the records in a grid's folder to the files in ``to``. The runs themselves may have been deleted."""
    found = {name: read_records(folder / f"{name}.json") for name in EXPERIMENTS}
    if not any(found.values()):
        files = ", ".join(f"{name}.json" for name in found)
        raise InputError(f"{folder} has no records: no {files}. Name the folder that gradsieve reproduce wrote.")
    return publish(to, found)


def publish(to: Path, found: Mapping[str, Sequence[Record]]) -> list[Path]:
    """Add records, by experiment, to the files in ``to``: all of them, or none if one conflicts."""
    paths = {name: to / f"{name}.json" for name in EXPERIMENTS}
    merged = {name: merge(read_records(path), found.get(name, ()), where=str(path)) for name, path in paths.items()}
    merged = {
        name: merge((), records, where=str(paths[name])) for name, records in with_shared(merged).items() if records
    }
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{to} cannot be made ({error.strerror}). {elsewhere(name='to')}") from error
    for name, records in merged.items():
        write_records(paths[name], in_order(name, records))
    return [paths[name] for name in merged]


def with_shared(tables: Mapping[str, Sequence[Record]]) -> dict[str, list[Record]]:
    """Every table, completed with runs of its rows that other tables have: half of the ablation's are in Table 2."""
    runs = {name: runs_beside(name, records) for name, records in tables.items()}
    known = {
        runs[name][key(record)]: record
        for name, records in tables.items()
        for record in records
        if key(record) in runs[name]
    }
    return {
        name: [*records, *(at(place, known[run]) for place, run in runs[name].items() if run in known)]
        for name, records in tables.items()
    }


def runs_beside(name: str, records: Sequence[Record]) -> dict[Place, Place]:
    """For every place in the rows that a table has records of, the run that belongs there, identified by folder."""
    found = {}
    one_per_row = {key({**record, "method": "", "variant": ""}): record for record in records}  # and per settings
    for record in one_per_row.values():
        row, seed, preset, epochs = (record[each] for each in ("row", "seed", "preset", "epochs"))
        if row not in EXPERIMENTS[name].rows or "images" in record:
            continue
        options = record.get("model_options", {})
        for cell in make_cells(name, Scope((row,), seeds=(seed,), preset=preset, epochs=epochs, model_options=options)):
            alike = (preset, epochs, departures(record))
            found[(row, cell.method, cell.variant, seed, *alike)] = (cell.folder, *alike)
    return found


def at(place: Place, record: Record) -> Record:
    """A record moved to its place in another table."""
    row, method, variant, *_ = place
    names = {"row": row, "method": method, **({"variant": variant} if variant else {})}
    return names | {name: value for name, value in record.items() if name not in ("row", "method", "variant")}
