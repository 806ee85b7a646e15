"""What the plugin registers, which options it refuses, and that looking at it imports nothing heavy."""

from __future__ import annotations

import pytest

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo
from retrievalkit.errors import OptionError, UnsupportedError

SMALL = {"cls_dim": 3, "agg_dim": 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agg_dim": 21}, r"agg_dim is 21: .* has 40\. Set agg_dim to 20 or less"),
        ({"agg_dim": 640}, r"agg_dim is 640: .* has 40\. Set agg_dim to 20 or less"),
        ({"agg_dim": 41, "aggregation": "semi"}, r"agg_dim is 41: .* has 40\. Set agg_dim to 40 or less"),
        ({"agg_dim": 41, "aggregation": "linear"}, r"agg_dim is 41: .* has 40\. Set agg_dim to 40 or less"),
        ({"cls_dim": 0, "agg_dim": 0}, "cls_dim and agg_dim are both 0"),
        ({"cls_dim": -1}, "cannot be -1"),
        ({"agg_dim": -1}, "cannot be -1"),
        ({"agg_dim": "all"}, "cannot be 'all'"),
        ({"aggregation": "half"}, "cannot be 'half'"),
        (
            {"agg_dim": "vocabulary", "aggregation": "linear"},
            "aggregation=linear has no effect with agg_dim=vocabulary",
        ),
        ({"agg_dim": "vocabulary", "slices": "seeded"}, "slices=seeded has no effect with agg_dim=vocabulary"),
        ({"agg_dim": 0, "term_weight": "none"}, "term_weight=none has no effect with agg_dim=0"),
        ({"agg_dim": 0, "vocabulary_head": False}, "vocabulary_head=false has no effect with agg_dim=0"),
        ({"aggregation": "average", "term_weight": "none"}, "term_weight=none has no effect .*aggregation=average"),
        ({"aggregation": "average", "vocabulary_head": False}, "vocabulary_head=false has no effect"),
        ({"aggregation": "linear", "slices": "seeded"}, "slices=seeded has no effect .*aggregation=linear"),
        ({"slices": "same_as_star"}, "slices=same_as_star has no effect .*aggregation=full"),
        ({"slice_seed": 1}, "slice_seed=1 has no effect with slices=strided"),
        ({"aggregation": "linear", "remainder": "pad"}, "remainder=pad has no effect"),
        ({"drop_limit": 3}, "drop_limit=3 has no effect with .*remainder=auto"),
        ({"padding": "released"}, "padding=released has no effect with .*term_weight=abs, vocabulary_head=true"),
        (
            {"vocabulary_head": False, "pooled_tokens": "text", "padding": "released"},
            "padding=released has no effect with .*vocabulary_head=false, pooled_tokens=text",
        ),
        ({"vocabulary_head": False, "head": "projection"}, "head=projection has no effect .*vocabulary_head=false"),
        ({"aggregation": "average", "head": "projection"}, "head=projection has no effect .*aggregation=average"),
        ({"agg_dim": 0, "pooled_tokens": "text"}, "pooled_tokens=text has no effect with agg_dim=0"),
        ({"cls_dim": 0, "term_weight": "none", "vocabulary_head": False}, "reduce a text to the set of its words"),
        ({"layers": "3,-1"}, "layers=3,-1 names one layer twice"),
        ({"layers": ""}, "names no layer"),
        ({"agg": 3}, "did you mean 'agg_dim'"),
    ],
)
def test_wrong_options(options, message, info):
    """What cannot be, or would have no effect, is refused when the pooler is made."""
    with pytest.raises(OptionError, match=message):
        registry.create("pooler", "aggretriever", info, **(SMALL | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "9"}, "layer 9 .* 0 .embeddings. to 3"),
        ({"layers": "1,2", "keep": "last"}, r"keep=last needs the last layer \(3\).*1,2,-1"),
    ],
)
def test_layers_that_are_not_there(options, message, info):
    with pytest.raises(UnsupportedError, match=message):
        registry.create("pooler", "aggretriever", info, **(SMALL | options))


PAPER = [
    ({"cls_dim": 768, "agg_dim": 0}, 768),
    ({"cls_dim": 640, "agg_dim": 128}, 768),
    ({}, 768),
    ({"cls_dim": 0, "agg_dim": 768}, 768),
    ({"cls_dim": 768, "agg_dim": 768}, 1536),
    ({"cls_dim": 128, "agg_dim": 128}, 256),
    ({"cls_dim": 0, "agg_dim": "vocabulary"}, 30_522),
    ({"term_weight": "none"}, 768),
    ({"vocabulary_head": False}, 768),
    ({"aggregation": "semi"}, 768),
    ({"aggregation": "linear"}, 768),
    ({"aggregation": "average"}, 768),
]


@pytest.mark.parametrize(("options", "size"), PAPER)
def test_every_row_of_the_papers_tables_is_a_setting(options, size):
    """Tables 7 and 8, for BERT base."""
    pooler = registry.create("pooler", "aggretriever", EncoderInfo(768, 12, 30_522), **options)
    assert max(part.stop for part in pooler.parts.values()) == size
