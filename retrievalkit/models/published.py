"""What a published model says about its use: the pooler, its options and weights, and the encoder's options.

sentence-transformers stores a list of modules, each of which has a folder with a config.json; the Transformer's is the
model's own folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from retrievalkit import storage
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.models.pretrained import model_file

if TYPE_CHECKING:
    from torch import Tensor, nn

DO = "Download the model again."
MODULES = "modules.json"

_SIDES = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Without effect when a model is not trained.
_IGNORED = frozenset({"Dropout"})
_ACTIVATIONS = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid", "SiLU": "silu",
}  # fmt: skip
_ENDLESS = 1_000_000
_MOST_WIDTH = 1 << 16
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class OwnSettings:
    """What a model says about its use.

    Attributes:
        pooler: Registered name of the pooler.
        pooler_options: Its options.
        encoder_options: Options of the encoder `transformer`: how titles are joined, and prefixes and lengths where the
            model sets them.
        weights: Reads the pooler's weights, by their names in the pooler; None for a pooler without any.
        source: The file that says so.
    """

    pooler: str
    pooler_options: Mapping[str, Any]
    encoder_options: Mapping[str, Any]
    weights: Callable[[], Mapping[str, Tensor]] | None = field(default=None, compare=False)
    source: str = "modules.json"


class WithoutEquivalentError(UnsupportedError):
    """A model has a part that cannot be read."""

    def __init__(self, problem: str) -> None:
        do = "Name a pooler to do without the model's own settings, such as --pooler mean --set pooler.normalize=true."
        super().__init__(f"{problem}. {do}")
        self.problem = problem


@dataclass(frozen=True)
class PublishedFiles:
    """The files of a model, and complaints that name it.

    Attributes:
        model: As the user named it.
        source: Folder or hub name.
        revision: Branch, tag or commit of a model on the hub.
        library: Whose model it is, such as "a sentence-transformers model".
    """

    model: str
    source: str
    revision: str | None
    library: str = "a sentence-transformers model"

    def read(self, name: str, form: type) -> Any:
        """A JSON file in the form that it should have; None if there is no such file."""
        path = self.path(name)
        if path is None:
            return None
        value = storage.read_json(path, do=DO)
        storage.check_document(value, form, file=path, do=DO)
        return value

    def path(self, name: str) -> Path | None:
        """A file; None if there is no such file."""
        return model_file(self.source, name, revision=self.revision)

    def tensors(self, folder: str, names: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Tensors of the weights in a folder of the model, "" being the model's own, in float32."""
        found = (self.path("/".join(filter(None, (folder, name)))) for name in _WEIGHTS)
        path = next(filter(None, found), None)
        if path is None:
            msg = f"the model '{self.model}' lacks the weights '{folder}/{_WEIGHTS[0]}', which it names. {DO}"
            raise ArtifactError(msg)
        tensors = _read(path)
        for name, shape in names.items():
            if name not in tensors or tuple(tensors[name].shape) != shape:
                has = f"has the shape {tuple(tensors[name].shape)}" if name in tensors else "is missing"
                msg = f"'{path}' is damaged: '{name}' {has}, and should have {shape}. {DO}"
                raise ArtifactError(msg)
        return {name: tensors[name].float() for name in names}

    def refuse(self, problem: str) -> NoReturn:
        """Say what of the model has no equivalent here."""
        msg = f"the model '{self.model}' is {self.library} with {problem}, which has no equivalent here"
        raise WithoutEquivalentError(msg)


def _read(path: Path) -> Mapping[str, Tensor]:
    """All tensors of a file of weights; nothing but tensors is ever unpickled."""
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            loaded: Mapping[str, Tensor] = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch may raise anything at bytes that are not a pickle of tensors
        msg = f"cannot read the weights '{path}' ({' '.join(str(error).split())[:160]}). {DO}"
        raise ArtifactError(msg) from error
    return loaded


def load_own_weights(own: OwnSettings | None, pooler: nn.Module, *, named: bool) -> None:
    """Give a pooler the weights that its model brings, if any.

    A user who named the pooler may want another size than the model's; then such weights are left out.
    """
    if own is None or own.weights is None:
        return
    weights, state = own.weights(), pooler.state_dict()
    if {name: one.shape for name, one in weights.items()} == {name: one.shape for name, one in state.items()}:
        pooler.load_state_dict(weights)
    elif not named:
        options = ", ".join(f"{name}={value}" for name, value in own.pooler_options.items())
        msg = f"the options given for the pooler do not fit the weights that the model brings. Its own are {options}."
        raise OptionError(msg)


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
        """The weight (out, in) with a residual connection added to it, and the bias (out) if there is one."""
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
        """The linear layers, which must be between the given states: "sentence_embedding" or "token_embeddings"."""
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
    """The modules of a model; None for a model that has no modules.json."""
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
    longest = described.get("max_seq_length")
    if not longest:
        # sentence-transformers then takes the less of the model's and the tokenizer's limit.
        positions = (files.read("config.json", _Lengths) or {}).get("max_position_embeddings")
        longest = tokenizer.get("model_max_length")
        if positions and longest:
            longest = min(int(positions), int(longest))
        elif longest and longest >= _ENDLESS:
            longest = None  # relative positions (T5) have no limit
    found = {name: described.get(name) or longest for name in ("query_length", "document_length")}
    return {name: int(length) for name, length in found.items() if length}
