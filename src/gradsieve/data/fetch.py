"""Fetching public data sets: checked against their published SHA-256, with interrupted downloads resumed."""

from __future__ import annotations

import os
import re
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from gradsieve.arguments import elsewhere
from gradsieve.data.check import check_files, content_sha256
from gradsieve.data.published import BY_HAND, PUBLISHED, Download, Published
from gradsieve.errors import InputError, MissingExtraError
from gradsieve.registry import unknown

Say = Callable[[str], None]
TIMEOUT = 30  # seconds that a server may send nothing
CHUNK = 1 << 16  # bytes written at a time


def fetch(name: str, to: Path, say: Say = print, published: Mapping[str, Published] = PUBLISHED) -> Path:
    """Fetch the files of a data set into ``to``, except those that are there and complete. Returns their folder."""
    if name not in published:
        if name in BY_HAND:
            raise InputError(f"{name} cannot be fetched. {BY_HAND[name]}")
        raise InputError(unknown("data set to fetch", name, published))
    wanted = published[name]
    finding = check_files(name, wanted, to)
    if finding.state == "complete":
        say(f"{name} is complete in {finding.where}")
        return Path(finding.where)
    home = to / wanted.places[0]
    for download in wanted.downloads:
        if is_whole(home / download.name, wanted):
            continue
        path = fetch_file(download, to if download.is_archive else home, say)
        if download.is_archive:
            unpack(path, to)
            path.unlink()
    finding = check_files(name, wanted, to)
    if finding.state != "complete":
        problems = "; ".join(finding.problems) or f"none of its files is in {home}"
        raise InputError(
            f"{name} was fetched, but is not what it should be: {problems}. Delete that, and fetch it again."
        )
    say(f"{name} is complete in {finding.where}")
    return home


def is_whole(path: Path, published: Published) -> bool:
    """Whether a file has its published content, once it is uncompressed."""
    sha256 = published.files.get(path.name.removesuffix(".gz"))
    return sha256 is not None and path.exists() and content_sha256(path) == sha256


def fetch_file(download: Download, folder: Path, say: Say) -> Path:
    """Fetch one file. Until it is complete, its beginning is kept as NAME.part, to resume from."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise MissingExtraError("pooch", "data", "Fetching data") from error
    pooch.get_logger().setLevel("WARNING")
    part = folder / f"{download.name}.part"
    while True:
        resumed = part.exists()
        try:
            path = pooch.retrieve(
                download.url,
                known_hash=f"sha256:{download.sha256}",
                fname=download.name,
                path=folder,
                downloader=cast(Any, Resuming(part, say)),  # pooch's own annotation does not fit its own downloaders
            )
            return Path(path)
        except requests.RequestException as error:
            raise InputError(
                f"{download.url} could not be fetched ({reason(error)}). What has arrived is kept: try again, and it "
                "goes on from there."
            ) from error
        except ValueError as error:
            # The kept part may be of an older version than the rest: try once more, from the beginning.
            if not resumed:
                raise InputError(
                    f"{download.url} does not have the SHA-256 that is on record for it, and was thrown away. Try "
                    "again; if that does not help, it has been changed at its source."
                ) from error
        except OSError as error:
            why = error.strerror or error
            raise InputError(
                f"{folder / download.name} could not be written ({why}). {elsewhere('Make room', name='to')}"
            ) from error


class Resuming:
    """A downloader for pooch that goes on from a partial file, if the server supports that."""

    def __init__(self, part: Path, say: Say) -> None:
        self.part, self.say = part, say

    def __call__(self, url: str, output_file: str | Path, pooch: Any, check_only: bool | None = False) -> None:
        import requests

        done = self.part.stat().st_size if self.part.exists() else 0
        # Without compression in transfer, so that the numbers of bytes are those of the file.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={done}-"} if done else {})}
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code != 416:  # 416: the partial file has all bytes already; its SHA-256 is checked later
                response.raise_for_status()
                goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
                self.write(response, done if response.status_code == 206 and goes_on else 0)
        os.replace(self.part, output_file)

    def write(self, response: Any, done: int) -> None:
        """Append to the partial file, of which ``done`` bytes are there."""
        total = done + int(response.headers.get("Content-Length", 0))
        reported_at = time.monotonic()
        self.say(f"{self.part.stem}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")
        with open(self.part, "ab" if done else "wb") as file:
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                done += len(chunk)
                if time.monotonic() - reported_at > 5:
                    reported_at = time.monotonic()
                    self.say(f"{self.part.stem}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")


def unpack(archive: Path, to: Path) -> None:
    """Unpack an archive. tarfile's data filter refuses paths outside of ``to`` and special files."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(to, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"{archive} cannot be unpacked ({error}). Mend that, and fetch it again.") from error


def reason(error: Exception) -> str:
    """The innermost cause of an error, without the description of the connection that libraries put before it."""
    inner = getattr(error, "reason", None) or next(iter(error.args), "")
    if isinstance(inner, Exception):
        return reason(inner)
    return re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(inner or error))
