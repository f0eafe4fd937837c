"""``gradsieve audit``: of a run folder or of a file, into a new folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradsieve.arguments import argument
from gradsieve.audit.copies import check_copy, clean_file
from gradsieve.audit.file import audit_file
from gradsieve.audit.result import Audit
from gradsieve.audit.run import audit_run
from gradsieve.audit.writing import check_absent, write_audit
from gradsieve.errors import InputError
from gradsieve.tables.model_folder import check_new


def audit_command(
    source: Path,
    out: Path | None,
    clean: Path | None,
    repair: Path | None,
    *,
    targets: Sequence[str],
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Audit:
    """Audit, and write what was asked for. Paths that cannot be written are refused before anything is trained."""
    is_run = (source / "config.json").is_file()
    if not source.exists():
        raise InputError(f"There is no file {source}.")
    if (source / "model.json").is_file():
        raise InputError(f"{source} is a model of gradsieve fit, which keeps no rows. Audit the file it was fitted to.")
    if not is_run and (source / "audit.json").is_file():
        raise InputError(f"{source} is an audit already. Look at it with gradsieve report, or audit what it is of.")
    if run := next((path.parent for path in source.glob("*/config.json") if not is_run), None):
        raise InputError(
            f"{source} holds runs: audit one of them, such as {run}, or all with "
            f"gradsieve report {shlex.quote(str(source))} --audit."
        )
    if is_run and (targets or clean or repair):
        raise InputError(f"{source} is a run folder: {argument('targets')}, {copying()} are for files. Leave them out.")
    if out is None and not is_run:
        raise InputError(f"{argument('out')} is missing: a new folder for the audit of {source}.")
    folder = out or source / "audit"
    check_new(folder)
    copies = [copy for copy in (clean, repair) if copy is not None]
    if clean is not None and clean == repair:
        raise InputError(f"{copying()} both name {clean}, but they are two files. Give each its own.")
    for copy in copies:
        check_absent(copy)
        check_copy(source, copy)
        if not copy.parent.is_dir():
            raise InputError(f"{copy} cannot be written: there is no folder {copy.parent}. Make it first.")
    audit = audit_run(source) if is_run else audit_file(source, targets, note=note, **options)
    write_audit(audit, folder)
    # Before the copies: the audit is there even if one of them cannot be made.
    note(f"every row is in {folder / 'audit.csv'}; gradsieve report {shown(folder, source, is_run)} makes a page of it")
    for copy in copies:
        clean_file(audit, source, copy, targets, repair=copy == repair)
    return audit


def copying() -> str:
    """The arguments that ask for a copy of the file."""
    return f"{argument('clean')} and {argument('repair')}"


def shown(folder: Path, source: Path, is_run: bool) -> str:
    """The arguments of ``gradsieve report``, quoted for a shell. A run folder holds its own audit by default."""
    if is_run:
        return shlex.quote(str(source if folder == source / "audit" else folder))
    return shlex.join([str(folder), "--source", str(source)])
