"""Metrics equal scikit-learn's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, r2_score

from gradsieve.errors import InputError
from gradsieve.metrics import METRICS, accuracy, r2

seeds = st.integers(0, 2**31)
many = settings(max_examples=60, deadline=None)


@many
@given(seed=seeds, rows=st.integers(1, 60), classes=st.integers(2, 12))
def test_accuracy_equals_scikit_learn(seed, rows, classes):
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(rows, classes, generator=draw)
    targets = torch.randint(classes, (rows,), generator=draw)
    assert accuracy(outputs, targets).shape == ()
    assert float(accuracy(outputs, targets)) == pytest.approx(accuracy_score(targets, outputs.argmax(1)))


@many
@given(
    seed=seeds,
    rows=st.integers(2, 60),
    columns=st.integers(1, 6),
    constant=st.integers(0, 6),
    met=st.booleans(),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
)
def test_r2_equals_scikit_learn_with_constant_targets_too(seed, rows, columns, constant, met, offset):
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randn(rows, columns, generator=draw) + offset
    predictions = targets + torch.randn(rows, columns, generator=draw)
    targets[:, :constant] = 0.25  # a power of two: scikit-learn, too, sees exactly no spread
    if met:
        predictions[:, :constant] = 0.25
    score = r2(predictions, targets)
    assert score.shape == ()
    expected = r2_score(targets.double().numpy(), predictions.double().numpy())
    assert float(score) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_r2_survives_a_large_offset_and_a_constant_that_floats_cannot_hold():
    targets = 1e6 + torch.linspace(0, 1, 100)[:, None]
    assert float(r2(targets.clone(), targets)) == 1.0
    targets = torch.full((7, 1), 0.1)  # the mean of seven times 0.1 is not 0.1
    assert float(r2(targets + 1, targets)) == 0.0
    assert float(r2(targets.clone(), targets)) == 1.0


def test_r2_of_one_row_is_undefined_as_in_scikit_learn():
    with pytest.warns(UserWarning, match="less than two samples"):
        assert math.isnan(r2_score([[1.0]], [[1.0]]))
    assert r2(torch.ones(1, 1), torch.ones(1, 1)).isnan()


def test_r2_refuses_shapes_that_would_broadcast():
    with pytest.raises(InputError, match=r"\(5,\) and \(5, 1\)"):
        r2(torch.zeros(5), torch.zeros(5, 1))


def test_every_task_has_its_metric():
    assert {task: metric.name for task, metric in METRICS.items()} == {
        "classification": "accuracy",
        "regression": "r2",
    }
    assert METRICS["regression"].function is r2
