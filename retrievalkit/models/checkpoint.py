"""Checkpoint folders: files, fingerprints, descriptions of the parts, and errors about damage.

    retrievalkit.json        names, options and versions of the parts
    pooler.safetensors       the pooler's weights
    encoder/                 the encoder of both sides, or
    query/ document/         an encoder for each side

Does not import torch: a search starts here before it loads anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from retrievalkit import registry, storage
from retrievalkit.errors import ArtifactError, LengthError, UnknownNameError
from retrievalkit.models.pretrained import download_model, model_file, model_fingerprint
from retrievalkit.reporting import notices
from retrievalkit.storage import NOT_WEIGHTS

CONFIGURATION = "retrievalkit.json"
POOLER_WEIGHTS = "pooler.safetensors"
DO = "Copy the checkpoint again, or train it again."

UNTRAINED = ("model", "pooling")
"""Entries in the description of untrained retrievers only; checkpoints do not need them."""

LENGTHS = ("query_length", "document_length")
"""Options of an encoder that may differ from the checkpoint's: its weights fit any length."""


def is_checkpoint(model: str | Path) -> bool:
    """True if a model is a checkpoint folder of ours, not a pretrained model."""
    return (Path(model) / CONFIGURATION).is_file()


def checkpoint_folder(model: str | Path) -> str:
    """Return a model unchanged, or if it is a checkpoint on the hub, its downloaded folder."""
    name = str(model)
    if os.path.exists(name) or name.startswith("package:") or model_file(name, CONFIGURATION) is None:
        return name
    return download_model(name, (CONFIGURATION, POOLER_WEIGHTS, "encoder/*", "query/*", "document/*"))


def read_checkpoint(folder: str | Path) -> tuple[dict[str, Any], str]:
    """Return the description of a checkpoint (names, options and versions of its parts), and its fingerprint."""
    from retrievalkit.storage.schemas import Description

    path = Path(folder) / CONFIGURATION
    if not path.is_file():
        msg = f"'{folder}' is not a checkpoint: it has no {CONFIGURATION}. 'rkit train' writes one."
        raise ArtifactError(msg)
    fingerprint = checkpoint_fingerprint(folder)
    return storage.read_json(path, Description, do=DO), fingerprint


def checkpoint_fingerprint(folder: str | Path) -> str:
    """Check a checkpoint's weights and configuration, and return their fingerprint."""
    return storage.checked_fingerprint(folder, "checkpoint", skip=NOT_WEIGHTS, remedy=DO)


def untrained_fingerprint(description: Mapping[str, Any], model: str) -> str:
    """Return the fingerprint of an untrained retriever: its parts with their options, and its model's files."""
    parts = {name: value for name, value in description.items() if name not in UNTRAINED}
    return storage.fingerprint_value([parts, model_fingerprint(model)])


def note_untrained_dimensions(model: str | Path, dimensions: int | None) -> None:
    """Warn if a checkpoint's vectors are truncated to a size that its loss `matryoshka` did not train."""
    if dimensions is None or not is_checkpoint(model):
        return
    # A checkpoint from the hub has no manifest.
    entry: Any = storage.read_manifest(model, "checkpoint") if storage.kind_of(model) else None
    for name in ("options", "loss", "options", "matryoshka", "dimensions"):
        entry = entry.get(name) if isinstance(entry, Mapping) else None
    if dimensions not in (entry or ()):
        trained = f"for {', '.join(map(str, entry))}" if entry else "without --loss 'matryoshka(...)'"
        truncated = f"the vectors of '{model}' are truncated to {dimensions} dimensions, and were trained {trained}"
        notices.note(f"{truncated}. Searches may be worse than with whole vectors.")


@contextmanager
def damage_explained(folder: Path) -> Iterator[None]:
    """Turn exceptions from damaged weights into an error that names the checkpoint."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        msg = f"the checkpoint '{folder}' is damaged: {' '.join(str(error).split())} Copy it or train it again."
        raise ArtifactError(msg) from error


@contextmanager
def length_explained() -> Iterator[None]:
    """Make errors about unsupported lengths name the `--set` option, for commands without a flag."""
    try:
        yield
    except LengthError as error:
        option = f"encoder.{error.option}"
        raise error.of_option(option) from error


@contextmanager
def missing_plugins_explained(description: Mapping[str, Any], where: str | Path) -> Iterator[None]:
    """Turn "unknown pooler" into an error that names the distribution and version to install."""
    try:
        yield
    except UnknownNameError as error:
        if error.kind not in description:
            raise
        part = description[error.kind]
        msg = f"'{where}' needs the {error.kind} '{part['name']}' {registry.missing(part)}"
        raise ArtifactError(msg) from error
