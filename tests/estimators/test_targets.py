"""Targets as people have them: frames' own types, missing labels, dates."""

import numpy as np
import pandas as pd
import pytest

from gradsieve import RobustClassifier, RobustRegressor
from gradsieve.errors import InputError

X = np.random.default_rng(0).normal(size=(60, 3))
WORDS = pd.Series(np.where(X[:, 0] > 0, "yes", "no"))
DATES = pd.Series(pd.date_range("2020-01-01", periods=60))


def classes_of(y):
    return RobustClassifier(hidden=(4,), epochs=1).fit(X, y).classes_.tolist()


@pytest.mark.parametrize(
    ("y", "classes"),
    {
        "Int64": (pd.Series(X[:, 0] > 0).astype("Int64"), [0, 1]),
        "boolean": (pd.Series(X[:, 0] > 0).astype("boolean"), [False, True]),
        "string": (WORDS.astype("string"), ["no", "yes"]),
        "category": (WORDS.astype("category"), ["no", "yes"]),
        "list": (WORDS.tolist(), ["no", "yes"]),
    }.values(),
)
def test_classes_of_a_frame_stay_what_they_are(y, classes):
    found = classes_of(y)
    assert found == classes
    assert [type(each) for each in found] == [type(each) for each in classes]


def with_none(values):
    given = values.astype(object).copy()
    given[7] = None
    return given


@pytest.mark.parametrize(
    "y",
    {
        "object": with_none(WORDS),
        "string": with_none(WORDS).astype("string"),
        "category": with_none(WORDS).astype("category"),
        "Int64": with_none(pd.Series(X[:, 0] > 0)).astype("boolean").astype("Int64"),
        "array": with_none(WORDS).to_numpy(),
        "list": with_none(WORDS).tolist(),
    }.values(),
)
def test_a_missing_label_is_named_by_its_row(y):
    with pytest.raises(InputError, match=r"y\[7\] is missing"):
        classes_of(y)


def test_dates_are_no_amounts():
    regressor = RobustRegressor(hidden=(4,), epochs=1)
    for y in (DATES, DATES.to_numpy(), DATES - DATES[0]):
        with pytest.raises(InputError, match="y holds dates or durations"):
            regressor.fit(X, y)
    with pytest.raises(InputError, match="Column 'when' of X holds dates"):
        regressor.fit(pd.DataFrame({"size": X[:, 0], "when": DATES}), X[:, 0])
    with pytest.raises(InputError, match="X holds dates"):
        regressor.fit(DATES.to_numpy()[:, None], X[:, 0])
    days = (DATES - DATES.min()) / np.timedelta64(1, "D")  # the way out that is named
    assert regressor.fit(X, days).predict(X).shape == (60,)
    assert len(classes_of(pd.Series(np.where(X[:, 0] > 0, DATES[0], DATES[1])))) == 2
