"""Finds plugins, resolves a kind and a name to a class, lists what there is, and keeps a broken plugin to itself.

Plugins come from three places, with equal rights: the built-in shelves, installed distributions with an entry point in
the group `retrievalkit.plugins`, and local files named in `RKIT_PLUGIN_FILES`. `RKIT_PLUGINS=mlr,mvr` limits which
installed plugins are loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from retrievalkit import __version__, hookspecs
from retrievalkit.errors import OptionError, RetrievalkitError, UnknownNameError, nearest, shortlist

ENTRY_POINT_GROUP = "retrievalkit.plugins"

HOOKS = {
    "encoder": "register_encoders",
    "pooler": "register_poolers",
    "loss": "register_losses",
    "indexer": "register_indexers",
    "pretrainer": "register_pretrainers",
}

_loaded_files: list[str] = []

_SHELVES = ("encoders", "poolers", "losses", "indexers", "pretrainers")


class PluginError(RetrievalkitError):
    """A plugin that does not keep the contract. Names the plugin and what is wrong with it."""

    exit_code = 2


@dataclass(frozen=True)
class Component:
    """One registered name: what it is called, where its class is, and which distribution brought it."""

    kind: str
    name: str
    target: str
    plugin: str
    distribution: str
    version: str

    def load(self) -> type:
        """Import the class.

        Raises:
            PluginError: The module or the class cannot be imported.
        """
        module_name, _, attribute = self.target.partition(":")
        try:
            loaded = getattr(importlib.import_module(module_name), attribute)
        except RetrievalkitError:
            raise
        except Exception as error:
            msg = f"{self._described()} cannot be imported from '{self.target}': {_reason(error)}"
            raise PluginError(msg) from error
        if not isinstance(loaded, type):
            msg = f"{self._described()}: '{self.target}' is no class. Register the class of the component."
            raise PluginError(msg)
        return loaded

    def _described(self) -> str:
        return f"{self.kind} '{self.name}' of plugin '{self.plugin}' ({self.distribution} {self.version})"


@dataclass
class Plugin:
    """One plugin: where it comes from, what it brings, and why it is broken if it is."""

    name: str
    distribution: str
    version: str
    components: list[Component] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True)
class Option:
    """One option of a component: a keyword-only argument of its constructor."""

    name: str
    annotation: Any
    default: Any
    description: str

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty

    @property
    def type_name(self) -> str:
        """The type as a reader of Python would write it."""
        return _type_name(self.annotation)


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


class Registry:
    """All plugins that were found, and their components by kind and name."""

    def __init__(self) -> None:
        self.plugins: list[Plugin] = []
        self._components: dict[str, dict[str, list[Component]]] = {kind: {} for kind in HOOKS}
        self._manager = pluggy.PluginManager("retrievalkit")
        self._manager.add_hookspecs(hookspecs)

    def add(self, plugin: Plugin, module: ModuleType) -> None:
        """Register a plugin's module and call its hooks; what is wrong with it is kept in `plugin.error`."""
        self.plugins.append(plugin)
        try:
            self._manager.register(module, name=f"{plugin.distribution}:{plugin.name}")
            self._manager.check_pending()
            for kind, component_name, target in self._registrations(module):
                plugin.components.append(_component(plugin, kind, component_name, target))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and must not stop the others
            plugin.error = _reason(error)
            plugin.components.clear()
            if self._manager.is_registered(module):
                self._manager.unregister(module)
        for component in plugin.components:
            self._components[component.kind].setdefault(component.name, []).append(component)

    def _registrations(self, module: ModuleType) -> Iterator[tuple[str, str, str]]:
        others = [other for other in self._manager.get_plugins() if other is not module]
        for kind, hook in HOOKS.items():
            found: list[tuple[str, str]] = []
            caller = self._manager.subset_hook_caller(hook, others)
            caller(register=lambda name, target, found=found: found.append((name, target)))
            yield from ((kind, name, target) for name, target in found)

    def names(self, kind: str) -> list[str]:
        """The registered names of a kind, sorted."""
        return sorted(self._kind(kind))

    def component(self, kind: str, name: str) -> Component:
        """The component of that kind and name.

        Raises:
            UnknownNameError: Nobody registered it; says which plugins could not be loaded.
            PluginError: Two distributions registered it.
        """
        found = self._kind(kind).get(name, [])
        if not found:
            raise UnknownNameError(kind, name, self._kind(kind), hint=self._broken_plugins())
        if len(found) > 1:
            owners = " and ".join(f"{one.distribution} {one.version}" for one in found)
            msg = f"{kind} '{name}' is registered by both {owners}. Uninstall one, or choose with RKIT_PLUGINS."
            raise PluginError(msg)
        return found[0]

    def _kind(self, kind: str) -> dict[str, list[Component]]:
        if kind not in self._components:
            raise UnknownNameError("kind of component", kind, self._components)
        return self._components[kind]

    def _broken_plugins(self) -> str:
        broken = [f"{one.name} ({one.error})" for one in self.plugins if one.error]
        return f"Plugins that could not be loaded: {'; '.join(broken)}." if broken else ""


def _component(plugin: Plugin, kind: str, name: object, target: object) -> Component:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        msg = f"the {kind} name {name!r} is not snake_case"
        raise PluginError(msg)
    if not isinstance(target, str) or not re.fullmatch(r"[\w.]+:\w+", target):
        msg = f"the target {target!r} of {kind} '{name}' is not an import string like 'package.module:Class'"
        raise PluginError(msg)
    if any((one.kind, one.name) == (kind, name) for one in plugin.components):
        msg = f"it registers the {kind} '{name}' twice"
        raise PluginError(msg)
    return Component(kind, name, target, plugin.name, plugin.distribution, plugin.version)


@cache
def default_registry() -> Registry:
    """The registry of this process, with every plugin that can be found."""
    registry = Registry()
    for shelf in _SHELVES:
        module = importlib.import_module(f"retrievalkit.builtin.{shelf}")
        registry.add(Plugin(shelf, "retrievalkit", __version__), module)
    for entry_point in _entry_points():
        distribution = entry_point.dist
        plugin = Plugin(
            entry_point.name,
            distribution.name if distribution else "unknown",
            distribution.version if distribution else "unknown",
        )
        _add_imported(registry, plugin, entry_point.load)
    while _loaded_files:  # by an earlier registry of this process
        sys.modules.pop(_loaded_files.pop(), None)
    for path in _plugin_files():
        _add_imported(registry, Plugin(path.stem, str(path), "local file"), lambda path=path: _load_file(path))
    return registry


def _add_imported(registry: Registry, plugin: Plugin, load: Any) -> None:
    try:
        module = load()
    except Exception as error:  # noqa: BLE001 - importing a plugin may raise anything
        plugin.error = _reason(error)
        registry.plugins.append(plugin)
        return
    registry.add(plugin, module)


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    # A distribution is met once for each place on the path where its metadata lies.
    found = {
        (one.name, one.dist.name if one.dist else ""): one
        for one in reversed(tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)))
    }
    known = {name for name, _ in found}
    wanted = os.environ.get("RKIT_PLUGINS")
    names = known if wanted is None else {part.strip() for part in wanted.split(",")} - {""}
    for name in sorted(names - known):
        raise UnknownNameError("plugin", name, known, hint="RKIT_PLUGINS names plugins that are installed.")
    return [found[key] for key in sorted(found) if key[0] in names]


def _plugin_files() -> list[Path]:
    parts = re.split(rf"[,{re.escape(os.pathsep)}]", os.environ.get("RKIT_PLUGIN_FILES", ""))
    return [Path(part) for part in dict.fromkeys(part.strip() for part in parts) if part]


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        msg = f"RKIT_PLUGIN_FILES names '{path}', which is not a file."
        raise PluginError(msg)
    if not path.stem.isidentifier():
        msg = f"RKIT_PLUGIN_FILES names '{path}', and '{path.stem}' is no name for a Python module. Rename the file."
        raise PluginError(msg)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        msg = f"RKIT_PLUGIN_FILES names '{path}', which is not a Python file."
        raise PluginError(msg)
    if other := _other_module(path):
        msg = f"RKIT_PLUGIN_FILES names '{path}', and {other} has the module name '{path.stem}' too. Rename the file."
        raise PluginError(msg)
    module = importlib.util.module_from_spec(spec)
    # Under its stem, so that the file's import strings ("my_pooler:MyPooler") find it.
    sys.modules[path.stem] = module
    _loaded_files.append(path.stem)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _other_module(path: Path) -> str | None:
    """Where another module of the file's name is, which it would hide."""
    try:
        spec = sys.modules[path.stem].__spec__ if path.stem in sys.modules else importlib.util.find_spec(path.stem)
    except (ImportError, ValueError):
        return None
    if spec is None or (spec.origin and Path(spec.origin).resolve() == path.resolve()):
        return None
    return f"'{spec.origin}'" if spec.has_location else "Python itself"


def _reason(error: Exception) -> str:
    """What went wrong, on one line; the kind of error too, unless it is one of ours that says it all."""
    text = " ".join(str(error).split())
    return text if isinstance(error, RetrievalkitError) else f"{type(error).__name__}: {text}"


def names(kind: str) -> list[str]:
    """The registered names of a kind ("encoder", "pooler", "loss", "indexer", "pretrainer")."""
    return default_registry().names(kind)


def component(kind: str, name: str) -> Component:
    """What is registered under that kind and name; nothing is imported."""
    return default_registry().component(kind, name)


def plugins() -> list[Plugin]:
    """Every plugin that was found, broken ones too."""
    return default_registry().plugins


def get(kind: str, name: str) -> type:
    """The class registered under that kind and name."""
    return component(kind, name).load()


def create(kind: str, name: str, *args: Any, **options: Any) -> Any:
    """Make a component; the options are checked against the types of its constructor.

    Raises:
        UnknownNameError: Nobody registered the name.
        OptionError: An option that the component has not, or a value of the wrong type.
    """
    component_class = get(kind, name)
    return component_class(*args, **check_options(f"{kind} '{name}'", component_class, options))


def options(component_class: type) -> dict[str, Option]:
    """The options of a component: the keyword-only arguments of its constructor."""
    constructor = component_class.__init__  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(constructor, include_extras=True)
    except NameError as error:
        msg = (
            f"the options of '{component_class.__module__}:{component_class.__qualname__}' cannot be read: {error}. "
            f"Import what its constructor's annotations name at run time too, not under TYPE_CHECKING."
        )
        raise PluginError(msg) from error
    # Base classes first: a class documents its own options, and those it inherits if they mean something else.
    documented = (*(one.__doc__ or "" for one in reversed(component_class.__mro__)), constructor.__doc__ or "")
    described = {name: text for one in documented for name, text in _descriptions(inspect.cleandoc(one)).items()}
    return {
        name: Option(name, hints.get(name, Any), parameter.default, described.get(name, ""))
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def check_options(owner: str, component_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, each turned into the type of its option.

    Raises:
        OptionError: An unknown option (the nearest one is offered), a value of the wrong type, a missing option.
    """
    known = options(component_class)
    for name in values:
        if name not in known:
            close = nearest(name, known)
            offer = f"; did you mean '{close}'?" if close else "."
            listed = f"Its options: {shortlist(sorted(known))}." if known else "It has no options."
            msg = f"{owner} has no option '{name}'{offer} {listed}"
            raise OptionError(msg)
    missing = [option.name for option in known.values() if option.required and option.name not in values]
    if missing:
        msg = f"{owner} needs the option '{missing[0]}'. Set it: --set {owner.split()[0]}.{missing[0]}=..."
        raise OptionError(msg)
    return {
        name: convert(f"option '{name}' of {owner}", known[name].annotation, value) for name, value in values.items()
    }


def convert(owner: str, annotation: Any, value: Any) -> Any:
    """A value of that type, made from what a recipe or `--set` holds.

    "10,12" is a list where a sequence is wanted, and one value is a sequence of one.

    Raises:
        OptionError: The value does not fit the type.
    """
    import pydantic

    adapter = pydantic.TypeAdapter(annotation, config={"arbitrary_types_allowed": True})
    problem = ""
    for candidate in _readings(annotation, value):
        try:
            return adapter.validate_python(candidate)
        except pydantic.ValidationError as error:
            problem = problem or "; ".join(dict.fromkeys(one["msg"] for one in error.errors()))
    type_name = Option("", annotation, None, "").type_name
    msg = f"{owner} cannot be {value!r}: {problem}. It takes {type_name}."
    raise OptionError(msg)


def _readings(annotation: Any, value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, str) and value.lower() in ("none", "null"):
        yield None
    if _takes_sequence(annotation):
        if isinstance(value, str):
            yield [part.strip() for part in value.strip("[]()").split(",") if part.strip()]
        elif not isinstance(value, list | tuple):
            yield [value]
    # `--set` reads 12 as a number where a name is wanted.
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _takes_sequence(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, Sequence | Set) and not issubclass(origin, str | bytes):
        return True
    return any(_takes_sequence(argument) for argument in typing.get_args(annotation))


def _descriptions(docstring: str) -> dict[str, str]:
    """The `Args:` section of a Google-style docstring, name -> description on one line."""
    _, _, section = docstring.partition("Args:\n")
    found: dict[str, str] = {}
    name, indent = "", 0
    for line in section.splitlines():
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        if stripped and depth < indent:
            break
        if depth == indent and (match := re.match(r"(\w+)(?: \([^)]*\))?:\s*(.*)", stripped)):
            name = match[1]
            found[name] = match[2]
        elif name and stripped:
            found[name] += " " + stripped
    return found


def describe(kind: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Name, every option's value (defaults too, since a later version may change them), and who brought it."""
    found = component(kind, name)
    component_class = found.load()
    defaults = {one.name: one.default for one in options(component_class).values() if not one.required}
    checked = check_options(f"{kind} '{name}'", component_class, given)
    return {
        "name": name,
        "options": defaults | checked,
        "distribution": found.distribution,
        "version": found.version,
    }
