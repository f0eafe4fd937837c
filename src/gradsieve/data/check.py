"""Which data sets in a folder are complete, and what is wrong with the others."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gradsieve.data import DATASETS
from gradsieve.data.celeba import LIST, load_partitions
from gradsieve.data.cifar import CIFARS, class_names
from gradsieve.data.published import PUBLISHED, Published
from gradsieve.errors import GradsieveError, InputError

State = Literal["complete", "incomplete", "absent"]


@dataclass(frozen=True)
class Finding:
    """What was found in a folder of one data set."""

    name: str
    where: str
    problems: tuple[str, ...] = ()
    checked: str = "every SHA-256 is the published one"

    @property
    def state(self) -> State:
        if not self.where:
            return "absent"
        return "incomplete" if self.problems else "complete"

    def lines(self) -> Iterator[str]:
        """The finding in words."""
        yield f"{self.name:10} {self.state}" + (
            f" in {self.where} ({self.checked})" if self.state == "complete" else ""
        )
        for problem in self.problems:
            yield f"{'':10} {problem}"


def check_folder(folder: Path, published: Mapping[str, Published] = PUBLISHED) -> list[Finding]:
    """One finding for each public data set that is read from files."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}. Name the one that holds the data sets.")
    findings = [check_files(name, published[name], folder) for name in published]
    findings = [check_pickles(each, folder) if each.state == "absent" else each for each in findings]
    return [*findings, check_celeba(folder)]


def check_files(name: str, published: Published, folder: Path) -> Finding:
    """Compare every file with its published SHA-256."""
    found = {place: [file for file in published.files if locate(folder / place, file)] for place in published.places}
    place = max(found, key=lambda each: len(found[each]))
    if not found[place]:
        return Finding(name, "")
    root, problems = folder / place, []
    for file, sha256 in published.files.items():
        path = locate(root, file)
        if path is None:
            problems.append(f"{root / file} is missing")
        elif (sum_of := content_sha256(path)) != sha256:
            what = "cannot be read" if sum_of is None else "differs from what was published"
            problems.append(f"{path} {what}")
    return Finding(name, str(root), (*problems, *problems_of_names(name, root, ".bin")))


def problems_of_names(name: str, root: Path, suffix: str) -> list[str]:
    """What is wrong with CIFAR's file of class names: training does without it, and its SHA-256 is not published."""
    if name not in CIFARS:
        return []
    path = root / CIFARS[name].names_file[suffix]
    if not path.is_file():
        return [f"{path} is missing: classes would be shown as numbers"]
    try:
        class_names(CIFARS[name], root, suffix)
    except GradsieveError as error:
        return [str(error)]
    return []


def locate(root: Path, file: str) -> Path | None:
    """The file, plain or compressed (.gz); None if there is neither."""
    return next((path for path in (root / file, root / f"{file}.gz") if path.is_file()), None)


def content_sha256(path: Path) -> str | None:
    """SHA-256 of a file, uncompressed if it ends in .gz; None if it cannot be read to its end."""
    digest = hashlib.sha256()
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except (OSError, EOFError, zlib.error):
        return None
    return digest.hexdigest()


def check_pickles(absent: Finding, folder: Path) -> Finding:
    """Look for the python distribution of a data set whose binary one is absent.

    It has no fixed SHA-256, because its pickles differ from copy to copy: it is read instead.
    """
    name = absent.name
    if name not in CIFARS or not (folder / CIFARS[name].python).is_dir():
        return absent
    root = folder / CIFARS[name].python
    found = read(name, root, lambda root: DATASETS[name](root))
    return found if found.problems else replace(found, problems=tuple(problems_of_names(name, root, "")))


def check_celeba(folder: Path) -> Finding:
    """Check CelebA by opening every image: no SHA-256 of its files is published."""
    root = next((place for place in (folder, folder / "celeba") if (place / LIST).exists()), None)
    if root is None:
        return Finding("celeba", "")
    return read("celeba", root, lambda place: load_partitions(place, size=1))


def read(name: str, root: Path, load: Callable[[Path], object]) -> Finding:
    """The finding of a data set that counts as complete if it can be loaded."""
    try:
        load(root)
    except GradsieveError as error:
        return Finding(name, str(root), (str(error),))
    return Finding(name, str(root), checked="every file was read to its end")
