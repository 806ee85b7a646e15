"""Searches filtered by fields, end to end: all kinds of indexes, changed indexes, and fusion."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import retrievalkit as rk
from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.contracts import Allowed, Indexer, Representation
from retrievalkit.data.queries import Query
from retrievalkit.errors import InputError
from retrievalkit.indexing.segments import Segmented
from retrievalkit.indexing.vectors import Vectors
from retrievalkit.search.public import facets
from vector_folders import drawn, drawn_weights, opened, write

TEXTS, DIM = 60, 8


def rows(first, last, **fields):
    return [
        {"id": f"d{n}", "text": f"text number {n} cat{' dog' * (n % 3)}", "n": n, "parity": ["even", "odd"][n % 2]}
        | fields
        for n in range(first, last)
    ]


def rkit(*words):
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """An index of texts, whose indexer has no filtering of its own."""
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(Path(__file__).parents[1] / "overlap_plugin.py"))
    registry.default_registry.cache_clear()
    yield rk.Index.build(rows(0, 30), output=tmp_path / "words", indexer="overlap")
    registry.default_registry.cache_clear()


@pytest.fixture
def dense(tmp_path, tiny_model):
    return rk.Index.build(rows(0, 30), tiny_model, tmp_path / "dense", pooler="mean")


def numbers(hits):
    return [int(hit.id[1:]) for hit in hits]


class Plain(Indexer):
    """A plugin's indexer without filtering of its own."""

    indexes = "vectors"

    def __init__(self, indexer, *, scoring=True):
        self.indexer, self.scoring = indexer, scoring

    def build(self, source, index_dir):
        raise NotImplementedError

    def open(self, index_dir):
        raise NotImplementedError

    def search(self, queries, k):
        return self.indexer.search(queries, k)

    def scores(self, queries, ids):
        return self.indexer.scores(queries, ids) if self.scoring else super().scores(queries, ids)


@pytest.fixture(scope="module")
def indexers(tmp_path_factory):
    """Indexes of the same texts, with queries and the scores of all texts."""
    folder, random = tmp_path_factory.mktemp("indexers"), np.random.default_rng(0)
    vectors, weights = drawn(TEXTS, dim=DIM), drawn_weights(random, TEXTS)
    asked = torch.from_numpy(drawn(3, seed=1, dim=DIM))[:, None]
    terms = torch.from_numpy(drawn_weights(random, 3))
    dense, lexical = asked[:, 0].numpy() @ vectors.T, terms.numpy() @ weights.T
    one, other = Representation(asked), Representation(None, None, terms)
    both = Representation(asked, None, terms)
    of_vectors = write(folder / "v", vectors=vectors)
    of_weights = write(folder / "w", weights=weights)
    of_both = write(folder / "b", vectors=vectors, weights=weights)
    flat = opened("flat", of_vectors, folder / "flat")
    halves = [
        opened("faiss", write(folder / f"h{n}", ids=[f"t{t}" for t in part], vectors=vectors[part]), folder / f"s{n}")
        for n, part in enumerate(np.array_split(np.arange(TEXTS), 2))
    ]
    return {
        "flat": (flat, one, dense),
        "faiss": (opened("faiss", of_vectors, folder / "faiss"), one, dense),
        "hnsw": (opened("faiss", of_vectors, folder / "hnsw", factory="HNSW32"), one, dense),
        "small": (opened("small", of_vectors, folder / "small"), one, dense),
        "weights": (opened("flat", of_weights, folder / "weights"), other, lexical),
        "sparse": (opened("sparse", of_weights, folder / "sparse"), other, lexical),
        "dense_sparse": (opened("dense_sparse", of_both, folder / "both"), both, dense + lexical),
        "plain": (Plain(flat), one, dense),
        "without scores": (Plain(flat, scoring=False), one, dense),
        "segments": (Segmented(halves, [frozenset(), frozenset()]), one, dense),
    }


@pytest.mark.parametrize(
    "name",
    ["flat", "faiss", "hnsw", "small", "weights", "sparse", "dense_sparse", "plain", "without scores", "segments"],
)
@settings(max_examples=30)
@given(
    chosen=st.one_of(
        st.sets(st.integers(0, TEXTS - 1), min_size=1, max_size=3),
        st.sets(st.integers(0, TEXTS - 1), min_size=TEXTS // 2),
        st.just(set(range(TEXTS))),
    ),
    k=st.sampled_from([1, 4, 100]),
)
def test_a_filtered_search_equals_filtering_all_scores(indexers, name, chosen, k):
    indexer, queries, truth = indexers[name]
    ids, scores = indexer.search_among(queries, k, Allowed([f"t{row}" for row in sorted(chosen)], TEXTS))
    least = 0 if queries.vectors is None else -np.inf
    for row, every in enumerate(truth):
        expected = [t for t in np.argsort(-every, kind="stable") if t in chosen and every[t] > least][:k]
        assert ids[row] == [f"t{t}" for t in expected]
        np.testing.assert_allclose(scores[row], every[expected], rtol=1e-5, atol=1e-5)


def test_an_index_that_has_few_hits_ranks_all_allowed_texts(indexers):
    """An inverted file, for example, searches only some of its lists."""
    indexer, queries, truth = indexers["flat"]

    class Cut(Plain):
        def search(self, queries, k):
            return self.indexer.search(queries, min(k, 5))

    chosen = range(1, TEXTS, 2)
    ids, _ = Cut(indexer).search_among(queries, 3, Allowed([f"t{row}" for row in chosen], TEXTS))
    for row, every in enumerate(truth):
        best = sorted(chosen, key=lambda text: -every[text])[:3]
        assert len(ids[row]) == 3
        assert set(ids[row]) & {f"t{text}" for text in best}


def test_a_deleted_copy_of_a_changed_text_is_not_found(indexers):
    """The new copy, in a later segment, passes the filter."""
    _, queries, _ = indexers["faiss"]
    (one, _), (two, _) = indexers["segments"][0]._parts
    segmented = Segmented(
        [one, one, two], [frozenset(["t1"]), frozenset(f"t{n}" for n in range(30) if n != 1), frozenset()]
    )
    ids, _ = segmented.search_among(queries, 100, Allowed(["t0", "t1", "t40"], TEXTS))
    assert [sorted(some) for some in ids] == [["t0", "t1", "t40"]] * 3


def test_hits_pass_the_filter_and_show_their_fields(texts, dense):
    for index in (texts, dense):
        hits = index.search("number cat", 5, filter="n >= 10 and parity = odd")
        assert len(hits) == 5
        assert all(number >= 10 and number % 2 for number in numbers(hits))
        assert hits[0].fields == {"n": numbers(hits)[0], "parity": "odd"}
        every = index.search("number cat", 30)
        expected = [hit.id for hit in every if hit.fields["n"] >= 10 and hit.fields["n"] % 2][:5]
        assert [hit.id for hit in hits] == expected
        run = index.search(["number cat"], 5, filter="n >= 10 and parity = odd")
        assert [name for name, _ in run["0"]] == expected
        assert not index.search("number cat", filter="n > 1000")


def test_each_of_several_indexes_is_filtered(texts, dense):
    hits = rk.Hybrid([texts, dense]).search("number cat", 5, filter="parity = odd")
    assert len(hits) == 5
    assert all(number % 2 for number in numbers(hits))


def test_an_index_without_fields_uses_those_of_another_index_of_its_corpus(tmp_path, dense, texts):
    """An index of an older version has none."""
    manifest = tmp_path / "words" / "manifest.json"
    described = json.loads(manifest.read_text())
    corpus = json.loads((tmp_path / "dense" / "manifest.json").read_text())["corpus"]["fingerprint"]
    del described["fields"]
    described["corpus"]["fingerprint"] = corpus
    manifest.write_text(json.dumps(described))
    old = rk.Index.open(tmp_path / "words")
    with pytest.raises(InputError, match="no fields"):
        old.search("cat", filter="parity = odd")
    hybrid = rk.Hybrid([old, dense])
    assert all(number % 2 for number in numbers(hybrid.search("number cat", 5, filter="parity = odd")))


def test_a_run_in_a_fusion_is_filtered(tmp_path, texts):
    run = rk.Run({"0": [("d1", 2.0), ("d2", 1.0)]}, "other")
    hits = rk.Hybrid([texts, run]).search({"0": "number"}, 40, filter="parity = even")
    assert {name for name, _ in hits["0"]} <= {f"d{n}" for n in range(0, 30, 2)}


def test_fields_follow_a_collection(dense, tmp_path, monkeypatch):
    """Changed fields need no encoding; fields survive additions, deletions and compaction."""
    outcome = dense.add(rows(20, 30, parity="neither"))
    assert (outcome["changed"], outcome["unchanged"], outcome["segments"]) == (10, 0, 1)
    assert numbers(dense.search("cat", 30, filter="parity = neither")) != []
    assert sorted(numbers(dense.search("cat", 30, filter="parity = neither"))) == list(range(20, 30))
    assert dense.add(rows(20, 30, parity="neither"))["unchanged"] == 10
    dense.add(rows(30, 35))
    dense.delete("d3")
    dense.add([{"id": "d5", "text": "another", "n": 500}])
    for _ in range(2):
        hits = dense.search("cat", 40, filter="n > 1")
        assert sorted(numbers(hits)) == [n for n in range(2, 35) if n != 3]
        assert [hit.fields["n"] for hit in hits if hit.id == "d5"] == [500]
        assert sorted(numbers(dense.search("cat", 40, filter="parity = odd and n > 15"))) == [17, 19, 31, 33]
        assert numbers(dense.search("cat", 40, filter="not parity in (odd, even, neither)")) == [5]
        dense.compact()
    assert facets(dense.searcher)["parity"] == [("even", 13), ("neither", 10), ("odd", 10)]


def test_the_command_filters_hits_and_runs(tmp_path, texts):
    folder = tmp_path / "words"
    hits = json.loads(rkit("search", folder, "--query", "number", "--filter", "n = 7", "--json"))["hits"]
    assert [(hit["id"], hit["fields"]) for hit in hits] == [("d7", {"n": 7, "parity": "odd"})]
    assert "n=7  parity=odd" in rkit("search", folder, "--query", "number", "--filter", "n = 7")
    (tmp_path / "q.jsonl").write_text('{"_id": "q", "text": "number"}\n')
    lines = rkit("search", folder, "--queries", tmp_path / "q.jsonl", "--filter", "n < 3").splitlines()
    assert sorted(line.split()[2] for line in lines) == ["d0", "d1", "d2"]
    wrong = CliRunner().invoke(main, ["search", str(folder), "--query", "x", "--filter", "m = 7"])
    assert wrong.exit_code == 2


def test_encoded_vectors_keep_fields_for_every_index_of_them(tmp_path, tiny_model):
    """Fields are kept even if texts and index are split into shards."""
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(0, 20)))
    encode = ["--side", "document", "--pooler", "mean", "--set", "shard_texts=7"]
    rkit("encode", tiny_model, tmp_path / "c.jsonl", *encode, "--output", tmp_path / "v")
    rkit("index", tmp_path / "v", "--shards", "2", "--output", tmp_path / "i")
    index = rk.Index.open(tmp_path / "i")
    assert sorted(numbers(index.search("cat", 20, filter="n >= 12"))) == list(range(12, 20))


TYPED = [
    {"price": price, "day": day, "tags": tags}
    for price in (10, 9.5, "n/a", "0100", None)
    for day in ("2024-05-01", datetime(2024, 5, 1, 10), date(2024, 5, 2))
    for tags in (["a", 7], None)
]
FILTERS = {
    "price > 9": lambda fields: fields["price"] in (10, 9.5, "0100"),
    "price = 0100": lambda fields: fields["price"] == "0100",
    "price != 10": lambda fields: fields["price"] not in (10, None),
    "price not in (10, n/a)": lambda fields: fields["price"] in (9.5, "0100"),
    "day <= 2024-05-01 and has tags": lambda fields: str(fields["day"]) < "2024-05-02" and fields["tags"],
    "day = 2024-05-01": lambda fields: str(fields["day"]).startswith("2024-05-01"),
    "tags = 7 and not price = 10": lambda fields: fields["tags"] and fields["price"] != 10,
    "price > 100": lambda fields: False,
}


@pytest.mark.parametrize(
    "name", ["flat", "faiss", "small", "sparse", "dense_sparse", "bm25", "impact", "lucene_hnsw", "milvus"]
)
def test_every_indexer_returns_exactly_the_texts_that_pass(name, tmp_path):
    """Before and after an addition whose fields have other types."""
    if name not in registry.names("indexer"):
        pytest.skip("its plugin is not installed")

    def part(first, last):
        passages = [
            {"id": f"d{row}", "title": f"Part {row % 3}", "text": f"cat {row}"}
            | {key: value for key, value in TYPED[row].items() if value is not None}
            for row in range(first, last)
        ]
        dense = None if name in ("sparse", "impact") else drawn(last - first, seed=first, dim=DIM)[:, None]
        weights = scipy.sparse.csr_matrix(np.ones((last - first, 4), np.float32)) if dense is None else None
        if name == "dense_sparse":
            weights = scipy.sparse.csr_matrix(np.ones((last - first, 4), np.float32))
        vectors = Vectors([row["id"] for row in passages], dense, weights=weights)
        return passages, {} if name == "bm25" else {"vectors": vectors}

    options = {"scale": 100} if name == "impact" else {}
    passages, encoded = part(0, 20)
    index = rk.Index.build(passages, output=tmp_path / "index", indexer=name, indexer_options=options, **encoded)
    query = "cat" if name == "bm25" else part(0, 1)[1]["vectors"]
    for last in (20, len(TYPED)):
        if last > 20:
            passages, encoded = part(20, last)
            index.add(passages, **encoded)
        for filter, passes in FILTERS.items():
            run = index.search([query] if name == "bm25" else query, 100, filter=filter)
            (hits,) = run.values()
            expected = {f"d{row}" for row in range(last) if passes(TYPED[row])}
            assert {identifier for identifier, _ in hits} == expected, filter
        run = index.search([query] if name == "bm25" else query, 100, filter="title = 'Part 1' and id not in (d4, d25)")
        assert {hit for hit, _ in next(iter(run.values()))} == {f"d{row}" for row in range(1, last, 3)} - {"d4", "d25"}


def test_a_field_named_like_the_title_is_not_hidden_in_silence(tmp_path, capsys):
    rows = [{"_id": f"d{n}", "title": "Own", "text": "cat", "metadata": {"title": f"T{n}"}} for n in range(2)]
    index = rk.Index.build(rows, vectors=np.eye(2, dtype=np.float32), output=tmp_path / "index")
    assert numbers(index.search(np.ones(2, np.float32), filter="title = T1")) == [1]
    assert "_title" in capsys.readouterr().err
    assert numbers(index.search(np.ones(2, np.float32), filter="_title = Own and id = d0", strict=True)) == [0]


def test_an_index_is_searched_in_the_form_of_its_texts(tmp_path, texts, dense, tiny_model):
    """Passages record their form; texts without a record, and their queries, stay byte for byte."""
    plain, typed = "caf\u00e9 fine co-op", "cafe\u0301 \ufb01ne co-\u00adop"
    rows = [{"_id": "\u00e9 1", "text": plain, "n\u00e9": "\u00e9t\u00e9", "text_form": "nfc-plain"}]
    formed = rk.Index.build([*rows, {**rows[0], "_id": "b"}], output=tmp_path / "formed", indexer="overlap")
    asked = [Query("1", typed)]
    for index, query in ((formed, plain), (texts, typed)):
        assert index.searcher.ask(asked).encoded_for(index.searcher.indexes[0]) == [query]
    assert (formed.manifest["text_form"], texts.manifest.get("text_form")) == ("nfc-plain", None)
    (hit,) = formed.search(typed, filter="'ne\u0301' = 'e\u0301te\u0301' and id = 'e\u0301\u00a01'")
    assert (hit.id, hit.fields) == ("\u00e9 1", {"n\u00e9": "\u00e9t\u00e9"})
    assert [hit.snippet[start:end] for start, end in hit.matches] == ["caf\u00e9", "fine", "co", "op"]
    assert formed.document("e\u0301 1").id == "\u00e9 1"
    formed = rk.Index.build([*rows, {**rows[0], "_id": "b"}], tiny_model, tmp_path / "vectors", pooler="mean")
    assert [hit.score for hit in formed.search(plain)] == [hit.score for hit in formed.search(typed)]
    assert formed.add([{"id": "e\u0301 1", "text": typed, "ne\u0301": "e\u0301te\u0301"}])["unchanged"] == 1
    with pytest.raises(InputError, match="twice"):
        formed.add([{"id": name, "text": "x"} for name in ("a\u0301", "\u00e1")])
    assert formed.delete("e\u0301 1")["texts"] == 1
    dense.add([{"id": "e\u0301", "text": typed}])
    assert dense.document("e\u0301").text == typed
    with pytest.raises(InputError, match="unknown"):
        dense.document("\u00e9")


def test_texts_in_two_forms_are_searched_as_they_are_typed(tmp_path, capsys):
    rows = [{"_id": "a", "text": "x", "text_form": "nfc-plain"}, {"_id": "b", "text": "y"}]
    index = rk.Index.build(rows, vectors=np.eye(2, dtype=np.float32), output=tmp_path / "index")
    assert "plain form" in capsys.readouterr().err
    assert "text_form" not in index.manifest


def test_vectors_of_texts_with_other_fields_have_the_same_fingerprint(tmp_path, tiny_model):
    prints = []
    for name in ("x", "y"):
        rk.Index.build(
            rows(0, 5, source=name), tiny_model, tmp_path / name, pooler="mean", vectors=tmp_path / f"v{name}"
        )
        prints.append(rk.Index.open(tmp_path / name).manifest["inputs"]["vectors"]["fingerprint"])
    assert prints[0] == prints[1]
