"""BM25 through `import retrievalkit`: several threads, and together with vectors."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import retrievalkit_testing as testing

import retrievalkit as rk


@pytest.fixture(scope="module")
def index(tmp_path_factory, passages):
    """An index of passages in memory."""
    return rk.Index.build(passages, output=tmp_path_factory.mktemp("bm25") / "index")


def test_threads_search_at_once(index):
    """Each finds what one thread finds, with the terms of the scores."""
    texts = ["red river", "frozen glacier", "ancient theorem", "the quiet violin"] * 3
    alone = [index.search(text, k=5) for text in texts]
    assert all(hit.why for hits in alone for hit in hits)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda text: index.search(text, k=5), texts)) == alone


def test_words_and_vectors_together(index, passages, tmp_path):
    """Hits of both, scores of each computed where it did not find the document."""
    dense = rk.Index.build(passages, testing.tiny_model(tmp_path / "model"), tmp_path / "dense")
    both = rk.Hybrid([index, dense], fusion="linear", normalization="min_max", depth=20)
    hits = both.search("red river", k=5)
    assert len(hits) == 5
    assert all(one.score is not None for hit in hits for one in hit.found)
    mined = rk.mine_negatives(
        "bm25", [{"query_id": "q", "query": "red river", "positives": ["p0000"]}], corpus=passages
    )
    assert len(mined[0].negatives) == 100
