"""A step of a recipe: a command and its options, with values filled in.

`${name}` is a value of the recipe, `${name?}` an optional value (null if missing), `${steps.NAME}` the output of a
step. References to steps and to unset values stay in the options until the steps to run are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from retrievalkit.errors import DataError, UnknownNameError
from retrievalkit.recipes.settings import NOWHERE, Place, Section, flatten

_MOST_CHARACTERS = 1 << 20
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_STEP = "steps."


@dataclass(frozen=True)
class Step:
    """One command of a recipe.

    Attributes:
        name: Name of the step; starts with the variant and the seed if the step is specific to them.
        options: Options and arguments, which may still contain `${steps.NAME}`.
        output: Output file or folder, relative to the run's folder; None = the step only prints.
        title: Purpose and reason of the step, in words; "" = none.
    """

    name: str
    command: str
    options: Mapping[str, Any]
    output: str | None = None
    title: str = ""
    place: Place = NOWHERE
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def heading(self) -> str:
        """Title, after the variant and seed of the step; without a title, its command."""
        folder, _, _ = self.name.rpartition("/")
        text = self.title or " → ".join(filter(None, (self.command, self.output)))
        return f"{folder} · {text}" if folder and self.title else text

    @property
    def uses(self) -> tuple[str, ...]:
        """Steps whose outputs it reads."""
        return tuple(dict.fromkeys(name for _, name in self.mentioned()))

    def mentioned(self) -> Iterator[tuple[str, str]]:
        """Yield the steps that its options refer to: (option, step)."""
        names = ((option, name) for option, value in self.options.items() for name in variables(value))
        return ((option, name.removeprefix(_STEP)) for option, name in names if name.startswith(_STEP))

    def unset(self) -> list[tuple[str, str]]:
        """Return the unset values: (option, name)."""
        names = ((option, name) for option, value in self.options.items() for name in variables(value))
        return [(option, name) for option, name in names if not name.startswith(_STEP)]

    def fail(self, problem: str, option: str = "") -> NoReturn:
        """Raise an error about this step or one of its options."""
        msg = f"step '{self.name}': {problem}"
        raise DataError(msg, **self.places.get(option, self.place)._asdict()) from None

    def filled(self, values: Values) -> Step:
        """Return the step with values filled in."""
        options = {
            name: fill(value, partial(values.look_up, place=self.places.get(name, self.place)))
            for name, value in self.options.items()
        }
        return replace(self, options=options, title=values.label(self.title, self.place))

    def renamed(self, names: Mapping[str, str], folder: str) -> Step:
        """Return the step with new names for itself and the steps it uses, and with its output in a folder."""

        def rename(inner: str) -> str:
            return f"${{{_STEP}{names[inner.removeprefix(_STEP)]}}}" if inner.startswith(_STEP) else f"${{{inner}}}"

        options = {name: fill(value, rename) for name, value in self.options.items()}
        output = self.output and joined_path(folder, self.output)
        return replace(self, name=names[self.name], options=options, output=output)


class Values:
    """Values of a recipe, which may refer to each other and to steps."""

    def __init__(self, values: Section) -> None:
        self.values = values
        self._open: list[str] = []
        self._filled: dict[str, Any] = {}

    def filled(self) -> dict[str, Any]:
        """Return all values, filled in; None for values that are unset or refer to an unset value."""
        filled = {name: self.look_up(name, self.values.place) for name in self.values}
        return {
            name: None if any(not inner.startswith(_STEP) for inner in variables(value)) else value
            for name, value in filled.items()
        }

    def look_up(self, name: str, place: Place) -> Any:
        """Return a value; references to steps and to unset values stay `${name}`.

        Args:
            name: Name of the value; with a trailing question mark, an unset value is null.
            place: Location of the reference.
        """
        if name.startswith(_STEP):
            return f"${{{name}}}"
        optional = name.endswith("?")
        name = name.removesuffix("?").rstrip()
        if name not in self.values:
            location = self.values.places.get(self._open[-1], place) if self._open else place
            raise DataError(str(UnknownNameError("value", name, self.values)), **location._asdict())
        if name in self._open:
            cycle = " -> ".join([*self._open, name])
            self.values.fail(f"the value '{name}' refers to itself ({cycle}).", name)
        value = self.values[name]
        if value is None:
            return None if optional else f"${{{name}}}"
        if name not in self._filled:
            self._open.append(name)
            try:
                self._filled[name] = fill(value, partial(self.look_up, place=place))
            finally:
                self._open.pop()
            # Values that each refer twice to the next would double in length at each level.
            if len(str(self._filled[name])) > _MOST_CHARACTERS:
                self.values.fail(f"the value '{name}' has more than {_MOST_CHARACTERS:,} characters.", name)
        return self._filled[name]

    def label(self, template: str, place: Place) -> str:
        """Return a title with values filled in; an output of a step is shown as the step's name."""
        text = _as_text(fill(template, partial(self.look_up, place=place)))
        return _as_text(fill(text, lambda name: name.removeprefix(_STEP)))


def fill(value: Any, variable: Callable[[str], Any]) -> Any:
    """Replace `${name}` in all texts; a text that consists of a variable becomes the variable's value."""
    if isinstance(value, str):
        if whole := _VARIABLE.fullmatch(value):
            return variable(whole[1].strip())
        return _VARIABLE.sub(lambda match: _as_text(variable(match[1].strip())), value)
    if isinstance(value, list):
        return [fill(item, variable) for item in value]
    if isinstance(value, Mapping):
        return {key: fill(item, variable) for key, item in value.items()}
    return value


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return ",".join(map(_as_text, value)) if isinstance(value, list) else str(value)


def variables(value: Any) -> Iterator[str]:
    """Yield the names of all variables in a value."""
    for text in texts(value):
        yield from (match[1].strip() for match in _VARIABLE.finditer(text))


def texts(value: Any) -> Iterator[str]:
    """Yield every text among the values of options."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts(item)


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Sort the steps topologically: each after the steps that it uses, otherwise in their order."""
    known = {step.name: step for step in steps}
    ordered: dict[str, Step] = {}
    opened: list[str] = []

    def visit(step: Step) -> None:
        opened.append(step.name)
        for option, name in step.mentioned():
            if name not in known:
                step.fail(str(UnknownNameError("step", name, known)), option)
            if known[name].output is None:
                step.fail(f"step '{name}' has no output. Add 'output' to it.", option)
            if name in opened:
                cycle = " -> ".join([*opened[opened.index(name) :], name])
                step.fail(f"it reads its own output ({cycle}).", option)
            if name not in ordered:
                visit(known[name])
        ordered[opened.pop()] = step

    for step in known.values():
        if step.name not in ordered:
            visit(step)
    return list(ordered.values())


def closure(uses: Mapping[str, Sequence[str]], goals: Iterable[str]) -> set[str]:
    """Return the goals and all of their direct and indirect dependencies."""
    reached: set[str] = set()
    waiting = list(goals)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(uses[name])
    return reached


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options, with dashes replaced by underscores; `set` is merged key by key, and the second wins.

    If the second names another component (loss, pooler ...), the settings of the first's component are dropped.
    """
    options: dict[str, Any] = {}
    for layer in (first, second):
        renamed = {name.replace("-", "_"): value for name, value in layer.items()}
        if isinstance(options.get("set"), Mapping):
            changed = [name for name in renamed if name in options and renamed[name] != options[name]]
            options["set"] = {key: value for key, value in options["set"].items() if key.split(".")[0] not in changed}
        for name, value in renamed.items():
            if name == "set" and isinstance(value, Mapping):
                value = options.get("set", {}) | flatten(value)
            options[name] = value
    return options


def joined_path(folder: str, output: str) -> str:
    """Join a folder and a path; "" is the run's own folder."""
    return str(Path(folder) / output) if folder else output
