"""A fit of a Parquet set larger than memory should hold: peak resident set, and rows a second beside the fit in memory.

    python benchmarks/stream.py                          # 20 million x 20 rows, 1.8 GB of disk, minutes
    python benchmarks/stream.py --rows 1000000           # both ways on the same rows: the ratio
    python benchmarks/stream.py --format arrow           # uncompressed Arrow files; --group: rows of a record batch

The set is made in pieces, in shards of two million rows with the row groups that pyarrow makes by itself (2^20 rows);
20 % of the targets are wrong. Each fit is one epoch in a process of its own, in batches of 4,096. Rows a second are
those of the epoch, reading included where it streams; the whole of a fit also reads a sample and lists the suspicious
rows, 100,000 of a stream and all of a table in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARD = 2_000_000
COLUMNS = 20
GROUP = 2**20  # rows that a file keeps together
BATCH = 4096


def make_set(folder: Path, rows: int, suffix: str = "parquet", group: int = GROUP) -> None:
    """A smooth function of some columns, a fifth of its values wrong; float32, one shard at a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, rows, SHARD)):
        random = np.random.default_rng(number)
        count = min(SHARD, rows - first)
        columns = {f"x{place}": random.standard_normal(count, dtype=np.float32) for place in range(COLUMNS)}
        y = np.tanh(columns["x0"] + columns["x1"] - columns["x2"]) + columns["x3"] * columns["x4"]
        wrong = random.random(count) < 0.2
        y[wrong] = random.uniform(-5, 5, int(wrong.sum()))
        table, path = pa.table({**columns, "y": y.astype(np.float32)}), folder / f"part-{number:03d}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path, row_group_size=group)
        else:
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table, max_chunksize=group)


def fit_once(data: Path, out: Path, stream: bool) -> None:
    """In a process of its own: fit, and print what it took, in all and for the epoch alone."""
    from gradsieve.estimators.trainer import Trainer
    from gradsieve.files.fit import fit_file

    train_epoch, epoch_seconds = Trainer.train_epoch, []

    def timed(self: Trainer, epoch: int, rate: float) -> float:
        began = time.perf_counter()
        loss = train_epoch(self, epoch, rate)
        epoch_seconds.append(time.perf_counter() - began)
        return loss

    Trainer.train_epoch = timed
    began = time.perf_counter()
    summary = fit_file(data, ["y"], out, epochs=1, batch_size=BATCH, stream=stream, device="cpu")
    measured = {
        "rows": summary["rows"],
        "seconds": time.perf_counter() - began,
        "epoch_seconds": epoch_seconds[0],
        "waited_for_rows": summary.get("waited", 0.0),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loss": summary["loss"],
    }
    print(json.dumps(measured))


def measure(data: Path, scratch: Path, stream: bool) -> dict[str, Any]:
    """The figures of one fit."""
    out = scratch / "model"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, __file__, "--fit", str(data), "--to", str(out), *(["--stream"] if stream else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--part", type=int, default=1_000_000, help="rows of the set that is also fitted in memory")
    parser.add_argument("--format", choices=("parquet", "arrow"), default="parquet")
    parser.add_argument("--group", type=int, default=GROUP, help="rows that a file keeps together")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "gradsieve-stream")
    parser.add_argument("--fit", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.fit:
        fit_once(chosen.fit, chosen.to, chosen.stream)
        return
    shutil.rmtree(chosen.scratch, ignore_errors=True)
    try:
        make_set(chosen.scratch / "part", min(chosen.part, chosen.rows), chosen.format, chosen.group)
        memory = measure(chosen.scratch / "part", chosen.scratch, stream=False)
        runs = {"in memory": memory, "streamed, the same rows": measure(chosen.scratch / "part", chosen.scratch, True)}
        if chosen.rows > chosen.part:
            make_set(chosen.scratch / "all", chosen.rows, chosen.format, chosen.group)
            size = sum(path.stat().st_size for path in (chosen.scratch / "all").iterdir())
            runs["streamed"] = measure(chosen.scratch / "all", chosen.scratch, True) | {"bytes_on_disk": size}
    finally:
        shutil.rmtree(chosen.scratch, ignore_errors=True)
    for run in runs.values():
        run["rows_a_second"] = run["rows"] / run["epoch_seconds"]
        run["ratio"] = run["rows_a_second"] / (memory["rows"] / memory["epoch_seconds"])
    print(json.dumps({"machine": f"{platform.machine()}, {os.cpu_count()} cores", "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
