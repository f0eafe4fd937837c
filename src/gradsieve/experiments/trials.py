"""Trials: runs of Table 2 with one change, to find out why a figure differs from the paper's.

Their records also have a ``change``: command-line flags, a temporary change of the source, or another training loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsieve.experiments.experiment import EXPERIMENTS
from gradsieve.experiments.records import Record, departures
from gradsieve.experiments.results_table import figure, provenance

HEAD = ("row", "method", "preset", "seed", "change", "with the change", "without", "paper")
SAME = ("row", "method", "preset", "seed", "epochs")


def trials_section(trials: Sequence[Record], unchanged: Sequence[Record]) -> str:
    """One line per trial, with the run in which nothing was changed beside it."""
    table2 = EXPERIMENTS["table2"]
    lines = [HEAD, ("---",) * len(HEAD)]
    for trial in trials:
        plain = [each for each in unchanged if not departures(each) and all(each[name] == trial[name] for name in SAME)]
        place = (trial["row"], trial["method"], "")
        lines.append(
            (
                *(str(trial[name]) for name in SAME[:4]),
                f"`{trial['change']}`" if trial["change"].startswith("--") else trial["change"],
                *(figure(cell, "last10_mean", table2.metric).split(" ")[0] for cell in ([trial], plain)),
                table2.paper[place],
            )
        )
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join(("## Trials: runs of Table 2 with a change, accuracy", rows, provenance(trials))) + "\n"
