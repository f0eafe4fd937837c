"""Probabilities to a power: the favourite stays, and candidates become equally sure."""

import numpy as np
import pytest

from gradsieve.choosing.sharpen import equally_sure, raise_to

ROWS, CLASSES = 500, 4
ONES = np.ones(ROWS)


@pytest.fixture
def answers():
    """Three models, each surer than the one before it."""
    logits = np.random.default_rng(0).normal(size=(3, ROWS, CLASSES)) * np.array([0.5, 2, 8])[:, None, None]
    chances = np.exp(logits)
    return chances / chances.sum(2, keepdims=True)


def test_powers_as_they_are_written(answers):
    squared = answers**2
    assert raise_to(answers, 2) == pytest.approx(squared / squared.sum(2, keepdims=True))
    assert raise_to(answers, 1) == pytest.approx(answers)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_all_models_become_equally_sure(answers, confidence):
    sharp = equally_sure(answers, ONES, confidence)
    assert sharp.max(2).mean(1) == pytest.approx(confidence, abs=1e-3)
    assert sharp.sum(2) == pytest.approx(1)
    assert (sharp.argmax(2) == answers.argmax(2)).all()


def test_the_same_model_more_or_less_sure_is_the_same(answers):
    both = np.stack([answers[1], raise_to(answers[1], 3)])
    first, second = equally_sure(both, ONES)
    assert first == pytest.approx(second, abs=1e-3)


def test_rows_without_weight_do_not_matter(answers):
    weights = (np.arange(ROWS) < 100).astype(float)
    assert equally_sure(answers, weights)[:, :100] == pytest.approx(equally_sure(answers[:, :100], np.ones(100)))


def test_models_that_say_0_and_1_or_know_nothing_stay_finite():
    sure, clueless = np.eye(CLASSES)[np.zeros(ROWS, dtype=int)], np.full((ROWS, CLASSES), 1 / CLASSES)
    sharp = equally_sure(np.stack([sure, clueless]), ONES)
    assert np.isfinite(sharp).all()
    assert sharp[1] == pytest.approx(clueless)
