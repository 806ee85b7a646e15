"""The conformance kits by kind, and what a name is tried with: those of its components, and that of its package."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retrievalkit import registry
from retrievalkit.errors import UnknownNameError
from retrievalkit.testing.properties import Kit

_KITS = {
    "encoder": ("encoders", "ENCODERS"),
    "pooler": ("poolers", "POOLERS"),
    "loss": ("losses", "LOSSES"),
    "indexer": ("indexers", "INDEXERS"),
    "pretrainer": ("pretrainers", "PRETRAINERS"),
    "package": ("packages", "PACKAGES"),
}
_WITH_MODEL = frozenset({"encoder", "pooler", "pretrainer"})


@dataclass(frozen=True)
class Tried:
    """A kit, and the component or distribution to try with it.

    Attributes:
        kit: The kit.
        name: The name.
        settings: Of the kit and the component.
    """

    kit: Kit[Any]
    name: str
    settings: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Kind and name."""
        return f"{self.kit.kind} '{self.name}'"


def kit_of(kind: str) -> Kit[Any] | None:
    """The kit of a kind of component, or of "package"; None if there is none."""
    if kind not in _KITS:
        return None
    module, name = _KITS[kind]
    kit: Kit[Any] = getattr(importlib.import_module(f"retrievalkit.testing.{module}"), name)
    return kit


def tried_with(name: str, *, model: str | None = None, options: Mapping[str, Any] | None = None) -> list[Tried]:
    """What to try: a component of this name and the package that it comes with, or all of a distribution.

    Args:
        name: Name of a component or of a distribution.
        model: For encoders, poolers and pretrainers: the model to try them with instead of tiny ones.
        options: Of the component, or by kind: {"pooler": {"layer": 1}}.

    Raises:
        UnknownNameError: There is neither.
    """
    named = [one for kind in registry.HOOKS if name in registry.names(kind) for one in _candidates(kind, name)]
    found = named or [one for one in _registered() if _same(one.distribution, name)]
    packages = dict.fromkeys(one.distribution for one in found)
    if not found:
        # One that could not be loaded has no component, and is tried all the same.
        packages = dict.fromkeys(one.distribution for one in registry.plugins() if _same(one.distribution, name))
    if not packages:
        known = dict.fromkeys((*(one.name for one in _registered()), *(one.distribution for one in registry.plugins())))
        hint = "See rkit plugins list. " + registry.default_registry().broken_plugins()
        raise UnknownNameError("component", name, known, hint=hint.strip())
    tried = list(_components(found, model, options or {}))
    ours = named and set(packages) == {"retrievalkit"}
    package = kit_of("package")
    assert package is not None
    return [*([] if ours else [Tried(package, one, {}) for one in packages]), *tried]


def _components(found: list[registry.Component], model: str | None, options: Mapping[str, Any]) -> Iterator[Tried]:
    by_kind = set(options) <= {one.kind for one in found}
    for component in dict.fromkeys((one.kind, one.name) for one in found):
        kind, name = component
        kit = kit_of(kind)
        if kit is not None:
            own = options.get(kind, {}) if by_kind else options
            yield Tried(kit, name, {**({"model": model} if model and kind in _WITH_MODEL else {}), **own})


def _candidates(kind: str, name: str) -> list[registry.Component]:
    return registry.default_registry().candidates(kind, name)


def _registered() -> list[registry.Component]:
    return [component for plugin in registry.plugins() for component in plugin.components]


def _same(one: str, other: str) -> bool:
    from retrievalkit.testing.package_cases import same_name

    return same_name(one, other)
