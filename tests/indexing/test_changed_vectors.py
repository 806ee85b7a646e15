"""Changed indexes of vectors return the same hits and scores as new indexes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.contracts import Representation
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.change import change_index
from retrievalkit.indexing.open_indexes import open_index
from retrievalkit.indexing.recall import check_index
from retrievalkit.storage import read_manifest
from vector_folders import write as write_store

DIM, TERMS = 8, 12
NAMES = "abcdefghij"
KINDS = {
    "flat": {},
    "flat, several vectors": {},
    "flat, several vectors with keys": {},
    "faiss": {"view": "vectors"},
    "faiss, several vectors": {"view": "vectors"},
    "sparse": {},
    "dense_sparse": {},
    "dense_sparse, plain": {"rounded": False},
}


def text(name, version, *, several=False):
    """The vectors and weights of a text, in small whole numbers: scores are often equal."""
    random = np.random.default_rng([ord(name), version])
    count = random.integers(1, 4) if several else 1
    return random.integers(-2, 3, (count, DIM)).astype(np.float32), random.integers(0, 3, TERMS).astype(np.float32)


def write(folder, texts, kind):
    """A vectors folder of (name, version) texts, in shards of four; a key is the vector's first number."""
    vectors, weights = zip(*(text(*one, several="several" in kind) for one in texts), strict=True)
    rows = np.concatenate(vectors)
    return write_store(
        folder,
        ids=[name for name, _ in texts],
        vectors=rows,
        keys=rows[:, 0].astype(np.int64) if "keys" in kind else None,
        counts=[len(one) for one in vectors],
        weights=np.stack(weights),
        shard=4,
        options={"shard_texts": 4},
    ).folder


def queries(*, keyed):
    random = np.random.default_rng(0)
    vectors = torch.from_numpy(random.integers(-2, 3, (5, 2 if keyed else 1, DIM)).astype(np.float32))
    weights = torch.from_numpy(random.integers(0, 2, (5, TERMS)).astype(np.float32))
    return Representation(vectors, None, weights, keys=vectors[:, :, 0].long() if keyed else None)


def build(folder, kind, texts, shards=None):
    name = kind.partition(", ")[0]
    vectors = write(folder.with_name(f"{folder.name}-vectors"), texts, kind)
    build_index(vectors, indexer=name, output=folder, options=KINDS[kind], parts=shards)
    return folder


def assert_same(folder, anew, asked):
    """Compare hits and scores at several depths, and the scores of listed texts."""
    one, other = open_index(folder).indexer, open_index(anew).indexer
    for k in (1, 3, 20):
        (ids, scores), (wanted_ids, wanted) = one.search(asked, k), other.search(asked, k)
        assert ids == wanted_ids
        for found, right in zip(scores, wanted, strict=True):
            np.testing.assert_array_equal(found, right)
    names = [list(NAMES)] * 5
    for found, right in zip(one.scores(asked, names), other.scores(asked, names), strict=True):
        np.testing.assert_array_equal(found, right)


some = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), min_size=1, max_size=6)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), some),
        st.tuples(st.just("delete"), st.sets(st.sampled_from(NAMES), min_size=1, max_size=4)),
        st.tuples(st.just("compact"), st.none()),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("kind", KINDS)
@given(first=some, changes=changes)
@settings(max_examples=8, deadline=None)
def test_changes_equal_a_new_index(tmp_path_factory, kind, first, changes):
    """Adding, replacing, deleting and compacting in any order, of an index built in shards or as a whole."""
    tmp_path = tmp_path_factory.mktemp("change")
    held = dict(first)
    index = build(tmp_path / "index", kind, list(held.items()), shards=2 if len(held) > 4 else None)
    for number, (what, which) in enumerate(changes):
        if what == "add":
            change_index(index, add=write(tmp_path / f"{number}", list(which.items()), kind))
            held = {name: version for name, version in held.items() if name not in which} | which
        elif what == "delete" and held.keys() & which and held.keys() - which:
            change_index(index, delete=held.keys() & which)
            held = {name: version for name, version in held.items() if name not in which}
        elif what == "compact":
            change_index(index, compact=True)
    assert_same(index, build(tmp_path / "anew", kind, list(held.items())), queries(keyed="keys" in kind))
    assert read_manifest(index, "index")["counts"]["texts"] == len(held)
    if not kind.startswith("sparse"):
        assert check_index(index, count=4).exact
    shutil.rmtree(tmp_path)
