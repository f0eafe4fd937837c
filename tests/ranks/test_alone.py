"""Commands that ranks cannot share are refused before anything is written: N copies would work on the same files."""

import pytest

from gradsieve import ranks
from gradsieve.errors import InputError
from gradsieve.files.fit import fit_file


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,y\n" + "".join(f"{row},{2 * row}\n" for row in range(20)))
    return path


@pytest.mark.parametrize(("rank", "said"), [("0", True), ("1", False)])
def test_a_fit_under_torchrun_is_refused_once(rank, said, table, gradsieve, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    answer = gradsieve("fit", table, "--target", "y", "--out", table.parent / "model")
    assert answer.code == 2
    assert ("works in one process, but torchrun has started 2 of it. Start it without torchrun" in answer.err) == said
    assert bool(answer.err) == said
    assert list(table.parent.iterdir()) == [table]
    assert gradsieve("--help").code == 0


def test_one_rank_is_alone(table, gradsieve, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert gradsieve("fit", table, "--target", "y", "--epochs", 1, "--out", table.parent / "model").code == 0


def test_a_fit_within_a_group_is_refused(table, monkeypatch):
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    with pytest.raises(InputError, match="before the group is made"):
        fit_file(table, ["y"], table.parent / "model")
    assert list(table.parent.iterdir()) == [table]
