"""Vectors with keys: a query's vector is compared only with document vectors of its key."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import JoinedStore, VectorStore
from retrievalkit.data.vectors.writer import write_part
from retrievalkit.errors import UnsupportedError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.vectors import Vectors
from retrievalkit.scoring import rule, scores, scores_of, tiles, top_k, top_k_among, top_k_of_store
from vector_folders import write


def texts(random, count, most):
    """Texts of (vectors, keys), in whole numbers: sums are exact, and scores are often equal."""
    counts = random.integers(1, most + 1, count)
    return [(random.integers(-2, 3, (m, 3)).astype(np.float32), random.integers(-1, 3, m)) for m in counts]


def representation(texts):
    """The texts, padded with vectors that would change every score."""
    shape = len(texts), max(len(keys) for _, keys in texts)
    vectors, padded, mask = torch.full((*shape, 3), 99.0), torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
    for row, (own, keys) in enumerate(texts):
        vectors[row, : len(own)], padded[row, : len(own)] = torch.from_numpy(own), torch.from_numpy(keys)
        mask[row, : len(own)] = 1
    return Representation(vectors, mask.bool(), keys=padded)


def brute_force(queries, documents):
    """The scoring rule, pair by pair."""
    return np.array(
        [
            [
                sum(
                    max((float(q @ d) for d, of_d in zip(*document, strict=True) if of_d == of_q), default=0.0)
                    for q, of_q in zip(*query, strict=True)
                )
                for document in documents
            ]
            for query in queries
        ],
        dtype=np.float32,
    )


def stored(folder, texts, **settings):
    counts = [len(keys) for _, keys in texts]
    vectors, keys = (np.concatenate(parts) for parts in zip(*texts, strict=True))
    return write(folder, vectors=vectors, counts=counts, keys=keys, **settings)


def test_a_worked_example():
    """Keys 1, 2, 3; the document has 1 twice and no 3: 2*3 (not 2*1), then 1*-1, then nothing."""
    query = Representation(torch.tensor([[[2.0], [1.0], [5.0]]]), keys=torch.tensor([[1, 2, 3]]))
    document = Representation(torch.tensor([[[1.0], [3.0], [-1.0]]]), keys=torch.tensor([[1, 1, 2]]))
    assert scores(query, document).tolist() == [[5.0]]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), most=st.integers(1, 5), block=st.integers(1, 20), pairs=st.integers(1, 40))
def test_training_search_and_rescoring_equal_brute_force(tmp_path_factory, seed, most, block, pairs):
    """For texts in memory and on disk, in blocks and chunks of any size."""
    random = np.random.default_rng(seed)
    queries, documents = texts(random, random.integers(1, 6), most), texts(random, random.integers(1, 25), most)
    expected, asked = brute_force(queries, documents), representation(queries)
    store = stored(tmp_path_factory.mktemp("v") / "v", documents, shard=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "LIMIT", pairs)
        patch.setattr(tiles, "KEYED_NUMBERS", 3 * pairs)
        np.testing.assert_array_equal(scores(asked, representation(documents)).numpy(), expected)
        for k in (1, 4, len(documents)):
            order = np.argsort(-expected, axis=1, kind="stable")[:, :k]
            for values, rows in (
                top_k_of_store(asked, store, min(k, len(store)), block=block),
                top_k(asked, representation(documents), min(k, len(store))),
            ):
                np.testing.assert_array_equal(rows.numpy(), order)
                np.testing.assert_array_equal(values.numpy(), np.take_along_axis(expected, order, axis=1))
        mask = random.random(len(documents)) < 0.5
        allowed = [[row for row in np.argsort(-one, kind="stable") if mask[row]] for one in expected]
        rows = top_k_among(asked, store, mask, len(documents), block=block)[1]
        assert rows.tolist() == [[int(row) for row in one] for one in allowed]
    candidates = [np.array([len(documents) - 1, -1, 0])] * len(queries)
    for row, values in enumerate(scores_of(asked, store, candidates)):
        np.testing.assert_array_equal(values, [expected[row, -1], np.nan, expected[row, 0]])


def test_gradients_do_not_depend_on_the_size_of_chunks(monkeypatch):
    """Only the best vector of a key has a gradient; a query vector without a match has none."""
    random = np.random.default_rng(0)
    sides = [representation(texts(random, count, 4)) for count in (3, 5)]
    weights = torch.from_numpy(random.standard_normal((3, 5)).astype(np.float32))
    gradients = []
    for limit in (1 << 20, 7):
        monkeypatch.setattr(rule, "LIMIT", limit)
        leaves = [side.vectors.clone().requires_grad_() for side in sides]
        made = [
            Representation(leaf, side.vector_mask, keys=side.keys) for leaf, side in zip(leaves, sides, strict=True)
        ]
        (scores(*made) * weights).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for whole, chunked in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, chunked)
    alone = Representation(torch.ones(1, 1, 3, requires_grad=True), keys=torch.tensor([[77]]))
    scores(alone, sides[1]).sum().backward()
    assert not alone.vectors.grad.any()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 12))
def test_keys_are_stored_with_their_vectors(tmp_path_factory, seed, rows):
    """Read in blocks and text by text, from joined folders with deleted texts, from a part, and in memory."""
    random, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("v")
    own = texts(random, 9, int(random.integers(1, 4)))
    store, every = stored(folder / "v", own, shard=4), [keys.tolist() for _, keys in own]

    def read(blocks):
        ends = [(block, np.cumsum(block.counts)) for block in blocks]
        return [part.tolist() for block, cuts in ends for part in np.split(block.keys, cuts[:-1])]

    assert read(store.blocks(rows)) == every
    picked = random.integers(0, 9, 5)
    assert read([store.take(picked), store.take(np.arange(9)).take(picked)]) == [every[row] for row in picked] * 2
    other = write(
        folder / "w",
        ids=["u0", "u1"],
        vectors=np.ones((3, 3), np.float32),
        counts=[1, 2],
        keys=np.array([2**31 - 1, -(2**31), 0]),
    )
    joined = JoinedStore([store, other], [{"t3", "t8"}, {"u0"}])
    assert read(joined.blocks(rows)) == [*every[:3], *every[4:8], [-(2**31), 0]]
    write_part(store, folder / "part", 1, 2)
    assert read(VectorStore(folder / "part").blocks(rows)) == every[4:8]
    counts = np.array([len(keys) for keys in every])
    vectors, keys = (np.concatenate(parts) for parts in zip(*own, strict=True))
    in_memory = Vectors([f"t{row}" for row in range(9)], vectors, counts, keys=keys)
    (folder / "again").mkdir()
    in_memory.write(folder / "again")
    assert read(VectorStore(folder / "again").blocks(rows)) == every
    np.testing.assert_array_equal(in_memory.scores(in_memory), brute_force(own, own))


def test_keys_on_one_side_and_indexes_without_keys_are_refused(tmp_path):
    keyed = Representation(torch.ones(1, 2, 3), keys=torch.zeros(1, 2, dtype=torch.long))
    plain = Representation(torch.ones(1, 2, 3))
    for sides in ((keyed, plain), (plain, keyed)):
        with pytest.raises(UnsupportedError, match="keys of vectors"):
            scores(*sides)
    store = stored(tmp_path / "v", texts(np.random.default_rng(0), 4, 2))
    with pytest.raises(UnsupportedError, match="Use --indexer flat"):
        build_index(store.folder, indexer="small", output=tmp_path / "small")


@pytest.mark.parametrize("keys", [[1, 2], [1, 2, 2**31]], ids=["too few", "too large"])
def test_wrong_keys_are_refused(tmp_path, keys):
    with pytest.raises(ValueError, match="do not fit"):
        write(tmp_path / "v", vectors=np.ones((3, 3), np.float32), counts=[1, 2], keys=np.array(keys))
