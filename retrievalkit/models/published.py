"""The settings of published models: their own pooling, prompts, lengths and projections.

sentence-transformers stores them next to the weights:

    modules.json                          the modules in order: Transformer, Pooling, Dense, Normalize, ...
    1_Pooling/config.json                 the pooling
    2_Dense/config.json, .safetensors     a linear layer
    sentence_bert_config.json             max_seq_length
    config_sentence_transformers.json     prompts, and the model's similarity function

`READ_FROM` names the releases whose behaviour this module follows; docs/coming-from/conventions.md has the table.

The files become options of our encoder and pooler. Unsupported settings are refused, since vectors pooled differently
from training rank badly without looking wrong. These models encode a passage as a single text, so a title is joined to
its text by a space.

Late-interaction models are PyLate's, sentence-transformers' MultiVectorEncoder, and ColBERT's own. PyLate inserts a
token such as "[Q] " after the first token, pads queries with [MASK], and drops the vectors of punctuation marks.
Several linear layers without activations become a single layer.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import Field

from retrievalkit import storage
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError, shortlist
from retrievalkit.models.pretrained import load_pretrained, locate_model, model_file
from retrievalkit.reporting import notices

if TYPE_CHECKING:
    from torch import Tensor, nn

READ_FROM = {
    "sentence-transformers": "6.2", "transformers": "5.23", "PyLate": "1.6", "ColBERT": "0.2.22", "Pyserini": "1.6",
    "Tevatron": "0.1",
}  # fmt: skip
"""The releases that the conventions were read from."""

_DO = "Download the model again."
# Of pre-training and classification, and the projections of late interaction, which the pooler reads.
_HEADS = re.compile(
    r"(^|\.)(cls|lm_head|vocab_\w+|generator_\w+|discriminator_\w+|pooler|classifier|score|qa_outputs|linear)\."
    r"|position_ids$|^lm_head|^logit_scale"
)
_SIDES = ("query", "document")
_LIBRARIES = ("sentence_transformers.", "pylate.")
_ACTIVATIONS = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid", "SiLU": "silu",
}  # fmt: skip
# Their poolings and ours; the older "pooling_mode_<name>" are concatenated in this order.
_MODES = {
    "cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean", "mean_sqrt_len_tokens": "sqrt_mean",
    "weightedmean_tokens": "weighted_mean", "lasttoken": "last",
}  # fmt: skip
_POOLINGS = _MODES | {"cls": "cls", "max": "max", "mean": "mean", "weightedmean": "weighted_mean"}
_ALONE = frozenset({"cls", "max", "mean", "last"})
"""Poolings that are also poolers."""
_ENDLESS = 1_000_000
_MOST_WIDTH = 1 << 16
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_COLBERT_LENGTHS = {"query_length": 32, "document_length": 180}
# The transformer's settings: the first file that exists.
_TRANSFORMER = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
# Options in the transformer's settings that change no vector; older releases have the names at the right.
_HARMLESS = frozenset({"trust_remote_code", "use_cache", "padding_side", "use_fast", "model_max_length"})
_OPTIONS = (("processor_kwargs", "tokenizer_args"), ("config_kwargs", "config_args"))


@dataclass(frozen=True)
class OwnSettings:
    """The settings of a model.

    Attributes:
        pooler: Registered name of the pooler.
        pooler_options: Its options.
        encoder_options: Options of the encoder `transformer`: the encoding of titles, and prefixes and lengths if the
            model sets them.
        weights: Reads the pooler's weights, by their names in the pooler; None for a pooler without weights.
        source: The file with the settings.
        notes: Settings that the files contradict or leave open, by the option that settles each.
    """

    pooler: str
    pooler_options: Mapping[str, Any]
    encoder_options: Mapping[str, Any]
    weights: Callable[[], Mapping[str, Tensor]] | None = field(default=None, compare=False)
    source: str = "modules.json"
    notes: Mapping[str, str] = field(default_factory=dict, compare=False)


class WithoutEquivalentError(UnsupportedError):
    """A model has a part without an equivalent here."""

    def __init__(self, problem: str) -> None:
        do = "To ignore the model's own settings, name a pooler, such as --pooler mean --set pooler.normalize=true."
        super().__init__(f"{problem}. {do}")
        self.problem = problem


@dataclass(frozen=True)
class _Module:
    """The schema of an entry of modules.json."""

    type: str
    path: str = ""


@dataclass(frozen=True)
class _Expansion:
    strategy: str
    length: int
    attend: bool = False
    token: str | None = None


@dataclass(frozen=True)
class _Entries:
    """The relevant entries of any other file; `title` is in models exported by rkit."""

    model_type: str | None = None
    prompts: dict[str, str | None] | None = None
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
    skiplist_tasks: list[str] | None = None
    keep_only_token_ids: list[int] | None = None
    title: Literal["pair", "space", "none"] | None = None
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
    do_lower_case: bool | None = None
    max_seq_length: int | None = None
    max_position_embeddings: int | None = None
    model_max_length: int | float | None = None
    query_expansion: _Expansion | None = None
    processing_kwargs: dict[str, Any] | None = None
    processor_kwargs: dict[str, Any] | None = None
    tokenizer_args: dict[str, Any] | None = None
    config_kwargs: dict[str, Any] | None = None
    config_args: dict[str, Any] | None = None
    modality_config: dict[str, Any] | None = None
    transformer_task: str | None = None


@dataclass(frozen=True)
class _Metadata:
    """The relevant entries of ColBERT's artifact.metadata."""

    dim: Annotated[int, Field(ge=1, le=_MOST_WIDTH)] = 128
    query_maxlen: int = 32
    doc_maxlen: int = 220
    query_token_id: str = "[unused0]"
    doc_token_id: str = "[unused1]"
    attend_to_mask_tokens: bool = False
    mask_punctuation: bool = True
    similarity: str = "cosine"


class _Dense(NamedTuple):
    """A linear layer among the modules."""

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


class _Published:
    """The files of a model.

    Attributes:
        listed: The kind and folder of each relevant module in modules.json; None without modules.
        described: The contents of config_sentence_transformers.json.
        transformer: The contents of sentence_bert_config.json.
    """

    def __init__(self, model: str | Path, revision: str | None) -> None:
        self.model, self.source, self.revision = model, locate_model(model), revision
        self.library = "a sentence-transformers model"
        self.notes: dict[str, str] = {}
        self.modules = self.read("modules.json", list[_Module])
        self.described: Mapping[str, Any] = {}
        self.transformer: Mapping[str, Any] = {}
        if self.modules is None:
            return
        if foreign := [kind for kind in (module["type"] for module in self.modules) if not kind.startswith(_LIBRARIES)]:
            self.refuse(f"the module {foreign[0]} of its own")
        kinds = [(str(module["type"]).rpartition(".")[2], str(module.get("path", ""))) for module in self.modules]
        self.listed = [(kind, folder) for kind, folder in kinds if kind != "Dropout"]  # no effect in inference
        self.kinds = [kind for kind, _ in self.listed]
        self.described = self.read("config_sentence_transformers.json") or {}
        self.transformer = next(filter(None, map(self.read, _TRANSFORMER)), {})
        if folder := next((folder for kind, folder in self.listed if kind.endswith("Transformer")), ""):
            self.refuse(f"its transformer in the folder '{folder}'")
        if options := self.transformer.get("processing_kwargs"):
            self.refuse(f"options of its tokenizer ({', '.join(options)}: processing_kwargs)")
        for names in _OPTIONS:
            if changed := [f"{name} in {key}" for key in names for name in self._options(key) if name not in _HARMLESS]:
                self.refuse(f"the option {changed[0]}")
        if "message" in (self.transformer.get("modality_config") or {}):
            self.refuse("texts in a chat template")

    def _options(self, name: str) -> Mapping[str, Any]:
        return self.transformer.get(name) or {}

    def path(self, name: str) -> Path | None:
        return model_file(self.source, name, revision=self.revision)

    def read(self, name: str, form: type = _Entries) -> Any:
        """Read and validate a JSON file; None if it does not exist."""
        path = self.path(name)
        return None if path is None else storage.read_json(path, form, do=_DO)

    def refuse(self, problem: str) -> NoReturn:
        reason = f"the model '{self.model}' is {self.library} with {problem}, which has no equivalent here"
        raise WithoutEquivalentError(reason)

    def tensors(self, folder: str, names: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Read tensors in float32 from the weights in a folder of the model; "" = the model's own weights."""
        import torch
        from safetensors.torch import load_file

        paths = (self.path("/".join(filter(None, (folder, name)))) for name in _WEIGHTS)
        if (path := next(filter(None, paths), None)) is None:
            msg = f"the model '{self.model}' lacks the weights '{folder}/{_WEIGHTS[0]}', which it names. {_DO}"
            raise ArtifactError(msg)
        try:
            # Only tensors are ever unpickled.
            safe = path.suffix == ".safetensors"
            tensors = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises anything on bytes that are not a pickle of tensors
            msg = f"cannot read the weights '{path}' ({' '.join(str(error).split())[:160]}). {_DO}"
            raise ArtifactError(msg) from error
        for name, shape in names.items():
            if name not in tensors or tuple(tensors[name].shape) != shape:
                has = f"has the shape {tuple(tensors[name].shape)}" if name in tensors else "is missing"
                msg = f"'{path}' is damaged: '{name}' {has}, but should have the shape {shape}. {_DO}"
                raise ArtifactError(msg)
        return {name: tensors[name].float() for name in names}

    def configuration(self, kind: str) -> Mapping[str, Any]:
        """Return the config.json of the first module of a kind."""
        return self._configuration(dict(reversed(self.listed))[kind])

    def _configuration(self, folder: str) -> Mapping[str, Any]:
        return self.read("/".join(filter(None, (folder, "config.json")))) or {}

    def dense(self, states: str) -> list[_Dense]:
        """Return the linear layers, which must connect `states`: "sentence_embedding" or "token_embeddings"."""
        layers = []
        for kind, folder in self.listed:
            if kind != "Dense":
                continue
            entries = self._configuration(folder)
            for name in ("module_input_name", "module_output_name"):
                if entries.get(name) not in (None, states):
                    self.refuse(f"a Dense of {entries[name]}")
            function = str(entries.get("activation_function") or "torch.nn.Tanh")  # the library's default
            activation = _ACTIVATIONS.get(function.rpartition(".")[2]) if function.startswith("torch.") else None
            if activation is None:
                self.refuse(f"the activation {function} of a Dense")
            residual = bool(entries.get("use_residual"))
            if residual and activation != "identity":
                self.refuse(f"a residual connection and the activation {function} of a Dense")
            inner, outer = (int(entries.get(name) or 0) for name in ("in_features", "out_features"))
            if not (0 < inner <= _MOST_WIDTH and 0 < outer <= _MOST_WIDTH):
                self.refuse(f"a Dense from {inner} to {outer} features")
            layers.append(_Dense(folder, inner, outer, entries.get("bias") is not False, activation, residual))
        return layers

    def read_dense(self, layer: _Dense) -> tuple[Tensor, Tensor | None]:
        """Read the weight (out, in), including any residual connection, and the bias (out) or None."""
        import torch

        shape = layer.out_features, layer.in_features
        names: dict[str, tuple[int, ...]] = {"linear.weight": shape}
        if layer.bias:
            names["linear.bias"] = shape[:1]
        if layer.residual and shape[0] != shape[1]:
            names["residual.weight"] = shape
        tensors = self.tensors(layer.folder, names)
        weight = tensors["linear.weight"]
        if layer.residual:
            weight = weight + tensors.get("residual.weight", torch.eye(*shape))
        return weight, tensors.get("linear.bias")

    def prefixes(self, *, default: bool = False) -> dict[str, str]:
        """Return the prefixes of queries and documents, from the prompts "query" and "document".

        With `default`, the default prompt replaces a missing prompt.
        """
        prompts = {name: text for name, text in (self.described.get("prompts") or {}).items() if text is not None}
        usual = self.described.get("default_prompt_name") or ""
        prefixes = {f"{side}_prefix": prompts.get(side, prompts.get(usual, "") if default else "") for side in _SIDES}
        others = {"query": (usual,), "document": ("passage", "corpus", usual)}
        for side in _SIDES:
            unread = next((name for name in others[side] if prompts.get(name) and name not in _SIDES), None)
            if unread and not default and side not in prompts:
                self.notes[f"{side}_prefix"] = (
                    f"the model '{self.model}' has the prompt '{unread}', but none for '{side}': {side} texts are "
                    f"encoded without a prompt, as in sentence-transformers {READ_FROM['sentence-transformers']}. If "
                    f"they need it: --set encoder.{side}_prefix={json.dumps(prompts[unread], ensure_ascii=False)}"
                )
        return {name: prefix for name, prefix in prefixes.items() if prefix}

    def lengths(self) -> dict[str, int]:
        """Return the maximum number of tokens of each side; {} = the encoder's defaults."""
        from transformers import AutoConfig, AutoTokenizer

        from retrievalkit.models.architectures import longest_input

        entries, options = self.transformer, {"revision": self.revision} if self.revision else {}
        if entries.get("do_lower_case") and not lowers(load_pretrained(AutoTokenizer, self.source, **options)):
            self.refuse("texts in lower case before a tokenizer that keeps the case")
        limit = longest_input(load_pretrained(AutoConfig, self.source, **options))
        named = next((length for key in _OPTIONS[0] if (length := self._options(key).get("model_max_length"))), None)
        longest = named or entries.get("max_seq_length")
        if not longest:
            # sentence-transformers then uses the lower of the model's and the tokenizer's limit.
            longest = min((self.read("tokenizer_config.json") or {}).get("model_max_length") or _ENDLESS, limit)
            longest = longest if longest < _ENDLESS else None  # relative positions (T5) have no limit
        lengths = {name: entries.get(name) or longest for name in _COLBERT_LENGTHS}
        for name, length in lengths.items():
            if length and length > limit:
                self.notes[name] = (
                    f"the files of '{self.model}' set {name} to {length:,} tokens, and the model has positions for "
                    f"{limit:,}: longer texts are cut there. To choose a length: --set encoder.{name}=N"
                )
        return {name: min(int(length), limit) for name, length in lengths.items() if length}

    def ids(self, words: Sequence[str], *, unknown: bool) -> tuple[int, ...]:
        """Return the ids of words in the vocabulary; `unknown` maps other words to the unknown token, like PyLate."""
        from tokenizers import Tokenizer

        if not words:
            return ()
        if (path := self.path("tokenizer.json")) is None:
            self.refuse("no tokenizer.json")
        try:
            find: Callable[[str], int | None] = Tokenizer.from_file(str(path)).token_to_id
        except Exception as error:  # the library raises nothing narrower
            msg = f"'{path}' is damaged: {error}. {_DO}"
            raise ArtifactError(msg) from error
        ids = {find(word) for word in words}
        if None in ids and unknown:
            token = (self.read("tokenizer_config.json", dict) or {}).get("unk_token")
            token = token.get("content") if isinstance(token, dict) else token
            ids.add(None if token is None else find(str(token)))
        return tuple(sorted(token for token in ids if token is not None))


def own_settings(model: str | Path, *, revision: str | None = None) -> OwnSettings | None:
    """Read the settings of a sentence-transformers, PyLate or ColBERT model; None for a model without settings.

    Raises:
        UnsupportedError: A module, a pooling or a similarity has no equivalent here.
        ArtifactError: A file is damaged.
    """
    files = _Published(model, revision)
    modules, kind = files.modules or (), files.described.get("model_type")
    if files.modules is None:
        own = _colbert(files)
    elif kind in ("ColBERT", "MultiVectorEncoder") or any(module["type"].startswith("pylate.") for module in modules):
        own = _late_interaction(files)
    else:
        own = _sparse(files) if "SpladePooling" in files.kinds else _one_vector(files)
    if own is None:
        return None
    # A folder that `rkit export` wrote stores the checkpoint's title setting.
    title = files.described.get("title") or "space"
    return replace(own, encoder_options={**own.encoder_options, "title": title}, notes=files.notes)


def lowers(tokenizer: Any) -> bool:
    """True if a tokenizer of transformers ignores the case."""
    if tokenizer.is_fast:
        normalizer = tokenizer.backend_tokenizer.normalizer
        return normalizer is not None and str(normalizer.normalize_str("A")) == "a"
    return bool(tokenizer.tokenize("A B") == tokenizer.tokenize("a b"))


def note_promises(config: Path | None, tokenizer: Any, specials: tuple[bool, bool], end: bool | None) -> None:
    """Note entries of tokenizer_config.json that the tokenizer does not follow.

    Args:
        config: The file, if there is one.
        tokenizer: The tokenizer of transformers.
        specials: True if it starts texts with a special token, and if it ends texts with a special token.
        end: The encoder's option `end_token`.
    """
    entries: Mapping[str, Any] = {} if config is None else storage.read_json(config, do=_DO, nan=True)
    (starts, ends), small = specials, lowers(tokenizer)
    behaviour = {
        "add_bos_token": (starts, f"starts texts with{'' if starts else 'out'} a special token"),
        "add_eos_token": (ends, f"ends texts with{'' if ends else 'out'} an end token"),
        "do_lower_case": (small, "ignores the case" if small else "keeps the case"),
    }
    for name, (follows, description) in behaviour.items():
        promise = entries.get(name)
        if isinstance(promise, bool) and promise != follows and (name != "add_eos_token" or end is None):
            remedy = "Correct the file that is wrong."
            if name == "add_eos_token" and promise:
                remedy = "If the model was trained with end tokens: --set encoder.end_token=true"
            problem = f"'{config}' sets {name}={json.dumps(promise)}, but the tokenizer {description}"
            notices.note(f"{problem} (transformers {READ_FROM['transformers']}). {remedy}")
    if end and ends:
        notices.note(
            "end_token is set, but the tokenizer ends texts with a special token itself, which stays the last."
        )


def note_unread_weights(source: str, names: Collection[str]) -> None:
    """Note weights besides those of the transformer: some methods, such as ANCE, compute vectors with more layers."""
    unread = sorted(name for name in names if not _HEADS.search(name))
    if (Path(source) / "pooler.pt").is_file():
        unread.append("pooler.pt")
    if unread:
        problem = f"'{source}' has weights that are not read: {shortlist(unread, 3)}. If vectors need them, they differ"
        notices.note(f"{problem} here. Write it as a folder of sentence-transformers, with these layers as modules.")


def load_own_weights(own: OwnSettings, pooler: nn.Module, *, named: bool) -> None:
    """Load the pooler's weights from its model, if it has any.

    A user who named the pooler may choose another size than the model's; the weights are then skipped.
    """
    if own.weights is None:
        return
    weights, state = own.weights(), pooler.state_dict()
    if weights.keys() == state.keys() and all(weights[name].shape == state[name].shape for name in state):
        pooler.load_state_dict(weights)
    elif not named:
        options = ", ".join(f"{name}={value}" for name, value in own.pooler_options.items())
        msg = f"the pooler's options do not fit the weights of the model. Its own options are {options}."
        raise OptionError(msg)


def note_left_out(
    model: str | Path,
    encoder: str | None,
    pooler: str | None,
    encoder_options: Mapping[str, Any] | None,
    pooler_options: Mapping[str, Any] | None,
) -> None:
    """Warn about settings of the model's training that a pooler, named by the user, leaves out.

    Lengths and the encoding of titles are ignored: they change no vector of a short text without a title.
    """
    if pooler is None or encoder not in (None, "transformer"):
        return
    chosen = {"encoder": encoder_options or {}, "pooler": pooler_options or {}}

    def shown(value: Any) -> str:
        if isinstance(value, list | tuple):
            return ",".join(map(str, value))
        return json.dumps(value) if value is None or isinstance(value, bool) else str(value)

    try:
        own = own_settings(model, revision=chosen["encoder"].get("revision"))
    except WithoutEquivalentError as error:
        notices.note(f"{error.problem}: --pooler {pooler} ignores it.")
        return
    if own is None:
        return
    lost = [] if own.pooler == pooler else [f"--pooler {own.pooler}"]
    lost += [
        f"--set {part}.{name}={shown(value)}"
        for part, trained in (("pooler", own.pooler_options), ("encoder", own.encoder_options))
        for name, value in trained.items()
        if value is not False and not name.endswith("_length") and name not in ("title", *chosen[part])
    ]
    if lost:
        problem = f"--pooler {pooler} leaves out settings that the model '{model}' was trained with ({own.source})"
        remedy = "Set them too, or leave --pooler out to use all of the model's settings."
        notices.note(f"{problem}: {' '.join(lost)}. {remedy}")


def _one_vector(files: _Published) -> OwnSettings:
    """Return the settings of a single-vector model: Transformer, Pooling, any number of Dense, optionally Normalize."""
    for kind in files.kinds:
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            files.refuse(f"the module {kind}")
    layers = files.dense("sentence_embedding")
    expected = ["Transformer", "Pooling", *["Dense"] * len(layers)]
    if files.kinds not in (expected, [*expected, "Normalize"]):
        files.refuse(f"the modules {', '.join(files.kinds)}")
    if files.described.get("truncate_dim"):
        files.refuse(f"vectors cut to {files.described['truncate_dim']} dimensions (truncate_dim)")
    prompts, pooling = files.prefixes(), files.configuration("Pooling")
    prefix = "pooling_mode_"
    modes = [name.removeprefix(prefix) for name, on in pooling.items() if on is True and name.startswith(prefix)]
    modes.sort(key=[*_MODES, *modes].index)
    if named := pooling.get("pooling_mode") or (() if modes else "mean"):
        modes = [named] if isinstance(named, str) else list(named)
    if unknown := [mode for mode in modes if mode not in _POOLINGS]:
        files.refuse(f"the pooling {unknown[0]}")
    normalised = "Normalize" in files.kinds
    if normalised and files.configuration("Normalize").get("module_input_name") not in (None, "sentence_embedding"):
        files.refuse("a Normalize of token_embeddings")
    if (task := files.transformer.get("transformer_task")) not in (None, "feature-extraction"):
        files.refuse(f"the transformer_task {task}")
    if prompts and pooling.get("include_prompt") is False:
        files.refuse("a pooling that leaves out the prompt")
    poolings = tuple(_POOLINGS[mode] for mode in modes)
    similarity = files.described.get("similarity_fn_name")
    if similarity not in (None, "cosine", "dot"):
        files.refuse(f"the similarity {similarity}")
    if similarity is None and not normalised:
        files.notes["normalize"] = (
            f"the files of '{files.model}' name no similarity: vectors have length 1 (cosine), as in "
            f"sentence-transformers {READ_FROM['sentence-transformers']}. If it was trained with inner products: "
            "--set pooler.normalize=false"
        )
    # The scoring rule is the inner product, the cosine of normalised vectors.
    options: dict[str, Any] = {"normalize": normalised or similarity != "dot"}
    encoder_options = {**prompts, **files.lengths()}
    if not layers and poolings[0] in _ALONE and len(poolings) == 1:
        return OwnSettings(poolings[0], options, encoder_options)
    options |= {
        "pooling": poolings,
        "dimensions": tuple(layer.out_features for layer in layers),
        "activations": tuple(layer.activation for layer in layers),
        "bias": any(layer.bias for layer in layers),
    }

    def weights() -> Mapping[str, Tensor]:
        import torch

        tensors = {}
        for number, layer in enumerate(layers):
            weight, bias = files.read_dense(layer)
            tensors[f"layers.{number}.weight"] = weight
            if options["bias"]:
                tensors[f"layers.{number}.bias"] = torch.zeros(layer.out_features) if bias is None else bias
        return tensors

    return OwnSettings("projected", options, encoder_options, weights if layers else None)


def _sparse(files: _Published) -> OwnSettings:
    """Return the settings of a SPLADE model: weights over the vocabulary, the maximum logit of each term."""
    if files.kinds not in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
        files.refuse(f"the modules {', '.join(files.kinds)}")
    if files.kinds[0] == "Transformer" and files.transformer.get("transformer_task") != "fill-mask":
        files.refuse("a SpladePooling of hidden states, without a vocabulary head")
    pooling = files.configuration("SpladePooling")
    for name, usual in (("pooling_strategy", "max"), ("activation_function", "relu")):
        if (value := pooling.get(name, usual)) != usual:
            files.refuse(f"the {name} {value} of its SpladePooling")
    if (similarity := files.described.get("similarity_fn_name")) not in (None, "dot"):
        files.refuse(f"the similarity {similarity} of sparse vectors")
    # The plugin's pooler, by name: SPLADE's weights have a single definition.
    options = {"views": "sparse", "pooled_tokens": "all", "top_k": files.described.get("max_active_dims")}
    return OwnSettings("dense_sparse", options, {**files.prefixes(), **files.lengths()})


def _late_interaction(files: _Published) -> OwnSettings:
    """Return the settings of a late-interaction model, with a vector for every token."""
    entries, layers = files.described, files.dense("token_embeddings")
    plain = ["Transformer", *["Dense"] * len(layers)]
    if not layers:
        files.refuse("no Dense: a projection would be random")
    if any(layer.activation != "identity" for layer in layers):
        files.refuse("an activation after its Dense")
    if (similarity := entries.get("similarity_fn_name")) not in (None, "MaxSim", "maxsim"):
        files.refuse(f"the similarity {similarity}")
    lengths = files.lengths()  # refuses lower case
    if files.kinds == plain:  # PyLate, with its defaults
        filled = entries.get("do_query_expansion") is not False
        usual = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
        markers = tuple(prefix if entries.get(name) is None else entries[name] for name, prefix in usual.items())
        of_queries: dict[str, Any] = {
            "markers": any(markers),
            "marker_tokens": markers,
            "query_filled": filled,
            "fill_attended": filled and bool(entries.get("attend_to_expansion_tokens")),
        }
        lengths = {name: entries.get(name) or length for name, length in _COLBERT_LENGTHS.items()}
        words = entries.get("skiplist_words")
        skipped = files.ids(list(string.punctuation) if words is None else words, unknown=True)
    elif files.kinds in ([*plain, "MultiVectorMask", "Normalize"], [*plain, "Normalize", "MultiVectorMask"]):
        # MultiVectorEncoder, whose prompts are ordinary text.
        expansion = files.transformer.get("query_expansion")
        if expansion is not None:
            if expansion["strategy"] != "fixed" or expansion.get("token"):
                files.refuse("a query_expansion other than to a fixed length with mask tokens")
            lengths["query_length"] = expansion["length"]
        of_queries = {
            "markers": False,
            "query_filled": expansion is not None,
            "fill_attended": bool(expansion and expansion.get("attend")),
        }
        mask = files.configuration("MultiVectorMask")
        if mask.get("keep_only_token_ids") or mask.get("skiplist_tasks") not in (None, ["document"]):
            files.refuse("a MultiVectorMask for other tokens than those of documents")
        skipped = files.ids(mask.get("skiplist_words") or [], unknown=False)
    else:
        files.refuse(f"the modules {', '.join(files.kinds)}")
    bias = any(layer.bias for layer in layers)
    options = {"dimension": layers[-1].out_features, "bias": bias, "skip_ids": skipped, **of_queries}

    def joined() -> Mapping[str, Tensor]:
        """Combine successive linear layers into a single layer."""
        import torch

        width = layers[0].in_features
        weight, bias = torch.eye(width, dtype=torch.double), torch.zeros(width, dtype=torch.double)
        for layer in layers:
            above, added = files.read_dense(layer)
            weight, bias = above.double() @ weight, above.double() @ bias
            bias = bias if added is None else bias + added.double()
        tensors = {"projection.weight": weight.float()}
        return tensors | {"projection.bias": bias.float()} if options["bias"] else tensors

    # PyLate encodes with the default prompt; sentence-transformers does not.
    prompts = files.prefixes(default=files.kinds == plain)
    return OwnSettings("colbert", options, {**prompts, **lengths}, joined)


def _colbert(files: _Published) -> OwnSettings | None:
    """Return the settings of a checkpoint of ColBERT's own code, such as ColBERTv2; None for any other model."""
    if (path := files.path("config.json")) is None:
        return None
    config = storage.read_json(path, do=_DO, nan=True)
    if not isinstance(config, dict) or config.get("architectures") != ["HF_ColBERT"]:
        return None
    files.library = "a ColBERT checkpoint"
    source = files.path("artifact.metadata")
    metadata = _Metadata() if source is None else storage.read_document(source, _Metadata, do=_DO)
    if metadata.similarity != "cosine":
        files.refuse(f"the similarity {metadata.similarity}")
    options = {
        "dimension": metadata.dim,
        "marker_tokens": (metadata.query_token_id, metadata.doc_token_id),
        "fill_attended": metadata.attend_to_mask_tokens,
        "skip_punctuation": metadata.mask_punctuation,
    }
    lengths = {"query_length": metadata.query_maxlen, "document_length": metadata.doc_maxlen}
    shape = metadata.dim, int(config.get("hidden_size", 768))

    def projection() -> Mapping[str, Tensor]:
        return {"projection.weight": files.tensors("", {"linear.weight": shape})["linear.weight"]}

    return OwnSettings("colbert", options, lengths, projection, "artifact.metadata")
