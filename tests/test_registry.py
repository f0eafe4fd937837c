"""Tables of names: read without importing, with errors that help."""

import math
import subprocess
import sys

import pytest

from gradsieve.errors import InputError
from gradsieve.registry import Registry, import_object, unknown

TABLE: Registry = Registry("function", {"root": "math:sqrt", "power": "math:pow", "broken": "gradsieve.no_such:thing"})


def test_a_registry_is_a_mapping_whose_values_are_imported_when_asked_for():
    assert list(TABLE) == ["root", "power", "broken"]
    assert len(TABLE) == 3
    assert "root" in TABLE
    assert "rot" not in TABLE
    assert TABLE["root"] is math.sqrt
    with pytest.raises(InputError, match=r"'gradsieve.no_such:thing' cannot be imported .* Expected 'module:"):
        TABLE["broken"]


def test_an_unknown_name_gets_the_nearest_one_and_the_whole_list():
    with pytest.raises(InputError, match=r"There is no function 'rot'\. Did you mean 'root'\? There are: root, power"):
        TABLE["rot"]
    assert unknown("function", "zzz", TABLE) == "There is no function 'zzz'. There are: root, power, broken."


def test_a_place_is_a_name_too_so_that_your_own_needs_no_row():
    assert "math:floor" in TABLE
    assert TABLE["math:floor"] is math.floor
    assert list(TABLE) == ["root", "power", "broken"]


@pytest.mark.parametrize("name", [3, None, ("root",)])
def test_a_name_that_is_no_text_is_unknown(name):
    assert name not in TABLE
    with pytest.raises(InputError, match="There is no function"):
        TABLE[name]


def test_a_summary_is_the_first_line_of_what_the_object_says_of_itself():
    assert TABLE.summary("root") == "Return the square root of x."


@pytest.mark.parametrize(
    "place", ["math", "math:", "math:no_such", ":sqrt", "", "no_such_module:x", "math.no.such:x", ".relative:x"]
)
def test_a_place_that_cannot_be_imported_is_an_input_error(place):
    with pytest.raises(InputError, match="cannot be imported"):
        import_object(place)


def test_a_module_whose_own_imports_are_missing_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        import_object("half_installed:anything")


def test_the_tables_are_listed_without_torch():
    code = """
import sys
from gradsieve.corruptions import CORRUPTIONS
from gradsieve.methods import METHODS
from gradsieve.models import MODELS
from gradsieve.schedule import SCHEDULES
assert all(list(table) for table in (CORRUPTIONS, METHODS, MODELS, SCHEDULES))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_row_of_every_table_can_be_imported_and_describes_itself():
    from gradsieve.corruptions import CORRUPTIONS
    from gradsieve.data import DATASETS
    from gradsieve.methods import METHODS
    from gradsieve.models import MODELS
    from gradsieve.schedule import SCHEDULES

    for table in (CORRUPTIONS, DATASETS, METHODS, MODELS, SCHEDULES):
        for name in table:
            assert callable(table[name])
            assert table.summary(name), f"{table.kind} {name}"
