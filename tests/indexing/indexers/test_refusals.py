"""Queries of another model, and folders that were damaged, are refused by every indexer of vectors."""

from __future__ import annotations

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
    """A file that was cut short, is gone, or belongs to another index."""
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
        with pytest.raises(ArtifactError, match="holds an array"):
            indexer(name).open(other)
