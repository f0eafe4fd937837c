"""docs/methods.md, rendered from METHODS: ``python -m gradsieve.report.methods_page docs/methods.md``."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from gradsieve.methods import METHODS
from gradsieve.report.listing import describe

HEAD = """# Methods

Rendered from the table `METHODS` by `make docs`; do not edit. `gradsieve list` shows the same in the terminal.

Options are set with `--method-option name=value`, or `method_options={...}` in Python. All methods take `passes`
(`index`: one forward, dropped rows leave the loss; `reforward`: a forward to score, then one over the kept rows, so
that BatchNorm never sees the others), `scoring` (`eval` or `train` form) and `balanced` (trim every class alike: a run
that keeps hardly a row of some class for three epochs warns, and names it; so does a fit whose last epoch did).
"""
COMMON = ("passes", "scoring", "balanced")


def methods_page() -> str:
    """One card a method, and an index of them."""
    rows = [describe(METHODS, name) for name in METHODS]
    index = ["| method | for | networks | what it does |", "| --- | --- | --- | --- |"]
    index += [
        f"| [{row['name']}](#{row['name']}) | {', '.join(row['tasks'])} | {row['networks']} | {row['summary']} |"
        for row in rows
    ]
    return "\n".join([HEAD, *index, "", *(card(row) for row in rows)])


def card(row: dict) -> str:
    """What a method's own file says of it, and its options."""
    module = inspect.getmodule(METHODS[row["name"]])
    lines = [f"## {row['name']}", "", inspect.cleandoc((module and module.__doc__) or ""), "", row["summary"], ""]
    own = {name: value for name, value in row["options"].items() if name not in COMMON}
    if own:
        lines += ["Options: " + ", ".join(f"`{name}={value}`" for name, value in own.items()) + ".", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(methods_page())
