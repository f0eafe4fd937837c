"""drop_rate="auto" of a run: picked before it starts, written down, and kept by whoever goes on with it."""

import contextlib
import json
import math
import time

import pytest
import torch

from gradsieve import seeds
from gradsieve.choosing import electorate
from gradsieve.choosing.pick import RatePick, no_pick
from gradsieve.errors import CheckpointError, InputError
from gradsieve.training import auto_rate
from gradsieve.training.folder import read_folder
from gradsieve.training.loop import train
from gradsieve.training.run import Run, make_run
from gradsieve.training.setting import prepare

pytestmark = pytest.mark.filterwarnings("ignore:About .* of the targets seem wrong", "ignore:The held-out rows cannot")


@pytest.fixture(autouse=True)
def _two_parts(monkeypatch):
    """Of the rows, so that a candidate is two networks: enough for what is shown here."""
    monkeypatch.setattr(electorate, "MOST_PARTS", 2)


def same_weights(first, second):
    return all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights | second.weights)


@pytest.fixture
def auto(digits):
    return lambda *method, **changes: digits(*method, drop_rate="auto", **{"epochs": 4, **changes})


def test_the_run_is_that_of_the_picked_rate(auto, digits, tmp_path):
    settings = {"rate": 0.3, "epochs": 8, "learning_rate": 1e-2, "corruption": "pairflip"}
    run = auto(**settings)
    result = train(run, tmp_path / "auto")
    pick = json.loads((tmp_path / "auto" / "pick.json").read_text())
    assert pick.keys() - result.summary["pick"].keys() == {"data_sha256", "sha256"}
    assert pick | result.summary["pick"] == pick
    assert 0 < pick["rate"] <= 0.5
    assert same_weights(result, train(digits(drop_rate=pick["rate"], **settings)))
    assert read_folder(tmp_path / "auto").run == run == Run.from_json(result.summary["run"])
    assert result.history[-1]["drop_rate"] == pick["rate"]


def test_a_run_without_a_folder_picks_the_same(auto, tmp_path):
    run = auto(epochs=2)
    assert same_weights(train(run, tmp_path / "run"), train(run))


def test_a_run_goes_on_with_the_pick_that_it_began_with(auto, digits, tmp_path, monkeypatch):
    run = auto()
    whole = train(run, tmp_path / "whole")
    begun = tmp_path / "begun"
    monkeypatch.setattr(auto_rate, "race", never)
    begun.mkdir()
    (begun / "config.json").write_text(json.dumps(run.to_json()))
    (begun / "pick.json").write_text((tmp_path / "whole" / "pick.json").read_text())
    assert same_weights(train(run, begun, resume=True), whole)


def never(*arguments, **options):
    raise AssertionError("there is a pick already")


def test_killed_while_it_chooses_it_chooses_the_same(auto, tmp_path, monkeypatch):
    run = auto()
    whole = train(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(auto_rate, "write_json", never)
        with pytest.raises(AssertionError):
            train(run, tmp_path / "killed")
    again = train(run, tmp_path / "killed", resume=True)
    assert again.summary["pick"] == whole.summary["pick"]
    assert same_weights(again, whole)


def test_killed_after_a_step_it_ends_with_the_same_bits(auto, command, tmp_path):
    arguments = ["train", "--data", "digits", "--corruption", "symmetric", "--rate", "0.3", "--drop-rate", "auto"]
    arguments += ["--epochs", "3", "--model-option", "hidden=[16]", "--save-every", "0", "--out"]
    assert command.run(*arguments, tmp_path / "whole") == 0
    command.start(*arguments, tmp_path / "killed")
    while (
        not list(tmp_path.glob("killed/state/state-*.safetensors")) and not (tmp_path / "killed/result.json").exists()
    ):
        time.sleep(0.01)
    command.signal(9)
    command.wait()
    assert command.run(*arguments, tmp_path / "killed", "--resume") == 0
    files = [tmp_path / name / "weights.safetensors" for name in ("whole", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.fixture
def picked(tmp_path):
    """The file of a pick, and the bits of one from before it had checksums."""
    path, pick = tmp_path / "pick.json", RatePick(0.25, 0.21, (0.1, 0.3), rates=(0.0, 0.25), margins=(0.5, math.nan))
    auto_rate.write_json(path, pick.to_json())
    before = path.read_bytes()
    auto_rate.write_pick(path, pick, "rows")
    return path, before


def test_no_flipped_bit_of_a_pick_loads_another(picked):
    path, _ = picked
    content, expected = path.read_bytes(), auto_rate.read_pick(path, "rows").to_json()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with contextlib.suppress(CheckpointError):
            assert auto_rate.read_pick(path, "rows").to_json() == expected  # blanks mean nothing to JSON


def test_a_pick_from_before_it_had_checksums_is_read(picked):
    path, before = picked
    expected = auto_rate.read_pick(path, "rows").to_json()
    path.write_bytes(before)
    assert auto_rate.read_pick(path, "any").to_json() == expected


@pytest.mark.filterwarnings("ignore:64 rows are too few")
def test_a_pick_does_not_go_on_with_other_data(tmp_path):
    rows, run = tmp_path / "rows.csv", {"epochs": 2, "batch_size": 16, "drop_rate": "auto"}
    rows.write_text("a,b,y\n" + "\n".join(f"{i % 7},{i % 5},{i % 3}" for i in range(80)))
    run = make_run("table", "prl-l", data_dir=str(rows), **run)
    train(run, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed after its pick
    rows.write_text("a,b,y\n" + "\n".join(f"{i % 7},{i % 5},{i % 2}" for i in range(80)))
    with pytest.raises(CheckpointError, match=r"pick\.json was chosen by other training rows.*choose again"):
        train(run, tmp_path / "run", resume=True)


def test_choosing_takes_time_that_counts(auto, monkeypatch):
    monkeypatch.setattr(auto_rate, "choose_rate", lambda *args: time.sleep(0.5) or no_pick())
    result = train(auto(epochs=1))
    assert result.summary["seconds"] == result.history[-1]["seconds"] > 0.5


def test_candidates_have_no_test_rows_and_other_random_numbers_when_they_go_on(auto, monkeypatch):
    streams, real, setting = [], auto_rate.reproducible, prepare(auto("prl-l"))

    def noted(seed, device):
        streams.append(seed)
        return real(seed, device)

    def race(begin, electorate, targets, seed):
        runner = begin(0.0, electorate.whole)
        runner.train(0.5)
        runner.train(1.0)
        tested = runner.trainer.test_inputs
        assert len(tested) == 2
        assert tested.equal(setting.data.train.inputs[electorate.whole.trained[:2]])
        return no_pick()

    monkeypatch.setattr(auto_rate, "reproducible", noted)
    monkeypatch.setattr(auto_rate, "race", race)
    auto_rate.choose_rate(setting)
    assert streams == [seeds.derive(setting.run.seed, "candidate", epoch) for epoch in (1, 3)]


def test_clean_rows_stay(auto):
    result = train(auto(corruption="none", rate=0.0, epochs=6))
    assert result.summary["pick"]["rate"] == 0


def test_images_and_landmarks(faces):
    run = faces("prl-l", drop_rate="auto", data_options={"train": 240, "test": 16, "size": 28})
    pick = train(run).summary["pick"]
    assert len(pick["margins"]) == 6


def test_few_rows_and_methods_that_drop_none(faces, auto):
    with pytest.warns(UserWarning, match="64 rows are too few") as caught:
        assert "too few" in train(faces(drop_rate="auto")).summary["pick"]["warning"]
    assert caught[0].filename == __file__
    assert train(auto("standard")).summary["pick"]["rate"] == 0


def test_the_choice_leaves_the_callers_random_numbers_alone(auto):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    train(auto(epochs=2))
    assert torch.equal(torch.rand(3), expected)


def test_bad_input(digits, auto, tmp_path):
    with pytest.raises(InputError, match="drop_rate is 'most'"):
        digits(drop_rate="most")
    with pytest.raises(InputError, match="would keep no row"):
        make_run("digits", drop_rate=0.7, batch_size=3)
    train(auto(epochs=2), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "pick.json").write_text('{"rate": 3}')
    with pytest.raises(CheckpointError, match=r"pick\.json is damaged"):
        train(auto(epochs=2), tmp_path / "run", resume=True)
