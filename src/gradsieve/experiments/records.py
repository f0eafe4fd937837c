"""Records of finished runs: one per run, in JSON files that a person can read and check.

A record holds the place in its table (row, method, variant), the settings, the figures, and the command, commit and
device that they come from.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from gradsieve.errors import InputError
from gradsieve.experiments.experiment import EXPERIMENTS
from gradsieve.experiments.grid import Cell
from gradsieve.training.command import train_command
from gradsieve.training.files import finite, write_whole

Record = dict[str, Any]
KEY = ("row", "method", "variant", "seed", "preset", "epochs")
FIGURES = ("last10_mean", "last", "epoch_seconds")
NEEDED = ("row", "method", "seed", "preset", "epochs", "last10_mean", "last", "seconds", "command", "commit", "device")


def make_record(cell: Cell, summary: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Record:
    """The record of a finished run."""
    tests = [record["test"] for record in history]
    best = max(range(len(tests)), key=lambda epoch: -1e30 if tests[epoch] is None else tests[epoch])
    versions = summary["versions"]
    record: Record = {
        "row": cell.row,
        "method": cell.method,
        **({"variant": cell.variant} if cell.variant else {}),
        "seed": cell.seed,
        "preset": cell.run.preset,
        "epochs": cell.run.epochs,
        **({"model_options": dict(cell.by_hand)} if cell.by_hand else {}),
        **({"sources": summary["run"]["sources"]} if "sources" in summary["run"] else {}),
        "last10_mean": summary["last10_mean"],
        "last": summary["last"],
        "purity": summary["purity"],
        "seconds": round(summary["seconds"], 1),
        "command": train_command(cell.run),
        "commit": versions.get("commit"),
        "device": versions["device"],
        "torch": versions["torch"],
        "precision": summary["precision"],
        "best": tests[best],
        "best_epoch": best + 1,
        "curve": [None if test is None else round(test, 4) for test in tests],
    }
    if EXPERIMENTS[cell.experiment].metric == "epoch_seconds":
        record["epoch_seconds"] = epoch_seconds([epoch["seconds"] for epoch in history])
    return finite(record)


def epoch_seconds(clock: Sequence[float]) -> float:
    """The median time of an epoch, including its test. The first one, in which the device warms up, is left out."""
    lengths = [after - before for before, after in pairwise(clock)]
    return round(statistics.median(lengths or clock), 3)


def key(record: Record) -> tuple[Any, ...]:
    """What identifies a run: records with the same key are of the same run."""
    return (*(record.get(name, "") for name in KEY), departures(record))


def departures(record: Record) -> str:
    """How a run departs from the paper's, apart from its epochs: model options, and other images than CelebA's."""
    texts = [f"{name}={json.dumps(value)}" for name, value in record.get("model_options", {}).items()]
    if images := record.get("images"):
        texts.append(f"{'/'.join(map(str, images.values()))} images instead of CelebA's")
    return ", ".join(texts)


def merge(old: Iterable[Record], new: Iterable[Record], *, where: str, replace: bool = False) -> list[Record]:
    """Both lists, each run once. Different figures for the same run are an error, unless ``replace``."""
    merged = {key(record): record for record in old}
    for record in new:
        there = merged.get(key(record))
        differing = [name for name in FIGURES if there and there.get(name) != record.get(name)]
        if there is not None and differing and not replace:
            figures = "; ".join(f"{name} is {there.get(name)} there, {record.get(name)} here" for name in differing)
            place = " ".join(str(part) for part in key(record) if part != "")
            raise InputError(
                f"{where} has another figure for {place} ({figures}). Nothing was written: take the old record out "
                "first if the new one is to replace it."
            )
        # With the same figures, the new record may still add fields, such as the curve.
        merged[key(record)] = record if there is None or replace else {**record, **there}
    require_one_code(merged.values(), where)
    return list(merged.values())


def require_one_code(records: Iterable[Record], where: str) -> None:
    """Refuse runs of old and of new code of a user-defined part: they must not be averaged."""
    codes: dict[str, str] = {}
    for record in records:
        for place, sha256 in record.get("sources", {}).items():
            if codes.setdefault(place, sha256) != sha256:
                raise InputError(
                    f"{where} would hold runs of {place} from two states of its code. Nothing was written: take the "
                    "old records out first, or give the new code another name."
                )


def is_of(record: Record, codes: Mapping[str, str]) -> bool:
    """False if a record was made with another state of the user-defined code in ``codes`` (SHA-256 by place)."""
    return all(codes.get(place, sha256) == sha256 for place, sha256 in record.get("sources", {}).items())


def in_order(experiment: str, records: Iterable[Record]) -> list[Record]:
    """By row, column, preset, epochs, departures and seed; rows and columns that the table does not have come last."""
    table = EXPERIMENTS[experiment]
    variants = tuple(variant.name for variant in table.variants)

    def place(names: Sequence[str], name: str) -> tuple[int, str]:
        return (names.index(name), "") if name in names else (len(names), name)

    def position(record: Record) -> tuple[Any, ...]:
        row, method = place(table.rows, record["row"]), place(table.methods, record["method"])
        column = (*method, *place(variants, record.get("variant", "")))
        return (*row, *column, record["preset"], record["epochs"], departures(record), record["seed"])

    return sorted(records, key=position)


def read_records(path: Path) -> list[Record]:
    """The records of a file; none if it does not exist."""
    if not path.exists():
        return []
    try:
        records = json.loads(path.read_bytes())
        missing = next((name for record in records for name in NEEDED if name not in record), None)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a list of records ({error}). Mend it, or move it away.") from error
    if missing is not None:
        raise InputError(f"{path} has a record without {missing!r}. Mend it, or move it away.")
    return records


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write one value per line, for readable diffs."""
    texts = [
        " {\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()) + "\n }"
        for record in records
    ]
    write_whole(path, ("[\n" + ",\n".join(texts) + "\n]\n").encode())
