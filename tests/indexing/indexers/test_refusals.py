"""Indexers of vectors refuse wrong options, other or damaged folders, and queries of other models."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import Representation
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from vector_folders import DIM, TERMS, drawn, drawn_weights, opened, write

OPTIONS = {"faiss": {"shard_vectors": 30}, "small": {"kind": "int8"}}


def built(name, folder, *, lexical, dim=DIM):
    """An index of 50 texts, in two shards."""
    weights = drawn_weights(np.random.default_rng(0), 50) if lexical else None
    store = write(folder / "vectors", vectors=drawn(50, dim=dim), weights=weights, shard=30)
    opened(name, store, folder / "index", **OPTIONS.get(name, {}))
    return folder / "index"


def indexer(name):
    return registry.create("indexer", name, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("name", ["flat", "faiss", "small", "sparse", "dense_sparse"])
def test_queries_of_another_model_are_refused(name, tmp_path):
    lexical = "sparse" in name
    made = indexer(name)
    made.open(built(name, tmp_path, lexical=lexical))
    own = Representation(torch.ones(1, 1, DIM), None, torch.ones(1, TERMS) if lexical else None)
    other = Representation(torch.ones(1, 1, DIM if lexical else 9), None, torch.ones(1, 9) if lexical else None)
    lacking = Representation(torch.ones(1, 1, DIM)) if lexical else Representation(weights=torch.ones(1, 9))
    with pytest.raises(UnsupportedError, match="size 9"):
        made.search(other, 3)
    with pytest.raises(UnsupportedError, match="size 9"):
        made.scores(other, [["t1"]])
    with pytest.raises(UnsupportedError):
        made.search(lacking, 3)
    with pytest.raises(OptionError, match="k is 0"):
        made.search(own, 0)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("flat", "vectors/vectors-00000.npy"),
        ("faiss", "*.faiss"),
        ("small", "small/vectors-00001.npy"),
        *(("sparse", f"postings/{file}") for file in ("terms-00000.npy", "weights-00000.npy", "postings.json")),
        ("dense_sparse", "postings/texts-00000.npy"),
        *(("dense_sparse", f"rounded/{file}") for file in ("rounded-00000.npy", "terms.npy", "rounded.json")),
    ],
)
def test_a_damaged_index_is_refused_when_it_is_opened(name, file, tmp_path):
    """A file that is cut, missing, or from another index."""
    folder = built(name, tmp_path / "one", lexical="sparse" in name)
    path = next(folder.glob(file))
    whole = path.read_bytes()
    for kept in (0, 10, len(whole) - 3):
        path.write_bytes(whole[:kept])
        with pytest.raises(ArtifactError, match=r"damaged|not valid JSON"):
            indexer(name).open(folder)
    path.unlink()
    with pytest.raises(ArtifactError):
        indexer(name).open(folder)
    if file == "rounded/rounded-00000.npy":
        other = built(name, tmp_path / "other", lexical=True, dim=2 * DIM)
        (other / file).write_bytes(whole)
        with pytest.raises(ArtifactError, match="its arrays have the shapes"):
            indexer(name).open(other)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("faiss", {"factory": one}) for one in ("IVF0,Flat", "HNSW0", "PQ8x0", "HNSW1")),
        *(("faiss", {one: 0}) for one in ("recall", "train_size", "shard_vectors", "candidates")),
        ("faiss", {"parameters": "nprobe=0"}),
        ("flat", {"block": 0}),
        ("flat", {"precision": "fp8"}),
        ("small", {"rescored": 0}),
        *(("flat", {"device": "cuda"}) for _ in range(not torch.cuda.is_available())),
        *(("faiss", {"device": "cuda"}) for _ in range(not faiss.get_num_gpus())),
    ],
    ids=str,
)
def test_wrong_options_are_named(name, options):
    """Before they reach faiss, which crashes on some of them."""
    with pytest.raises((OptionError, UnsupportedError), match=next(iter(options))):
        registry.create("indexer", name, **options)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("sparse", "dense", "no weights.* --indexer flat or faiss"),
        ("dense_sparse", "dense", "no weights.* --indexer flat or faiss"),
        ("dense_sparse", "lexical", "no vectors.* --indexer sparse"),
        ("faiss", "lexical", "--indexer sparse"),
        ("faiss", "both", "--indexer dense_sparse"),
        ("small", "lexical", "--indexer sparse"),
        ("small", "both", "--set view=vectors"),
    ],
)
def test_an_unsuitable_folder_is_refused_and_another_indexer_suggested(tmp_path, name, kind, message):
    weights = None if kind == "dense" else drawn_weights(np.random.default_rng(0), 5)
    store = write(tmp_path / "v", vectors=None if kind == "lexical" else np.ones((5, DIM)), weights=weights)
    (tmp_path / "i").mkdir()
    with pytest.raises(UnsupportedError, match=message):
        registry.create("indexer", name).build(store, tmp_path / "i")
    if kind == "both":  # unless the weights are left aside
        asked = Representation(torch.ones(1, 1, DIM), None, torch.ones(1, TERMS))
        made = opened(name, store, tmp_path / "view", view="vectors")
        assert made.search(asked, 2)[1][0].tolist() == [DIM, DIM]
        assert made.scores(asked, [["t1"]])[0].tolist() == [DIM]
