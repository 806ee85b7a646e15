"""The configuration files of a model folder: sizes that no model has are refused before transformers makes it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from retrievalkit import artifacts
from retrievalkit.errors import ArtifactError

_DO = "Copy the model again."
# The names of sizes in any architecture's configuration, with the least and the greatest that is taken.
_BOUNDS = (
    (re.compile(r"(num_|n_)(\w+_)?(heads?|layers?)|relative_attention_max_distance"), 1, 10_000),
    (re.compile(r"hidden_size|d_model|dim|n_embd"), 1, 1 << 16),
    (re.compile(r"\w*(_size|_dim|_width)|d_\w+|n_inner"), 0, 1 << 21),
    (re.compile(r"\w+_token_id"), -1, 1 << 21),
    (re.compile(r"n_positions|max_position_embeddings"), 0, 1 << 24),
)


@dataclass(frozen=True)
class _Tokenizer:
    """The form of tokenizer_config.json."""

    model_max_length: Annotated[float, Field(ge=3)] | None = None


@dataclass(frozen=True)
class _Shards:
    """The form of model.safetensors.index.json."""

    weight_map: dict[str, str]


def check_configuration(folder: str | Path) -> None:
    """Refuse a folder that leads to files outside of it, or whose configuration names sizes that no model has.

    A billion layers would take all memory before any weight is compared with them.
    """
    artifacts.check_own_files(folder)
    named: dict[str, Path] = {}
    tokenizer, path = Path(folder) / "tokenizer_config.json", Path(folder) / "config.json"
    if tokenizer.is_file():
        says = artifacts.read_json(tokenizer, _Tokenizer, do=_DO, nan=True)
        # Some versions of transformers open these as they stand, such as vocab_file, but for two.
        ignored = ("special_tokens_map_file", "added_tokens_file")
        named |= {str(says[name]): tokenizer for name in says if name.endswith("_file") and name not in ignored}
    for listing in Path(folder).glob("*.index.json"):
        shards = artifacts.read_document(listing, _Shards, do=_DO).weight_map.values()
        named |= dict.fromkeys(shards, listing)
    for name, file in named.items():
        if "/" in name and os.path.isfile(Path(folder) / name):
            msg = f"'{file}' names the file '{name}', and should name files of its folder alone. {_DO}"
            raise ArtifactError(msg)
    if not path.is_file():
        return
    values = artifacts.read_document(path, dict[str, Any], do=_DO, nan=True)
    for name, value in values.items():
        for pattern, least, most in _BOUNDS:
            if pattern.fullmatch(name) and isinstance(value, int | float) and not least <= value <= most:
                msg = f"'{path}' is damaged: {name} is {value!r}, and should be from {least} to {most:,}. {_DO}"
                raise ArtifactError(msg)
