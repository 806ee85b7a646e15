"""Filters worked out by hand, alone and together; the choice of negatives; merging of two sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.contracts import Found, Question
from retrievalkit.data.corpus import Corpus, Cut, Passage
from retrievalkit.data.examples import Example
from retrievalkit.data.queries import Query
from retrievalkit.errors import DataError
from retrievalkit.mining.examples import find_copies, group_questions, merge_examples
from retrievalkit.mining.filters import make_filters, mine_part
from retrievalkit.mining.options import MiningOptions

COMMON = "the cat sat on the mat all day long and then went home"
PASSAGES = {
    "d1#0": ("Cats", COMMON),
    "d1#1": ("Cats", "something else about cats that has other words in it"),
    "d2#0": ("cats ", f"{COMMON} again"),
    "d2#1": ("", "dogs bark at night when the moon is out and full"),
    "d3#0": ("", "dogs bark at night when the moon is out and new"),
    "d4#0": ("Birds", "birds fly"),
}
CUT = {"d1#1": Cut("d1", 1, 2), "d2#1": Cut("d2", 1, 1)}
TEXTS = [("d1#1", 9.0), ("d1#0", 8.0), ("d2#0", 7.0), ("d2#1", 6.0), ("d3#0", 5.0), ("d4#0", 4.0)]
HITS = [("p1", 10.0), ("p2", 9.0), ("p3", 8.0), ("p4", 6.0), ("p5", 5.0)]
BELOW_0 = [("p1", -9.0), ("p2", -10.0), ("p3", -10.5), ("p4", -11.0), ("p5", -12.0)]


def outcome_of(hits, positives, copies=(), holds=None, scores=None, **options):
    """Return the outcome for a question, and the filters by name."""
    chosen = MiningOptions(**options)
    question = Question(Query("q", "a question", ("yes",)), ("q",), frozenset(positives), frozenset(copies))
    filters = make_filters(chosen, lambda one: Passage(one, *PASSAGES[one], cut=CUT.get(one)), scores)
    (outcome,) = mine_part([Found.of(question, hits, holds)], chosen, filters)
    return outcome, {one.name: one for one in filters}


def ranks(negatives):
    return "".join(one[1:] for one in negatives)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, "1345"),
        ({"drop_positives": False}, "12345"),
        ({"copies": ["p4"]}, "135"),
        ({"holds": [True, True, False, True, False]}, "1345"),
        ({"holds": [True, True, False, True, False], "drop_answers": True}, "35"),
        # Ranks count from the top of the run, positives included.
        ({"skip_top": 1}, "345"),
        ({"skip_top": 2}, "345"),
        ({"skip_top": 3}, "45"),
        # The positive p2 has 9: a margin of 1 keeps scores up to 8, of 1.5 up to 7.5.
        ({"margin_absolute": 0.0}, "345"),
        ({"margin_absolute": 1.0}, "345"),
        ({"margin_absolute": 1.5}, "45"),
        ({"margin_absolute": -1.0}, "1345"),
        # 0.8 of 9 is 7.2, and 0.6 is 5.4.
        ({"margin_relative": 0.8}, "45"),
        ({"margin_relative": 0.6}, "5"),
        # For -10, a share of 0.9 keeps scores up to -11.
        ({"hits": BELOW_0, "margin_relative": 0.9}, "45"),
        # The lowest positive counts; a positive that is not among the hits scores 5, like the last hit.
        ({"positives": ["p1", "p4"], "margin_absolute": 0.5}, "5"),
        ({"positives": ["absent"], "margin_absolute": 0.0}, "5"),
        ({"positives": ["absent"], "margin_absolute": 0.1}, ""),
        ({"negatives": 2}, "13"),
        # An id that the pattern does not match belongs to no document.
        ({"same_document": "(.+)#"}, "1345"),
        ({"hits": [], "negatives": 2}, ""),
    ],
    ids=str,
)
def test_filters_of_ids_ranks_and_scores(options, left):
    outcome, _ = outcome_of(**{"hits": HITS, "positives": ["p2"], **options})
    assert ranks(outcome.mined.negatives) == left


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.integers(0, 5), st.floats(0, 5), st.integers(1, 40))
def test_negatives_are_hits_in_rank_order_and_never_positives(scores, skip, margin, wanted):
    hits = [(f"p{rank}", score) for rank, score in enumerate(sorted(scores, reverse=True))]
    outcome, _ = outcome_of(hits, ["p1"], skip_top=skip, margin_absolute=margin, negatives=wanted)
    found = [int(one[1:]) for one in outcome.mined.negatives]
    assert found == sorted(set(found))
    assert len(found) <= wanted
    assert 1 not in found
    assert all(rank >= skip for rank in found)


def test_a_random_sample_depends_only_on_the_seed_and_the_question():
    hits = [(f"p{rank}", -rank) for rank in range(100)]

    def sampled(query="q", seed=1):
        options = MiningOptions(negatives=10, sample="random", seed=seed)
        found = Found.of(Question(Query(query, "a question"), (query,), frozenset()), hits)
        return list(mine_part([found], options, make_filters(options, PASSAGES.get))[0].negatives)

    chosen = sampled()
    assert chosen == sampled() == sorted(set(chosen))
    assert len(chosen) == 10
    assert max(chosen) > 10
    assert chosen not in (sampled("r"), sampled(seed=2))


def scored(**scores):
    """Options with a re-ranker that has scores only for these passages."""
    return {"reranker": "R", "scores": lambda pairs: [scores.get(one.replace("#", "_")) for _, one in pairs]}


ABOVE = scored(d1_1=3.0, d2_0=1.0, d2_1=1.1, d4_0=-2.0)
NEAR = scored(d1_0=4.0, d1_1=3.0, d2_0=1.0, d2_1=1.1, d3_0=3.5, d4_0=-2.0)
TWO = scored(d1_0=4.0, d4_0=2.0, d1_1=3.0, d2_0=2.0, d2_1=0.0, d3_0=0.0)


@pytest.mark.parametrize(
    ("options", "left", "reasons"),
    [
        # Titles are compared without case and white space; a passage without a title belongs to no document.
        ({"same_document": "title"}, "d2#1 d3#0 d4#0", {("document of a positive", 0): "document 'cats'"}),
        ({"same_document": "title", "positives": ["d2#1"]}, "d1#1 d1#0 d2#0 d3#0 d4#0", {}),
        # Only d1#1 and d2#1 are recorded as passages, of two documents.
        ({"same_document": "recorded"}, "d1#1 d2#0 d2#1 d3#0 d4#0", {}),
        ({"same_document": "recorded", "positives": ["d1#1"]}, "d1#0 d2#0 d2#1 d3#0 d4#0", {}),
        ({"same_document": "(.+)#"}, "d2#0 d2#1 d3#0 d4#0", {}),
        ({"same_document": r"d\d+", "positives": ["d2#1"]}, "d1#1 d1#0 d3#0 d4#0", {}),
        # d2#0 and the positive share nine of ten 5-grams, d3#0 and d2#1 six of eight.
        ({"near_duplicates": 0.8}, "d1#1 d2#1 d3#0 d4#0", {}),
        (
            {"near_duplicates": 0.7},
            "d1#1 d2#1 d4#0",
            {
                ("near duplicate of a positive", 2): "shares 90% of its 5-grams with 'd1#0'",
                ("near duplicate of a better negative", 4): "shares 75% of its 5-grams with 'd2#1'",
            },
        ),
        ({"near_duplicates": 0.95}, "d1#1 d2#0 d2#1 d3#0 d4#0", {}),
        # d2#1 contains the answer and is dropped; d3#0, which resembles it, is kept.
        ({"near_duplicates": 0.7, "drop_answers": True, "holds": [place == 3 for place in range(6)]},
         "d1#1 d3#0 d4#0", {}),
        # Hits at the limit and hits without a score are kept.
        (
            {**ABOVE, "reranker_above": 1.0},
            "d2#0 d3#0 d4#0",
            {("re-ranker", 0): "the re-ranker gives it 3, and the limit is 1"},
        ),
        ({**ABOVE, "reranker_above": -3.0}, "d3#0", {}),
        # The positive has 4: a margin of 1 drops scores above 3, a margin of 3 above 1. The lower limit counts.
        ({**NEAR, "reranker_margin": 1.0}, "d1#1 d2#0 d2#1 d4#0", {}),
        ({**NEAR, "reranker_margin": 3.0}, "d2#0 d4#0", {}),
        ({**NEAR, "reranker_margin": 1.0, "reranker_above": 0.0}, "d4#0", {}),
        ({**TWO, "reranker_margin": 0.0, "positives": ["d1#0", "d4#0"]}, "d2#0 d2#1 d3#0", {}),
        # Without a score of the positive there is no limit.
        ({**scored(d1_1=9.0), "reranker_margin": 0.0}, "d1#1 d2#0 d2#1 d3#0 d4#0", {}),
    ],
)  # fmt: skip
def test_filters_of_documents_texts_and_a_rerankers_scores(options, left, reasons):
    outcome, filters = outcome_of(**{"hits": TEXTS, "positives": ["d1#0"], **options})
    assert outcome.mined.negatives == tuple(left.split())
    for (name, place), reason in reasons.items():
        assert filters[name].reason(outcome.hits, place) == reason


def test_each_filter_sees_the_hits_that_earlier_filters_kept():
    options = {"drop_answers": True, "same_document": "(.+)#", "near_duplicates": 0.7, "skip_top": 5}
    holds = [place == 3 for place in range(6)]
    outcome, filters = outcome_of(TEXTS, ["d1#0"], holds=holds, **options, **scored(d4_0=1.0), reranker_above=0.0)
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


def test_copies_have_the_same_text_whatever_the_title_and_white_space():
    """The title replaces an empty text."""
    texts = {"a": ("A", "one  text"), "b": ("B", "one text "), "c": ("A", "another"), "d": ("T", ""), "e": ("T", " ")}
    corpus = Corpus.of(Passage(one, title, text) for one, (title, text) in texts.items())
    assert find_copies({"a", "c"}, corpus) == {"a": {"a", "b"}}
    assert find_copies({"d"}, corpus) == {"d": {"d", "e"}}
    corpus = Corpus.of([Passage(one, "", f"text {one}") for one in "abc"])
    questions = group_questions([Example(one, f"question {one}", (one,)) for one in "abc"], corpus)
    assert [question.copies for question in questions] == [frozenset()] * 3


def test_examples_of_a_question_in_any_spelling_are_a_group():
    """Their positives are known for each; the smallest id and its spelling do not depend on the order."""
    rows = [Example("2", "is  it so? ", ("b",)), Example("1", "Is it so?", ("a",)), Example("3", "is it?", ("c",))]
    for order in (rows, rows[::-1]):
        same, other = sorted(group_questions(order), key=lambda question: question.query.id)
        assert (same.query.id, same.query.text) == ("1", "Is it so?")
        assert (sorted(same.ids), same.positives, other.positives) == (["1", "2"], {"a", "b"}, {"c"})


def test_merging_puts_the_other_set_first_and_truncates_both():
    first = [Example("1", "x", ("p",), ("a", "b", "c")), Example("2", "y", ("p",), ("a",))]
    mined = [Example("1", "x", ("p",), ("d", "a", "e"))]
    assert list(merge_examples(first, mined, keep=2)) == [
        Example("1", "x", ("p",), ("a", "b")),
        Example("2", "y", ("p",), ("a",)),
        Example("1", "x", ("p",), ("d", "a")),
    ]
    assert list(merge_examples(first, mined)) == [*first, *mined]
    with pytest.raises(DataError, match="'1' is 'x' in the first set, but 'z' in the second"):
        list(merge_examples(first, [Example("1", "z", ("p",))]))


def test_merging_into_a_pool_gives_one_example_per_question():
    """It has the first set's negatives, then the second's, without repeats and without the positives of any example."""
    first = [Example("1", "x", ("p",), ("a", "m", "c"), ("yes",)), Example("2", "y", ("p",), ("a", "n"))]
    mined = [
        Example("1", "X ", ("m",), ("d", "a", "p"), ("no",)), Example("3", "z", ("p",), ("a", "b", "c")),
        Example("4", "y\n", ("n",), ("d", "p")), Example("5", "Y", ("o",)),
    ]  # fmt: skip
    assert list(merge_examples(first, mined, keep=2, merge="pool")) == [
        Example("1", "x", ("p", "m"), ("a", "d"), ("yes", "no")),
        Example("2", "y", ("p", "n", "o"), ("a", "d")),
        Example("3", "z", ("p",), ("a", "b")),
    ]


@pytest.mark.parametrize("merge", ["concatenate", "pool"])
def test_merging_keeps_the_teachers_scores_of_the_documents_kept(merge):
    first = [Example("1", "x", ("p",), ("a", "b"), teacher={"p": 1.0, "a": 2.0, "b": 3.0})]
    second = [Example("2", "y", ("p",), ("a", "b"), teacher={"b": 3.0})]
    assert [row.teacher for row in merge_examples(first, second, keep=1, merge=merge)] == [{"p": 1.0, "a": 2.0}, None]
