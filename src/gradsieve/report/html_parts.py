"""The sections of a report about one subject, each as markup, or None if there is nothing to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from gradsieve.errors import GradsieveError
from gradsieve.report.figures import Figure, finite
from gradsieve.report.findings import Findings, is_dropped
from gradsieve.report.html_tables import (
    Column,
    definitions,
    number_column,
    section,
    shown,
    table,
    text_column,
)
from gradsieve.report.markup import Html, join, tag
from gradsieve.report.story import certificate_figure, subject_figures
from gradsieve.report.subjects import Subject, label, names_code
from gradsieve.report.svg import draw
from gradsieve.training.command import train_command
from gradsieve.training.run import Run

CONFUSED = 3  # suggested classes that are named for each class, at most


def opening(subject: Subject) -> Html:
    """The first section: what was trained or audited and its main figures, as tiles and sentences."""
    tiles = [tag("div", tag("strong", figure), tag("span", words)) for figure, words in facts(subject)]
    sentences = " ".join([*run_sentences(subject), *findings_sentences(subject.findings)])
    paragraphs = [sentences, *subject.notes] if sentences else subject.notes
    return join([tag("div", tiles, class_="facts") if tiles else None, *(tag("p", each) for each in paragraphs)])


def facts(subject: Subject) -> list[tuple[str, str]]:
    """The main figures, each with a caption."""
    summary, findings, found = subject.summary, subject.findings, []
    if findings is not None:
        what = "flagged" if findings.measure == "suspicion" else "mostly dropped"
        share = shown(float(findings.flagged.mean()), ".1%")
        found.append((str(int(findings.flagged.sum())), f"of {len(findings.flagged)} rows {what}, {share}"))
    if finite(summary.get("last")) is not None:
        found.append((shown(summary["last"]), f"{subject.metric} on the test rows"))
    if subject.is_truth_known and finite(summary.get("purity")) is not None:
        found.append((shown(summary["purity"], ".1%"), "of the rows trained on were right"))
    return found


def run_sentences(subject: Subject) -> list[str]:
    settings, summary = subject.settings, subject.summary
    if not settings:
        return []
    rows = f", {summary['rows']} rows" if "rows" in summary else ""
    found = [f"{label(settings)}: {settings.get('epochs')} epochs{rows}, seed {settings.get('seed')}."]
    if summary:
        last, mean, purity = (shown(summary.get(name)) for name in ("last", "last10_mean", "purity"))
        found.append(f"On the test rows {subject.metric} {last}, mean of the last ten epochs {mean}.")
        if subject.is_truth_known:
            found.append(f"Of the rows that the last epoch trained on, a share of {purity} was right.")
    return found


def findings_sentences(findings: Findings | None) -> list[str]:
    if findings is None or findings.measure != "suspicion":
        return []
    summary = findings.summary
    return [
        f"{summary.get('flagged')} of {summary.get('rows')} rows of {summary.get('run')} are flagged as suspect, by "
        f"{summary.get('method')}."
    ]


def figures_part(figures: Iterable[Figure]) -> Html:
    """Figures side by side."""
    return tag("div", (draw(figure) for figure in figures), class_="figures")


def subject_figures_part(subject: Subject) -> Html:
    return figures_part(subject_figures(subject))


def rate_part(subject: Subject) -> Html:
    """How much was dropped, and how that rate was chosen."""
    sentences = [*drop_sentences(subject), *truth_sentences(subject)]
    if "rate" in subject.found:
        rate, source = shown(subject.found["rate"], ".1%"), subject.found.get("rate_source")
        sentences.append(f"The audit flags a share of {rate}: {source}.")
    warnings = [subject.pick.get("warning"), *(subject.found.get("warnings") or [])]
    return section(
        "The rate",
        (tag("p", sentence) for sentence in sentences),
        (tag("p", warning, class_="warn") for warning in warnings if warning),
    )


def drop_sentences(subject: Subject) -> list[str]:
    settings, pick = subject.settings, subject.pick
    if "drop_rate" not in settings:
        return []
    if not subject.drops_rows:
        return [f"The method {settings.get('method')} drops no share of the rows."]
    rate = shown(subject.drop_rate, "g")
    rise = f"schedule {settings.get('schedule')} over {settings.get('ramp')} {settings.get('schedule_unit')}s"
    if settings["drop_rate"] != "auto":
        return [f"The run drops a share of {rate} of every batch, as its settings say ({rise})."]
    if not pick:
        return ["Held-out rows choose the share that the run drops; they have not done so yet."]
    low, high = (shown(end, ".2f") for end in pick.get("interval") or (None, None))
    return [
        f"The run drops a share of {rate} of every batch, chosen by held-out rows ({rise}). About "
        f"{shown(pick.get('estimate'), '.2f')} of the targets seem wrong ({low} to {high} if the voting rows are "
        "resampled)."
    ]


def truth_sentences(subject: Subject) -> list[str]:
    """How the dropped rows compare with the wrong ones, if targets were corrupted on purpose."""
    if not subject.is_truth_known:
        return ["Nobody knows which rows are wrong: the targets are as they came."] if subject.settings else []
    corruption, rate = subject.settings["corruption"], subject.settings.get("rate", 0)
    made = f"Wrong targets were made on purpose: {corruption}, a share of {shown(rate, 'g')}"
    targets, ledger = subject.targets, subject.ledger
    if targets is None or targets.is_wrong is None or ledger is None:
        return [f"{made}."]
    wrong, dropped = targets.is_wrong, is_dropped(ledger)
    if not dropped.any():
        return [f"{made}. No row was dropped more often than kept."]
    both = int((wrong & dropped).sum())
    return [
        f"{made}. Of {int(dropped.sum())} rows that were dropped more often than kept, {both} are wrong; of "
        f"{int(wrong.sum())} wrong rows, {int(wrong.sum()) - both} were mostly kept."
    ]


def class_part(subject: Subject) -> Html | None:
    """How many rows of each class were kept, so that a class that vanishes is noticed."""
    columns = class_columns(subject)
    if not columns:
        return None
    audited = subject.found.get("classes") or []
    warnings = [tag("p", each["warning"], class_="warn") for each in audited if each.get("warning")]
    return section("Classes", warnings, table("By class as given", columns, heads_rows=True))


def class_columns(subject: Subject) -> list[Column]:
    """Counts and shares by class, as far as known: from the audit, the targets and ledger, and the last epoch."""
    audited = subject.found.get("classes") or []
    last = (subject.history[-1].get("kept_share_of_class") if subject.history else None) or []
    targets = subject.targets if subject.targets is not None and subject.targets.task == "classification" else None
    numbers = [str(number) for number in range(len(last))]
    names = [each["name"] for each in audited] or (list(targets.names) if targets else numbers)
    if targets and len(targets.names) != len(names):
        targets = None
    if not names:
        return []
    columns = [text_column("class", names)]
    if audited:
        columns.append(number_column("rows", [each["rows"] for each in audited], ".0f"))
    elif targets:
        columns.append(number_column("rows", np.bincount(targets.given, minlength=len(names)).tolist(), ".0f"))
    if targets and targets.is_wrong is not None:
        wrong = np.bincount(targets.given[targets.is_wrong], minlength=len(names))
        columns.append(number_column("in truth wrong", wrong.tolist(), ".0f"))
    if targets and subject.ledger is not None:
        judged, dropped = (
            np.bincount(targets.given, weights=column.numpy(), minlength=len(names))
            for column in (subject.ledger.judged, subject.ledger.dropped)
        )
        columns.append(number_column("kept, whole run", (1 - dropped / np.maximum(judged, 1)).tolist(), ".0%"))
    elif audited:
        columns.append(number_column("kept", [each["kept_share"] for each in audited], ".0%"))
    if last and len(last) == len(names):
        columns.append(number_column("kept, last epoch", last, ".0%"))
    if audited:
        columns.append(number_column("flagged", [each["flagged"] for each in audited], ".0f"))
        columns.append(text_column("more likely", [likely(each["suggested"]) for each in audited]))
    return columns


def likely(suggested: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({times})" for name, times in list(suggested.items())[:CONFUSED])


def kinds_part(subject: Subject) -> Html | None:
    """For real-valued targets: the kinds of error, and which outputs are off."""
    tables = [
        table(caption, [text_column(title, list(counts)), number_column("flagged rows", list(counts.values()), ".0f")])
        for name, caption, title in (("kinds", "By kind of error", "kind"), ("off", "By output that is off", "output"))
        if (counts := subject.found.get(name))
    ]
    return section("Kinds of error", tables) if tables else None


def certificate_part(subject: Subject) -> Html | None:
    """The paper's bound on the error of the gradient, beside the measured error."""
    if not subject.settings:
        return None
    figure = certificate_figure(subject)
    measured = [record["gradient_error"] for record in subject.history if record.get("gradient_error")]
    if figure is None or not measured:
        words = "The error of the gradient was not measured in this run; gradsieve train --bounds measures it."
        return section("Certificate", tag("p", words, class_="soft"))
    bounded = [
        each for each in measured if finite(each.get("lemma1")) is not None and finite(each["error"]) is not None
    ]
    held = sum(each["error"] <= each["lemma1"] for each in bounded)
    words = (
        "Once an epoch, on a few rows whose right targets are known: how far the mean gradient of the kept rows is off "
        "that of all rows with their right targets, beside the bounds of Liu et al. 2021."
    )
    verdict = (
        f"The measured error was within the bound of Lemma 1 in {held} of the {len(bounded)} epochs that have one."
        if bounded
        else "There is no bound: as many rows must be dropped as are wrong, and fewer than half."
    )
    return section("Certificate", tag("p", words), tag("p", verdict), figures_part([figure]), bound_table(measured[-1]))


def bound_table(measured: Mapping[str, Any]) -> Html:
    """The last measurement as a table."""
    meanings = {
        "error": "measured error of the gradient",
        "lemma1": "bound of Lemma 1, whichever rows a filter keeps",
        "theorem2": "bound of Theorem 2, after dropping the largest loss-layer gradients",
        "C": "C, the largest operator norm of a Jacobian",
        "k": "k, the largest loss-layer gradient under the right targets",
        "v": "v, that of the wrong rows that stayed",
        "epsilon": "share of the rows that was dropped",
    }
    there = [name for name in meanings if name in measured]
    values = number_column("value", [measured[name] for name in there])
    columns = [text_column("what", [meanings[name] for name in there]), values]
    return table("The last epoch's measurement; empty where there is no bound", columns, heads_rows=True)


def settings_part(subject: Subject) -> Html | None:
    """What determined the result: settings, versions, device, command."""
    if not subject.settings:
        return None
    settings = {name: value for name, value in subject.settings.items() if value is not None and value != {}}
    if "data_dir" in settings:  # reports are shared: do not reveal the user's folders
        settings["data_dir"] = f"…/{PurePath(str(settings['data_dir'])).name}"
    summary = subject.summary
    known = {name: summary[name] for name in ("precision", "engine", "bound") if name in summary}
    ran = {"seconds": shown(summary.get("seconds"), ".1f"), **known} if summary else {}
    command = command_of(subject.settings)
    line = {"command": tag("code", command)} if command else {}
    values = {**settings, **ran, **summary.get("versions", {}), **line}
    return tag("details", tag("summary", "Settings, versions and device"), definitions(values))


def command_of(settings: Mapping[str, Any]) -> str | None:
    """The command that trains this run; None if it names user-defined code, which a report does not import."""
    if names_code(settings):
        return None
    try:
        return train_command(Run.from_json(settings))
    except (GradsieveError, TypeError):
        return None
