"""Parsing of recipe files and `--set`: YAML 1.2, with file and line of each key.

PyYAML follows YAML 1.1, which reads `no` as false, 1e-5 as text and 1:30 as 90.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from retrievalkit.errors import DataError, OptionError, UnknownNameError

if TYPE_CHECKING:
    import yaml

_MOST_DIGITS, _MOST_VALUES = 300, 100_000
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None}


class Place(NamedTuple):
    """Source location: a file and a line, counted from 1."""

    file: str
    line: int


NOWHERE = Place("", 0)


class Section(dict[str, Any]):
    """A mapping of a YAML file, with its place and the places of its keys."""

    def __init__(self, place: Place = NOWHERE) -> None:
        super().__init__()
        self.place = place
        self.places: dict[str, Place] = {}

    def fail(self, problem: str, key: str = "") -> NoReturn:
        """Raise an error about a key, or about the whole section."""
        raise DataError(problem, **self.places.get(key, self.place)._asdict())

    def check_keys(self, known: Sequence[str], kind: str) -> None:
        """Refuse unknown keys."""
        for key in self:
            if key not in known:
                self.fail(str(UnknownNameError(f"key of a {kind}", key, known)), key)

    def required(self, key: str, type_: type, what: str) -> Any:
        """Return the value of a required key, of this type."""
        value = self.get(key)
        if value is None:
            self.fail(f"'{key}' is missing.")
        if not isinstance(value, type_):
            self.fail(f"'{key}' is {value!r}, but should be {what}.", key)
        return value

    def section(self, key: str) -> Section:
        """Return the mapping under a key; empty if the key is missing."""
        if self.get(key) is None:
            return Section(self.places.get(key, self.place))
        section: Section = self.required(key, Section, "a mapping")
        return section


def join(base: Section, changes: Mapping[str, Any]) -> Section:
    """Merge two mappings: nested mappings are merged key by key; for other values, `changes` win."""
    joined = Section(changes.place if isinstance(changes, Section) else base.place)
    joined.places = base.places | (changes.places if isinstance(changes, Section) else {})
    joined |= base
    for key, value in changes.items():
        current = base.get(key)
        joined[key] = join(current, value) if isinstance(current, Section) and isinstance(value, Mapping) else value
    return joined


def read_yaml(path: str | Path) -> Any:
    """Read a YAML file, with mappings as `Section`."""
    import yaml

    try:
        node = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        if node is not None:
            return _value(node, str(path), iter(range(_MOST_VALUES)))
        problem, line = "the file is empty", None
    except UnicodeDecodeError as error:
        problem = f"byte 0x{error.object[error.start]:02x} is not UTF-8. Save the file as UTF-8"
        line = error.object.count(b"\n", 0, error.start) + 1
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = f"broken YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}"
        line = mark.line + 1 if mark else None
    except RecursionError:
        problem, line = "values are nested too deeply. Use fewer levels", 1
    msg = f"{problem}."
    raise DataError(msg, file=path, line=line)


def _value(node: yaml.Node, file: str, remaining: Iterator[int]) -> Any:
    if next(remaining, None) is None:
        # Aliases are expanded at each occurrence.
        msg = f"the file has more than {_MOST_VALUES:,} values once its aliases (*name) are expanded. Use fewer."
        raise DataError(msg, file=file, line=node.start_mark.line + 1)
    if node.id == "scalar":
        return scalar(node.value) if node.style is None else node.value
    if node.id == "sequence":
        return [_value(item, file, remaining) for item in node.value]
    section = Section(Place(file, node.start_mark.line + 1))
    for key_node, value_node in node.value:
        key, line = key_node.value, key_node.start_mark.line + 1
        if key_node.id != "scalar" or key in section:
            msg = "a key of a mapping is not a plain name. Write it as text."
            if key_node.id == "scalar":
                msg = f"'{key}' occurs twice, first in line {section.places[key].line}. Remove one of them."
            raise DataError(msg, file=file, line=line)
        section[key], section.places[key] = _value(value_node, file, remaining), Place(file, line)
    return section


def scalar(text: str) -> Any:
    """Parse a plain scalar: a number, true, false, null or text."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    # A number that is too large for a float stays text, and its option refuses it.
    return float(text) if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else text


def parse_set(settings: Iterable[str]) -> dict[str, Any]:
    """Parse the settings of `--set` to nested options: ["pooler.layers=10,12"] -> {"pooler": {"layers": "10,12"}}.

    Values are parsed as in a recipe: numbers, true, false, null, [lists], "quoted" text, and text.
    """
    parsed: list[tuple[str, Any]] = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        value = scalar(text)
        if text.startswith(("[", '"', "'")):
            import yaml

            try:
                value = _value(yaml.compose(text, Loader=yaml.SafeLoader), setting, iter(range(_MOST_VALUES)))
            except (yaml.YAMLError, DataError, RecursionError) as error:
                msg = f"--set {setting!r}: the value cannot be read: {getattr(error, 'problem', error)}."
                raise OptionError(msg) from None
        parsed.append((key.strip() if equals else "", value))
        if not all(parsed[-1][0].split(".")):
            msg = f"--set {setting!r} is not of the form KEY=VALUE, such as pooler.layers=4,6 or epochs=3."
            raise OptionError(msg)
    return nested(parsed)


def nested(settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Nest options with dotted keys; the inverse of `flatten`."""
    options: dict[str, Any] = {}
    for key, value in settings:
        *names, last = key.split(".")
        section = options
        for name in names:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                msg = f"--set '{key}': '{name}' has been set to {section!r} already, so it has no options."
                raise OptionError(msg)
        if isinstance(section.get(last), dict):
            msg = f"--set '{key}': options of '{key}' have been set already, so it cannot be a single value."
            raise OptionError(msg)
        section[last] = value
    return options


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested options to dotted keys: {"pooler": {"layers": [4, 6]}} -> {"pooler.layers": [4, 6]}."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
