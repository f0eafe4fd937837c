"""What holds for every row of METHODS: a new method is tested before it has tests of its own."""

import hashlib

import pytest
import torch

from gradsieve.methods import METHODS
from gradsieve.report.listing import listing
from gradsieve.training.loop import train
from gradsieve.training.result import Result
from gradsieve.training.run import make_run

PAIRS = [(name, task) for name in METHODS for task in METHODS[name].tasks]
TRIMMING = [name for name in METHODS if METHODS[name].drops_rows and name != "min-sgd"]  # that one drops at any rate


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> str:
    """Two targets that depend on five columns, neither linearly nor without noise."""
    draw = torch.Generator().manual_seed(0)
    x, noise = torch.randn(800, 5, generator=draw), 0.1 * torch.randn(800, 2, generator=draw)
    y = torch.stack([x[:, 0] + x[:, 1].abs(), x[:, 2].sin() - x[:, 3]], dim=1) + noise
    path = tmp_path_factory.mktemp("table") / "rows.csv"
    rows = torch.cat([x, y], dim=1).tolist()
    path.write_text("\n".join(["a,b,c,d,e,y,z", *(",".join(map(str, row)) for row in rows)]))
    return str(path)


@pytest.fixture
def fit(table):
    """A short run by method and task, a second or so on one core."""

    def fit(method: str, task: str, **settings) -> Result:
        settings = {"epochs": 10, "batch_size": 16, "ramp": 3, "model_options": {"hidden": [64]}, **settings}
        if task == "classification":
            return train(make_run("digits", method, **{"corruption": "symmetric", "rate": 0.2, **settings}))
        data = {"data_dir": table, "data_options": {"target": "y,z"}, "learning_rate": 5e-3}
        return train(make_run("table", method, **{"corruption": "signflip", "rate": 0.1, **data, **settings}))

    return fit


def weights_hash(result: Result, network: int = 0) -> str:
    chosen = {name: tensor for name, tensor in result.weights.items() if name.startswith(f"network{network}.")}
    return hashlib.sha256(b"".join(chosen[name].numpy().tobytes() for name in sorted(chosen))).hexdigest()


@pytest.mark.parametrize(("method", "task"), PAIRS)
def test_every_method_trains_and_beats_chance(method, task, fit):
    """Chance is 0.1 for ten classes, and an R2 of 0 for the mean of the targets."""
    result = fit(method, task)
    assert result.last > (0.2 if task == "classification" else 0.1)
    assert 0 < result.purity <= 1
    assert len(result.history) == len({record["epoch"] for record in result.history})


@pytest.mark.parametrize(("method", "task"), [pair for pair in PAIRS if pair[0] in TRIMMING])
def test_at_rate_zero_trimming_is_plain_training_bit_for_bit(method, task, fit):
    plain, trimmed = (fit(name, task, drop_rate=0.0, epochs=2) for name in ("standard", method))
    assert weights_hash(trimmed) == weights_hash(plain)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(method, fit):
    task = METHODS[method].tasks[0]
    one, again, other = (fit(method, task, epochs=1, seed=seed) for seed in (3, 3, 4))
    for network in range(METHODS[method].networks):
        assert weights_hash(one, network) == weights_hash(again, network) != weights_hash(other, network)


@pytest.mark.parametrize("method", [name for name in TRIMMING if name not in ("sever", "prl-g", "co-prl-g")])
def test_trimming_keeps_cleaner_rows_than_it_is_given(method, fit):
    result = fit(method, "classification", rate=0.4, epochs=15)
    assert result.purity > 0.75  # 0.6 without a selection


def test_prl_l_and_spl_are_the_same_method_under_squared_error(fit):
    assert weights_hash(fit("prl-l", "regression", rate=0.3)) == weights_hash(fit("spl", "regression", rate=0.3))


def test_prl_l_and_spl_differ_with_ten_classes(fit):
    assert weights_hash(fit("prl-l", "classification")) != weights_hash(fit("spl", "classification"))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_in_one_line_what_it_does(method):
    (row,) = (row for row in listing({"methods": METHODS})["methods"] if row["name"] == method)
    assert 10 < len(row["summary"]) < 110
    assert row["tasks"]
