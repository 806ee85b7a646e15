"""Click commands derived from declared commands: flags, help and defaults come from the options dataclass.

Each option has a flag; `--set NAME=VALUE` sets it too, and `--set pooler.layers=4,6` an option of a component.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import types
import typing
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from typing import Any, Literal

import click
from click.core import ParameterSource

from retrievalkit import registry, storage
from retrievalkit.cli.kinds import explained, option_for_extra
from retrievalkit.cli.signals import STARTED_BY_TORCHRUN
from retrievalkit.contracts.cluster import RANKS
from retrievalkit.contracts.declarations import Argument, Command, CommandOptions, Flag, Named, Reads, Rest, mark
from retrievalkit.errors import InputError
from retrievalkit.registry.component_options import NAMED_WITH_OPTIONS, Option, convert, options, read_call
from retrievalkit.reporting import notices
from retrievalkit.reporting.terminal import say
from retrievalkit.storage.places import descriptor

_SHARED = ("train", "pretrain", "rerank train")
_LED = ("encode", "index", "mine-negatives", "search", "rerank apply")
"""Commands that torchrun can start: all processes share each step, or compute what the main process distributes."""


class _Value(click.ParamType[Any]):
    """Click type of an option, validated as in Python and in recipes."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = option.type_name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            converted = convert(self.option.name, self.option.annotation, value)
            named = mark(self.option.annotation, Named)
            if named and named.kind in NAMED_WITH_OPTIONS and converted not in ("auto", "torch"):  # of backends
                registry.component(named.kind, read_call(converted)[0])
            return converted
        except InputError as error:
            self.fail(str(error), param, ctx)


def _only(ctx: click.Context, param: click.Parameter, values: Sequence[Any]) -> Any:
    """Return the value of an option with a single value: repeating it is an error; click would use the last value."""
    if len(values) > 1:
        listed = " and ".join(f"'{value}'" for value in values)
        msg = f"{param.opts[0]} accepts one value, but {listed} were given. Give it once."
        raise click.UsageError(msg, ctx)
    return values[0] if values else None


class DerivedCommand(click.Command):
    """Click command of a declared command; the help groups options by the dataclass that declares them."""

    def __init__(self, declared: Command[..., Any, Any]) -> None:
        self.declared = declared
        # Options of base classes last.
        named = options(declared.declaration)
        order = dict.fromkeys(name for base in declared.declaration.__mro__ for name in inspect.get_annotations(base))
        settable = [named[name] for name in order if name in named and not name.endswith("_options")]
        # Options of components, and others that only --set can set, have no flags.
        params = [_parameter(option) for option in settable if not mark(option.annotation, Rest)]
        if issubclass(declared.declaration, CommandOptions):
            usual = "Set any option by its name, or one of a component, such as pooler.layers=4,6 (rkit plugins show)."
            text = next((option.description for option in settable if mark(option.annotation, Rest)), usual)
            params.append(click.Option(["--set", "settings"], multiple=True, metavar="KEY=VALUE", help=text))
        # A command with a field `as_json`, or without a result, prints its output itself, while it runs.
        without_result = declared.__signature__.return_annotation in (None, "None")
        self._prints = without_result or "as_json" in options(declared.declaration)
        if not self._prints:
            params.append(click.Option(["--json", "as_json"], is_flag=True, help="Print a machine-readable result."))
        super().__init__(declared.name.rpartition(" ")[2], params=params, callback=self._called, help=declared.help)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does; an extra argument is reported with the option that accepts it."""
        if STARTED_BY_TORCHRUN in os.environ and (name := self.declared.name) not in (*_SHARED, *_LED):
            known = ", ".join(f"rkit {command}" for command in (*_SHARED, *_LED))
            msg = f"rkit {name} runs in one process. Start it without torchrun, which is for {known}."
            raise click.UsageError(msg)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if more := option_for_extra(error):
                error = click.UsageError(f"{error.message}. {more}", error.ctx)
            if STARTED_BY_TORCHRUN not in os.environ:
                raise error from None
            from retrievalkit.training.collective import joined

            # Only one process reports it.
            with joined() as collective, collective.together():
                raise error from None

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command; explain an argument of the wrong kind, such as a corpus instead of a run."""
        with explained(ctx, ctx.params):
            return super().invoke(ctx)

    def _called(self, *, as_json: bool = False, settings: tuple[str, ...] = (), **flags: Any) -> Any:
        from retrievalkit.recipes.settings import parse_set

        # Only the user's values, so that a default does not hide a value of --set.
        source = click.get_current_context().get_parameter_source
        values = {name: value for name, value in flags.items() if source(name) is not ParameterSource.DEFAULT}
        if as_json and self._prints:
            values["as_json"] = True

        def read() -> Any:
            return self.declared.read(**self.declared.settings(parse_set(settings)) | values)

        if STARTED_BY_TORCHRUN not in os.environ:
            return self._run(read(), as_json)
        from retrievalkit.training.collective import joined
        from retrievalkit.training.ranks import lead

        with joined() as collective:
            if self.declared.name in _LED:
                values |= {"ray": RANKS} if collective.size > 1 else {}
                return lead(collective, lambda: self._run(read(), as_json))
            with collective.together():
                options = read()
            return self._run(options, as_json, shown=collective.is_main)

    def _run(self, options: Any, as_json: bool, *, shown: bool = True) -> Any:
        # Output to /dev/stdout is not mixed with messages of the command.
        to_stdout = (output := getattr(options, "output", None)) is not None and descriptor(output) == 1
        with redirect_stdout(sys.stderr) if to_stdout else nullcontext():
            result = self.declared.run(options)
            if shown and not self._prints:
                data = result if isinstance(result, str) else result.as_json() if as_json else result.summary
                say(storage.named(json.dumps(data, indent=2, default=str) if as_json else data))
                # JSON includes the notes.
                for note in () if as_json else getattr(result, "notes", ()):
                    notices.show(note)
        if code := getattr(result, "exit_code", 0):
            click.get_current_context().exit(code)
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options, with shared options under separate headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, click.Argument):
                record = param.make_metavar(ctx), options(self.declared.declaration)[str(param.name)].description
            if record is not None:
                sections.setdefault(self._heading(str(param.name)), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def _heading(self, name: str) -> str:
        declaring = [base for base in self.declared.declaration.__mro__ if name in inspect.get_annotations(base)]
        return vars(declaring[-1]).get("heading", "Options") if declaring else "Options"


def _parameter(option: Option) -> click.Parameter:
    """Create the click argument or flag of an option."""
    flag = mark(option.annotation, Flag)
    if argument := mark(option.annotation, Argument):
        nargs, metavar = -1 if argument.several else 1, flag and flag.metavar
        return click.Argument([option.name], required=option.required, nargs=nargs, metavar=metavar)
    names = list(flag.names) if flag and flag.names else [f"--{option.name.replace('_', '-')}"]
    shared: dict[str, Any] = {"help": option.description, "required": option.required or bool(flag and flag.required)}
    if not option.required:
        shared |= {"default": option.default, "show_default": bool(option.default)}
    only = shared | {"multiple": True, "callback": _only}
    if option.default is not None and not option.required:
        only["default"] = [option.default]
    kinds = _kinds(option.annotation)
    if bool in kinds:
        if option.default is not False and "/" not in names[0]:
            names = [f"{names[0]}/--no-{option.name.replace('_', '-')}"]
        return click.Option([*names, option.name], is_flag=True, **shared)
    literals = [value for kind in kinds if typing.get_origin(kind) is Literal for value in typing.get_args(kind)]
    if literals:
        return click.Option([*names, option.name], type=click.Choice(literals), **only)
    origins = [typing.get_origin(kind) for kind in kinds if float not in typing.get_args(kind)]  # 0.3,0.7 is one value
    several = any(isinstance(origin, type) and issubclass(origin, Sequence) for origin in origins)
    usual = next((text for kind, text in ((float, "NUMBER"), (int, "N")) if kind in kinds), "TEXT")
    if mark(option.annotation, Reads) or any(typing.get_origin(kind) is os.PathLike for kind in kinds):
        usual = "PATH"
    metavar = (flag and flag.metavar) or ("NAME" if mark(option.annotation, Named) else usual)
    if several and not option.required:
        shared |= {"default": None, "show_default": str(option.default) if option.default else False}
    # A flag with several values is repeated, once per value.
    element = replace(option, annotation=(typing.get_args(kinds[0]) or kinds)[0]) if several else option
    values = shared | {"multiple": True} if several else only
    return click.Option([*names, option.name], type=_Value(element), metavar=metavar, **values)


def _kinds(annotation: Any) -> list[Any]:
    """Return the types of a union, without None and annotations."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for argument in typing.get_args(annotation) for kind in _kinds(argument)]
    return [] if annotation is types.NoneType else [annotation]
