"""A search on rows that cannot be trusted: the vote finds what the mean error would not, and a sweep goes on."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

optuna = pytest.importorskip("optuna")

from gradsieve.errors import GradsieveError, InputError, RunFolderError  # noqa: E402
from gradsieve.experiments import sweep  # noqa: E402
from gradsieve.experiments.sweep import sweep_file  # noqa: E402
from gradsieve.files.fit import predict_file  # noqa: E402
from gradsieve.tables.model_folder import load_model  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def rates(trial):
    """A small space of a user's own."""
    return {"drop_rate": trial.suggest_categorical("drop_rate", [0.0, 0.35]), "hidden": [16], "learning_rate": 0.01}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Three targets in ten are wrong, all to one side."""
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 3))
    y = x[:, 0] + np.sin(2 * x[:, 1])
    y[random.random(600) < 0.3] += 6
    path = tmp_path_factory.mktemp("sweep") / "t.csv"
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="a,b,c,y", comments="")
    return path


@pytest.fixture(scope="module")
def swept(table, tmp_path_factory):
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("swept") / "s"
    return out, sweep_file(table, ["y"], out, trials=4, space=rates, epochs=30, device="cpu")


def test_the_vote_finds_the_rate(swept, table):
    out, result = swept
    assert result["settings"]["drop_rate"] == 0.35
    assert (out / "journal.log").stat().st_size > 0
    assert len(list((out / "answers").iterdir())) == 4
    assert load_model(out / "model").design.options == {"hidden": [16]}
    values = np.array([float(line.split(",")[1]) for line in predict_file(out / "model", table).splitlines()[1:]])
    x = np.loadtxt(table, delimiter=",", skiprows=1)
    truth = x[:, 0] + np.sin(2 * x[:, 1])
    assert 1 - np.mean((values - truth) ** 2) / np.var(truth) > 0.7


def test_nothing_is_tried_twice_and_more_trials_go_on(swept, table, tmp_path, monkeypatch):
    out, result = swept
    monkeypatch.setattr(sweep, "try_out", None)  # would fail if it were called
    monkeypatch.setattr(sweep, "save_winner", None)
    assert sweep_file(table, ["y"], out, trials=4, space=rates, epochs=30, device="cpu") == result


def test_a_parameter_that_is_chosen_from_other_values_is_refused_in_words(swept, table, tmp_path):
    shutil.copytree(swept[0], tmp_path / "s")

    def others(trial):
        return rates(trial) | {"drop_rate": trial.suggest_categorical("drop_rate", [0.1, 0.2])}

    with pytest.raises(
        InputError, match=r"offer the same choices as in earlier trials\. Correct it, or choose another folder as out"
    ):
        sweep_file(table, ["y"], tmp_path / "s", trials=5, space=others, epochs=30, device="cpu")


def test_a_sweep_does_not_go_on_under_other_code(table, tmp_path, write_module):
    score = "from gradsieve.methods.prl_l import PRLL\n\n\nclass Mine(PRLL):\n    pass\n"
    settings = {"trials": 2, "space": rates, "epochs": 1, "device": "cpu", "method": "mine:Mine"}
    write_module("mine", score)
    sweep_file(table, ["y"], tmp_path / "s", **settings)
    write_module("mine", f"{score}    drops_more = True\n")
    with pytest.raises(RunFolderError, match=r"holds a sweep of other code: mine\.py has changed since"):
        sweep_file(table, ["y"], tmp_path / "s", **settings)


def test_a_sweep_that_is_killed_in_a_trial_goes_on_with_the_same_trials(swept, table, tmp_path, monkeypatch):
    calls, real = [], sweep.try_out

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(sweep, "try_out", killed)
    with pytest.raises(KeyboardInterrupt):
        sweep_file(table, ["y"], tmp_path / "s", trials=4, space=rates, epochs=30, device="cpu")
    result = sweep_file(table, ["y"], tmp_path / "s", trials=4, space=rates, epochs=30, device="cpu")
    assert len(calls) == 5
    names = ("settings", "score", "confidence", "decided", "trials")
    assert [result[name] for name in names] == [swept[1][name] for name in names]


def test_a_sweep_that_is_killed_before_it_wrote_its_result_goes_on(swept, table, tmp_path):
    out, result = swept
    shutil.copytree(out, tmp_path / "s")
    (tmp_path / "s" / "sweep.json").unlink()
    again = sweep_file(table, ["y"], tmp_path / "s", trials=4, space=rates, epochs=30, device="cpu")
    assert {**again, "model": ""} == {**result, "model": ""}
    assert (tmp_path / "s" / "sweep.json").exists()


def test_a_sweep_that_is_killed_at_its_start_begins_again(table, tmp_path):
    out = tmp_path / "s"
    (out / "answers").mkdir(parents=True)
    (out / "config.json.part").write_text("{")
    assert sweep_file(table, ["y"], out, trials=2, space=rates, epochs=1, device="cpu")["trials"] == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_two_processes_do_not_search_in_one_folder(table, tmp_path):
    """Each would close the trials of the other as left behind by a kill."""
    settings = {"trials": 2, "epochs": 1, "device": "cpu"}

    def search_beside(trial):
        with pytest.raises(RunFolderError, match="in use by another process"):
            sweep_file(table, ["y"], tmp_path / "s", space=rates, **settings)
        return rates(trial)

    assert sweep_file(table, ["y"], tmp_path / "s", space=search_beside, **settings)["trials"] == 2
    assert sweep_file(table, ["y"], tmp_path / "s", space=rates, **settings)["trials"] == 2


def test_a_trial_that_diverges_is_a_result(table, tmp_path, monkeypatch):
    real, notes = sweep.try_out, []

    def sometimes(base, settings, *rest):
        if settings["drop_rate"] == 0.0:
            raise GradsieveError("The loss became NaN")
        return real(base, settings, *rest)

    monkeypatch.setattr(sweep, "try_out", sometimes)
    sweep_file(table, ["y"], tmp_path / "s", trials=6, space=rates, epochs=3, device="cpu", note=notes.append)
    assert any("has diverged" in note for note in notes)
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["trials"] == 6


def test_a_trial_whose_answers_are_not_finite_has_diverged(table, tmp_path, monkeypatch):
    """Its loss may be finite all the same: that is of the rows that it was trained on."""
    real, calls, notes = sweep.mean_outputs, [], []

    def sometimes(*arguments):
        calls.append(arguments)
        return real(*arguments) * (np.inf if len(calls) == 2 else 1)

    monkeypatch.setattr(sweep, "mean_outputs", sometimes)
    result = sweep_file(table, ["y"], tmp_path / "s", trials=3, space=rates, epochs=3, device="cpu", note=notes.append)
    assert "trial 2/3 has diverged" in notes
    assert result["trials"] == 3
    assert len(result["finalists"]) == 2


def test_a_full_disk_is_one_error_and_the_sweep_goes_on(swept, table, tmp_path):
    """/dev/full answers as a full disk does."""
    part = tmp_path / "s" / "answers" / "0.npy.part"

    def full(trial):
        part.symlink_to("/dev/full")
        return rates(trial)

    settings = {"trials": 4, "epochs": 30, "device": "cpu"}
    with pytest.raises(RunFolderError, match=r"0\.npy could not be written \(No space left on device\)"):
        sweep_file(table, ["y"], tmp_path / "s", space=full, **settings)
    assert not list(part.parent.iterdir())
    assert sweep_file(table, ["y"], tmp_path / "s", space=rates, **settings)["score"] == swept[1]["score"]


def test_the_command(gradsieve, table, tmp_path):
    done = gradsieve("sweep", table, "--target", "y", "--trials", 2, "--epochs", 2, "--out", tmp_path / "s", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["trials"] == 2
    assert done.err.count("trial ") == 2


def test_refused(swept, table, tmp_path):
    with pytest.raises(RunFolderError, match=r"holds another sweep \(epochs is 30 there, 31 here\)"):
        sweep_file(table, ["y"], swept[0], trials=4, space=rates, epochs=31, device="cpu")
    other = tmp_path / "other.csv"
    other.write_text(table.read_text() + "1,2,3,4\n")
    with pytest.raises(RunFolderError, match="holds a sweep of other data, or the data has changed since"):
        sweep_file(other, ["y"], swept[0], trials=4, space=rates, epochs=30, device="cpu")
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match="no sweep"):
        sweep_file(table, ["y"], tmp_path, trials=2, space=rates)
    with pytest.raises(InputError, match="trials"):
        sweep_file(table, ["y"], tmp_path / "s", trials=1)
    with pytest.raises(InputError, match="a fit has no such setting"):
        sweep_file(table, ["y"], tmp_path / "s", trials=2, space=lambda trial: {"speed": 9})
    with pytest.raises(InputError, match=r"hidden.* takes no such value"):
        sweep_file(table, ["y"], tmp_path / "s", trials=2, space=lambda trial: {"hidden": 16})
    with pytest.raises(InputError, match="The space gives no settings"):
        sweep_file(table, ["y"], tmp_path / "s", trials=2, space=lambda trial: 16)
    small = tmp_path / "small.csv"
    small.write_text("a,y\n" + "".join(f"{i},{i * 0.5}\n" for i in range(50)))
    with pytest.raises(InputError, match="a sweep needs 200"):
        sweep_file(small, ["y"], tmp_path / "s", trials=2)


def test_a_folder_of_images_is_searched_without_layers(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for number in range(40):
        folder = tmp_path / "data" / ("dark", "light")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 100, (8, 8, 3)) + 120 * (number % 2)
        image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    monkeypatch.setattr(sweep, "LEAST_ROWS", 40)
    done = sweep_file(tmp_path / "data", [], tmp_path / "s", trials=2, epochs=1, device="cpu")
    assert set(done["settings"]) == {"drop_rate", "learning_rate"}
