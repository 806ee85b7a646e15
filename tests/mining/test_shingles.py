"""Near duplicates: shingles by hand, Jaccard's coefficient against a reference of five lines, and who repeats whom."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.data.corpus import Passage
from retrievalkit.mining.shingles import likeness, repeats, shingles, shingles_of


def cut(text, title=""):
    return shingles(Passage("p", title, text))


def jaccard(one, other):
    """The reference."""
    sets = []
    for text in (one, other):
        words = re.findall(r"\w+", text.casefold())
        sets.append({tuple(words[start : start + 5]) for start in range(max(1, len(words) - 4))} if words else set())
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1]) if sets[0] and sets[1] else 0.0


def test_worked_cases():
    """Repeated shingles count once; a short text is one shingle; a title counts where there is no text."""
    assert len(cut("one two three four five six seven")) == 3
    assert len(cut("a a a a a a a a")) == 1
    assert likeness([cut("red blue"), cut("blue red"), cut("")], cut("Red blue.")) == [1.0, 0.0, 0.0]
    assert likeness([cut("red")], cut("  ")) == [0.0]
    assert likeness([cut("", "A title"), cut("text", "A title")], cut("a title")) == [1.0, 0.0]
    # Of 9 words one more than of 8: 4 shingles of 5 are shared.
    eight = "the cat sat on the mat all day"
    assert likeness([cut(eight)], cut(f"{eight} long")) == [pytest.approx(4 / 5)]


TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=14).map(" ".join), min_size=1, max_size=8)


@given(TEXTS, TEXTS, st.sampled_from([0.0, 0.1, 0.34, 0.5, 4 / 6, 0.8, 1.0]))
def test_the_coefficient_is_that_of_the_reference_where_it_reaches_the_threshold(texts, others, threshold):
    """Only the start of a text is looked at first."""
    for other in others:
        exact = [jaccard(one, other) for one in texts]
        found = likeness([cut(one) for one in texts], cut(other), threshold)
        assert [one if one >= threshold else 0.0 for one in found] == pytest.approx(
            [one if one >= threshold else 0.0 for one in exact]
        )


@given(TEXTS, st.sampled_from([0.1, 0.34, 0.5, 1.0]))
def test_a_repeat_is_like_an_earlier_text_that_stays(texts, threshold):
    """Worked out pair by pair: a text goes if it is like one that stayed, and the one named is the likest."""
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


def test_long_texts_are_compared_by_their_starts_first(monkeypatch):
    """The same pairs as when all of them are compared whole, with a third of the texts left after the starts."""
    import random

    from retrievalkit.mining import shingles as module

    draw = random.Random(3)
    words = [str(number) for number in range(5000)]
    first = [draw.choices(words, k=600) for _ in range(20)]
    changed = [[draw.choice(words) if draw.random() < 0.03 else word for word in text] for text in first[:5]]
    texts = [cut(" ".join(text)) for text in [*first, *changed, first[7][:560]]]
    left = module._possibly_alike(texts, 0.7)
    assert set(left) < set(range(len(texts)))
    found = repeats(texts, 0.7)
    monkeypatch.setattr(module, "_WORTH", 0.0)
    assert list(module._possibly_alike(texts, 0.7)) == list(range(len(texts)))
    assert found == repeats(texts, 0.7)
    assert [one and one[0] for one in found[20:]] == [0, 1, 2, 3, 4, 7]


def test_a_chain_of_texts_loses_its_links_only():
    """The third is like the second, which goes, and not like the first: it stays."""
    first, second, third = "a b c d e f g h", "c d e f g h i j", "e f g h i j k l"
    assert repeats([cut(first), cut(second), cut(third)], 1 / 3) == [None, (0, pytest.approx(2 / 6)), None]


def test_texts_are_read_once():
    """However often their shingles are asked for."""
    read = []
    of = shingles_of(lambda one: read.append(one) or Passage(one, "", one))
    assert of("a").tolist() == of("a").tolist()
    assert read == ["a"]
