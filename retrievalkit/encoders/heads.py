"""A pretrained model with or without its vocabulary head: which class loads it, and what the head is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import transformers
from torch import Tensor, nn
from transformers.activations import ACT2FN

from retrievalkit.contracts import VocabularyHead
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
