"""Audits for tests that only read them: digits with wrong labels, and a table with wrong targets."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from gradsieve import RobustClassifier, RobustRegressor
from gradsieve.audit import audit_estimator


@pytest.fixture(scope="session")
def digits():
    """Digits, a fifth of whose labels are the next class's: inputs, given labels, true labels, the audit."""
    X, true = load_digits(return_X_y=True)
    given = true.copy()
    wrong = np.random.default_rng(0).permutation(len(true))[: len(true) // 5]
    given[wrong] = (given[wrong] + 1) % 10
    fitted = RobustClassifier(drop_rate=0.2, epochs=30, random_state=0).fit(X, given)
    return X, given, true, audit_estimator(fitted, X, given)


@pytest.fixture(scope="session")
def table():
    """Three targets of a smooth table; of 600 rows, 60 have the wrong sign and 60 are random."""
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 4))
    true = np.stack([X[:, 0] + X[:, 1], 2 * X[:, 1] - X[:, 2], X[:, 3] + np.sin(X[:, 0])], axis=1)
    given = true + 0.05 * random.normal(size=true.shape)
    given[:60] *= -1
    given[60:120] = random.uniform(-8, 8, size=(60, 3))
    fitted = RobustRegressor(drop_rate=0.25, epochs=60, random_state=0).fit(X, given)
    return X, given, true, audit_estimator(fitted, X, given)
