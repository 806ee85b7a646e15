"""Published models of late interaction: PyLate's, sentence-transformers' MultiVectorEncoder, and ColBERT's own.

PyLate puts a token such as "[Q] " behind the first one, fills queries with [MASK], and leaves out the vectors of
punctuation marks. Its linear layers without a function between them are one layer here.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from retrievalkit import artifacts
from retrievalkit.errors import ArtifactError
from retrievalkit.model.modules_json import Dense, Modules, lengths, prefixes
from retrievalkit.model.published import DO, OwnSettings, PublishedFiles

if TYPE_CHECKING:
    from torch import Tensor

_QUERY_LENGTH, _DOCUMENT_LENGTH = 32, 180
_ARCHITECTURE = "HF_ColBERT"
_METADATA = "artifact.metadata"
_PROJECTION = "linear.weight"
_MOST_WIDTH = 1 << 16


@dataclass(frozen=True)
class _Metadata:
    """The form of ColBERT's artifact.metadata, the entries that matter here."""

    dim: Annotated[int, Field(ge=1, le=_MOST_WIDTH)] = 128
    query_maxlen: int = _QUERY_LENGTH
    doc_maxlen: int = _DOCUMENT_LENGTH
    query_token_id: str = "[unused0]"
    doc_token_id: str = "[unused1]"
    attend_to_mask_tokens: bool = False
    mask_punctuation: bool = True
    similarity: str = "cosine"


def of_modules(modules: Modules) -> OwnSettings:
    """The settings of a model whose every token has a vector.

    Raises:
        UnsupportedError: A module or an option has no equivalent here.
    """
    files, kinds = modules.files, modules.kinds
    layers = modules.dense("token_embeddings")
    plain = ["Transformer", *["Dense"] * len(layers)]
    if not layers:
        files.refuse("no Dense: a projection would be random")
    if any(one.activation != "identity" for one in layers):
        files.refuse("a function after its Dense")
    if (similarity := modules.described.get("similarity_fn_name")) not in (None, "MaxSim", "maxsim"):
        files.refuse(f"the similarity {similarity}")
    if kinds == plain:
        of_queries, encoder_options = _of_pylate(modules)
        words = modules.described.get("skiplist_words")
        skipped = _ids(files, list(string.punctuation) if words is None else words, unknown=True)
    elif kinds == [*plain, "MultiVectorMask", "Normalize"] or kinds == [*plain, "Normalize", "MultiVectorMask"]:
        of_queries, encoder_options = _of_multi_vector_encoder(modules)
        mask = modules.configuration("MultiVectorMask")
        if mask.get("keep_only_token_ids") or mask.get("skiplist_tasks") not in (None, ["document"]):
            files.refuse("a MultiVectorMask for other tokens than those of documents")
        skipped = _ids(files, mask.get("skiplist_words") or [], unknown=False)
    else:
        files.refuse(f"the modules {', '.join(kinds)}")
    options = {
        "dimension": layers[-1].out_features,
        "bias": any(one.bias for one in layers),
        "skip_ids": skipped,
        **of_queries,
    }
    return OwnSettings("colbert", options, encoder_options, partial(_joined, layers))


def _of_pylate(modules: Modules) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the pooler and of the encoder, with PyLate's defaults."""
    says = modules.described
    filled = says.get("do_query_expansion") is not False
    markers = tuple(
        usual if says.get(name) is None else says[name]
        for name, usual in (("query_prefix", "[Q] "), ("document_prefix", "[D] "))
    )
    lengths(modules)  # refuses lower case
    of_queries = {
        "markers": any(markers),
        "marker_tokens": markers,
        "query_filled": filled,
        "fill_attended": filled and bool(says.get("attend_to_expansion_tokens")),
    }
    taken = {
        "query_length": says.get("query_length") or _QUERY_LENGTH,
        "document_length": says.get("document_length") or _DOCUMENT_LENGTH,
    }
    return of_queries, {**prefixes(modules), **taken}


def _of_multi_vector_encoder(modules: Modules) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the pooler and of the encoder; its prompts are texts like any other."""
    expansion = modules.transformer.get("query_expansion")
    taken = lengths(modules)
    if expansion is not None:
        if expansion["strategy"] != "fixed" or expansion.get("token"):
            modules.files.refuse("a query_expansion other than to a fixed length with mask tokens")
        taken["query_length"] = expansion["length"]
    of_queries = {
        "markers": False,
        "query_filled": expansion is not None,
        "fill_attended": bool(expansion and expansion.get("attend")),
    }
    return of_queries, {**prefixes(modules), **taken}


def of_colbert(files: PublishedFiles) -> OwnSettings | None:
    """The settings of a checkpoint of ColBERT's own code, such as ColBERTv2; None for any other model.

    Raises:
        UnsupportedError: It has no equivalent here.
        ArtifactError: A file is damaged.
    """
    if (path := files.path("config.json")) is None:
        return None
    config = artifacts.read_json(path, do=DO, nan=True)
    if not isinstance(config, dict) or config.get("architectures") != [_ARCHITECTURE]:
        return None
    says = files.read(_METADATA, _Metadata) or {}
    files = PublishedFiles(files.model, files.source, files.revision, "a ColBERT checkpoint")
    if says.get("similarity", "cosine") != "cosine":
        files.refuse(f"the similarity {says['similarity']}")
    options = {
        "dimension": says.get("dim", _Metadata.dim),
        "marker_tokens": (
            says.get("query_token_id", _Metadata.query_token_id),
            says.get("doc_token_id", _Metadata.doc_token_id),
        ),
        "fill_attended": says.get("attend_to_mask_tokens", False),
        "skip_punctuation": says.get("mask_punctuation", True),
    }
    taken = {
        "query_length": says.get("query_maxlen", _QUERY_LENGTH),
        "document_length": says.get("doc_maxlen", _DOCUMENT_LENGTH),
    }
    shape = options["dimension"], int(config.get("hidden_size", 768))
    return OwnSettings("colbert", options, taken, partial(_projection, files, shape), _METADATA)


def _projection(files: PublishedFiles, shape: tuple[int, int]) -> Mapping[str, Tensor]:
    return {"projection.weight": files.tensors("", {_PROJECTION: shape})[_PROJECTION]}


def _joined(layers: Sequence[Dense]) -> Mapping[str, Tensor]:
    """Linear layers one after the other as one layer."""
    import torch

    def join(below: tuple[Tensor, Tensor], layer: Dense) -> tuple[Tensor, Tensor]:
        weight, bias = layer.read()
        weight = weight.double()
        moved = weight @ below[1]
        return weight @ below[0], moved if bias is None else moved + bias.double()

    width = layers[0].in_features
    start = torch.eye(width, dtype=torch.double), torch.zeros(width, dtype=torch.double)
    weight, bias = reduce(join, layers, start)
    found = {"projection.weight": weight.float()}
    return found | {"projection.bias": bias.float()} if any(one.bias for one in layers) else found


def _ids(files: PublishedFiles, words: Sequence[str], *, unknown: bool) -> tuple[int, ...]:
    """The ids of words in the vocabulary.

    Args:
        files: The model's files.
        words: The words.
        unknown: Whether a word that the vocabulary lacks is its unknown token, as PyLate has it, or left out.

    Raises:
        UnsupportedError: There is no tokenizer.json to look them up in.
    """
    from tokenizers import Tokenizer

    if not words:
        return ()
    if (path := files.path("tokenizer.json")) is None:
        files.refuse("no tokenizer.json")
    try:
        find: Callable[[str], int | None] = Tokenizer.from_file(str(path)).token_to_id
    except Exception as error:  # the library raises nothing narrower
        msg = f"'{path}' is damaged: {error}. {DO}"
        raise ArtifactError(msg) from error
    found = {find(word) for word in words}
    if None in found and unknown:
        token = (files.read("tokenizer_config.json", dict) or {}).get("unk_token")
        token = token.get("content") if isinstance(token, dict) else token
        found.add(None if token is None else find(str(token)))
    return tuple(sorted(one for one in found if one is not None))
