"""Fixtures for tests of whole commands: a folder with all kinds of inputs."""

from __future__ import annotations

import shutil

import pytest

from forked_commands import complete, content, rkit

TRAIN = ("--epochs", 1, "--batch-size", 16)


@pytest.fixture(scope="session")
def materials(tmp_path_factory, tiny_model, tiny_collection):
    """A folder with vectors, an index, two runs, examples with negatives and a re-ranker."""
    import faiss  # noqa: F401 - imported before the forks
    from retrievalkit_pretrain import pretraining  # noqa: F401

    from retrievalkit.evaluation.compare import page  # noqa: F401
    from retrievalkit.mining import pipeline  # noqa: F401
    from retrievalkit.search import fusion_tuning  # noqa: F401
    from retrievalkit.training import reranker, retriever  # noqa: F401

    folder = tmp_path_factory.mktemp("materials")

    def make(*words):
        ended = rkit(*words, folder=folder)
        assert ended.code == 0, ended

    corpus, queries = tiny_collection.corpus, tiny_collection.queries
    make("encode", tiny_model, corpus, "--output", "vectors")
    make("index", "vectors", "--output", "flat")
    make("search", "flat", "--queries", queries, "--k", 20, "--output", "a.trec")
    shutil.copy(folder / "a.trec", folder / "b.trec")
    examples = tiny_collection.folder
    make("mine-negatives", "--from", "a.trec", "--corpus", corpus, "--examples", examples, "--output", "train.jsonl")
    reads = ("--model", tiny_model, "--corpus", corpus)
    make("rerank", "train", *reads, "--examples", "train.jsonl", *TRAIN, "--output", "reranker")
    return folder


@pytest.fixture(scope="session")
def commands(materials, tiny_model, tiny_collection):
    corpus, queries, data = tiny_collection.corpus, tiny_collection.queries, tiny_collection.folder
    at = materials
    training = ("--model", tiny_model, "--corpus", corpus, *TRAIN)
    qrels = ("--qrels", data / "qrels" / "test.tsv")
    return {
        "encode": ("encode", tiny_model, corpus),
        "index flat": ("index", at / "vectors"),
        "index faiss": ("index", at / "vectors", "--indexer", "faiss"),
        "train": ("train", *training, "--examples", at / "train.jsonl"),
        "pretrain": ("pretrain", *training, "--pretrainer", "mlm"),
        "rerank train": ("rerank", "train", *training, "--examples", at / "train.jsonl"),
        "rerank apply": (
            *("rerank", "apply", at / "reranker", "--run", at / "a.trec", "--queries", queries, "--corpus", corpus),
        ),
        "mine-negatives": ("mine-negatives", "--from", at / "b.trec", "--corpus", corpus, "--examples", data),
        "search": ("search", at / "flat", "--queries", queries),
        "compare": ("compare", at / "a.trec", at / "b.trec", *qrels),
        "convert": ("convert", data),
    }


@pytest.fixture(scope="session")
def whole(commands, tmp_path_factory):
    """Function: name of a command -> the content of its output, and all names in the folder."""
    made = {}

    def whole(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("whole")
            ended = rkit(*complete(commands[name], "out"), folder=folder)
            assert ended.code == 0, ended
            made[name] = content(folder / "out"), {one.name for one in folder.iterdir()}
        return made[name]

    return whole
