"""A step of a recipe: a command with its options, in which values are filled in.

`${name}` is a value of the recipe, `${name?}` one that may be missing (null then), `${steps.NAME}` the output of a
step. Names of steps, and of values that were not given, stay in the options until it is known who needs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from retrievalkit.errors import DataError, UnknownNameError
from retrievalkit.recipe.settings import Place, Section, flatten

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_STEP = "steps."
_NOWHERE = Place("", 0)


@dataclass(frozen=True)
class Step:
    """One command of a recipe.

    Attributes:
        name: What other steps call it; with the variant's name and the seed in front where it is theirs alone.
        command: The name of an rkit command.
        options: Its options and arguments; `${steps.NAME}` still stands in them.
        output: What it writes, relative to the run's folder; None = it only prints.
        expected: Figures to compare with, and their "source".
        place: Where it stands.
        places: Option -> where it stands.
    """

    name: str
    command: str
    options: Mapping[str, Any]
    output: str | None = None
    expected: Mapping[str, Any] = field(default_factory=dict)
    place: Place = _NOWHERE
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def uses(self) -> tuple[str, ...]:
        """The steps whose outputs it names."""
        return tuple(dict.fromkeys(name for _, name in self.mentioned()))

    def mentioned(self) -> Iterator[tuple[str, str]]:
        """The steps that stand in its options: (option, step)."""
        for option, value in self.options.items():
            for name in variables(value):
                if name.startswith(_STEP):
                    yield option, name.removeprefix(_STEP)

    def error(self, problem: str, option: str = "") -> DataError:
        """A complaint about this step, or one of its options."""
        return DataError(f"step '{self.name}': {problem}", **self.places.get(option, self.place)._asdict())

    def with_options(self, options: Mapping[str, Any]) -> Step:
        """The step with some options changed; those under `set` one by one."""
        return replace(self, options=merged(self.options, options)) if options else self

    def filled(self, values: Values) -> Step:
        """The step with values in place of their names."""
        options = {
            name: fill(value, partial(values.look_up, place=self.places.get(name, self.place)))
            for name, value in self.options.items()
        }
        return replace(self, options=options)

    def renamed(self, names: Mapping[str, str], folder: str) -> Step:
        """The step under its new name, with the new names of those that it uses, writing into a folder."""

        def rename(inner: str) -> str:
            return _reference(names[inner.removeprefix(_STEP)]) if inner.startswith(_STEP) else f"${{{inner}}}"

        options = {name: fill(value, rename) for name, value in self.options.items()}
        output = self.output and joined_path(folder, self.output)
        return replace(self, name=names[self.name], options=options, output=output)

    @property
    def lacks(self) -> list[tuple[str, str]]:
        """The values that were not given: (option, name)."""
        options = ((option, name) for option, value in self.options.items() for name in variables(value))
        return [(option, name) for option, name in options if not name.startswith(_STEP)]

    def check_given(self, hint: str = "") -> None:
        """Refuse a step with a value that was not given.

        Raises:
            DataError: Names the value, and the line that needs it.
        """
        for option, name in self.lacks:
            msg = f"the recipe needs a value for '{name}'. Give it: --set {name}=...{hint}"
            raise DataError(msg, **self.places.get(option, self.place)._asdict())


class Values:
    """The values of a recipe, which may name each other, and steps."""

    def __init__(self, values: Section) -> None:
        self.values = values
        self.open: list[str] = []

    def given(self) -> dict[str, Any]:
        """All values, filled in; None for one that was not given, or is made of such a one."""
        found = {name: self.look_up(name, self.values.place) for name in self.values}
        return {
            name: None if any(not one.startswith(_STEP) for one in variables(value)) else value
            for name, value in found.items()
        }

    def look_up(self, name: str, place: Place) -> Any:
        """A value; one that was not given, and a step, stay `${name}`.

        Args:
            name: With a question mark where the value may be missing: that is null then.
            place: Where it is wanted.

        Raises:
            DataError: There is no such value, or it is made of itself.
        """
        if name.startswith(_STEP):
            return _reference(name.removeprefix(_STEP))
        optional = name.endswith("?")
        name = name.removesuffix("?").rstrip()
        if name not in self.values:
            where = self.values.places.get(self.open[-1], place) if self.open else place
            raise DataError(str(UnknownNameError("value", name, self.values)), **where._asdict())
        if name in self.open:
            circle = " -> ".join([*self.open, name])
            self.values.fail(f"the value '{name}' is made of itself ({circle}).", name)
        value = self.values[name]
        if value is None:
            return None if optional else f"${{{name}}}"
        self.open.append(name)
        try:
            return fill(value, lambda inner: self.look_up(inner, place))
        finally:
            self.open.pop()


def fill(value: Any, variable: Callable[[str], Any]) -> Any:
    """Replace `${name}` in all texts; a text that is one variable becomes that variable's value."""
    if isinstance(value, str):
        if whole := _VARIABLE.fullmatch(value):
            return variable(whole[1].strip())
        return _VARIABLE.sub(lambda match: _as_text(variable(match[1].strip())), value)
    if isinstance(value, list):
        return [fill(one, variable) for one in value]
    if isinstance(value, Mapping):
        return {key: fill(one, variable) for key, one in value.items()}
    return value


def variables(value: Any) -> Iterator[str]:
    """The names of all variables in a value."""
    if isinstance(value, str):
        yield from (match[1].strip() for match in _VARIABLE.finditer(value))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from variables(one)
    elif isinstance(value, Mapping):
        yield from variables(list(value.values()))


def in_order(steps: Iterable[Step]) -> list[Step]:
    """The steps, each behind those that it uses and otherwise in the order they come in.

    Raises:
        DataError: A step uses one that is unknown or writes nothing, or itself by way of others.
    """
    known = {step.name: step for step in steps}
    ordered: dict[str, Step] = {}
    opened: list[str] = []

    def visit(step: Step) -> None:
        opened.append(step.name)
        for option, name in step.mentioned():
            _check_used(step, option, name, known, opened)
            if name not in ordered:
                visit(known[name])
        ordered[opened.pop()] = step

    for step in known.values():
        if step.name not in ordered:
            visit(step)
    return list(ordered.values())


def _check_used(step: Step, option: str, name: str, known: Mapping[str, Step], opened: Sequence[str]) -> None:
    if name not in known:
        raise step.error(str(UnknownNameError("step", name, known)), option)
    if known[name].output is None:
        msg = f"step '{name}' has no output. Give it one."
        raise step.error(msg, option)
    if name in opened:
        circle = " -> ".join([*opened[opened.index(name) :], name])
        msg = f"it is made of its own output ({circle})."
        raise step.error(msg, option)


def needed(steps: Iterable[Step], goals: Iterable[str]) -> list[Step]:
    """The steps that the goals are made of, the goals included, in the order they come in."""
    steps = list(steps)
    uses = {step.name: step.uses for step in steps}
    found: set[str] = set()
    waiting = list(goals)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(uses[name])
    return [step for step in steps if step.name in found]


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Options with dashes turned to underscores; those under `set` are joined key by key, the second's winning.

    Where the second names another loss, pooler ..., the first's options of its own are not for it, and are left out.
    """
    options: dict[str, Any] = {}
    for one in (first, second):
        named = {name.replace("-", "_"): value for name, value in one.items()}
        if isinstance(options.get("set"), Mapping):
            changed = [name for name in named if name in options and named[name] != options[name]]
            options["set"] = {key: value for key, value in options["set"].items() if key.split(".")[0] not in changed}
        for name, value in named.items():
            if name == "set" and isinstance(value, Mapping):
                value = options.get("set", {}) | flatten(value)
            options[name] = value
    return options


def joined_path(folder: str, output: str) -> str:
    """A path in a folder; "" is the run's own."""
    return str(Path(folder) / output) if folder else output


def _reference(name: str) -> str:
    return f"${{{_STEP}{name}}}"


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return ",".join(map(_as_text, value)) if isinstance(value, list) else str(value)
