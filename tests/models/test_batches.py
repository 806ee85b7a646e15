"""Batches by a budget of tokens, and items made ahead of time."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.models.batches import prefetch, token_budget_batches


def test_texts_of_similar_length_share_a_batch_the_longest_first():
    assert token_budget_batches([2, 9, 3, 10, 1], budget=20) == [[3, 1], [2, 0, 4]]


@given(st.lists(st.integers(0, 60)), st.integers(1, 100), st.integers(1, 8))
def test_every_text_is_in_one_batch_within_the_budget(lengths, budget, most):
    batches = token_budget_batches(lengths, budget, most=most)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[position] for position in batch)
        assert len(batch) == 1 or padded <= budget
        assert len(batch) <= most
    ordered = [lengths[position] for batch in batches for position in batch]
    assert ordered == sorted(lengths, reverse=True)


@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetched_items_come_in_order(ahead):
    assert list(prefetch(range(20), ahead=ahead)) == list(range(20))
    assert list(prefetch([])) == []
    assert list(prefetch([None, False])) == [None, False]


def test_an_error_of_the_source_reaches_the_consumer_after_the_items_before_it():
    def source():
        yield 1
        raise ValueError("a broken line")

    items = prefetch(source())
    assert next(items) == 1
    with pytest.raises(ValueError, match="a broken line"):
        next(items)


def test_the_thread_ends_when_the_consumer_stops():
    closed = threading.Event()

    def source():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    before = set(threading.enumerate())
    items = prefetch(source())
    next(items)
    (thread,) = set(threading.enumerate()) - before
    items.close()
    thread.join(timeout=60)
    assert not thread.is_alive()
