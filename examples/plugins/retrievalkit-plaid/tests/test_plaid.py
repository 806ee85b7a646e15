"""The indexer `plaid`: compression by hand, brute force over decompressed vectors, conformance, and nDCG@10."""

from __future__ import annotations

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch
from retrievalkit_plaid.indexer import CompressedTexts, Plaid, pack, unpack

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.scoring import top_k


@pytest.fixture
def build(tmp_path):
    """Builds and opens an index of texts with random unit vectors."""

    def create(texts, dim=16, most=4, **options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "vectors").mkdir(parents=True)
        (folder / "index").mkdir()
        counts = np.random.default_rng(1).integers(1, most + 1, texts)
        vectors = unit(counts.sum(), dim)
        writer = VectorWriter(folder / "vectors")
        writer.write_shard(0, [f"t{row}" for row in range(texts)], vectors, counts=counts)
        writer.finish()
        indexer = Plaid(**options)
        assert indexer.build(VectorStore(folder / "vectors"), folder / "index")["vectors"] == len(vectors)
        indexer.open(folder / "index")
        return indexer, folder, vectors, counts

    return create


def unit(*shape, seed=0):
    vectors = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("dim", [3, 8, 17])
def test_numbers_are_packed_and_unpacked(bits, dim):
    numbers = np.random.default_rng(0).integers(0, 1 << bits, (5, dim))
    packed = pack(numbers, bits)
    assert packed.shape == (5, -(-dim * bits // 8))
    assert unpack(packed, bits, dim).tolist() == numbers.tolist()


def test_two_bits_by_hand():
    """0, 1, 2, 3 are 00 01 10 11: one byte."""
    assert pack(np.array([[0, 1, 2, 3]]), 2).tolist() == [[0b00011011]]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_vector_becomes_its_nearest_centroid_and_levels(build, bits):
    _, folder, vectors, _ = build(300, bits=bits)
    texts = CompressedTexts(folder / "index", bits)
    distances = ((vectors[:, None] - texts.centroids[None]) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)
    np.testing.assert_allclose(
        distances[np.arange(len(vectors)), texts.codes], distances.min(axis=1), rtol=1e-4, atol=1e-6
    )
    same = nearest == texts.codes  # ties may differ
    residuals = vectors - texts.centroids[nearest]
    levels = texts.levels[np.abs(residuals[:, :, None] - texts.levels).argmin(axis=2)]
    decompressed = texts.take(np.arange(300)).vectors
    np.testing.assert_allclose(decompressed[same], (texts.centroids[nearest] + levels)[same], atol=1e-6)
    assert same.mean() > 0.99


def test_more_bits_lose_less(build):
    errors = []
    for bits in (1, 2, 4):
        _, folder, vectors, _ = build(300, bits=bits, centroids=8)
        errors.append(np.square(CompressedTexts(folder / "index", bits).take(np.arange(300)).vectors - vectors).mean())
    assert errors[0] > 1.5 * errors[1] > 3 * errors[2]


def test_hits_equal_brute_force_over_the_decompressed_vectors(build):
    """All hits with many candidates, most hits with few candidates."""
    indexer, folder, _, counts = build(1000, candidates=1000)
    block = CompressedTexts(folder / "index", 2).take(np.arange(1000))
    rows = np.split(torch.from_numpy(block.vectors), np.cumsum(counts)[:-1])
    documents = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    mask = torch.arange(documents.shape[1]) < torch.from_numpy(counts)[:, None]
    queries = Representation(torch.from_numpy(unit(20, 3, 16, seed=2)))
    expected, texts = top_k(queries, Representation(documents, mask), 10)
    ids, scores = indexer.search(queries, 10)
    assert ids == [[f"t{row}" for row in of_query] for of_query in texts.tolist()]
    np.testing.assert_allclose(np.stack(scores), expected.numpy(), rtol=1e-4)
    few = Plaid(candidates=60, probes=2)
    few.open(folder / "index")
    own = few.search(queries, 10)[0]
    assert np.mean([len(set(names) & set(best)) / 10 for names, best in zip(own, ids, strict=True)]) > 0.8


def test_candidates_improve_recall_and_probes_change_hits(build):
    _, folder, *_ = build(2000, centroids=64)
    queries = Representation(torch.from_numpy(unit(50, 3, 16, seed=3)))
    hits = []
    for options in ({"candidates": 4, "probes": 1}, {"candidates": 40, "probes": 1}, {"candidates": 40, "probes": 16},
                    {"candidates": 2000}):  # fmt: skip
        indexer = Plaid(**options)
        indexer.open(folder / "index")
        hits.append([ids[0] for ids in indexer.search(queries, 1)[0]])
    recall = [sum(hit == best for hit, best in zip(own, hits[-1], strict=True)) for own in hits]
    assert recall[0] < recall[1] < recall[3]
    assert hits[1] != hits[2]


def test_a_damaged_folder_is_refused(build):
    _, folder, *_ = build(50)
    codes = folder / "index" / "codes.npy"
    whole = codes.read_bytes()
    for content in (whole[:100], b""):
        codes.unlink()
        codes.write_bytes(content)
        with pytest.raises(ArtifactError, match="is damaged"):
            Plaid().open(folder / "index")


def test_weights_are_refused(tmp_path):
    import scipy.sparse

    writer = VectorWriter(tmp_path)
    writer.write_shard(0, ["a"], None, weights=scipy.sparse.csr_matrix(np.ones((1, 4), dtype=np.float32)))
    writer.finish()
    with pytest.raises(UnsupportedError, match="only vectors"):
        Plaid().build(VectorStore(tmp_path), tmp_path / "index")


@pytest.mark.slow
def test_the_indexer_conforms(tmp_path):
    """With 8 bits: scores may be off by 5 %, and the vectors are random."""
    testing.check("indexer", "plaid", folder=tmp_path, recall=0.8, bits=8)


def test_ndcg_is_close_to_brute_force(rkit, ndcg, tiny_model, tiny_collection, tmp_path):
    rkit("encode", tiny_model, tiny_collection.corpus, "--pooler", "colbert", "--output", tmp_path / "vectors")
    figures = {}
    for indexer in ("flat", "plaid"):
        rkit("index", tmp_path / "vectors", "--indexer", indexer, "--output", tmp_path / indexer)
        figures[indexer] = ndcg(tmp_path / indexer)
    assert figures["plaid"] == pytest.approx(figures["flat"], abs=0.05)
