"""The embeddings of a pretrained model alone, without its layers: words, positions and token types, normalised."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from retrievalkit.contracts import Batch
from retrievalkit.errors import UnsupportedError


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
