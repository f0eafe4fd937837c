"""What the tests of streams share: a table in shards, some of whose targets are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

ROWS, GROUP, SHARDS = 3000, 250, 3


def make_columns(rows: int = ROWS, seed: int = 0) -> dict:
    """Numbers with some missing, words, an amount that follows them and is wrong in every tenth row, a class."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, 3))
    town = random.choice(["Rome", "Oslo", "Bonn"], rows)
    y = 2 * x[:, 0] - x[:, 1] + 3 * (town == "Oslo")
    y[::10] += 15
    missing = random.random(rows) < 0.1
    return {
        "a": x[:, 0],
        "b": x[:, 1],
        "c": pa.array(x[:, 2], mask=missing),
        "town": town.tolist(),
        "y": y,
        "kind": np.where(x[:, 0] + x[:, 1] > 0, "high", "low").tolist(),
    }


def write(folder: Path, table: dict, shards: int = SHARDS, group: int = GROUP, suffix: str = ".parquet") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    whole = pa.table(table)
    size = -(-len(whole) // shards)
    for number in range(shards):
        part, path = whole.slice(number * size, size), folder / f"part-{number}{suffix}"
        if suffix == ".parquet":
            pq.write_table(part, path, row_group_size=group)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, part.schema) as writer:
                writer.write_table(part, max_chunksize=group)
    return folder


@pytest.fixture(scope="session")
def columns() -> Callable[..., dict]:
    return make_columns


@pytest.fixture(scope="session")
def write_shards() -> Callable[..., Path]:
    return write


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that tests only read."""
    return write(tmp_path_factory.mktemp("shards") / "data", make_columns())


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Windows of so many rows, so that a small table has several."""

    def set_size(rows: int) -> None:
        monkeypatch.setattr("gradsieve.streams.feed.window_size", lambda inputs: rows)

    return set_size
