"""What the plugin registers, its options, and that looking at it imports nothing heavy."""

from __future__ import annotations

import pytest

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo
from retrievalkit.errors import OptionError, UnsupportedError


def test_defaults_are_the_papers():
    """Both views, 768 weights, no projection; one cross entropy, temperature 1, and 0.002 for each side's FLOPS."""
    pooler = registry.options(registry.get("pooler", "dense_sparse"))
    assert {name: option.default for name, option in pooler.items()} == {
        "views": "both",
        "top_k": 768,
        "pooled_tokens": "text",
        "sparse_head": "complete",
        "dimension": None,
        "layers": None,
        "keep": "all",
        "normalize": False,
    }
    shared = {
        "flops_query": 0.002,
        "flops_document": 0.002,
        "query_regularizer": "flops",
        "schedule": "constant",
        "schedule_steps": 50_000,
    }
    for name, own in (("dense_sparse", {"views": "summed", "temperature": 1.0}), ("flops", {})):
        options = registry.options(registry.get("loss", name))
        assert {one: option.default for one, option in options.items()} == own | shared


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"views": "lexical"}, OptionError, "'lexical'"),
        ({"top_k": 0}, OptionError, "option 'top_k' of pooler 'dense_sparse' cannot be 0"),
        ({"top_k": -5, "views": "dense"}, OptionError, "'top_k' .* cannot be -5"),
        ({"top_k": 12}, OptionError, "top_k is 12.*vocabulary has 11 terms.*top_k=11 or less"),
        ({}, OptionError, "top_k is 768.*vocabulary has 11 terms"),
        ({"top_k": 3, "dimension": 0}, OptionError, "'dimension' .* cannot be 0"),
        ({"top_k": 3, "layers": "2,9"}, UnsupportedError, "layer 9 .* 0 .embeddings. to 3"),
        ({"top_k": 3, "layers": "3,-1"}, OptionError, "layers=3,-1 names one layer twice"),
        ({"top_k": 3, "layers": ""}, OptionError, "names no layer"),
        ({"top_k": 3, "layers": "2,1", "keep": "last"}, UnsupportedError, r"last layer \(3\).*layers=2,1,-1"),
        ({"top_k": 3, "keep": "first"}, OptionError, "'first'"),
        ({"top_k": 3, "pooled_tokens": "some"}, OptionError, "'some'"),
        ({"topk": 3}, OptionError, "did you mean 'top_k'"),
    ],
)
def test_wrong_pooler_options(options, error, message, info):
    """What cannot be is refused when the pooler is made, with the value and what is known."""
    with pytest.raises(error, match=message):
        registry.create("pooler", "dense_sparse", info, **options)


@pytest.mark.parametrize(
    ("views", "option", "value"),
    [
        ("sparse", "dimension", 2),
        ("sparse", "layers", (1, 3)),
        ("sparse", "keep", "last"),
        ("sparse", "normalize", True),
        ("dense", "pooled_tokens", "all"),
        ("dense", "sparse_head", "projection"),
    ],
)
def test_options_of_a_view_that_is_not_there_are_refused(views, option, value, info):
    """They would have no effect; with both views they are fine."""
    with pytest.raises(OptionError, match=f"{option}=.* would have no effect with views={views}"):
        registry.create("pooler", "dense_sparse", info, views=views, top_k=3, **{option: value})
    registry.create("pooler", "dense_sparse", info, top_k=3, **{option: value})


def test_top_k_does_not_matter_without_weights():
    """It always has a value, so with views=dense it stands idle, also for a model without a vocabulary."""
    registry.create("pooler", "dense_sparse", EncoderInfo(4, 2, 0), views="dense")


@pytest.mark.parametrize("name", ["dense_sparse", "flops"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flops_query": -0.1}, "'flops_query' .* cannot be -0.1"),
        ({"flops_document": float("nan")}, "'flops_document' .* cannot be nan"),
        ({"schedule": "quadratic", "schedule_steps": 0}, "'schedule_steps' .* cannot be 0"),
        ({"schedule_steps": 100}, "schedule_steps=100 would have no effect with schedule=constant"),
        ({"schedule": "linear"}, "'linear'"),
        ({"query_regularizer": "l2"}, "'l2'"),
        ({"flops": 1}, "has no option 'flops'"),
    ],
)
def test_wrong_regularizer_options(name, options, message):
    """Values that make no regulariser are refused by name, by both losses alike."""
    with pytest.raises(OptionError, match=message):
        registry.create("loss", name, **options)
