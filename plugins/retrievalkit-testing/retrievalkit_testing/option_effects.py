"""Properties of options, shared by all kinds: they are typed keywords, and each has an effect."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

import torch

from retrievalkit import registry
from retrievalkit.errors import InputError, OptionError
from retrievalkit.registry import Option, convert, options
from retrievalkit_testing.properties import Kit, fail

_POSITIONAL = {"encoder": 1, "pooler": 1, "pretrainer": 2, "filter": 1, "source": 1}
"""Number of arguments before the options."""

_NUMBERS = (1, 2, 0, 3, -1, -2, 5, 16, 64)
_FRACTIONS = (0.5, 2.0, 0.1, 1.0, 0.0, 10.0)
_TRIED = 6
"""Maximum number of values to try for an option."""
_TRIED_TOGETHER = 3
"""Maximum number of values to try for each option of a pair."""


def add_option_properties(
    kit: Kit[Any], behaviour: Callable[[Any, Mapping[str, Any]], Sequence[Any]], *, after: Sequence[str]
) -> None:
    """Add the properties of options to a kit; a function of a case and options returns a component's behaviour."""

    @kit.property(once=True)
    def options_typed(case: Any) -> None:
        """Options are typed keyword-only arguments, and their defaults have the type."""
        expect_typed_keywords(registry.get(kit.kind, case.name), kit.kind)

    @kit.property(after=after, once=True)
    def options_effective(case: Any) -> None:
        """Every option changes an output, a sample, the loss or a gradient."""
        component = registry.get(kit.kind, case.name)
        expect_effects(component, case.options, lambda options: behaviour(case, options))


def expect_typed_keywords(component: type, kind: str) -> None:
    """Expect that every option is a keyword-only argument with a type that fits its default."""
    constructor = component.__init__  # type: ignore[misc]
    positional = 1 if getattr(component, "wraps", False) is True else _POSITIONAL.get(kind, 0)
    if constructor in (torch.nn.Module.__init__, object.__init__):
        return  # it has no constructor of its own, and therefore no options
    if "of" in vars(component):
        return  # a metric that reads its options itself
    arguments = list(inspect.signature(constructor).parameters.values())[1 + positional :]
    for one in arguments:
        if one.kind is one.VAR_KEYWORD or one.kind is one.VAR_POSITIONAL:
            problem = f"'{one}' of the constructor hides its options, which are then neither listed nor checked"
        elif one.kind is not one.KEYWORD_ONLY:
            problem = f"the option '{one.name}' is a positional argument, and can be set by no --set: put '*' before it"
        elif one.annotation is one.empty:
            problem = f"the option '{one.name}' has no type, so that any value is taken for it"
        else:
            continue
        fail(problem, method="__init__", source=_line_of(one.name))
    for option in options(component).values():
        try:
            if not option.required:
                convert(option.name, option.annotation, option.default)
        except OptionError:
            problem = f"the default of the option '{option.name}' does not fit its type"
            fail(problem, expected=option.type_name, found=repr(option.default), source=_line_of(option.name))


def _line_of(option: str) -> str:
    """The line of a constructor that declares an option."""
    return rf"(^|[\s(,*]){re.escape(option)}\s*[:=,)]"


def required_values(component: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each option that has no default and no value yet, as far as its type lists values."""
    needed = [one for one in options(component).values() if one.required and one.name not in given]
    return {one.name: value for one in needed for value in islice(other_values(one, one.default), 1)}


def off_defaults(component: type, given: Mapping[str, Any], create: Callable[[Mapping[str, Any]], object]) -> list[Any]:
    """No option, and each option alone at other values than its default, without those that are refused."""
    settings: list[Any] = [{}]
    for option in options(component).values():
        for value in islice(other_values(option, given.get(option.name, option.default)), _TRIED_TOGETHER):
            with suppress(InputError):
                create({**given, option.name: value})
                settings.append({option.name: value})
    return settings


def other_values(option: Option, present: Any) -> Iterator[Any]:
    """Values of an option other than its present value, by its type; none for text and unknown types."""
    seen = [present]
    for value in _values(option.annotation, present):
        try:
            fitting = convert(option.name, option.annotation, value)
        except OptionError:
            continue
        if not any(type(fitting) is type(one) and fitting == one for one in seen):
            seen.append(fitting)
            yield fitting


def _values(annotation: Any, present: Any) -> Iterator[Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _values(arguments[0], present)
    elif origin in (typing.Union, types.UnionType):
        for one in arguments:
            yield from _values(one, present)
    elif origin is Literal:
        yield from arguments
    elif annotation is bool:
        yield from (True, False)
    elif annotation is int:
        yield from (*((present + 1, present - 1) if type(present) is int else ()), *_NUMBERS)
    elif annotation is float:
        yield from (*((present * 2, present / 2) if type(present) is float else ()), *_FRACTIONS)
    elif annotation is str and present is inspect.Parameter.empty:
        yield "title"
    elif annotation is types.NoneType:
        yield None
    elif origin in (tuple, list, Sequence) and arguments:
        yield from _sequences(arguments, present)


def _sequences(arguments: Sequence[Any], present: Any) -> Iterator[Any]:
    of_any_length = arguments[-1] is Ellipsis or len(arguments) == 1
    first = list(islice(_values(arguments[0], None), 4))
    if of_any_length:
        yield from ((one,) for one in first)
        yield tuple(first[:2])
        yield ()
    elif isinstance(present, tuple) and len(present) == len(arguments):
        yield present[::-1]


def expect_effects(
    component: type, given: Mapping[str, Any], behaviour_of: Callable[[Mapping[str, Any]], Sequence[Any]]
) -> None:
    """Expect that each option changes the behaviour, by itself or together with one other option.

    Rejected values (InputError) are ignored, and so are options all of whose values are rejected.
    """
    known: dict[str, Sequence[Any] | None] = {}

    def behaviour(changes: Mapping[str, Any]) -> Sequence[Any] | None:
        key = repr(sorted(changes.items()))
        if key not in known:
            try:
                known[key] = behaviour_of({**given, **changes})
            except InputError:
                known[key] = None
        return known[key]

    values = {
        name: list(islice(other_values(one, given.get(name, one.default)), _TRIED))
        for name, one in options(component).items()
    }
    for name in values:
        if not _has_effect(name, values, behaviour):
            tried = ", ".join(repr(one) for one in values[name] if behaviour({name: one}) is not None)
            problem = f"the option '{name}' changes neither an output nor a gradient"
            fail(problem, expected="a change", found=f"none with {tried}", source=_line_of(name))


def _has_effect(
    name: str, values: Mapping[str, Sequence[Any]], behaviour: Callable[[Mapping[str, Any]], Sequence[Any] | None]
) -> bool:
    """True if an option changes the behaviour, or none of its values could be tried."""
    alone = [{name: one} for one in values[name]]
    if any(_differ(behaviour({}), behaviour(one)) for one in alone):
        return True
    if all(behaviour(one) is None for one in alone):
        return True
    others = ({other: one} for other in values if other != name for one in values[other][:_TRIED_TOGETHER])
    return any(
        _differ(behaviour(other), behaviour({**other, **one})) for other in others for one in alone[:_TRIED_TOGETHER]
    )


def _differ(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    """True if two behaviours are known and differ."""
    if one is None or other is None:
        return False
    return len(one) != len(other) or not all(_same(*pair) for pair in zip(one, other, strict=True))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
    return bool(type(one) is type(other) and one == other)
