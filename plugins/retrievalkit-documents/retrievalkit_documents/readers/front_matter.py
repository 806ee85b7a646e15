"""Front matter: metadata in YAML or TOML at the start of a text."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from datetime import date, time
from typing import Any

from retrievalkit_documents.text import Text

_YAML = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_TOML = re.compile(r"\A\+\+\+[ \t]*\n(.*?)^\+\+\+[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"([\w.@/-]+(?: [\w.-]+)?|\"[^\"\n]+\"|'[^'\n]+')[ \t]*:(?:[ \t]+|$)", re.MULTILINE)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_LONGEST = 1 << 16  # characters
_MOST_NODES = 10_000
_DEEPEST = 20


def split(source: str, text: Text) -> tuple[dict[str, Any], str]:
    """Return front matter and the rest of a text; a block is front matter only if it is a mapping."""
    if (block := _YAML.match(source)) and len(block[1]) <= _LONGEST:
        values = _yaml(block[1], text)
    elif block := _TOML.match(source):
        values = _toml(block[1])
    else:
        return {}, source
    if not values:
        return {}, source
    return {name: value for name, value in values.items() if value is not None}, source[block.end() :]


def _toml(source: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(source)
    except (ValueError, RecursionError):
        return {}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it; dates become ISO texts."""
    if isinstance(value, date | time):
        return value.isoformat()
    if (isinstance(value, float) and not math.isfinite(value)) or depth > _DEEPEST:
        return None
    if isinstance(value, Mapping):
        return {str(name): _plain(item, depth + 1) for name, item in value.items()}
    return [_plain(item, depth + 1) for item in value] if isinstance(value, list) else value


def _yaml(source: str, text: Text) -> dict[str, Any]:
    """Return the entries of a YAML mapping; {} if it is none. An entry that is not YAML is kept as text."""
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        root = yaml.compose(source, loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return _entries(source, text)
    if not isinstance(root, yaml.MappingNode) or not all(isinstance(key, yaml.ScalarNode) for key, _ in root.value):
        return {}
    values = _Values(text).mapping(root, 0)
    return values if isinstance(values, dict) else {}


def _entries(source: str, text: Text) -> dict[str, Any]:
    """Return the entries of a block that is not YAML, each parsed alone: `title: Guide: install` is a text."""
    values: dict[str, Any] = {}
    entries: list[list[str]] = []
    for line in source.split("\n"):
        if _ENTRY.match(line):
            entries.append([line])
        elif line.strip() and not line.lstrip().startswith("#"):
            if not entries or (line[0] not in " \t-]}"):
                return {}  # prose between two rules
            entries[-1].append(line)
    for entry in entries:
        name, _, value = entry[0].partition(":")
        name = name.strip(" \t\"'")
        import yaml

        try:
            root = yaml.compose("\n".join(entry), getattr(yaml, "CBaseLoader", yaml.BaseLoader))
            parsed = _Values(text).mapping(root, 0)
            values |= parsed
        except (yaml.YAMLError, ValueError, RecursionError, AttributeError):
            values[name] = " ".join([value, *entry[1:]]).strip(" \t\"'")
    return values


class _TooMuchError(ValueError):
    pass


class _Values:
    """Conversion of YAML nodes to values by YAML 1.2: `no` and `2021-05-01` are texts. Aliases are bounded."""

    def __init__(self, text: Text) -> None:
        self._nodes = 0
        self._text = text

    def mapping(self, node: Any, depth: int) -> dict[str, Any]:
        """Return the entries that can be converted; others are counted."""
        values: dict[str, Any] = {}
        for key, value in node.value:
            try:
                converted = self._value(value, depth + 1)
            except _TooMuchError:
                if depth:
                    raise
                self._nodes = 0
                self._text.count("fields that refer to themselves or are too large")
                continue
            if str(key.value) == "<<" and not key.style:
                merged = converted if isinstance(converted, list) else [converted]
                values = {
                    name: item for part in merged if isinstance(part, dict) for name, item in part.items()
                } | values
            else:
                values[str(key.value)] = converted
        return values

    def _value(self, node: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > _MOST_NODES or depth > _DEEPEST:
            raise _TooMuchError
        if isinstance(node.value, str):
            return node.value if node.style else _scalar(node.value)
        if node.id == "mapping":
            return self.mapping(node, depth)
        return [self._value(item, depth + 1) for item in node.value]


def _scalar(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word) and len(word) < 20:
        return int(word)
    if _FLOAT.fullmatch(word) and not (word.isdigit() or (word.lstrip("+-").startswith("0") and "." not in word)):
        return float(word) if math.isfinite(float(word)) else word
    return word
