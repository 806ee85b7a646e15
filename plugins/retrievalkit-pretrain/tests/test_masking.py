"""Whole-word masking: number and choice of the masked words, and their replacements."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retrievalkit_pretrain.masking import UNLABELLED, Masker, mask_budget, pad_labels

from retrievalkit.data.tokenized_text import Pieces, Vocabulary
from retrievalkit.errors import UnsupportedError

CLS, SEP, MASK = 1, 2, 3
VOCABULARY = Vocabulary(lambda texts: [], [CLS], [SEP], MASK, range(10, 110))
TEXTS = st.lists(st.tuples(st.integers(10, 109), st.booleans()), max_size=40)


def pieces_of(*words):
    """Create pieces from words, each a list of tokens."""
    return Pieces(
        [token for word in words for token in word],
        [not place for word in words for place, _ in enumerate(word)],
    )


@pytest.mark.parametrize(
    ("length", "ratio", "budget"),
    [(10, 0.3, 3), (5, 0.3, 2), (5, 0.5, 2), (7, 0.5, 4), (128, 0.45, 58), (126, 0.3, 38), (1, 0.3, 1)],
)
def test_the_budget_is_the_rounded_share_and_at_least_one(length, ratio, budget):
    assert mask_budget(length, ratio) == budget


def test_a_word_begins_at_its_first_token_or_at_the_start_of_a_cut_text():
    assert pieces_of([10, 11], [12], [13, 14, 15]).words() == [range(2), range(2, 3), range(3, 6)]
    assert pieces_of([10, 11], [12])[1:].words() == [range(1), range(1, 2)]
    assert Pieces([], []).words() == []


def test_cuts_start_at_uniformly_random_positions():
    source, text = random.Random(0), pieces_of(*([token] for token in range(10, 16)))
    counts = Counter(tuple(text.cut(4, source).ids) for _ in range(3000))
    assert set(counts) == {(10, 11, 12, 13), (11, 12, 13, 14), (12, 13, 14, 15)}
    assert min(counts.values()) > 900
    assert text.cut(6, source) is text


@given(TEXTS, st.floats(0, 1), st.integers())
def test_whole_words_are_masked_within_the_budget(tokens, ratio, seed):
    text = Pieces([token for token, _ in tokens], [starts for _, starts in tokens])
    chosen = set(Masker(VOCABULARY, ratio).choose(text, random.Random(seed)))
    budget = mask_budget(len(text), ratio)
    assert len(chosen) <= budget
    for word in text.words():
        assert chosen.issuperset(word) or chosen.isdisjoint(word)
        assert len(word) > budget - len(chosen) or chosen.issuperset(word), "a word that fits is not left out"


def test_words_are_drawn_in_random_order_and_too_long_words_are_skipped():
    text = pieces_of([10, 11, 12], [13], [14], [15, 16])
    masker = Masker(VOCABULARY, 3 / 7)
    source = random.Random(0)
    counts = Counter(frozenset(masker.choose(text, source)) for _ in range(4000))
    # The long word fills the budget if it is drawn first; otherwise the first two of the other words do.
    assert counts.keys() == {frozenset(positions) for positions in [(0, 1, 2), (3, 4), (3, 5, 6), (4, 5, 6)]}
    assert list(counts.values()) == pytest.approx([1000] * 4, rel=0.15)


def test_masked_tokens_become_mask_or_random_tokens_or_stay():
    text = pieces_of(*([token] for token in range(10, 110)))
    masker, source = Masker(VOCABULARY, 1.0), random.Random(0)
    counts, random_tokens = Counter(), set()
    for _ in range(400):
        ids, labels = masker(text, source)
        assert labels == [UNLABELLED, *range(10, 110), UNLABELLED], "special tokens are never masked"
        for token, label in zip(ids[1:-1], labels[1:-1], strict=True):
            counts["mask" if token == MASK else "same" if token == label else "random"] += 1
            random_tokens |= {token} if token not in (MASK, label) else set()
    assert counts["mask"] / 40_000 == pytest.approx(0.8, abs=0.01)
    assert counts["random"] / 40_000 == pytest.approx(0.1 * 99 / 100, abs=0.01)
    assert counts["same"] / 40_000 == pytest.approx(0.1 * 101 / 100, abs=0.01)
    assert random_tokens == set(range(10, 110)), "all ordinary tokens occur"


@given(TEXTS, st.floats(0, 1), st.integers())
def test_unlabelled_tokens_are_unchanged(tokens, ratio, seed):
    text = Pieces([token for token, _ in tokens], [starts for _, starts in tokens])
    ids, labels = Masker(VOCABULARY, ratio)(text, random.Random(seed))
    original = VOCABULARY.wrap(text.ids)
    for token, label, before in zip(ids, labels, original, strict=True):
        assert (token if label == UNLABELLED else label) == before


def test_a_vocabulary_without_a_mask_token_is_refused():
    with pytest.raises(UnsupportedError, match="has no mask token"):
        Masker(Vocabulary(lambda texts: [], [], [], None, range(5)), 0.3)


def test_labels_are_padded_on_the_right():
    assert pad_labels([[1, 2, 3], [4], []]).tolist() == [[1, 2, 3], [4, -100, -100], [-100] * 3]
    assert pad_labels([[]]).shape == (1, 1)


def test_single_tokens_are_masked_without_whole_words():
    masker = Masker(VOCABULARY, 0.5, whole_words=False)
    chosen = {tuple(sorted(masker.choose(pieces_of([10, 11, 12, 13]), random.Random(seed)))) for seed in range(100)}
    assert len(chosen) == 6
