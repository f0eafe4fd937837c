"""Fetching from a web server of our own, which breaks off, forgets ranges, and serves what it should not."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import sys
import tarfile
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gradsieve.data import DATASETS
from gradsieve.data.check import check_folder
from gradsieve.data.fetch import fetch
from gradsieve.data.published import BY_HAND, PUBLISHED, Download, Published
from gradsieve.errors import InputError, MissingExtraError

pytest.importorskip("pooch")
FILES = {"one.bin": bytes(range(256)) * 600, "two.bin": b"two" * 999}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@dataclass
class Server:
    """What is served, and how badly."""

    files: dict[str, bytes] = field(default_factory=dict)
    knows_ranges: bool = True
    breaks_off_after: int | None = None
    ranges_asked_for: list[str | None] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def server():
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = self.headers.get("Range")
            served.ranges_asked_for.append(asked)
            content = served.files.get(self.path[1:])
            if content is None:
                self.send_error(404)
                return
            first = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and served.knows_ranges else 0
            if first >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(content) - first))
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            self.wfile.write(content[first : served.breaks_off_after])

        def log_message(self, *arguments):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    served.url = f"http://127.0.0.1:{http.server_port}"
    yield served
    http.shutdown()
    http.server_close()


@pytest.fixture
def packed(server):
    """A data set in an archive, as CIFAR is."""
    content = archive({f"tiny-bin/{name}": content for name, content in FILES.items()})
    server.files["tiny.tar.gz"] = content
    sums = {name: sha256(content) for name, content in FILES.items()}
    return {"tiny": Published((Download(f"{server.url}/tiny.tar.gz", sha256(content)),), sums, ("tiny-bin", ""))}


def whole(folder) -> bool:
    return {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_an_archive_is_fetched_compared_and_unpacked_once(server, packed, tmp_path):
    said = []
    assert fetch("tiny", tmp_path, said.append, packed) == tmp_path / "tiny-bin"
    assert whole(tmp_path / "tiny-bin")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-bin"]
    assert said[-1] == f"tiny is complete in {tmp_path / 'tiny-bin'}"
    fetch("tiny", tmp_path, said.append, packed)
    assert len(server.ranges_asked_for) == 1


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_download_that_broke_off_goes_on_where_the_server_can(server, packed, tmp_path, knows_ranges):
    server.breaks_off_after, server.knows_ranges = 1 << 17, knows_ranges
    with pytest.raises(InputError, match=r"could not be fetched .* try again, and it goes on from there"):
        fetch("tiny", tmp_path, len, packed)
    assert (tmp_path / "tiny.tar.gz.part").stat().st_size == 1 << 17
    server.breaks_off_after = None
    fetch("tiny", tmp_path, len, packed)
    assert server.ranges_asked_for == [None, f"bytes={1 << 17}-"]
    assert whole(tmp_path / "tiny-bin")


def test_a_part_of_another_file_is_thrown_away_and_not_an_error(server, packed, tmp_path):
    (tmp_path / "tiny.tar.gz.part").write_bytes(b"old" * 1000)
    fetch("tiny", tmp_path, len, packed)
    assert server.ranges_asked_for == ["bytes=3000-", None]
    assert whole(tmp_path / "tiny-bin")


def test_a_part_that_had_all_of_it_is_used(server, packed, tmp_path):
    (tmp_path / "tiny.tar.gz.part").write_bytes(server.files["tiny.tar.gz"])
    fetch("tiny", tmp_path, len, packed)
    assert whole(tmp_path / "tiny-bin")


def test_a_wrong_sum_leaves_nothing(server, packed, tmp_path):
    server.files["tiny.tar.gz"] = server.files["tiny.tar.gz"][:-9] + b"something"
    with pytest.raises(InputError, match="does not have the SHA-256 that is on record"):
        fetch("tiny", tmp_path, len, packed)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_leads_outside_is_not_unpacked(server, tmp_path):
    for name in ("../outside.bin", "/tmp/gradsieve-outside.bin"):
        content = archive({name: b"x"})
        server.files["bad.tar.gz"] = content
        bad = {"bad": Published((Download(f"{server.url}/bad.tar.gz", sha256(content)),), {"x": ""}, ("bad",))}
        with pytest.raises(InputError, match=r"bad was fetched, but|cannot be unpacked"):
            fetch("bad", tmp_path / "in", len, bad)
        assert list(tmp_path.glob("*.bin")) == []


def test_single_files_lie_in_their_folder_and_may_be_compressed(server, tmp_path):
    """As MNIST's do; what counts is what they unpack to."""
    served = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in FILES.items()}
    server.files |= served
    downloads = tuple(Download(f"{server.url}/{name}", sha256(content)) for name, content in served.items())
    published = {"tiny": Published(downloads, {name: sha256(each) for name, each in FILES.items()}, ("tiny", ""))}
    assert fetch("tiny", tmp_path, len, published) == tmp_path / "tiny"
    (tmp_path / "tiny" / "one.bin.gz").write_bytes(b"damaged")
    (tmp_path / "tiny" / "two.bin.gz").write_bytes(
        gzip.compress(FILES["two.bin"], 1, mtime=9)
    )  # other bytes, same file
    fetch("tiny", tmp_path, len, published)  # only what is not whole
    assert len(server.ranges_asked_for) == 3


def test_no_server_and_no_file_are_one_error(server, packed, tmp_path):
    server.files.clear()
    with pytest.raises(InputError, match="404"):
        fetch("tiny", tmp_path, len, packed)
    nobody = replace(packed["tiny"], downloads=(Download("http://127.0.0.1:9/tiny.tar.gz", "0" * 64),))
    with pytest.raises(InputError, match="could not be fetched"):
        fetch("tiny", tmp_path, len, {"tiny": nobody})


def test_what_cannot_be_fetched_says_why():
    assert PUBLISHED.keys() | BY_HAND.keys() == set(DATASETS)
    with pytest.raises(InputError, match=r"celeba cannot be fetched\. Its authors hand it out"):
        fetch("celeba", None)
    with pytest.raises(InputError, match="Did you mean 'cifar10'"):
        fetch("cifar", None)


def test_without_pooch_the_extra_is_named(packed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtraError, match=r"gradsieve\[data\]"):
        fetch("tiny", tmp_path, len, packed)


# What is there.


def state(folder, published):
    return {finding.name: (finding.state, finding.problems) for finding in check_folder(folder, published)}


def test_check_tells_whole_from_missing_and_damaged(packed, tmp_path):
    assert state(tmp_path, packed) == {"tiny": ("absent", ()), "celeba": ("absent", ())}
    home = tmp_path / "tiny-bin"
    home.mkdir()
    (home / "one.bin").write_bytes(FILES["one.bin"])
    assert state(tmp_path, packed)["tiny"] == ("incomplete", (f"{home / 'two.bin'} is missing",))
    (home / "two.bin").write_bytes(b"two")
    assert state(tmp_path, packed)["tiny"] == ("incomplete", (f"{home / 'two.bin'} differs from what was published",))
    (home / "two.bin").unlink()
    (home / "two.bin.gz").write_bytes(gzip.compress(FILES["two.bin"]))
    assert state(tmp_path, packed)["tiny"] == ("complete", ())
    assert state(home, packed)["tiny"] == ("complete", ())  # its own folder will do
    (home / "two.bin.gz").write_bytes(gzip.compress(FILES["two.bin"])[:-12])
    assert state(tmp_path, packed)["tiny"] == ("incomplete", (f"{home / 'two.bin.gz'} cannot be read",))


def test_check_reads_what_has_no_published_sums(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "list_landmarks_align_celeba.txt").write_text("1\nnames\n")
    found = state(tmp_path, PUBLISHED)
    assert found["cifar10"][0] == found["celeba"][0] == "incomplete"
    assert "no data_batch_1" in found["cifar10"][1][0]
    assert "promises '1' images and lists 0" in found["celeba"][1][0]


def test_check_needs_a_folder(tmp_path):
    with pytest.raises(InputError, match="There is no folder"):
        check_folder(tmp_path / "nowhere")
