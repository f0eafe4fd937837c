"""The report: one self-contained HTML file. It loads nothing, and its policy lets only its own script run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from gradsieve.arguments import argument, elsewhere
from gradsieve.audit.result import Audit
from gradsieve.errors import InputError
from gradsieve.report.findings import audit_findings
from gradsieve.report.html_parts import (
    certificate_part,
    class_part,
    figures_part,
    kinds_part,
    opening,
    rate_part,
    settings_part,
    subject_figures_part,
)
from gradsieve.report.html_rows import rows_part
from gradsieve.report.html_tables import number_column, table, text_column
from gradsieve.report.markup import Html, join, tag
from gradsieve.report.story import certificate_figure, compared_figures
from gradsieve.report.subjects import Subject, result_subject
from gradsieve.training.files import write_whole
from gradsieve.training.result import Result

GENERATOR = "gradsieve report"
FRAGMENT_ROWS = 20  # suspect rows that a notebook shows


def write_report(subjects: Sequence[Subject], out: Path) -> None:
    """Write the report. An older report is replaced, but no other file."""
    check_out(out)
    write_whole(out, page(subjects).encode())


def check_out(out: Path) -> None:
    """Refuse a file name where no report can be written, or where another file is."""
    if out.is_dir():
        raise InputError(
            f"{out} is a folder, but the report is a file. Choose another file as "
            f"{argument('out')}, such as {out / 'report.html'}."
        )
    if not out.parent.is_dir():
        raise InputError(f"{out.parent} is not a folder. {elsewhere('Make it first', what='file')}")
    if out.exists() and f'content="{GENERATOR}"' not in out.read_text(encoding="utf-8", errors="replace")[:2000]:
        raise InputError(f"{out} is there already and is no report of gradsieve. {elsewhere(what='file')}")


def page(subjects: Sequence[Subject]) -> str:
    """The whole file. The same subjects give the same bytes."""
    style, script = asset("page.css"), asset("page.js")
    ours = f"style-src {allowed(style)}; script-src {allowed(script)}; img-src data:"
    policy = f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"
    title = "Gradsieve report" if len(subjects) != 1 else f"Gradsieve report: {subjects[0].name}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="generator", content=GENERATOR),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", style),
    )
    body = tag("body", banner(subjects), tag("main", content(subjects)), tag("script", script), class_="gradsieve")
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def asset(name: str) -> Html:
    """A file of this package that belongs to the page."""
    return Html((files("gradsieve.report") / name).read_text(encoding="utf-8"))


def allowed(source: str) -> str:
    """The Content-Security-Policy source that allows exactly this text, by its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def banner(subjects: Sequence[Subject]) -> Html:
    runs, audits = sum(bool(each.settings) for each in subjects), sum(not each.settings for each in subjects)
    parts = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in ((runs, "run"), (audits, "audit")) if count]
    words = f"{' and '.join(parts)}. Made by gradsieve; this file loads nothing from anywhere."
    return tag("header", tag("h1", "Gradsieve report"), tag("p", words, class_="soft"))


def content(subjects: Sequence[Subject]) -> Html:
    """The body of the page: one subject in full, or a comparison of several and then each, collapsible."""
    if len(subjects) == 1:
        return join([tag("h2", subjects[0].name), subject_body(subjects[0], "rows-1")])
    telling = next((number for number, each in enumerate(subjects, 1) if each.findings is not None), 1)
    runs = (
        tag(
            "details",
            tag("summary", tag("h2", subject.name)),
            subject_body(subject, f"rows-{number}"),
            class_="run",
            id=f"run-{number}",
            open=number == telling,
        )
        for number, subject in enumerate(subjects, 1)
    )
    return join([side_by_side(subjects), *runs])


def side_by_side(subjects: Sequence[Subject]) -> Html:
    """A table with one line per subject, and the test curves of those that share their data."""
    links = [tag("a", each.name, href=f"#run-{number}") for number, each in enumerate(subjects, 1)]
    summaries, settings = [each.summary for each in subjects], [each.settings for each in subjects]

    seeds = [each.get("seed") for each in settings]

    def setting(name: str) -> list[str]:
        return [str(each.get(name, "")) for each in settings]

    columns = [
        text_column("name", links),
        text_column("data", setting("data")),
        text_column("corruption", setting("corruption")),
        number_column("rate", [each.get("rate") for each in settings], "g"),
        text_column("method", setting("method")),
        number_column("drop rate", [each.drop_rate for each in subjects], "g"),
        text_column("metric", [each.metric for each in subjects]),
        number_column("last", [each.get("last") for each in summaries], ".4f"),
        number_column("last ten", [each.get("last10_mean") for each in summaries], ".4f"),
        number_column(
            "purity", [each.summary.get("purity") if each.is_truth_known else None for each in subjects], ".3f"
        ),
        number_column("rows", [each.rows for each in subjects], ".0f"),
        number_column("flagged", [each.found.get("flagged") for each in subjects], ".0f"),
        number_column("seed", seeds if len(set(map(str, seeds))) > 1 else [], ".0f"),
        number_column("seconds", [each.get("seconds") for each in summaries], ".1f"),
    ]
    kept = [column for column in columns if any(cell != "" for cell in column.cells)]
    whole = table(
        "Side by side: metric on the test rows after the last epoch, and its mean over the last ten",
        kept,
        name="runs",
        heads_rows=True,
    )
    return tag("section", tag("h2", "Side by side"), whole, figures_part(compared_figures(subjects)))


def subject_body(subject: Subject, rows_name: str | None) -> Html:
    """All sections about a run or an audit."""
    return join(
        [
            opening(subject),
            subject_figures_part(subject),
            rate_part(subject),
            class_part(subject),
            kinds_part(subject),
            rows_part(subject, rows_name),
            certificate_part(subject),
            settings_part(subject),
        ]
    )


def result_fragment(result: Result) -> str:
    """A result as a notebook shows it, without a script, and without its rows."""
    subject = result_subject(result)
    certificate = certificate_part(subject) if certificate_figure(subject) is not None else None
    return fragment([opening(subject), subject_figures_part(subject), certificate, settings_part(subject)])


def audit_fragment(audit: Audit) -> str:
    """An audit as a notebook shows it."""
    subject = Subject(audit.run, {}, {}, (), findings=audit_findings(audit, FRAGMENT_ROWS))
    parts = [opening(subject), rate_part(subject), subject_figures_part(subject)]
    return fragment([*parts, class_part(subject), kinds_part(subject), rows_part(subject, None)])


def fragment(parts: Sequence[Html | None]) -> str:
    return tag("div", tag("style", asset("page.css")), *parts, class_="gradsieve")
