"""Near duplicates: shingles by hand, Jaccard's coefficient and repeats against references."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.data.corpus import Passage
from retrievalkit.mining.shingles import likeness, repeats, shingles


def cut(text, title=""):
    return shingles(Passage("p", title, text))


def jaccard(one, other):
    """Compute the reference."""
    sets = []
    for text in (one, other):
        words = re.findall(r"\w+", text.casefold())
        sets.append({tuple(words[start : start + 5]) for start in range(max(1, len(words) - 4))} if words else set())
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1]) if sets[0] and sets[1] else 0.0


def test_worked_cases():
    """Repeated shingles count once; a short text is one shingle; a title replaces an empty text."""
    assert len(cut("one two three four five six seven")) == 3
    assert len(cut("a a a a a a a a")) == 1
    assert likeness([cut("red blue"), cut("blue red"), cut("")], cut("Red blue.")) == [1.0, 0.0, 0.0]
    assert likeness([cut("red")], cut("  ")) == [0.0]
    assert likeness([cut("", "A title"), cut("text", "A title")], cut("a title")) == [1.0, 0.0]
    # 8 words have 4 shingles, 9 words have 5; they share 4.
    eight = "the cat sat on the mat all day"
    assert likeness([cut(eight)], cut(f"{eight} long")) == [pytest.approx(4 / 5)]


TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=14).map(" ".join), min_size=1, max_size=8)


@given(TEXTS, TEXTS)
def test_the_coefficient_equals_the_reference(texts, others):
    for other in others:
        expected = [jaccard(one, other) for one in texts]
        assert likeness([cut(one) for one in texts], cut(other)) == pytest.approx(expected)


@given(TEXTS, st.sampled_from([0.1, 0.34, 0.5, 1.0]))
def test_a_repeat_resembles_an_earlier_text_that_is_kept(texts, threshold):
    """Pair by pair: a text is dropped if it resembles a kept text; the most similar text is named."""
    expected, staying = [], []
    for place, text in enumerate(texts):
        like = {other: jaccard(text, texts[other]) for other in staying}
        best = max(like.values(), default=0.0)
        gone = best >= threshold
        expected.append(best if gone else None)
        staying += [] if gone else [place]
    found = repeats([cut(text) for text in texts], threshold)
    assert [None if one is None else one[1] for one in found] == pytest.approx(expected)
    assert all(one is None or found[one[0]] is None for one in found)
