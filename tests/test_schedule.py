"""Schedules: the paper's ramp, the wait, the constant, and functions of the user's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import InputError
from gradsieve.schedule import SCHEDULES, constant, find_schedule, plan, ramp, wait

rates = st.floats(0, 1, exclude_max=True)
times = st.integers(1, 300)


def test_the_ramp_is_the_papers():
    assert plan("ramp", 0.5, 5, 7) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])
    assert plan("ramp", 0.45, 0, 2) == [0.45, 0.45]


def test_wait_drops_nothing_at_first_and_constant_never_waits():
    assert plan("wait", 0.3, 2, 4) == [0.0, 0.0, 0.3, 0.3]
    assert plan("wait", 0.3, 0, 2) == [0.3, 0.3]
    assert plan("constant", 0.3, 2, 3) == [0.3, 0.3, 0.3]


@given(rate=rates, length=st.integers(0, 100), T=times)
@pytest.mark.parametrize("schedule", [ramp, wait, constant])
def test_no_schedule_falls_or_exceeds_its_rate_and_all_arrive_at_it(schedule, rate, length, T):
    assert 0 <= schedule(T, rate, length) <= schedule(T + 1, rate, length) <= rate
    assert schedule(length + 1, rate, length) == rate


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_a_rate_of_0_stays_0(name):
    assert plan(name, 0.0, 5, 10) == [0.0] * 10


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    source = "def square(T, drop_rate, ramp):\n    return drop_rate * min(T / ramp, 1) ** 2\n"
    source += "def broken(T, drop_rate, ramp):\n    return 1 / (T - 1)\n"
    source += "number = 0.3\n"
    source += "def too_far(T, drop_rate, ramp):\n    return 0.4 * T\n"
    (tmp_path / "own_schedules.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_module")
def test_a_function_of_your_own_works_as_these_do():
    assert plan("own_schedules:square", 0.4, 2, 3) == pytest.approx([0.1, 0.4, 0.4])


@pytest.mark.usefixtures("own_module")
def test_a_schedule_that_leaves_the_range_is_refused_with_its_time():
    with pytest.raises(InputError, match=r"schedule 'own_schedules:too_far' at T=3: rate is 1\.2"):
        plan("own_schedules:too_far", 0.4, 2, 5)


@pytest.mark.usefixtures("own_module")
def test_what_fails_in_a_function_of_your_own_is_told_with_its_time():
    with pytest.raises(InputError, match=r"schedule 'own_schedules:broken' at T=1: division by zero"):
        plan("own_schedules:broken", 0.4, 2, 5)
    with pytest.raises(InputError, match=r"schedule 'own_schedules:number' is 0\.3, but must be a function"):
        plan("own_schedules:number", 0.4, 2, 5)


def test_an_unknown_schedule_gets_a_suggestion():
    with pytest.raises(InputError, match=r"There is no schedule 'rampe'\. Did you mean 'ramp'"):
        find_schedule("rampe")
    with pytest.raises(InputError, match="cannot be imported"):
        find_schedule("no_such_module:f")
