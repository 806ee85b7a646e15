"""Fixtures: a short pre-training; pretrainers of a tiny encoder, samples, and their loss."""

from __future__ import annotations

import random

import pytest
import torch
from retrievalkit_pretrain.pretrain import pretrain

from retrievalkit import registry
from retrievalkit.contracts import Progress
from retrievalkit.data.tokenized_text import Pieces
from trainings import quick_training

MAX_LENGTH = 24
TEXTS = (
    "The seat of government is the city of Lima.",
    "rome peoples",
    "which language is spoken in iceland and which currency do people use in the city",
)


@pytest.fixture(scope="session")
def quick(tiny_model, tiny_collection):
    """Function that pre-trains for six steps to a folder; keywords are further options."""
    options = {"batch_size": 8, "learning_rate": 1e-2, "precision": "fp32", "logging_steps": 2, "save_steps": 2}
    options |= {"steps": 6, "max_length": 20, "pretrainer": "mlm"}
    return quick_training(pretrain, options, model=tiny_model, corpus=str(tiny_collection.corpus))


@pytest.fixture
def pretrainer_of(tiny_model):
    """Function that returns a pretrainer by name, in eval mode: without dropout."""

    def pretrainer_of(name, model=tiny_model, **options):
        torch.manual_seed(0)
        encoder = registry.create("encoder", "transformer", model, new_vocabulary_head=True)
        encoder.prepare(registry.get("pretrainer", name).needs)
        return registry.create("pretrainer", name, encoder, MAX_LENGTH, **options).eval()

    return pretrainer_of


@pytest.fixture
def samples_of():
    """Function that returns texts as samples of a single span."""

    def samples_of(pretrainer, texts=TEXTS) -> list[Pieces]:
        return [pieces for pieces, _ in pretrainer.vocabulary.split(list(texts))]

    return samples_of


@pytest.fixture
def loss_of(samples_of):
    """Function that returns the loss of texts, with random choices from a seed, and their batch."""

    def loss_of(pretrainer, samples=None, seed=0):
        samples = samples_of(pretrainer) if samples is None else samples
        batch = pretrainer.collate(samples, random.Random(seed))
        torch.manual_seed(seed)
        return pretrainer(batch, Progress(0, 0.0, 10)), batch

    return loss_of
