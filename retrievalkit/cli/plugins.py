"""`rkit plugins`: lists components, shows their options, and checks, creates, installs and removes plugins."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
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
from retrievalkit.cli.group import RkitGroup
from retrievalkit.contracts.declarations import Argument, Command, command
from retrievalkit.errors import InputError, RetrievalkitError, UnknownNameError, check_choice
from retrievalkit.registry.component_options import how_to_set
from retrievalkit.registry.modules import module_spec
from retrievalkit.reporting.table import Table

_SENTENCE = re.compile(r"(.+?(?<!e\.g)(?<!i\.e)(?<!vs)(?<!et al)[.!?])(?=\s|$)", re.DOTALL)


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
            for one in plugin.components:
                row = {"kind": one.kind, "name": one.name, **owner, "summary": _summary(one)}
                clash = f"also registered by {' and '.join(_rivals(one))}"
                yield row | ({"problem": clash} if _rivals(one) else {})

    def as_json(self) -> list[dict[str, Any]]:
        """Return every plugin with its components, or with the reason why it is broken."""
        return [
            {
                "plugin": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "error": plugin.error,
                "components": [
                    {"kind": one.kind, "name": one.name, "summary": _summary(one), "clashes_with": _rivals(one)}
                    for one in plugin.components
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
        for kind in registry.HOOKS:
            components = [one for plugin in self._plugins for one in plugin.components if one.kind == kind]
            if not components:
                continue
            lines.append(f"{kind}s" if kind != "loss" else "losses")
            names = max(len(one.name) for one in components)
            owners = max(len(_owner(one)) for one in components)
            for one in sorted(components, key=attrgetter("name")):
                columns = f"  {one.name:<{names}}  {_owner(one):<{owners}}  "
                rivals = " and ".join(_rivals(one))
                clash = f"CLASH: {rivals} registers the name too, so it cannot be used." if rivals else ""
                text = " ".join(filter(None, (clash, _summary(one))))
                wrapped = textwrap.wrap(text, max(width - len(columns), 40)) or [""]
                lines += [(columns + wrapped[0]).rstrip(), *(" " * len(columns) + line for line in wrapped[1:])]
            lines.append("")
        broken = [plugin for plugin in self._plugins if plugin.error]
        lines += ["could not be loaded"] if broken else []
        lines += [f"  {one.name}  {one.distribution} {one.version}: {one.error}" for one in broken]
        return "\n".join(lines).rstrip()


def _summary(component: registry.Component) -> str:
    """Return the help text of a component, or the first sentence of its docstring; "" if it has neither.

    The docstring is read from the module's source: importing every component would load torch, faiss and Java.
    """
    if component.help:
        return component.help
    module, _, attribute = component.target.partition(":")
    paragraph = " ".join(_docstrings(module).get(attribute, "").strip().partition("\n\n")[0].split())
    match = _SENTENCE.match(paragraph)
    return match[1] if match else paragraph


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


def _owner(component: registry.Component) -> str:
    return f"{component.distribution} {component.version}"


def _rivals(component: registry.Component) -> list[str]:
    """Return the other plugins that use the same name."""
    candidates = registry.default_registry().candidates(component.kind, component.name)
    return [_owner(one) for one in candidates if one is not component]


@command("plugins list", ListOptions)
def plugins(options: ListOptions) -> Components:
    """List the components of all plugins with a sentence each; name clashes and broken plugins with the reason."""
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
        known = dict.fromkeys(one for kind in registry.HOOKS for one in registry.names(kind))
        raise UnknownNameError("component", options.name, known, hint="See rkit plugins list.")
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
        name: Name of a distribution; to install, also the path of its folder.
    """

    name: Annotated[str, Argument()]


@command("plugins install", PipOptions)
def install_plugin(options: PipOptions) -> str:
    """Install a plugin with pip into this environment."""
    return _pip("install", options.name)


@command("plugins remove", PipOptions)
def remove_plugin(options: PipOptions) -> str:
    """Remove a plugin from this environment, with pip."""
    check_choice("plugin", options.name, {one.distribution for one in registry.plugins()})
    return _pip("uninstall", "--yes", options.name)


def _pip(*words: str) -> str:
    if importlib.util.find_spec("pip") is None:
        same = shlex.join(["uv", "pip", words[0], words[-1], "--python", sys.executable])
        msg = f"the environment {sys.prefix} has no pip, like those that uv makes. Run: {same}"
        raise InputError(msg)
    line = [sys.executable, "-m", "pip", *words[:-1], "--", words[-1]]
    click.echo(shlex.join(line), err=True)
    # Standard output is reserved for the result.
    done = subprocess.run(line, stdout=sys.__stderr__, check=False)
    if done.returncode:
        msg = f"pip failed with code {done.returncode}; its messages are above."
        raise RetrievalkitError(msg)
    return f"{words[-1]} is {'installed' if words[0] == 'install' else 'removed'}"


@click.group("plugins", cls=RkitGroup)
def group() -> None:
    """List, show, check, start, find and install plugins: encoders, poolers, losses, indexers, commands and more."""


_commands: list[Command[..., Any, Any]] = [plugins, show_plugin, install_plugin, remove_plugin]
if importlib.util.find_spec("retrievalkit_testing") is not None:
    _commands += importlib.import_module("retrievalkit_testing.commands").COMMANDS
for _one in _commands:
    group.add_command(DerivedCommand(_one))
