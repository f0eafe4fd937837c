"""Every snippet in README, CONTRIBUTING and docs runs as printed, in its own folder, block after block."""

import json
import os
import re
import shlex
import shutil
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


def test_the_change_on_the_first_screen_is_the_one_of_the_loop_that_runs():
    """The added lines are in the first snippet; with the removed ones instead it is the loop without Gradsieve."""
    change, loop = blocks(ROOT / "README.md", "diff")[0], blocks(ROOT / "README.md", "python")[0]
    added, removed = ([line[2:] for line in change.splitlines() if line.startswith(sign)] for sign in "+-")
    assert len(added) == 2
    assert set(added) <= set(loop.splitlines())
    before = loop.replace(added[0] + "\n", "").replace(added[1], removed[0])
    assert "gradsieve" not in before
    exec(compile(before, "README.md before", "exec"), {"__name__": "__snippet__"})


@pytest.fixture(scope="module")
def shell():
    """Run a command in a folder; returns exit code and output. ``gradsieve`` is forked, so that torch loads once."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    forker = subprocess.Popen([sys.executable, Path(__file__).with_name("forked_commands.py")], **pipes)

    def run(command, folder):
        name, *arguments = shlex.split(command)
        if name != "gradsieve":
            options = {"capture_output": True, "text": True, "timeout": 240}
            done = subprocess.run([name, *arguments], cwd=folder, env=env, **options)
            return done.returncode, done.stdout + done.stderr
        log = folder.with_name(f"{folder.name}.log")
        order = {"arguments": arguments, "folder": str(folder), "log": str(log)}
        forker.stdin.write(json.dumps(order) + "\n")
        forker.stdin.flush()
        return int(forker.stdout.readline()), log.read_text()

    yield run
    forker.stdin.close()
    forker.wait()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=lambda page: page.name)
def test_commands_run(page, shell, tmp_path):
    for name, code in FILE.findall(page.read_text()):
        (tmp_path / name).write_text(code)
    for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        command = line.split(" #")[0].strip()
        if command and not command.startswith(NOT_HERE):
            code, said = shell(command, tmp_path)
            assert code == 0, f"{command}\n{said}"


def test_the_method_of_contributing_is_a_file_and_a_row_and_passes_the_common_tests(tmp_path):
    """Follow the page in a copy of the source, and run the tests that it says every method is put through."""
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    page = (ROOT / "CONTRIBUTING.md").read_text()
    ((name, code),) = FILE.findall(page)
    (row,) = re.findall(r'^"[\w-]+": "gradsieve\.methods\.[\w:.]+",$', page, re.MULTILINE)
    methods = source / "gradsieve" / "methods"
    (methods / name).write_text(code)
    table = (methods / "__init__.py").read_text()
    (methods / "__init__.py").write_text(table.replace('        "sever":', f'        {row}\n        "sever":'))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-k", "margin", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
        + [str(ROOT / "tests" / name) for name in ("test_every_method.py", "test_method.py")],
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 5
