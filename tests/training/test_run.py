"""A run is complete, frozen, checked, and the same after a round trip through JSON."""

import dataclasses
import json

import pytest
import torch.nn.functional as F

from gradsieve.data import DATASETS
from gradsieve.errors import InputError
from gradsieve.method import make_method
from gradsieve.methods import METHODS
from gradsieve.models import MODELS
from gradsieve.training.run import Run, make_run


@pytest.mark.parametrize("data", ["digits", "landmarks", "cifar10", "mnist"])
def test_what_nobody_says_comes_from_the_recipe_of_the_data_set(data):
    run, recipe = make_run(data), DATASETS[data].recipe
    for name in ("model", "epochs", "batch_size", "learning_rate", "ramp"):
        assert getattr(run, name) == getattr(recipe, name)
    assert (run.method, run.corruption, run.rate, run.drop_rate) == ("prl-l", "none", 0.0, 0.0)


def test_what_is_given_wins_and_none_means_not_given():
    run = make_run("digits", epochs=3, batch_size=None, ramp=0, drop_rate=0.1, corruption="symmetric", rate=0.4)
    assert (run.epochs, run.ramp, run.drop_rate) == (3, 0, 0.1)
    assert run.batch_size == DATASETS["digits"].recipe.batch_size


def test_as_much_is_dropped_as_is_corrupted_unless_said_otherwise():
    assert make_run("digits", corruption="symmetric", rate=0.4).drop_rate == 0.4
    assert make_run("digits", corruption="symmetric", rate=0.4, drop_rate=0.0).drop_rate == 0.0


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("method", METHODS)
def test_the_authors_preset_trains_as_their_code_does(method, seed):
    run = make_run("cifar10", method, preset="authors", seed=seed)
    assert (run.decay, run.corruption_seed, run.seed) == ("constant", 0, seed)
    assert run.method_options == {"scoring": "train", "passes": METHODS[method].paper_passes}
    assert run.model == "cnn9"
    assert run.model_options["always_dropout"] is True
    task = METHODS[method].tasks[0]
    made = make_method(method, METHODS, F.cross_entropy, task, run.method_options)
    assert (made.scoring, made.passes) == ("train", METHODS[method].paper_passes)


@pytest.mark.parametrize(("norm", "passes"), [("group", "index"), ("batch", "reforward")])
def test_prl_g_of_the_authors_preset_averages_the_gradients_that_it_ranked_where_rows_have_their_own(norm, passes):
    run = make_run("cifar10", "prl-g", preset="authors", model_options={"norm": norm})
    made = make_method("prl-g", METHODS, F.cross_entropy, "classification", run.method_options)
    assert made.passes_of([MODELS["cnn9"]((3, 32, 32), 10, norm=norm)]) == passes


def test_the_authors_preset_asks_for_dropout_only_where_the_model_has_it():
    assert make_run("digits", preset="authors").model_options == {}
    assert make_run("cifar10", preset="authors", model="resnet32").model_options == {}


@pytest.mark.parametrize("seed", [0, 7])
def test_the_proper_preset_decays_and_corrupts_by_the_seed(seed):
    run = make_run("cifar10", seed=seed)
    assert (run.preset, run.decay, run.corruption_seed) == ("proper", "linear", seed)
    assert run.method_options == {}
    assert "always_dropout" not in run.model_options


def test_the_proper_preset_comes_slowly_to_a_rate_beyond_a_half():
    """In ten epochs to 0.7, a network gave whole classes of CIFAR-10 up."""
    beyond = {"corruption": "symmetric", "rate": 0.7}
    assert make_run("cifar10", **beyond).ramp == 30
    assert make_run("cifar10", **{**beyond, "rate": 0.5}).ramp == 10
    assert make_run("cifar10", drop_rate=0.55, **{**beyond, "rate": 0.5}).ramp == 30
    assert make_run("cifar10", drop_rate="auto", **beyond).ramp == 10  # auto drops a half at most
    assert make_run("cifar10", preset="authors", **beyond).ramp == 10
    assert make_run("cifar10", "decouple", **beyond).ramp == 10  # that is how long it waits
    assert make_run("cifar10", ramp=12, **beyond).ramp == 12
    assert make_run("cifar10", schedule="wait", **beyond).ramp == 10
    assert make_run("cifar10", epochs=20, **beyond).ramp == 12  # there must be time left at the full rate
    assert make_run("cifar10", epochs=10, **beyond).ramp == 10


def test_options_add_to_those_of_the_preset():
    run = make_run("cifar10", "spl", preset="authors", method_options={"scoring": "eval"}, model_options={"width": 0.5})
    assert run.method_options == {"scoring": "eval", "passes": "index"}
    assert run.model_options == {"always_dropout": True, "width": 0.5}


def test_a_method_brings_its_own_schedule():
    assert make_run("digits", "decouple").schedule == "wait"
    assert make_run("digits", "prl-l").schedule == "ramp"
    assert make_run("digits", "decouple", schedule="constant").schedule == "constant"


def test_a_run_survives_json(tmp_path):
    run = make_run("table", "spl", data_dir=tmp_path, data_options={"target": "y"}, model_options={"hidden": [8, 8]})
    assert run.data_dir == str(tmp_path)
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


@pytest.mark.parametrize("values", [[], None, 3, {"data": "digits"}, {"surprise": 1}])
def test_json_that_is_no_run_is_one_error(values):
    with pytest.raises(InputError, match="not the settings of a run"):
        Run.from_json(values)


def test_a_run_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_run("digits").epochs = 3


@pytest.mark.parametrize(
    ("settings", "suggestion"),
    [
        ({"data": "digit"}, "digits"),
        ({"method": "prl_l"}, "prl-l"),
        ({"model": "mlpp"}, "mlp"),
        ({"corruption": "symetric", "rate": 0.1}, "symmetric"),
        ({"schedule": "rampe"}, "ramp"),
        ({"learning_rates": 0.1}, "learning_rate"),
        ({"epoch": 3}, "epochs"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(settings, suggestion):
    with pytest.raises(InputError, match=f"Did you mean '{suggestion}'"):
        make_run(**({"data": "digits"} | settings))


WRONG = {
    "data": [5, None, ["digits"]],
    "method": [5, None, ["prl-l"]],
    "model": [5, ["mlp"]],
    "corruption": [5, None],
    "rate": [-0.1, 1, 1.5, float("nan"), "0.1", True, None],
    "drop_rate": [-0.1, 1, 1.5, float("nan"), "0.1", True],
    "schedule": [5, "math:pi", "math:no_such_function", "no_such_module:f", ":f", "math:"],
    "ramp": [-1, 1.5, "1", True],
    "schedule_unit": ["day", 1],
    "decay": ["cosine", 1],
    "preset": ["improper", None, 1],
    "precision": ["fp16", 16],
    "epochs": [0, -1, 2.5, "3", True, float("nan")],
    "batch_size": [0, -1, 2.5, "3", True],
    "learning_rate": [0, -1e-3, float("nan"), float("inf"), "0.1", True],
    "seed": [-1, 1.5, "3", None, True],
    "corruption_seed": [-1, 1.5, "3", True],
    "device": [5, ["cpu"]],
    "data_dir": [5, ["folder"]],
    "data_options": [[], "x", {1: 2}, {"x": object()}, {"x": float("nan")}],
    "method_options": [["x"], "x", {1: 2}, {"x": {1, 2}}],
    "model_options": [["x"], "x", {1: 2}, {"x": b"bytes"}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_bad_value_is_one_error_that_names_it(name, value):
    settings = make_run("digits", corruption="symmetric", rate=0.1).to_json()
    with pytest.raises(InputError) as caught:
        Run.from_json(settings | {name: value})
    said = str(caught.value)
    named = {"data": "data set"}.get(name, name)
    assert named in said or repr(value) in said
    assert "\n" not in said


def test_a_rate_of_no_corruption_is_refused():
    with pytest.raises(InputError, match=r"rate is 0\.3, but corruption is 'none'"):
        make_run("digits", rate=0.3)


@pytest.mark.parametrize(("batch_size", "drop_rate", "fits"), [(10, 0.9, True), (9, 0.9, False), (2, 0.5, True)])
def test_a_batch_must_keep_a_row(batch_size, drop_rate, fits):
    settings = {"batch_size": batch_size, "drop_rate": drop_rate}
    if fits:
        make_run("digits", "prl-l", **settings)
    else:
        with pytest.raises(InputError, match="would keep no row of a batch of 9"):
            make_run("digits", "prl-l", **settings)
    make_run("digits", "standard", **settings)
