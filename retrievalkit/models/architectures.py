"""Differences between the architectures of transformers, by `config.model_type`, and between their configurations."""

from __future__ import annotations

from functools import reduce
from typing import Any

from torch import Tensor, nn

from retrievalkit.contracts import Batch, LayerShape, VocabularyHead
from retrievalkit.errors import UnsupportedError

_WITH_DENSE = ("lm_head.dense", "gelu", "lm_head.layer_norm")

# The path from the hidden states to the projection to the vocabulary: names of modules, or of activations.
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

# Architectures whose position numbers start after the padding id.
_LIKE_ROBERTA = ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "longformer", "xmod")

_ENDLESS = 1_000_000


def model_class(config: Any, *, vocabulary_head: bool) -> Any:
    """Return the class of transformers that loads a model, with or without its vocabulary head."""
    import transformers

    if not vocabulary_head:
        # Encoder-decoder models (T5) have a class for only the encoder; AutoModel would need the decoder too.
        encoders = transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
        return transformers.AutoModelForTextEncoding if type(config) in encoders else transformers.AutoModel
    if config.model_type in _TRANSFORMS:
        return transformers.AutoModelForMaskedLM
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder:
        return transformers.AutoModelForCausalLM
    known = f"Supported: {', '.join(sorted(_TRANSFORMS))}, and decoder-only models"
    msg = f"the vocabulary head of the architecture '{config.model_type}' is not supported. {known}."
    raise UnsupportedError(msg)


def vocabulary_head(model: Any, model_type: str) -> VocabularyHead:
    """Return the vocabulary head of a model that `model_class` loaded with it."""
    from transformers.activations import ACT2FN

    projection: nn.Linear = model.get_output_embeddings()
    names = _TRANSFORMS.get(model_type, ())
    parts = [ACT2FN[name] if name in ACT2FN else model.get_submodule(name) for name in names]

    def transform(hidden: Tensor) -> Tensor:
        transformed: Tensor = reduce(lambda states, part: part(states), parts, hidden)
        return transformed

    return VocabularyHead(transform, projection.weight, projection.bias)


def embed(backbone: Any, batch: Batch) -> Tensor:
    """Return the input of a model's first layer (layer 0), (batch, tokens, width)."""
    kind = backbone.config.model_type
    if not hasattr(backbone, "embeddings"):
        msg = f"embeddings without the layers are not supported for the architecture '{kind}'. Choose another model."
        raise UnsupportedError(msg)
    mask = {"mask": batch.attention_mask} if kind == "deberta-v2" else {}
    states: Tensor = backbone.embeddings(input_ids=batch.input_ids, **mask)
    # In ELECTRA and ALBERT, embeddings may be narrower than the layers.
    if hasattr(backbone, "embeddings_project"):
        states = backbone.embeddings_project(states)
    if kind == "albert":
        states = backbone.encoder.embedding_hidden_mapping_in(states)
    return states


def layer_shape(config: Any) -> LayerShape:
    """Return the shape of a model's layers; settings missing from its configuration have GPT-2's defaults."""
    from transformers.activations import ACT2FN

    return LayerShape(
        heads=config.num_attention_heads,
        inner=_first(config, 4 * config.hidden_size, "intermediate_size", "hidden_dim", "d_ff"),
        activation=ACT2FN[_first(config, "gelu", "hidden_act", "hidden_activation", "activation", "dense_act_fn")],
        dropout=_first(config, 0.0, "hidden_dropout_prob", "dropout", "dropout_rate", "mlp_dropout"),
        attention_dropout=_first(config, 0.0, "attention_probs_dropout_prob", "attention_dropout", "dropout_rate"),
    )


def _first(config: Any, default: Any, *names: str) -> Any:
    """Return a setting that has different names in different configurations."""
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if value is not None), default)


def longest_input(config: Any) -> int:
    """Return the maximum input length of a model, in tokens."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:  # relative positions (T5)
        return _ENDLESS
    return int(positions) - first_position(config)


def first_position(config: Any) -> int:
    """Return the number of the first position, which is not 0 in RoBERTa and related models."""
    # MPNet assumes the padding id 1, whatever its configuration.
    offsets = dict.fromkeys(_LIKE_ROBERTA, (config.pad_token_id or 0) + 1) | {"mpnet": 2}
    return offsets.get(config.model_type, 0)


def set_dropout(config: Any, probability: float) -> None:
    """Set every dropout probability of a configuration."""
    for name, value in list(vars(config).items()):
        if "dropout" in name and isinstance(value, int | float):
            setattr(config, name, probability)
