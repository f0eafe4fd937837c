"""What the commands share: the application, options of several of them, and how their values are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gradsieve.arguments import spelled
from gradsieve.errors import InputError
from gradsieve.methods import METHODS
from gradsieve.version import __version__


def flags_of(command: Any) -> dict[str, str]:
    """The flags of a command by the names that Python has for them."""
    options = [each for each in command.params if each.param_type_name == "option"]
    one_by_one = {f"{each.name}s": each.opts[0] for each in options if each.multiple}  # --target for each of targets
    return {each.name: each.opts[0] for each in options} | one_by_one


class Commands(TyperGroup):
    """Commands in which what the library says of arguments names the flags of the one that is running."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        if found[1] is not None:  # None where a shell completes a name
            ctx.with_resource(spelled(flags_of(found[1])))
        return found


app = typer.Typer(
    cls=Commands,
    help="Train through wrong labels and targets: drop the rows with the largest gradients, update on the rest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(cls=Commands, help="Fetch public data sets, and check the ones you have.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradsieve {__version__}")
        raise typer.Exit


@app.callback()
def version_option(
    version: Annotated[
        bool, typer.Option("--version", callback=tell_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def names(table: Any) -> str:
    return ", ".join(table)


Pairs = list[str]
Target = Annotated[list[str] | None, typer.Option(help="Column to predict; repeat for several.")]
TaskName = Annotated[str | None, typer.Option(help="classification or regression; default: depends on the target.")]
Ignored = Annotated[list[str] | None, typer.Option(help="Column to leave out; repeat for several.")]
Categorical = Annotated[
    list[str] | None, typer.Option(help="Column whose numbers are codes. For a target: take its classes as written.")
]
MethodName = Annotated[str, typer.Option(help=names(METHODS))]
MethodOption = Annotated[
    Pairs | None, typer.Option(help="name=value, for example balanced=true; see gradsieve list --json.")
]
RateOrAuto = Annotated[str, typer.Option(help="Share of rows to drop, or auto: held-out rows choose it.")]
FitSeed = Annotated[int, typer.Option(help="Seed of the weights and the row order.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def listed(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def rate_or_auto(text: str) -> float | str:
    """A number, or the word as it is: whether that is a rate is checked where it is used."""
    try:
        return float(text)
    except ValueError:
        return text


def pairs(argument: str, given: Pairs | None) -> dict[str, Any]:
    """``name=value`` arguments as a dictionary; a value that reads as JSON is what it says there."""
    options = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{argument} is {pair!r}, but must read name=value.")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def note(text: str) -> None:
    """Tell a person something that is not the result."""
    typer.echo(text, err=True)


@contextmanager
def stoppable(left: str) -> Iterator[None]:
    """Where Ctrl-C ends the work: say what is ``left`` of it."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped. {left}")
        raise typer.Exit(130) from None


@contextmanager
def resumable(speaks: bool = True) -> Iterator[None]:
    """Where Ctrl-C leaves a state behind: say how to go on. Of several ranks, one ``speaks``."""
    from gradsieve.training.interrupt import Interrupted

    try:
        yield
    except Interrupted as stop:
        if speaks:
            note(f"{stop}. The same command with --resume goes on from there.")
        raise typer.Exit(130) from None
