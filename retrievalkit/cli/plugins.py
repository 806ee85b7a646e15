"""`rkit plugins`: lists components, shows their options, and checks, creates, installs and removes plugins."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import click

from retrievalkit import registry
from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.cli.group import RkitGroup, first_sentence
from retrievalkit.contracts.declarations import Argument, Command, command
from retrievalkit.errors import InputError, RetrievalkitError, UnknownNameError, check_choice
from retrievalkit.registry.component_options import how_to_set
from retrievalkit.registry.modules import module_spec
from retrievalkit.reporting.table import Table


@dataclass(frozen=True)
class ListOptions:
    """Options of `plugins list`."""


class Components(Table):
    """Components of all plugins, and plugins that could not be loaded.

    Each row has `kind`, `name`, `plugin`, `version`, `summary` and `problem`; the kind of a broken plugin is "broken".
    """

    def __init__(self, plugins: list[registry.Plugin]) -> None:
        self._plugins = plugins
        super().__init__("Components", self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        for plugin in self._plugins:
            owner = {"plugin": plugin.distribution, "version": plugin.version}
            if plugin.error:
                yield {"kind": "broken", "name": plugin.name, **owner, "problem": plugin.error}
            for component in plugin.components:
                row = {"kind": component.kind, "name": component.name, **owner, "summary": _summary(component)}
                clash = f"also registered by {' and '.join(_rivals(component))}"
                yield row | ({"problem": clash} if _rivals(component) else {})

    def as_json(self) -> list[dict[str, Any]]:
        """Return every plugin with its components, or with the reason why it is broken."""
        return [
            {
                "plugin": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "error": plugin.error,
                "components": [
                    {"kind": part.kind, "name": part.name, "summary": _summary(part), "clashes_with": _rivals(part)}
                    for part in plugin.components
                ],
            }
            for plugin in self._plugins
        ]

    @property
    def summary(self) -> str:
        """Components by kind, each with its distribution and a sentence, then the broken plugins."""
        # In a pipe, each component is a single line, for grep.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        lines: list[str] = []
        for kind, hook in registry.HOOKS.items():
            components = [known for plugin in self._plugins for known in plugin.components if known.kind == kind]
            if not components:
                continue
            lines.append(hook.removeprefix("register_"))
            names = max(len(component.name) for component in components)
            owners = max(len(_owner(component)) for component in components)
            for component in sorted(components, key=attrgetter("name")):
                columns = f"  {component.name:<{names}}  {_owner(component):<{owners}}  "
                rivals = " and ".join(_rivals(component))
                clash = f"CLASH: {rivals} also registers this name, so neither can be used." if rivals else ""
                text = " ".join(filter(None, (clash, _summary(component))))
                wrapped = textwrap.wrap(text, max(width - len(columns), 40)) or [""]
                lines += [(columns + wrapped[0]).rstrip(), *(" " * len(columns) + line for line in wrapped[1:])]
            lines.append("")
        broken = [plugin for plugin in self._plugins if plugin.error]
        lines += ["could not be loaded"] if broken else []
        lines += [f"  {plugin.name}  {_owner(plugin)}: {plugin.error}" for plugin in broken]
        return "\n".join(lines).rstrip()


def _summary(component: registry.Component) -> str:
    """Return the help text of a component, or the first sentence of its docstring; "" if it has neither.

    The docstring is read from the module's source: importing every component would load torch, faiss and Java.
    """
    if component.help:
        return component.help
    module, _, attribute = component.target.partition(":")
    return first_sentence(_docstrings(module).get(attribute, ""))


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Return the docstrings of a module's classes and functions by name."""
    spec = module_spec(module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return {}
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    defined = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return {node.name: ast.get_docstring(node) or "" for node in defined}


def _owner(source: registry.Component | registry.Plugin) -> str:
    return f"{source.distribution} {source.version}"


def _rivals(component: registry.Component) -> list[str]:
    """Return the other plugins that use the same name."""
    candidates = registry.default_registry().candidates(component.kind, component.name)
    return [_owner(candidate) for candidate in candidates if candidate is not component]


@command("plugins list", ListOptions)
def plugins(options: ListOptions) -> Components:
    """List the components of all plugins with a sentence each, name clashes, and the reasons why plugins are broken."""
    del options
    return Components(registry.plugins())


@dataclass(frozen=True)
class NameOptions:
    """Options of `plugins show`.

    Args:
        name: A component, such as "self_contrastive" or "flat".
    """

    name: Annotated[str, Argument()]


@command("plugins show", NameOptions)
def show_plugin(options: NameOptions) -> str:
    """Show the documentation of a component, and its options with types and defaults."""
    kinds = [kind for kind in registry.HOOKS if options.name in registry.names(kind)]
    if not kinds:
        known = dict.fromkeys(name for kind in registry.HOOKS for name in registry.names(kind))
        hint = f"See rkit plugins list. {registry.default_registry().broken_plugins()}"
        raise UnknownNameError("component", options.name, known, hint=hint)
    texts = []
    for component in (registry.component(kind, options.name) for kind in kinds):
        title = f"{component.kind} {component.name} ({_owner(component)})"
        if component.kind == "command":
            texts.append(f"{title}\n\n{component.help}\n\noptions: rkit {component.name} --help")
            continue
        loaded = component.load()
        lines = [title, "", (inspect.getdoc(loaded) or "").split("\nArgs:")[0].strip()]
        known_options = registry.options(loaded) if isinstance(loaded, type) else {}
        lines += ["", f"options ({how_to_set(component.kind, component.name)})"] if known_options else []
        for option in known_options.values():
            default = "required" if option.required else f"default {option.default!r}"
            lines += [f"  {option.name}: {option.type_name}, {default}"]
            lines += [f"      {option.description}"] if option.description else []
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


@dataclass(frozen=True)
class PipOptions:
    """Options of `plugins install` and `plugins remove`.

    Args:
        name: Name of a distribution, or, for install, the path of its folder.
    """

    name: Annotated[str, Argument()]


@command("plugins install", PipOptions)
def install_plugin(options: PipOptions) -> str:
    """Install a plugin with pip into this environment."""
    return _pip("install", options.name)


@command("plugins remove", PipOptions)
def remove_plugin(options: PipOptions) -> str:
    """Remove a plugin from this environment, with pip."""
    check_choice("plugin", options.name, {plugin.distribution for plugin in registry.plugins()})
    return _pip("uninstall", "--yes", options.name)


def _pip(*words: str) -> str:
    if importlib.util.find_spec("pip") is None:
        uv = shlex.join(["uv", "pip", words[0], words[-1], "--python", sys.executable])
        msg = f"the environment {sys.prefix} has no pip (environments of uv have none). Run: {uv}"
        raise InputError(msg)
    line = [sys.executable, "-m", "pip", *words[:-1], "--", words[-1]]
    click.echo(shlex.join(line), err=True)
    # Standard output is reserved for the result.
    process = subprocess.run(line, stdout=sys.__stderr__, check=False)
    if process.returncode:
        msg = f"pip failed with exit code {process.returncode}. See its messages above."
        raise RetrievalkitError(msg)
    return f"{words[-1]} is {'installed' if words[0] == 'install' else 'removed'}"


@click.group("plugins", cls=RkitGroup)
def group() -> None:
    """List, show, check, create and install plugins: encoders, poolers, losses, indexers, commands and more."""


_commands: list[Command[..., Any, Any]] = [plugins, show_plugin, install_plugin, remove_plugin]
if importlib.util.find_spec("retrievalkit_testing") is not None:
    _commands += importlib.import_module("retrievalkit_testing.commands").COMMANDS
for _command in _commands:
    group.add_command(DerivedCommand(_command))
