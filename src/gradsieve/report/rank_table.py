"""The measurements of ``gradsieve bench --ranks`` as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group

from gradsieve.report.bench_table import numbers
from gradsieve.scores.memory import in_words


def rank_table(measured: Mapping[str, Any]) -> Group:
    """A line for each number of ranks."""
    first = (
        f"{measured['workload']}, {measured['method']}, batch {measured['batch_size']} over all ranks, drop rate "
        f"{measured['drop_rate']:g}, torch {measured['torch']}, {measured['turns']} turns"
    )
    columns = ["step ms", "standard", "selection", "share", "gradient", "bytes", "gradient's"]
    table = numbers("ranks", columns)
    for world, row in measured["worlds"].items():
        times = [f"{row[name]:.2f}" for name in ("step_ms", "standard_ms", "selection_ms")]
        sizes = [in_words(round(row[name])) for name in ("selection_bytes", "gradient_bytes")]
        share = f"{row['selection_share']:.2%}"
        table.add_row(world, *times, share, f"{row['gradient_ms']:.2f}", *sizes)
    last = "selection, gradient: one threshold, one sum of the gradients, alone. bytes: what a rank receives for each."
    return Group(first, table, last)
