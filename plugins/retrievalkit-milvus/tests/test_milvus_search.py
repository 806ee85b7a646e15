"""Search compared with brute force: all kinds of representations, embedded and on a server."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from milvus_cases import assert_hits, draw, opened
from retrievalkit_milvus import collection, writing
from retrievalkit_testing import check

from retrievalkit import scoring
from retrievalkit.errors import UnsupportedError

KINDS = {
    "one vector": {"dim": 8},
    "many vectors": {"dim": 8, "m": 4},
    "varying numbers of vectors": {"dim": 8, "m": 5, "varied": True},
    "several query vectors": {"dim": 8, "m": 6, "varied": True, "query_vectors": 4},
    "weights": {"vocabulary": 40},
    "a vector and weights": {"dim": 8, "vocabulary": 40},
    "many vectors and weights": {"dim": 8, "m": 3, "varied": True, "vocabulary": 40},
    "several query vectors and weights": {"dim": 8, "m": 3, "query_vectors": 2, "vocabulary": 40},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_returns_the_hits_of_brute_force(indexed, server, kind):
    case = draw(25, **KINDS[kind], seed=1)
    assert_hits(indexed(case, uri=server).search(case.queries, 10), case.expected(10))


@pytest.mark.parametrize(
    ("kind", "integers"), [("varying numbers of vectors", False), ("one vector", True), ("weights", True)]
)
def test_a_search_may_need_more_hits_than_milvus_returns(indexed, monkeypatch, kind, integers):
    """The others are retrieved by further requests."""
    case = draw(50, **KINDS[kind], integers=integers, seed=4)
    index = indexed(case)
    monkeypatch.setattr(collection, "MOST_HITS", 9)
    for k in (3, 20, 50):
        assert_hits(index.search(case.queries, k), case.expected(k))


def test_requests_are_split(indexed, monkeypatch):
    """Many small requests build an equal index, and return the same hits."""
    case = draw(60, dim=4, vocabulary=20, queries=20)
    monkeypatch.setattr(collection, "_HITS_IN_A_REQUEST", 40)
    monkeypatch.setattr(writing, "BYTES_IN_A_REQUEST", 80)
    monkeypatch.setattr(collection, "BYTES_IN_A_REQUEST", 80)
    assert_hits(indexed(case).search(case.queries, 10), case.expected(10))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_hits_equal_brute_force(indexed, data):
    """For texts, queries and k of any shape."""
    dim = data.draw(st.sampled_from([0, 2, 16]))
    case = draw(
        data.draw(st.integers(1, 40)),
        dim=dim,
        m=data.draw(st.integers(1, 4)) if dim else 1,
        varied=bool(dim) and data.draw(st.booleans()),
        vocabulary=data.draw(st.sampled_from([0, 30])) if dim else 30,
        queries=data.draw(st.integers(1, 6)),
        query_vectors=data.draw(st.integers(1, 3)) if dim else 1,
        integers=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 1000)),
    )
    k = data.draw(st.integers(1, 50))
    assert_hits(indexed(case).search(case.queries, k), case.expected(k))


@pytest.mark.parametrize(
    ("kind", "view"), [("a vector and weights", "vectors"), ("many vectors and weights", "weights")]
)
def test_a_view_compares_only_vectors_or_only_weights(build, kind, view):
    """In an index of both, and in an index of one view."""
    case = draw(25, **KINDS[kind], seed=10)
    both, single = build(case), build(case, view=view)
    for representation in (case.documents, case.queries):
        setattr(representation, "weights" if view == "vectors" else "vectors", None)
    queries = draw(25, **KINDS[kind], seed=10).queries
    for folder in (both, single):
        index = opened(folder, view=view)
        assert_hits(index.search(queries, 9), case.expected(9))
        everything = scoring.scores(case.queries, case.documents)
        np.testing.assert_allclose(index.scores(queries, [["t7"]] * 5), everything[:, 7:8], rtol=1e-4)
    with pytest.raises(UnsupportedError, match=f"the index has only {view}"):
        opened(single, view="weights" if view == "vectors" else "vectors")


@pytest.mark.parametrize("kind", ["several query vectors", "a vector and weights"])
def test_scores_are_exact_with_few_candidates(indexed, kind):
    """Although some hits are missed."""
    case = draw(100, **KINDS[kind], seed=5)
    index = indexed(case, candidates=5)
    ids, scores = index.search(case.queries, 5)
    _, best = case.expected(5)
    rescored = index.scores(case.queries, ids)
    for own, exact, same in zip(scores, best, rescored, strict=True):
        assert (own <= exact + 1e-4).all()
        np.testing.assert_allclose(own, same, rtol=1e-5)
    all_candidates = indexed(case, candidates=100).search(case.queries, 5)
    assert all_candidates[0] == case.expected(5)[0]
    assert all_candidates[0] != ids


def test_queries_and_texts_without_terms(indexed):
    """A query without terms has no hits; a text without terms is retrieved by its vector."""
    for dim in (0, 4):
        case = draw(20, dim=dim, vocabulary=10, seed=7)
        case.queries.weights[1] = 0
        case.documents.weights[4:9] = 0
        results = indexed(case).search(case.queries, 20)
        assert_hits(results, case.expected(20))
        assert len(results[0][1]) == (20 if dim else 0)


@pytest.mark.parametrize(
    ("index_type", "parameters", "search_parameters"),
    [("HNSW", "M=16,efConstruction=200", ""), ("IVF_FLAT", "nlist=2", "nprobe=2"), ("AUTOINDEX", "", "")],
)
def test_approximate_indexes_have_a_high_recall(indexed, index_type, parameters, search_parameters):
    case = draw(100, dim=8, seed=8)
    index = indexed(case, index_type=index_type, parameters=parameters, search_parameters=search_parameters)
    ids, _ = index.search(case.queries, 10)
    for own, best in zip(ids, case.expected(10)[0], strict=True):
        assert len(set(own) & set(best)) >= 9


def test_parameters_change_the_hits(indexed):
    case = draw(200, dim=8, queries=20, seed=9)
    ids_with = {
        options: indexed(case, index_type="IVF_FLAT", parameters=options[0], search_parameters=options[1]).search(
            case.queries, 10
        )[0]
        for options in (("nlist=10", "nprobe=1"), ("nlist=10", "nprobe=10"), ("nlist=5", "nprobe=1"))
    }
    best = case.expected(10)[0]
    assert ids_with["nlist=10", "nprobe=10"] == best
    assert ids_with["nlist=10", "nprobe=1"] not in (best, ids_with["nlist=5", "nprobe=1"])


@pytest.mark.parametrize(
    ("documents", "queries", "problem"),
    [
        ({"dim": 4}, {"dim": 5}, "vectors of size 5, but the index of size 4"),
        ({"dim": 4}, {"dim": 4, "vocabulary": 5}, "weights of size 5, but the index of size 0"),
        ({"vocabulary": 6}, {"vocabulary": 5}, "weights of size 5, but the index of size 6"),
    ],
)
def test_queries_of_another_model_are_refused(indexed, documents, queries, problem):
    index, queries = indexed(draw(5, **documents)), draw(5, **queries).queries
    with pytest.raises(UnsupportedError, match=problem):
        index.search(queries, 3)
    with pytest.raises(UnsupportedError, match=problem):
        index.scores(queries, [["t0"]] * 5)


@pytest.mark.slow
def test_the_indexer_conforms(tmp_path):
    check("indexer", "milvus", folder=tmp_path)
