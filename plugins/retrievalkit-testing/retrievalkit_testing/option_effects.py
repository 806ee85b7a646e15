"""Properties of options, shared by all kinds: they are typed keywords, and each has an effect."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

import torch

from retrievalkit import registry
from retrievalkit.errors import InputError, OptionError
from retrievalkit.registry import Option, convert, options
from retrievalkit_testing.properties import Kit, differ, expect, fail

_POSITIONAL = {"encoder": 1, "pooler": 1, "pretrainer": 2, "filter": 1, "source": 1}
"""Number of arguments before the options."""

_NUMBERS = (1, 2, 0, 3, -1, -2, 5, 16, 64)
_FRACTIONS = (0.5, 2.0, 0.1, 1.0, 0.0, 10.0)
_TRIED, _TRIED_TOGETHER = 6, 3
"""Maximum number of values of an option to try alone, and with another option."""


def add_option_properties(kit: Kit[Any], *, after: Sequence[str]) -> None:
    """Add the properties of options to a kit, whose cases have `options` and `behaviour`."""

    @kit.property(once=True)
    def options_typed(case: Any) -> None:
        """Options are typed keyword-only arguments, and their defaults have the type."""
        expect_typed_keywords(registry.get(kit.kind, case.name), kit.kind)

    @kit.property(after=after, once=True)
    def options_effective(case: Any) -> None:
        """Every option changes an output, a sample, the loss or a gradient, by itself or together with another."""
        # Refused values (InputError) are ignored, and so are options whose values are all refused.
        known: dict[str, Any] = {}

        def behaviour(**changes: Any) -> Any:
            key = repr(sorted(changes.items()))
            if key not in known:
                known[key] = None
                with suppress(InputError):
                    known[key] = case.behaviour({**case.options, **changes})
            return known[key]

        def has_effect(name: str, before: Mapping[str, Any], most: int) -> bool:
            pairs = ((behaviour(**before), behaviour(**{**before, name: value})) for value in values[name][:most])
            return any(old is not None and new is not None and differ(old, new) for old, new in pairs)

        values = {
            name: list(islice(other_values(option, case.options.get(name, option.default)), _TRIED))
            for name, option in options(registry.get(kit.kind, case.name)).items()
        }
        for name in values:
            tried = [value for value in values[name] if behaviour(**{name: value}) is not None]
            others = ({other: value} for other in values if other != name for value in values[other][:_TRIED_TOGETHER])
            effective = has_effect(name, {}, _TRIED) or any(
                has_effect(name, other, _TRIED_TOGETHER) for other in others
            )
            problem = f"the option '{name}' changes neither an output nor a gradient"
            actual = f"none with {', '.join(map(repr, tried))}"
            expect(effective or not tried, problem, expected="a change", actual=actual, source=line_of(name))


def expect_typed_keywords(component: type, kind: str) -> None:
    """Expect that every option is a keyword-only argument with a type that fits its default."""
    constructor = component.__init__  # type: ignore[misc]
    positional = 1 if getattr(component, "wraps", False) is True else _POSITIONAL.get(kind, 0)
    if constructor in (torch.nn.Module.__init__, object.__init__) or "of" in vars(component):
        return  # it has no constructor of its own, or is a metric that reads its options itself
    for argument in list(inspect.signature(constructor).parameters.values())[1 + positional :]:
        if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
            problem = f"'{argument}' of the constructor hides its options, which are then neither listed nor checked"
        elif argument.kind is not argument.KEYWORD_ONLY:
            problem = (
                f"the option '{argument.name}' is a positional argument, which --set cannot set: put '*' before it"
            )
        elif argument.annotation is argument.empty:
            problem = f"the option '{argument.name}' has no type, so its values are not checked"
        else:
            continue
        fail(problem, method="__init__", source=line_of(argument.name))
    for option in options(component).values():
        problem = f"the default of the option '{option.name}' does not fit its type"
        fits = option.required or _fits(option, option.default)
        details = {"expected": option.type_name, "actual": repr(option.default), "source": line_of(option.name)}
        expect(fits, problem, **details)


def line_of(option: str) -> str:
    """Return a pattern for the line of a constructor that declares an option."""
    return rf"(^|[\s(,*]){re.escape(option)}\s*[:=,)]"


def required_values(component: type, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each option that has no default and no value yet, as far as its type lists values."""
    needed = [option for option in options(component).values() if option.required and option.name not in known]
    return {option.name: value for option in needed for value in islice(other_values(option, option.default), 1)}


def off_defaults(case: Any, component: type) -> list[Any]:
    """No option, and each option alone at other values than its default, without those that `case.create` refuses."""
    settings: list[Any] = [{}]
    for option in options(component).values():
        present = case.options.get(option.name, option.default)
        for value in islice(other_values(option, present), _TRIED_TOGETHER):
            with suppress(InputError):
                case.create({**case.options, option.name: value})
                settings.append({option.name: value})
    return settings


def other_values(option: Option, present: Any) -> Iterator[Any]:
    """Values of an option other than its present value, by its type; none for text and unknown types."""
    seen = [present]
    for value in filter(lambda value: _fits(option, value), _values(option.annotation, present)):
        fitting = convert(option.name, option.annotation, value)
        if not any(type(fitting) is type(other) and fitting == other for other in seen):
            seen.append(fitting)
            yield fitting


def _fits(option: Option, value: Any) -> bool:
    try:
        convert(option.name, option.annotation, value)
    except OptionError:
        return False
    return True


def _values(annotation: Any, present: Any) -> Iterator[Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _values(arguments[0], present)
    elif origin in (typing.Union, types.UnionType):
        for member in arguments:
            yield from _values(member, present)
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
    elif origin in (tuple, list, Sequence) and arguments and (arguments[-1] is Ellipsis or len(arguments) == 1):
        first = list(islice(_values(arguments[0], None), 4))
        yield from (*((value,) for value in first), tuple(first[:2]), ())
    elif origin is tuple and isinstance(present, tuple) and len(present) == len(arguments):
        yield present[::-1]
