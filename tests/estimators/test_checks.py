"""Every check that scikit-learn has for estimators, for every way of choosing rows, with no expected failure."""

import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from gradsieve import RobustClassifier, RobustRegressor
from gradsieve.choosing import electorate

METHODS = ("standard", "spl", "prl-l", "co-prl-l")
# As small as can pass: the checks fit a few hundred times, and some of them ask for a good fit.
SMALL = {"hidden": (16,), "epochs": 15, "learning_rate": 0.02}
SMALLER = {"hidden": (16,), "epochs": 8, "learning_rate": 0.04}  # a race of six and a fit each


@pytest.fixture(autouse=True)
def _two_parts(monkeypatch):
    """Of the rows of a race: quicker than five."""
    monkeypatch.setattr(electorate, "MOST_PARTS", 2)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:.*rows are too few to choose", "ignore:The held-out rows cannot tell")
@parametrize_with_checks(
    [
        *(kind(method, **SMALL) for kind in (RobustClassifier, RobustRegressor) for method in METHODS),
        *(kind(drop_rate="auto", **SMALLER) for kind in (RobustClassifier, RobustRegressor)),
    ],
)
def test_every_check_of_scikit_learn(estimator, check):
    check(estimator)
