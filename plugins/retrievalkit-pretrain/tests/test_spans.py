"""Spans and their context partners, as in CoT-MAE."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retrievalkit_pretrain.spans import PARTNERS, draw_spans, nearby, overlap, random_sampled, token_ends

from retrievalkit.data.tokenized_text import Document, Pieces

LENGTHS = st.lists(st.integers(1, 30), max_size=40)


def ends_of(lengths):
    return [sum(lengths[: count + 1]) for count in range(len(lengths))]


def document_of(lengths, spans, max_length=10):
    ids = list(range(sum(lengths)))
    return Document(Pieces(ids, [True] * len(ids)), ends_of(lengths), spans, max_length)


def test_a_token_belongs_to_the_sentence_in_which_it_ends_and_empty_sentences_are_left_out():
    """Some tokenizers include the space before a word in its token."""
    assert token_ends([3, 8, 9, 14, 15], [10, 11, 15]) == [3, 5]
    assert token_ends([], [4, 9]) == []
    assert token_ends([4], [4]) == [1]


def test_sentences_are_appended_until_the_length_exceeds_the_target():
    """A span of exactly the target length continues; the rest is the last span."""
    spans = draw_spans(ends_of([4, 6, 1, 11, 3, 3]), 10, random.Random(0), short=0.0)
    assert spans == [range(3), range(3, 4), range(4, 6)]


@given(LENGTHS, st.integers(2, 50), st.integers(), st.floats(0, 1))
def test_spans_contain_all_sentences_in_order(lengths, target, seed, short):
    spans = draw_spans(ends_of(lengths), target, random.Random(seed), short=short)
    assert [sentence for span in spans for sentence in span] == list(range(len(lengths)))
    assert all(len(span) for span in spans)
    for span in spans:
        sizes = [lengths[sentence] for sentence in span]
        assert sum(sizes[:-1]) <= target, "without its last sentence, no span exceeds the target"


def test_some_spans_have_a_short_random_target():
    """With sentences of one token, a span is one token longer than its target."""
    spans = draw_spans(list(range(1, 100_001)), 20, random.Random(0), short=0.15)
    counts = Counter(len(span) - 1 for span in spans[:-1])
    total = sum(counts.values())
    assert set(counts) == set(range(2, 21))
    assert counts[20] / total == pytest.approx(0.85 + 0.15 / 19, rel=0.02)
    mean_of_short = sum(length * count for length, count in counts.items() if length < 20) / (total - counts[20])
    assert mean_of_short == pytest.approx(10.5, rel=0.05)


def drawn(partner, document, anchor, times=2000):
    source = random.Random(0)
    counts = Counter(partner(document, anchor, source) for _ in range(times))
    return {part: count / times for part, count in counts.items()}


FIVE = document_of([4] * 10, [range(2 * span, 2 * span + 2) for span in range(5)])


def test_a_nearby_partner_is_the_span_before_or_after():
    assert drawn(nearby, FIVE, 2) == pytest.approx({range(2, 4): 0.5, range(6, 8): 0.5}, abs=0.05)
    assert drawn(nearby, FIVE, 0) == {range(2, 4): 1.0}
    assert drawn(nearby, FIVE, 4) == {range(6, 8): 1.0}


def test_a_random_partner_is_any_other_span():
    others = {range(2): 0.25, range(2, 4): 0.25, range(6, 8): 0.25, range(8, 10): 0.25}
    assert drawn(random_sampled, FIVE, 3) != others
    assert drawn(random_sampled, FIVE, 2) == pytest.approx(others, abs=0.05)


def test_a_random_partner_is_at_most_a_hundred_spans_away():
    long = document_of([1] * 400, [range(span, span + 1) for span in range(400)])
    starts = {part.start for part in drawn(random_sampled, long, 200, times=20_000)}
    assert starts == {*range(100, 200), *range(201, 301)}
    assert {part.start for part in drawn(random_sampled, long, 0, times=20_000)} == set(range(1, 101))


def test_an_overlapping_partner_begins_with_the_end_of_the_anchor():
    """r is 1 or 2 of four sentences; the next sentences are appended until the length exceeds ten tokens."""
    document = document_of([3] * 12, [range(4), range(4, 8), range(8, 12)])
    assert drawn(overlap, document, 0) == pytest.approx({range(3, 7): 0.5, range(2, 6): 0.5}, abs=0.05)
    assert drawn(overlap, document, 1) == pytest.approx({range(7, 11): 0.5, range(6, 10): 0.5}, abs=0.05)
    # The partner of the last span ends with the start of that span.
    assert drawn(overlap, document, 2) == pytest.approx({range(5, 9): 0.5, range(6, 10): 0.5}, abs=0.05)


@given(LENGTHS, st.integers(2, 20), st.integers(), st.sampled_from(sorted(PARTNERS)))
def test_partners_are_parts_of_the_document_other_than_the_anchor(lengths, target, seed, kind):
    source = random.Random(seed)
    document = document_of(lengths, draw_spans(ends_of(lengths), target, source), target)
    if len(document.spans) < 2:
        return
    for anchor, span in enumerate(document.spans):
        part = PARTNERS[kind](document, anchor, source)
        assert 0 <= part.start < part.stop <= len(lengths)
        assert document.length(part) == len(document.text(part)) == sum(lengths[sentence] for sentence in part)
        assert part != span or kind == "overlap"
        assert (part in document.spans) or kind == "overlap"
        if kind == "overlap":
            assert set(part) & set(span)
