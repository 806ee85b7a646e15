"""Pretrained models: location, loading and fingerprints, and the weights of any module.

All access to the Hugging Face hub goes through this module: an unavailable model is always the same error, within
seconds, and no code of a model runs without permission. Imports nothing heavy, since recipes locate models with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from retrievalkit import storage
from retrievalkit.errors import ArtifactError, InputError, OptionError, RetrievalkitError
from retrievalkit.registry import trust
from retrievalkit.registry.modules import large_imports, package_folder
from retrievalkit.reporting.terminal import say
from retrievalkit.storage import NOT_WEIGHTS

if TYPE_CHECKING:
    from torch import nn

_PROBE_SECONDS = 4.0
_COPY = "Copy the model again."
# Names of sizes in any architecture's configuration, with their minimum and maximum.
_BOUNDS = (
    (re.compile(r"(num_|n_)(\w+_)?(heads?|layers?)|relative_attention_max_distance"), 1, 10_000),
    (re.compile(r"hidden_size|d_model|dim|n_embd"), 1, 1 << 16),
    (re.compile(r"\w*(_size|_dim|_width)|d_\w+|n_inner"), 0, 1 << 21),
    (re.compile(r"\w+_token_id"), -1, 1 << 21),
    (re.compile(r"n_positions|max_position_embeddings"), 0, 1 << 24),
)


def locate_model(model: str | Path) -> str:
    """Return the folder or hub name of a model; `package:NAME/FOLDER` is a folder in an installed Python package."""
    name = str(model)
    if not name.startswith("package:"):
        return name
    package, _, inside = name.removeprefix("package:").partition("/")
    if not package or os.path.isabs(inside) or ".." in Path(inside).parts:
        msg = f"model '{name}' is not package:NAME/FOLDER: the name of a package, and a folder inside it."
        raise InputError(msg)
    home = package_folder(package)
    if home is None:
        msg = f"model '{name}' is in the Python package '{package}', which is not installed. Install it with pip."
        raise InputError(msg)
    folder = home / inside
    if not folder.is_dir():
        msg = f"model '{name}': the package '{package}' has no folder '{inside}'."
        raise InputError(msg)
    return str(folder)


def model_fingerprint(model: str) -> str:
    """Return the identity of a pretrained model: the fingerprint of a folder's files, else the name."""
    located = locate_model(model)
    if not os.path.isdir(located):
        return located
    remedy = "Copy the model again, or pretrain it again."
    return storage.checked_fingerprint(located, "model", skip=NOT_WEIGHTS, remedy=remedy)


def model_identity(source: str, options: object = None, *, revision: str | None = None) -> list[object] | None:
    """Return a model's identity in a cache: its files (or hub commit) and options; None without a configuration."""
    config = model_file(source, "config.json", revision=revision)
    if config is None:
        return None
    return [source, model_fingerprint(source) if os.path.isdir(source) else config.parent.name, options]


def load_pretrained(kind: Any, source: str, **options: Any) -> Any:
    """Call `kind.from_pretrained` quietly; any failure is an InputError."""
    check_source(source)
    whole = os.path.isfile(os.path.join(source, "config.json"))
    if not whole and model_file(source, "adapter_config.json", revision=options.get("revision")):
        # Transformers would load the model that this file names: any model on the hub, or any folder of the user.
        msg = f"'{source}' is an adapter of another model. Use the merged model (PEFT: merge_and_unload) instead."
        raise InputError(msg)
    unreachable = None if os.path.isdir(source) else _hub_problem()
    with _explained(source, unreachable), _hub_as_allowed(offline=unreachable is not None), quiet(), large_imports():
        # Always passed: otherwise transformers prompts on the terminal, and runs the code if the answer is "y".
        loaded = kind.from_pretrained(source, **options, trust_remote_code=trust.code_allowed())
    check_attention(getattr(loaded, "_attn_implementation", None), source)
    return loaded


def check_source(source: str) -> None:
    """Refuse our folders that are not models, and configurations with impossible sizes."""
    kind = storage.kind_of(source)
    if kind == "checkpoint":
        inner = next((name for name in ("encoder", "query") if os.path.isdir(os.path.join(source, name))), "encoder")
        encoder = os.path.join(source, inner)
        msg = f"'{source}' is a retriever (rkit train), not a pretrained model. Use its encoder: '{encoder}'."
        raise ArtifactError(msg)
    if kind in ("vectors", "index"):
        content = "vectors" if kind == "vectors" else "an index"
        msg = f"'{source}' holds {content}, not a model. Name a model, a folder of a model, or a checkpoint."
        raise ArtifactError(msg)
    check_configuration(source)


@dataclass(frozen=True)
class _Tokenizer:
    """The schema of tokenizer_config.json."""

    model_max_length: Annotated[float, Ge(3)] | None = None


@dataclass(frozen=True)
class _Shards:
    """The schema of model.safetensors.index.json."""

    weight_map: dict[str, str]


def check_configuration(folder: str | Path) -> None:
    """Refuse a folder that refers to files outside it, or whose configuration has impossible sizes.

    A billion layers would fill the memory before they are compared with any weight.
    """
    storage.check_own_files(folder)
    named: dict[str, Path] = {}
    tokenizer, path = Path(folder) / "tokenizer_config.json", Path(folder) / "config.json"
    if tokenizer.is_file():
        entries = storage.read_json(tokenizer, _Tokenizer, do=_COPY, nan=True)
        # Some versions of transformers open these paths unchecked, such as vocab_file, except two.
        ignored = ("special_tokens_map_file", "added_tokens_file")
        named |= {str(entries[name]): tokenizer for name in entries if name.endswith("_file") and name not in ignored}
    for listing in Path(folder).glob("*.index.json"):
        shards = storage.read_document(listing, _Shards, do=_COPY).weight_map.values()
        named |= dict.fromkeys(shards, listing)
    for name, file in named.items():
        if "/" in name and os.path.isfile(Path(folder) / name):
            msg = f"'{file}' names the file '{name}', and may only name files of its own folder. {_COPY}"
            raise ArtifactError(msg)
    if not path.is_file():
        return
    values = storage.read_document(path, dict[str, Any], do=_COPY, nan=True)
    for name, value in values.items():
        for pattern, least, most in _BOUNDS:
            if pattern.fullmatch(name) and isinstance(value, int | float) and not least <= value <= most:
                msg = f"'{path}' is damaged: {name} is {value!r}, and should be from {least} to {most:,}. {_COPY}"
                raise ArtifactError(msg)


def check_attention(implementation: object, source: str) -> None:
    """Refuse an attention implementation that is code on the hub ("owner/name"), unless the user allows code."""
    if "/" in str(implementation) and not trust.code_allowed():
        raise code_refused(source, f"code of the hub, the attention '{implementation}'")


def check_missing(missing: Sequence[str], source: str) -> None:
    """Refuse a model whose weights lack tensors that transformers would initialise at random."""
    if missing:
        lacking = f"{len(missing)} tensors of its architecture, such as '{min(missing)}'"
        msg = f"the weights of '{source}' lack {lacking}: they would be random. Check the model folder."
        raise InputError(msg)


def code_refused(source: str, what: str = "Python code that came with it") -> InputError:
    """Return the error for a model that needs code which the user has not allowed."""
    return InputError(
        f"the model '{source}' needs {what}; none of it was run. If you have read and trust that code, set "
        f"{trust.TRUST}=1 in the environment. No option and no file can allow it."
    )


def model_file(source: str, name: str, *, revision: str | None = None) -> Path | None:
    """Return a file of a model, downloaded if the model is on the hub; None if it does not exist."""
    if os.path.isabs(name) or ".." in Path(name).parts:
        return None  # the name may come from a file of the model
    if os.path.isdir(source):
        path = Path(source) / name
        return path if path.is_file() else None
    from transformers.utils import cached_file

    try:
        with _hub_as_allowed(offline=_hub_problem() is not None):
            path_in_cache = cached_file(source, name, revision=revision)
    except (OSError, ValueError):
        return None
    return Path(path_in_cache) if path_in_cache else None


def download_model(source: str, patterns: Sequence[str]) -> str:
    """Download files of a model to the cache of the hub, and return their folder."""
    from huggingface_hub import snapshot_download

    unreachable = _hub_problem()
    with _explained(source, unreachable), _hub_as_allowed(offline=unreachable is not None):
        return str(snapshot_download(source, allow_patterns=list(patterns)))


@contextmanager
def uploading(folder: str | os.PathLike[str], name: str | None) -> Iterator[None]:
    """Upload a folder to the repository USER/NAME of the Hugging Face hub at the end of the block; None = no upload.

    A new repository is private, and is created first: a missing login is reported before the work of the block. Files
    that may name local paths, such as the manifest, are not uploaded.

    Raises:
        OptionError: The command is a step of a recipe, which may not use the user's token.
        RetrievalkitError: The hub cannot be reached, or refuses the upload.
    """
    if name is None:
        yield
        return
    if trust.in_recipe():
        msg = f"a recipe may not upload to '{name}' with your token. Leave push out, and push its output yourself."
        raise OptionError(msg)
    from huggingface_hub import HfApi

    with _upload_explained(name):
        address = HfApi().create_repo(name, private=True, exist_ok=True)
    yield
    with _upload_explained(name):
        local = [f"{prefix}*" for prefix in NOT_WEIGHTS if prefix != "README.md"]
        HfApi().upload_folder(repo_id=name, folder_path=folder, ignore_patterns=local)
    say(f"uploaded to {address}", err=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers except for errors; its settings are restored at the end."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def save_pretrained(model: Any, tokenizer: Any, folder: Path, **options: Any) -> None:
    """Write a Hugging Face folder."""
    if tokenizer.is_fast:
        # A fast tokenizer would store truncation and padding of its last call.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    with quiet():
        model.save_pretrained(folder, **options)
        tokenizer.save_pretrained(folder)


def save_weights(model: nn.Module, path: Path) -> None:
    """Write a module's weights; shared tensors are stored once."""
    import safetensors.torch

    safetensors.torch.save_model(model, str(path))


def load_weights(model: nn.Module, path: Path) -> None:
    """Read the file of `save_weights`."""
    import safetensors.torch

    safetensors.torch.load_model(model, str(path))


def check_finite(model: nn.Module, source: str) -> None:
    """Refuse a model with NaN or infinite weights: all its outputs would be NaN."""
    for name, weight in model.named_parameters():
        # A sum is faster than checking each number, and may be infinite although all numbers are finite.
        if weight.is_floating_point() and not weight.sum().isfinite() and not weight.isfinite().all():
            remedy = "Copy the model again, or train it again with a lower learning rate."
            msg = f"'{source}': the tensor '{name}' holds NaN or infinite numbers. {remedy}"
            raise ArtifactError(msg)


@cache
def _hub_problem() -> str | None:
    """Return the reason why the hub cannot be reached; None if it can, or if the user works offline.

    A single request, without the library's retries, which take minutes for all files of a model.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        get_session().head(constants.ENDPOINT, timeout=_PROBE_SECONDS)
    except Exception as error:  # noqa: BLE001 - the exceptions depend on the HTTP library of huggingface_hub's release
        return f"{constants.ENDPOINT} cannot be reached ({_first_line(error)})"
    return None


@contextmanager
def _hub_as_allowed(*, offline: bool) -> Iterator[None]:
    """Restrict the library to its cache, or to the hub without a token if a file named the model.

    The library's own options, `local_files_only` and `token`, do not reach every request.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_IMPLICIT_TOKEN
    constants.HF_HUB_OFFLINE = before[0] or offline
    constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = before[1] or trust.is_anonymous()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = before


@contextmanager
def _explained(source: str, unreachable: str | None) -> Iterator[None]:
    try:
        yield
    except RetrievalkitError:
        raise
    except Exception as error:  # transformers raises anything on values of wrong types in its files
        if "custom code" in str(error) and not trust.code_allowed():
            raise code_refused(source) from error
        if unreachable:
            msg = (
                f"cannot load the model '{source}': it is not a local folder, the cache does not hold it, and "
                f"{unreachable}. Check the name and the network, or use a folder or package:NAME/FOLDER."
            )
        else:
            place = "the folder" if os.path.exists(source) else "the hub or a local folder"
            msg = f"cannot load the model '{source}' from {place}: {_first_line(error)}"
        raise InputError(msg) from error


@contextmanager
def _upload_explained(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # errors of the library's HTTP client differ between releases
        reason = " ".join(str(error).split())[:300]
        msg = f"nothing was uploaded to '{name}': {reason} Log in (hf auth login), then run the command again."
        raise RetrievalkitError(msg) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    # A validation error names the field in the first line, and the problem in the second.
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else type(error).__name__
