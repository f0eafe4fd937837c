"""The report as a file: what it says, that it loads nothing, and that no name in it is markup."""

import base64
import hashlib
import io
import re
import shutil
import struct
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from gradsieve.audit.file import audit_file
from gradsieve.audit.run import audit_run
from gradsieve.audit.writing import write_audit
from gradsieve.data.landmarks import draw_faces
from gradsieve.data.scaling import standardise
from gradsieve.errors import CheckpointError, InputError
from gradsieve.report.findings import audit_findings, folder_findings
from gradsieve.report.html import page
from gradsieve.report.html_parts import facts
from gradsieve.report.html_rows import POINTS, merged_outputs
from gradsieve.report.pictures import save_pictures
from gradsieve.report.source_rows import LINE, read_source
from gradsieve.report.subjects import find_folders, read_subjects
from gradsieve.report.thumbnails import COLOURS, png, pointed, thumbnail
from gradsieve.seeds import generator
from gradsieve.training.folder import read_folder
from gradsieve.training.result import read_result

VOID = {"meta", "img", "input", "br"}
# What a report is made of: none of it loads or runs anything, but for the attributes that are looked at below.
KNOWN = """html head meta title style script body header main section details summary div span p a h1 h2 h3
strong code dl dt dd figure figcaption svg g path rect text img table caption thead tbody tr th td
button label input output"""


class Page(HTMLParser):
    """The elements of a page, each with its attributes; fails where tags do not match."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.words = [], [], []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, *tags):
        return [attributes for tag, attributes in self.elements if tag in tags]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def assert_is_harmless(source):
    """Elements that we know, attributes that run and load nothing."""
    read = Page(source)
    assert {tag for tag, _ in read.elements} <= {*KNOWN.split()}
    for tag, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcset", "action")]
        if tag == "img":
            assert attributes["src"].startswith("data:image/png;base64,")
        if tag == "a":
            assert re.fullmatch(r"#run-\d+", attributes["href"])
        if tag in ("script", "style"):
            assert not attributes
    return read


def test_the_page_is_whole_and_harmless(made):
    read = assert_is_harmless(page(made.subjects))
    assert len(read.all("h1")) == 1
    assert read.all("html") == [{"lang": "en"}]
    assert len(read.all("script")) == len(read.all("style")) == 1


def test_only_our_own_script_and_style_are_allowed(made):
    source = page(made.subjects)
    (policy,) = (each["content"] for each in Page(source).all("meta") if each.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    for name in ("style", "script"):
        (content,) = re.findall(rf"<{name}>(.*?)</{name}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_the_same_folders_give_the_same_bytes(made):
    again = read_subjects([made.folder / "runs"])
    assert page(again) == page(made.subjects)


def test_it_tells_what_was_trained_with_what_and_what_came_out(made):
    run = made.folder / "runs" / "digits-prl-l"
    summary = read_folder(run).result()
    read = Page(page(read_subjects([run])))
    for words in (
        f"accuracy {summary['last']:.4f}",
        "digits symmetric 0.3 prl-l",
        "1437 rows",
        summary["versions"]["torch"],
        summary["versions"]["device"],
        "gradsieve train --data digits --corruption symmetric --rate 0.3 --method prl-l",
        "drops a share of 0.35",
        "symmetric, a share of 0.3",
        "Scores of kept and dropped rows",
        "Drop rate and purity of the kept rows",
        "bound of Theorem 2",
        "within the bound of Lemma 1 in 4 of the 4 epochs",
    ):
        assert words in read.text, words


def test_of_dropped_and_wrong_rows_it_counts_what_a_loop_counts(made):
    run = made.folder / "runs" / "digits-prl-l"
    ledger, source = read_result(read_folder(run)).ledger, read_source(read_folder(run).run.to_json()).targets
    dropped = {row for row in range(len(source)) if 2 * int(ledger.dropped[row]) > int(ledger.judged[row])}
    wrong = {row for row in range(len(source)) if source.is_wrong[row]}
    both = len(dropped & wrong)
    says = (
        f"Of {len(dropped)} rows that were dropped more often than kept, {both} are wrong; of {len(wrong)} wrong rows, "
        f"{len(wrong) - both} were mostly kept."
    )
    assert says in Page(page(read_subjects([run]))).text


def test_a_rate_that_rows_chose_is_told_with_its_vote(made):
    (subject,) = read_subjects([made.folder / "runs" / "digits-prl-l"])
    vote = {"rates": [0.0, 0.1], "margins": [-0.2, 0.0], "errors": [0.05, 0.0]}
    pick = {"rate": 0.1, "estimate": 0.12, "interval": [0.08, 0.15], "warning": "a close <b>race</b>", **vote}
    chosen = replace(
        subject, settings={**subject.settings, "drop_rate": "auto"}, summary={**subject.summary, "pick": pick}
    )
    read = assert_is_harmless(page([chosen, subject]))
    assert "a share of 0.1 of every batch, chosen by held-out rows" in read.text
    assert "About 0.12 of the targets seem wrong (0.08 to 0.15 if the voting rows are resampled)." in read.text
    assert "a close <b>race</b>" in read.text
    assert "The vote on the drop rate" in read.text
    waiting = replace(chosen, summary={})
    assert "have not done so yet" in Page(page([waiting])).text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[]"),
        ("metrics.jsonl", "3\n"),
        ("metrics.jsonl", "{"),
        ("result.json", "{}"),
        ("config.json", "x"),
    ],
)
def test_damaged_files_are_one_error(made, tmp_path, name, content):
    for path in (made.folder / "runs" / "faces").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
        read_subjects([tmp_path])


@pytest.mark.parametrize(
    "summary", ["[]", '{"classes": [1]}', '{"classes": [{"name": "a"}]}', '{"kinds": [1]}', '{"target": 1}', "{"]
)
def test_a_damaged_audit_is_one_error(hostile_audit, tmp_path, summary):
    write_audit(hostile_audit, tmp_path)
    (tmp_path / "audit.json").write_text(summary)
    with pytest.raises(CheckpointError, match=r"is damaged"):
        read_subjects([tmp_path])


@pytest.mark.parametrize("value", ["<b>", None, [1], {"a": 1}, 1e400, True])
def test_settings_of_any_kind_are_shown_as_text(made, value):
    (subject,) = read_subjects([made.folder / "runs" / "faces"])
    for name in ("rate", "drop_rate", "seed", "epochs", "schedule", "method", "data_dir", "data_options"):
        assert_is_harmless(page([replace(subject, settings={**subject.settings, name: value})] * 2))
    for name in ("last", "purity", "seconds", "metric"):
        assert_is_harmless(page([replace(subject, summary={**subject.summary, name: value})] * 2))


def test_the_most_suspect_rows_come_with_pictures_or_values(made):
    pages = {each.name: Page(page([each])) for each in made.subjects}
    assert len(pages["digits-prl-l"].all("img")) == len(pages["faces"].all("img")) == 50
    assert "in truth" in pages["digits-prl-l"].text
    assert not pages["table"].all("img")
    assert all(f"{name} " in pages["table"].text for name in ("line", "wet", "dry", "cold"))
    assert "Nobody knows which rows are wrong" in pages["table"].text
    assert "Most suspect rows" not in pages["digits-standard"].text  # plain training scores no row,
    assert "The method standard drops no share of the rows." in pages["digits-standard"].text  # whatever its rate


def test_landmarks_are_drawn_on_their_pictures(made):
    """Given points always; suggested ones where there is an audit. The points of an untouched face are its own."""
    found = next(each for each in made.subjects if each.name == "faces")
    assert found.shown.has_points
    assert POINTS in Page(page([found])).text
    assert POINTS not in Page(page(made.subjects[:1])).text
    source = read_source(found.settings)
    _, drawn = draw_faces(60, 32, generator(0, "landmarks", "train"))
    mean, std = source.pixels
    right = np.flatnonzero(~source.targets.is_wrong)
    points = torch.from_numpy(source.targets.given) * std + mean
    assert torch.allclose(points[right].float(), drawn.flatten(1)[right], atol=1e-3)
    plain, both = (source.show([0], each).pictures[0] for each in (None, {0: [0.0] * 10}))
    assert plain != both
    (audited,) = read_subjects([made.folder / "runs" / "faces"], audit=True)
    assert audited.shown.pictures != found.shown.pictures


def test_points_stand_where_they_are_and_at_the_edge_if_outside():
    image = np.zeros((1, 8, 8), dtype=np.uint8)
    pixels = pointed(image, {"orange": np.array([[2, 5]]), "blue": np.array([[1e9, -1e9], [np.nan, 0]])})
    factor = pixels.shape[1] // 8
    middle = (np.array([5, 2]) * factor + factor // 2).tolist()
    assert tuple(pixels[:, middle[0], middle[1]]) == COLOURS["orange"]
    assert tuple(pixels[:, 0, -1]) == COLOURS["blue"]
    assert (pixels[:, factor * 5 : factor * 6, factor * 6 :] == 0).all()


def test_side_by_side_shows_every_run_and_the_curves_of_those_that_share_data(made):
    read = Page(page(made.subjects))
    assert [each["href"] for each in read.all("a")] == [f"#run-{number}" for number in range(1, 6)]
    assert [each.name for each in made.subjects] == ["digits-prl-l", "digits-standard", "faces", "pets", "table"]
    assert "digits: accuracy on the test rows" in read.text
    assert "faces: r2" not in read.text  # alone with its data


def test_tables_have_headers_and_fields_have_labels(made):
    read = Page(page(made.subjects))
    assert len(read.all("caption")) == len(read.all("table")) > 5
    assert all(each["scope"] in ("col", "row") for each in read.all("th"))
    assert {each["id"] for each in read.all("input")} == {each["for"] for each in read.all("label")}
    assert all(each["alt"] for each in read.all("img"))
    identities = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(identities) == len(set(identities))


def test_an_audit_shows_classes_rate_and_rows(made):
    read = Page(page([each for each in made.subjects if each.name == "pets"]))
    assert "10 of 30 rows of pets.csv are flagged as suspect, by prl-l." in read.text
    assert "flags a share of 33.3%: a guess of the test." in read.text
    assert "more likely" in read.text
    assert "confidence" in read.text


def test_a_subject_opens_with_its_figures(made):
    by_name = {each.name: each for each in made.subjects}
    assert facts(by_name["pets"]) == [("10", "of 30 rows flagged, 33.3%")]
    run = by_name["digits-prl-l"]
    dropped, accuracy, purity = facts(run)
    assert dropped[1].startswith(f"of {run.rows} rows mostly dropped, ")
    assert accuracy == (f"{run.summary['last']:.4f}", "accuracy on the test rows")
    assert purity == (f"{run.summary['purity']:.1%}", "of the rows trained on were right")


def test_seeds_are_listed_where_they_differ(made):
    run = next(each for each in made.subjects if each.name == "digits-prl-l")
    other = replace(run, settings={**run.settings, "seed": 7})
    assert '<button type="button">seed</button>' not in page([run, run])
    assert '<button type="button">seed</button>' in page([run, other])


def test_a_run_is_audited_on_request_or_has_its_audit_beside_it(made, tmp_path):
    run = shutil.copytree(made.folder / "runs" / "digits-prl-l", tmp_path / "run")
    (now,) = read_subjects([run], audit=True)
    write_audit(audit_run(run), run / "audit")
    (kept,) = read_subjects([tmp_path])
    assert (now.name, kept.name) == ("run", "run")
    assert_same_columns(kept.findings, now.findings)
    assert kept.shown == now.shown
    read = Page(page([now]))
    assert "confidence" in read.text
    assert len(read.all("img")) == 50
    assert "rows of run are flagged as suspect" in read.text


def test_an_audit_folder_says_what_its_audit_says(hostile_audit, tmp_path):
    """Through the CSV, with its apostrophes before formulas, or from the object: the same rows."""
    write_audit(hostile_audit, tmp_path)
    found, expected = folder_findings(tmp_path, 20), audit_findings(hostile_audit, 20)
    assert_same_columns(found, expected)
    assert found.flagged.tolist() == expected.flagged.tolist()
    assert found.values == pytest.approx(expected.values, abs=1e-4)
    assert found.summary == expected.summary


def assert_same_columns(found, expected):
    """But for the digits that a CSV leaves out."""
    assert list(found.columns) == list(expected.columns)
    for name, values in expected.columns.items():
        is_number = isinstance(values[0], float)
        assert found.columns[name] == (pytest.approx(values, rel=1e-3, abs=1e-4) if is_number else values), name


def test_no_name_is_markup(hostile):
    read = assert_is_harmless(page(hostile.subjects))
    assert len(read.all("script")) == 1
    shown = read.text
    for name in names_of(hostile):
        assert " ".join(name.split()) in shown, name


def names_of(hostile):
    """All thirty as classes, and as columns of the tables."""
    runs = [each for each in hostile.subjects if each.targets]
    columns = {name for each in runs for row in each.shown.cells.values() for name in row if name != LINE}
    assert len(columns) == 30
    assert all({*each.targets.names} == columns for each in runs)
    return columns


def test_a_result_shows_itself_in_a_notebook(made):
    result = read_result(read_folder(made.folder / "runs" / "digits-prl-l"))
    read = assert_is_harmless(result._repr_html_())
    assert not read.all("script", "img", "html", "button")
    assert "Certificate" in read.text
    assert "purity of the kept rows" in read.text


def test_an_audit_shows_itself_in_a_notebook(hostile_audit, targets_audit):
    read = assert_is_harmless(hostile_audit._repr_html_())
    assert not read.all("script", "button")
    assert "20 of 60 rows" in read.text
    read = assert_is_harmless(targets_audit._repr_html_())
    assert "sign flipped" in read.text
    given, suggested = targets_audit.given[0], targets_audit.suggested[0]
    assert f"{targets_audit.names[2]} {given[2]:.3g} → {suggested[2]:.3g}" in read.text
    assert f"{targets_audit.names[1]} {given[1]:.3g}" not in read.text  # it is not off


def test_data_that_is_gone_leaves_a_report_without_rows(made, tmp_path):
    weather = made.folder / "weather.csv"
    moved = weather.rename(tmp_path / "weather.csv")
    notes = []
    try:
        (subject,) = read_subjects([made.folder / "runs" / "table"], note=notes.append)
    finally:
        moved.rename(weather)
    read = Page(page([subject]))
    assert "The data was not read again where this report was made" in read.text
    assert "Most suspect rows" in read.text
    assert len(notes) == 1
    assert notes[0].startswith("table: the rows themselves are not shown: ")


def test_data_that_has_changed_is_not_shown_as_the_rows_of_a_run(made):
    weather = made.folder / "weather.csv"
    before, notes = weather.read_text(), []
    header, *rows = before.splitlines(keepends=True)
    try:
        weather.write_text("".join([header, *sorted(rows)]))
        (subject,) = read_subjects([made.folder / "runs" / "table"], note=notes.append)
    finally:
        weather.write_text(before)
    assert subject.targets is None
    assert not subject.shown.cells
    assert "the data has changed since" in notes[0]


def test_the_place_of_the_data_stays_private(made):
    assert str(made.folder) not in page(made.subjects)


def test_a_run_that_is_not_finished_is_shown_as_far_as_it_goes(made, tmp_path):
    run = made.folder / "runs" / "faces"
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    read = Page(page(read_subjects([tmp_path])))
    assert "The run is not finished yet." in read.text
    assert "R2 on the test rows" in read.text


def test_folders_are_found_and_others_refused(made, tmp_path):
    assert [name for name, _ in find_folders(made.folder)] == [each.name for each in made.subjects]
    assert [name for name, _ in find_folders(made.folder / "runs" / "faces")] == ["faces"]
    for other in ("a/one", "a/two", "b/one"):
        (tmp_path / "deep" / other).mkdir(parents=True)
        (tmp_path / "deep" / other / "config.json").write_text('{"data": "digits", "method": "prl-l"}')
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "config.json").write_text('{"method": "prl-l", "epochs": 3}')  # no run, and left out
    assert [name for name, _ in find_folders(tmp_path)] == ["a/one", "a/two", "b/one"]
    together = read_subjects([tmp_path / "deep" / "a" / "one", tmp_path / "deep" / "b" / "one"])
    assert [each.name for each in together] == [str(tmp_path / "deep" / which / "one") for which in "ab"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no run and no audit"):
        find_folders(tmp_path / "empty")
    with pytest.raises(InputError, match=r"holds no run and no audit"):
        find_folders(tmp_path / "sweep")
    with pytest.raises(InputError, match=r"There is no folder"):
        find_folders(tmp_path / "absent")
    (tmp_path / "empty" / "audit.json").write_text("{}")
    (tmp_path / "empty" / "audit.csv").write_text("row,suspicion\n1,x\n")
    with pytest.raises(CheckpointError, match=r"audit.csv is damaged or not of an audit"):
        read_subjects([tmp_path / "empty"])


def test_code_that_a_folder_names_is_never_imported(made, tmp_path, monkeypatch):
    run = made.folder / "runs" / "digits-prl-l"
    for path in run.iterdir():
        content = path.read_bytes()
        if path.name == "config.json":
            content = content.replace(b'"prl-l"', b'"trap:Trap"').replace(b'"digits"', b'"trap:Data"')
        (tmp_path / path.name).write_bytes(content)
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "trap:Trap" in page(read_subjects([tmp_path], audit=True))


def test_the_command_writes_replaces_its_own_and_refuses_others(made, tmp_path, gradsieve):
    out, figures = tmp_path / "report.html", tmp_path / "figures"
    for _ in range(2):
        answer = gradsieve("report", made.folder / "runs" / "faces", "--out", out, "--rows", 5, "--figures", figures)
        assert answer.code == 0, answer.err
        assert f"report: {out}" in answer.out
    assert len(Page(out.read_text()).all("img")) == 5
    pictures = sorted(path.name for path in figures.iterdir())
    assert [name.split(".")[1] for name in pictures] == ["pdf", "png"] * 3
    assert pictures[1] == "01-faces-r2-on-the-test-rows.png"
    out.write_text("somebody's own page")
    answer = gradsieve("report", made.folder / "runs", "--out", out)
    assert (answer.code, out.read_text()) == (2, "somebody's own page")
    assert "is no report of gradsieve" in answer.err
    assert gradsieve("report", made.folder, "--out", tmp_path).code == 2
    assert gradsieve("report", made.folder, "--out", tmp_path / "no" / "report.html").code == 2


def test_pictures_of_hostile_names_are_drawn(hostile, tmp_path):
    several = [each for each in hostile.subjects if each.history][:2]
    written = save_pictures(several, tmp_path)
    assert len({path.name for path in written}) == len(written) > 4
    assert all(path.parent == tmp_path and path.stat().st_size > 1000 for path in written)
    first = written[0].read_bytes()
    assert save_pictures(several, tmp_path)[0].read_bytes() == first


def test_the_cells_of_a_table_are_those_of_the_rows_that_were_trained_on(made):
    """The split is the loader's own: scaled, the cells are the inputs."""
    options = {"target": "class", "task": "classification"}
    place = str(made.folder / "weather.csv")
    source = read_source({"data": "table", "data_dir": place, "data_options": options, "corruption": "none"})
    rows = source.show(range(len(source.targets))).cells
    cells = torch.tensor([[float(rows[row][name]) for name in ("wet", "dry", "cold")] for row in rows])
    assert torch.allclose(standardise(cells.double(), cells.double())[0], source.rows.inputs, atol=1e-5)
    lines = (made.folder / "weather.csv").read_text().splitlines()
    assert lines[int(rows[7][LINE]) - 1].startswith(",".join(rows[7][name] for name in ("wet", "dry", "cold")))


def test_an_audit_of_a_file_shows_the_cells_of_the_file_that_is_given(tmp_path, pets):
    write_audit(pets, tmp_path / "audit")
    table = tmp_path / "pets.csv"
    table.write_text("age,coat,class\n" + "".join(f"{row},<b>{row}</b>,cat\n" for row in range(1, 31)))
    (subject,) = read_subjects([tmp_path / "audit"], sources=[tmp_path, table])
    row = int(pets.row[pets.rank == 1][0])
    assert subject.shown.cells[row] == {LINE: str(row + 1), "age": str(row), "coat": f"<b>{row}</b>", "class": "cat"}
    assert f"<b>{row}</b>" in assert_is_harmless(page([subject])).text
    table.write_text("age,coat,class\n1,2,cat\n")
    with pytest.raises(InputError, match=r"has 1 rows, but the audit has others"):
        read_subjects([tmp_path / "audit"], sources=[table])
    with pytest.raises(InputError, match=r"There is no "):
        read_subjects([tmp_path / "audit"], sources=[tmp_path / "absent.csv"])


def test_a_source_is_found_by_the_name_of_its_link_or_where_one_stands(tmp_path, monkeypatch):
    size = np.random.default_rng(0).uniform(20, 90, 60)
    (tmp_path / "data").mkdir()
    table = tmp_path / "data" / "homes-7.csv"
    table.write_text("size,price\n" + "".join(f"{each:.2f},{3 * each:.3f}\n" for each in size))
    link, notes = tmp_path / "homes.csv", []
    link.symlink_to(table)
    write_audit(audit_file(link, ["price"], epochs=2), tmp_path / "audit")
    (subject,) = read_subjects([tmp_path / "audit"], sources=[link], note=notes.append)
    assert len(subject.shown.cells) == 50
    assert not notes
    (subject,) = read_subjects([tmp_path / "audit"], sources=[table], note=notes.append)
    assert not subject.shown.cells
    (told,) = notes
    assert told == f"{table} is not shown: no audit here is of a file or a folder of that name; they are of homes.csv"


def test_an_audit_of_a_folder_of_shards_shows_their_cells(tmp_path, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "homes").mkdir()
    for number in range(2):
        size = np.random.default_rng(number).uniform(20, 90, 30)
        pq.write_table(pa.table({"size": size, "price": 3 * size}), tmp_path / "homes" / f"{number}.parquet")
    monkeypatch.chdir(tmp_path / "homes")
    write_audit(audit_file(".", ["price"], epochs=2), tmp_path / "audit")
    for source in (Path(), tmp_path / "homes"):
        (subject,) = read_subjects([tmp_path / "audit"], sources=[source])
        assert len(subject.shown.cells) == 50


def test_outputs_that_are_off_are_shown_whatever_they_are_called():
    names = ["a", "b", "c", "d", "price;EUR", "rent"]
    found = {"off": ["price;EUR", "b;rent", ""], **{f"given {name}": [1.0, 2.0, 3.0] for name in names}}
    off, both, none = merged_outputs(found, names)["given"]
    assert off == "price;EUR 1"
    assert both == "b 2; rent 2"
    assert none.startswith("a 3; b 3")


def test_a_column_with_the_name_of_a_class_is_shown(tmp_path, pets):
    write_audit(pets, tmp_path / "audit")
    table = tmp_path / "pets.csv"
    table.write_text("cat,dog,class\n" + "3,4,cat\n" * 30)
    (subject,) = read_subjects([tmp_path / "audit"], sources=[table])
    assert {name for cells in subject.shown.cells.values() for name in cells} == {LINE, "cat", "dog", "class"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_cells_of_a_file_are_shown_as_they_are_written(tmp_path, pets, suffix):
    """Order numbers keep their digits, codes their zeros, and dates and flags are no numbers to whoever reads."""
    written = {"order": "40123456789280", "code": "00700", "when": "2024-02-10", "paid": "true", "price": "12.50"}
    source = tmp_path / f"pets{suffix}"
    if suffix == ".csv":
        source.write_text("\n".join([",".join(written), *[",".join(written.values())] * 30]))
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        kinds = {"order": pa.int64(), "when": pa.date32(), "paid": pa.bool_(), "price": pa.decimal128(6, 2)}
        columns = {name: pa.array([cell] * 30).cast(kinds.get(name, pa.string())) for name, cell in written.items()}
        pq.write_table(pa.table(columns), source, row_group_size=7)
    write_audit(replace(pets, run=source.name), tmp_path / "audit")
    (subject,) = read_subjects([tmp_path / "audit"], sources=[source])
    assert len(subject.shown.cells) == 30
    shown = [{name: cell for name, cell in cells.items() if name != LINE} for cells in subject.shown.cells.values()]
    assert shown == [written] * 30


@pytest.mark.parametrize("targets", [("price",), ("=price", "rent"), ("town",)])
def test_cells_of_a_file_that_has_changed_are_not_shown(tmp_path, targets):
    source, random = tmp_path / "homes.csv", np.random.default_rng(0)
    header = ["size", "price", "=price", "rent", "town"]
    lines = [
        f"{size:.2f},{3 * size:.3f},{2 * size:.3f},{size / 7:.3f},{'=Rome' if size > 50 else 'Oslo'}\n"
        for size in random.uniform(20, 90, 60)
    ]
    source.write_text(",".join(header) + "\n" + "".join(lines))
    audit = audit_file(source, targets, ignore=[name for name in header[1:] if name not in targets], epochs=2)
    write_audit(audit, tmp_path / "audit")
    (subject,) = read_subjects([tmp_path / "audit"], sources=[source])
    assert len(subject.shown.cells) == 50
    source.write_text(",".join(header) + "\n" + "".join(sorted(lines)))
    with pytest.raises(InputError, match=rf"line \d+: the target {targets[0]} is not what was audited: the file has"):
        read_subjects([tmp_path / "audit"], sources=[source])


def test_an_audit_of_images_shows_those_of_the_folder_that_is_given_and_no_others(tmp_path, pets):
    folder = tmp_path / "pets.csv"  # the audit's own name for what it audited
    (folder / "cat").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    (tmp_path / "dogs").mkdir()
    for place in (folder / "cat" / "1.png", tmp_path / "secret.png", tmp_path / "dogs" / "2.png"):
        place.write_bytes(png(pixels))
    (folder / "cat" / "broken.png").write_text("no image")
    (folder / "dog").symlink_to(tmp_path / "dogs")  # whose images are the user's own
    names = ["cat/1.png", "../secret.png", str(tmp_path / "secret.png"), "cat/broken.png", "cat/gone.png"]
    names = np.array([*names, "dog/2.png"] * 5)
    write_audit(replace(pets, files=names.astype(object)), tmp_path / "audit")
    (subject,) = read_subjects([tmp_path / "audit"], sources=[folder])
    shown = {int(row) for row, name in zip(pets.row, names, strict=True) if name in ("cat/1.png", "dog/2.png")}
    assert subject.shown.pictures.keys() == shown
    assert len(assert_is_harmless(page([subject])).all("img")) == 10
    content = subject.shown.pictures[min(shown)].partition("base64,")[2]
    assert (decode(base64.b64decode(content)) == pixels).all()


def test_a_png_holds_the_pixels():
    image = np.random.default_rng(0).integers(0, 256, (3, 20, 30), dtype=np.uint8)
    read = decode(png(thumbnail(image)))
    assert (read == image.transpose(1, 2, 0)).all()
    assert thumbnail(np.zeros((1, 200, 100), np.uint8)).shape == (50, 25, 1)
    assert thumbnail(np.full((1, 4, 4), 0.5, np.float32))[0, 0, 0] == 128
    assert thumbnail(np.linspace(-3, 3, 16, dtype=np.float32).reshape(1, 4, 4)).ravel()[[0, -1]].tolist() == [0, 255]


def decode(content):
    """A PNG by another reader where there is one, else by hand."""
    try:
        from PIL import Image
    except ImportError:
        width, height = struct.unpack(">II", content[16:24])
        start = content.index(b"IDAT") + 4
        lines = zlib.decompress(content[start : content.index(b"IEND") - 8])
        return np.frombuffer(lines, np.uint8).reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)
    return np.asarray(Image.open(io.BytesIO(content)))
