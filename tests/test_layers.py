"""Imports go one way, and neither the training loop nor the base class of methods knows a method by name."""

import ast
import re
from pathlib import Path

import pytest

import gradsieve
from gradsieve.methods import METHODS
from gradsieve.schedule import SCHEDULES

ROOT = Path(gradsieve.__file__).parent
# A module may import from its own part and from the layers above it in this list. It may not import from the other
# parts of its layer either: where everything points to an earlier line there can be no circle.
LAYERS = [
    {"arguments", "errors", "version"},
    {"registry", "counts", "seeds", "ranks", "tracing"},
    {"data", "notebook"},
    {"corruptions", "models", "kernels"},
    {"scores"},
    {"selection", "schedule"},
    {"method"},
    {"methods", "engine"},
    {"metrics", "theory"},
    {"choosing", "mistakes"},
    {"training"},
    {"estimators"},
    {"tables"},
    {"streams"},
    {"files"},
    {"dropin"},
    {"adapters"},
    {"audit"},
    {"report"},
    {"experiments"},
    {"cli"},
    {"__init__", "__main__"},
]
PLACE = {name: number for number, layer in enumerate(LAYERS) for name in layer}
REACHES_UP = {"notebook": {"report"}}  # by name alone: an object that is being shown asks for its page
PLACE_OF_CODE = re.compile(r"gradsieve(?:\.\w+)+(?::\w+)?")  # in a text: module, or module:name
FILES = sorted(ROOT.rglob("*.py"))


def part_of(path):
    """The name by which a file is listed above."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(path):
    """The parts of the package that a file imports: at its top, inside a function, for types, or named by a text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names = [node.module] if node.module != "gradsieve" else [f"gradsieve.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PLACE_OF_CODE.fullmatch(node.value):
            names = [node.value]
        else:
            continue
        yield from (re.split("[.:]", name)[1] for name in names if name.startswith("gradsieve."))


def test_every_module_has_its_place():
    assert {part_of(path) for path in FILES} == PLACE.keys()


def test_no_module_hides_a_public_name():
    """Once a module is imported, it is what the package's attribute of that name gives."""
    assert not PLACE.keys() & set(gradsieve.__all__)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_imports_from_its_neighbours_or_a_later_layer(path):
    own = part_of(path)
    allowed = {own, *REACHES_UP.get(own, ())}
    assert not {part for part in imported_parts(path) if part not in allowed and PLACE[part] >= PLACE[own]}


def test_what_may_reach_up_does():
    for part, named in REACHES_UP.items():
        used = {each for path in FILES if part_of(path) == part for each in imported_parts(path)}
        assert named == {each for each in used if PLACE[each] > PLACE[part]}


def test_the_check_sees_imports_inside_functions_for_types_and_by_name(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""gradsieve.audit is only spoken of here."""\n'
        "from gradsieve import ranks, seeds\nimport gradsieve.cli\n"
        "if TYPE_CHECKING:\n    from gradsieve.training import run\n"
        "def f():\n    from gradsieve.data.table import load\n"
        "    import_module('gradsieve.report.html')\n"
        "TABLE = {'spl': 'gradsieve.methods.spl:SPL'}\n"
    )
    assert set(imported_parts(file)) == {"ranks", "seeds", "cli", "training", "data", "report", "methods"}


KNOWS_NO_METHOD = [path for path in FILES if part_of(path) in ("training", "method")]


@pytest.mark.parametrize("path", KNOWS_NO_METHOD, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_loop_knows_no_method_by_name(path):
    tree = ast.parse(path.read_text())
    literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not literals & (METHODS.keys() - SCHEDULES.keys())
    imports = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {module for module in imports if module.startswith("gradsieve.methods.")}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & {METHODS[name].__name__ for name in METHODS}
