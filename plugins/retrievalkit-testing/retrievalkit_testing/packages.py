"""The conformance tests of packages: start-up cost, names, versions and documentation."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlparse

from retrievalkit import contracts, registry
from retrievalkit.errors import RetrievalkitError, UnknownNameError, UnsupportedError
from retrievalkit_testing.processes import started
from retrievalkit_testing.properties import Kit, Place, fail, leave_out, of_component

ENTRY_POINT_GROUP = "retrievalkit.plugins"
_SECONDS = 120.0


class PackageCase:
    """A distribution whose plugins are registered."""

    origin: tuple[str, str, dict[str, Any], int]

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = self.label = name
        self.plugins = [one for one in registry.plugins() if same_name(one.distribution, name)]
        if not self.plugins:
            known = dict.fromkeys(one.distribution for one in registry.plugins())
            msg = "distribution with plugins"
            raise UnknownNameError(msg, name, known)
        self._root = root

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
        return [one for one in self.metadata.entry_points if one.group == ENTRY_POINT_GROUP]

    @property
    def modules(self) -> list[str]:
        """The modules imported at every start of rkit."""
        if self.is_file:
            return [Path(self.plugins[0].distribution).stem]
        if same_name(self.name, "retrievalkit"):
            return ["retrievalkit", "retrievalkit.registry.registrations"]
        return [one.module for one in self.entry_points]

    @cached_property
    def root(self) -> Path:
        """Its source folder."""
        if self._root is not None:
            return self._root
        direct = json.loads(self.metadata.read_text("direct_url.json") or "{}")
        folder = Path(unquote(urlparse(direct.get("url", "")).path))
        if not direct.get("dir_info", {}).get("editable") or not (folder / "pyproject.toml").is_file():
            leave_out("it is not installed from a source folder (pip install -e FOLDER).")
        return folder

    def file_of(self, module: str) -> str:
        """The file of a module."""
        if self.is_file:
            return self.plugins[0].distribution
        spec = importlib.util.find_spec(module)
        return str(spec.origin) if spec and spec.origin else module

    @property
    def top(self) -> Place:
        """The first line of its first module."""
        return Place(self.file_of(self.modules[0]), 1) if self.modules else Place(self.name, 1)

    def hook(self, component: registry.Component) -> Place:
        """The line that registers a component."""
        names = [one for one in self.modules if Path(self.file_of(one)).is_file()]
        for file in map(self.file_of, names):
            for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
                if re.search(rf"""["']{re.escape(component.name)}["']""", line):
                    return Place(file, number)
        return self.top

    def metadata_line(self, pattern: str) -> Place:
        """The line of its pyproject.toml that matches a pattern."""
        try:
            file = self.root / "pyproject.toml"
        except UnsupportedError:
            return self.top
        lines = file.read_text(encoding="utf-8").splitlines()
        return Place(str(file), next((row for row, line in enumerate(lines, 1) if re.search(pattern, line)), 1))

    @cached_property
    def starts(self) -> list[SimpleNamespace]:
        """The results of importing each of its modules in a separate process."""
        return [self.start(one) for one in self.modules]

    def start(self, module: str, path: Path | None = None) -> SimpleNamespace:
        """The result of `processes.import_plugin` for a module, in a process that imports from `path` first."""
        file = self.file_of(module) if self.is_file else ""
        _, seen, printed = started("import_plugin", module, file, seconds=_SECONDS, path=path)
        if seen is None:
            seen = {"error": printed.rpartition("\n")[2], "heavy": "", "file": self.file_of(module), "line": 1}
            seen["seconds"], printed = 0.0, ""
        return SimpleNamespace(printed=printed, **seen)


def same_name(one: str, other: str) -> bool:
    """True if both names are of the same distribution: "_", "-", "." and case make no difference."""
    return re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()


PACKAGES: Kit[PackageCase] = Kit(
    "package",
    lambda name, root=None: [PackageCase(name, root and Path(root))],
    find=lambda _: PackageCase,
    unchecked="that its components are good",
)
"""The properties of a distribution of plugins."""


CONTRACTS = {
    "encoder": "Encoder", "pooler": "Pooler", "loss": "Loss", "indexer": "Indexer", "pretrainer": "Pretrainer",
    "compressor": "Compressor", "filter": "Filter", "fusion": "FusionMethod", "metric": "Metric",
    "reranker": "Reranker",
}  # fmt: skip
"""Kinds whose components are classes of the contract."""
_MOST_SECONDS = 0.25
_VERSION = r"v?(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?"


def check_package(name: str, *, root: str | Path | None = None) -> None:
    """Check that a plugin distribution does not slow down start-up, and that all its components can be used.

    Args:
        name: Name of the distribution; for a single-file plugin (RKIT_PLUGIN_FILES), its path.
        root: Its source folder; by default the source of an editable install.
    """
    PACKAGES.check(name, root=root)


@PACKAGES.property()
def registered(case: PackageCase) -> str:
    """Its plugins are registered under unique names in snake_case, on existing hooks."""
    for plugin in case.plugins:
        if plugin.error:
            start = case.starts[0] if case.starts else None
            place = Place(start.file, start.line) if start is not None and start.error else case.top
            fail(f"the plugin '{plugin.name}' could not be loaded: {plugin.error.rstrip('.')}", place)
    for component in case.components:
        registered = [other for plugin in registry.plugins() for other in plugin.components]
        rivals = [one for one in registered if (one.kind, one.name) == (component.kind, component.name)]
        if len(rivals) > 1:
            owners = " and ".join(f"{one.distribution} {one.version}" for one in rivals)
            fail(f"the {component.kind} '{component.name}' is registered by {owners}", case.hook(component))
    return ", ".join(f"{one.kind} {one.name}" for one in case.components) or "nothing"


@PACKAGES.property()
def cold_import(case: PackageCase) -> str:
    """Its modules, which are imported whenever rkit starts, import nothing heavy, and take no time."""
    for module, start in zip(case.modules, case.starts, strict=True):
        if start.error:
            fail(f"'{module}' cannot be imported: {start.error.rstrip('.')}", Place(start.file, start.line))
        # A file in RKIT_PLUGIN_FILES belongs to its user, who may accept slow imports.
        if start.heavy and Path(case.name).suffix != ".py":
            msg = f"'{module}' imports {start.heavy}, which every `rkit --help` waits for: import it where it is used"
            fail(msg, Place(start.file, start.line), found=f"{start.seconds:.2f} s")
        if start.seconds > _MOST_SECONDS and not start.heavy:
            place, most = Place(case.file_of(module), 1), f"at most {_MOST_SECONDS} s"
            fail(f"'{module}' takes long to import", place, expected=most, found=f"{start.seconds:.2f} s")
    return f"{1000 * sum(one.seconds for one in case.starts):.0f} ms"


@PACKAGES.property()
def quiet_import(case: PackageCase) -> None:
    """Importing its modules prints nothing."""
    for module, start in zip(case.modules, case.starts, strict=True):
        if text := start.printed.strip():
            pattern, file = r"\bprint\(|std(out|err)\.write|warn\(", case.file_of(module)
            lines = Path(file).read_text(encoding="utf-8").splitlines() if Path(file).is_file() else []
            line = next((row for row, one in enumerate(lines, 1) if re.search(pattern, one)), 1)
            fail(f"importing '{module}' prints", Place(file, line), expected="nothing", found=text[:80])


@PACKAGES.property(after=["registered"])
def targets(case: PackageCase) -> None:
    """Each name resolves to a class of its kind that implements all abstract methods."""
    for component in case.components:
        try:
            loaded = component.load()
        except RetrievalkitError as error:
            fail(str(error).rstrip("."), case.hook(component))
        if component.kind not in CONTRACTS:
            continue
        base = getattr(contracts, CONTRACTS[component.kind])
        if not issubclass(loaded, base):
            msg = f"{component.kind} '{component.name}' is not derived from {base.__name__} of retrievalkit.contracts"
            fail(msg, of_component(loaded))
        if missing := sorted(getattr(loaded, "__abstractmethods__", ())):
            fail(f"{component.kind} '{component.name}' lacks {', '.join(missing)}", of_component(loaded))


@PACKAGES.property(after=["registered", "targets"])
def documented(case: PackageCase) -> None:
    """Each component has a sentence of documentation, and so has each option (`Args:` of its docstring)."""
    for component, loaded in _classes(case):
        if not (vars(loaded).get("__doc__") or component.help).strip():
            msg = f"{component.kind} '{component.name}' lacks a docstring: `rkit plugins list` shows its first sentence"
            fail(msg, of_component(loaded))
        for option in registry.options(loaded).values():
            if not option.description:
                msg = f"the option '{option.name}' of {component.kind} '{component.name}' is not in its `Args:`"
                fail(msg, of_component(loaded, source=rf"(^|[\s(,*]){option.name}\s*[:=,)]"))


def _classes(case: PackageCase) -> list[tuple[registry.Component, type]]:
    return [(one, one.load()) for one in case.components if one.kind in CONTRACTS]


@PACKAGES.property(after=["cold_import"])
def versions(case: PackageCase) -> str:
    """Its version is valid for pip, the same in its module, and it requires retrievalkit."""
    own = case.metadata.version
    if not re.fullmatch(_VERSION, own):
        fail("its version is none that pip can compare", case.metadata_line(r"^version|^dynamic"), found=own)
    for module in case.modules:
        said = _assigned(Path(case.file_of(module)), "__version__")
        if said is not None and said[0] != own:
            msg = f"'{module}' says another version than what is installed"
            fail(msg, Place(case.file_of(module), said[1]), expected=own, found=said[0])
    needed = [re.split(r"[^\w.-]", one)[0] for one in case.metadata.requires or []]
    if not same_name(case.name, "retrievalkit") and not any(same_name(one, "retrievalkit") for one in needed):
        fail("it does not require retrievalkit", case.metadata_line(r"^dependencies"), found=needed)
    python = case.metadata.metadata["Requires-Python"]
    return f"{own}, Python {python or 'any'}"


def _assigned(file: Path, name: str) -> tuple[str, int] | None:
    """The string that a module assigns to a name, and its line number."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file.is_file() else [], 1):
        if found := re.match(rf"""{name}\s*(?::\s*\w+\s*)?=\s*["']([^"']*)["']""", line):
            return found[1], number
    return None


@PACKAGES.property(after=["cold_import"])
def entry_points(case: PackageCase) -> None:
    """Names of entry points are in snake_case, and modules are named after the distribution."""
    for one in case.entry_points:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", one.name):
            fail(
                "the name of its entry point is not snake_case", case.metadata_line(re.escape(one.name)), found=one.name
            )
        if ":" in one.value:
            msg = "its entry point names something inside of a module, and has to name the module with the hooks"
            fail(msg, case.metadata_line(re.escape(one.value)), found=one.value)
