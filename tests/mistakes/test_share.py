"""The share of wrong targets is about that of the rows that were made wrong, and none where none were."""

import numpy as np
import pytest

from gradsieve.mistakes.share import wrong_share


@pytest.mark.parametrize("wrong", [0, 60, 120])
def test_wrong_classes_are_counted(wrong):
    random = np.random.default_rng(0)
    true = random.integers(0, 5, 400)
    outputs = 0.02 + 0.9 * np.eye(5)[true]
    given = np.where(np.arange(400) < wrong, (true + 1) % 5, true)
    assert wrong_share("classification", given, outputs) == wrong / 400


@pytest.mark.parametrize("wrong", [0, 60, 120])
def test_wrong_amounts_are_counted(wrong):
    random = np.random.default_rng(0)
    outputs = random.normal(size=(400, 3))
    given = outputs + 0.1 * random.normal(size=outputs.shape)
    given[:wrong] = random.uniform(-5, 5, size=(wrong, 3))
    assert wrong_share("regression", given.astype(np.float32), outputs) == pytest.approx(wrong / 400, abs=0.02)
