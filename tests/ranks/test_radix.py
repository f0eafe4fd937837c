"""Selection by histograms keeps exactly what sorting keeps. Over ranks: tests/test_ranks.py."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradsieve.ranks.radix import keep_by_radix, sortable
from gradsieve.selection import keep_first

few = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 1e-45, -1e-45, math.inf, -math.inf, math.nan])  # hence ties
scores = st.one_of(few, st.floats(width=32))
KINDS = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=70, deadline=None)
@given(rows=st.lists(st.tuples(scores, few), min_size=1, max_size=60), share=st.floats(0, 1))
def test_it_keeps_the_rows_that_sorting_keeps(kind, rows, share):
    values, ties = (torch.tensor(column).to(kind) for column in zip(*rows, strict=True))
    count = max(1, int(share * len(rows)))
    assert keep_by_radix(values, ties, count).tolist() == keep_first(values, count, ties=ties).tolist()
    assert keep_by_radix(values, None, count).tolist() == keep_first(values, count).tolist()


@pytest.mark.parametrize("rows", [1000, 100_000])
def test_it_keeps_them_of_many_rows_too(rows):
    values = torch.randn(rows, generator=torch.Generator().manual_seed(0)).round(decimals=3)
    ties = torch.rand(rows, generator=torch.Generator().manual_seed(1))
    for count in (1, rows // 3, rows - 1, rows):
        assert keep_by_radix(values, ties, count).equal(keep_first(values, count, ties=ties))


def test_keys_sort_as_floats_do():
    values = torch.tensor([-math.inf, -2.0, -1e-45, -0.0, 0.0, 1e-45, 2.0, math.inf, math.nan, -math.nan])
    keys, bits = sortable(values)
    assert bits == 32
    assert keys.sort().values.tolist() == keys.tolist()
    assert keys[3] == keys[4]
    assert keys[8] == keys[9]
