"""The content of recipe files and of `--set`: YAML 1.2 whose keys know their file and line.

PyYAML follows YAML 1.1, which reads `no` as false, 1e-5 as text and 1:30 as 90.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from retrievalkit.errors import DataError, OptionError, UnknownNameError

if TYPE_CHECKING:
    import yaml

_MOST_DIGITS = 300
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MOST_BYTES, _MOST_NODES, _MOST_DEPTH = 1 << 20, 100_000, 50
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None}


class Place(NamedTuple):
    """A file, and a line in it counted from 1."""

    file: str
    line: int


NOWHERE = Place("", 0)


class Section(dict[str, Any]):
    """A mapping of a YAML file, with its place in the file.

    Attributes:
        place: Where it starts.
        places: Key -> where it is.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.places: dict[str, Place] = {}

    def put(self, key: str, value: Any, place: Place) -> None:
        """Set a key."""
        self[key] = value
        self.places[key] = place

    def fail(self, problem: str, key: str = "") -> NoReturn:
        """Raise an error about a key, or about the whole section."""
        raise DataError(problem, **self.places.get(key, self.place)._asdict())

    def check_keys(self, known: Sequence[str], kind: str) -> None:
        """Refuse unknown keys."""
        for key in self:
            if key not in known:
                self.fail(str(UnknownNameError(f"key of a {kind}", key, known)), key)

    def wanted(self, key: str, type_: type, what: str) -> Any:
        """The value of a required key, of the type that is asked for."""
        value = self.get(key)
        if value is None:
            self.fail(f"'{key}' is missing.")
        if not isinstance(value, type_):
            self.fail(f"'{key}' is {value!r}, and should be {what}.", key)
        return value

    def section(self, key: str) -> Section:
        """The mapping under a key; empty if the key is missing."""
        if self.get(key) is None:
            return Section(self.places.get(key, self.place))
        found: Section = self.wanted(key, Section, "a mapping")
        return found


def join(base: Section, own: Mapping[str, Any]) -> Section:
    """Both mappings in one: nested mappings are joined key by key; of other values, that of `own` wins."""
    joined = Section(own.place if isinstance(own, Section) else base.place)
    joined.places = base.places | (own.places if isinstance(own, Section) else {})
    joined |= base
    for key, value in own.items():
        before = base.get(key)
        joined[key] = join(before, value) if isinstance(before, Section) and isinstance(value, Mapping) else value
    return joined


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file, with mappings as `Section`.

    Raises:
        DataError: It is not valid YAML, or beyond the bounds of a recipe; names the line.
    """
    import yaml

    try:
        node = _compose(_read(path), str(path))
    except UnicodeDecodeError as error:
        msg = f"byte 0x{error.object[error.start]:02x} is not UTF-8. Save the file as UTF-8."
        raise DataError(msg, file=path, line=error.object.count(b"\n", 0, error.start) + 1) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        msg = f"broken YAML: {problem}."
        raise DataError(msg, file=path, line=mark.line + 1 if mark else None) from None
    if node is None:
        msg = "the file is empty."
        raise DataError(msg, file=path)
    return _Constructor(str(path)).value(node)


def _read(path: str | Path) -> str:
    with Path(path).open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        msg = f"the file has more than {_MOST_BYTES:,} bytes, which no recipe needs. Give another file."
        raise DataError(msg, file=path)
    return content.decode("utf-8")


def _compose(text: str, file: str) -> yaml.Node | None:
    """The nodes of a YAML text, nested no deeper than a recipe needs."""
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            self.depth += 1
            if self.depth > _MOST_DEPTH:
                raise _too_deep(file, self.peek_event().start_mark)
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

    return yaml.compose(text, Loader=Loader)


def _too_deep(file: str, mark: yaml.Mark) -> DataError:
    msg = f"values are nested more than {_MOST_DEPTH} deep. Write them flatter."
    return DataError(msg, file=file, line=mark.line + 1)


class _Constructor:
    """Makes values of nodes. An alias is expanded where it stands, so the values made are counted."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.made = 0

    def value(self, node: yaml.Node, depth: int = 0) -> Any:
        """The value of a node."""
        self.made += 1
        if depth > _MOST_DEPTH:
            raise _too_deep(self.file, node.start_mark)
        if self.made > _MOST_NODES:
            msg = f"the file has more than {_MOST_NODES:,} values once its aliases (*name) are expanded. Use fewer."
            raise DataError(msg, file=self.file, line=node.start_mark.line + 1)
        if node.id == "scalar":
            return scalar(node.value) if node.style is None else node.value
        if node.id == "sequence":
            return [self.value(one, depth + 1) for one in node.value]
        return self._section(node, depth)

    def _section(self, node: yaml.Node, depth: int) -> Section:
        section = Section(Place(self.file, node.start_mark.line + 1))
        for key_node, value_node in node.value:
            key, place = key_node.value, Place(self.file, key_node.start_mark.line + 1)
            if key_node.id != "scalar":
                msg = "a key of a mapping is not a plain name. Write it as text."
                raise DataError(msg, file=self.file, line=place.line)
            if key in section:
                msg = f"'{key}' is here twice; the first is in line {section.places[key].line}. Remove one of them."
                raise DataError(msg, file=self.file, line=place.line)
            section.put(key, self.value(value_node, depth + 1), place)
        return section


def scalar(text: str) -> Any:
    """The value of a plain scalar: a number, true, false, null or text."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    # A number that is too large for a float stays text, which the option that it is for refuses.
    return float(text) if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else text


def parse_set(settings: Iterable[str]) -> dict[str, Any]:
    """The settings of `--set` as nested options: ["pooler.layers=10,12"] -> {"pooler": {"layers": "10,12"}}.

    Values are read as in a recipe: numbers, true, false, null, [lists], "quoted" text, and text.

    Raises:
        OptionError: A setting has no "=", no name, or sets both an option and a part of it.
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names) or len(names) > _MOST_DEPTH:
            msg = f"--set {setting!r} is not KEY=VALUE, such as pooler.layers=4,6 or epochs=3."
            raise OptionError(msg)
        place = parsed
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                msg = f"--set {setting!r}: '{name}' has been set to {place!r} already, so it has no options."
                raise OptionError(msg)
        if isinstance(place.get(names[-1]), dict):
            msg = f"--set {setting!r}: options of '{key}' have been set already, so it cannot be one value."
            raise OptionError(msg)
        place[names[-1]] = _setting_value(setting, text)
    return parsed


def _setting_value(setting: str, text: str) -> Any:
    if not text.startswith(("[", '"', "'")):
        return scalar(text)
    import yaml

    try:
        return _Constructor(setting).value(_compose(text, setting))
    except (yaml.YAMLError, DataError) as error:
        msg = f"--set {setting!r}: the value cannot be read: {getattr(error, 'problem', error)}."
        raise OptionError(msg) from None


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted keys: {"pooler": {"layers": [4, 6]}} -> {"pooler.layers": [4, 6]}."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
