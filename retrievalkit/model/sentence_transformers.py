"""A model's own pooling, prompts and lengths, as sentence-transformers stores them beside the weights.

    modules.json                          the modules in their order: Transformer, Pooling, Normalize, ...
    1_Pooling/config.json                 which pooling
    sentence_bert_config.json             max_seq_length
    config_sentence_transformers.json     prompts, and the similarity that the model was made for

The files become options of our encoder and pooler; what these cannot do is refused, as a vector that is pooled in
another way than in training ranks badly without looking wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from retrievalkit import artifacts
from retrievalkit.errors import UnsupportedError
from retrievalkit.model.pretrained import locate_model, model_file

MODULES = "modules.json"
_DO = "Download the model again."

# Their names of poolings, in "pooling_mode_<name>" and in "pooling_mode": our poolers.
_POOLERS = {"cls_token": "cls", "cls": "cls", "mean_tokens": "mean", "mean": "mean", "max_tokens": "max", "max": "max"}
_POOLERS |= {"lasttoken": "last"}
_SIDES = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Without effect when a model is not trained.
_IGNORED = frozenset({"Dropout"})


@dataclass(frozen=True)
class OwnSettings:
    """What a model says about its use.

    Attributes:
        pooler: Registered name of the pooler.
        pooler_options: Its options.
        encoder_options: Options of the encoder `transformer`: prefixes and lengths, where the model sets them.
    """

    pooler: str
    pooler_options: Mapping[str, Any]
    encoder_options: Mapping[str, Any]


def own_settings(model: str | Path, *, revision: str | None = None) -> OwnSettings | None:
    """The settings of a sentence-transformers model; None for a model that has no modules.json.

    Args:
        model: Name or folder.
        revision: Branch, tag or commit of a model on the hub.

    Raises:
        UnsupportedError: A module, a pooling or a similarity has no equivalent here.
        ArtifactError: A file is damaged.
    """
    files = _Files(str(model), locate_model(model), revision)
    modules = files.read(MODULES, list[_Module])
    if modules is None:
        return None
    normalize = _check_modules(modules, files)
    described = files.read("config_sentence_transformers.json", _Described) or {}
    prefixes = _prefixes(described)
    pooler = _pooler(files.read(_inside(modules, "Pooling"), _Pooling) or {}, files, prefixes)
    cosine = _compares_by_cosine(described, files)
    length = _length(files)
    lengths = {} if length is None else {"query_length": length, "document_length": length}
    return OwnSettings(pooler, {"normalize": normalize or cosine}, {**prefixes, **lengths})


def left_out(
    model: str | Path,
    pooler: str,
    pooler_options: Mapping[str, Any],
    encoder_options: Mapping[str, Any],
    *,
    all_given: bool = False,
) -> list[str]:
    """A sentence about what a model was trained with and these options leave out, lengths apart; [] if nothing.

    Args:
        model: Name or folder.
        pooler: The pooler named for it.
        pooler_options: The options given for the pooler.
        encoder_options: The options given for the encoder.
        all_given: Defaults are among the options, as in a description; else an option that is given is meant so.
    """
    try:
        own = own_settings(model, revision=encoder_options.get("revision"))
    except _WithoutEquivalentError as error:
        return [f"{error.problem}: --pooler {pooler} does without."]
    if own is None:
        return []
    lost = [] if own.pooler == pooler else [f"--pooler {own.pooler}"]
    given = {"pooler": pooler_options, "encoder": encoder_options}
    wanted = {"pooler": own.pooler_options, "encoder": own.encoder_options}
    lost += [
        f"--set {part}.{name}={json.dumps(value) if isinstance(value, bool) else value}"
        for part, options in wanted.items()
        for name, value in options.items()
        if value is not False and not name.endswith("_length")
        if (given[part].get(name) != value if all_given else name not in given[part])
    ]
    if not lost:
        return []
    return [
        f"--pooler {pooler} leaves out settings that the model '{model}' was trained with ({MODULES}): "
        f"{' '.join(lost)}. Encode or train with them too, or without --pooler to take all of the model's own."
    ]


class _WithoutEquivalentError(UnsupportedError):
    """A model has a part that cannot be read."""

    def __init__(self, problem: str) -> None:
        do = "Name a pooler to do without the model's own settings, such as --pooler mean --set pooler.normalize=true."
        super().__init__(f"{problem}. {do}")
        self.problem = problem


@dataclass(frozen=True)
class _Files:
    """The JSON files of a model, and complaints that name it."""

    model: str
    source: str
    revision: str | None

    def read(self, name: str, form: type) -> Any:
        path = model_file(self.source, name, revision=self.revision)
        if path is None:
            return None
        value = artifacts.read_json(path, do=_DO)
        artifacts.check_document(value, form, file=path, do=_DO)
        return value

    def refuse(self, problem: str) -> NoReturn:
        msg = f"the model '{self.model}' is a sentence-transformers model with {problem}, which has no equivalent here"
        raise _WithoutEquivalentError(msg)


@dataclass(frozen=True)
class _Module:
    """The form of an entry of modules.json."""

    type: str
    path: str = ""


@dataclass(frozen=True)
class _Described:
    """The form of config_sentence_transformers.json."""

    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None


@dataclass(frozen=True)
class _Pooling:
    """The form of a pooling's config.json, whose other entries are true or false."""

    pooling_mode: str | list[str] | None = None


@dataclass(frozen=True)
class _Lengths:
    """The form of what other files say of lengths and case."""

    do_lower_case: bool | None = None
    max_seq_length: int | None = None
    max_position_embeddings: int | None = None
    model_max_length: int | float | None = None


def _inside(modules: Sequence[Mapping[str, Any]], kind: str) -> str:
    """The configuration of a module, in the module's folder."""
    return "/".join(filter(None, (_path_of(modules, kind), "config.json")))


def _kind(module: Mapping[str, Any]) -> str:
    return str(module["type"]).rpartition(".")[2]


def _path_of(modules: Sequence[Mapping[str, Any]], kind: str) -> str:
    return str(next(module for module in modules if _kind(module) == kind).get("path", ""))


def _check_modules(modules: Sequence[Mapping[str, Any]], files: _Files) -> bool:
    """Whether vectors are normalised; refuses all but a Transformer, a Pooling and, at the end, a Normalize."""
    kinds = [_kind(module) for module in modules if _kind(module) not in _IGNORED]
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            files.refuse(f"the module {kind}")
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        files.refuse(f"the modules {', '.join(kinds)}")
    if folder := _path_of(modules, "Transformer"):
        files.refuse(f"its transformer in the folder '{folder}'")
    return "Normalize" in kinds


def _prefixes(described: Mapping[str, Any]) -> dict[str, str]:
    """The prompt of each side: the one of its name, else the default prompt."""
    prompts: Mapping[str, str] = described.get("prompts") or {}
    default = prompts.get(described.get("default_prompt_name") or "", "")
    prefixes = {
        f"{side}_prefix": next((prompts[name] for name in names if name in prompts), default)
        for side, names in _SIDES.items()
    }
    return {name: prefix for name, prefix in prefixes.items() if prefix}


def _pooler(pooling: Mapping[str, Any], files: _Files, prefixes: Mapping[str, str]) -> str:
    prefix = "pooling_mode_"
    modes = [name.removeprefix(prefix) for name, on in pooling.items() if name.startswith(prefix) and on is True]
    given = pooling.get("pooling_mode")
    modes = modes or ([given] if isinstance(given, str) else list(given or []))
    if len(modes) != 1 or modes[0] not in _POOLERS:
        files.refuse(f"the pooling {' and '.join(modes) or 'of an unknown kind'}")
    if prefixes and pooling.get("include_prompt") is False:
        files.refuse("a pooling that leaves out the prompt")
    return _POOLERS[modes[0]]


def _compares_by_cosine(described: Mapping[str, Any], files: _Files) -> bool:
    """Whether the model says so; the scoring rule is the inner product, which is the cosine of normalised vectors."""
    similarity = described.get("similarity_fn_name")
    if similarity not in (None, "cosine", "dot"):
        files.refuse(f"the similarity {similarity}")
    return bool(similarity == "cosine")


def _length(files: _Files) -> int | None:
    """Most tokens of a text; None leaves it to the encoder."""
    described = files.read("sentence_bert_config.json", _Lengths) or {}
    tokenizer = files.read("tokenizer_config.json", _Lengths) or {}
    if described.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        files.refuse("texts in lower case before a tokenizer that keeps the case")
    if described.get("max_seq_length"):
        return int(described["max_seq_length"])
    # Without one sentence-transformers takes the less of these two.
    positions = (files.read("config.json", _Lengths) or {}).get("max_position_embeddings")
    longest = tokenizer.get("model_max_length")
    return min(int(positions), int(longest)) if positions and longest else None
