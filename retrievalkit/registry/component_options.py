"""The options of a component: reads, checks and converts the keyword-only arguments of its constructor.

Values from recipes, `--set` and Python are converted to the type of their option, or refused with the reason.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, is_dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from retrievalkit.errors import OptionError, PluginError, nearest, shortlist

if TYPE_CHECKING:
    from pydantic import TypeAdapter

NAMED_WITH_OPTIONS = ("backend", "compressor", "filter", "fusion", "metric")
_LONGEST_CALL = 500
_CALL = re.compile(r"\s*(\w+)\s*(\(.*\))?\s*(?:@([1-9]\d{0,8}))?\s*")


@dataclass(frozen=True)
class Option:
    """An option of a component: a keyword-only argument of its constructor."""

    name: str
    annotation: Any
    default: Any
    description: str

    @property
    def required(self) -> bool:
        """True if there is no default."""
        return self.default is inspect.Parameter.empty

    @property
    def type_name(self) -> str:
        """The type in Python notation."""
        return _type_name(self.annotation)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return _adapter(self.annotation)


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Annotated:
        return _type_name(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in typing.get_args(annotation))
    if annotation is types.NoneType:
        return "None"
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def options(component_class: type) -> dict[str, Option]:
    """Return a component's options: keyword-only arguments of its constructor, or all fields of a dataclass."""
    return dict(_options(component_class))


@lru_cache(1024)  # reading annotations and docstrings takes longer than encoding a query
def _options(component_class: type) -> dict[str, Option]:
    declared = is_dataclass(component_class)
    constructor = component_class.__init__  # type: ignore[misc]
    try:
        # Annotations of a dataclass's bases are resolved in the modules of the bases.
        annotated = component_class if declared else constructor
        hints = typing.get_type_hints(annotated, include_extras=True)
    except Exception as error:
        do = "Correct the annotations of its constructor."
        if isinstance(error, NameError):
            do = "Import what its constructor's annotations name at run time too, not under TYPE_CHECKING."
        msg = f"the options of {_named(component_class)} cannot be read: {error}. {do}"
        raise PluginError(msg) from error
    # Base classes first, so that a class can redefine the description of an inherited option.
    documented = (*(base.__doc__ or "" for base in reversed(component_class.__mro__)), constructor.__doc__ or "")
    described = {name: text for doc in documented for name, text in _descriptions(inspect.cleandoc(doc)).items()}
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY or (declared and name != "self")
    }
    if untyped := parameters.keys() - hints.keys():
        name = min(untyped)
        problem = f"the option '{name}' of {_named(component_class)} has no type, so its values cannot be checked"
        msg = f"{problem}. Annotate it in the constructor, such as {name}: int; Any allows all values."
        raise PluginError(msg)
    return {
        name: Option(name, hints[name], parameter.default, described.get(name, ""))
        for name, parameter in parameters.items()
    }


def _named(component_class: type) -> str:
    return f"'{component_class.__module__}:{component_class.__qualname__}'"


def check_options(owner: str, component_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, each converted to the type of its option.

    Raises:
        OptionError: An unknown option (suggests the nearest), a value of the wrong type, or a missing option.
    """
    known = options(component_class)
    for name in values:
        if name not in known:
            close = nearest(name, known)
            offer = f"; did you mean '{close}'?" if close else "."
            listed = f"Its options: {shortlist(sorted(known))}." if known else "It has no options."
            msg = f"{owner} has no option '{name}'{offer} {listed}"
            raise OptionError(msg)
    if missing := [option.name for option in known.values() if option.required and option.name not in values]:
        kind, of_component, name = owner.partition(" '")
        way = f" Set it: {how_to_set(kind, name.rstrip(chr(39)), missing[0], '...')}" if of_component else ""
        msg = f"{owner} needs the option '{missing[0]}'.{way}"
        raise OptionError(msg)
    return {
        name: _convert(f"option '{name}' of {owner}", known[name].annotation, value, known[name]._adapter)
        for name, value in values.items()
    }


def convert(owner: str, annotation: Any, value: Any) -> Any:
    """Convert a value from a recipe or `--set` to a type.

    For a sequence, "10,12" is a list, and a single value is a sequence of length 1.

    Raises:
        OptionError: The value does not fit the type.
    """
    return _convert(owner, annotation, value, _adapter(annotation))


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    import pydantic

    try:
        return pydantic.TypeAdapter(annotation, config={"arbitrary_types_allowed": True, "allow_inf_nan": False})
    except pydantic.PydanticUserError:  # models and dataclasses have a configuration of their own
        return pydantic.TypeAdapter(annotation)


def _convert(owner: str, annotation: Any, value: Any, adapter: TypeAdapter[Any]) -> Any:
    import pydantic

    problem = ""
    for candidate in _readings(annotation, value):
        try:
            return adapter.validate_python(candidate)
        except pydantic.ValidationError as error:
            problem = problem or "; ".join(dict.fromkeys(detail["msg"] for detail in error.errors()))
    msg = f"{owner} cannot be {value!r}: {problem}. Give a value of type {_type_name(annotation)}."
    raise OptionError(msg)


def how_to_set(kind: str, name: str, option: str = "NAME", value: str = "VALUE") -> str:
    """Return the syntax to set an option of a component: `--set`, or in parentheses after its name."""
    return f"{name}({option}={value})" if kind in NAMED_WITH_OPTIONS else f"--set {kind}.{option}={value}"


def read_call(text: str) -> tuple[str, dict[str, Any], int | None]:
    """Parse name, options and cutoff from `NAME`, `NAME(option=0.5, other=word)`, `NAME(option=3)@10` or similar.

    Raises:
        OptionError: The text is not of this form.
    """
    match = _CALL.fullmatch(text) if len(text) <= _LONGEST_CALL else None
    if match is not None and (keywords := _keywords(match[2] or "()")) is not None:
        return match[1], keywords, int(match[3]) if match[3] else None
    msg = f"'{text[:_LONGEST_CALL]}' is not of the form NAME or NAME(option=value, other=value)."
    raise OptionError(msg)


def _keywords(arguments: str) -> dict[str, Any] | None:
    """Parse the values of `(name=value, ...)`, where a value may be a bare word; None for another syntax."""
    try:
        call = ast.parse(f"_{arguments}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        values = {
            keyword.arg: keyword.value.id if isinstance(keyword.value, ast.Name) else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    if None in values or len(values) < len(call.keywords):
        return None
    return {str(name): value for name, value in values.items()}


def _readings(annotation: Any, value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, str) and value.lower() in ("none", "null"):
        yield None
    if _takes_sequence(annotation):
        if isinstance(value, str):
            yield [part.strip() for part in value.strip("[]()").split(",") if part.strip()]
        elif not isinstance(value, list | tuple):
            yield [value]
    # `--set` reads 12 as a number even if the option is a name.
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _takes_sequence(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, Sequence | Set) and not issubclass(origin, str | bytes):
        return True
    return any(_takes_sequence(argument) for argument in typing.get_args(annotation))


def _descriptions(docstring: str) -> dict[str, str]:
    """Parse the `Args:` section of a Google-style docstring: name -> description on a single line."""
    _, _, section = docstring.partition("Args:\n")
    descriptions: dict[str, str] = {}
    name, indent = "", 0
    for line in section.splitlines():
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        if stripped and depth < indent:
            break
        if depth == indent and (match := re.match(r"(\w+)(?: \([^)]*\))?:\s*(.*)", stripped)):
            name = match[1]
            descriptions[name] = match[2]
        elif name and stripped:
            descriptions[name] += " " + stripped
    return descriptions
