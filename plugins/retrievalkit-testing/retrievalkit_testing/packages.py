"""The conformance tests of packages: start-up cost, names and documentation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from retrievalkit import contracts, registry
from retrievalkit.errors import RetrievalkitError, UnknownNameError
from retrievalkit_testing.option_effects import line_of
from retrievalkit_testing.processes import started
from retrievalkit_testing.properties import Kit, Place, expect, fail, leave_out, of_component

ENTRY_POINT_GROUP = "retrievalkit.plugins"
_SECONDS = 120.0


class PackageCase:
    """A distribution whose plugins are registered."""

    origin: tuple[str, str, dict[str, Any], int]

    def __init__(self, name: str) -> None:
        self.name = self.label = name
        self.plugins = [plugin for plugin in registry.plugins() if same_name(plugin.distribution, name)]
        if not self.plugins:
            known = dict.fromkeys(plugin.distribution for plugin in registry.plugins())
            raise UnknownNameError("distribution with plugins", name, known)  # noqa: EM101

    @property
    def components(self) -> list[registry.Component]:
        """All components that the distribution registers."""
        return [component for plugin in self.plugins for component in plugin.components]

    @property
    def is_file(self) -> bool:
        """True for a single-file plugin, which is not a distribution."""
        return self.plugins[0].version == "local file"

    @cached_property
    def metadata(self) -> importlib.metadata.Distribution:
        """The metadata of the installed distribution."""
        if self.is_file:
            leave_out("it is a single file; `rkit plugins new` starts a package.")
        return importlib.metadata.distribution(self.name)

    @property
    def entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """Its entry points for plugins."""
        return [point for point in self.metadata.entry_points if point.group == ENTRY_POINT_GROUP]

    @property
    def modules(self) -> list[str]:
        """The modules imported at every start of rkit."""
        if self.is_file:
            return [Path(self.plugins[0].distribution).stem]
        if same_name(self.name, "retrievalkit"):
            return ["retrievalkit", "retrievalkit.registry.registrations"]
        return [point.module for point in self.entry_points]

    def file_of(self, module: str) -> Path:
        """Return the file of a module."""
        spec = None if self.is_file else importlib.util.find_spec(module)
        return Path(self.plugins[0].distribution if self.is_file else (spec and spec.origin) or module)

    def line(self, pattern: str) -> Place:
        """Return the first line of its modules that matches a pattern, such as the name of a component."""
        for file in filter(Path.is_file, map(self.file_of, self.modules)):
            for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                if re.search(pattern, text):
                    return Place(str(file), number)
        return Place(str(self.file_of(self.modules[0])), 1) if self.modules else Place(self.name, 1)

    @cached_property
    def starts(self) -> list[SimpleNamespace]:
        """For each of its modules, the result of `processes.import_plugin` in a separate process."""
        return [self._start(module) for module in self.modules]

    def _start(self, module: str) -> SimpleNamespace:
        file = str(self.file_of(module))
        _, start, printed = started("import_plugin", module, file if self.is_file else "", seconds=_SECONDS)
        if start is None:
            start = {"error": printed.rpartition("\n")[2], "heavy": "", "file": file, "line": 1, "seconds": 0.0}
            printed = ""
        return SimpleNamespace(printed=printed, **start)


def same_name(name: str, other: str) -> bool:
    """True if both names are of the same distribution: "_", "-", "." and case make no difference."""
    return re.sub(r"[-_.]+", "-", name).lower() == re.sub(r"[-_.]+", "-", other).lower()


PACKAGES: Kit[PackageCase] = Kit(
    "package",
    lambda name: [PackageCase(name)],
    find=lambda _: PackageCase,
    unchecked="the quality of its components",
)
"""The properties of a distribution of plugins."""


_MOST_SECONDS = 0.25


@PACKAGES.property()
def registered(case: PackageCase) -> str:
    """Its plugins are registered under unique names in snake_case, on existing hooks."""
    for plugin in case.plugins:
        if plugin.error:
            start = case.starts[0] if case.starts else None
            place = Place(start.file, start.line) if start is not None and start.error else case.line("")
            fail(f"the plugin '{plugin.name}' could not be loaded: {plugin.error.rstrip('.')}", place)
    everything = [component for plugin in registry.plugins() for component in plugin.components]
    for component in case.components:
        rivals = [other for other in everything if (other.kind, other.name) == (component.kind, component.name)]
        owners = " and ".join(f"{rival.distribution} {rival.version}" for rival in rivals)
        problem = f"the {component.kind} '{component.name}' is registered by {owners}"
        expect(len(rivals) == 1, problem, place=case.line(rf"""["']{component.name}["']"""))
    return ", ".join(f"{component.kind} {component.name}" for component in case.components) or "nothing"


@PACKAGES.property()
def cold_import(case: PackageCase) -> str:
    """Its modules, which are imported whenever rkit starts, import nothing heavy, take no time and print nothing."""
    for module, start in zip(case.modules, case.starts, strict=True):
        problem = f"'{module}' cannot be imported: {start.error.rstrip('.')}"
        expect(not start.error, problem, place=Place(start.file, start.line))
        # A file in RKIT_PLUGIN_FILES belongs to its user, who may accept slow imports.
        if start.heavy and Path(case.name).suffix != ".py":
            msg = f"'{module}' imports {start.heavy}, which every `rkit --help` waits for: import it where it is used"
            fail(msg, case.line(rf"(import|from) {start.heavy}"), actual=f"{start.seconds:.2f} s")
        if start.seconds > _MOST_SECONDS and not start.heavy:
            most, actual = f"at most {_MOST_SECONDS} s", f"{start.seconds:.2f} s"
            fail(f"'{module}' takes long to import", case.line(""), expected=most, actual=actual)
        if text := start.printed.strip():
            place = case.line(r"\bprint\(|std(out|err)\.write|warn\(")
            fail(f"importing '{module}' prints", place, expected="nothing", actual=text[:80])
    return f"{1000 * sum(start.seconds for start in case.starts):.0f} ms"


def _contract(kind: str) -> type | None:
    """Return the base class of components of a kind; None if the contract has no class for the kind."""
    return getattr(contracts, {"fusion": "FusionMethod", "workers": ""}.get(kind, kind.capitalize()), None)


@PACKAGES.property(after=["registered"])
def targets(case: PackageCase) -> None:
    """Each name resolves to a class of its kind that implements all abstract methods."""
    for component in case.components:
        title = f"{component.kind} '{component.name}'"
        try:
            loaded = component.load()
        except RetrievalkitError as error:
            fail(str(error).rstrip("."), case.line(rf"""["']{component.name}["']"""))
        if base := _contract(component.kind):
            place = of_component(loaded)
            problem = f"{title} is not derived from {base.__name__} of retrievalkit.contracts"
            expect(issubclass(loaded, base), problem, place=place)
            missing = sorted(getattr(loaded, "__abstractmethods__", ()))
            expect(not missing, f"{title} does not implement {', '.join(missing)}", place=place)


@PACKAGES.property(after=["registered", "targets"])
def documented(case: PackageCase) -> None:
    """Each component has a sentence of documentation, and so has each option (`Args:` of its docstring)."""
    for component in case.components:
        if _contract(component.kind):
            title, loaded = f"{component.kind} '{component.name}'", component.load()
            text = (vars(loaded).get("__doc__") or component.help).strip()
            problem = f"{title} has no docstring, whose first sentence `rkit plugins list` shows"
            expect(text, problem, place=of_component(loaded))
            for option in registry.options(loaded).values():
                problem = f"the option '{option.name}' of {title} is not in its `Args:`"
                expect(option.description, problem, place=of_component(loaded, source=line_of(option.name)))


@PACKAGES.property(after=["cold_import"])
def distribution(case: PackageCase) -> str:
    """It requires retrievalkit, and its entry points name modules in snake_case."""
    needed = [re.split(r"[^\w.-]", requirement)[0] for requirement in case.metadata.requires or []]
    requires = same_name(case.name, "retrievalkit") or any(same_name(name, "retrievalkit") for name in needed)
    expect(requires, "its pyproject.toml does not require retrievalkit", place=case.line(""), actual=needed)
    for point in case.entry_points:
        snake_case = re.fullmatch(r"[a-z][a-z0-9_]*", point.name)
        expect(snake_case, "the name of its entry point is not snake_case", place=case.line(""), actual=point.name)
        problem = "its entry point names something in a module, and must name the module with the hooks"
        expect(":" not in point.value, problem, place=case.line(""), actual=point.value)
    return f"{case.metadata.version}, Python {case.metadata.metadata['Requires-Python'] or 'any'}"
