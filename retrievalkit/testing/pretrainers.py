"""The conformance check of pretrainers, on documents of some twenty sentences."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from retrievalkit import registry
from retrievalkit.contracts import LossValue, Needs, Pretrainer, Progress
from retrievalkit.data.corpus import Passage
from retrievalkit.data.spans import Document
from retrievalkit.testing.collection import COUNTRIES
from retrievalkit.train.pretrain_tokens import Cutter


def check_pretrainer(name: str, *, model: str, max_length: int = 24, **options: Any) -> None:
    """Check that a pretrainer keeps the contract, on documents of some twenty sentences.

    Args:
        name: Registered name of the pretrainer.
        model: A model that has what it needs.
        max_length: Most tokens of a text.
        options: Of the pretrainer.

    Raises:
        AssertionError: Says what it does wrong.
    """
    needs = registry.get("pretrainer", name).needs  # type: ignore[attr-defined]
    encoder = registry.create("encoder", "transformer", model, document_length=max_length, new_vocabulary_head=True)
    encoder.prepare(needs)
    made: Pretrainer = registry.create("pretrainer", name, encoder, max_length, **options)
    places = _check_samples(made)

    def batch(count: int = 4) -> Mapping[str, Any]:
        source = random.Random(0)
        return made.collate([made.sample(*place, source) for place in places[:count]], source)

    def loss(values: Mapping[str, Any]) -> LossValue:
        torch.manual_seed(0)
        value: LossValue = made(values, Progress(0, 0.0, 10))
        return value

    first, again = batch(), batch()
    for one in first:
        assert hasattr(first[one], "to"), f"'{one}' of a batch is no tensor and no Batch"
        message = f"'{one}' of a batch differs with the same generator: draw from the one that is handed over"
        torch.testing.assert_close(_tensors(first[one]), _tensors(again[one]), msg=message)
    made.eval()
    value = loss(first)
    for term, number in {**value.terms, "total": value.total}.items():
        assert number.dim() == 0, f"the {term} has shape {tuple(number.shape)}, and must be a scalar"
        assert torch.isfinite(number), f"the {term} is {number.item()}"
    torch.testing.assert_close(loss(first).total, value.total, msg="the loss is another one the second time")
    assert torch.isfinite(loss(batch(1)).total), "the loss of a single sample is not finite"
    assert value.total.requires_grad, "no gradient reaches the encoder"
    torch.autograd.backward(value.total)
    assert any(one.grad is not None for one in encoder.parameters()), "no gradient reaches the encoder"
    _check_saved_encoder(made, needs)


def _check_samples(made: Pretrainer) -> list[tuple[Document, int]]:
    """The places of all samples of some documents."""
    countries = [line.replace("-", " ") for line in COUNTRIES.split("|")]
    passages = [
        Passage(str(row), "", " ".join(f"{one}. The city is {one}." for one in countries[row : row + 10]))
        for row in range(4)
    ]
    cutter = Cutter(made.vocabulary, made.max_length)
    documents = list(cutter.cut(0, passages))
    counts = [made.samples(document) for document in documents]
    assert counts == [made.samples(document) for document in documents], "the number of samples is not always the same"
    assert min(counts) > 0, "a document of twenty sentences gives no sample"
    (empty,) = cutter.cut(0, [Passage("empty", "", "")])
    assert made.samples(empty) == 0, "a document without text gives a sample"
    return [(document, number) for document, count in zip(documents, counts, strict=True) for number in range(count)]


def _check_saved_encoder(made: Pretrainer, needs: Needs) -> None:
    encoder = made.encoder.eval()
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder))
        # Without `new_vocabulary_head`: the head has to be there.
        loaded = registry.create("encoder", "transformer", folder)
        loaded.prepare(needs)
    batch = encoder.collate([made.vocabulary.wrap(made.vocabulary.ordinary[-8:])], "document")
    states = [one.eval()(batch, [one.info.layers]) for one in (encoder, loaded)]
    torch.testing.assert_close(*(one.last for one in states), msg="saving and loading change the encoder")
    if needs.vocabulary_head:
        logits = [one.head(one.last) for one in states]
        torch.testing.assert_close(*logits, msg="saving and loading change the vocabulary head")


def _tensors(value: Any) -> dict[str, torch.Tensor]:
    fields = {"": value} if isinstance(value, torch.Tensor) else vars(value)
    return {name: one for name, one in fields.items() if isinstance(one, torch.Tensor)}
