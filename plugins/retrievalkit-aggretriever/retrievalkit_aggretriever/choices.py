"""Which options of the pooler can be combined; an option without effect is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrievalkit.errors import OptionError
from retrievalkit_aggretriever.slices import drops

# For each option the others that decide whether it has an effect.
_DECIDED_BY = {
    "aggregation": ("agg_dim",),
    "term_weight": ("agg_dim", "aggregation"),
    "vocabulary_head": ("agg_dim", "aggregation"),
    "head": ("agg_dim", "aggregation", "vocabulary_head"),
    "pooled_tokens": ("agg_dim",),
    "slices": ("agg_dim", "aggregation"),
    "slice_seed": ("slices",),
    "remainder": ("agg_dim", "aggregation"),
    "drop_limit": ("agg_dim", "aggregation", "remainder"),
    "padding": ("agg_dim", "aggregation", "term_weight", "vocabulary_head", "pooled_tokens"),
}


def check(options: Mapping[str, Any], defaults: Mapping[str, Any], vocabulary: int) -> None:
    """Refuse options that give an empty vector, leave nothing to train, or have no effect with the others.

    Raises:
        OptionError: Names the options, and what to do.
    """
    if options["cls_dim"] == 0 and options["agg_dim"] == 0:
        msg = "cls_dim and agg_dim are both 0, so that nothing is left of a text. Set one of them."
        raise OptionError(msg)
    for name, has_effect in _effects(options, vocabulary).items():
        if not has_effect and options[name] != defaults[name]:
            others = ", ".join(f"{other}={_shown(options[other])}" for other in _DECIDED_BY[name])
            msg = f"{name}={_shown(options[name])} has no effect with {others}. Leave it out."
            raise OptionError(msg)
    if (options["cls_dim"], options["term_weight"], options["vocabulary_head"]) == (0, "none", False):
        msg = (
            "term_weight=none and vocabulary_head=false reduce a text to the set of its words, which no training "
            "changes, and cls_dim=0 leaves nothing else. Set cls_dim, or another term_weight."
        )
        raise OptionError(msg)


def _effects(options: Mapping[str, Any], vocabulary: int) -> dict[str, bool]:
    """Which options have an effect."""
    agg_dim, aggregation = options["agg_dim"], options["aggregation"]
    terms = agg_dim != 0 and aggregation != "average"
    sliced = terms and agg_dim != "vocabulary" and aggregation in ("full", "semi")
    return {
        "aggregation": agg_dim not in (0, "vocabulary"),
        "term_weight": terms,
        "vocabulary_head": terms,
        "head": terms and options["vocabulary_head"],
        "pooled_tokens": agg_dim != 0,
        # full is agg*, so same_as_star is what it does anyway.
        "slices": sliced and (options["slices"], aggregation) != ("same_as_star", "full"),
        "slice_seed": options["slices"] == "seeded",
        "remainder": sliced,
        "drop_limit": sliced and drops(vocabulary, options["remainder"]),
        "padding": terms and _padding_counts(options),
    }


def _padding_counts(options: Mapping[str, Any]) -> bool:
    """Whether the released code's padding changes a vector."""
    if options["vocabulary_head"]:
        # With other weights no value is below 0.
        return bool(options["term_weight"] == "signed")
    return bool(options["pooled_tokens"] == "all")


def _shown(value: Any) -> str:
    """A value as users type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
