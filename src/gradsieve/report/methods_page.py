"""docs/methods.md, rendered from METHODS: ``python -m gradsieve.report.methods_page docs/methods.md``."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from gradsieve.methods import METHODS
from gradsieve.report.listing import describe

HEAD = """# Methods

Rendered from the table `METHODS` by `make docs`; do not edit. `gradsieve list` shows the same in the terminal.
"""
STEPS = """The cards below say what a method does with one mini-batch. If one says "drop the rows with the largest ...",
it keeps floor((1 - drop rate) * N) of the N rows, and at least one.

Set options with `--method-option name=value`, or `method_options={...}` in Python. All methods take:

- `passes`: with `index`, the network runs once, and dropped rows are left out of the loss. With `reforward`, it runs
  once to score the rows and again on the kept rows, so that BatchNorm never sees the others.
- `scoring`: whether the network scores rows in `eval` or in `train` mode.
- `balanced`: drop the same share of every class. (If a run keeps hardly any rows of a class for three epochs, it warns
  and names the class; so does a fit if its last epoch did.)
"""
COMMON = ("passes", "scoring", "balanced")


def methods_page() -> str:
    """An index of the methods, and one card for each."""
    rows = [describe(METHODS, name) for name in METHODS]
    index = ["| method | for | networks | what it does |", "| --- | --- | --- | --- |"]
    index += [
        f"| [{row['name']}](#{row['name']}) | {', '.join(row['tasks'])} | {row['networks']} | {row['summary']} |"
        for row in rows
    ]
    return "\n".join([HEAD, *index, "", STEPS, *(card(row) for row in rows)])


def card(row: dict) -> str:
    """The docstring of a method's module, and its options."""
    module = inspect.getmodule(METHODS[row["name"]])
    lines = [f"## {row['name']}", "", inspect.cleandoc((module and module.__doc__) or ""), ""]
    own = {name: value for name, value in row["options"].items() if name not in COMMON}
    if own:
        lines += ["Options: " + ", ".join(f"`{name}={value}`" for name, value in own.items()) + ".", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(methods_page())
