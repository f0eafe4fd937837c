"""The measurements of ``gradsieve bench`` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table


def bench_table(workload: str, measured: Mapping[str, Any]) -> Group:
    """The methods, then the parts of a step, then what could not be measured."""
    return Group(*_parts(workload, measured))


def _parts(workload: str, measured: Mapping[str, Any]) -> Iterator[Table | str]:
    place = measured["device"] if measured["device"] != "cpu" else f"CPU, {measured['threads']} threads"
    yield (
        f"{workload}, batch {measured['batch_size']}, drop rate {measured['drop_rate']:g}; {place}, "
        f"torch {measured['torch']}, engine {measured['engine']}, {measured['turns']} turns"
    )
    has_memory = "peak_mib" in next(iter(measured["methods"].values()))
    columns = ["ms a step", "x standard", "quartiles", *(["peak MiB"] if has_memory else [])]
    table = numbers("method", columns)
    for name, row in measured["methods"].items():
        spread = f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
        memory = [f"{row['peak_mib']:.0f}"] if has_memory else []
        table.add_row(name, f"{row['ms']:.2f}", f"{row['ratio']:.2f}", spread, *memory)
    yield table
    floor = measured.get("floor")
    table = numbers("of a standard step (parts: of prl-l)", ["ms", "share"])
    if floor is not None:
        table.add_row("convolutions and linear layers alone", f"{floor['ms']:.2f}", f"{floor['ratio']:.1%}")
    for name, row in measured["parts"].items():
        table.add_row(f"{name} alone", f"{row['ms']:.3f}", f"{row['ratio']:.1%}")
    yield table
    if floor is not None:
        yield (
            f"A standard step is {floor['gflop']:.3g} GFLOP: {floor['standard_tflops']:.3g} TFLOP/s; its layers alone "
            f"{floor['tflops']:.3g}."
        )
    for name, reason in measured.get("left_out", {}).items():
        yield f"Not measured: {name} ({reason})."


def numbers(first: str, columns: list[str]) -> Table:
    """An empty table for rows of a name and numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
