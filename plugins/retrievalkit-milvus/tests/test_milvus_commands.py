"""A corpus is encoded, indexed in a folder and on a server, searched and fused, like with exact indexes."""

import pytest

import retrievalkit as rk

pytestmark = pytest.mark.precision
QUERIES = ["what is the capital of Peru", "which currency do people use in Austria", "number 7"]


@pytest.mark.parametrize("pooler", ["mean", "colbert"])
def test_milvus_returns_the_hits_of_flat(pooler, tiny_model, tiny_collection, server, tmp_path):
    """By itself, and fused with another index, for whose hits it computes missing scores."""

    def build(name, indexer, **options):
        places = (tiny_collection.corpus, tiny_model, tmp_path / name)
        return rk.Index.build(*places, pooler=pooler, indexer=indexer, indexer_options=options)

    def hits(index):
        return [
            [(hit.id, pytest.approx(hit.score, rel=1e-4)) for hit in index.search(query, k=10)] for query in QUERIES
        ]

    flat, embedded = build("flat", "flat"), build("folder", "milvus")
    served = build("server", "milvus", uri=server)
    other = rk.Index.build(tiny_collection.corpus, tiny_model, tmp_path / "other", pooler="max")
    for milvus in (embedded, served):
        assert hits(milvus) == hits(flat)
        sums = (rk.Hybrid([index, other], fusion="linear", weights=[0.7, 0.3]) for index in (milvus, flat))
        assert hits(next(sums)) == hits(next(sums))
    assert (embedded.folder / "milvus.db").exists() > (served.folder / "milvus.db").exists()
