"""The commands ``reproduce`` and ``data``: thin wrappers of what is tested elsewhere."""

import json
import subprocess
import sys

import pytest

from gradsieve.experiments import reproduce as grid
from gradsieve.experiments.workers import Outcome

TINY = ["reproduce", "table2", "--data=digits", "--rows=sym-40", "--methods=spl", "--epochs=1", "--device=cpu"]
TINY += ["--model-option=hidden=[8]"]


@pytest.mark.parametrize("arguments", [["reproduce", "--help"], ["data", "--help"], ["data", "fetch", "--help"]])
def test_help_comes_without_torch(arguments):
    look = f"import sys; sys.argv = ['gradsieve', *{arguments!r}]\ntry: import gradsieve.__main__\n"
    look += "except SystemExit: print([name for name in ('torch', 'numpy', 'pooch') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60)
    assert "Usage" in answer.stdout
    assert answer.stdout.endswith("[]\n"), answer.stderr


def test_a_grid_is_planned_run_and_published(gradsieve, tmp_path):
    out, results = f"--out={tmp_path}/grid", tmp_path / "results"
    plan = gradsieve(*TINY, out, "--seeds=2", "--dry-run")
    assert plan.code == 0
    assert plan.out.count("to run") == 3  # two runs, and their number
    assert plan.out.splitlines()[-1].endswith("by a stated 4 ms a step of one mlp on cpu.")
    assert not (tmp_path / "grid").exists()
    ran = gradsieve(*TINY, out, "--seeds=1", "--json")
    assert (ran.code, ran.err) == (0, "")
    (record,) = json.loads(ran.out)["table2"]
    assert gradsieve("publish", tmp_path / "grid", f"--to={results}").out == f"{results / 'table2.json'}\n"
    assert json.loads((results / "table2.json").read_text()) == [record]
    plan = json.loads(gradsieve(*TINY, out, "--seeds=2", "--dry-run", "--json").out)
    assert [run["finished"] for run in plan["runs"]] == [True, False]
    assert (plan["left"], plan["basis"]) == (1, "the seconds of finished runs")
    words = gradsieve(*TINY, out, "--seeds=1")
    assert "| digits-sym-40 | gradsieve |" in words.out
    assert words.out.rstrip().endswith("table2.md")


def test_a_grid_without_a_folder_gets_one_by_what_it_is(gradsieve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gradsieve(*TINY, "--seeds=1", "--preset=proper")
    assert (tmp_path / "runs" / "grid-digits-proper-1-epochs" / "table2.md").exists()


def test_an_interrupted_grid_says_how_to_go_on(gradsieve, tmp_path, monkeypatch):
    def interrupt(*rest, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "run_cells", interrupt)
    answer = gradsieve(*TINY, f"--out={tmp_path}/grid")
    assert answer.code == 130
    assert answer.err == f"stopped. What is finished is in {tmp_path}/grid; the same command goes on from there.\n"


def test_runs_without_a_result_are_told_and_the_command_fails(gradsieve, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "attempt", lambda task: Outcome("diverged", "It became NaN."))
    answer = gradsieve(*TINY, f"--out={tmp_path}/grid", "--seeds=1", "--json")
    assert (answer.code, answer.out) == (1, "{}\n")
    assert answer.err == "digits-sym-40 spl seed 1 has no result: It became NaN.\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["reproduce", "table9"], "There is no experiment 'table9'"),
        (["reproduce", "table2", "--rows=CF10-pf-40"], "There is no row 'CF10-pf-40'"),
        (["reproduce", "table2", "--methods=prl"], "There is no method 'prl'"),
        (["reproduce", "table2", "--seeds=some"], "--seeds is 'some'"),
        (["reproduce", "table2", "--preset=best"], "--preset is 'best'"),
        (["reproduce", "table2", "--model-option=width"], "must read name=value"),
        (["reproduce", "table2", "--rows=CF10-pf-45"], "no folder was given"),
        (["reproduce", "table1", "--rows=clean"], "no folder was given"),
        (["publish", "nowhere"], "nowhere has no records: no table1.json"),
        (["data", "fetch", "imagenet"], "There is no data set to fetch 'imagenet'"),
        (["data", "fetch", "digits"], "It comes with scikit-learn"),
        (["data", "check", "nowhere"], "There is no folder nowhere"),
    ],
)
def test_an_error_is_one_line_and_code_2(gradsieve, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    answer = gradsieve(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert says in answer.err


def test_check_tells_people_and_machines(gradsieve, tmp_path):
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-100-binary" / "test.bin").write_bytes(b"not much")
    answer = gradsieve("data", "check", tmp_path)
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert lines[:2] == ["cifar10    absent", "cifar100   incomplete"]
    assert "train.bin is missing" in lines[2]
    assert "test.bin differs from what was published" in lines[3]
    assert "fine_label_names.txt is missing: classes would be shown as numbers" in lines[4]
    found = json.loads(gradsieve("data", "check", tmp_path, "--json").out)
    assert [each["state"] for each in found] == ["absent", "incomplete", "absent", "absent"]
    assert len(found[1]["problems"]) == 3
