"""A pretrained model with or without its vocabulary head: which class loads it, and what the head is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import transformers
from torch import Tensor, nn
from transformers.activations import ACT2FN

from retrievalkit.contracts import Batch, LayerShape, VocabularyHead
from retrievalkit.errors import UnsupportedError

_WITH_DENSE = ("lm_head.dense", "gelu", "lm_head.layer_norm")

# What stands between the hidden states and the projection to the vocabulary: modules, or names of activations.
_TRANSFORMS: dict[str, tuple[str, ...]] = {
    "albert": ("predictions.dense", "predictions.activation", "predictions.LayerNorm"),
    "bert": ("cls.predictions.transform",),
    "camembert": _WITH_DENSE,
    "deberta-v2": ("cls.predictions.transform",),
    "distilbert": ("vocab_transform", "activation", "vocab_layer_norm"),
    "electra": ("generator_predictions",),
    "modernbert": ("head",),
    "mpnet": _WITH_DENSE,
    "roberta": _WITH_DENSE,
    "xlm-roberta": _WITH_DENSE,
}


def model_class(config: Any, *, vocabulary_head: bool) -> Any:
    """The class of transformers that loads a model.

    Args:
        config: The model's configuration.
        vocabulary_head: Whether its head is wanted too.

    Raises:
        UnsupportedError: The architecture has no vocabulary head, or one that is not known here.
    """
    if not vocabulary_head:
        # Encoder-decoder models (T5) have a class for the encoder alone; AutoModel would want the decoder too.
        encoders = transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
        return transformers.AutoModelForTextEncoding if type(config) in encoders else transformers.AutoModel
    if config.model_type in _TRANSFORMS:
        return transformers.AutoModelForMaskedLM
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder:
        return transformers.AutoModelForCausalLM
    known = ", ".join(sorted(_TRANSFORMS))
    msg = (
        f"what is asked for needs a vocabulary head, and the architecture '{config.model_type}' has none that is known "
        f"here (known: {known}, and decoder-only models). Choose another model, or a pooler that needs no head."
    )
    raise UnsupportedError(msg)


def vocabulary_head(model: Any, model_type: str) -> VocabularyHead:
    """The head of a model that `model_class` loaded with one."""
    projection: nn.Linear = model.get_output_embeddings()
    parts = [_part(model, name) for name in _TRANSFORMS.get(model_type, ())]

    def transform(hidden: Tensor) -> Tensor:
        transformed: Tensor = reduce(lambda states, part: part(states), parts, hidden)
        return transformed

    return VocabularyHead(transform, projection.weight, projection.bias)


def head_weights(names: Iterable[str], model: Any) -> list[str]:
    """Those of a model's tensor names that belong to its vocabulary head."""
    inside = f"{model.base_model_prefix}."
    return [name for name in names if not name.startswith(inside)]


def _part(model: nn.Module, name: str) -> Callable[[Tensor], Tensor]:
    if name in ACT2FN:
        activation: Callable[[Tensor], Tensor] = ACT2FN[name]
        return activation
    return model.get_submodule(name)


def embed(backbone: Any, batch: Batch) -> Tensor:
    """(batch, tokens, width): what the first layer of a model is given, so its layer 0.

    Raises:
        UnsupportedError: The architecture keeps no embeddings module apart from its layers.
    """
    kind = backbone.config.model_type
    if not hasattr(backbone, "embeddings"):
        msg = f"embeddings are needed apart from the layers, and the architecture '{kind}' has no module for them."
        raise UnsupportedError(msg)
    masked = {"mask": batch.attention_mask} if kind == "deberta-v2" else {}
    states: Tensor = backbone.embeddings(input_ids=batch.input_ids, **masked)
    # Where embeddings are narrower than the layers.
    if hasattr(backbone, "embeddings_project"):
        states = backbone.embeddings_project(states)
    if kind == "albert":
        states = backbone.encoder.embedding_hidden_mapping_in(states)
    return states


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
