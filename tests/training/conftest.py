"""Fixtures of the tests of training: tiny trainings of each kind, and several processes."""

from __future__ import annotations

import pytest
import torch
from retrievalkit_pretrain.pretrain import pretrain

from killed_processes import start
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.training.train import train
from retrievalkit.training.train_reranker import train_reranker
from trainings import quick_training

# Three steps per epoch; a state after every second step.
QUICK = {"batch_size": 8, "learning_rate": 1e-2, "precision": "fp32", "logging_steps": 2, "save_steps": 2}


@pytest.fixture(scope="session")
def examples(tiny_collection, tmp_path_factory):
    """Training and dev examples, each with two positives and five negatives."""
    folder = tmp_path_factory.mktemp("examples")
    ids = open_corpus(tiny_collection.corpus).ids()
    for split in ("train", "test"):
        rows = []
        for row in read_examples(tiny_collection.folder, split=split).rows:
            place = ids.index(row.positives[0])
            around = [ids[(place + step) % len(ids)] for step in range(1, 7)]
            rows.append(Example(row.query_id, row.query, (row.positives[0], around[0]), tuple(around[1:])))
        write_examples(folder / f"{split}.jsonl", rows if split == "train" else rows[:16])
    return {split: str(folder / f"{split}.jsonl") for split in ("train", "test")}


@pytest.fixture(scope="session")
def programs(tiny_model, tiny_collection, examples):
    """Name -> trains for six steps to a folder; keywords are further options."""
    places = {"model": tiny_model, "corpus": str(tiny_collection.corpus)}
    taught = QUICK | {"epochs": 2, "limit": 24, "examples": examples["train"]}
    return {
        "train": quick_training(train, taught, pooler="mean", **places),
        "rerank": quick_training(train_reranker, taught | {"negatives": 3}, **places),
        "pretrain": quick_training(pretrain, QUICK | {"steps": 6, "max_length": 20, "pretrainer": "mlm"}, **places),
    }


@pytest.fixture
def together(tmp_path_factory):
    """Run a function in several processes; returns the result of each."""

    def together(function, count=2):
        folder = tmp_path_factory.mktemp("processes")
        started = start(function, folder, count)
        for one in started:
            one.join(timeout=300)
        assert [one.exitcode for one in started] == [0] * count
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]

    return together
