"""Small runs, an audit, and thirty names that would like to be more than names."""

import csv
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gradsieve.audit.result import Audit
from gradsieve.audit.writing import write_audit
from gradsieve.report.subjects import read_subjects
from gradsieve.training.loop import train
from gradsieve.training.run import make_run

DO = "window.pwned=1"
HOSTILE = (
    f"<script>{DO}</script>",
    f"</script><script>{DO}</script>",
    f"</style><script>{DO}</script>",
    f"</title><script>{DO}</script>",
    f"</textarea><script>{DO}</script>",
    f"--><script>{DO}</script>",
    f"]]><script>{DO}</script>",
    f"<ScRiPt>{DO}</sCrIpT>",
    "<script src=http://evil.test/a.js></script>",
    "<script src=//evil.test/b.js></script>",
    f"<img src=x onerror={DO}>",
    f'"><img src=http://evil.test/c.png onerror={DO}>',
    f"'><img src=x onerror='{DO}'>",
    f'" onmouseover="{DO}" autofocus onfocus="{DO}" x="',
    f"' onclick='{DO}' x='",
    f"<svg onload={DO}>",
    f"<svg><animate onbegin={DO} attributeName=x dur=1s>",
    f"</svg><svg/onload={DO}>",
    f"<body onload={DO}>",
    "<iframe src=http://evil.test/d.html></iframe>",
    f'<iframe srcdoc="<script>parent.{DO}</script>">',
    "<object data=http://evil.test/e></object>",
    "<link rel=stylesheet href=http://evil.test/f.css>",
    "<style>@import 'http://evil.test/g.css';</style>",
    "<meta http-equiv=refresh content='0;url=http://evil.test/h'>",
    "<base href=http://evil.test/>",
    f"<a href=javascript:{DO}>click</a>",
    f"<details open ontoggle={DO}>",
    f"&lt;script&gt;{DO}&lt;/script&gt;&#60;b&#62;",
    "${window.pwned=1}{{constructor.constructor('window.pwned=1')()}}\u202egnp.exe $x_{\\frac$",
)


@dataclass(frozen=True)
class Made:
    """Folders, and what a report reads from them."""

    folder: Path
    subjects: list


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Two runs on digits, one on faces, one on a table, and an audit."""
    folder = tmp_path_factory.mktemp("made")
    digits = {"corruption": "symmetric", "rate": 0.3, "drop_rate": 0.35, "epochs": 4, "ramp": 1}
    digits["model_options"] = {"hidden": [32]}
    train(make_run("digits", "prl-l", **digits), folder / "runs" / "digits-prl-l", bounds=True)
    train(make_run("digits", "standard", **digits), folder / "runs" / "digits-standard")
    faces = {"data_options": {"train": 60, "test": 20}, "model_options": {"width": 0.1, "features": 8}}
    run = make_run("landmarks", "prl-l", corruption="signflip", rate=0.3, epochs=2, batch_size=20, **faces)
    train(run, folder / "runs" / "faces")
    table = write_table(folder / "weather.csv", ["wet", "dry", "cold"], ["no", "yes"], rows=60)
    options = {"target": "class", "task": "classification"}
    train(
        make_run("table", "prl-l", epochs=2, drop_rate=0.2, data_dir=str(table), data_options=options),
        folder / "runs" / "table",
    )
    audit = make_audit(("cat", "dog"), rows=30)
    write_audit(audit, folder / "runs" / "pets")
    return Made(folder, read_subjects([folder / "runs"]))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """Every name in HOSTILE as the name of a class, a column, a file, an output and, where a disk allows, a folder."""
    folder = tmp_path_factory.mktemp("hostile")
    options = {"target": "class", "task": "classification"}
    for number in range(0, len(HOSTILE), 8):
        columns = HOSTILE[number : number + 8]
        table = write_table(folder / f"table{number}.csv", columns, HOSTILE, rows=180)
        run = make_run("table", "prl-l", epochs=1, drop_rate=0.2, data_dir=str(table), data_options=options)
        train(run, folder / "runs" / HOSTILE[number + 5].replace("/", "|"))
    for number in range(0, len(HOSTILE), 10):
        audit = make_audit(HOSTILE, rows=60, run=HOSTILE[number], files=HOSTILE * 2)
        write_audit(audit, folder / "runs" / f"audit{number}")
    write_audit(make_targets_audit(HOSTILE[:6]), folder / "runs" / "outputs")
    return Made(folder, read_subjects([folder / "runs"]))


@pytest.fixture
def hostile_audit():
    """Of classes and files with all thirty names."""
    return make_audit(HOSTILE, rows=60, run=HOSTILE[0], files=HOSTILE * 2)


@pytest.fixture
def pets():
    """Of two classes."""
    return make_audit(("cat", "dog"), rows=30)


@pytest.fixture
def targets_audit():
    """Of many outputs."""
    return make_targets_audit(HOSTILE[:6])


def write_table(path, columns, classes, rows):
    """A table of numbers whose class depends on them."""
    draw = random.Random(0)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "class"])
        for row in range(rows):
            number = row % len(classes)
            writer.writerow([*(round(number + draw.gauss(0, 1), 3) for _ in columns), classes[number]])
    return path


def make_audit(names, rows, run="pets.csv", files=None):
    """An audit of classes, one row in three flagged."""
    draw = np.random.default_rng(0)
    suspicion = draw.random(rows)
    given = np.arange(rows) % len(names)
    return Audit(
        task="classification",
        names=tuple(names),
        row=np.arange(1, rows + 1),
        suspicion=suspicion,
        rank=np.argsort(np.argsort(-suspicion)) + 1,
        flagged=suspicion > np.quantile(suspicion, 2 / 3),
        given=given,
        suggested=(given + 1) % len(names),
        confidence=draw.random(rows),
        seen=np.full(rows, 10),
        dropped=draw.integers(0, 10, rows),
        mean_score=draw.random(rows),
        off=None,
        kind=None,
        rate=1 / 3,
        rate_source="a guess of the test",
        method="prl-l",
        run=run,
        files=None if files is None else np.array(files, dtype=object),
    )


def make_targets_audit(names, rows=12):
    """An audit of many outputs, half of them off in every flagged row."""
    draw = np.random.default_rng(0)
    suspicion, shape = np.linspace(1, 0, rows), (rows, len(names))
    off = np.zeros(shape, dtype=bool)
    off[:4, ::2] = True
    return Audit(
        task="regression",
        names=tuple(names),
        row=np.arange(rows),
        suspicion=suspicion,
        rank=np.arange(1, rows + 1),
        flagged=np.arange(rows) < 4,
        given=draw.normal(size=shape),
        suggested=draw.normal(size=shape),
        confidence=None,
        seen=np.full(rows, 3),
        dropped=np.full(rows, 1),
        mean_score=draw.random(rows),
        off=off,
        kind=np.array(["sign flipped"] * 4 + [""] * (rows - 4), dtype=object),
        rate=1 / 3,
        rate_source="given",
        method="prl-g",
        run="points",
    )
