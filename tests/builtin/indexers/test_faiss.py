"""The faiss index: exact where its factory is, and close to it where it is not."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.builtin.indexers.faiss import Faiss
from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.errors import MissingDependencyError, OptionError, UnsupportedError
from retrievalkit.score import scores

DIM = 8


def write(folder, counts, *, shard=40, values=None, dtype=np.float32):
    """Write a folder of texts with these numbers of vectors; returns it in memory."""
    random = np.random.default_rng(1)
    texts, most = len(counts), max(counts)
    vectors = random.standard_normal((texts, most, DIM)).astype(dtype)
    if values is not None:
        vectors = random.choice(values, vectors.shape).astype(dtype)
    mask = np.arange(most) < np.array(counts)[:, None]
    folder.mkdir()
    writer = VectorWriter(folder)
    for number, start in enumerate(range(0, texts, shard)):
        part = slice(start, start + shard)
        ids = [f"t{row}" for row in range(texts)][part]
        writer.write_shard(number, ids, vectors[part][mask[part]], counts=np.array(counts[part]))
    writer.finish()
    return Representation(torch.from_numpy(vectors).float(), torch.from_numpy(mask))


def opened(vectors, folder, **options):
    folder.mkdir()
    Faiss(**options).build(VectorStore(vectors), folder)
    indexer = Faiss(**options)
    indexer.open(folder)
    return indexer


def queries(m=1, count=6, seed=3):
    return Representation(torch.randn(count, m, DIM, generator=torch.Generator().manual_seed(seed)))


def expected(asked, documents, k):
    best = scores(asked, documents).sort(dim=1, descending=True, stable=True)
    return [[f"t{text}" for text in row] for row in best.indices[:, :k].tolist()], best.values[:, :k].numpy()


def assert_exact(indexer, asked, documents, k):
    ids, values = indexer.search(asked, k)
    expected_ids, expected_values = expected(asked, documents, k)
    assert ids == expected_ids
    np.testing.assert_allclose(np.stack(values), expected_values, rtol=1e-5, atol=1e-5)
    assert values[0].dtype == np.float32


@pytest.mark.parametrize("shard_vectors", [1_000_000, 30])
@pytest.mark.parametrize("counts", [[1] * 100, [3] * 100, [1, 5, 2, 1] * 25], ids=["one", "three", "varying"])
def test_flat_is_exact_in_one_file_or_several(tmp_path, counts, shard_vectors):
    """One and many vectors a text; small and large k; a k above the number of texts."""
    documents = write(tmp_path / "vectors", counts)
    indexer = opened(tmp_path / "vectors", tmp_path / "index", shard_vectors=shard_vectors)
    files = len(list((tmp_path / "index").glob("*.faiss")))
    assert (files > 1) == (shard_vectors == 30)
    for k in (1, 7, 100, 1000):
        assert_exact(indexer, queries(), documents, k)


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=2, max_size=20),
    k=st.integers(1, 21),
    shard_vectors=st.sampled_from([3, 7, 1000]),
)
def test_flat_keeps_equal_scores_in_order(tmp_path_factory, counts, k, shard_vectors):
    """Also where ties reach beyond what was retrieved first, or over the border of two files."""
    folder = tmp_path_factory.mktemp("f")
    documents = write(folder / "vectors", counts, values=[0, 1], shard=5)
    indexer = opened(folder / "vectors", folder / "index", shard_vectors=shard_vectors)
    assert_exact(indexer, Representation(torch.ones(2, 1, DIM)), documents, k)


def test_a_query_of_several_vectors_is_scored_exactly(tmp_path):
    """With enough candidates, and masked query vectors, the result is that of the rule."""
    documents = write(tmp_path / "vectors", [2, 5, 3, 1] * 20)
    indexer = opened(tmp_path / "vectors", tmp_path / "index", shard_vectors=50)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    asked = Representation(queries(m=3, count=2).vectors, mask)
    assert_exact(indexer, asked, documents, 9)


def test_candidates_bound_what_is_scored(tmp_path):
    """Fewer candidates of each query vector give a worse result."""
    documents = write(tmp_path / "vectors", [3] * 100)
    asked = queries(m=4, count=10)
    exact, _ = expected(asked, documents, 5)
    few = opened(tmp_path / "vectors", tmp_path / "few", candidates=1).search(asked, 5)[0]
    many = opened(tmp_path / "vectors", tmp_path / "many", candidates=300).search(asked, 5)[0]
    assert many == exact
    assert few != exact


@pytest.mark.parametrize(
    "factory",
    [
        "IVF4,Flat", "HNSW16", "SQ8", "PCA6,Flat", "IVF4,PQ4x4", "IDMap2,HNSW16", "PCA6,IDMap,Flat", "IVF16_HNSW8,Flat",
        "PQ4x4,RFlat", "IVF4,PQ4x4fs,Refine(SQ8)", "IVF16(IVF4,Flat),Flat", "OPQ4_8,IVF4,PQ4x4", "RQ2x4",
    ],
)  # fmt: skip
def test_other_factories_find_most(tmp_path, factory):
    """Approximate indexes are near the exact result, in several files too."""
    documents = write(tmp_path / "vectors", [2] * 300)
    indexer = opened(tmp_path / "vectors", tmp_path / "index", factory=factory, shard_vectors=400)
    asked = queries()
    exact, _ = expected(asked, documents, 10)
    ids, _ = indexer.search(asked, 10)
    recall = np.mean([len(set(one) & set(other)) / 10 for one, other in zip(ids, exact, strict=True)])
    assert all(len(row) == len(set(row)) == 10 for row in ids)
    assert recall > 0.3


@pytest.mark.parametrize("factory", ["IDMap,Flat", "IDMap2,Flat", "Flat,IDMap"])
def test_a_map_of_ids_around_an_exact_index_is_exact(tmp_path, factory):
    documents = write(tmp_path / "vectors", [1] * 100)
    assert_exact(opened(tmp_path / "vectors", tmp_path / "index", factory=factory), queries(), documents, 7)


@pytest.mark.parametrize("shard_vectors", [10_000, 700])
@pytest.mark.parametrize(
    ("factory", "effort"), [("IVF64,Flat", "nprobe"), ("HNSW4", "efSearch"), ("PQ4x4,RFlat", "k_factor_rf")]
)
def test_search_parameters_are_chosen_for_a_recall(tmp_path, factory, effort, shard_vectors):
    """More effort for a higher recall, which the index then has; what the user gives is left as it is."""
    documents = write(tmp_path / "vectors", [1] * 2000, shard=1000)
    source, chosen = VectorStore(tmp_path / "vectors"), {}
    asked = Representation(documents.vectors[::10])
    exact, _ = expected(asked, documents, 11)
    for recall in (0.5, 0.95):
        (folder := tmp_path / str(recall)).mkdir()
        options = {"factory": factory, "shard_vectors": shard_vectors}
        chosen[recall] = Faiss(**options, recall=recall).build(source, folder)
        (again := Faiss(**options)).open(folder)
        ids, _ = again.search(asked, 11)
        share = np.mean([len(set(one) & set(other)) / 11 for one, other in zip(ids, exact, strict=True)])
        assert share > recall - 0.02
        assert chosen[recall]["recall@10"] >= recall
    assert chosen[0.95][effort] >= chosen[0.5][effort]
    assert chosen[0.95][effort] > 1
    (tmp_path / "given").mkdir()
    assert effort not in Faiss(factory=factory, parameters=f"{effort}=1").build(source, tmp_path / "given")


def test_effort_that_gains_nothing_is_not_spent(tmp_path):
    """Where rounding puts the recall out of reach, searching all lists finds no more than searching some."""
    write(tmp_path / "vectors", [1] * 1000)
    (tmp_path / "index").mkdir()
    found = Faiss(factory="IVF64,PQ1x4").build(VectorStore(tmp_path / "vectors"), tmp_path / "index")
    assert found["recall@10"] < 0.95
    assert found["nprobe"] < 64


def test_parameters_change_what_is_found(tmp_path):
    """Probing all lists of an inverted file is exact; probing one is not."""
    documents = write(tmp_path / "vectors", [1] * 400)
    asked = queries(count=20)
    exact, _ = expected(asked, documents, 5)
    all_lists = opened(tmp_path / "vectors", tmp_path / "a", factory="IVF8,Flat", parameters="nprobe=8")
    one_list = opened(tmp_path / "vectors", tmp_path / "b", factory="IVF8,Flat", parameters="nprobe=1")
    assert all_lists.search(asked, 5)[0] == exact
    assert one_list.search(asked, 5)[0] != exact


def test_the_training_size_changes_the_index(tmp_path):
    """Training on a sample gives other lists than training on all."""
    write(tmp_path / "vectors", [1] * 400)
    for size in (100, 400):
        opened(tmp_path / "vectors", tmp_path / str(size), factory="IVF4,Flat", train_size=size)
    files = [next((tmp_path / size).glob("*.faiss")).read_bytes() for size in ("100", "400")]
    assert files[0] != files[1]


def test_half_precision_vectors_are_indexed(tmp_path):
    """float16 on disk, float32 in the index."""
    documents = write(tmp_path / "vectors", [1] * 50, dtype=np.float16)
    assert_exact(opened(tmp_path / "vectors", tmp_path / "index"), queries(), documents, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factory": "Nonsense12"}, "no index of the factory 'Nonsense12'"),
        ({"factory": "IVF64,Flat"}, "cannot train 'IVF64,Flat' on 50 vectors"),
        ({"parameters": "nprobe=3"}, "does not take the parameters 'nprobe=3'"),
        ({"factory": "IVF4,Flat", "parameters": "nprobe=many"}, "does not take the parameters 'nprobe=many'"),
        ({"factory": "L2norm,Flat"}, "builds no index 'L2norm,Flat'"),
        ({"factory": "PCA64,Flat"}, "cannot output 64 dimensions from 8"),
        ({"factory": "PQ7"}, "multiple of the number of subquantizers"),
        ({"factory": "IMI2x4,Flat"}, "inner prod"),
        ({"factory": ""}, "no index of the factory ''"),
        ({"factory": "IVF100000,Flat"}, "cannot train 'IVF100000,Flat' on 50 vectors"),
    ],
)
def test_what_faiss_refuses_is_said(tmp_path, options, message):
    """The value, and what faiss says about it."""
    write(tmp_path / "vectors", [1] * 50)
    (tmp_path / "index").mkdir()
    with pytest.raises(OptionError, match=message):
        Faiss(**options).build(VectorStore(tmp_path / "vectors"), tmp_path / "index")


@pytest.mark.parametrize(
    "options",
    [{"factory": one} for one in ("IVF0,Flat", "HNSW0", "PQ8x0", "HNSW1")]
    + [{"recall": 0.0}, {"parameters": "nprobe=0"}, {"train_size": 0}, {"shard_vectors": 0}, {"candidates": 0}],
    ids=str,
)
def test_values_that_faiss_does_not_survive_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        registry.create("indexer", "faiss", **options)


def test_a_gpu_that_faiss_has_not_is_refused():
    """The GPU build is named."""
    import faiss

    if faiss.get_num_gpus():
        pytest.skip("faiss has a GPU here")
    with pytest.raises(UnsupportedError, match="faiss-gpu"):
        Faiss(device="cuda")


def test_weights_are_pointed_to_other_indexers(tmp_path):
    """faiss searches vectors alone, and leaves weights aside only when told to."""
    for name, vectors in (("weights", None), ("both", np.ones((2, 1, DIM)))):
        (tmp_path / name).mkdir()
        writer = VectorWriter(tmp_path / name)
        writer.write_shard(0, ["a", "b"], vectors, weights=np.ones((2, 4)))
        writer.finish()
    with pytest.raises(UnsupportedError, match="--indexer sparse"):
        Faiss().build(VectorStore(tmp_path / "weights"), tmp_path / "index")
    with pytest.raises(UnsupportedError, match="--indexer dense_sparse"):
        Faiss().build(VectorStore(tmp_path / "both"), tmp_path / "index")
    indexer = opened(tmp_path / "both", tmp_path / "index", view="vectors")
    asked = Representation(torch.ones(1, 1, DIM), None, torch.ones(1, 4))
    assert [indexer.search(asked, 2)[0], indexer.search(asked, 2)[1][0].tolist()] == [[["a", "b"]], [DIM, DIM]]
    assert indexer.scores(asked, [["b"]])[0].tolist() == [DIM]


def test_faiss_that_is_not_installed_is_named(monkeypatch):
    """With the line to install it."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependencyError, match="pip install faiss-cpu"):
        Faiss()
