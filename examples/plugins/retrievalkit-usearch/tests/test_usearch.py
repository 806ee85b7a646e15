"""The indexer `usearch` compared with brute force, damaged folders, conformance, and nDCG@10."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch

from retrievalkit import registry
from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.scoring import top_k

pytest.importorskip("usearch", reason="usearch is not installed")


@pytest.fixture
def build(tmp_path):
    """Builds an index of vectors (texts, m, dim) in two shards, and opens it."""

    def create(vectors, **options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "vectors").mkdir(parents=True)
        (folder / "index").mkdir()
        names = [f"t{row}" for row in range(len(vectors))]
        writer = VectorWriter(folder / "vectors")
        half = len(vectors) // 2
        writer.write_shard(0, names[:half], vectors[:half])
        writer.write_shard(1, names[half:], vectors[half:])
        writer.finish()
        indexer = registry.create("indexer", "usearch", **options)
        counts = indexer.build(VectorStore(folder / "vectors"), folder / "index")
        assert counts["texts"] == len(vectors)
        # The index does not need its place or its source.
        shutil.rmtree(folder / "vectors")
        moved = (folder / "index").rename(folder / "moved")
        opened = registry.create("indexer", "usearch", **options)
        opened.open(moved)
        return opened, moved

    return create


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def exact(queries, vectors, k):
    values, rows = top_k(Representation(torch.from_numpy(queries)), Representation(torch.from_numpy(vectors)), k)
    return values.numpy(), [[f"t{row}" for row in of_query] for of_query in rows.tolist()]


@pytest.mark.parametrize("options", [{}, {"threads": 0}, {"exact": True}], ids=str)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("m_query", [1, 4])
def test_recall_is_high(build, options, m, m_query):
    """For texts and queries with one vector and with several."""
    vectors, queries = draw(2000, m, 16), draw(20, m_query, 16, seed=1)
    indexer, _ = build(vectors, expansion_search=256, candidates=400, **options)
    ids, scores = indexer.search(Representation(torch.from_numpy(queries)), 10)
    expected, names = exact(queries, vectors, 10)
    recall = [len(set(own) & set(best)) / 10 for own, best in zip(ids, names, strict=True)]
    assert np.mean(recall) >= (1.0 if options.get("exact") and m_query == 1 else 0.95)
    assert all(values.dtype == np.float32 for values in scores)
    for row, (own, best) in enumerate(zip(ids, names, strict=True)):
        if own == best:
            np.testing.assert_allclose(scores[row], expected[row], rtol=1e-5)


@pytest.mark.parametrize("number_format", ["bf16", "f16", "i8"])
def test_scores_are_exact_in_all_number_formats(build, number_format):
    """Only the recall is lower."""
    vectors = draw(500, 1, 32)
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    indexer, _ = build(vectors, number_format=number_format)
    ids, scores = indexer.search(Representation(torch.from_numpy(vectors[:20])), 5)
    assert [names[0] for names in ids] == [f"t{row}" for row in range(20)]
    expected, names = exact(vectors[:20], vectors, 5)
    assert np.mean([len(set(own) & set(best)) / 5 for own, best in zip(ids, names, strict=True)]) > 0.9
    np.testing.assert_allclose([values[0] for values in scores], expected[:, 0], rtol=1e-5)


def test_more_hits_than_texts_and_queries_of_few_vectors(build):
    """Each text is returned once; masked query vectors are ignored."""
    vectors = draw(6, 2, 8)
    indexer, _ = build(vectors)
    queries = torch.from_numpy(draw(2, 3, 8, seed=1))
    mask = torch.tensor([[True, True, True], [True, False, False]])
    ids, scores = indexer.search(Representation(queries, mask), 100)
    assert [sorted(names) for names in ids] == [[f"t{row}" for row in range(6)]] * 2
    single_ids, single_scores = indexer.search(Representation(queries[1:, :1]), 100)
    assert single_ids == ids[1:]
    np.testing.assert_allclose(single_scores[0], scores[1], rtol=1e-6)
    assert indexer.search(Representation(queries[:0]), 3) == ([], [])


def test_equal_input_gives_an_equal_graph(build):
    vectors = draw(300, 1, 8)
    files = [build(vectors)[1] / "graph.usearch" for _ in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_damaged_graph_is_refused(build):
    _, folder = build(draw(50, 1, 8))
    _, other = build(draw(20, 1, 8))
    graph = folder / "graph.usearch"
    whole = graph.read_bytes()
    contents = {whole[:100]: "is damaged", b"": "is damaged", (other / graph.name).read_bytes(): "the 50 vectors"}
    for content, message in contents.items():
        # Write a new file, because the old file is mapped into memory.
        graph.unlink()
        graph.write_bytes(content)
        with pytest.raises(ArtifactError, match=message):
            registry.create("indexer", "usearch").open(folder)


@pytest.mark.parametrize("option", ["connectivity", "expansion_add", "expansion_search", "candidates"])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(OptionError, match=f"option '{option}' of indexer 'usearch' cannot be 0"):
        registry.create("indexer", "usearch", **{option: 0})


def test_weights_alone_are_refused(tmp_path):
    import scipy.sparse

    writer = VectorWriter(tmp_path)
    writer.write_shard(0, ["a"], None, weights=scipy.sparse.csr_matrix(np.ones((1, 4), dtype=np.float32)))
    writer.finish()
    with pytest.raises(UnsupportedError, match="--indexer sparse"):
        registry.create("indexer", "usearch").build(VectorStore(tmp_path), tmp_path / "index")


def test_the_indexer_conforms(tmp_path):
    testing.check("indexer", "usearch", folder=tmp_path)


def test_ndcg_equals_brute_force(rkit, ndcg, tiny_model, tiny_collection, tmp_path):
    rkit("encode", tiny_model, tiny_collection.corpus, "--output", tmp_path / "vectors")
    figures = {}
    for indexer in ("flat", "usearch"):
        rkit("index", tmp_path / "vectors", "--indexer", indexer, "--output", tmp_path / indexer)
        figures[indexer] = ndcg(tmp_path / indexer)
    assert figures["usearch"] == pytest.approx(figures["flat"])
