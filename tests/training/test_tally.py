"""The books of an epoch: a class that vanishes is told."""

import warnings

import pytest
import torch

from gradsieve.training.loop import train
from gradsieve.training.run import make_run
from gradsieve.training.tally import Tally
from gradsieve.training.trainer import is_time_to_warn


def counted(seen, kept):
    tally = Tally.empty(len(seen), torch.device("cpu"))
    tally.seen_of_class += torch.tensor(seen, dtype=torch.int64)
    tally.kept_of_class += torch.tensor(kept, dtype=torch.int64)
    return tally


@pytest.mark.parametrize(
    ("seen", "kept", "told"),
    [
        ([100, 100, 100], [50, 50, 50], ""),
        ([100, 100, 100], [90, 30, 90], ""),
        ([100, 100, 100], [90, 6, 90], "6% of the rows of class 1 were kept, and 62% of all"),
        ([100, 0, 100], [50, 0, 50], ""),  # nobody to forsake
        ([100, 9, 100], [50, 0, 50], ""),  # too few to speak of
        ([900, 900, 900], [2, 0, 9], ""),  # one row of each batch, as min-sgd does
        ([], [], ""),  # amounts
    ],
)
def test_a_class_of_which_hardly_a_row_is_kept_is_told(seen, kept, told):
    sentence = counted(seen, kept).forsaken()
    assert sentence.startswith(told)
    assert bool(sentence) == bool(told)


def digits(epochs=4, **options):
    run = {"corruption": "symmetric", "rate": 0.7, "schedule": "constant", "epochs": epochs}
    return make_run("digits", "prl-l", **run, model_options={"hidden": [8]}, method_options=options)


@pytest.mark.parametrize(
    ("epochs", "now"),
    [("", False), ("xx", False), ("xxx", True), ("xxxx", False), (".x.xx", False), ("x.xxx", True), ("xxx.xxx", False)],
)
def test_it_is_told_once_and_after_some_epochs_on_end(epochs, now):
    assert is_time_to_warn([{"forsaken": True} if each == "x" else {} for each in epochs]) == now


@pytest.mark.filterwarnings("ignore:The rate is")
def test_a_run_that_is_resumed_says_so_too(stop_at, tmp_path):
    stop_at(digits(), tmp_path / "run", 2 * 1437 // 128 + 1)  # in the third of four epochs
    with pytest.warns(UserWarning, match="In epoch 3, .* of the rows of class"):
        train(digits(), tmp_path / "run", resume=True)


@pytest.mark.filterwarnings("ignore:The rate is")
def test_a_run_that_forsakes_a_class_says_so_once_and_what_helps():
    """Most rows dropped from the first step on: what the untrained network prefers is all it ever sees."""
    with pytest.warns(
        UserWarning,
        match=r"In epoch \d, .* of the rows of class \d .*\(method_options=\{'balanced': True\}\).*\(ramp\)",
    ) as told:
        train(digits())
    assert sum("of the rows of class" in str(each.message) for each in told) == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="In epoch")
        train(digits(epochs=2))  # it might come back
        result = train(digits(balanced=True))
    assert min(result.history[-1]["kept_share_of_class"]) > 0.2
