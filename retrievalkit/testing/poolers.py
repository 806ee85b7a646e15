"""The conformance check of poolers, made with a whole retriever."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from retrievalkit.contracts import Representation, Side, Text

_TEXTS: tuple[Text, ...] = (
    ("", "what is the capital of france"),
    ("Peru", "The seat of government is the city of Lima."),
    ("", "rome"),
    ("", "which language is spoken in iceland and which currency do people use in the city"),
)


def check_pooler(name: str, *, model: str, **options: Any) -> None:
    """Check that a pooler keeps the contract, with a model that has what it needs.

    Raises:
        AssertionError: Says what it does wrong.
    """
    from retrievalkit.model.retriever import Retriever

    retriever = Retriever.create(model, pooler=name, pooler_options=options).to("cpu").eval()
    side: Side
    for side in ("query", "document"):
        whole = _encode(retriever, _TEXTS, side)
        assert len(whole) == len(_TEXTS), f"{side}: {len(whole)} rows for {len(_TEXTS)} texts"
        assert _values(whole).isfinite().all(), f"{side}: some values are not finite"
        backwards = _encode(retriever, _TEXTS[::-1], side)
        for row, text in enumerate(_TEXTS):
            one, mirrored = whole.rows(slice(row, row + 1)), len(_TEXTS) - 1 - row
            alone = _encode(retriever, [text], side)
            _assert_equal(one, alone, f"{side}: padding or batch size changes the vectors")
            same = backwards.rows(slice(mirrored, mirrored + 1))
            _assert_equal(one, same, f"{side}: the order of the batch changes the vectors")
    _check_saving(retriever)
    _check_gradient(retriever)


def _encode(retriever: Any, texts: Sequence[Text], side: Side) -> Representation:
    # In bf16 the rounding differs with the shape of a batch.
    representation: Representation = retriever.encode(texts, side, precision="fp32")
    return representation


def _check_saving(retriever: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # So that what is not stored is found missing: a loaded pooler may start as this one did.
        with torch.no_grad():
            for parameter in retriever.pooler.parameters():
                parameter += 1.0
        retriever.save(folder)
        # With another seed, so that what is drawn and not stored is found missing too.
        loaded = type(retriever).load(folder, device="cpu", seed=1)
    side: Side
    for side in ("query", "document"):
        before, after = _encode(retriever, _TEXTS, side), _encode(loaded, _TEXTS, side)
        _assert_equal(before, after, f"{side}: saving and loading change the vectors")


def _check_gradient(retriever: Any) -> None:
    retriever.train()
    tower = retriever.tower("document")
    side: Side
    total = torch.zeros(())
    for side in ("query", "document"):
        batch = tower.collate(tower.tokenize(_TEXTS, side), side)
        representation = retriever(batch, side)
        for tensor in (representation.vectors, representation.weights):
            if tensor is not None:
                total = total + tensor.float().sum()
    assert total.requires_grad, "no gradient reaches the encoder"
    torch.autograd.backward(total)
    reached = [parameter for parameter in tower.parameters() if parameter.grad is not None]
    assert reached, "no gradient reaches the encoder"
    retriever.zero_grad()
    retriever.eval()


def _values(representation: Representation) -> torch.Tensor:
    """All values, masked vectors left out."""
    vectors, mask, weights = representation.vectors, representation.vector_mask, representation.weights
    parts = [] if vectors is None else [vectors if mask is None else vectors[mask]]
    parts += [] if weights is None else [weights]
    return torch.cat([part.reshape(-1) for part in parts])


def _assert_equal(one: Representation, other: Representation, message: str) -> None:
    """Equal up to the rounding of another batch shape."""
    torch.testing.assert_close(_values(one), _values(other), rtol=1e-4, atol=1e-5, msg=message)
