"""Formats by hand, conformance, and vectors equal to those of formatted texts."""

from __future__ import annotations

import json

import pytest
from retrievalkit_instruct.encoders import Instruct

from retrievalkit import registry
from retrievalkit.contracts import Needs, Text
from retrievalkit.data.vectors import VectorStore

QUERY = Text("", "capital of peru", {"instruction": "answer the question"})
PASSAGE = Text("Peru", "The city of Lima.", {"source": "atlas", "year": 2024})


@pytest.mark.parametrize(("text", "side", "options", "expected"), [
    (QUERY, "query", {}, "Instruct: answer the question\nQuery: capital of peru"),
    (Text("", "lima"), "query", {"instruction": "find a city"}, "Instruct: find a city\nQuery: lima"),
    (QUERY, "query", {"query_format": "query: {text}"}, "query: capital of peru"),
    (PASSAGE, "document", {}, "passage: Peru The city of Lima."),
    (Text("", "Lima."), "document", {}, "passage: Lima."),
    (PASSAGE, "document", {"document_format": "{source} {page} {year}: {text}"}, "atlas 2024: The city of Lima."),
    (Text("", "{title} {text}"), "document", {"document_format": "{text}"}, "{title} {text}"),
    (Text("", ""), "query", {}, ""),
])  # fmt: skip
def test_a_format_is_filled_from_the_record(text, side, options, expected, tiny_model):
    encoder = Instruct(tiny_model, **options)
    assert encoder.formatted(text, side) == expected
    built_in = registry.create("encoder", "transformer", tiny_model)
    for loaded in (encoder, built_in):
        loaded.prepare(Needs())
    assert encoder.tokenize([text], side) == built_in.tokenize([Text("", expected)], side)


@pytest.mark.slow
def test_the_encoder_conforms(rkit):
    assert " failed" not in rkit("plugins", "check", "instruct")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def vectors_of(folder):
    return [vectors.tolist() for _, vectors in VectorStore(folder).shards()]


def test_training_encoding_and_search_read_the_fields(rkit, tiny_model, tiny_collection, tmp_path):
    """A model trained on records equals a model trained on formatted texts, with equal vectors and hits."""
    passages = [json.loads(line) for line in tiny_collection.corpus.read_text().splitlines()]
    tasks = ["name the capital", "name the currency"] * 12
    examples = [
        {
            "query_id": f"q{row}",
            "query": f"which city of {row}",
            "positives": [passage["_id"]],
            "metadata": {"task": task},
        }
        for row, (passage, task) in enumerate(zip(passages[:24], tasks, strict=True))
    ]
    settings = {
        "records": ["--encoder", "instruct", "--set", "encoder.query_format={task}: {text}",
                    "--set", "encoder.document_format={source}: {text}"],
        "texts": [],
    }  # fmt: skip
    results = {}
    for name, options in settings.items():
        folder = tmp_path / name
        folder.mkdir()
        corpus, queries = [], []
        for number, passage in enumerate(passages):
            row = {"_id": passage["_id"], "text": passage["text"], "source": ["atlas", "almanac"][number % 2]}
            corpus.append(row if name == "records" else {**row, "text": f"{row['source']}: {row['text']}"})
        for row in examples:
            formatted = f"{row['metadata']['task']}: {row['query']}"
            queries.append(row if name == "records" else {**row, "query": formatted})
        corpus = write(folder / "corpus.jsonl", corpus)
        queries = write(folder / "train.jsonl", queries)
        small = ["--epochs", 1, "--batch-size", 8, "--pooler", "mean", "--set", "negatives=0", "--set", "held_out=0"]
        rkit("train", "--model", tiny_model, "--corpus", corpus, "--examples", queries, *small, *options,
             "--output", folder / "checkpoint")  # fmt: skip
        rkit("encode", folder / "checkpoint", corpus, "--output", folder / "vectors")
        rkit("index", folder / "vectors", "--output", folder / "index")
        rkit("search", folder / "index", "--queries", queries, "--k", 5, "--output", folder / "run.trec")
        results[name] = vectors_of(folder / "vectors"), (folder / "run.trec").read_text()
    assert results["records"] == results["texts"]
