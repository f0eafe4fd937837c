"""Every snippet in README, CONTRIBUTING and docs runs as printed, in its own folder, block after block."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)  # a snippet that is a file
# The set-up of a checkout, and what the rest of the suite runs anyway.
NOT_HERE = ("make", "git", "pip", "cd", "gradsieve demo")


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in FENCE.findall(page.read_text()) if language in languages]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace: dict = {"__name__": "__snippet__"}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=lambda page: page.name)
def test_commands_run(page, tmp_path):
    for name, code in FILE.findall(page.read_text()):
        (tmp_path / name).write_text(code)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        command = line.split(" #")[0].strip()
        if command and not command.startswith(NOT_HERE):
            done = subprocess.run(
                shlex.split(command),
                cwd=tmp_path,
                env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=240,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
