"""The filters of mined hits that look further than at ids and ranks: by hand, one by one, and in a row."""

import pytest

from retrievalkit.contracts import Found, Question
from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query
from retrievalkit.errors import OptionError
from retrievalkit.mine.filters import make_filters, mine_part
from retrievalkit.mine.options import MiningOptions, document_of, document_pattern

COMMON = "the cat sat on the mat all day long and then went home"
PASSAGES = {
    "d1#0": ("Cats", COMMON),
    "d1#1": ("Cats", "something else about cats that has other words in it"),
    "d2#0": ("cats ", f"{COMMON} again"),
    "d2#1": ("", "dogs bark at night when the moon is out and full"),
    "d3#0": ("", "dogs bark at night when the moon is out and new"),
    "d4#0": ("Birds", "birds fly"),
}
HITS = [("d1#1", 9.0), ("d1#0", 8.0), ("d2#0", 7.0), ("d2#1", 6.0), ("d3#0", 5.0), ("d4#0", 4.0)]


def passage(one):
    return Passage(one, *PASSAGES[one])


def mined(positives=("d1#0",), scores=None, holds=None, **options):
    """The outcome for one question, and its filters."""
    chosen = MiningOptions(**options)
    question = Question(Query("q", "a question", ("yes",)), ("q",), frozenset(positives))
    filters = make_filters(chosen, passage, scores)
    (outcome,) = mine_part([Found.of(question, HITS, holds)], chosen, filters)
    return outcome, {one.name: one for one in filters}


def negatives(**options):
    return mined(**options)[0].mined.negatives


def given(**scores):
    """A re-ranker that gives these scores, and none to other passages."""
    return lambda pairs: [scores.get(one.replace("#", "_")) for _, one in pairs]


def test_the_same_title_is_the_same_document():
    """Whatever its case and white space; a passage without a title is of no document."""
    assert negatives(same_document="title") == ("d2#1", "d3#0", "d4#0")
    assert negatives(same_document="title", positives=["d2#1"]) == ("d1#1", "d1#0", "d2#0", "d3#0", "d4#0")
    outcome, filters = mined(same_document="title")
    assert filters["document of a positive"].reason(outcome.found, 0) == "document 'cats'"


def test_a_pattern_tells_the_document_by_the_id():
    """Its first group, or all that it finds, is the document's name."""
    assert negatives(same_document="(.+)#") == ("d2#0", "d2#1", "d3#0", "d4#0")
    assert negatives(same_document=r"d\d+", positives=["d2#1"]) == ("d1#1", "d1#0", "d3#0", "d4#0")
    assert document_of(document_pattern("(.+)#"), "no mark") is None


@pytest.mark.parametrize(("way", "problem"), [("(", "nor a regular expression"), (".*", "which matches every id")])
def test_a_pattern_that_tells_nothing_is_refused(way, problem):
    with pytest.raises(OptionError, match=problem):
        MiningOptions(same_document=way).check(merging=False)


def test_near_duplicates_of_a_positive_and_of_a_better_hit_are_dropped():
    """Nine of ten 5-grams are in both d2#0 and the positive, d3#0 6 of 8 with d2#1."""
    assert negatives(near_duplicates=0.8) == ("d1#1", "d2#1", "d3#0", "d4#0")
    assert negatives(near_duplicates=0.7) == ("d1#1", "d2#1", "d4#0")
    assert negatives(near_duplicates=0.95) == ("d1#1", "d2#0", "d2#1", "d3#0", "d4#0")
    outcome, filters = mined(near_duplicates=0.7)
    name = "near duplicate of a positive"
    assert filters[name].reason(outcome.found, 2) == "shares 90% of its 5-grams with 'd1#0'"
    name = "near duplicate of a better negative"
    assert filters[name].reason(outcome.found, 4) == "shares 75% of its 5-grams with 'd2#1'"


def test_what_was_dropped_before_drops_no_near_duplicate():
    """d2#1 holds the answer and goes; d3#0, which is like it, stays."""
    holds = [False, False, False, True, False, False]
    assert negatives(near_duplicates=0.7, drop_answers=True, holds=holds) == ("d1#1", "d3#0", "d4#0")


def test_hits_that_a_reranker_scores_above_a_limit_are_dropped():
    """Those at the limit stay, and those without a score."""
    scores = given(d1_1=3.0, d2_0=1.0, d2_1=1.1, d4_0=-2.0)
    options = {"reranker": "R", "scores": scores}
    assert negatives(**options, reranker_above=1.0) == ("d2#0", "d3#0", "d4#0")
    assert negatives(**options, reranker_above=-3.0) == ("d3#0",)
    outcome, filters = mined(**options, reranker_above=1.0)
    assert filters["re-ranker"].reason(outcome.found, 0) == "the re-ranker gives it 3, and the limit is 1"


def test_hits_that_a_reranker_scores_near_the_positive_are_dropped():
    """The positive has 4: with a margin of 1, what has more than 3 goes; with 3, more than 1. The lower one counts."""
    options = {"reranker": "R", "scores": given(d1_0=4.0, d1_1=3.0, d2_0=1.0, d2_1=1.1, d3_0=3.5, d4_0=-2.0)}
    assert negatives(**options, reranker_margin=1.0) == ("d1#1", "d2#0", "d2#1", "d4#0")
    assert negatives(**options, reranker_margin=3.0) == ("d2#0", "d4#0")
    assert negatives(**options, reranker_margin=1.0, reranker_above=0.0) == ("d4#0",)


def test_the_positive_of_the_lowest_score_sets_the_margin():
    """And a question without a scored positive has no margin."""
    options = {"reranker": "R", "reranker_margin": 0.0}
    scores = given(d1_0=4.0, d4_0=2.0, d1_1=3.0, d2_0=2.0, d2_1=0.0, d3_0=0.0)
    assert negatives(**options, scores=scores, positives=["d1#0", "d4#0"]) == ("d2#0", "d2#1", "d3#0")
    assert negatives(**options, scores=given(d1_1=9.0)) == ("d1#1", "d2#0", "d2#1", "d3#0", "d4#0")


def test_the_reranker_is_asked_once_for_what_the_others_left():
    """One call for many questions, with the positives only where a margin needs them."""
    asked = []

    def scores(pairs):
        asked.append([(found.question.query.id, one) for found, one in pairs])
        return [0.0] * len(pairs)

    options = MiningOptions(skip_top=4, reranker="R", reranker_above=1.0)
    questions = [Question(Query(one, one), (one,), frozenset(["d1#0"])) for one in "ab"]
    part = [Found.of(questions[0], HITS), Found.of(questions[1], HITS[:5])]
    mine_part(part, options, make_filters(options, passage, scores))
    assert asked == [[("a", "d3#0"), ("a", "d4#0"), ("b", "d3#0")]]


def test_each_filter_drops_what_the_ones_before_it_left():
    """In the order stated: every hit is dropped once."""
    holds = [False, False, False, True, False, False]
    outcome, filters = mined(
        holds=holds,
        drop_answers=True,
        same_document="(.+)#",
        near_duplicates=0.7,
        skip_top=5,
        reranker="R",
        reranker_above=0.0,
        scores=given(d4_0=1.0),
    )
    assert dict(zip(filters, outcome.dropped, strict=True)) == {
        "known positive": [1],
        "copy of a positive": [],
        "document of a positive": [0],
        "near duplicate of a positive": [2],
        "holds the answer": [3],
        "rank": [4],
        "near duplicate of a better negative": [],
        "re-ranker": [5],
    }


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"near_duplicates": 0.0}, "near_duplicates is 0.0, but must be above 0 and at most 1, such as 0.8"),
        ({"near_duplicates": 80.0}, "near_duplicates is 80.0"),
        ({"margin_relative": -1.0}, "margin_relative is -1.0"),
        ({"margin_absolute": float("nan")}, "margin_absolute is nan, but must be a finite number"),
        ({"reranker": "R"}, "drops nothing by itself. Set reranker_above or reranker_margin"),
        ({"reranker_above": 1.0}, "need a re-ranker's scores. Give a re-ranker"),
        ({"reranker": "R", "reranker_margin": float("inf")}, "reranker_margin is inf"),
    ],
)
def test_thresholds_out_of_range_are_refused(options, problem):
    with pytest.raises(OptionError, match=problem):
        MiningOptions(**options).check(merging=False)
