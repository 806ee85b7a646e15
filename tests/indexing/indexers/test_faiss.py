"""The faiss index: exact with exact factories, close to exact with others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.contracts import Representation
from retrievalkit.errors import OptionError
from retrievalkit.indexing.indexers.faiss import Faiss
from retrievalkit.scoring import scores
from vector_folders import DIM, assert_best, drawn, opened, representation, write


def made(folder, counts, *, shard=40, values=None):
    """A folder of texts with these numbers of vectors, and its texts in memory."""
    vectors = drawn(sum(counts))
    if values is not None:
        vectors = np.random.default_rng(1).choice(values, vectors.shape).astype(np.float32)
    return write(folder, vectors=vectors, counts=counts, shard=shard), representation(vectors, counts)


def queries(m=1, count=6, seed=3):
    return Representation(torch.randn(count, m, DIM, generator=torch.Generator().manual_seed(seed)))


def expected(asked, documents, k):
    best = scores(asked, documents).sort(dim=1, descending=True, stable=True)
    return [[f"t{text}" for text in row] for row in best.indices[:, :k].tolist()]


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=2, max_size=20),
    k=st.integers(1, 21),
    shard_vectors=st.sampled_from([3, 7, 1000]),
)
def test_flat_keeps_equal_scores_in_order(tmp_path_factory, counts, k, shard_vectors):
    """Also if ties go beyond the first vectors retrieved, or across two files."""
    folder = tmp_path_factory.mktemp("f")
    store, documents = made(folder / "vectors", counts, shard=5, values=[0, 1])
    indexer, asked = opened("faiss", store, folder / "index", shard_vectors=shard_vectors), torch.ones(2, 1, DIM)
    assert_best(indexer, Representation(asked), scores(Representation(asked), documents).numpy(), k)


def test_fewer_candidates_are_less_exact(tmp_path):
    """With few candidates per query vector, hits are missed."""
    store, documents = made(tmp_path / "vectors", [3] * 100)
    asked = queries(m=4, count=10)
    exact = expected(asked, documents, 5)
    few = opened("faiss", store, tmp_path / "few", candidates=1).search(asked, 5)[0]
    assert opened("faiss", store, tmp_path / "many", candidates=300).search(asked, 5)[0] == exact
    assert few != exact


def test_all_texts_are_hits_if_k_is_their_number(tmp_path):
    store, documents = made(tmp_path / "vectors", [3] * 100)
    asked = queries(m=2, count=4)
    ids, _ = opened("faiss", store, tmp_path / "index", candidates=1).search(asked, 100)
    assert ids == expected(asked, documents, 100)


@pytest.mark.parametrize(
    "factory",
    [
        "IVF4,Flat", "HNSW16", "SQ8", "PCA6,Flat", "IVF4,PQ4x4", "IDMap2,HNSW16", "PCA6,IDMap,Flat", "IVF16_HNSW8,Flat",
        "PQ4x4,RFlat", "IVF4,PQ4x4fs,Refine(SQ8)", "IVF16(IVF4,Flat),Flat", "OPQ4_8,IVF4,PQ4x4", "RQ2x4",
    ],
)  # fmt: skip
def test_other_factories_have_recall(tmp_path, factory):
    """Approximate indexes are close to the exact result, also in several files."""
    store, documents = made(tmp_path / "vectors", [2] * 300)
    indexer, asked = opened("faiss", store, tmp_path / "index", factory=factory, shard_vectors=400), queries()
    exact = expected(asked, documents, 10)
    ids, _ = indexer.search(asked, 10)
    recall = np.mean([len(set(one) & set(other)) / 10 for one, other in zip(ids, exact, strict=True)])
    assert all(len(row) == len(set(row)) == 10 for row in ids)
    assert recall > 0.3


@pytest.mark.parametrize("shard_vectors", [10_000, 700])
@pytest.mark.parametrize(
    ("factory", "effort"), [("IVF64,Flat", "nprobe"), ("HNSW4", "efSearch"), ("PQ4x4,RFlat", "k_factor_rf")]
)
def test_search_parameters_are_chosen_for_a_recall(tmp_path, factory, effort, shard_vectors):
    """A higher target takes more effort, and the index reaches it; parameters of the user stay."""
    source, documents = made(tmp_path / "vectors", [1] * 2000, shard=1000)
    asked, chosen = Representation(documents.vectors[::10]), {}
    exact = expected(asked, documents, 11)
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


def test_effort_without_gain_is_not_selected(tmp_path):
    (tmp_path / "index").mkdir()
    found = Faiss(factory="IVF64,PQ1x4").build(made(tmp_path / "vectors", [1] * 1000)[0], tmp_path / "index")
    assert found["recall@10"] < 0.95
    assert found["nprobe"] < 64


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        *(({"factory": one}, True) for one in ("IDMap,Flat", "IDMap2,Flat", "Flat,IDMap")),
        ({"factory": "IVF8,Flat", "parameters": "nprobe=8"}, True),
        ({"factory": "IVF8,Flat", "parameters": "nprobe=1"}, False),
    ],
    ids=str,
)
def test_id_maps_and_probing_all_lists_are_exact(tmp_path, options, exact):
    store, documents = made(tmp_path / "vectors", [1] * 400)
    found, _ = opened("faiss", store, tmp_path / "index", **options).search(queries(count=20), 5)
    assert (found == expected(queries(count=20), documents, 5)) == exact


def test_the_training_size_changes_the_index(tmp_path):
    store, _ = made(tmp_path / "vectors", [1] * 400)
    for size in (100, 400):
        opened("faiss", store, tmp_path / str(size), factory="IVF4,Flat", train_size=size)
    files = [next((tmp_path / size).glob("*.faiss")).read_bytes() for size in ("100", "400")]
    assert files[0] != files[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factory": "Nonsense12"}, "cannot create the index 'Nonsense12'"),
        ({"factory": "IVF64,Flat"}, "cannot train 'IVF64,Flat' on 50 vectors"),
        ({"parameters": "nprobe=3"}, "rejects the parameters 'nprobe=3'"),
        ({"factory": "IVF4,Flat", "parameters": "nprobe=many"}, "rejects the parameters 'nprobe=many'"),
        ({"factory": "L2norm,Flat"}, "cannot build the index 'L2norm,Flat'"),
        ({"factory": "PQ7"}, "multiple of the number of subquantizers"),
    ],
)
def test_errors_of_faiss_are_reported(tmp_path, options, message):
    """With the value and the reason."""
    store, _ = made(tmp_path / "vectors", [1] * 50)
    with pytest.raises(OptionError, match=message):
        opened("faiss", store, tmp_path / "index", **options)
