"""What is told of int8: cosines to float32, of these texts."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional

from retrievalkit.model import nearness
from retrievalkit.model.retriever import Retriever

TEXTS = [("", "peru"), ("", "the capital of peru is lima"), ("", "lima is a city")]


@pytest.mark.parametrize("pooler", ["mean", "colbert"])
def test_the_cosines_are_those_of_int8_to_float32(tiny_model, pooler):
    """Of every vector that is not masked."""
    retriever = Retriever.create(tiny_model, pooler=pooler).eval()
    with torch.no_grad():
        for weight in retriever.parameters():
            weight.mul_(8)  # those of a trained model do not lie as near to zero
    made, exact = (retriever.encode(TEXTS, "document", precision=name) for name in ("int8", "fp32"))
    cosines = functional.cosine_similarity(made.vectors, exact.vectors, dim=-1).flatten()
    if exact.vector_mask is not None:
        cosines = cosines[exact.vector_mask.flatten()]
    token_ids = retriever.tower("document").tokenize(TEXTS, "document")
    told = nearness.nearness(retriever, token_ids, "document")
    least, median = re.search(r"int8: of 3 texts .* is ([\d.]+) at least, ([\d.]+) in the median", told).groups()
    assert float(least) == pytest.approx(float(cosines.min()), abs=1e-5)
    assert float(median) == pytest.approx(float(cosines.median()), abs=1e-5)
    assert float(least) < 0.9999


@pytest.mark.parametrize("supported", [True, False])
def test_bf16_is_offered_where_the_processor_multiplies_in_it(tiny_model, monkeypatch, supported):
    monkeypatch.setattr(nearness, "multiplies_bf16", lambda: supported)
    retriever = Retriever.create(tiny_model, pooler="mean").eval()
    told = nearness.nearness(retriever, retriever.tower("query").tokenize(TEXTS, "query"), "query")
    assert ("--precision bf16" in told) == supported
