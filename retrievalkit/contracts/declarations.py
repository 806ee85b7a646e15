"""Commands as typed functions: a frozen dataclass declares a command's options, and everything else derives from it.

    @command("encode", EncodeOptions)
    def encode(options: EncodeOptions) -> Folder:
        \"\"\"Encode texts with a model.\"\"\"

defines the Python function `encode("bert", output="vectors", batch_tokens=4096)`, whose keywords mypy checks; the
command `rkit encode` (`retrievalkit.cli.derived`); a recipe's step with the same names; and the reference page. Fields
of `EncodeOptions` have the types, defaults and bounds, its docstring the help.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from retrievalkit import storage
from retrievalkit.errors import OptionError, nearest, shortlist
from retrievalkit.registry.component_options import check_options, convert, options
from retrievalkit.registry.component_options import options as option_fields
from retrievalkit.reporting import notices

Parameters = ParamSpec("Parameters")
Options = TypeVar("Options")
Result = TypeVar("Result")
Owner = TypeVar("Owner")

Place = str | os.PathLike[str]
"""A path, an address such as `s3://bucket/folder`, or a name in place of a path."""


@dataclass(frozen=True)
class Flag:
    """The spelling of an option on the command line, if it differs from the field name with dashes.

    Attributes:
        names: Spellings, such as "--output", "-o"; "--shared-tower/--separate-towers" for a flag with an opposite.
        metavar: Placeholder for the value in the help.
        required: Required on the command line and in recipes; optional in Python, as for a result in memory.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    required: bool = False


@dataclass(frozen=True)
class Argument:
    """Marker of a field that is positional on the command line.

    Attributes:
        several: True if it gets all remaining words.
    """

    several: bool = False


@dataclass(frozen=True)
class Named:
    """Marker of the name of a registered component, whose options are in the field `{kind}_options`.

    Attributes:
        kind: Kind of component, such as "pooler".
        usual: The component whose options a recipe checks if no component is named.
    """

    kind: str
    usual: str | None = None


@dataclass(frozen=True)
class Reads:
    """Marker of an input, which is fetched from an object store, and may be in memory.

    Attributes:
        convert: Converts data in memory to an address (`retrievalkit.data.inputs`); None = only places are accepted.
        accepts: Names of inputs, such as "corpus", to explain data of another kind (`retrievalkit.cli.kinds`); by
            default, what `convert` converts.
    """

    convert: Callable[[Any], str] | None = None
    accepts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rest:
    """Marker of the field for settings (`--set`, a recipe's `set`) without a field of their own.

    Attributes:
        sections: True for sections by name; False for values outside sections.
    """

    sections: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Options of every command.

    Args:
        strict: Treat warnings (truncated texts, queries without judgements ...) as errors.
    """

    strict: bool = False


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(CommandOptions):
    """Options of commands that open folders.

    Args:
        verify: Verify the checksums of all files in the opened folders.
    """

    verify: bool = False


@dataclass(frozen=True, kw_only=True)
class WritingOptions(CommandOptions):
    """Options of commands that write a folder.

    Args:
        output: The folder to write.
        overwrite: Replace an existing output folder.
    """

    output: typing.Annotated[Place, Flag(("--output", "-o"))]
    overwrite: bool = False


def marks(annotation: Any) -> tuple[Any, ...]:
    """Return the metadata of an annotation."""
    return typing.get_args(annotation)[1:] if typing.get_origin(annotation) is typing.Annotated else ()


def mark(annotation: Any, kind: type) -> Any:
    """Return the first mark of a type, or None."""
    return next((marker for marker in marks(annotation) if isinstance(marker, kind)), None)


class Command(Generic[Parameters, Options, Result]):
    """A function whose arguments are the fields of a dataclass, created by `command`.

    Attributes:
        declaration: The dataclass.
        name: The command's words, such as "rerank train".
        help: The documentation without the arguments.
    """

    def __init__(
        self, name: str, declaration: Callable[Parameters, Options], program: Callable[[Options], Result]
    ) -> None:
        assert isinstance(declaration, type)
        self.name = name
        self.declaration: type = declaration
        self._program = program
        functools.update_wrapper(self, program)
        self.help = inspect.cleandoc(program.__doc__ or "")
        described = (f"    {option.name}: {option.description}" for option in options(self.declaration).values())
        self.__doc__ = "\n".join([self.help, "", "Args:", *described])

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        returns = inspect.signature(self._program).return_annotation
        return inspect.signature(self.declaration).replace(return_annotation=returns)

    def __repr__(self) -> str:
        return f"<command {self.name}{self.__signature__}>"

    def __call__(self, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        """Run the command.

        Raises:
            OptionError: An option is unknown or missing, or its value does not fit its type.
            RetrievalkitError: The command failed.
        """
        return self.run(self.read(*args, **options))

    def read(self, *args: Any, **keywords: Any) -> Options:
        """Return the checked options of a call; data in memory becomes an address.

        A declaration may have a static method `adapted`, which receives the original values and returns others.

        Raises:
            OptionError: An option is unknown or missing, or its value does not fit its type.
        """
        known = options(self.declaration)
        parameters = self.__signature__.parameters.values()
        positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        last = positional and mark(known[positional[-1]].annotation, Argument)
        if last and last.several and len(args) > len(positional):
            args = (*args[: len(positional) - 1], args[len(positional) - 1 :])
        if len(args) > len(positional):
            names = ", ".join(positional)
            msg = f"{self.name} takes {len(positional)} positional arguments ({names}), but got {len(args)}."
            raise OptionError(msg)
        values = dict(zip(positional, args, strict=False))
        if repeated := values.keys() & keywords.keys():
            msg = f"{self.name} got '{min(repeated)}' twice, by position and by name. Give it once."
            raise OptionError(msg)
        values |= keywords
        if adapted := getattr(self.declaration, "adapted", None):
            values = adapted(values)
        for name, value in values.items():
            reads = mark(known[name].annotation, Reads) if name in known else None
            if reads is not None and reads.convert is not None and value is not None:
                values[name] = reads.convert(value)
            elif isinstance(value, os.PathLike):
                values[name] = os.fspath(value)
            elif isinstance(value, list | tuple):
                values[name] = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in value]
        checked: Options = self.declaration(**check_options(self.name, self.declaration, values))
        return checked

    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options in `--set` or a recipe's `set`: options of the command, and of its components by section.

        Args:
            values: Settings, such as {"epochs": 3, "pooler": {"layers": [4, 6]}}.

        Raises:
            OptionError: An option or section does not exist, or a value does not fit its type.
        """
        known = options(self.declaration)
        rests = {marker.sections: name for name, option in known.items() if (marker := mark(option.annotation, Rest))}
        converted: dict[str, Any] = {}
        for name, value in values.items():
            field = f"{name}_options" if isinstance(value, Mapping) and f"{name}_options" in known else name
            rest = rests.get(isinstance(value, Mapping)) or rests.get(False)
            if field not in known and rest is not None:
                converted[rest] = {**converted.get(rest, {}), name: value}
                continue
            if field not in known or (field == name and name.endswith("_options")):
                names = [known_name.removesuffix("_options") for known_name in known]
                close = nearest(name, names)
                offer = f"; did you mean '{close}'?" if close else "."
                msg = f"rkit {self.name} has no option '{name}'{offer} Its options: {shortlist(names, 100)}."
                raise OptionError(msg)
            new = convert(f"option '{name}' of {self.name}", known[field].annotation, value)
            converted[field] = {**converted.get(field, {}), **new} if field == rests.get(False) else new
        return converted

    def run(self, options: Options) -> Result:
        """Run the command with options that `read` returned."""
        with _environment(options) as ready:
            return self._program(ready)


def command(
    name: str, declaration: Callable[Parameters, Options]
) -> Callable[[Callable[[Options], Result]], Command[Parameters, Options, Result]]:
    """Create a typed function from a program and the dataclass of its options.

    Args:
        name: The command's words, such as "rerank train".
        declaration: The dataclass.
    """
    return lambda program: Command(name, declaration, program)


def method(
    declaration: Callable[Parameters, Options],
) -> Callable[[Callable[[Owner, Options], Result]], Callable[Concatenate[Owner, Parameters], Result]]:
    """Create a typed method from a program and the dataclass of its options; also below `@classmethod`.

    Args:
        declaration: The dataclass.
    """

    def declare(program: Callable[[Owner, Options], Result]) -> Callable[Concatenate[Owner, Parameters], Result]:
        declared: Any = Command(program.__name__, declaration, program)  # type: ignore[arg-type]

        @functools.wraps(program)
        def called(owner: Owner, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
            with _environment(declared.read(*args, **options)) as ready:
                return program(owner, ready)

        own = next(iter(inspect.signature(program).parameters.values()))
        parameters = [own.replace(kind=own.POSITIONAL_ONLY), *declared.__signature__.parameters.values()]
        called.__dict__["__signature__"] = declared.__signature__.replace(parameters=parameters)
        called.__doc__ = declared.__doc__
        return called

    return declare


@contextmanager
def _environment(options: Any) -> Iterator[Any]:
    """Collect the notes of a command, fetch its inputs from object stores, and reserve its output."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    known = option_fields(type(options))
    with ExitStack() as stack:
        stack.enter_context(notices.collected(strict=values.get("strict", False)))
        if values.get("verify"):
            stack.enter_context(storage.verifying())
        read = {name: value for name, value in values.items() if mark(known[name].annotation, Reads)}
        copied = {
            name: tuple(map(_local, value)) if isinstance(value, tuple) else _local(value)
            for name, value in read.items()
        }
        changed = {name: value for name, value in copied.items() if value is not read[name]}
        if (output := values.get("output")) is not None and getattr(options, "holds_output", True):
            if storage.is_address(output):
                output = str(stack.enter_context(storage.sent(output, overwrite=values.get("overwrite", False))))
                changed["output"] = output
            stack.enter_context(storage.held(output))
            storage.restore(output)
        yield dataclasses.replace(options, **changed) if changed else options


def _local(value: Any) -> Any:
    """Return the local copy of an object in a store, or any other value unchanged."""
    return str(storage.local(value)) if isinstance(value, str) and storage.is_address(value) else value
