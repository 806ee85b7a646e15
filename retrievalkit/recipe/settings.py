"""What recipe files and `--set` hold: YAML whose every key knows where it stands, by the rules of YAML 1.2.

YAML 1.1, which PyYAML follows, takes `no` for false, 1e-5 for text and 1:30 for 90.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from retrievalkit.errors import DataError, OptionError, UnknownNameError

if TYPE_CHECKING:
    import yaml

_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None}


class Place(NamedTuple):
    """Where something stands: a file, and a line counted from 1."""

    file: str
    line: int


class Section(dict[str, Any]):
    """A mapping of a YAML file that knows where it stands.

    Attributes:
        place: Where it starts.
        places: Key -> where it stands.
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
        """Complain about a key, or about the whole."""
        raise DataError(problem, **self.places.get(key, self.place)._asdict())

    def check_keys(self, known: Sequence[str], kind: str) -> None:
        """Refuse keys that are not among those known."""
        for key in self:
            if key not in known:
                self.fail(str(UnknownNameError(f"key of a {kind}", key, known)), key)

    def wanted(self, key: str, type_: type, what: str) -> Any:
        """The value of a key that has to be there, and of a type."""
        value = self.get(key)
        if value is None:
            self.fail(f"'{key}' is missing.")
        if not isinstance(value, type_):
            self.fail(f"'{key}' is {value!r}, and should be {what}.", key)
        return value

    def section(self, key: str) -> Section:
        """The mapping under a key; an empty one where there is none."""
        if self.get(key) is None:
            return Section(self.places.get(key, self.place))
        found: Section = self.wanted(key, Section, "a mapping")
        return found


def join(base: Section, own: Mapping[str, Any]) -> Section:
    """Both mappings as one: mappings in both are joined key by key, and of other values that of `own` wins."""
    joined = Section(own.place if isinstance(own, Section) else base.place)
    joined.places = base.places | (own.places if isinstance(own, Section) else {})
    joined |= base
    for key, value in own.items():
        before = base.get(key)
        joined[key] = join(before, value) if isinstance(before, Section) and isinstance(value, Mapping) else value
    return joined


def read_yaml(path: str | Path) -> Any:
    """What a YAML file holds, with mappings as `Section`.

    Raises:
        DataError: It is no YAML; names the line.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
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
    return _construct(node, str(path))


def _construct(node: yaml.Node, file: str) -> Any:
    if node.id == "scalar":
        return scalar(node.value) if node.style is None else node.value
    if node.id == "sequence":
        return [_construct(one, file) for one in node.value]
    section = Section(Place(file, node.start_mark.line + 1))
    for key_node, value_node in node.value:
        key, place = key_node.value, Place(file, key_node.start_mark.line + 1)
        if key_node.id != "scalar":
            msg = "a key is a plain name."
            raise DataError(msg, file=file, line=place.line)
        if key in section:
            msg = f"'{key}' stands here twice; the first is in line {section.places[key].line}. Remove one of them."
            raise DataError(msg, file=file, line=place.line)
        section.put(key, _construct(value_node, file), place)
    return section


def scalar(text: str) -> Any:
    """What a plain scalar stands for: a number, true, false, null or text."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def parse_set(settings: Iterable[str]) -> dict[str, Any]:
    """What `--set` was given, as nested options: ["pooler.layers=10,12"] -> {"pooler": {"layers": "10,12"}}.

    Values are read as in a recipe: numbers, true, false, null, [lists], "quoted" text, and text.

    Raises:
        OptionError: A setting has no "=", no name, or sets both an option and a part of it.
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
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
        return _construct(yaml.compose(text, Loader=yaml.SafeLoader), setting)
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
