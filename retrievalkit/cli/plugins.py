"""`rkit plugins`: lists components, shows their options, checks one, starts a new plugin, installs and removes."""

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
from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from retrievalkit import registry
from retrievalkit.cli.group import RkitGroup
from retrievalkit.cli.new_plugin import KINDS, new, package
from retrievalkit.cli.options import echo, is_called, json_option, output_option, parse, set_option
from retrievalkit.errors import InputError, RetrievalkitError, UnknownNameError, check_choice
from retrievalkit.modules import module_spec
from retrievalkit.options import how_to_set

_SENTENCE = re.compile(r"(.+?(?<!e\.g)(?<!i\.e)(?<!vs)(?<!et al)[.!?])(?=\s|$)", re.DOTALL)


def listing(width: int = 110) -> str:
    """All components by kind with their distribution and a sentence each, then the plugins that are broken."""
    found = registry.plugins()
    lines: list[str] = []
    for kind in registry.HOOKS:
        components = sorted(
            (one for plugin in found for one in plugin.components if one.kind == kind), key=attrgetter("name")
        )
        if components:
            lines += [f"{kind}s" if kind != "loss" else "losses", *_table(components, width), ""]
    broken = [plugin for plugin in found if plugin.error]
    if broken:
        lines.append("could not be loaded")
        lines += [f"  {one.name}  {one.distribution} {one.version}: {one.error}" for one in broken]
    return "\n".join(lines).rstrip()


def _table(components: Sequence[registry.Component], width: int) -> list[str]:
    names = max(len(one.name) for one in components)
    owners = max(len(_owner(one)) for one in components)
    lines = []
    for one in components:
        columns = f"  {one.name:<{names}}  {_owner(one):<{owners}}  "
        text = " ".join(part for part in (_clash(one), _summary(one)) if part)
        wrapped = textwrap.wrap(text, max(width - len(columns), 40)) or [""]
        lines += [(columns + wrapped[0]).rstrip(), *(" " * len(columns) + line for line in wrapped[1:])]
    return lines


def _summary(component: registry.Component) -> str:
    """The help text of a component, or the first sentence of its docstring; "" if there is neither.

    Read from the source of its module: importing every component would start torch, faiss and Java.
    """
    if component.help:
        return component.help
    module, _, attribute = component.target.partition(":")
    paragraph = " ".join(_docstrings(module).get(attribute, "").strip().partition("\n\n")[0].split())
    match = _SENTENCE.match(paragraph)
    return match[1] if match else paragraph


@cache
def _docstrings(module: str) -> dict[str, str]:
    """The docstrings of a module's classes and functions by name."""
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


def _clash(component: registry.Component) -> str:
    """Says which other plugins use the name too; "" if none does."""
    rivals = [_owner(one) for one in _rivals(component)]
    return f"CLASH: {' and '.join(rivals)} registers the name too, so it cannot be used." if rivals else ""


def _rivals(component: registry.Component) -> list[registry.Component]:
    candidates = registry.default_registry().candidates(component.kind, component.name)
    return [one for one in candidates if one is not component]


def listing_as_json() -> list[dict[str, Any]]:
    """Every plugin with its components, or the reason why it is broken."""
    return [
        {
            "plugin": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "error": plugin.error,
            "components": [
                {
                    "kind": one.kind,
                    "name": one.name,
                    "summary": _summary(one),
                    "clashes_with": [_owner(rival) for rival in _rivals(one)],
                }
                for one in plugin.components
            ],
        }
        for plugin in registry.plugins()
    ]


def show(name: str) -> str:
    """The documentation of a component and its options; of all components, if several kinds use the name."""
    return "\n\n".join(_shown(component) for component in _named(name))


def _shown(component: registry.Component) -> str:
    title = f"{component.kind} {component.name} ({_owner(component)})"
    if component.kind == "command":
        return f"{title}\n\n{component.help}\n\noptions: rkit {component.name} --help"
    loaded = component.load()
    lines = [title, "", (inspect.getdoc(loaded) or "").split("\nArgs:")[0].strip()]
    options = registry.options(loaded) if isinstance(loaded, type) else {}
    if options:
        lines += ["", f"options ({how_to_set(component.kind, component.name)})"]
    for option in options.values():
        default = "required" if option.required else f"default {option.default!r}"
        lines += [f"  {option.name}: {option.type_name}, {default}"]
        lines += [f"      {option.description}"] if option.description else []
    return "\n".join(lines)


def _named(name: str) -> list[registry.Component]:
    found = [registry.component(kind, name) for kind in registry.HOOKS if name in registry.names(kind)]
    if not found:
        known = dict.fromkeys(one for kind in registry.HOOKS for one in registry.names(kind))
        raise UnknownNameError("component", name, known, hint="See rkit plugins list.")
    return found


@click.group(cls=RkitGroup)
def plugins() -> None:
    """List, show, check, start, find and install plugins: encoders, poolers, losses, indexers, commands and more."""


@plugins.command("list")
@json_option
def list_plugins(as_json: bool) -> list[dict[str, Any]]:
    """List the components of all plugins with a sentence each; name clashes and broken plugins with the reason."""
    # In a pipe a component is one line, for grep.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    return echo(as_json, listing_as_json(), listing(width))


@plugins.command("show")
@click.argument("name")
def show_plugin(name: str) -> str:
    """Show the documentation of the component NAME, and its options with types and defaults."""
    return _echo(show(name))


@plugins.command("new")
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(KINDS), default="pooler", show_default=True, help="The kind of component to start with."
)
@output_option
def new_plugin(name: str, kind: str, output: str) -> str:
    """Write a plugin package with a component called NAME, ready to install and to change."""
    return _echo(new(name, kind, output))


@plugins.command("package")
@click.argument("file")
@output_option
def package_plugin(file: str, output: str) -> str:
    """Write a plugin package with the components of FILE, a plugin of a single file (RKIT_PLUGIN_FILES)."""
    return _echo(package(file, output))


@plugins.command("check")
@click.argument("name")
@click.option("--model", help="The model to check encoders, poolers and pretrainers with; by default tiny ones.")
@click.option("--property", "properties", multiple=True, metavar="NAME", help="Try this property alone; repeatable.")
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Most seconds for a property."
)
@set_option
@json_option
def check_plugin(
    name: str, model: str | None, properties: tuple[str, ...], seconds: float, settings: tuple[str, ...], as_json: bool
) -> list[dict[str, Any]]:
    """Check that the component or distribution NAME keeps the contract, property by property; exits with 1 if not."""
    try:
        conforming = importlib.import_module("retrievalkit_testing.conforming")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "retrievalkit_testing":
            raise
        msg = "The conformance tests are a distribution of their own. Install it: pip install retrievalkit-testing"
        raise InputError(msg) from error
    rows: list[dict[str, Any]] = conforming.check(
        name, model=model, options=parse(settings), properties=properties, seconds=seconds
    )
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
    echo(as_json, rows, conforming.table(rows, width))
    failures = [row for checked in rows for row in checked["properties"] if row["result"] == "failed"]
    if failures and is_called():
        msg = f"{len(failures)} properties of '{name}' failed, the first: {failures[0]['property']}."
        raise RetrievalkitError(msg)
    if failures:
        click.get_current_context().exit(1)
    return rows


@plugins.command("install")
@click.argument("name")
def install_plugin(name: str) -> str:
    """Install the plugin NAME, a distribution or the folder of one, with pip into this environment."""
    return _pip("install", name)


@plugins.command("remove")
@click.argument("name")
def remove_plugin(name: str) -> str:
    """Remove the plugin NAME, a distribution, from this environment, with pip."""
    check_choice("plugin", name, {one.distribution for one in registry.plugins()})
    return _pip("uninstall", "--yes", name)


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", *words[:-1], "--", words[-1]]
    if importlib.util.find_spec("pip") is None:
        same = shlex.join(["uv", "pip", words[0], words[-1], "--python", sys.executable])
        msg = f"the environment {sys.prefix} has no pip, like those that uv makes. Run: {same}"
        raise InputError(msg)
    click.echo(shlex.join(command), err=True)
    # Standard output is for the result.
    done = subprocess.run(command, stdout=sys.__stderr__, check=False)
    if done.returncode:
        msg = f"pip failed with code {done.returncode}; its messages are above."
        raise RetrievalkitError(msg)
    return _echo(f"{words[-1]} is {'installed' if words[0] == 'install' else 'removed'}")


def _echo(text: str) -> str:
    return echo(False, text, text)
