"""Steps over ranks are timed on a small workload, by the command."""

import json

import pytest

from gradsieve.errors import InputError
from gradsieve.experiments.rank_bench import rank_bench
from gradsieve.report.rank_table import rank_table


def test_the_command_measures_selection_beside_a_step(gradsieve):
    options = ("--workload", "mlp", "--batch-size", "32", "--turns", "3", "--device", "cpu", "--json")
    done = gradsieve("bench", "--ranks", "1,2", *options)
    assert done.code == 0, done.err
    measured = json.loads(done.out)
    assert list(measured["worlds"]) == ["1", "2"]
    for row in measured["worlds"].values():
        assert 0 < row["selection_ms"] < row["step_ms"] * 10
        assert row["selection_share"] == pytest.approx(row["selection_ms"] / row["step_ms"])
    assert measured["worlds"]["1"]["selection_bytes"] == 0
    assert measured["worlds"]["2"]["selection_bytes"] == 32 * 8 / 2
    assert measured["worlds"]["2"]["gradient_bytes"] == 4 * (512 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10)
    assert len(rank_table(measured).renderables) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worlds": [0]}, "0 ranks cannot share a batch of 32 rows: give from 1 up"),
        ({"worlds": [33]}, "33 ranks cannot share a batch of 32 rows"),
        ({"worlds": [2], "turns": 1}, "turns is 1"),
        ({"worlds": [2], "drop_rate": 1.0}, "drop_rate is 1.0"),
        ({"worlds": [2], "method": "prl"}, "prl"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_process_starts(options, message):
    with pytest.raises(InputError, match=message):
        rank_bench("mlp", **options, batch_size=32)


def test_ranks_are_numbers(gradsieve):
    assert "give numbers, such as 1,2,4" in gradsieve("bench", "--ranks", "two").err
