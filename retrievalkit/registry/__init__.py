"""The plugin registry: finds plugins, resolves kind and name to a class, lists components, isolates broken plugins.

Plugins come from three places, with equal rights: the built-in components, installed distributions with an entry point
in the group `retrievalkit.plugins`, and local files named in `RKIT_PLUGIN_FILES`. `RKIT_PLUGINS=mlr,mvr` limits the
installed plugins that are loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from retrievalkit import __version__, hookspecs
from retrievalkit.errors import (
    MissingDependencyError,
    PluginError,
    RetrievalkitError,
    UnknownNameError,
    check_choice,
    nearest,
)
from retrievalkit.registry.component_options import Option, check_options, convert, options, read_call
from retrievalkit.registry.modules import large_imports

__all__ = [
    "HOOKS", "Component", "Plugin", "Registry", "default_registry", "names", "component", "plugins", "get", "create",
    "describe", "missing", "wrong_result", "PluginError", "Option", "options", "check_options", "convert", "read_call",
]  # fmt: skip

ENTRY_POINT_GROUP = "retrievalkit.plugins"
LOCAL_FILE = "local file"
"""Version of components from a local file, without a distribution."""

HOOKS = {
    "encoder": "register_encoders",
    "pooler": "register_poolers",
    "compressor": "register_compressors",
    "loss": "register_losses",
    "indexer": "register_indexers",
    "pretrainer": "register_pretrainers",
    "command": "register_commands",
    "check": "register_checks",
    "source": "register_sources",
    "filter": "register_filters",
    "fusion": "register_fusions",
    "metric": "register_metrics",
    "reranker": "register_rerankers",
    "recipe": "register_recipes",
    "workers": "register_workers",
    "backend": "register_backends",
}

DISTRIBUTIONS = {
    "analyse-views": "retrievalkit-mvr",
    "export": "retrievalkit-export",
    "pretrain": "retrievalkit-pretrain",
    "pydoc:": "retrievalkit-pydoc",
    "serve": "retrievalkit-serve",
    **dict.fromkeys(("hf:", "irds:"), "retrievalkit-adapters"),
    **dict.fromkeys(("sync", "documents:"), "retrievalkit-documents"),
    **dict.fromkeys(("plugins new", "plugins package", "plugins check"), "retrievalkit-testing"),
}
"""Commands and source prefixes of our distributions -> the distribution to install."""

_DASHES = (r"[a-z][a-z0-9]*(-[a-z0-9]+)*", "lower case with dashes")
_NAMES = {"command": _DASHES, "recipe": _DASHES, "metric": (r"[A-Za-z][A-Za-z0-9_]*", "letters, digits and _")}
_BASES = {
    "backend": "Backend", "compressor": "Compressor",
    "filter": "Filter", "fusion": "FusionMethod", "metric": "Metric", "reranker": "Reranker", "workers": "Workers",
}  # fmt: skip
"""The class of `retrievalkit.contracts` that a component must extend, for kinds whose methods have defaults."""
_SNAKE_CASE = (r"[a-z][a-z0-9_]*", "snake_case")

_loaded_files: list[str] = []


@dataclass(frozen=True)
class Component:
    """A registered component.

    Attributes:
        kind: A key of `HOOKS`.
        name: The name users type.
        target: The import string of its class, command or function.
        plugin: Name of the plugin that registered it.
        distribution: Name of the plugin's distribution, or path of a local file.
        version: Version of the distribution.
        help: A sentence that describes it, "" to use the docstring.
        group: For commands, the group in `rkit --help`.
    """

    kind: str
    name: str
    target: str
    plugin: str
    distribution: str
    version: str
    help: str = ""
    group: str = ""

    def load(self) -> Any:
        """Import the class (of a command: declared or click command; of a check: function; of recipes: Path).

        Raises:
            PluginError: The import failed, or returned something of another kind.
        """
        module_name, _, attribute = self.target.partition(":")
        try:
            with large_imports():
                loaded = getattr(importlib.import_module(module_name), attribute)
        except RetrievalkitError:
            raise
        except (Exception, SystemExit) as error:
            msg = f"{self._described()} cannot be imported from '{self.target}': {_reason(error)}"
            raise PluginError(msg) from error
        if problem := _not_of_kind(self.kind, loaded):
            msg = f"{self._described()}: '{self.target}' is {problem}"
            raise PluginError(msg)
        return loaded

    def _described(self) -> str:
        return f"{self.kind} '{self.name}' of plugin '{self.plugin}' ({self.distribution} {self.version})"


def _not_of_kind(kind: str, loaded: object) -> str:
    """Return why an imported object cannot be a component of a kind; "" if it can."""
    if kind == "command":
        import click

        fits = isinstance(loaded, click.Command) or hasattr(loaded, "declaration")
        problem = "not a command. Decorate it with @retrievalkit.contracts.commands.command or @click.command()."
    elif kind == "check":
        fits, problem = callable(loaded), "not a function. Register a function that returns a list of Findings."
    elif kind == "recipe":
        fits, problem = isinstance(loaded, Path), "not a Path. Register the folder of the recipes as a pathlib.Path."
    else:
        fits, problem = isinstance(loaded, type), "not a class. Register the class of the component."
        if isinstance(loaded, type) and kind in _BASES:
            base = getattr(importlib.import_module("retrievalkit.contracts"), _BASES[kind])
            fits = issubclass(loaded, base)
            problem = f"not a {base.__name__}. Extend retrievalkit.contracts.{base.__name__}."
    return "" if fits else problem


@dataclass
class Plugin:
    """A plugin: its origin, its components, and the reason if it is broken."""

    name: str
    distribution: str
    version: str
    components: list[Component] = field(default_factory=list)
    error: str | None = None


class Registry:
    """All plugins, and their components by kind and name."""

    def __init__(self) -> None:
        self.plugins: list[Plugin] = []
        self._components: dict[str, dict[str, list[Component]]] = {kind: {} for kind in HOOKS}

    def add(self, plugin: Plugin, load: Callable[[], ModuleType]) -> None:
        """Import a plugin's module and call its hooks; failures are recorded in `plugin.error`."""
        self.plugins.append(plugin)
        manager = pluggy.PluginManager("retrievalkit")
        manager.add_hookspecs(hookspecs)
        try:
            # Otherwise a plugin's output would precede the output of every command.
            with contextlib.redirect_stdout(sys.stderr):
                module = load()
                _check_contract(module)
                manager.register(module)
                manager.check_pending()
                for kind, hook in HOOKS.items():
                    getattr(manager.hook, hook)(register=partial(_register, plugin, kind))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything, and must not stop others
            plugin.error = _reason(error)
            plugin.components.clear()
        for component in plugin.components:
            self._components[component.kind].setdefault(component.name, []).append(component)

    def names(self, kind: str) -> list[str]:
        """Return the registered names of a kind, sorted."""
        return sorted(self._kind(kind))

    def component(self, kind: str, name: str) -> Component:
        """Return the component of a kind and name.

        Raises:
            UnknownNameError: The name is not registered; lists the plugins that could not be loaded.
            MissingDependencyError: The command belongs to a distribution of ours that is not installed.
            PluginError: Two distributions registered it.
        """
        candidates = self.candidates(kind, name)
        if not candidates:
            if kind == "command" and name in DISTRIBUTIONS:
                raise MissingDependencyError(DISTRIBUTIONS[name], f"the command '{name}'")
            if kind == "backend" and name in ("openvino", "onnx"):
                raise MissingDependencyError("retrievalkit-openvino", f"backend {name}", f"'retrievalkit[{name}]'")
            raise UnknownNameError(kind, name, self._kind(kind), hint=self.hint(kind, name))
        if len(candidates) > 1:
            owners = " and ".join(f"{owner.distribution} {owner.version}" for owner in candidates)
            msg = f"{kind} '{name}' is registered by both {owners}. Uninstall one, or choose with RKIT_PLUGINS."
            raise PluginError(msg)
        return candidates[0]

    def candidates(self, kind: str, name: str) -> list[Component]:
        """Return every component of a kind and name; several are a clash."""
        return self._kind(kind).get(name, [])

    def hint(self, kind: str, name: str) -> str:
        """Return a hint for an unknown name: the package of the nearest name, and plugins that could not be loaded."""
        near = self._kind(kind).get(nearest(name, self._kind(kind)) or "", [])
        owners = [owner for owner in near if owner.distribution != "retrievalkit"]
        origins = [f"'{owner.name}' comes with {owner.distribution} {owner.version}." for owner in owners]
        return " ".join(filter(None, [*origins, self.broken_plugins()]))

    def _kind(self, kind: str) -> dict[str, list[Component]]:
        check_choice("kind of component", kind, self._components)
        return self._components[kind]

    def broken_plugins(self) -> str:
        """Return a sentence on the plugins that could not be loaded, with reasons; "" if there are none."""
        broken = [f"{plugin.name} ({plugin.error})" for plugin in self.plugins if plugin.error]
        return f"Plugins that could not be loaded: {'; '.join(broken)}." if broken else ""


def _check_contract(module: ModuleType) -> None:
    """Refuse a plugin that was written for another contract, or for a newer version of ours."""
    declared = getattr(module, "retrievalkit_contract", None)
    if declared is None:
        return
    if not isinstance(declared, str) or not re.fullmatch(r"\d{1,6}(\.\d{1,6}){0,2}", declared):
        msg = f'its retrievalkit_contract is {declared!r}, but should be the text of a version, such as "0.1"'
        raise PluginError(msg)
    wanted, ours = (tuple(map(int, text.split("."))) for text in (declared, hookspecs.VERSION))
    # Below 1.0, a minor version may change anything.
    fixed = ours[: 1 if ours[0] else 2]
    if wanted[: len(fixed)] == fixed and wanted[:2] <= ours[:2]:
        return
    needed = f"a version of the plugin for contract {'.'.join(map(str, fixed))}"
    other = "a newer retrievalkit" if wanted > ours else needed
    msg = (
        f"it was written for contract {declared}, but retrievalkit {__version__} has contract {hookspecs.VERSION}. "
        f"Install {other}."
    )
    raise PluginError(msg)


def _register(
    plugin: Plugin,
    kind: str,
    name: object,
    target: object,
    *,
    help: str = "",  # noqa: A002 - by contract
    group: str = "plugins",
) -> None:
    """Check and record a plugin's registration."""
    pattern, style = _NAMES.get(kind, _SNAKE_CASE)
    if not isinstance(name, str) or not re.fullmatch(pattern, name):
        msg = f"the {kind} name {name!r} is not {style}"
    elif not isinstance(target, str) or not re.fullmatch(r"[\w.]+:\w+", target):
        msg = f"the target {target!r} of {kind} '{name}' is not an import string like 'package.module:Class'"
    elif any((known.kind, known.name) == (kind, name) for known in plugin.components):
        msg = f"it registers the {kind} '{name}' twice"
    elif kind == "command" and name in hookspecs.BUILT_IN_COMMANDS:
        msg = f"it registers the command '{name}', which is a command of retrievalkit itself"
    elif kind == "command" and not help:
        msg = f"the command '{name}' has no help text: register(..., help=\"One sentence.\")"
    else:
        if kind == "command":
            check_choice("command group", group, hookspecs.COMMAND_GROUPS)
        owner = plugin.name, plugin.distribution, plugin.version
        plugin.components.append(Component(kind, name, target, *owner, help, group))
        return
    raise PluginError(msg)


@cache
def default_registry() -> Registry:
    """Return the registry of this process, with all available plugins."""
    registry = Registry()
    built_in = partial(importlib.import_module, "retrievalkit.registry.registrations")
    registry.add(Plugin("built-in", "retrievalkit", __version__), built_in)
    for entry_point, distribution, version in _entry_points():
        registry.add(Plugin(entry_point.name, distribution, version), entry_point.load)
    while _loaded_files:  # loaded by an earlier registry of this process
        sys.modules.pop(_loaded_files.pop(), None)
    parts = re.split(rf"[,{re.escape(os.pathsep)}]", os.environ.get("RKIT_PLUGIN_FILES", ""))
    for path in map(Path, filter(None, dict.fromkeys(part.strip() for part in parts))):
        registry.add(Plugin(path.stem, str(path), LOCAL_FILE), partial(_load_file, path))
    return registry


def read_file(path: Path) -> Plugin:
    """Load a local file as a plugin, whether or not `RKIT_PLUGIN_FILES` names it."""
    registry, before = Registry(), sys.modules.get(path.stem)
    registry.add(Plugin(path.stem, str(path), LOCAL_FILE), partial(_load_file, path))
    if before is None:
        sys.modules.pop(path.stem, None)
    else:
        sys.modules[path.stem] = before
    return registry.plugins[0]


def _entry_points() -> list[tuple[importlib.metadata.EntryPoint, str, str]]:
    """Return the entry points to load, with name and version of their distributions."""
    # A distribution appears once for each folder on the path with its metadata; the first is imported.
    declared = reversed(tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)))
    points = {(point.name, owner[0]): (point, *owner) for point in declared for owner in (_owner(point),)}
    known = {name for name, _ in points}
    wanted = os.environ.get("RKIT_PLUGINS")
    names = known if wanted is None else {part.strip() for part in wanted.split(",")} - {""}
    for name in sorted(names - known):
        raise UnknownNameError("plugin", name, known, hint="RKIT_PLUGINS lists names of installed plugins.")
    return [points[key] for key in sorted(points) if key[0] in names]


def _owner(entry_point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """Return name and version of its distribution: two lines of a file whose format, e-mail, is slow to parse."""
    if entry_point.dist is None:
        return "unknown", "unknown"
    text = entry_point.dist.read_text("METADATA") or ""
    matches = [re.search(rf"^{key}: *(\S+) *$", text, re.MULTILINE) for key in ("Name", "Version")]
    if matches[0] is None or matches[1] is None:
        return entry_point.dist.name, entry_point.dist.version
    return matches[0][1], matches[1][1]


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        problem = "which is not a file that Python can import."
    elif not path.stem.isidentifier():
        problem = f"and '{path.stem}' is not a valid module name. Rename the file."
    elif other := _other_module(path):
        problem = f"and {other} has the module name '{path.stem}' too. Rename the file."
    else:
        # Under its stem, so that the file's import strings ("my_pooler:MyPooler") resolve.
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        _loaded_files.append(path.stem)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[path.stem]
            raise
        return module
    msg = f"RKIT_PLUGIN_FILES names '{path}', {problem}"
    raise PluginError(msg)


def _other_module(path: Path) -> str | None:
    """Return the path of another module of the same name, which the file would hide; None if there is none."""
    try:
        spec = sys.modules[path.stem].__spec__ if path.stem in sys.modules else importlib.util.find_spec(path.stem)
    except (ImportError, ValueError):
        return None
    if spec is None or (spec.origin and Path(spec.origin).resolve() == path.resolve()):
        return None
    return f"'{spec.origin}'" if spec.has_location else "Python itself"


def _reason(error: BaseException) -> str:
    """Format an error on one line, with its type unless it is one of our errors, whose messages are complete."""
    text = " ".join(str(error).split())
    return text if isinstance(error, RetrievalkitError) else f"{type(error).__name__}: {text}"


def names(kind: str) -> list[str]:
    """Return the registered names of a kind (a key of `HOOKS`: "encoder", "pooler", "loss", ...)."""
    return default_registry().names(kind)


def component(kind: str, name: str) -> Component:
    """Return the component registered under a kind and name, without importing it."""
    return default_registry().component(kind, name)


def plugins() -> list[Plugin]:
    """Return all plugins, including broken plugins."""
    return default_registry().plugins


def get(kind: str, name: str) -> type:
    """Import the class registered under a kind and name."""
    loaded: type = component(kind, name).load()
    return loaded


def wrong_result(kind: str, component: object, problem: str) -> PluginError:
    """Return the error for a wrong result of a component; it names the component and its plugin."""
    own = type(component)
    target = f"{own.__module__}:{own.__qualname__}"
    registered = itertools.chain.from_iterable(default_registry()._components[kind].values())
    described = (known._described() for known in registered if known.target == target)
    name = next(described, f"{kind} '{own.__name__}'")
    return PluginError(f"{name}: {problem}. Correct the plugin; rkit plugins check finds such errors.")


def missing(part: Mapping[str, Any]) -> str:
    """Describe the origin of an unregistered component and how to install it, for messages."""
    distribution, version = part["distribution"], part["version"]
    if version == LOCAL_FILE:
        import shlex

        named = f"export RKIT_PLUGIN_FILES={shlex.quote(distribution)}"
        return f"of the file '{distribution}', which is not loaded. Name it: {named}"
    return f"of {distribution} {version}, which is not installed. Install it: pip install {distribution}=={version}"


def create(kind: str, name: str, /, *args: Any, **options: Any) -> Any:
    """Create a component; the options are checked against the types of its constructor.

    Raises:
        UnknownNameError: The name is not registered.
        OptionError: An option that the component lacks, or a value of the wrong type.
    """
    component_class = get(kind, name)
    return component_class(*args, **check_options(f"{kind} '{name}'", component_class, options))


def describe(kind: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, distribution, version and all options (with defaults, which a later version may change)."""
    registered = component(kind, name)
    component_class = registered.load()
    defaults = {option.name: option.default for option in options(component_class).values() if not option.required}
    values = defaults | check_options(f"{kind} '{name}'", component_class, settings)
    return {"name": name, "options": values, "distribution": registered.distribution, "version": registered.version}
