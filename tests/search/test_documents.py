"""Documents as hits: the passages that a document was cut into form a single hit; other ids are opaque."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import retrievalkit as rk
from retrievalkit.cli import main
from retrievalkit.errors import DataError, InputError, OptionError
from retrievalkit.evaluation.run import Run

PARTS = [1, 1, 2, 3, 5, 8, 13, 21, 34, 120]
IDS = [f"d#{d}#{part}" if d % 2 else f"e{d}#{part}" for d, count in enumerate(PARTS) for part in range(1, count + 1)]
IDS += ["e0", "whole", "#7", "x#0", "tools#1", "tools#2", "e2#4", "d#1#2#1"]
"""Passages of documents; e0 is an id next to e0#1, and the ids after it belong to no document that was cut."""


def vectors(seed):
    """Draw small integers, so that products are exact and many scores are equal."""
    return np.random.default_rng(seed).integers(-2, 3, size=(len(IDS), 4)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("documents")


def rows(ids, of, **fields):
    """Return passages, with the record that those of the documents in `of` were cut from them."""
    for name in ids:
        document, _, number = name.rpartition("#")
        cut = {"cut": {"document": document, "number": int(number), "of": of[document]}} if document in of else {}
        yield {"id": name, "text": name, **cut, **{field: values[name] for field, values in fields.items()}}


CUT = {f"d#{d}" if d % 2 else f"e{d}": count for d, count in enumerate(PARTS)}
ROWS = [*rows(IDS[: sum(PARTS)], CUT), *rows(IDS[sum(PARTS) :], {})]


@pytest.fixture(scope="module")
def indexes(folder):
    of = {"flat": (vectors(1), "flat", {}), "faiss": (vectors(1), "faiss", {"factory": "Flat"})}
    of |= {"other": (vectors(2), "flat", {})}
    return {
        name: rk.Index.build(ROWS, vectors=array, output=folder / name, indexer=indexer, indexer_options=options)
        for name, (array, indexer, options) in of.items()
    }


def document_of(passage):
    return passage if passage in IDS[sum(PARTS) :] else passage.rpartition("#")[0]


def grouped(passages, score):
    """Group ranked passages into documents with their scores and passages."""
    documents = {}
    for passage, value in passages:
        documents.setdefault(document_of(passage), []).append((passage, value))
    total = {
        document: max(v for _, v in own) if score == "best" else sum(v for _, v in own)
        for document, own in documents.items()
    }
    return [(one, total[one], documents[one]) for one in sorted(documents, key=lambda one: -total[one])]


SCORES = st.sampled_from(["best", "sum"])
QUERIES = st.lists(st.integers(-2, 2), min_size=4, max_size=4)


@pytest.mark.parametrize("name", ["flat", "faiss"])
@settings(max_examples=20)
@given(query=QUERIES, k=st.integers(1, 20), score=SCORES)
def test_documents_equal_those_of_brute_force(indexes, name, query, k, score):
    index, array = indexes[name], np.array([query], dtype=np.float32)
    ranked = index.search(array, k=len(IDS))["0"]
    assert dict(ranked) == dict(zip(IDS, (vectors(1) @ array[0]).tolist(), strict=True))
    documents = grouped(ranked, score)[:k]
    hits = index.search(array[0], k=k, document_score=score)
    assert [(hit.id, hit.score) for hit in hits] == [(one, value) for one, value, _ in documents]
    assert index.search(array, k=k, by="document", document_score=score)["0"] == [(hit.id, hit.score) for hit in hits]
    for hit, (document, _, passages) in zip(hits, documents, strict=True):
        shown = [(passage.id, passage.score) for passage in hit.passages] or [(hit.id, hit.score)]
        assert shown == passages[: len(shown)]
        # Passages beyond the depth of the search are not shown.
        assert bool(hit.passages) == (shown != [(document, hit.score)])


@settings(max_examples=20)
@given(query=QUERIES, k=st.integers(1, 20), score=SCORES, fusion=st.sampled_from(["rrf", "sum"]))
def test_passages_are_fused_before_they_are_grouped_into_documents(indexes, query, k, score, fusion):
    both = rk.Hybrid([indexes["flat"], indexes["other"]], fusion=fusion, depth=len(IDS))
    array = np.array([query], dtype=np.float32)
    documents = grouped(both.search(array, k=len(IDS))["0"], score)[:k]
    hits = both.search(array, k=k, by="document", document_score=score)["0"]
    assert [hit for hit, _ in hits] == [document for document, *_ in documents]
    assert [value for _, value in hits] == pytest.approx([value for _, value, _ in documents])


def test_documents_consist_of_passages_that_pass_the_filter(folder):
    array, parities = vectors(1), {name: len(name) % 2 for name in IDS}
    index = rk.Index.build(
        [{**row, "parity": parities[row["id"]]} for row in ROWS], vectors=array, output=folder / "parities"
    )
    query = np.array([2, -1, 1, 0], dtype=np.float32)
    ranked = [hit for hit in index.search(query[None], k=len(IDS))["0"] if parities[hit[0]]]
    for score in ("best", "sum"):
        hits = index.search(query, k=4, filter="parity = 1", document_score=score)
        assert [(hit.id, hit.score) for hit in hits] == [(one, value) for one, value, _ in grouped(ranked, score)[:4]]
        assert all(parities[passage.id] for hit in hits for passage in hit.passages)


def test_a_query_is_searched_as_deep_as_it_needs(folder):
    """A document of 2,000 passages fills the first ranks; a sum is over 1,000 passages, or more if necessary."""
    ids = [*(f"long#{part}" for part in range(1, 2001)), "a#1", "a#2", "b"]
    array = np.array([[1, 0]] * 1500 + [[0.25, 1]] * 500 + [[0.5, 2], [0.5, 2], [0, 3]], dtype=np.float32)
    index = rk.Index.build(list(rows(ids, {"long": 2000, "a": 2})), vectors=array, output=folder / "long")
    queries = np.array([[1, 0], [0, 1]], dtype=np.float32)
    found = index.search(queries, k=3, by="document")
    assert found["0"] == [("long", 1.0), ("a", 0.5), ("b", 0.0)]
    assert found["1"] == [("b", 3.0), ("a", 2.0), ("long", 1.0)]
    summed = {k: index.search(queries, k=k, by="document", document_score="sum") for k in (1, 3)}
    assert summed[1] == {"0": [("long", 1000.0)], "1": [("long", 500.0)]}
    assert summed[3] == {
        "0": [("long", 1625.0), ("a", 1.0), ("b", 0.0)],
        "1": [("long", 500.0), ("a", 4.0), ("b", 3.0)],
    }
    for number, query in enumerate(queries):
        assert index.search(query[None], k=3, by="document")["0"] == found[str(number)]


def test_a_run_of_documents_equals_merged_parts(indexes, folder):
    """`rkit convert --merge-parts` gives the same scores for a deep run; both read the record in the corpus."""
    query = np.array([[2, -1, 1, 0]], dtype=np.float32)
    parts = rk.Hybrid([indexes["flat"], indexes["other"]]).search(query, k=len(IDS))
    run = {"0": [hit for hit in parts["0"] if document_of(hit[0]) != hit[0]]}
    Run(run).save(folder / "parts.trec")
    rk.convert(ROWS, folder / "rows.jsonl", kind="corpus")
    rk.convert(folder / "parts.trec", folder / "merged.trec", merge_parts=True, corpus=folder / "rows.jsonl")
    args = [
        folder / "parts.trec",
        folder / "parts.trec",
        "--fusion",
        "sum",
        "--by",
        "document",
        "--corpus",
        folder / "rows.jsonl",
        "-o",
        folder / "run.trec",
    ]
    done = CliRunner().invoke(main, ["search", *map(str, args)])
    assert done.exit_code == 0, done.output
    halved = {document: value / 2 for document, value in Run.load(folder / "run.trec")["0"]}
    assert halved == pytest.approx(dict(Run.load(folder / "merged.trec")["0"]), rel=1e-5)


TEXT = {
    "notes/long.txt": " ".join(f"word{number}" for number in range(95)) + "\n\nthe capital of Peru\n is  Lima",
    "notes/same.txt": "again and " * 30 + "again",
    "notes/sub/short.txt": "the river of Rome is the Tiber",
    "notes/b#1.txt": "a name with a number",
}


@pytest.fixture(scope="module")
def written(folder, tiny_model):
    """Indexes of the passages of three documents, and the folder of the documents."""
    for name, text in TEXT.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    rk.convert(folder / "notes", folder / "corpus", passages=10, stride=5)
    return rk.Index.build(folder / "corpus", tiny_model, folder / "late", pooler="colbert"), folder / "notes"


def test_a_hit_is_a_document_with_the_passages_that_match(written):
    index, _ = written
    hits = index.search("the capital of Peru", k=5)
    assert {hit.id for hit in hits} == {"long.txt", "same.txt", "sub/short.txt", "b#1.txt"}
    ranked = index.search("the capital of Peru", k=100, by="passage")
    for hit in hits:
        best = hit.passages[0]
        assert (hit.title, hit.score, hit.snippet, hit.found) == (best.title, best.score, best.snippet, best.found)
        own = [(one.rank, one.id, one.score) for one in ranked if document_of(one.id) == hit.id]
        assert [(passage.found[0].rank, passage.id, passage.score) for passage in hit.passages] == own
        assert [passage.rank for passage in hit.passages] == list(range(1, len(own) + 1))
        assert [bool(passage.why) for passage in hit.passages] == [True] * min(3, len(own)) + [False] * (len(own) - 3)
    assert [one["id"] for one in hits[0].to_json()["passages"]] == [one.id for one in hits[0].passages]
    assert index.explain(hits.query, hits) == hits
    assert not any(hit.passages for hit in ranked)


def test_a_hit_opens_its_document(written, folder):
    """The document has its whole text, the places of its passages, and its file."""
    index, notes = written
    for hit in index.search("the capital of Peru"):
        document = index.document(hit)
        assert document.text == TEXT[f"notes/{hit.id}"]
        assert document.file == notes / hit.id
        assert document.title == hit.title
        for passage in hit.passages:
            start, end = document.passages[passage.id]
            assert document.text[start:end] == passage.text
    of_a_file = rk.Index.open(index.folder, corpus=folder / "corpus" / "corpus.jsonl")
    assert of_a_file.document("long.txt") == index.document("long.txt")
    part = index.document("long.txt#2")
    assert (part.text, part.passages, part.file) == (
        " ".join(f"word{n}" for n in range(5, 15)),
        {"long.txt#2": (0, len(part.text))},
        None,
    )
    with pytest.raises(DataError, match=r"unknown document id 'long\.tx'"):
        index.document("long.tx")


def test_documents_without_passages_are_hits_themselves(written, tiny_model, folder):
    _, notes = written
    whole = rk.Index.build(f"documents:{notes}", tiny_model, folder / "whole", pooler="mean")
    hits = whole.search("the capital of Peru")
    assert hits == whole.search("the capital of Peru", by="passage")
    assert "passages" not in hits[0].to_json()
    document = whole.document(hits[0])
    assert (document.text, document.file) == (hits[0].text, notes / hits[0].id)


def test_the_command_prints_documents_and_writes_runs_of_passages(written, folder):
    index, _ = written

    def command(*words):
        done = CliRunner().invoke(main, ["search", str(index.folder), *map(str, words)])
        assert done.exit_code == 0, done.output
        return done.stdout

    query = ("--query", "the capital of Peru", "--k", 3)
    shown = command(*query)
    hits = index.search("the capital of Peru", k=3)
    for hit in hits:
        assert f"{hit.id}  {hit.score:.4f}" in shown
        assert all(
            f"passage {passage.id.rpartition('#')[2]}  {passage.snippet[:20]}" in shown for passage in hit.passages[:3]
        )
    assert f"and {len(hits[0].passages) - 3} passages more" in shown
    assert [hit["id"] for hit in json.loads(command(*query, "--json", "--by", "passage"))["hits"]] == [
        hit.id for hit in index.search("the capital of Peru", k=3, by="passage")
    ]
    command(*query, "--output", folder / "one.trec")
    assert all("#" in hit for hit, _ in Run.load(folder / "one.trec")["query"])
    command(*query, "--output", folder / "one.html")
    assert (folder / "one.html").read_text().count('class="snippet"') == sum(len(hit.passages[:3]) for hit in hits)
    (folder / "queries.tsv").write_text("7\tthe capital of Peru\n")
    many = ("--queries", folder / "queries.tsv", "--k", 2)
    assert len(command(*many).splitlines()) == 2
    assert {
        line.split()[2] for line in command("--queries", folder / "queries.tsv", "--by", "document").splitlines()
    } == {
        "long.txt",
        "same.txt",
        "sub/short.txt",
        "b#1.txt",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "passage", "document_score": "sum"}, "document_score=sum has no effect on passages"),
        ({"by": "file"}, "unknown kind of hit 'file'"),
        ({"document_score": "mean"}, "unknown score of documents 'mean'"),
    ],
)
def test_incompatible_options_are_refused(indexes, options, message):
    with pytest.raises(InputError, match=message):
        indexes["flat"].search(np.ones(4, dtype=np.float32), **options)
    with pytest.raises(OptionError, match="document_score=best has no effect on passages"):
        indexes["flat"].search(np.ones((1, 4), dtype=np.float32), document_score="best")
