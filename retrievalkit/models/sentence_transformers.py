"""A model's own pooling, prompts and lengths, as sentence-transformers stores them beside the weights.

    modules.json                          the modules in their order: Transformer, Pooling, Dense, Normalize, ...
    1_Pooling/config.json                 which pooling
    2_Dense/config.json, .safetensors     a linear layer
    sentence_bert_config.json             max_seq_length
    config_sentence_transformers.json     prompts, and the similarity that the model was made for

The files become options of our encoder and pooler; what these cannot do is refused, as a vector that is pooled in
another way than in training ranks badly without looking wrong. Such models take a passage as one text, so a title is
joined to its text by a space.

Models of late interaction are PyLate's, sentence-transformers' MultiVectorEncoder, and ColBERT's own. PyLate puts a
token such as "[Q] " behind the first one, fills queries with [MASK], and leaves out the vectors of punctuation marks.
Its linear layers without a function between them are one layer here.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from retrievalkit import storage
from retrievalkit.errors import ArtifactError
from retrievalkit.models.pretrained import locate_model
from retrievalkit.models.published import (
    DO,
    Dense,
    Modules,
    OwnSettings,
    PublishedFiles,
    WithoutEquivalentError,
    lengths,
    prefixes,
    read_modules,
)

if TYPE_CHECKING:
    from torch import Tensor

# Their names of poolings, in the order in which the older "pooling_mode_<name>" are joined: our poolers, or None.
_MODES = {
    "cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean", "mean_sqrt_len_tokens": "sqrt_mean",
    "weightedmean_tokens": "weighted_mean", "lasttoken": "last",
}  # fmt: skip
_POOLINGS = _MODES | {"cls": "cls", "max": "max", "mean": "mean", "weightedmean": "weighted_mean"}
_ALONE = frozenset({"cls", "max", "mean", "last"})
"""Poolings that are poolers."""

_QUERY_LENGTH, _DOCUMENT_LENGTH = 32, 180
_ARCHITECTURE = "HF_ColBERT"
_METADATA = "artifact.metadata"
_PROJECTION = "linear.weight"
_MOST_WIDTH = 1 << 16


def own_settings(model: str | Path, *, revision: str | None = None) -> OwnSettings | None:
    """The settings of a sentence-transformers, PyLate or ColBERT model; None for a model that says nothing.

    Args:
        model: Name or folder.
        revision: Branch, tag or commit of a model on the hub.

    Raises:
        UnsupportedError: A module, a pooling or a similarity has no equivalent here.
        ArtifactError: A file is damaged.
    """
    files = PublishedFiles(str(model), locate_model(model), revision)
    modules = read_modules(files)
    if modules is None:
        own = _of_colbert(files)
    elif modules.late_interaction:
        own = _late_interaction(modules)
    else:
        own = _sparse(modules) if "SpladePooling" in modules.kinds else _dense(modules)
    if own is None:
        return None
    # A folder exported from a checkpoint of ours names the checkpoint's own way.
    title = (modules.described.get("title") if modules else None) or "space"
    return replace(own, encoder_options={**own.encoder_options, "title": title})


def left_out(
    model: str | Path,
    pooler: str,
    pooler_options: Mapping[str, Any],
    encoder_options: Mapping[str, Any],
    *,
    all_given: bool = False,
) -> list[str]:
    """A sentence about what a model was trained with and these options leave out; [] if nothing.

    Lengths and the way of joining titles are no part of it: they change no vector of a short text without a title.

    Args:
        model: Name or folder.
        pooler: The pooler named for it.
        pooler_options: The options given for the pooler.
        encoder_options: The options given for the encoder.
        all_given: Defaults are among the options, as in a description; else an option that is given is meant so.
    """
    try:
        own = own_settings(model, revision=encoder_options.get("revision"))
    except WithoutEquivalentError as error:
        return [f"{error.problem}: --pooler {pooler} does without."]
    if own is None:
        return []
    lost = [] if own.pooler == pooler else [f"--pooler {own.pooler}"]
    given = {"pooler": pooler_options, "encoder": encoder_options}
    wanted = {"pooler": own.pooler_options, "encoder": own.encoder_options}
    lost += [
        f"--set {part}.{name}={_shown(value)}"
        for part, options in wanted.items()
        for name, value in options.items()
        if value is not False and not name.endswith("_length") and name != "title"
        if (_plain(given[part].get(name)) != _plain(value) if all_given else name not in given[part])
    ]
    if not lost:
        return []
    return [
        f"--pooler {pooler} leaves out settings that the model '{model}' was trained with ({own.source}): "
        f"{' '.join(lost)}. Encode or train with them too, or without --pooler to take all of the model's own."
    ]


def _plain(value: Any) -> Any:
    """A list and a tuple are equal options."""
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _dense(modules: Modules) -> OwnSettings:
    """One vector a text: Transformer, Pooling, any number of Dense, and at the end perhaps a Normalize."""
    files = modules.files
    for kind in modules.kinds:
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            files.refuse(f"the module {kind}")
    layers = modules.dense("sentence_embedding")
    expected = ["Transformer", "Pooling", *["Dense"] * len(layers)]
    if modules.kinds not in (expected, [*expected, "Normalize"]):
        files.refuse(f"the modules {', '.join(modules.kinds)}")
    if modules.described.get("truncate_dim"):
        files.refuse(f"vectors cut to {modules.described['truncate_dim']} dimensions (truncate_dim)")
    prompts = prefixes(modules)
    poolings = _poolings(modules, prompts)
    similarity = modules.described.get("similarity_fn_name")
    if similarity not in (None, "cosine", "dot"):
        files.refuse(f"the similarity {similarity}")
    # The scoring rule is the inner product, which is the cosine of normalised vectors.
    options: dict[str, Any] = {"normalize": similarity == "cosine" or "Normalize" in modules.kinds}
    encoder_options = {**prompts, **lengths(modules)}
    if not layers and poolings[0] in _ALONE and len(poolings) == 1:
        return OwnSettings(poolings[0], options, encoder_options)
    options |= {
        "pooling": poolings,
        "dimensions": tuple(one.out_features for one in layers),
        "activations": tuple(one.activation for one in layers),
        "bias": any(one.bias for one in layers),
    }
    weights = partial(_weights, layers) if layers else None
    return OwnSettings("projected", options, encoder_options, weights)


def _weights(layers: Sequence[Dense]) -> Mapping[str, Tensor]:
    """The weights of the pooler `projected`, whose layers all have a bias if one has."""
    import torch

    biased = any(one.bias for one in layers)
    found = {}
    for number, layer in enumerate(layers):
        weight, bias = layer.read()
        found[f"layers.{number}.weight"] = weight
        if biased:
            found[f"layers.{number}.bias"] = torch.zeros(layer.out_features) if bias is None else bias
    return found


def _sparse(modules: Modules) -> OwnSettings:
    """Weights over the vocabulary: SPLADE, with the largest logit of each term."""
    files = modules.files
    if modules.kinds not in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
        files.refuse(f"the modules {', '.join(modules.kinds)}")
    pooling = modules.configuration("SpladePooling")
    for name, usual in (("pooling_strategy", "max"), ("activation_function", "relu")):
        if (value := pooling.get(name, usual)) != usual:
            files.refuse(f"the {name} {value} of its SpladePooling")
    if (similarity := modules.described.get("similarity_fn_name")) not in (None, "dot"):
        files.refuse(f"the similarity {similarity} of sparse vectors")
    # The plugin's pooler, by its name: one definition of SPLADE's weights.
    options = {"views": "sparse", "pooled_tokens": "all", "top_k": modules.described.get("max_active_dims")}
    return OwnSettings("dense_sparse", options, {**prefixes(modules), **lengths(modules)})


def _poolings(modules: Modules, prompts: Mapping[str, str]) -> tuple[str, ...]:
    pooling, files = modules.configuration("Pooling"), modules.files
    older = [mode for mode in _MODES if pooling.get(f"pooling_mode_{mode}") is True]
    unknown = [
        name.removeprefix("pooling_mode_")
        for name, on in pooling.items()
        if on is True and name.startswith("pooling_mode_") and name.removeprefix("pooling_mode_") not in _MODES
    ]
    given = pooling.get("pooling_mode")
    modes = [*older, *unknown] or ([given] if isinstance(given, str) else list(given or []))
    if not modes or any(mode not in _POOLINGS for mode in modes):
        files.refuse(f"the pooling {' and '.join(modes) or 'of an unknown kind'}")
    if prompts and pooling.get("include_prompt") is False:
        files.refuse("a pooling that leaves out the prompt")
    return tuple(_POOLINGS[mode] for mode in modes)


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


def _late_interaction(modules: Modules) -> OwnSettings:
    """The settings of a model whose every token has a vector."""
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


def _of_colbert(files: PublishedFiles) -> OwnSettings | None:
    """The settings of a checkpoint of ColBERT's own code, such as ColBERTv2; None for any other model."""
    if (path := files.path("config.json")) is None:
        return None
    config = storage.read_json(path, do=DO, nan=True)
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

    def projection() -> Mapping[str, Tensor]:
        return {"projection.weight": files.tensors("", {_PROJECTION: shape})[_PROJECTION]}

    return OwnSettings("colbert", options, taken, projection, _METADATA)


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
    """The ids of words in the vocabulary; `unknown` takes others for the unknown token, as PyLate does."""
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
