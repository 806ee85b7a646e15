"""The same text: Unicode forms, white space, case and hidden characters do not make another text."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.data.corpus import Passage
from retrievalkit.data.same_text import (
    _HIDDEN,
    normal_form,
    passage_digest,
    plain_fields,
    plain_form,
    same_text,
    text_hash,
)

SPELLINGS = {
    "blanks": ["Is it  so?", " is it so? ", "is\tit\nso?\r\n", "is it\u00a0so?", "is it\u3000so?"],
    "case": ["Straße", "STRASSE", "strasse"],
    "Greek": ["ΟΔΟΣ", "οδος", "οδοσ"],
    "forms": ["café", "cafe\u0301", "CAFÉ", "ＣＡＦÉ", "ca\u00adfé", "\ufeffcafé\u200b"],
    "compatibility": ["ﬁle ½ №", "file 1⁄2 No"],  # noqa: RUF001
    "Korean": ["한국", unicodedata.normalize("NFD", "한국")],
    "katakana": ["ガイド", "ｶﾞｲﾄﾞ"],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_a_text_are_the_same(name):
    first, *others = SPELLINGS[name]
    for other in others:
        assert same_text(first, other)
        assert text_hash(first) == text_hash(other)
        assert passage_digest(Passage("a", "x", first)) == passage_digest(Passage("b", "y", other))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cafe", "café"),
        ("is it so", "is it so?"),
        ("one two", "onetwo"),
        ("two one", "one two"),
        ("Δ", "A"),
        ("1.0", "10"),
    ],
)
def test_other_words_are_another_text(first, second):
    assert not same_text(first, second)
    assert passage_digest(Passage("a", "", first)) != passage_digest(Passage("a", "", second))


@given(text=st.text())
def test_the_normal_form_is_stable(text):
    """It equals its own normal form, and that of the text in every Unicode form."""
    normal = normal_form(text)
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    for other in (normal, text.casefold(), text.lower(), f"\u200b {text}\u00a0", *forms):
        assert normal_form(other) == normal


def test_hidden_characters_are_those_that_unicode_lists():
    listed = regex.compile(r"\p{Default_Ignorable_Code_Point}")
    characters = [chr(number) for number in range(0x110000)]
    assert [one for one in characters if _HIDDEN.match(one)] == [one for one in characters if listed.match(one)]


def test_a_title_counts_only_without_a_text():
    digest = passage_digest(Passage("a", "T", "\u200b"))
    assert digest == passage_digest(Passage("b", "t ", ""))
    assert digest not in (passage_digest(Passage("a", "U", "")), passage_digest(Passage("a", "", "T")))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("\ufb01ne o\ufb03ce", "fine office"),
        ("co\u00adop\u2060era\ufefftion", "cooperation"),
        ("\uff34\uff4f\uff4b\uff59\uff4f\uff12\uff10", "Tokyo20"),
        ("\uff76\uff9e\uff72\uff84\uff9e", "\u30ac\u30a4\u30c9"),
        ("\ufee3\ufeae\ufea3\ufe92\ufe8e", "\u0645\u0631\u062d\u0628\u0627"),
        ("\u200f\u05e9\u05dc\u05d5\u05dd\u200e", "\u05e9\u05dc\u05d5\u05dd"),
        ("10\u00a0km\u00b2 \u2460 \u00bd \uffe3", "10 km\u00b2 \u2460 \u00bd \uffe3"),
    ],
)
def test_the_plain_form_gives_each_letter_one_code(text, plain):
    """Superscripts and fractions, which another letter would not replace without a loss, stay."""
    assert plain_form(text) == plain
    assert plain_fields({text: [text, 1], plain: [plain], "n": 2}) == {plain: [plain, 1, plain], "n": 2}


@given(text=st.text() | st.text(st.characters(min_codepoint=0xFB00, max_codepoint=0xFFFF)))
def test_the_plain_form_is_stable_and_the_same_text(text):
    plain = plain_form(text)
    assert plain_form(plain) == plain
    assert same_text(plain, text)
