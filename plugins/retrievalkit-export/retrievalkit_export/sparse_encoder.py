"""A sentence-transformers SparseEncoder: a masked language model, and SPLADE pooling of its logits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from retrievalkit_export.card import Written
from retrievalkit_export.folders import ModuleFolders, transformer_settings
from retrievalkit_export.forms import check_encoder, refuse, states_of, title_note, write_encoder

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

_NAME = "sparse-encoder"
_POOLING = "sentence_transformers.sparse_encoder.models.SpladePooling"
_TRANSFORMER = "sentence_transformers.sparse_encoder.models.MLMTransformer"
_EXAMPLE = """\
from sentence_transformers import SparseEncoder

model = SparseEncoder("FOLDER")
scores = model.similarity(model.encode_query(["a question"]), model.encode_document(["a passage"]))"""


def write(retriever: Retriever, folder: Path) -> Written:
    """Write the model's folder.

    Raises:
        UnsupportedError: The checkpoint does not compute SPLADE weights.
    """
    check_splade(retriever, _NAME)
    encoder = check_encoder(retriever, _NAME)
    write_encoder(retriever, "document", folder)
    settings, notes = transformer_settings(encoder.lengths)
    modules = ModuleFolders(folder, _TRANSFORMER, settings)
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": None}
    modules.add(_POOLING, pooling)
    most = getattr(retriever.pooler, "top_k", None)
    limit = {} if most is None else {"max_active_dims": most}
    modules.finish(encoder, model_type="SparseEncoder", similarity_fn_name="dot", **limit)
    tags = ["sentence-transformers", "sparse-encoder", "sparse", "splade", "feature-extraction"]
    return Written(
        library="sentence-transformers",
        example=_EXAMPLE,
        notes=[*notes, title_note(encoder.title, "SparseEncoder")],
        tags=tags,
    )


@torch.no_grad()
def check_splade(retriever: Retriever, target: str) -> None:
    """Refuse a checkpoint whose weights are not the maximum of log(1 + relu(logit)) over all tokens of a text.

    Raises:
        UnsupportedError: They are not, or texts also have vectors.
    """
    name = retriever.description["pooler"]["name"]
    for side in ("query", "document"):
        batch, states = states_of(retriever, side)  # type: ignore[arg-type]
        pooled = retriever.pooler(states, side)
        if pooled.weights is None:
            refuse(target, f"its pooler '{name}' computes vectors, but the target needs weights over the vocabulary")
        if pooled.vectors is not None:
            refuse(
                target,
                f"its pooler '{name}' computes a vector in addition to the weights, which the target does not support",
            )
        assert states.head is not None
        logits = states.head(states.last) * batch.attention_mask[:, :, None]
        expected = logits.relu().log1p().amax(dim=1)
        if (most := getattr(retriever.pooler, "top_k", None)) is not None:
            least = expected.topk(min(most, expected.shape[1]), dim=1).values[:, -1:]
            expected = expected.where(expected >= least, 0.0)
        if not torch.allclose(pooled.weights.float(), expected, rtol=1e-3, atol=1e-3):
            problem = (
                f"the weights of its pooler '{name}' are not SPLADE's, which pools over all tokens, also [CLS] and"
            )
            refuse(target, f"{problem} [SEP], with the whole vocabulary head (pooled_tokens=all, sparse_head=complete)")
