"""The subjects of a report: run folders and audit folders, read as far as they are complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradsieve.errors import CheckpointError, GradsieveError, InputError
from gradsieve.methods import METHODS
from gradsieve.report.file_rows import show_file
from gradsieve.report.findings import Findings, folder_findings, ledger_findings, run_findings
from gradsieve.report.source_rows import ShownRows, SourceRows, SourceTargets, read_source
from gradsieve.training.files import read_json
from gradsieve.training.folder import RunFolder
from gradsieve.training.ledger import Ledger
from gradsieve.training.result import Result, require_trained_on

ROWS = 50  # most suspect rows that a report shows; few, to keep the file small enough to mail
MARKS = ("config.json", "audit.json")  # files by which folders of runs and audits are found
BY_PLACE = ("data", "method", "model", "corruption", "schedule")  # settings that may be user-defined (module:name)
AUDIT = "audit"  # the folder of a run's audit, within the run's folder


@dataclass(frozen=True)
class Subject:
    """One run, one audit, or a run with its audit."""

    name: str
    settings: Mapping[str, Any]  # of the run; empty for an audit alone
    summary: Mapping[str, Any]  # result.json; empty while the run is not finished
    history: Sequence[Mapping[str, Any]]
    ledger: Ledger | None = None
    targets: SourceTargets | None = None  # of all rows, if the data could be loaded again
    findings: Findings | None = None
    shown: ShownRows = field(default_factory=ShownRows)
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> Mapping[str, Any]:
        """What the findings come to, as in audit.json; empty if there are none."""
        return self.findings.summary if self.findings else {}

    @property
    def is_truth_known(self) -> bool:
        """Whether targets were corrupted on purpose: only then is it known which are wrong, as purity requires."""
        return self.settings.get("corruption", "none") != "none"

    @property
    def rows(self) -> Any:
        """How many rows were trained on or audited."""
        return self.summary.get("rows", self.found.get("rows"))

    @property
    def pick(self) -> Mapping[str, Any]:
        """How the drop rate was chosen (``RatePick``); empty if it was given."""
        return self.summary.get("pick") or {}

    @property
    def drops_rows(self) -> bool:
        """Whether the method uses the drop rate; a user-defined method is assumed to."""
        method = self.settings.get("method")
        return method not in list(METHODS) or METHODS[method].drops_rows

    @property
    def drop_rate(self) -> Any:
        """The drop rate, given or chosen; None if the method drops no rows."""
        return self.pick.get("rate", self.settings.get("drop_rate")) if self.drops_rows else None

    @property
    def metric(self) -> str:
        """The name of the metric on the test rows: accuracy or r2."""
        return str(self.summary.get("metric") or (self.history[-1].get("metric") if self.history else "") or "")


def result_subject(result: Result) -> Subject:
    """A result in memory. Its data is not loaded, so that a notebook shows it at once."""
    settings = result.summary["run"]
    findings = ledger_findings(settings, result.ledger, None, rows=0)
    return Subject(label(settings), settings, result.summary, result.history, result.ledger, findings=findings)


def label(settings: Mapping[str, Any]) -> str:
    """A run in a few words."""
    corruption = settings.get("corruption", "none")
    how = "clean" if corruption == "none" else f"{corruption} {settings.get('rate', 0)}"
    return f"{settings.get('data')} {how} {settings.get('method')}"


def names_code(settings: Mapping[str, Any]) -> bool:
    """Whether a run has user-defined parts. A report never imports them: its folder may not be trusted."""
    return any(":" in str(settings.get(name)) for name in BY_PLACE)


def read_subjects(
    paths: Sequence[Path],
    rows: int = ROWS,
    audit: bool = False,
    sources: Sequence[Path] = (),
    note: Callable[[str], None] = lambda text: None,
) -> list[Subject]:
    """Every run and audit in ``paths``, in their order, and within a folder sorted by name.

    ``audit`` audits the runs that have no audit yet: one pass of their networks over their rows. ``sources`` are
    audited files and folders of images, whose rows are shown; they are matched to their audits by name.
    """
    for source in sources:
        if not source.exists():
            raise InputError(f"There is no {source}. Give the file or the folder of images that was audited.")
    folders = {folder: name for path in paths for name, folder in find_folders(path)}
    names = list(folders.values())
    found = [
        read_subject(folder, name if names.count(name) == 1 else folder.as_posix(), rows, audit, note)
        for folder, name in folders.items()
    ]
    audited = {name for each in found if (name := audited_file(each)) is not None}
    for source in sources:
        if audited.isdisjoint(names_of(source)):
            of = f"; they are of {', '.join(sorted(audited))}" if audited else ""
            note(f"{source} is not shown: no audit here is of a file or a folder of that name{of}")
    return [with_source(subject, sources) for subject in found]


def audited_file(subject: Subject) -> str | None:
    """The name of the audited file; None for a run."""
    findings = subject.findings
    return None if findings is None or subject.settings else str(findings.summary.get("run"))


def names_of(source: Path) -> set[str]:
    """The names that an audit may have for a file: as given, and resolved (for links, and for paths such as ``.``)."""
    return {source.name, source.resolve().name}


def with_source(subject: Subject, sources: Sequence[Path]) -> Subject:
    """An audit with the rows of its file to show, if the file is among ``sources``."""
    for source in sources:
        if subject.findings is not None and audited_file(subject) in names_of(source):
            return replace(subject, shown=show_file(source, subject.findings))
    return subject


def find_folders(path: Path) -> list[tuple[str, Path]]:
    """The folder itself if it is a run or an audit, else all runs and audits below it, with their names."""
    if not path.is_dir():
        raise InputError(f"There is no folder {path}. Give folders of gradsieve train, demo or audit.")
    if is_subject(path):
        return [(path.resolve().name, path)]
    below = sorted(each for each in {found.parent for mark in MARKS for found in path.rglob(mark)} if is_subject(each))
    own = [found for found in below if not (found.name == AUDIT and is_subject(found.parent))]  # not a run's own audit
    if not own:
        raise InputError(
            f"{path} holds no run and no audit: no folder in it has the config.json of a run or an audit.json. Give "
            "folders of gradsieve train, demo or audit."
        )
    shared = Path(os.path.commonpath([found.parent for found in own]))  # left out of the names, being common to all
    return [(found.relative_to(shared).as_posix(), found) for found in own]


def is_subject(path: Path) -> bool:
    return (path / "audit.json").is_file() or is_run(path)


def is_run(path: Path) -> bool:
    """Whether a folder has the settings of a run: sweeps and streamed fits have a config.json as well."""
    if not (path / "config.json").is_file():
        return False
    settings = read_json(path / "config.json")
    return not isinstance(settings, Mapping) or {"data", "method"} <= settings.keys()  # damaged files are named later


def read_subject(folder: Path, name: str, rows: int, audit: bool, note: Callable[[str], None]) -> Subject:
    """The run or audit in a folder. If its data cannot be loaded, the page has no rows, and a note says why."""
    audited = next((place for place in (folder, folder / AUDIT) if (place / "audit.json").is_file()), None)
    findings = folder_findings(audited, rows) if audited is not None else None
    if not (folder / "config.json").is_file():
        return Subject(name, {}, {}, (), findings=findings)
    settings = read_json(folder / "config.json")
    require_mappings(folder / "config.json", settings)
    run = RunFolder(folder, run=None)  # type: ignore[arg-type]  # only to read: its run is not compared
    history = run.metrics() if (folder / "metrics.jsonl").is_file() else []
    require_mappings(folder / "metrics.jsonl", *history)
    require_mappings(folder / "metrics.jsonl", *(each.get("gradient_error") or {} for each in history))
    if not run.finished:
        return Subject(name, settings, {}, history, findings=findings, notes=("The run is not finished yet.",))
    summary, ledger = run.result(), find_ledger(run)
    require_mappings(folder / "result.json", summary.get("versions") or {}, summary.get("pick") or {})
    source, notes = find_source(run, settings, lambda text: note(f"{name}: {text}"))
    targets = source.targets if source is not None else None
    if ledger is None:
        notes = (*notes, "The ledger was written by another version of gradsieve and is left out.")
    elif findings is None:
        findings = ledger_findings(settings, ledger, targets, rows)
        if audit and findings is not None and source is not None and not names_code(settings):
            findings = run_findings(folder, rows)
    shown = ShownRows()
    if source is not None and findings is not None:
        shown = source.show(shown_rows(findings, len(source.targets)), suggested_targets(findings))
    return Subject(name, settings, summary, history, ledger, targets, findings, shown, notes)


def shown_rows(findings: Findings, length: int) -> list[int]:
    """The rows that the page will show; none if they are not indices of the source's rows."""
    rows = list(findings.columns.get("row", ()))
    return rows if all(isinstance(row, int) and 0 <= row < length for row in rows) else []


def suggested_targets(findings: Findings) -> dict[int, list[float]]:
    """The suggested targets by row, for rows with several outputs that are all numbers."""
    names = [f"suggested {name}" for name in findings.summary.get("names") or []]
    columns = [findings.columns.get(name, ()) for name in names]
    values = zip(findings.columns.get("row", ()), zip(*columns, strict=False), strict=False)
    return {row: list(found) for row, found in values if all(isinstance(each, int | float) for each in found)}


def require_mappings(path: Path, *values: Any) -> None:
    """Refuse a file whose values are not mappings."""
    if not all(isinstance(value, Mapping) for value in values):
        raise CheckpointError(f"{path} is damaged: it does not hold names with values.")


def find_ledger(run: RunFolder) -> Ledger | None:
    """The ledger of a run; None if its columns are those of another version."""
    try:
        return Ledger(**run.ledger())
    except TypeError:
        return None


def find_source(
    run: RunFolder, settings: Mapping[str, Any], note: Callable[[str], None]
) -> tuple[SourceRows | None, tuple[str, ...]]:
    """The training rows of a run, if they can be loaded and have not changed, and notes for the page."""
    try:
        source = read_source(settings)
        require_trained_on(run, source.rows)
    except (GradsieveError, OSError, TypeError) as error:
        note(f"the rows themselves are not shown: {error}")
        return None, ("The data was not read again where this report was made: rows have numbers only.",)
    return source, ()
