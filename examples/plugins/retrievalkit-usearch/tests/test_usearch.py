"""The indexer `usearch` against brute force, on damaged folders, and from training to evaluation."""

from __future__ import annotations

import json
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

pytest.importorskip("usearch", reason="the engine is not installed: pip install usearch")


@pytest.fixture
def build(tmp_path):
    """Writes vectors (texts, m, dim), builds an index of them and opens it."""

    def built(vectors, offsets=None, **options):
        folder = tmp_path / f"made-{len(list(tmp_path.iterdir()))}"
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
        # The folder may be moved, and what it was built from may be gone.
        shutil.rmtree(folder / "vectors")
        moved = (folder / "index").rename(folder / "moved")
        opened = registry.create("indexer", "usearch", **options)
        opened.open(moved)
        return opened, moved

    return built


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def exact(queries, vectors, k):
    values, rows = top_k(Representation(torch.from_numpy(queries)), Representation(torch.from_numpy(vectors)), k)
    return values.numpy(), [[f"t{row}" for row in of_query] for of_query in rows.tolist()]


@pytest.mark.parametrize("options", [{}, {"threads": 0}, {"exact": True}], ids=str)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("m_query", [1, 4])
def test_it_finds_what_brute_force_finds(build, options, m, m_query):
    """2,000 texts in two shards, of one or several vectors, and queries of one or several."""
    vectors, queries = drawn(2000, m, 16), drawn(20, m_query, 16, seed=1)
    indexer, _ = build(vectors, expansion_search=256, candidates=400, **options)
    ids, scores = indexer.search(Representation(torch.from_numpy(queries)), 10)
    expected, names = exact(queries, vectors, 10)
    found = [len(set(one) & set(other)) / 10 for one, other in zip(ids, names, strict=True)]
    least = 1.0 if options.get("exact") and m_query == 1 else 0.95
    assert np.mean(found) >= least
    assert all(one.dtype == np.float32 for one in scores)
    for row, (one, other) in enumerate(zip(ids, names, strict=True)):
        if one == other:
            np.testing.assert_allclose(scores[row], expected[row], rtol=1e-5)


@pytest.mark.parametrize("number_format", ["bf16", "f16", "i8"])
def test_a_rounded_graph_gives_exact_scores(build, number_format):
    """Only which texts are found may suffer."""
    vectors = drawn(500, 1, 32)
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    indexer, _ = build(vectors, number_format=number_format)
    ids, scores = indexer.search(Representation(torch.from_numpy(vectors[:20])), 5)
    assert [one[0] for one in ids] == [f"t{row}" for row in range(20)]
    expected, names = exact(vectors[:20], vectors, 5)
    assert np.mean([len(set(one) & set(other)) / 5 for one, other in zip(ids, names, strict=True)]) > 0.9
    np.testing.assert_allclose([one[0] for one in scores], expected[:, 0], rtol=1e-5)


def test_more_hits_than_texts_and_queries_of_few_vectors(build):
    """Each text is found once; a masked vector of a query finds nothing."""
    vectors = drawn(6, 2, 8)
    indexer, _ = build(vectors)
    queries = torch.from_numpy(drawn(2, 3, 8, seed=1))
    mask = torch.tensor([[True, True, True], [True, False, False]])
    ids, scores = indexer.search(Representation(queries, mask), 100)
    assert [sorted(one) for one in ids] == [[f"t{row}" for row in range(6)]] * 2
    alone, of_alone = indexer.search(Representation(queries[1:, :1]), 100)
    assert alone == ids[1:]
    np.testing.assert_allclose(of_alone[0], scores[1], rtol=1e-6)
    assert indexer.search(Representation(queries[:0]), 3) == ([], [])


def test_equal_input_gives_an_equal_graph(build):
    vectors = drawn(300, 1, 8)
    files = [build(vectors)[1] / "graph.usearch" for _ in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_damaged_graph_is_named(build):
    _, folder = build(drawn(50, 1, 8))
    _, other = build(drawn(20, 1, 8))
    graph = folder / "graph.usearch"
    whole = graph.read_bytes()
    contents = {whole[:100]: "is damaged", b"": "is damaged", (other / graph.name).read_bytes(): "the 50 vectors"}
    for content, message in contents.items():
        # Another file: a mapped one may not change.
        graph.unlink()
        graph.write_bytes(content)
        with pytest.raises(ArtifactError, match=message):
            registry.create("indexer", "usearch").open(folder)


@pytest.mark.parametrize("option", ["connectivity", "expansion_add", "expansion_search", "candidates"])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(OptionError, match=f"option '{option}' of indexer 'usearch' is 0"):
        registry.create("indexer", "usearch", **{option: 0})


def test_weights_alone_are_refused(tmp_path):
    import scipy.sparse

    writer = VectorWriter(tmp_path)
    writer.write_shard(0, ["a"], None, weights=scipy.sparse.csr_matrix(np.ones((1, 4), dtype=np.float32)))
    writer.finish()
    with pytest.raises(UnsupportedError, match="--indexer sparse"):
        registry.create("indexer", "usearch").build(VectorStore(tmp_path), tmp_path / "index")


def test_the_contract_is_kept(tmp_path):
    testing.check("indexer", "usearch", folder=tmp_path)


def test_the_conformance_command_passes(rkit):
    assert "indexer 'usearch': checked" in rkit("plugins", "check", "usearch")


def test_from_encoding_to_evaluation(rkit, tiny_model, tiny_collection, tmp_path):
    """The same figures as brute force."""
    rkit("encode", tiny_model, tiny_collection.corpus, "--output", tmp_path / "vectors")
    figures = {}
    for indexer in ("flat", "usearch"):
        rkit("index", tmp_path / "vectors", "--indexer", indexer, "--output", tmp_path / indexer)
        run = tmp_path / f"{indexer}.trec"
        rkit("search", tmp_path / indexer, "--queries", tiny_collection.queries, "--k", 10, "--output", run)
        judged = rkit("evaluate", run, "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10", "--json")
        figures[indexer] = json.loads(judged)["metrics"]["nDCG@10"]
    assert figures["usearch"] == pytest.approx(figures["flat"])
