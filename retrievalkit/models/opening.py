"""Opening of checkpoints and pretrained models as retrievers. Imports torch only when a model is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit import storage
from retrievalkit.errors import ArtifactError, InputError
from retrievalkit.reporting import notices

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever


def open_retriever(
    model: str | Path,
    *,
    encoder: str | None = None,
    pooler: str | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    pooler_options: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> Retriever:
    """Open a checkpoint folder, or a pretrained model with a pooler, on the GPU if there is one.

    `retriever.encode(texts, side, precision=...)` returns the `Representation` of (title, text) pairs, as indexed;
    `retriever.pooler` is the pooler, `retriever.description` the names and options of the parts.

    Args:
        model: A checkpoint folder, or the name or folder of a pretrained model.
        encoder: Encoder for a pretrained model; refused for a checkpoint, as are the other options.
        pooler: Pooler for a pretrained model; None = the model's own settings, or [CLS] pooling.
        encoder_options: Options of the encoder; for a checkpoint, only lengths and attention.
        pooler_options: Options of the pooler.
        backend: Name of a backend, for encoding only; None = torch.

    Raises:
        InputError: The model does not exist, or a part was named for a checkpoint.
    """
    from retrievalkit.models.checkpoint import LENGTHS, checkpoint_folder, is_checkpoint, length_explained
    from retrievalkit.models.precision import default_device
    from retrievalkit.models.published import note_left_out
    from retrievalkit.models.retriever import Retriever

    model = checkpoint_folder(model)
    if is_checkpoint(model):
        refused = [f"--{name} {value}" for name, value in (("encoder", encoder), ("pooler", pooler)) if value]
        refused += [f"--set encoder.{name}" for name in encoder_options or {} if name not in (*LENGTHS, "attention")]
        refused += [f"--set pooler.{name}" for name in pooler_options or {}]
        if refused:
            problem = f"'{model}' is a checkpoint and holds its own encoder, pooler and options"
            remedy = "Its lengths alone may differ from training: --set encoder.document_length=512"
            msg = f"{problem}: drop {', '.join(refused)}. {remedy}"
            raise InputError(msg)
        with length_explained():
            return Retriever.load(model, backend=backend, encoder_options=encoder_options)
    if storage.kind_of(model) == "reranker":
        remedy = f"Use a checkpoint (rkit train) or a pretrained model, or re-rank with it: rkit rerank apply {model}"
        msg = f"'{model}' is a re-ranker, which scores pairs and computes no vectors. {remedy}"
        raise ArtifactError(msg)
    parent = Path(model).parent
    if Path(model).name in ("encoder", "query", "document") and is_checkpoint(parent):
        remedy = f"To encode as in training, use its checkpoint: '{parent}'"
        notices.note(f"'{model}' is an encoder without the pooler that it was trained with. {remedy}")
    note_left_out(model, encoder, pooler, encoder_options, pooler_options)
    with length_explained():
        retriever = Retriever.create(
            model,
            encoder=encoder or "transformer",
            pooler=pooler,
            encoder_options=encoder_options,
            pooler_options=pooler_options,
            backend=backend,
        )
    return retriever.to(default_device()).eval()


def describe_retriever(model: str | Path, retriever: Retriever) -> dict[str, Any]:
    """Return the manifest's entry for an encoding model; for an untrained model with its parts and options."""
    from retrievalkit.models.checkpoint import checkpoint_folder

    entry: dict[str, Any] = storage.describe_input(checkpoint_folder(model), retriever.fingerprint)
    if "model" in retriever.description:
        entry["description"] = retriever.description
    if retriever.changed:
        entry["encoder_options"] = retriever.changed
    if retriever.dimensions is not None:
        entry["dimensions"] = retriever.dimensions
    return entry
