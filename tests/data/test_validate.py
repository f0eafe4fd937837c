"""Bad data is one sentence with the argument, the row and a way out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradsieve.data import DataSet, Rows
from gradsieve.data.validate import validate
from gradsieve.errors import InputError

INPUTS, LABELS = torch.randn(30, 4), torch.arange(30) % 10
POINTS = torch.randn(30, 2)
CLASSES = DataSet("classification", Rows(INPUTS, LABELS), Rows(INPUTS[:5], LABELS[:5]), tuple("0123456789"))
NUMBERS = DataSet("regression", Rows(INPUTS, POINTS), Rows(INPUTS[:5], POINTS[:5]), ("x", "y"))


def having(values: torch.Tensor, row: int, value: float) -> torch.Tensor:
    changed = values.clone()
    changed[row] = value
    return changed


def test_good_data_passes():
    validate(CLASSES)
    validate(NUMBERS)
    images = torch.zeros(30, 3, 8, 8, dtype=torch.uint8)
    validate(replace(CLASSES, train=Rows(images, LABELS), test=Rows(images[:5], LABELS[:5])))


INPUT_CASES = [
    (having(INPUTS, 17, torch.nan), r"train.inputs\[17\] holds nan.*1 of 30 rows"),
    (having(INPUTS, 3, torch.inf), r"train.inputs\[3\] holds inf"),
    (having(INPUTS, 3, -torch.inf), r"train.inputs\[3\] holds -inf"),
    (INPUTS[:0], "train.inputs has the shape .* no rows"),
    (torch.tensor(1.0), "train.inputs has the shape .* no rows"),
    (INPUTS[:29], "train.inputs has 29 rows, but train.targets has 30: row 29 has no counterpart"),
    (INPUTS.double(), r"train.inputs is float64.*train.inputs.float\(\)"),
    (INPUTS.long(), "train.inputs is int64"),
    (INPUTS > 0, "train.inputs is bool"),
    (torch.zeros(30, 4, dtype=torch.uint8), r"uint8 of shape \(30, 4\), but uint8 stands for images"),
    (INPUTS[:, 0], r"train.inputs has the shape \(30,\)"),
    (INPUTS[:, :0], r"train.inputs has the shape \(30, 0\)"),
    (INPUTS[:, :3], r"train.inputs has float32 rows of shape \(3,\), but test.inputs has .*\(4,\)"),
    (INPUTS.numpy(), "train.inputs is a ndarray"),
    (None, "train.inputs is a NoneType"),
]


@pytest.mark.parametrize("data", [CLASSES, NUMBERS], ids=["classes", "numbers"])
@pytest.mark.parametrize(("inputs", "message"), INPUT_CASES)
def test_inputs(data, inputs, message):
    with pytest.raises(InputError, match=message):
        validate(replace(data, train=Rows(inputs, data.train.targets)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (having(LABELS, 17, 12), r"train.targets\[17\] is 12, but there are 10 classes \(0 to 9\). Correct or remove"),
        (having(LABELS, 0, -1), r"train.targets\[0\] is -1"),
        (LABELS.int(), r"train.targets is int32 .* int64"),
        (LABELS.float(), r"train.targets is float32"),
        (LABELS[:, None], r"shape \(30, 1\)"),
        (LABELS[:0], "no rows"),
        (LABELS[:7], "row 7 has no counterpart"),
        (np.arange(30), "train.targets is a ndarray"),
    ],
)
def test_labels(labels, message):
    with pytest.raises(InputError, match=message):
        validate(replace(CLASSES, train=Rows(INPUTS, labels)))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (having(POINTS, 29, torch.nan), r"train.targets\[29\] holds nan"),
        (having(POINTS, 2, torch.inf), r"train.targets\[2\] holds inf"),
        (POINTS.double(), r"train.targets is float64.*float\(\)"),
        (LABELS, "train.targets is int64"),
        (POINTS[:, 0], r"shape \(30,\), but .* \(N, 2\).*\[:, None\]"),
        (POINTS[:, :1], r"shape \(30, 1\), but .* \(N, 2\)"),
    ],
)
def test_regression_targets(targets, message):
    with pytest.raises(InputError, match=message):
        validate(replace(NUMBERS, train=Rows(INPUTS, targets)))


def test_the_test_rows_are_checked_too():
    with pytest.raises(InputError, match=r"test.targets\[1\] is 10"):
        validate(replace(CLASSES, test=Rows(INPUTS[:5], having(LABELS[:5], 1, 10))))
    with pytest.raises(InputError, match=r"test.inputs\[4\] holds nan"):
        validate(replace(CLASSES, test=Rows(having(INPUTS[:5], 4, torch.nan), LABELS[:5])))


def test_task_and_names():
    with pytest.raises(InputError, match="task is 'ranking'"):
        validate(replace(CLASSES, task="ranking"))
    with pytest.raises(InputError, match="1 names, but classification needs at least 2"):
        validate(replace(CLASSES, output_names=("only",)))
    with pytest.raises(InputError, match="0 names"):
        validate(replace(NUMBERS, output_names=()))
