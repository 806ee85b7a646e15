"""Searches against brute force: every kind of representation, embedded and on a server."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retrievalkit_milvus import collection, writing
from retrievalkit_testing import check

from retrievalkit import scoring
from retrievalkit.errors import UnsupportedError

KINDS = {
    "one vector": {"dim": 8},
    "many vectors": {"dim": 8, "m": 4},
    "vectors that vary in number": {"dim": 8, "m": 5, "varied": True},
    "several query vectors": {"dim": 8, "m": 6, "varied": True, "query_vectors": 4},
    "weights": {"vocabulary": 40},
    "a vector and weights": {"dim": 8, "vocabulary": 40},
    "many vectors and weights": {"dim": 8, "m": 3, "varied": True, "vocabulary": 40},
    "several query vectors and weights": {"dim": 8, "m": 3, "query_vectors": 2, "vocabulary": 40},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_finds_the_same(draw, indexed, assert_found, server, kind):
    case = draw(25, **KINDS[kind], seed=1)
    assert_found(indexed(case, uri=server).search(case.queries, 10), case.expected(10))


@pytest.mark.parametrize(
    ("kind", "integers"), [("vectors that vary in number", False), ("one vector", True), ("weights", True)]
)
def test_more_than_milvus_returns(draw, indexed, assert_found, monkeypatch, kind, integers):
    """Where a query wants more rows than Milvus returns, the rest is found all the same."""
    case = draw(50, **KINDS[kind], integers=integers, seed=4)
    index = indexed(case)
    monkeypatch.setattr(collection, "MOST_HITS", 9)
    for k in (3, 20, 50):
        assert_found(index.search(case.queries, k), case.expected(k))


def test_requests_are_cut(draw, indexed, assert_found, monkeypatch):
    """Many small requests find what one large one finds."""
    case = draw(60, dim=4, vocabulary=20, queries=20)
    index = indexed(case, batch=7)
    monkeypatch.setattr(collection, "_HITS_IN_A_REQUEST", 40)
    monkeypatch.setattr(writing, "BYTES_IN_A_REQUEST", 80)
    monkeypatch.setattr(collection, "BYTES_IN_A_REQUEST", 80)
    assert_found(index.search(case.queries, 10), case.expected(10))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_shape(draw, indexed, assert_found, data):
    """Whatever the texts, queries and k, the result is that of brute force."""
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
    assert_found(indexed(case).search(case.queries, k), case.expected(k))


@pytest.mark.parametrize(
    ("kind", "view"), [("a vector and weights", "vectors"), ("many vectors and weights", "weights")]
)
def test_one_of_two(draw, build, opened, assert_found, kind, view):
    """Vectors alone or weights alone are compared: of an index of both, and of one that holds nothing else."""
    case = draw(25, **KINDS[kind], seed=10)
    both, single = build(case), build(case, view=view)
    for representation in (case.documents, case.queries):
        setattr(representation, "weights" if view == "vectors" else "vectors", None)
    queries = draw(25, **KINDS[kind], seed=10).queries
    for folder in (both, single):
        index = opened(folder, view=view)
        assert_found(index.search(queries, 9), case.expected(9))
        everything = scoring.scores(case.queries, case.documents)
        np.testing.assert_allclose(index.scores(queries, [["t7"]] * 5), everything[:, 7:8], rtol=1e-4)
    with pytest.raises(UnsupportedError, match=f"the index has only {view}"):
        opened(single, view="weights" if view == "vectors" else "vectors")


@pytest.mark.parametrize("kind", ["several query vectors", "a vector and weights"])
def test_few_candidates_miss_some(draw, indexed, kind):
    """With fewer candidates than texts the scores of what is found are still exact, and never better than the best."""
    case = draw(100, **KINDS[kind], seed=5)
    index = indexed(case, candidates=5)
    ids, scores = index.search(case.queries, 5)
    _, best = case.expected(5)
    rescored = index.scores(case.queries, ids)
    for ours, best_ones, again in zip(scores, best, rescored, strict=True):
        assert (ours <= best_ones + 1e-4).all()
        np.testing.assert_allclose(ours, again, rtol=1e-5)
    whole = indexed(case, candidates=100).search(case.queries, 5)
    assert whole[0] == case.expected(5)[0]
    assert whole[0] != ids


def test_queries_and_texts_without_terms(draw, indexed, assert_found):
    """A query without terms finds nothing; a text without terms is found by its vector alone."""
    for dim in (0, 4):
        case = draw(20, dim=dim, vocabulary=10, seed=7)
        case.queries.weights[1] = 0
        case.documents.weights[4:9] = 0
        results = indexed(case).search(case.queries, 20)
        assert_found(results, case.expected(20))
        assert len(results[0][1]) == (20 if dim else 0)


@pytest.mark.parametrize(
    ("index_type", "parameters", "search_parameters"),
    [("HNSW", "M=16,efConstruction=200", ""), ("IVF_FLAT", "nlist=2", "nprobe=2"), ("AUTOINDEX", "", "")],
)
def test_other_indexes(draw, indexed, index_type, parameters, search_parameters):
    case = draw(100, dim=8, seed=8)
    index = indexed(case, index_type=index_type, parameters=parameters, search_parameters=search_parameters)
    ids, _ = index.search(case.queries, 10)
    for ours, best in zip(ids, case.expected(10)[0], strict=True):
        assert len(set(ours) & set(best)) >= 9


def test_parameters_count(draw, indexed):
    case = draw(200, dim=8, queries=20, seed=9)
    found_with = {
        options: indexed(case, index_type="IVF_FLAT", parameters=options[0], search_parameters=options[1]).search(
            case.queries, 10
        )[0]
        for options in (("nlist=10", "nprobe=1"), ("nlist=10", "nprobe=10"), ("nlist=5", "nprobe=1"))
    }
    best = case.expected(10)[0]
    assert found_with["nlist=10", "nprobe=10"] == best
    assert found_with["nlist=10", "nprobe=1"] not in (best, found_with["nlist=5", "nprobe=1"])


@pytest.mark.parametrize(
    ("documents", "queries", "problem"),
    [
        ({"dim": 4}, {"dim": 5}, "vectors of size 5, but the index of size 4"),
        ({"dim": 4}, {"dim": 4, "vocabulary": 5}, "weights of size 5, but the index of size 0"),
        ({"vocabulary": 6}, {"vocabulary": 5}, "weights of size 5, but the index of size 6"),
    ],
)
def test_queries_of_another_model(draw, indexed, documents, queries, problem):
    index, questions = indexed(draw(5, **documents)), draw(5, **queries).queries
    with pytest.raises(UnsupportedError, match=problem):
        index.search(questions, 3)
    with pytest.raises(UnsupportedError, match=problem):
        index.scores(questions, [["t0"]] * 5)


@pytest.mark.slow
def test_the_contract_is_kept(tmp_path):
    """In processes of their own too: tests/cli/test_plugin_installation.py."""
    check("indexer", "milvus", folder=tmp_path)
