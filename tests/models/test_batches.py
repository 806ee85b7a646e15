"""Batches by a token budget, and its reduction when memory runs out."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.models import batches
from retrievalkit.models.batches import TokenLimit, in_threads, token_budget_batches


def test_texts_of_similar_length_share_a_batch():
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


@given(st.lists(st.integers(0, 60), min_size=1), st.integers(60, 300), st.integers(60, 1000))
def test_batches_are_halved_when_memory_runs_out(lengths, memory, budget):
    limit, sizes = TokenLimit(32), []

    def compute(rows):
        sizes.append(len(rows) * max(lengths[row] for row in rows))
        if sizes[-1] > memory:
            raise torch.OutOfMemoryError
        return rows

    batches = token_budget_batches(lengths, budget)
    computed = [row for rows in batches for part in limit.compute(compute, lengths, rows) for row in part]
    assert computed == [row for rows in batches for row in rows]
    failed = [size for size in sizes if size > memory]
    assert all(later <= earlier // 2 for earlier, later in pairwise(failed)), "a size was tried twice"
    assert limit.entries() == ({"batch_tokens": failed[-1] // 2} if failed else {})


def test_a_single_text_that_does_not_fit_raises():
    def compute(rows):
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        TokenLimit(32).compute(compute, [7, 5], [0, 1])


def test_the_budget_of_a_gpu_depends_on_its_free_memory(monkeypatch):
    free = 40 << 30
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 << 30))

    def budget(width, layers=1, reserved=0, device="cuda"):
        return TokenLimit(width, layers).budget(torch.device(device), 100, reserved=reserved)

    assert budget(384, device="cpu") == 100
    assert budget(4096) <= budget(384)
    assert budget(4096, 32) <= budget(4096) // 16
    for width, layers in ((384, 12), (768, 12), (4096, 32)):
        tokens = budget(width, layers)
        assert free / 4 < tokens * 80 * width * layers <= free / 2, "a power of two"
        assert budget(width, layers, free - 1) == 1


def test_where_threads_wait_is_printed_if_a_batch_never_ends(monkeypatch, capfd):
    monkeypatch.setattr(batches, "_STUCK", 0.2)

    def stuck(seconds):
        time.sleep(seconds)
        return seconds

    assert list(in_threads(stuck, [0.0, 0.6], 2)) == [0.0, 0.6]
    assert "in stuck" in capfd.readouterr().err
    assert list(in_threads(stuck, [0.0] * 9, 2)) == [0.0] * 9
    assert not capfd.readouterr().err
