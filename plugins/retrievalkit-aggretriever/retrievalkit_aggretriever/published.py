"""Projections that published Aggretriever checkpoints store with the model, in either of two layouts.

castorini/aggretriever-*    one weights file (model.safetensors or pytorch_model.bin) with the model under the
                            prefix "encoder.", and cls_proj.{weight,bias}, tok_proj.{weight,bias}
castorini/dhr, as trained   a Hugging Face folder, with pooler.pt ([CLS]) and TermWeightTrans.pt (token weights),
                            each with linear_q.{weight,bias} and linear_p.{weight,bias}, equal for a tied encoder
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from retrievalkit.contracts import Encoder
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError

Tensors = dict[str, Tensor]
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_IN_WEIGHTS = {"cls": "cls_proj", "term": "tok_proj"}
_SEPARATE_FILES = {"cls": "pooler.pt", "term": "TermWeightTrans.pt"}
_OPTIONS = {"cls": "cls_dim=0", "term": "term_weight=none"}
_MEANING = {"cls": "of [CLS]", "term": "to token weights"}


def load_projections(encoder: Encoder, wanted: Mapping[str, nn.Linear | None]) -> None:
    """Load the projections stored with an encoder's model; without any, nothing changes.

    Args:
        encoder: An encoder whose model may be an Aggretriever checkpoint.
        wanted: The projections of the parts "cls" and "term" to fill; None for an unused part.

    Raises:
        ArtifactError: A file cannot be read.
        OptionError: The checkpoint lacks a projection, or stores it in another size.
        UnsupportedError: The checkpoint has different projections for queries and passages.
    """
    published = _published(encoder)
    if not published:
        return
    for part, projection in wanted.items():
        if projection is not None:
            _check_shape(part, published.get(part), projection)
            projection.load_state_dict(published[part])


def _published(encoder: Encoder) -> dict[str, Tensors]:
    """Return the projections by part; empty if the model is not an Aggretriever checkpoint."""
    # Both layouts always have token weights, and other checkpoints never do.
    if path := encoder.file(_SEPARATE_FILES["term"]):
        files = {part: encoder.file(name) for part, name in _SEPARATE_FILES.items()}
        return {part: _tied(file) for part, file in (files | {"term": path}).items() if file}
    path = next(filter(None, map(encoder.file, _WEIGHTS)), None)
    tensors = {} if path is None else _read(path, tuple(f"{prefix}." for prefix in _IN_WEIGHTS.values()))
    if f"{_IN_WEIGHTS['term']}.weight" not in tensors:
        return {}
    parts = {part: _under(f"{prefix}.", tensors) for part, prefix in _IN_WEIGHTS.items()}
    return {part: of_part for part, of_part in parts.items() if of_part}


def _tied(path: Path) -> Tensors:
    """Return the projection of a file that stores it twice, for queries and for passages."""
    tensors = _read(path)
    query, passage = _under("linear_q.", tensors), _under("linear_p.", tensors)
    if any(not torch.equal(query[name], other) for name, other in passage.items() if name in query):
        msg = (
            f"'{path}' has separate projections for queries and passages (an untied encoder), but this pooler has one "
            f"for both. Use a checkpoint of a tied encoder, or set projections=new."
        )
        raise UnsupportedError(msg)
    return query


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor.float() for name, tensor in tensors.items() if name.startswith(prefix)}


def _read(path: Path, prefixes: tuple[str, ...] = ("",)) -> Tensors:
    """Return the tensors of a file whose names have a prefix; only tensors are ever unpickled."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefixes)}  # noqa: SIM118
        loaded: Tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor for name, tensor in loaded.items() if name.startswith(prefixes)}
    except Exception as error:  # torch may raise anything at bytes that are not a pickle of tensors
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        msg = f"'{path}' is not a file of named tensors ({reason}). Copy the checkpoint again."
        raise ArtifactError(msg) from error


def _check_shape(part: str, tensors: Tensors | None, projection: nn.Linear) -> None:
    """Refuse a projection that would stay random, or has another shape."""
    if not tensors:
        msg = f"the model is an Aggretriever checkpoint without a projection {_MEANING[part]}. Set {_OPTIONS[part]}."
        raise OptionError(msg)
    stored, wanted = tuple(tensors["weight"].shape), tuple(projection.weight.shape)
    if stored != wanted:
        advice = f"cls_dim={stored[0]}" if part == "cls" else "projections=new"
        msg = (
            f"the model is an Aggretriever checkpoint, whose projection {_MEANING[part]} has the shape {stored} "
            f"instead of {wanted}. Set {advice}."
        )
        raise OptionError(msg)
