"""A changed BM25 index has the hits and scores of a newly built index."""

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorWriter
from retrievalkit.errors import UnsupportedError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.change import change_index
from retrievalkit.indexing.open_indexes import open_index
from retrievalkit.storage import read_manifest

WORDS = ("river", "engine", "violin", "harbour", "candle", "glacier")
NAMES = tuple(f"p{number}" for number in range(9))
QUERIES = ["river engine", "violin violin candle", "glacier", "harbour river candle engine violin glacier"]


def text(name, version):
    random = np.random.default_rng([int(name[1:]), version])
    return "" if version == 3 else " ".join(random.choice(WORDS, random.integers(1, 9)))


def corpus(path, texts):
    rows = ({"_id": name, "title": "", "text": text(name, version)} for name, version in texts.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build(folder, texts, shards=None):
    build_index(corpus(folder.with_suffix(".jsonl"), texts), indexer="bm25", output=folder, parts=shards)
    return folder


def assert_same(folder, rebuilt):
    first, other = open_index(folder).indexer, open_index(rebuilt).indexer
    for k in (2, 20):
        (ids, scores), (wanted_ids, wanted) = first.search(QUERIES, k), other.search(QUERIES, k)
        assert ids == wanted_ids
        for score, right in zip(scores, wanted, strict=True):
            np.testing.assert_array_equal(score, right)
    documents = [list(NAMES)] * len(QUERIES)
    for score, right in zip(first.scores(QUERIES, documents), other.scores(QUERIES, documents), strict=True):
        np.testing.assert_array_equal(score, right)
    assert first.contributions(QUERIES[3], NAMES) == other.contributions(QUERIES[3], NAMES)


some = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), min_size=1, max_size=6)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), some),
        st.tuples(st.just("delete"), st.sets(st.sampled_from(NAMES), min_size=1, max_size=3)),
        st.tuples(st.just("compact"), st.none()),
    ),
    min_size=1,
    max_size=3,
)


@given(first=some, changes=changes)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_index_equals_a_newly_built_index(tmp_path_factory, first, changes):
    """Document frequencies, lengths and ties agree; texts without words are counted, and are never hits."""
    tmp_path, held = tmp_path_factory.mktemp("change"), {**first, "p0": 0}
    index = build(tmp_path / "index", held)
    for what, which in changes:
        if what == "add":
            change_index(index, add=corpus(tmp_path / "more.jsonl", which))
            held = {**held, **which, "p0": which.get("p0", held["p0"])}
            if held["p0"] == 3:
                held["p0"] = 0
                change_index(index, add=corpus(tmp_path / "more.jsonl", {"p0": 0}))
        elif what == "delete":
            which = which & held.keys() - {"p0"}
            change_index(index, delete=which) if which else None
            held = {name: version for name, version in held.items() if name not in which}
        else:
            change_index(index, compact=True)
    rebuilt = build(tmp_path / "new", held)
    assert_same(index, rebuilt)
    counts, wanted = (read_manifest(place, "index")["counts"] for place in (index, rebuilt))
    assert (counts["texts"], counts["empty"]) == (wanted["texts"], wanted["empty"])


def vectors(folder, names, *, weights):
    """Write a vectors folder of integers, so that no sum is rounded."""
    folder.mkdir()
    writer = VectorWriter(folder)
    rows = [np.random.default_rng(int(name[1:])).integers(0, 5, 8).astype(np.float32) for name in names]
    matrix = np.stack(rows)
    writer.write_shard(0, names, None if weights else matrix[:, None], weights=csr_matrix(matrix) if weights else None)
    writer.finish()
    return folder


@pytest.mark.parametrize(
    ("indexer", "options"), [("lucene_hnsw", {}), ("impact", {"scale": 10.0, "sample": 0})], ids=["hnsw", "impact"]
)
def test_vectors_in_lucene_are_changed_in_segments(tmp_path, indexer, options):
    """Each segment is a Lucene index; a graph of so few texts is exact."""
    weights = indexer == "impact"
    build = {"indexer": indexer, "options": options}
    build_index(vectors(tmp_path / "v", NAMES[:5], weights=weights), output=tmp_path / "index", **build)
    more = vectors(tmp_path / "more", NAMES[4:], weights=weights)
    change_index(tmp_path / "index", delete=["p1"], add=more)
    left = [*NAMES[:1], *NAMES[2:]]
    build_index(vectors(tmp_path / "all", left, weights=weights), output=tmp_path / "new", **build)
    numbers = torch.arange(16.0).reshape(2, 1, 8)
    queries = Representation(weights=numbers[:, 0]) if weights else Representation(numbers)
    (ids, scores), (wanted, right) = (
        open_index(tmp_path / name).indexer.search(queries, 6) for name in ("index", "new")
    )
    assert ids == wanted
    np.testing.assert_allclose(scores, right, rtol=1e-6)


def test_adding_impacts_without_a_fixed_scale_is_refused(tmp_path):
    build_index(vectors(tmp_path / "v", NAMES[:5], weights=True), indexer="impact", output=tmp_path / "index")
    with pytest.raises(UnsupportedError, match=r"is built from all texts together .*Index the whole corpus"):
        change_index(tmp_path / "index", add=vectors(tmp_path / "more", NAMES[5:], weights=True))


def test_joined_shards_equal_a_single_build(tmp_path):
    """Scores are equal to the last bit, as the statistics cover all texts; texts without words count."""
    texts = {name: number % 3 for number, name in enumerate(NAMES)} | {"p8": 3}
    sharded, whole = build(tmp_path / "index", texts, shards=3), build(tmp_path / "new", texts)
    assert_same(sharded, whole)
    assert read_manifest(sharded, "index")["counts"] == read_manifest(whole, "index")["counts"]
    assert [path.name for path in sharded.iterdir() if path.name.startswith((".", "segments"))] == []
    change_index(sharded, delete=["p1"], compact=True)
    assert_same(sharded, build(tmp_path / "less", {name: text for name, text in texts.items() if name != "p1"}))
