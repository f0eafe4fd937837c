"""The pages that are rendered say what the code says."""

from pathlib import Path

from gradsieve.report.methods_page import methods_page

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_of_methods_is_what_the_table_renders_to():
    assert (ROOT / "docs" / "methods.md").read_text() == methods_page(), "run `make docs`"
