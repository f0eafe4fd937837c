"""What the commands share: the application, common options, and the parsing of their values."""

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
    """The flags of a command by the names of the Python arguments."""
    options = [each for each in command.params if each.param_type_name == "option"]
    one_by_one = {f"{each.name}s": each.opts[0] for each in options if each.multiple}  # "targets" is --target, repeated
    return {each.name: each.opts[0] for each in options} | one_by_one


class Commands(TyperGroup):
    """Commands in which error messages name arguments by the flags of the command that is running."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        if found[1] is not None:  # None during shell completion
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
    """A number if it reads as one, else the text; the library checks whether it is valid."""
    try:
        return float(text)
    except ValueError:
        return text


def pairs(argument: str, given: Pairs | None) -> dict[str, Any]:
    """``name=value`` arguments as a dictionary. Values are parsed as JSON where they are valid JSON, else text."""
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
    """Print a message to standard error, apart from the result."""
    typer.echo(text, err=True)


@contextmanager
def stoppable(left: str) -> Iterator[None]:
    """On Ctrl-C, say what is ``left`` of the work, and exit."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped. {left}")
        raise typer.Exit(130) from None


@contextmanager
def resumable(speaks: bool = True) -> Iterator[None]:
    """On Ctrl-C in training that saves a state, say how to go on, and exit. Of several ranks, only one ``speaks``."""
    from gradsieve.training.interrupt import Interrupted

    try:
        yield
    except Interrupted as stop:
        if speaks:
            note(f"{stop}. The same command with --resume goes on from there.")
        raise typer.Exit(130) from None
