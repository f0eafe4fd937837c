"""The entries of the registries, for ``gradsieve list`` and the page of methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gradsieve.registry import Registry


def listing(tables: Mapping[str, Registry[Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of every table: name, summary, tasks and options."""
    return {kind: [describe(table, name) for name in table] for kind, table in tables.items()}


def describe(table: Registry[Any], name: str) -> dict[str, Any]:
    """One row of a table as plain values."""
    entry = table[name]
    row: dict[str, Any] = {"name": name, "summary": table.summary(name)}
    if hasattr(entry, "tasks"):
        row["tasks"] = list(entry.tasks)
    if hasattr(entry, "networks"):
        row["networks"] = entry.networks
        row["options"] = {
            field.name: field.default for field in dataclasses.fields(entry) if field.default is not dataclasses.MISSING
        }
    if table.kind == "model":
        from gradsieve.models.build import options_of

        row["options"] = options_of(name)
    return row
