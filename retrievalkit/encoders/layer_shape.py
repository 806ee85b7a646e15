"""What the layers of a pretrained model are made of, read from its configuration."""

from __future__ import annotations

from typing import Any

from transformers.activations import ACT2FN

from retrievalkit.contracts import LayerShape

# What architectures call the same; the first name that is there counts.
_INNER = ("intermediate_size", "hidden_dim", "d_ff")
_ACTIVATION = ("hidden_act", "hidden_activation", "activation", "dense_act_fn")
_DROPOUT = ("hidden_dropout_prob", "dropout", "dropout_rate", "mlp_dropout")
_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout", "dropout_rate")


def layer_shape(config: Any) -> LayerShape:
    """The shape of the layers of a model of transformers; what its configuration leaves out is as GPT-2 has it."""
    return LayerShape(
        heads=config.num_attention_heads,
        inner=_first(config, _INNER, 4 * config.hidden_size),
        activation=ACT2FN[_first(config, _ACTIVATION, "gelu")],
        dropout=_first(config, _DROPOUT, 0.0),
        attention_dropout=_first(config, _ATTENTION_DROPOUT, 0.0),
    )


def _first(config: Any, names: tuple[str, ...], otherwise: Any) -> Any:
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if value is not None), otherwise)
