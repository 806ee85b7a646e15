"""A search that matches nothing well is reported, with the reasons; a search that matches is not."""

from __future__ import annotations

import pytest
from retrievalkit_serve.doubts import doubt, made_up_queries, scores_of_nonsense

import retrievalkit as rk
from retrievalkit.contracts.commands import OpenOptions
from retrievalkit.search.public import DescribedHit, opened

HITS = [DescribedHit(1, 1.0, "a", "Coffee machines", text="Descale the machine every month. The grinder is loud.")]
CHINESE = [DescribedHit(1, 1.0, "a", "咖啡机", text="每三个月给咖啡机除垢一次。")]
LIMITS = {"dense": 0.3}


@pytest.mark.parametrize(
    ("query", "vectors", "by_words", "hits", "doubtful"),
    [
        ("sourdough bread", 0.2, False, HITS, True),
        ("sourdough bread", 0.4, False, HITS, False),
        ("how do I bake bread", 0.2, True, HITS, True),
        # Half of the words are not enough, if vectors are against it, too.
        ("descaling robots", 0.2, True, HITS, True),
        ("descaling the machines", 0.2, True, HITS, False),
        ("how do I bake bread", 0.4, True, HITS, False),
        ("how do I bake the bread", None, True, HITS, True),
        ("descaling bread with a fork", None, True, HITS, False),
        # "the" begins "thermal", and "inder" ends "grinder", but neither is a word there.
        ("inder", None, True, HITS, True),
        ("咖啡机除垢", None, True, CHINESE, False),
        ("世界杯足球赛", None, True, CHINESE, True),
        ("机", None, True, CHINESE, False),
        ("猫", None, True, CHINESE, True),
        ("???", 0.2, True, HITS, True),
        ("???", None, True, HITS, False),
        ("sourdough", None, True, [], False),
        ("sourdough", None, True, [DescribedHit(1, 1.0, "a")], False),
    ],
)
def test_a_search_is_doubtful_if_all_its_indexes_are_against_it(query, vectors, by_words, hits, doubtful):
    """Without hits, or texts to compare, nothing is reported."""
    scores = {} if vectors is None else {"dense": vectors}
    assert bool(doubt(query, scores, by_words, LIMITS, hits)) == doubtful


def test_the_reasons_have_the_compared_values():
    text = doubt("robots descale bread in Paris", {"dense": 0.21}, True, LIMITS, HITS)
    assert all(part in text for part in ("dense", "0.21", "0.30", "1 of the 4 words"))


def test_an_index_whose_scores_have_no_limit_is_not_judged():
    assert doubt("bread", {"dense": 0.1, "late": 7.0}, False, LIMITS, HITS) is None


def test_nine_of_ten_made_up_queries_are_doubtful(folders):
    """Each index has its own limit; scores of several vectors per query have none."""
    searcher = opened([folders / "dense", folders / "late"], OpenOptions())
    limits = scores_of_nonsense(searcher)
    assert limits.keys() == {"dense"}
    index = rk.Index.open(folders / "dense")

    def doubtful(text):
        hits = index.search(text, k=1)
        return doubt(text, {"dense": hits[0].score}, False, limits, hits) is not None

    assert made_up_queries() == made_up_queries()
    assert sum(map(doubtful, made_up_queries())) == 28
