"""The vote by drop rate, with the pick and the estimate: as a table for the terminal, and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradsieve.choosing.pick import RatePick
from gradsieve.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

WIDTH = 24  # characters of the longest bar


def summary(pick: RatePick) -> str:
    """A pick in one sentence."""
    lower, upper = pick.interval
    return (
        f"dropping {pick.rate:g}; about {pick.estimate:.2f} of the targets seem wrong "
        f"({lower:.2f} to {upper:.2f} if the voting rows are resampled)"
    )


def table(pick: RatePick) -> Group:
    """One line per drop rate: how far it is behind the winner of the vote, with the standard error."""
    from rich.console import Group
    from rich.table import Table

    require_votes(pick)
    picture = Table(box=None, pad_edge=False)
    for column in ("drop rate", "epochs done", "behind", "", ""):
        picture.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
    largest = max(abs(margin) for margin in pick.margins) or 1.0
    for rate, margin, error, trained in zip(pick.rates, pick.margins, pick.errors, pick.trained, strict=True):
        bar = "█" * round(WIDTH * abs(margin) / largest)
        mark = "the winner" if rate == pick.winner else bar if margin <= 0 else f"{bar} ahead"
        picture.add_row(f"{rate:g}", f"{trained:.0%}", f"{abs(margin):.3f}", f"± {error:.3f}", mark)
    return Group(summary(pick), picture)


def figure(pick: RatePick) -> Figure:
    """The same for a notebook or report: margins with two standard errors, and the estimate with its interval."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report", "A figure of the vote") from error
    require_votes(pick)
    drawing = Figure(figsize=(6, 3.2), layout="constrained")
    axes = drawing.subplots()
    axes.axvspan(*pick.interval, alpha=0.2, linewidth=0, label="estimated share of wrong targets, 90 % of resamples")
    axes.axvline(pick.estimate, linewidth=1)
    axes.errorbar(pick.rates, pick.margins, [2 * error for error in pick.errors], fmt="o-", color="C1", capsize=3)
    axes.plot([pick.rate], [0], "s", color="C3", markersize=9, label=f"drop rate used, {pick.rate:g}")
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set_xlabel("drop rate")
    axes.set_ylabel("margin against the winner")
    axes.legend(fontsize="small")
    return drawing


def require_votes(pick: RatePick) -> None:
    if not pick.rates:
        raise InputError(f"There was no vote to show. {pick.warning}".strip())
