"""Training: the same bits for the same seed, the plan it was given, and no knowledge of what is corrupted."""

import json
import math
import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from gradsieve.errors import GradsieveError, InputError, RunFolderError
from gradsieve.methods import METHODS
from gradsieve.metrics import METRICS
from gradsieve.training.evaluate import predict
from gradsieve.training.feed import epoch_order
from gradsieve.training.folder import read_folder
from gradsieve.training.loop import train
from gradsieve.training.progress import Progress
from gradsieve.training.repeatable import reproducible
from gradsieve.training.result import load_result
from gradsieve.training.run import make_run
from gradsieve.training.setting import prepare
from gradsieve.training.trainer import Trainer, start


def same(one, other):
    """Whether two results have the same bits in every weight."""
    return one.weights.keys() == other.weights.keys() and all(
        one.weights[n].equal(other.weights[n]) for n in one.weights
    )


def without_seconds(history):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def test_a_result_is_a_line(digits):
    result = train(digits(epochs=1))
    assert repr(result).startswith(f"Result(digits, prl-l, 1 epochs: accuracy {result.last:.4f}, mean")
    assert len(repr(result)) < 120


@pytest.mark.parametrize(("kind", "method"), [("digits", "co-prl-l"), ("faces", "prl-l")])
def test_the_trained_networks_can_be_had(kind, method, request, tmp_path):
    run = request.getfixturevalue(kind)(method)
    result, data = train(run, tmp_path / "run"), prepare(run).data
    for found in (result, load_result(str(tmp_path / "run"))):
        networks = found.networks()
        assert len(networks) == METHODS[method].networks
        scores = [
            METRICS[data.task][1](predict(each, data.test.inputs, torch.device("cpu")), data.test.targets)
            for each in networks
        ]
        # On a GPU, convolutions are rounded to bf16.
        assert np.mean(scores) == pytest.approx(result.last, rel=1e-2 if torch.cuda.is_available() else 1e-6)
        assert not any(each.training for each in networks)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunFolderError, match="not finished"):
        load_result(tmp_path / "run")


# The same again.


@pytest.mark.parametrize("kind", ["digits", "faces"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(kind, request):
    make = request.getfixturevalue(kind)
    first = train(make(seed=3))
    torch.manual_seed(99)  # whatever the caller does in between
    second, other = train(make(seed=3)), train(make(seed=4))
    assert same(first, second)
    assert without_seconds(first.history) == without_seconds(second.history)
    assert first.ledger.score_sum.equal(second.ledger.score_sum)
    assert not same(first, other)


@pytest.mark.parametrize("kind", ["digits", "faces"])
def test_the_default_dtype_of_torch_does_not_matter(kind, request):
    make = request.getfixturevalue(kind)
    first = train(make(seed=3))
    torch.set_default_dtype(torch.float64)
    try:
        second = train(make(seed=3))
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(first, second)


def test_a_run_needs_no_gradients_of_the_program_around(digits):
    expected = train(digits(seed=3))
    with torch.no_grad():
        assert same(train(digits(seed=3)), expected)


def test_a_run_in_inference_mode_is_told_what_to_use_instead(digits, tmp_path):
    with torch.inference_mode(), pytest.raises(InputError, match=r"Train outside of it, or use torch.no_grad"):
        train(digits(seed=3), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_runs_in_threads_have_the_bits_of_runs_alone(digits):
    """torch has one default generator for all threads."""
    runs = [digits(seed=seed) for seed in range(4)]
    alone = [train(run) for run in runs]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(same, alone, pool.map(train, runs)))


def test_the_corruption_seed_decides_which_rows_are_wrong(digits):
    one, again, other = (prepare(digits(seed=3, corruption_seed=seed)) for seed in (1, 1, 2))
    assert one.is_corrupted.equal(again.is_corrupted)
    assert not one.is_corrupted.equal(other.is_corrupted)
    assert int(one.is_corrupted.sum()) == int(0.3 * len(one.is_corrupted))


def test_the_random_numbers_of_the_caller_go_on_as_if_nothing_had_happened(faces):
    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    train(faces(), bounds=True)
    assert torch.get_rng_state().equal(before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]


def test_the_order_of_rows_is_a_function_of_seed_and_epoch():
    rows = torch.arange(100)
    order = epoch_order(1, 2, rows)
    torch.manual_seed(123)
    assert order.equal(epoch_order(1, 2, rows))
    assert order.sort().values.equal(rows)
    assert not order.equal(epoch_order(1, 3, rows))
    assert not order.equal(epoch_order(2, 2, rows))
    assert set(epoch_order(1, 2, rows[50:]).tolist()) == set(range(50, 100))


@pytest.mark.parametrize("method", ["prl-l", "co-teaching", "standard"])
def test_what_is_really_corrupted_does_not_reach_the_weights(digits, method):
    """The truth is for metrics: with any other truth they change, and nothing else does."""
    setting = prepare(digits(method))
    liar = replace(setting, is_corrupted=~setting.is_corrupted, clean_targets=torch.zeros_like(setting.clean_targets))
    states = []
    for each in (setting, liar):
        state = start(each)
        with reproducible(each.run.seed, each.device):
            Trainer(each, state, None, Progress(), None, save_every=math.inf).train()
        states.append(state)
    honest, told = states
    assert all(honest.weights()[name].equal(told.weights()[name]) for name in honest.weights())
    assert honest.ledger.dropped.equal(told.ledger.dropped)
    assert honest.history[-1]["purity"] == pytest.approx(1 - told.history[-1]["purity"])


# What is left.


def test_the_folder_holds_the_run_its_result_its_history_and_its_weights(digits, tmp_path):
    run = digits("co-prl-l", epochs=12)
    result = train(run, tmp_path / "run")
    folder = read_folder(tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "result.json").read_text())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json",
        "ledger.safetensors",
        "metrics.jsonl",
        "result.json",
        "weights.safetensors",
    ]
    assert folder.run == run
    assert summary == result.summary
    assert summary["run"] == run.to_json()
    assert summary["metric"] == "accuracy"
    tests = [record["test"] for record in result.history]
    assert summary["last"] == result.last == tests[-1]
    assert summary["last10_mean"] == pytest.approx(np.mean(tests[-10:]))
    assert summary["last10_std"] == pytest.approx(np.std(tests[-10:]))
    assert summary["purity"] == result.purity == result.history[-1]["purity"]
    assert summary["seconds"] > 0
    assert (summary["rows"], summary["corrupted"]) == (1437, 431)
    assert {"gradsieve", "torch", "python", "device"} <= summary["versions"].keys()
    assert folder.metrics() == result.history
    assert all(folder.weights()[name].equal(tensor) for name, tensor in result.weights.items())
    assert folder.ledger()["dropped"].equal(result.ledger.dropped)


def test_every_epoch_leaves_a_record(digits):
    history = train(digits("co-prl-l")).history
    assert [record["epoch"] for record in history] == [1, 2]
    for record in history:
        assert record["metric"] == "accuracy"
        assert record["test"] == pytest.approx(np.mean(record["test_of_network"]))
        assert len(record["test_of_network"]) == 2
        assert math.isfinite(record["loss"])
        assert 0 < record["purity"] <= 1
        assert len(record["kept_share_of_class"]) == 10
        assert all(0 <= share <= 1 for share in record["kept_share_of_class"])
    assert (
        "kept_share_of_class"
        not in train(
            make_run("landmarks", "standard", epochs=1, data_options={"train": 32, "test": 8, "size": 16})
        ).history[0]
    )


def test_without_a_folder_nothing_is_written(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(digits())
    assert not any(tmp_path.iterdir())


def test_training_on_mostly_right_labels_learns(digits):
    result = train(digits(epochs=15, ramp=3, model_options={"hidden": [64]}))
    assert result.last > 0.85
    assert result.purity > 0.9  # of labels that are 70 % right


# The plan.


def test_the_learning_rate_falls_over_the_last_six_tenths(digits):
    history = train(digits(epochs=10, learning_rate=0.6)).history
    planned = [0.6] * 5 + [0.5, 0.4, 0.3, 0.2, 0.1]
    assert [record["learning_rate"] for record in history] == pytest.approx(planned)


def test_the_learning_rate_of_the_authors_is_constant(digits):
    run = digits(epochs=4, preset="authors")
    history = train(run).history
    assert [record["learning_rate"] for record in history] == [run.learning_rate] * 4


@pytest.mark.parametrize(
    ("schedule", "planned"),
    [("ramp", [0.1, 0.2, 0.3, 0.3]), ("wait", [0, 0, 0, 0.3]), ("constant", [0.3] * 4)],
)
def test_the_drop_rate_follows_the_schedule(digits, schedule, planned):
    history = train(digits(epochs=4, ramp=3, schedule=schedule)).history
    assert [record["drop_rate"] for record in history] == pytest.approx(planned)


def test_a_schedule_counts_steps_if_told_to(digits):
    setting = prepare(digits(schedule_unit="step", ramp=30, epochs=2))
    assert setting.steps_an_epoch == 1437 // 64
    assert [setting.drop_rate(1, step) for step in range(3)] == pytest.approx([0.01, 0.02, 0.03])
    assert setting.drop_rate(2, 0) == pytest.approx(0.23)
    assert setting.drop_rate(2, 21) == 0.3
    history = train(setting.run).history
    assert [record["drop_rate"] for record in history] == pytest.approx([0.22, 0.3])


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of the user's, with schedules in it."""
    (tmp_path / "my_schedules.py").write_text(
        "def late(T, drop_rate, ramp): return drop_rate if T > 1 else 0\n"
        "def wild(T, drop_rate, ramp): return T / 2\n"
        "def narrow(T): return 0.1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_schedules"
    sys.modules.pop("my_schedules", None)


def test_a_function_of_the_users_own_sets_the_drop_rate(digits, own_module):
    history = train(digits(schedule=f"{own_module}:late")).history
    assert [record["drop_rate"] for record in history] == [0, 0.3]


@pytest.mark.parametrize(("function", "says"), [("wild", r"at T=2: rate is 1\.0"), ("narrow", "at T=1: .*argument")])
def test_a_schedule_that_cannot_work_is_found_before_training(digits, own_module, tmp_path, function, says):
    with pytest.raises(InputError, match=f"schedule 'my_schedules:{function}' {says}"):
        train(digits(schedule=f"{own_module}:{function}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_spl_can_trim_the_whole_set_once_an_epoch(digits):
    run = digits("spl", method_options={"level": "data"}, batch_size=100, drop_rate=0.5, epochs=3)
    with pytest.warns(UserWarning, match="bounds do not hold"):
        result = train(run)
    # 719 of 1437 rows are left out in each epoch. The others fill 7 batches, and 18 of them stay over.
    assert result.ledger.dropped.sum() == 3 * 719
    assert result.ledger.judged.sum() == 3 * (719 + 700)


# The bounds.


def test_the_error_of_the_gradient_stays_below_its_bound(digits):
    history = train(digits(epochs=3), bounds=True).history
    for record in history:
        error = record["gradient_error"]
        assert 0 < error["error"] <= error["lemma1"] < math.inf
        assert error["epsilon"] == pytest.approx(0.3, abs=1 / 64)


def test_watching_the_bounds_does_not_change_a_run(faces):
    run = faces("prl-l", preset="authors")  # dropout even while scoring
    assert same(train(run), train(run, bounds=True))


def test_rows_that_all_stay_have_no_bound_and_json_says_null(digits, tmp_path):
    history = train(digits("standard", epochs=1), tmp_path / "run", bounds=True).history
    assert history[0]["gradient_error"]["lemma1"] == math.inf
    assert read_folder(tmp_path / "run").metrics()[0]["gradient_error"]["lemma1"] is None


@pytest.mark.parametrize(("changes", "warned"), [({"rate": 0.5}, 1), ({"drop_rate": 0.6}, 1), ({"rate": 0.49}, 0)])
def test_a_rate_from_one_half_on_is_warned_of_once(digits, changes, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(digits(epochs=1, **changes))
    assert len([each for each in caught if "bounds do not hold" in str(each.message)]) == warned


# Trouble.


@pytest.mark.parametrize("method", ["standard", "prl-l"])
def test_a_run_that_diverges_says_so_and_leaves_a_usable_folder(tmp_path, method):
    options = {"train": 64, "test": 8, "size": 16}
    run = make_run("landmarks", method, learning_rate=1e30, epochs=3, batch_size=8, data_options=options)
    with pytest.raises(GradsieveError, match=r"epoch 1: the training has diverged.* smaller learning_rate.*1e\+30"):
        train(run, tmp_path / "run", save_every=0)
    folder = read_folder(tmp_path / "run")
    assert folder.run == run
    assert not folder.finished
    with pytest.raises(GradsieveError, match="diverged"):
        train(run, tmp_path / "run", resume=True)


def test_weights_that_diverge_in_the_last_step_of_an_epoch_are_noticed_in_it(digits):
    """Every loss of the epoch is finite: its only step is the one after which no weight is."""
    with pytest.raises(GradsieveError, match="a weight became NaN or infinite in epoch 1"):
        train(digits("standard", learning_rate=1e39, batch_size=1437, epochs=3))


def test_training_works_in_a_thread(digits, tmp_path):
    """Signals belong to the main thread; a run in another one does without."""
    results = []
    thread = threading.Thread(target=lambda: results.append(train(digits(), tmp_path / "run", save_every=0)))
    thread.start()
    thread.join()
    assert same(results[0], train(digits()))


def test_a_result_without_a_number_is_nan_before_and_after_the_folder(tmp_path):
    """R2 of a single test row is not defined, and JSON has no NaN."""
    run = make_run("landmarks", "standard", epochs=1, data_options={"train": 32, "test": 1, "size": 16})
    assert math.isnan(train(run, tmp_path / "run").last)
    assert math.isnan(train(run, tmp_path / "run", resume=True).last)


def test_bf16_trains_too(digits):
    result = train(digits(precision="bf16"))
    assert all(tensor.isfinite().all() and tensor.dtype == torch.float32 for tensor in result.weights.values())
    assert not same(result, train(digits()))


def test_how_exact_cudnn_is_stays_the_callers_choice(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    with reproducible(0, torch.device("cpu")):
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cudnn.enabled
        assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.deterministic
