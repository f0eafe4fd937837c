"""Imports point one way, and neither the loop nor the frame of all methods knows a method by name."""

import ast
from pathlib import Path

import pytest

import gradsieve
from gradsieve.methods import METHODS
from gradsieve.schedule import SCHEDULES

ROOT = Path(gradsieve.__file__).parent
LAYERS = [  # a module may import from its own layer and from those above it in this list
    {"errors", "version"},
    {"registry", "counts", "seeds", "ranks", "tracing"},
    {"data"},
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
    {"audit", "report"},
    {"experiments"},
    {"cli"},
    {"__init__", "__main__"},
]
PLACE = {name: number for number, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(ROOT.rglob("*.py"))


def part_of(path):
    """The name by which a file is listed above."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def is_type_checking(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def nodes(tree):
    """Everything in a file but what only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if not is_type_checking(node):
            yield node
            yield from nodes(node)


def imported_parts(path):
    """The parts of the package that a file imports, at its top or inside a function."""
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names = [node.module] if node.module != "gradsieve" else [f"gradsieve.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("gradsieve."))


def test_every_module_has_its_place():
    assert {part_of(path) for path in FILES} == PLACE.keys()


def test_no_module_hides_a_public_name():
    """Once a module is imported, it is what the package's attribute of that name gives."""
    assert not PLACE.keys() & set(gradsieve.__all__)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_imports_from_a_later_layer(path):
    later = {part for part in imported_parts(path) if PLACE[part] > PLACE[part_of(path)]}
    assert not later


def test_the_check_sees_imports_inside_functions_and_not_those_for_types(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "from gradsieve import ranks, seeds\nimport gradsieve.cli\n"
        "if TYPE_CHECKING:\n    from gradsieve.training import run\n"
        "def f():\n    from gradsieve.data.table import load\n"
    )
    assert set(imported_parts(file)) == {"ranks", "seeds", "cli", "data"}


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
