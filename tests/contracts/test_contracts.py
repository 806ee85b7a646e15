"""Data types that flow between components."""

from __future__ import annotations

import pytest
import torch

from retrievalkit.contracts import EncoderInfo, Needs, Representation, absolute_layer
from retrievalkit.errors import UnsupportedError

INFO = EncoderInfo(width=4, layers=12, vocabulary_size=10)


@pytest.mark.parametrize(
    ("layer", "absolute"), [(0, 0), (12, 12), (-1, 12), (-3, 10), (-13, 0), (13, None), (-14, None)]
)
def test_layers_are_counted_from_the_embeddings_or_from_the_last(layer, absolute):
    if absolute is not None:
        assert absolute_layer(layer, INFO) == absolute
        return
    with pytest.raises(UnsupportedError, match=rf"layer {layer} does not exist: .* 0 \(embeddings\) to 12"):
        absolute_layer(layer, INFO)


def test_needed_layers_are_ascending_and_distinct_and_may_differ_by_side():
    assert Needs(layers=(-1, 3, 12)).layers_of("query", INFO) == (3, 12)
    needs = Needs(layers={"query": (-1,), "document": (10, -1)})
    assert (needs.layers_of("query", INFO), needs.layers_of("document", INFO)) == ((12,), (10, 12))


@pytest.mark.parametrize("vectors", [None, torch.zeros(2, 3)])
def test_a_representation_needs_three_dimensional_vectors_or_weights(vectors):
    with pytest.raises(ValueError, match=r"vectors.* .batch, m, dim."):
        Representation(vectors)


def representation(rows, m=2, *, mask=False, weights=False, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    return Representation(
        torch.randn(rows, m, 4, generator=generator),
        torch.ones(rows, m, dtype=torch.bool) if mask else None,
        torch.rand(rows, 10, generator=generator) if weights else None,
        **more,
    )


def test_rows_selects_the_same_texts_of_every_tensor():
    whole = representation(5, mask=True, weights=True, kept=1, parts={"cls": slice(0, 2)})
    for index in (slice(1, 4), torch.tensor([4, 0])):
        part = whole.rows(index)
        for name in ("vectors", "vector_mask", "weights"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[index])
        assert (part.kept, part.parts) == (1, {"cls": slice(0, 2)})


def test_concatenated_parts_have_the_rows_of_the_whole():
    whole = representation(6, weights=True, kept=0, parts={"cls": slice(0, 2)})
    parts = [whole.rows(slice(0, 1)), whole.rows(slice(1, 4)), whole.rows(slice(4, 6))]
    together = Representation.concatenate(parts)
    assert torch.equal(together.vectors, whole.vectors)
    assert (together.vector_mask, together.kept, together.parts) == (None, 0, {"cls": slice(0, 2)})
    without = Representation.concatenate([Representation(weights=part.weights) for part in parts])
    assert torch.equal(together.weights, whole.weights)
    assert torch.equal(without.weights, whole.weights)


def test_concatenation_pads_and_masks_texts_with_fewer_vectors():
    short, long = representation(1, m=1), representation(2, m=3, mask=True, seed=1)
    long.vector_mask[1, 2] = False
    for part in (short, long):
        part.vectors.requires_grad_()
    together = Representation.concatenate([short, long])
    assert together.vectors.shape == (3, 3, 4)
    assert together.vector_mask.tolist() == [[True, False, False], [True, True, True], [True, True, False]]
    assert torch.equal(together.vectors[:1, :1], short.vectors)
    assert torch.equal(together.vectors[1:], long.vectors)
    assert not together.vectors[0, 1:].any()
    together.vectors.sum().backward()
    assert all(torch.equal(part.vectors.grad, torch.ones_like(part.vectors)) for part in (short, long))
