"""Lengths that differ from the checkpoint's: encoding, recording, searching and refusals."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from forked_commands import content
from retrievalkit import storage
from retrievalkit.cli.main import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import open_run
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores

SHORT = {"query_length": 4, "document_length": 6}


@pytest.fixture(scope="module")
def checkpoint(tiny_model, tmp_path_factory):
    """A checkpoint that truncates queries to 4 and passages to 6 tokens."""
    folder = tmp_path_factory.mktemp("short") / "checkpoint"
    folder.mkdir()
    Retriever.create(tiny_model, pooler="mean", encoder_options=SHORT).save(folder)
    return folder


def rkit(*words, code=0):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def best(tiny_model, collection, **lengths):
    retriever = Retriever.create(tiny_model, pooler="mean", encoder_options=lengths).eval()
    corpus, queries = list(open_corpus(collection.corpus)), read_queries(collection.queries)
    documents = retriever.encode([(one.title, one.text) for one in corpus], "document")
    rows = scores(retriever.encode([("", one.text) for one in queries], "query"), documents).argmax(dim=1)
    return {query.id: corpus[row].id for query, row in zip(queries, rows.tolist(), strict=True)}


def firsts(run):
    return {query: hits[0][0] for query, hits in open_run(run).items()}


def searched(checkpoint, collection, folder, *, encode=(), search=()):
    rkit("encode", checkpoint, collection.corpus, "-o", folder / "vectors", "--precision", "fp32", *encode)
    rkit("index", folder / "vectors", "-o", folder / "index")
    rkit("search", folder / "index", "--queries", collection.queries, "--k", 1, "-o", folder / "run.trec", *search)
    return firsts(folder / "run.trec")


def lengths(side, number):
    return ("--set", f"encoder.{side}_length={number}")


@pytest.mark.parametrize(
    ("model", "encode", "search", "expected"),
    [
        ("checkpoint", (), (), SHORT),
        ("checkpoint", lengths("document", 40), lengths("query", 30), {"query_length": 30, "document_length": 40}),
        ("untrained", ("--pooler", "mean", *lengths("query", 4)), lengths("query", 30), {"query_length": 30}),
    ],
)
def test_lengths_of_encode_and_search_equal_those_of_a_model_created_with_them(
    model, encode, search, expected, checkpoint, tiny_model, tiny_collection, tmp_path
):
    model = checkpoint if model == "checkpoint" else tiny_model
    run = searched(model, tiny_collection, tmp_path, encode=encode, search=search)
    assert run == best(tiny_model, tiny_collection, **expected)


def test_an_index_records_the_lengths_and_a_search_may_override_them(checkpoint, tiny_model, tiny_collection, tmp_path):
    both = (*lengths("document", 40), *lengths("query", 30))
    found = searched(checkpoint, tiny_collection, tmp_path, encode=both)
    assert found == best(tiny_model, tiny_collection, query_length=30, document_length=40)
    assert found != best(tiny_model, tiny_collection, **SHORT)
    for folder in ("vectors", "index"):
        entry = storage.read_manifest(tmp_path / folder)["checkpoint"]
        assert entry["encoder_options"] == {"document_length": 40, "query_length": 30}
        assert entry["fingerprint"] == Retriever.load(checkpoint).fingerprint
    # Encoding with another length does not resume from these vectors.
    assert storage.read_manifest(tmp_path / "vectors")["inputs"]["checkpoint"]["encoder_options"] == {
        "document_length": 40,
        "query_length": 30,
    }
    again = ("--queries", tiny_collection.queries, "--k", 1, "-o", tmp_path / "again.trec")
    rkit("search", tmp_path / "index", *again, *lengths("query", 4))
    assert firsts(tmp_path / "again.trec") == best(tiny_model, tiny_collection, query_length=4, document_length=40)


@pytest.mark.precision
def test_setting_the_checkpoints_own_length_changes_no_byte(checkpoint, tiny_collection, tmp_path):
    for name, settings in (("as it is", ()), ("named", lengths("document", 6))):
        rkit("encode", checkpoint, tiny_collection.corpus, "-o", tmp_path / name, *settings)
    assert content(tmp_path / "as it is") == content(tmp_path / "named")


def test_two_indexes_of_a_checkpoint_with_different_query_lengths_are_fused(
    checkpoint, tiny_model, tiny_collection, tmp_path
):
    query, corpus = read_queries(tiny_collection.queries)[0], list(open_corpus(tiny_collection.corpus))
    parts = []
    for length in (4, 30):
        searched(checkpoint, tiny_collection, tmp_path / str(length), encode=lengths("query", length))
        retriever = Retriever.create(tiny_model, pooler="mean", encoder_options=SHORT | {"query_length": length}).eval()
        documents = retriever.encode([(one.title, one.text) for one in corpus], "document")
        parts.append(scores(retriever.encode([("", query.text)], "query"), documents)[0])
    places = [tmp_path / "4" / "index", tmp_path / "30" / "index"]
    rkit("search", *places, "--fusion", "sum", "--queries", tiny_collection.queries, "-o", tmp_path / "run.trec")
    assert not torch.allclose(*parts)
    assert open_run(tmp_path / "run.trec")[query.id][0][1] == pytest.approx(float(sum(parts).max()), abs=1e-4)


REFUSED = {
    "encode {checkpoint} {corpus} -o out --set encoder.document_length=4096": (
        "encoder.document_length is 4096, and '{checkpoint}/encoder' takes 3 to 128 tokens. "
        "Use --set encoder.document_length=N."
    ),
    "encode {checkpoint} {corpus} -o out --set encoder.document_length=long": "cannot be 'long'",
    "encode {checkpoint} {queries} -o out --side query --set encoder.document_length=9": "has no effect on queries",
    "encode {checkpoint} {corpus} -o out --set encoder.title=none --set encoder.document_length=9": (
        "holds its own encoder, pooler and options: drop --set encoder.title. Its lengths alone may differ"
    ),
    "search {index} --query peru --set encoder.query_length=4096": "takes 3 to 128 tokens",
    "search {index} --query peru --set encoder.query_length=long": "encoder.query_length cannot be 'long'",
    "search {index} --query peru --set encoder.document_length=9": "whose documents are encoded already",
    "search {index} --query peru --set encoder.title=none": "--set encoder.title is not an option of any index",
    "search {run} {run} --set encoder.query_length=9": "encoder.query_length has no effect here",
}


@pytest.fixture(scope="module")
def places(checkpoint, tiny_collection, tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    searched(checkpoint, tiny_collection, folder)
    paths = {"index": folder / "index", "run": folder / "run.trec", "checkpoint": checkpoint}
    return paths | {name: getattr(tiny_collection, name) for name in ("corpus", "queries")}


@pytest.mark.parametrize("line", REFUSED)
def test_a_length_without_effect_or_beyond_the_models_limit_is_refused(line, places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = rkit(*line.format(**places).split(), code=2)
    assert REFUSED[line].format(**places) in result.output
    assert list(tmp_path.iterdir()) == []
