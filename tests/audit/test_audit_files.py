"""The command, and what it writes: one line a row, no formula, nothing written over, and a clean copy of the source."""

import csv
import io
import json
import re
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from rich.console import Console

from gradsieve import make_run, train
from gradsieve.audit.copies import clean_file
from gradsieve.audit.file import audit_file
from gradsieve.audit.terminal import cell
from gradsieve.audit.writing import cells, write_audit
from gradsieve.errors import InputError, RunFolderError


def write(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Homes with a price, every eleventh ten times too high, and a name of a class that a spreadsheet would run."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(300):
        size, town = float(random.uniform(20, 200)), ("Rome", "Oslo")[number % 2]
        price = size * (3 + 2 * (town == "Oslo"))
        kind = "=dear()" if (price > 400) != (number % 15 == 1) else "cheap"
        rows.append([f"{size:.2f}", town, f"{price * (10 if number % 11 == 0 else 1):.2f}", kind])
    rows[7][2] = ""  # no target: not judged
    return write(tmp_path_factory.mktemp("homes") / "homes.csv", ["size", "town", "price", "kind"], rows)


@pytest.fixture(scope="module")
def priced(homes):
    return audit_file(homes, ["price"], ignore=["kind"], epochs=60, drop_rate=0.15)


def test_a_file_is_audited_by_the_command(gradsieve, homes, tmp_path):
    out = tmp_path / "audit"
    before = homes.read_bytes()
    arguments = ["--target", "price", "--ignore", "kind", "--drop-rate", 0.1, "--epochs", 100, "--out", out]
    done = gradsieve("audit", homes, *arguments, "--clean", tmp_path / "clean.csv", "--repair", tmp_path / "good.csv")
    assert done.code == 0, done.err
    assert "homes.csv: " in done.out
    assert "most suspect rows" in done.out
    assert homes.read_bytes() == before
    assert f"gradsieve report {out} --source {homes}" in done.err

    rows = read(out / "audit.csv")
    assert list(rows[0])[:5] == ["row", "suspicion", "flagged", "given", "suggested"]
    assert [int(row["row"]) for row in rows] == [number for number in range(1, 301) if number != 8]
    source = read(homes)
    assert all(float(row["given"]) == float(source[int(row["row"]) - 1]["price"]) for row in rows)
    flagged = {int(row["row"]) for row in rows if row["flagged"] == "1"}
    wrong = set(range(1, 301, 11))
    assert len(flagged & wrong) >= 25
    assert len(flagged - wrong) <= 6
    summary = json.loads((out / "audit.json").read_text())
    assert summary["flagged"] == len(flagged)
    assert summary["rows"] == 299
    assert summary["kinds"]["scaled"] > 20

    clean, good = read(tmp_path / "clean.csv"), read(tmp_path / "good.csv")
    assert clean == [row for number, row in enumerate(source, start=1) if number not in flagged]
    assert len(good) == 300
    assert all(
        new == old for number, (new, old) in enumerate(zip(good, source, strict=True), 1) if number not in flagged
    )
    assert all(float(good[number - 1]["price"]) < 1500 for number in flagged)


def test_paths_may_be_text_and_classes_trimmed_alike(homes, tmp_path):
    options = {"ignore": "price", "epochs": 12, "drop_rate": 0.4, "device": "cpu"}
    audit, alike = (
        audit_file(str(homes), "kind", method_options=each, **options) for each in (None, {"balanced": True})
    )
    kept = [[each["kept_share"] for each in found.summary()["classes"]] for found in (audit, alike)]
    assert np.ptp(kept[1]) < np.ptp(kept[0])
    assert np.ptp(kept[1]) < 0.05
    clean_file(audit, str(homes), str(tmp_path / "c.csv"), "kind")
    assert len(read(tmp_path / "c.csv")) == 300 - audit.flagged.sum()


def test_an_audit_in_a_process_group_is_of_each_process_alone(homes, monkeypatch):
    expected = audit_file(homes, ["price"], epochs=2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    assert np.array_equal(audit_file(homes, ["price"], epochs=2).suspicion, expected.suspicion)


def test_a_target_that_is_named_twice_is_one(homes, priced, tmp_path):
    assert audit_file(homes, ["price", "price"], epochs=2).names == ("price",)
    for number, targets in enumerate((["price"], ["price", "price"])):
        clean_file(priced, homes, tmp_path / f"{number}.csv", targets, repair=True)
    assert (tmp_path / "1.csv").read_text() == (tmp_path / "0.csv").read_text()


def test_json_is_all_that_is_printed(gradsieve, homes, tmp_path):
    done = gradsieve("audit", homes, "--target", "kind", "--epochs", 3, "--out", tmp_path / "a", "--json")
    summary = json.loads(done.out)
    assert summary["task"] == "classification"
    assert {each["name"] for each in summary["classes"]} == {"=dear()", "cheap"}


def test_no_cell_begins_a_formula(homes, tmp_path):
    audit = audit_file(homes, ["kind"], epochs=3)
    audit.to_csv(tmp_path / "audit.csv")
    assert {row["given"] for row in read(tmp_path / "audit.csv")} == {"'=dear()", "cheap"}
    assert not [
        cell for row in read(tmp_path / "audit.csv") for cell in row.values() if cell.startswith(("=", "+", "@"))
    ]


def test_a_copy_keeps_the_cells_of_the_source(homes, tmp_path):
    """It is data for a program and not a list for people: an apostrophe would be another class."""
    audit = audit_file(homes, ["kind"], ignore=["price"], epochs=30)
    assert audit.flagged.any()
    clean_file(audit, homes, tmp_path / "repaired.csv", ["kind"], repair=True)
    assert {row["kind"] for row in read(tmp_path / "repaired.csv")} == {"=dear()", "cheap"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_a_copy_keeps_the_lines_of_the_source(homes, priced, tmp_path, end, last):
    """Their ends, quotes and the mark at the beginning: a diff shows the rows that were changed, and no other."""
    header, *rows = homes.read_text().splitlines()
    quoted = [",".join(f'"{cell}"' for cell in row.split(",")) for row in rows]
    lines = [f"\ufeff {header}", quoted[0], "", *quoted[1:]]  # an empty line is no row
    source = tmp_path / "homes.csv"
    source.write_bytes((end.join(lines) + last * end).encode())
    flagged = {int(row) for row in priced.row[priced.flagged]}
    kept = [line for number, line in enumerate(quoted, 1) if number not in flagged]
    clean_file(priced, source, tmp_path / "clean.csv", ["price"])
    head = [lines[0], *([] if 1 in flagged else [kept.pop(0)]), ""]
    assert (tmp_path / "clean.csv").read_bytes().decode() == end.join([*head, *kept]) + last * end
    clean_file(priced, source, tmp_path / "repaired.csv", ["price"], repair=True)
    *found, after = (tmp_path / "repaired.csv").read_bytes().decode().split(end) + [""] * (not last)
    assert after == ""
    assert len(found) == len(lines)
    changed = {number for number, (new, old) in enumerate(zip(found, lines, strict=True)) if new != old}
    assert changed == {number if number == 1 else number + 1 for number in flagged}
    assert not any("\r" in line for line in found)


def test_nothing_is_written_over(gradsieve, homes, priced, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for arguments in (["--out", tmp_path / "full"], ["--out", tmp_path / "new", "--clean", homes]):
        done = gradsieve("audit", homes, "--target", "price", *arguments)
        assert done.code == 2
        assert "nothing is written over" in done.err
    assert not (tmp_path / "new").exists()
    priced.to_csv(tmp_path / "a.csv")
    for path in (tmp_path / "a.csv", homes):
        before = path.read_bytes()
        with pytest.raises(RunFolderError, match="nothing is written over"):
            priced.to_csv(path)
        assert path.read_bytes() == before
    with pytest.raises(RunFolderError, match="could not be written"):
        priced.to_csv(tmp_path / "nowhere" / "a.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "full"]


@pytest.mark.parametrize("name", ["audit.csv", "audit.parquet", "audit.json"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_full_disk_leaves_nothing_in_the_way_of_another_try(priced, tmp_path, full_disk, name, is_new):
    out = tmp_path / "audit"
    if not is_new:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    with full_disk(name), pytest.raises(RunFolderError, match=rf"{name} could not be written"):
        write_audit(priced, out)
    assert out.exists() == (not is_new)
    assert [path.name for path in write_audit(priced, out)] == ["audit.csv", "audit.parquet", "audit.json"]
    assert is_new or (out / "notes.txt").read_text() == "mine"


def test_an_audit_that_is_there_is_not_removed_when_another_is_refused(priced, tmp_path):
    write_audit(priced, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunFolderError, match="nothing is written over"):
        write_audit(priced, tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_what_makes_no_sense_is_refused(gradsieve, homes, priced, tmp_path):
    assert "--out is missing" in gradsieve("audit", homes, "--target", "price").err
    assert (
        "cannot be written"
        in gradsieve(
            "audit", homes, "--target", "price", "--out", tmp_path / "a", "--clean", tmp_path / "no" / "c.csv"
        ).err
    )
    assert (
        "--drop-rate is 'much'"
        in gradsieve("audit", homes, "--target", "price", "--out", tmp_path / "a", "--drop-rate", "much").err
    )
    assert (
        "task 'guess'" in gradsieve("audit", homes, "--target", "price", "--out", tmp_path / "a", "--task", "guess").err
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    assert "model of gradsieve fit" in gradsieve("audit", tmp_path / "model", "--out", tmp_path / "a").err
    with pytest.raises(InputError, match="not a CSV or Parquet file"):
        clean_file(priced, homes.with_suffix(".npz"), tmp_path / "c.csv", ["price"])
    with pytest.raises(InputError, match="cost"):
        clean_file(priced, homes, tmp_path / "c.csv", ["cost"], repair=True)
    short = write(tmp_path / "short.csv", ["size", "town", "price", "kind"], [["1", "Rome", "3", "cheap"]] * 5)
    with pytest.raises(InputError, match="has 5 rows"):
        clean_file(priced, short, tmp_path / "c.csv", ["price"])
    same = ["--clean", tmp_path / "c.csv", "--repair", tmp_path / "c.csv"]
    assert "two files" in gradsieve("audit", homes, "--target", "price", "--out", tmp_path / "a", *same).err
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "c.csv").exists()


def test_folders_of_runs_and_of_audits_are_not_taken_for_tables(gradsieve, priced, tmp_path):
    """They hold the audit.parquet of earlier audits."""
    (tmp_path / "runs" / "plain").mkdir(parents=True)
    (tmp_path / "runs" / "plain" / "config.json").write_text("{}")
    write_audit(priced, tmp_path / "runs" / "homes")
    for folder, way in (("runs", "one of them, such as .*plain, or all with"), ("runs/homes", "an audit already")):
        done = gradsieve("audit", tmp_path / folder, "--out", tmp_path / "out")
        assert done.code == 2
        assert re.search(way, done.err)


def test_a_run_folder_is_audited_into_itself(gradsieve, tmp_path):
    train(make_run("digits", corruption="pairflip", rate=0.2, epochs=3, device="cpu"), tmp_path / "run")
    done = gradsieve("audit", tmp_path / "run")
    assert done.code == 0, done.err
    rows = read(tmp_path / "run" / "audit" / "audit.csv")
    assert [int(row["row"]) for row in rows] == list(range(len(rows)))
    assert "nothing is written over" in gradsieve("audit", tmp_path / "run").err
    assert "run folder" in gradsieve("audit", tmp_path / "run", "--target", "x").err


def test_several_targets_have_a_column_each(tmp_path, table):
    _, given, _, audit = table
    audit.to_csv(tmp_path / "a.csv")
    rows = read(tmp_path / "a.csv")
    assert [float(row["given y1"]) for row in rows] == given[:, 1].tolist()
    assert {"suggested y0", "off", "kind"} <= rows[0].keys()
    assert all(set(row["off"].split(";")) <= {"y0", "y1", "y2", ""} for row in rows)


def test_long_files_are_written_in_pieces(monkeypatch, tmp_path, table):
    *_, audit = table
    audit.to_csv(tmp_path / "whole.csv")
    monkeypatch.setattr("gradsieve.audit.writing.CHUNK", 7)
    audit.to_csv(tmp_path / "pieces.csv")
    assert (tmp_path / "pieces.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_parquet_has_the_same_rows(monkeypatch, tmp_path, table):
    parquet = pytest.importorskip("pyarrow.parquet")
    *_, audit = table
    audit.to_parquet(tmp_path / "a.parquet")
    monkeypatch.setattr("gradsieve.audit.writing.CHUNK", 70)
    audit.to_parquet(tmp_path / "pieces.parquet")
    whole, pieces = (parquet.read_table(tmp_path / name) for name in ("a.parquet", "pieces.parquet"))
    assert whole["rank"].to_pylist() == audit.rank.tolist()
    assert pieces.equals(whole)


def test_single_precision_is_written_without_its_noise():
    column = np.array([0.1, 1 / 3, 3e-12, 0.0, -1234567.0, 1e-45, np.nan, np.inf, -np.inf], dtype=np.float32)
    written = cells(column)
    assert written[:5] == [0.1, 0.3333333, 3e-12, 0.0, -1234567.0]
    assert written[5] == pytest.approx(1e-45, rel=0.5)
    assert written[6:] == ["", np.inf, -np.inf]


def test_images_are_named_by_their_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, shade in (("dark", 20), ("light", 230)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            is_wrong = number == 0
            colour = (250 - shade if is_wrong else shade + number, 90, 90)
            image.new("RGB", (8, 8), colour).save(tmp_path / "photos" / name / f"{number}.png")
    audit = audit_file(tmp_path / "photos", epochs=20, drop_rate=0.1)
    assert audit.files[0] == "dark/0.png"
    assert set(audit.most_suspect(2)["file"]) == {"dark/0.png", "light/0.png"}


def test_the_terminal_shows_names_as_they_are(homes, table):
    *_, audit = table
    for each, words in ((audit, ["sign flipped", "y2"]), (audit_file(homes, ["kind"], epochs=2), ["=dear()", "class"])):
        file = io.StringIO()
        Console(file=file, width=160).print(each)
        assert all(word in file.getvalue() for word in words)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(452600.0, "452600"), (np.float32(-70893.25), "-70893"), (1234.5, "1234"), (0.00012345, "0.0001234"), (7, "7")],
)
def test_the_terminal_shows_prices_as_people_write_them(value, shown):
    assert cell(value) == shown


def test_the_terminal_has_no_empty_table_of_kinds(table):
    *_, audit = table
    file = io.StringIO()
    Console(file=file, width=160).print(replace(audit, flagged=np.zeros(len(audit), dtype=bool)))
    assert "0 of 600 rows flagged" in file.getvalue()
    assert "kind of error" not in file.getvalue()
    assert "most suspect rows" in file.getvalue()


def test_names_longer_than_the_terminal_is_wide_are_shown_to_their_ends(digits):
    *_, audit = digits
    long = replace(audit, names=tuple(f"{'folder/' * 12}{name}.png" for name in audit.names))
    file = io.StringIO()
    Console(file=file, width=80).print(long)
    assert "\N{HORIZONTAL ELLIPSIS}" not in file.getvalue()


@pytest.mark.parametrize(
    ("width", "shown"), [(160, ["seen", "given y1", "off"]), (110, ["given y1", "off"]), (60, ["off"])]
)
def test_a_narrow_terminal_has_fewer_columns_and_no_shortened_numbers(table, width, shown):
    *_, audit = table
    file = io.StringIO()
    Console(file=file, width=width).print(audit)
    rows = file.getvalue().partition("most suspect rows")[2]
    assert [word for word in ("seen", "given y1", "off") if word in rows] == shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in rows


def test_the_terminal_runs_no_markup(digits):
    *_, audit = digits
    hostile = replace(audit, names=tuple(f"[red]{name}[/nothing]" for name in audit.names))
    file = io.StringIO()
    Console(file=file, width=200).print(hostile)
    assert "[red]3[/nothing]" in file.getvalue()


def test_a_file_that_is_not_there_is_told_first(gradsieve, tmp_path):
    done = gradsieve("audit", tmp_path / "typo.csv", "--target", "y")
    assert (done.code, f"There is no file {tmp_path / 'typo.csv'}." in done.err) == (2, True)


def gapped(path, random, rows=600):
    """Homes a tenth of which have no size, without which nobody knows the price; every twelfth price is negative."""
    size, is_gap = random.uniform(20, 200, rows), random.random(rows) < 0.1
    price = 3 * size + random.normal(0, 3, rows)
    given = np.where(np.arange(rows) % 12 == 5, -price, price)
    cells = [
        ["" if gap else f"{each:.1f}", number % 7, f"{cost:.2f}"]
        for number, (gap, each, cost) in enumerate(zip(is_gap, size, given, strict=True))
    ]
    return write(path, ["size", "door", "price"], cells), is_gap, price


def test_rows_that_lack_an_input_are_not_called_wrong(gradsieve, tmp_path):
    source, is_gap, price = gapped(tmp_path / "homes.csv", np.random.default_rng(0))
    done = gradsieve("audit", source, "--target", "price", "--out", tmp_path / "a", "--repair", tmp_path / "good.csv")
    assert done.code == 0, done.err
    rows, is_wrong = read(tmp_path / "a" / "audit.csv"), np.arange(600) % 12 == 5
    flagged = np.array([row["flagged"] == "1" for row in rows])
    assert [row["gaps"] for row in rows] == ["size" if gap else "" for gap in is_gap]
    assert flagged[is_wrong].mean() > 0.9
    assert not flagged[~is_wrong].any()
    good = np.array([float(row["price"]) for row in read(tmp_path / "good.csv")])
    assert np.abs(good - price)[flagged].max() < 0.006  # signs were turned, and nothing guessed


def test_classes_of_rows_that_lack_what_tells_them_stay(tmp_path):
    random = np.random.default_rng(0)
    size, is_gap = random.uniform(20, 200, 600), random.random(600) < 0.1
    kind = np.where((size > 110) ^ (np.arange(600) % 20 == 3), "big", "small")
    cells = [
        ["" if gap else f"{each:.1f}", number % 7, word]
        for number, (gap, each, word) in enumerate(zip(is_gap, size, kind, strict=True))
    ]
    audit = audit_file(write(tmp_path / "homes.csv", ["size", "door", "kind"], cells), "kind")
    assert not audit.flagged[is_gap].any()
    assert audit.flagged[~is_gap & (np.arange(600) % 20 == 3)].mean() > 0.8


def test_a_parquet_file_is_copied_as_one(gradsieve, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source, _, price = gapped(tmp_path / "homes.csv", np.random.default_rng(0))
    rows = read(source)
    schema = pa.schema([("size", pa.float32()), ("door", pa.int16()), ("price", pa.int32())], metadata={"by": "me"})
    columns = {
        "size": [float(row["size"]) if row["size"] else None for row in rows],
        "door": [int(row["door"]) for row in rows],
    }
    columns["price"] = [None if number == 3 else round(float(row["price"])) for number, row in enumerate(rows)]
    pq.write_table(pa.table(columns, schema=schema), tmp_path / "homes.parquet")
    copies = {"--clean": tmp_path / "clean.parquet", "--repair": tmp_path / "good.parquet"}
    named = [each for pair in copies.items() for each in pair]
    done = gradsieve("audit", tmp_path / "homes.parquet", "--target", "price", "--out", tmp_path / "a", *named)
    assert done.code == 0, done.err
    flagged = {int(row["row"]) - 1 for row in read(tmp_path / "a" / "audit.csv") if row["flagged"] == "1"}
    before, clean, good = (pq.read_table(path) for path in (tmp_path / "homes.parquet", *copies.values()))
    assert before.schema.equals(clean.schema, check_metadata=True)
    assert before.schema.equals(good.schema, check_metadata=True)
    assert clean.equals(before.take([row for row in range(600) if row not in flagged]))
    cells = zip(before["price"].to_pylist(), good["price"].to_pylist(), strict=True)
    changed = {row for row, (old, new) in enumerate(cells) if old != new}
    assert changed == flagged
    assert all(good["price"][row].as_py() == round(price[row]) for row in flagged)
    with pytest.raises(InputError, match=r"Name it clean.parquet"):
        clean_file(None, tmp_path / "homes.parquet", tmp_path / "clean.csv", "price")


def test_no_copy_is_made_where_most_rows_are_flagged(homes, priced, tmp_path):
    lost = replace(priced, flagged=np.arange(len(priced)) % 3 > 0)
    for repair in (False, True):
        with pytest.raises(InputError, match="199 of 299 rows are flagged"):
            clean_file(lost, homes, tmp_path / "c.csv", "price", repair=repair)
    assert not (tmp_path / "c.csv").exists()


def test_if_a_copy_cannot_be_made_the_audit_is_there_and_is_named(gradsieve, homes, tmp_path, full_disk):
    arguments = ["--target", "price", "--epochs", 2, "--out", tmp_path / "a", "--repair", tmp_path / "good.csv"]
    with full_disk("good.csv"):
        done = gradsieve("audit", homes, *arguments)
    assert done.code == 2
    assert "good.csv could not be written" in done.err
    assert f"every row is in {tmp_path / 'a' / 'audit.csv'}" in done.err
    assert (tmp_path / "a" / "audit.json").exists()


def test_no_copy_is_made_of_a_file_whose_rows_have_moved(homes, priced, tmp_path):
    """A flag belongs to a row, which stands elsewhere in a file that was sorted, cut or prolonged."""
    header, *lines = homes.read_text().splitlines(keepends=True)
    changes = {
        "sorted": (sorted(lines), r"line \d+: the target price is not what was audited"),
        "emptied": ([*lines[:9], lines[7], *lines[10:]], "line 11: the target price is not what was audited"),
        "prolonged": ([*lines, lines[0]], "line 302: the target price is not what was audited"),
        "cut": (lines[:280], "has 280 rows, from 1, but the audit has a row 300"),
    }
    for name, (now, said) in changes.items():
        source = tmp_path / f"{name}.csv"
        source.write_text(header + "".join(now))
        with pytest.raises(InputError, match=said):
            clean_file(priced, source, tmp_path / "c.csv", "price", repair=True)
    assert not (tmp_path / "c.csv").exists()


def test_codes_are_recognised_as_they_are_written(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=120)
    rows = [[f"{value:.3f}", "01" if value > 0 else "1"] for value in x]
    source = write(tmp_path / "codes.csv", ["x", "code"], rows)
    audit = audit_file(source, "code", categorical="code", epochs=2)
    clean_file(audit, source, tmp_path / "c.csv", "code")
    rows[5][1] = "01" if rows[5][1] == "1" else "1"
    with pytest.raises(InputError, match="line 7: the target code is not what was audited"):
        clean_file(audit, write(source, ["x", "code"], rows), tmp_path / "d.csv", "code")


def test_repaired_cells_are_written_as_their_column_is(homes, priced, tmp_path):
    clean_file(priced, homes, tmp_path / "good.csv", "price", repair=True)
    before, after = read(homes), read(tmp_path / "good.csv")
    changed = [row for row in range(300) if before[row]["price"] != after[row]["price"]]
    assert changed
    assert all(len(after[row]["price"].partition(".")[2]) == 2 for row in changed)
    tenfold = [row for row in changed if priced.kind[priced.row == row + 1] == "scaled"]
    assert len(tenfold) > 20
    assert all(abs(float(after[row]["price"]) - float(before[row]["price"]) / 10) < 0.006 for row in tenfold)


def test_a_small_table_is_audited_with_a_warning(gradsieve, homes, tmp_path):
    small = tmp_path / "small.csv"
    small.write_text("".join(homes.read_text().splitlines(keepends=True)[:21]))
    done = gradsieve("audit", small, "--target", "price", "--ignore", "kind", "--out", tmp_path / "a", "--epochs", 5)
    assert "19 rows are few to tell right from wrong by" in " ".join(done.out.split())
    assert "19 rows are few" in json.loads((tmp_path / "a" / "audit.json").read_text())["warnings"][0]


@pytest.mark.parametrize("spelling", [(False, True), ("False", "True"), ("false", "true"), ("0", "1")])
def test_repaired_flags_are_written_as_their_column_is(tmp_path, spelling):
    """One is to be false, one true; the last is expected beyond true, which is as true as it was."""
    x, flags = np.arange(12) / 2, np.arange(12) % 2
    columns = {"x": x.tolist(), "y": (3 * x).tolist(), "flag": [spelling[flag] for flag in flags]}
    if isinstance(spelling[0], bool):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        source, copy = tmp_path / "a.parquet", tmp_path / "b.parquet"
        pq.write_table(pa.table(columns), source)
    else:
        source, copy = write(tmp_path / "a.csv", columns, zip(*columns.values(), strict=True)), tmp_path / "b.csv"
    audit = audit_file(source, ["y", "flag"], epochs=1)
    suggested, flagged = audit.given.copy(), np.isin(np.arange(12), [1, 2, 3])
    suggested[flagged, 1] = 0.2, 0.9, 1.8
    off, kind = flagged[:, None] & [False, True], np.full(12, "random", dtype=object)
    audit = replace(audit, flagged=flagged, suggested=suggested, off=off, kind=kind)
    is_number = spelling[0] == "0"
    assert clean_file(audit, source, copy, ["y", "flag"], repair=True) == (3 if is_number else 2)
    cells = read(copy) if copy.suffix == ".csv" else pq.read_table(copy).to_pylist()
    beyond = "2" if is_number else spelling[1]
    expected = [spelling[0], spelling[0], spelling[1], beyond, *columns["flag"][4:]]
    assert [row["flag"] for row in cells] == expected


def test_rows_may_have_names_of_their_own(gradsieve, tmp_path):
    """Codes that would tell the target by their order are no input, and stand beside the rows as they are written."""
    source, *_ = gapped(tmp_path / "homes.csv", np.random.default_rng(0), rows=120)
    rows = [[f"{number:05}", *row.values()] for number, row in enumerate(read(source))]
    rows[3][3] = ""  # no target: not judged
    named = write(tmp_path / "named.csv", ["code", "size", "door", "price"], rows)
    arguments = ["--target", "price", "--epochs", 3]
    done = gradsieve("audit", named, *arguments, "--id", "code", "--out", tmp_path / "a")
    assert done.code == 0, done.err
    found = read(tmp_path / "a" / "audit.csv")
    assert [row["id"] for row in found] == [f"{int(row['row']) - 1:05}" for row in found]
    assert len(found) == 119
    done = gradsieve("audit", named, *arguments, "--ignore", "code", "--out", tmp_path / "b")
    assert [row["suspicion"] for row in read(tmp_path / "b" / "audit.csv")] == [row["suspicion"] for row in found]
    assert (
        "There is no column 'cod'" in gradsieve("audit", named, *arguments, "--id", "cod", "--out", tmp_path / "c").err
    )
    done = gradsieve("report", tmp_path / "a", "--out", tmp_path / "report.html")
    assert done.code == 0, done.err
    assert max(found, key=lambda row: float(row["suspicion"]))["id"] in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("kind", ["decimal", "int8"])
def test_repaired_targets_fit_the_type_of_their_column(gradsieve, tmp_path, kind):
    """Two decimals, and no number beyond 127: a sign that is turned back would be 128."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    inputs = np.random.default_rng(0).normal(size=300)
    wrong = np.arange(300) % 10 == 0
    amounts = 1000 + 100 * inputs if kind == "decimal" else np.clip(np.round(100 * inputs), -128, 127)
    given = np.where(wrong, 5000 - amounts if kind == "decimal" else -np.clip(amounts, -127, 128), amounts)
    given = np.where(wrong & (amounts == 127), -128, given)
    column = pa.array([Decimal(f"{value:.2f}") for value in given], pa.decimal128(12, 2))
    column = column if kind == "decimal" else pa.array(given.astype(np.int8))
    pq.write_table(pa.table({"a": inputs, "y": column}), tmp_path / "rows.parquet")
    named = ("--target", "y", "--out", tmp_path / "a", "--repair", tmp_path / "good.parquet")
    done = gradsieve("audit", tmp_path / "rows.parquet", *named)
    assert done.code == 0, done.err
    before, good = (pq.read_table(tmp_path / name)["y"] for name in ("rows.parquet", "good.parquet"))
    assert before.type == good.type
    changed = np.array([old != new for old, new in zip(before.to_pylist(), good.to_pylist(), strict=True)])
    assert changed[wrong].sum() > 20
    assert changed[~wrong].sum() < 5
    if kind == "decimal":  # read as they are written
        given = {int(row["row"]): float(row["given"]) for row in read(tmp_path / "a" / "audit.csv")}
        assert [given[row + 1] for row in range(300)] == [float(value) for value in before.to_pylist()]
