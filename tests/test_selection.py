"""Which rows are kept: exact counts, a sort that depends only on its inputs, and no class emptied."""

import math
from collections import Counter
from fractions import Fraction
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from gradsieve import tracing
from gradsieve.counts import keep_count
from gradsieve.errors import InputError
from gradsieve.selection import keep_first, keep_smallest

many = settings(max_examples=200, deadline=None)
rates = st.integers(0, 99).map(lambda percent: percent / 100)
numbers = st.sampled_from([0.0, 1.0, 2.0, 0.5, -1.0, math.inf, math.nan])  # few of them, so that there are ties
batches = st.lists(st.tuples(numbers, numbers, st.integers(-2, 2)), min_size=1, max_size=40)
distinct = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40, unique=True)


def sort_key(score):
    return math.isnan(score), score if score == score else 0


def by_python(scores, count, ties=None, classes=None):
    """The naive way: sort a list of rows."""
    rows = range(len(scores))
    ties = ties or [0.0] * len(scores)

    def own_key(row):
        return *sort_key(scores[row]), *sort_key(ties[row]), row

    def key(row):
        if classes is None:
            return own_key(row)
        mates = [mate for mate in rows if classes[mate] == classes[row]]
        place = Fraction(sorted(mates, key=own_key).index(row), len(mates))
        return math.inf if math.isnan(scores[row]) else place, *own_key(row)

    return sorted(sorted(rows, key=key)[:count])


@many
@given(batch=batches, rate=rates, use_ties=st.booleans(), use_classes=st.booleans())
def test_kept_rows_are_those_of_a_plain_sort(batch, rate, use_ties, use_classes):
    scores, ties, classes = map(list, zip(*batch, strict=True))
    kept = keep_smallest(
        torch.tensor(scores),
        rate,
        ties=torch.tensor(ties) if use_ties else None,
        classes=torch.tensor(classes) if use_classes else None,
    )
    count = keep_count(rate, len(batch))
    assert kept.tolist() == by_python(scores, count, ties if use_ties else None, classes if use_classes else None)


@settings(max_examples=40, deadline=None)
@given(batch=batches, rate=rates, use_ties=st.booleans(), use_classes=st.booleans(), few_rows=st.sampled_from([0, 40]))
def test_a_traced_selection_keeps_the_same_rows(batch, rate, use_ties, use_classes, few_rows):
    """A compiler sees no values: it can neither check for ties at a threshold nor fuse a sort."""
    scores, ties, classes = map(torch.tensor, zip(*batch, strict=True))

    def keep(scores, ties, classes):
        return keep_smallest(scores, rate, ties=ties if use_ties else None, classes=classes if use_classes else None)

    usual, tracing.FEW_ROWS = tracing.FEW_ROWS, few_rows
    try:
        traced = make_fx(keep, tracing_mode="fake")(scores, ties, classes)
    finally:
        tracing.FEW_ROWS = usual
    assert torch.equal(traced(scores, ties, classes), keep(scores, ties, classes))
    sorts = [node for node in traced.graph.nodes if "sort" in str(node.target)]
    assert bool(sorts) == (use_classes or not few_rows)


@many
@given(batch=batches, rate=rates, balanced=st.booleans())
def test_the_count_is_exact_the_rows_ascend_and_at_least_one_stays(batch, rate, balanced):
    scores, _, classes = map(torch.tensor, zip(*batch, strict=True))
    kept = keep_smallest(scores, rate, classes=classes if balanced else None)
    assert len(kept) == keep_count(rate, len(batch)) >= 1
    assert kept.dtype == torch.int64
    assert (kept.diff() > 0).all()
    if rate == 0:
        assert kept.tolist() == list(range(len(batch)))


@many
@given(scores=distinct, rate=rates)
def test_no_dropped_score_is_smaller_than_a_kept_one(scores, rate):
    kept = set(keep_smallest(torch.tensor(scores), rate).tolist())
    dropped = set(range(len(scores))) - kept
    assert max(scores[row] for row in kept) < min((scores[row] for row in dropped), default=math.inf)


@many
@given(scores=distinct, rate=rates, seed=st.integers(0, 2**31), balanced=st.booleans())
def test_shuffling_the_rows_shuffles_the_selection(scores, rate, seed, balanced):
    scores = torch.tensor(scores)
    classes = (scores.long() % 3) if balanced else None
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
    kept = keep_smallest(scores, rate, classes=classes)
    shuffled = keep_smallest(scores[order], rate, classes=None if classes is None else classes[order])
    assert sorted(order[shuffled].tolist()) == kept.tolist()


@many
@given(batch=batches, rate=rates, more=st.sampled_from([0.5, 3.0, math.inf, math.nan]), data=st.data())
def test_raising_the_score_of_a_dropped_row_changes_nothing(batch, rate, more, data):
    scores = torch.tensor([score for score, _, _ in batch])
    kept = keep_smallest(scores, rate)
    dropped = sorted(set(range(len(scores))) - set(kept.tolist()))
    if dropped:
        raised = scores.clone()
        raised[data.draw(st.sampled_from(dropped))] += more
        assert torch.equal(keep_smallest(raised, rate), kept)


def test_ties_go_to_the_smaller_index_even_in_large_batches():
    scores = torch.zeros(1000)
    assert keep_smallest(scores, 0.9).tolist() == list(range(100))
    assert keep_smallest(scores, 0.9, ties=-torch.arange(1000)).tolist() == list(range(900, 1000))


def test_nan_goes_first_and_infinity_next():
    scores = torch.tensor([math.nan, math.inf, 5.0, -math.nan, -math.inf])
    assert keep_smallest(scores, 0.2).tolist() == [0, 1, 2, 4]
    assert keep_smallest(scores, 0.4).tolist() == [1, 2, 4]
    assert keep_smallest(scores, 0.6).tolist() == [2, 4]
    assert keep_smallest(scores, 0.8).tolist() == [4]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_scores_may_carry_a_graph_and_be_of_any_precision(dtype):
    scores = torch.tensor([3.0, 1.0, 2.0], dtype=dtype, requires_grad=True)
    assert keep_smallest(scores, 0.4, ties=scores).tolist() == [1]


def test_the_first_few_are_the_smallest_and_never_more_than_there_are():
    scores = torch.tensor([3.0, 1.0, math.nan, 1.0])
    assert keep_first(scores, 1).tolist() == [1]
    assert keep_first(scores, 2).tolist() == [1, 3]
    assert keep_first(scores, 1, ties=torch.tensor([0, 2, 0, 1])).tolist() == [3]
    assert keep_first(scores, 9).tolist() == [0, 1, 2, 3]


# ------------------------------------------------------------------------------ class-balanced


def kept_of_class(scores, classes, rate):
    kept = keep_smallest(scores, rate, classes=classes)
    return Counter(classes[kept].tolist())


@many
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), rate=rates, seed=st.integers(0, 2**31))
def test_every_class_keeps_a_row_where_the_count_allows_and_all_lose_the_same_share(sizes, rate, seed):
    draw = torch.Generator().manual_seed(seed)
    classes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    scores = torch.randn(len(classes), generator=draw) + 5.0 * classes  # some classes are much harder
    kept = kept_of_class(scores, classes, rate)
    total = keep_count(rate, len(classes))
    assert sum(kept.values()) == total
    if total >= len(sizes):
        assert min(kept[c] for c in range(len(sizes))) >= 1
    for a, b in permutations(range(len(sizes)), 2):  # keeping one row less of a and one more of b would be less even
        assert Fraction(kept[a] - 1, sizes[a]) <= Fraction(kept[b], sizes[b])


@many
@given(size=st.integers(5, 60), classes=st.integers(2, 8), rate=rates, seed=st.integers(0, 2**31))
def test_classes_of_one_size_lose_the_rate_to_within_one_row(size, classes, rate, seed):
    labels = torch.arange(classes).repeat(size)
    scores = torch.randn(len(labels), generator=torch.Generator().manual_seed(seed)) * (1 + labels)
    kept = kept_of_class(scores, labels, rate)
    assert all(abs(kept[c] - (1 - rate) * size) <= 1 for c in range(classes))


def test_a_hard_minority_is_emptied_by_plain_trimming_only():
    classes = torch.tensor([0] * 90 + [1] * 10)
    scores = torch.rand(100, generator=torch.Generator().manual_seed(0)) + 3 * classes
    assert Counter(classes[keep_smallest(scores, 0.2)].tolist()) == {0: 80}
    assert kept_of_class(scores, classes, 0.2) == {0: 72, 1: 8}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
@pytest.mark.parametrize("names", [(0, 1, 2), (-7, 100, 3), (127, -128, 0)])
def test_classes_may_be_any_integers(names, dtype):
    scores = torch.rand(60, generator=torch.Generator().manual_seed(0))
    plain = torch.arange(60) % 3
    renamed = torch.tensor(names, dtype=dtype)[plain]
    assert torch.equal(keep_smallest(scores, 0.35, classes=renamed), keep_smallest(scores, 0.35, classes=plain))


def test_a_row_without_a_score_goes_first_even_if_it_is_all_its_class_has():
    scores = torch.tensor([1.0, 2.0, 3.0, math.nan])
    assert keep_smallest(scores, 0.25, classes=torch.tensor([0, 0, 0, 1])).tolist() == [0, 1, 2]


# -------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("rate", [1.0, -0.1, math.nan, True, "0.3"])
def test_a_bad_rate_is_refused(rate):
    with pytest.raises(InputError, match="drop_rate is"):
        keep_smallest(torch.zeros(3), rate)


def test_bad_scores_are_refused():
    with pytest.raises(InputError, match="scores is empty"):
        keep_smallest(torch.zeros(0), 0.3)
    with pytest.raises(InputError, match=r"scores has shape \(3, 2\), but must be one score per row"):
        keep_smallest(torch.zeros(3, 2), 0.3)


@pytest.mark.parametrize("name", ["ties", "classes"])
@pytest.mark.parametrize("shape", [(2,), (3, 1), (4,)])
def test_ties_and_classes_must_have_one_entry_per_row(name, shape):
    with pytest.raises(InputError, match=rf"{name} has shape .* but scores has \(3,\)"):
        keep_smallest(torch.zeros(3), 0.3, **{name: torch.zeros(shape)})


def test_what_is_no_tensor_is_told():
    with pytest.raises(InputError, match=r"scores is a list, but must be a tensor: torch.as_tensor\(scores\)"):
        keep_smallest([1.0, 2.0, 3.0], 0.3)
