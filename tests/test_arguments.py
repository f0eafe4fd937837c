"""A message names arguments as whoever called writes them: by Python's names, or by flags of the very command."""

import threading

import pytest
from typer.main import get_command

from gradsieve.arguments import argument, elsewhere, spelled
from gradsieve.cli.options import app, flags_of

# How an argument is spelled.

FLAGS = {"targets": "--target", "bad_rows": "--bad-rows", "resume": "--resume", "jobs": "--jobs"}
FLAGS |= {"method_options": "--method-option", "categorical": "--categorical"}


@pytest.mark.parametrize(
    ("given", "in_python", "in_a_shell"),
    [
        (["targets"], "targets", "--target"),
        (["bad_rows", "skip"], "bad_rows='skip'", "--bad-rows skip"),
        (["resume", True], "resume=True", "--resume"),
        (["jobs", 1], "jobs=1", "--jobs 1"),
        (["categorical", "zip code"], "categorical='zip code'", "--categorical 'zip code'"),
        (["method_options", {"balanced": True}], "method_options={'balanced': True}", "--method-option balanced=true"),
        (["method_options", {"passes": "one"}], "method_options={'passes': 'one'}", "--method-option passes=one"),
        (["ramp", 3], "ramp=3", "ramp=3"),  # which this command does not have
    ],
)
def test_an_argument_is_spelled_as_its_caller_writes_it(given, in_python, in_a_shell):
    assert argument(*given) == in_python
    with spelled(FLAGS):
        assert argument(*given) == in_a_shell
    assert argument(*given) == in_python


def test_the_way_out_to_another_place_is_spelled_likewise():
    assert elsewhere() == "Choose another folder as out."
    with spelled({"to": "--to"}):
        assert elsewhere("Make room", what="file", name="to") == "Make room, or choose another file as --to."


def test_threads_that_read_for_a_command_speak_its_language():
    said = []
    with spelled(FLAGS):
        thread = threading.Thread(target=lambda: said.append(argument("targets")))
        thread.start()
        thread.join()
    assert said == ["--target"]


@pytest.mark.parametrize(
    ("command", "name", "flag"),
    [
        ("fit", "targets", "--target"),
        ("fit", "method_options", "--method-option"),
        ("fit", "categorical", "--categorical"),
        ("train", "data_dir", "--data-dir"),
        ("reproduce", "gpus_per_run", "--gpus-per-run"),
    ],
)
def test_a_command_knows_its_flags_by_the_names_that_python_has(command, name, flag):
    assert flags_of(get_command(app).commands[command])[name] == flag
