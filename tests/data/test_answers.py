"""DPR's rule for answers in passages."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from linear import assert_linear
from retrievalkit.data.answers import AnswerMatcher, FoldedText, answer_hits
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.errors import DataError, InputError

# DPR's own validator gives the same results.
CASES = [
    (["Paris"], "The capital is PARIS.", True),
    (["par"], "The capital is Paris.", False),
    (["new york"], "in New-York city", False),
    (["new - york"], "in New-York city", True),
    (["Beyonc\u00e9"], "song by Beyonce\u0301 in 2003", True),
    (["Beyonce"], "song by Beyonc\u00e9 in 2003", False),
    (["U.S."], "the U.S. army", True),
    (["US"], "the U.S. army", False),
    (["don't"], "I don't know", True),
    (["don\u2019t"], "I don't know", False),
    (["北京"], "他去年住在北京市。", True),
    (["308"], "今年是308分", True),
    (["京北"], "他去年住在北京市。", False),
    (["กรุงเทพ"], "เมืองหลวงคือกรุงเทพมหานคร", True),
    (["ガス"], "都市カ\u3099スの", True),
    ([""], "anything", True),
    ([""], "", True),
    (["1,000"], "about 1,000 people", True),
    (["1000"], "about 1,000 people", False),
    (["c"], "a b\u200bc d", True),
    (["x", "army"], "the U.S. army", True),
    ([], "the army", False),
    (["50%"], "nearly 50 % of", True),
    (["rock 'n' roll"], "Rock 'n' Roll music", True),
    (["three"], "Three-quarters", True),
    (["stra\u00dfe"], "STRASSE", False),
    (["\u2460"], "item \u2460 here", True),
]
# Difficult letters: sigma's two lower cases, dotted I, combining accents, zero-width, quotes, digits.
ALPHABET = "aAbiÉé'.-_ \t19%①ßẞ\u0391\u03a3\u03c3\u03c2\u0301\u0130\u200b\u00a0"
letters = st.text(st.sampled_from(ALPHABET) | st.characters(), max_size=12)


def by_tokens(answers, text):
    """Apply the rule directly, without shortcuts."""

    def cut(text):
        unspaced = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"
        rule = rf"(?V1){unspaced}\p{{M}}*|[[\p{{L}}\p{{N}}\p{{M}}]--{unspaced}]+|[^\p{{Z}}\p{{C}}]"
        pieces = regex.findall(rule, unicodedata.normalize("NFD", text))
        return [token.lower() for token in pieces]

    text_tokens = cut(text)
    return any(
        answer == text_tokens[start : start + len(answer)]
        for answer in map(cut, answers)
        for start in range(len(text_tokens) - len(answer) + 1)
    )


def has_answer(answers, text, mode="string"):
    return AnswerMatcher(answers, mode).matches(text)


@pytest.mark.parametrize(("answers", "text", "expected"), CASES)
def test_the_rule_is_that_of_dpr(answers, text, expected):
    assert has_answer(answers, text) is expected
    assert AnswerMatcher(answers).matches(FoldedText(text)) is expected


@settings(deadline=None)
@given(st.lists(letters, max_size=3), letters)
def test_the_fast_matcher_agrees_with_the_rule(answers, text):
    assert has_answer(answers, text) is by_tokens(answers, text)


@pytest.mark.parametrize(
    ("answers", "text", "expected"),
    [
        ([r"pa[rt]is$"], "in PARIS\nand more", True),
        (["\u00e9t\u00e9"], "l'e\u0301te\u0301", True),
        ([r"^paris"], "in Paris", False),
        (["(", "["], "a ( and a [", False),
        (["(", "and"], "a ( and a [", True),
    ],
)
def test_patterns_ignore_case_search_the_nfd_text_and_match_nothing_if_broken(answers, text, expected):
    assert has_answer(answers, text, mode="regex") is expected


def test_a_pattern_that_takes_too_long_is_refused(monkeypatch):
    """Patterns come from the data, so the message names the pattern."""
    monkeypatch.setattr("retrievalkit.data.answers.PATTERN_SECONDS", 0.1)
    with pytest.raises(InputError, match=r"\(a\|aa\)\+\$.*takes longer"):
        has_answer(["(a|aa)+$"], "a" * 60 + "b", mode="regex")


def test_matching_takes_linear_time():
    assert_linear(lambda text: has_answer(["a " * (len(text) // 4) + "b"], text + "c"), "a " * 2_000, "a " * 16_000)


def test_invalid_answers_are_refused():
    with pytest.raises(InputError, match=r"'exact'.*regex, string"):
        AnswerMatcher(["a"], "exact")
    with pytest.raises(InputError, match="should be a list"):
        AnswerMatcher("Paris", "string")


PASSAGES = [
    Passage("d1", "Paris", "The capital of France."),
    Passage("d2", "", "Paris is the capital."),
    Passage("d3", "", "Berlin, 1,000 km away."),
    Passage("d4", "", "Never retrieved."),
]
RUN = {
    "q1": [("d1", 3.0), ("d2", 2.0), ("d3", 1.0)],
    "q2": [("d3", 9.0), ("d1", 1.0)],
    "q3": [("d2", 1.0)],
}
ANSWERS = {"q1": ["Paris"], "q2": ["berlin", "rome"], "q4": ["x"]}


def test_hits_are_flags_by_rank_and_titles_do_not_count():
    hits = answer_hits(RUN, ANSWERS, PASSAGES)
    assert hits == {"q1": [False, True, False], "q2": [True, False]}
    # The depth limits the examined hits.
    hits = answer_hits(RUN, ANSWERS, PASSAGES[:1] + PASSAGES[2:], depth=1)
    assert hits == {"q1": [False], "q2": [True]}
    hits = answer_hits(RUN, {"q1": [r"\bcapital\b"]}, PASSAGES, mode="regex")
    assert hits == {"q1": [True, True, False]}


def test_a_document_missing_from_the_corpus_is_named():
    with pytest.raises(DataError, match="unknown document id 'd3'"):
        answer_hits(RUN, ANSWERS, Corpus.of(PASSAGES[:2]))
