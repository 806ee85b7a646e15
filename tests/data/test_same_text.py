"""The same text: Unicode forms, white space, case and hidden characters do not make another text."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.data.corpus import Passage
from retrievalkit.data.same_text import _HIDDEN, normal_form, passage_digest, same_text, text_hash

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
