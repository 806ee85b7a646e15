"""The modules of a sentence-transformers folder, and the settings of its first one: prompts and lengths.

Each module has a folder with a config.json; the Transformer's is the model's own folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from retrievalkit.model.published import PublishedFiles

if TYPE_CHECKING:
    from torch import Tensor

MODULES = "modules.json"

_SIDES = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Without effect when a model is not trained.
_IGNORED = frozenset({"Dropout"})
_ACTIVATIONS = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid", "SiLU": "silu",
}  # fmt: skip
_ENDLESS = 1_000_000
_MOST_WIDTH = 1 << 16


@dataclass(frozen=True)
class _Module:
    """The form of an entry of modules.json."""

    type: str
    path: str = ""


@dataclass(frozen=True)
class _Described:
    """The form of config_sentence_transformers.json, with PyLate's entries, and `title` where rkit exported it."""

    model_type: str | None = None
    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    truncate_dim: int | None = None
    max_active_dims: int | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    query_length: int | None = None
    document_length: int | None = None
    attend_to_expansion_tokens: bool | None = None
    do_query_expansion: bool | None = None
    skiplist_words: list[str] | None = None
    title: Literal["pair", "space", "none"] | None = None


@dataclass(frozen=True)
class _Configuration:
    """The form of a module's config.json; other entries are true or false, or without effect."""

    pooling_mode: str | list[str] | None = None
    include_prompt: bool | None = None
    pooling_strategy: str | None = None
    activation_function: str | None = None
    in_features: int | None = None
    out_features: int | None = None
    bias: bool | None = None
    use_residual: bool | None = None
    module_input_name: str | None = None
    module_output_name: str | None = None
    skiplist_words: list[str] | None = None
    skiplist_tasks: list[str] | None = None
    keep_only_token_ids: list[int] | None = None


@dataclass(frozen=True)
class _Expansion:
    """The form of a Transformer's query_expansion."""

    strategy: str
    length: int
    attend: bool = False
    token: str | None = None


@dataclass(frozen=True)
class _Lengths:
    """The form of what other files say of lengths and case."""

    do_lower_case: bool | None = None
    max_seq_length: int | None = None
    max_position_embeddings: int | None = None
    model_max_length: int | float | None = None
    query_length: int | None = None
    document_length: int | None = None
    query_expansion: _Expansion | None = None
    processing_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True)
class Dense:
    """A linear layer among the modules."""

    files: PublishedFiles
    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool

    def read(self) -> tuple[Tensor, Tensor | None]:
        """The weight (out, in) with a residual connection added to it, and the bias (out) if there is one.

        Raises:
            ArtifactError: The weights are missing, or have other shapes.
        """
        import torch

        shape = self.out_features, self.in_features
        names: dict[str, tuple[int, ...]] = {"linear.weight": shape}
        if self.bias:
            names["linear.bias"] = shape[:1]
        if self.residual and shape[0] != shape[1]:
            names["residual.weight"] = shape
        found = self.files.tensors(self.folder, names)
        weight = found["linear.weight"]
        if self.residual:
            weight = weight + found.get("residual.weight", torch.eye(*shape))
        return weight, found.get("linear.bias")


@dataclass(frozen=True)
class Modules:
    """The modules of a model.

    Attributes:
        files: The model's files.
        listed: The entries of modules.json, without those that have no effect here.
        described: The contents of config_sentence_transformers.json.
    """

    files: PublishedFiles
    listed: Sequence[Mapping[str, Any]]
    described: Mapping[str, Any]

    @property
    def kinds(self) -> list[str]:
        """The name of each module's class."""
        return [_kind(module) for module in self.listed]

    @property
    def late_interaction(self) -> bool:
        """Whether every token has a vector: a model of PyLate, or sentence-transformers' MultiVectorEncoder."""
        kind = self.described.get("model_type")
        of_pylate = any(str(module["type"]).startswith("pylate.") for module in self.listed)
        return of_pylate or kind in ("ColBERT", "MultiVectorEncoder")

    @cached_property
    def transformer(self) -> Mapping[str, Any]:
        """What is said of the Transformer."""
        return self.files.read("sentence_bert_config.json", _Lengths) or {}

    def configuration(self, kind: str) -> Mapping[str, Any]:
        """The config.json of the first module of a kind."""
        return self._configuration(next(module for module in self.listed if _kind(module) == kind))

    def _configuration(self, module: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.files.read("/".join(filter(None, (_path(module), "config.json"))), _Configuration) or {}

    def dense(self, states: str) -> list[Dense]:
        """The linear layers, which must be between the given states: "sentence_embedding" or "token_embeddings".

        Raises:
            UnsupportedError: A layer is between others, or has no equivalent here.
        """
        return [self._dense(module, states) for module in self.listed if _kind(module) == "Dense"]

    def _dense(self, module: Mapping[str, Any], states: str) -> Dense:
        says = self._configuration(module)
        for name in ("module_input_name", "module_output_name"):
            if says.get(name) not in (None, states):
                self.files.refuse(f"a Dense of {says[name]}")
        # Theirs is tanh where the file names none.
        function = str(says.get("activation_function") or "Tanh")
        activation = _ACTIVATIONS.get(function.rpartition(".")[2]) if function.startswith(("torch.", "Tanh")) else None
        if activation is None:
            self.files.refuse(f"the activation {function} of a Dense")
        if says.get("use_residual") and activation != "identity":
            self.files.refuse(f"a residual connection beside the activation {function} of a Dense")
        sizes = [int(says.get(name) or 0) for name in ("in_features", "out_features")]
        if not all(0 < size <= _MOST_WIDTH for size in sizes):
            self.files.refuse("a Dense of a size that no model has")
        bias, residual = says.get("bias") is not False, bool(says.get("use_residual"))
        return Dense(self.files, _path(module), sizes[0], sizes[1], bias, activation, residual)


def read_modules(files: PublishedFiles) -> Modules | None:
    """The modules of a model; None for a model that has no modules.json.

    Raises:
        UnsupportedError: The Transformer is in a folder of its own, or is given options that have no equivalent here.
        ArtifactError: A file is damaged.
    """
    listed = files.read(MODULES, list[_Module])
    if listed is None:
        return None
    described = files.read("config_sentence_transformers.json", _Described) or {}
    modules = Modules(files, [module for module in listed if _kind(module) not in _IGNORED], described)
    first = next((module for module in modules.listed if _kind(module).endswith("Transformer")), {})
    if folder := _path(first):
        files.refuse(f"its transformer in the folder '{folder}'")
    if options := modules.transformer.get("processing_kwargs"):
        files.refuse(f"options of its tokenizer ({', '.join(options)}: processing_kwargs)")
    return modules


def _kind(module: Mapping[str, Any]) -> str:
    return str(module["type"]).rpartition(".")[2]


def _path(module: Mapping[str, Any]) -> str:
    return str(module.get("path", ""))


def prefixes(modules: Modules) -> dict[str, str]:
    """The prompt of each side: the one of its name, else the default prompt."""
    prompts: Mapping[str, str] = modules.described.get("prompts") or {}
    default = prompts.get(modules.described.get("default_prompt_name") or "", "")
    found = {
        f"{side}_prefix": next((prompts[name] for name in names if name in prompts), default)
        for side, names in _SIDES.items()
    }
    return {name: prefix for name, prefix in found.items() if prefix}


def lengths(modules: Modules) -> dict[str, int]:
    """Most tokens of a text of each side; {} leaves them to the encoder."""
    files, described = modules.files, modules.transformer
    tokenizer = files.read("tokenizer_config.json", _Lengths) or {}
    if described.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        files.refuse("texts in lower case before a tokenizer that keeps the case")
    longest = described.get("max_seq_length") or _longest(files, tokenizer)
    found = {name: described.get(name) or longest for name in ("query_length", "document_length")}
    return {name: int(length) for name, length in found.items() if length}


def _longest(files: PublishedFiles, tokenizer: Mapping[str, Any]) -> int | None:
    """Without a max_seq_length sentence-transformers takes the less of the model's and the tokenizer's limit."""
    positions = (files.read("config.json", _Lengths) or {}).get("max_position_embeddings")
    longest = tokenizer.get("model_max_length")
    if positions and longest:
        return min(int(positions), int(longest))
    # Relative positions (T5) have no limit.
    return int(longest) if longest and longest < _ENDLESS else None
