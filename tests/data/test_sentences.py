"""Splitting a text into sentences."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from linear import assert_linear
from retrievalkit.data.sentences import sentence_ends


def test_sentences_end_where_readers_expect():
    text = 'Dr. Smith paid $3.50 in Washington, D.C. on Jan. 5th. "Is it good?" he asked.\n\nA new part\nhas two lines.'
    starts = [0, *sentence_ends(text)]
    parts = [text[start:stop].strip() for start, stop in itertools.pairwise(starts)]
    assert [part for part in parts if part] == [
        "Dr. Smith paid $3.50 in Washington, D.C. on Jan. 5th.",
        '"Is it good?" he asked.',
        "A new part\nhas two lines.",
    ]


@given(st.text())
def test_sentences_cover_the_whole_text(text):
    ends = sentence_ends(text)
    assert ends == sorted(ends)
    assert (ends[-1] if ends else 0) == len(text)


def test_splitting_into_sentences_takes_linear_time():
    assert_linear(sentence_ends, "\u00aba" * 10_000, "\u00aba" * 80_000)
