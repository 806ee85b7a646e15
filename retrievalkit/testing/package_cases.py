"""A distribution of plugins, or a plugin of a single file, on trial: its modules, components and source folder."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlparse

from retrievalkit import registry
from retrievalkit.errors import UnknownNameError, UnsupportedError
from retrievalkit.modules import module_spec
from retrievalkit.testing.places import Place
from retrievalkit.testing.properties import Kit

_SECONDS = 120.0


@dataclass(frozen=True)
class Started:
    """What a start of a module in a process of its own showed; see `package_start`.

    Attributes:
        printed: What it wrote to the terminal.
        error: The exception it raised, "" if none.
        heavy: The first heavy module that it imports, "" if none.
        file: Where.
        line: Where.
        seconds: Processor time of the import.
    """

    printed: str
    error: str
    heavy: str
    file: str
    line: int
    seconds: float


class PackageCase:
    """A distribution whose plugins are registered.

    Args:
        name: Name of the distribution; of a plugin of a single file, its path.
        root: Its source folder, if not that of an editable install.
    """

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = self.label = name
        self.plugins = [one for one in registry.plugins() if same_name(one.distribution, name)]
        if not self.plugins:
            known = dict.fromkeys(one.distribution for one in registry.plugins())
            raise UnknownNameError("distribution with plugins", name, known)
        self._root = root

    @property
    def components(self) -> list[registry.Component]:
        """All components that it registers."""
        return [component for plugin in self.plugins for component in plugin.components]

    @property
    def is_file(self) -> bool:
        """Whether it is a single file, and no distribution."""
        return self.plugins[0].version == "local file"

    @cached_property
    def metadata(self) -> importlib.metadata.Distribution:
        """What is installed of it."""
        if self.is_file:
            msg = "it is a single file; `rkit plugins new` starts a package."
            raise UnsupportedError(msg)
        return importlib.metadata.distribution(self.name)

    @property
    def entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """Its entry points for plugins."""
        return [one for one in self.metadata.entry_points if one.group == registry.ENTRY_POINT_GROUP]

    @property
    def modules(self) -> list[str]:
        """The modules that are imported at every start of rkit."""
        if self.is_file:
            return [Path(self.plugins[0].distribution).stem]
        if same_name(self.name, "retrievalkit"):
            return ["retrievalkit", *(f"retrievalkit.builtin.{one.name}" for one in self.plugins)]
        return [one.module for one in self.entry_points]

    @cached_property
    def root(self) -> Path:
        """Its source folder."""
        if self._root is not None:
            return self._root
        direct = json.loads(self.metadata.read_text("direct_url.json") or "{}")
        folder = Path(unquote(urlparse(direct.get("url", "")).path))
        if not direct.get("dir_info", {}).get("editable") or not (folder / "pyproject.toml").is_file():
            msg = "it is not installed from a source folder (pip install -e FOLDER)."
            raise UnsupportedError(msg)
        return folder

    def file_of(self, module: str) -> str:
        """The file of a module."""
        if self.is_file:
            return self.plugins[0].distribution
        spec = module_spec(module)
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
        """A line of its pyproject.toml."""
        try:
            file = self.root / "pyproject.toml"
        except UnsupportedError:
            return self.top
        lines = file.read_text(encoding="utf-8").splitlines()
        return Place(str(file), next((row for row, line in enumerate(lines, 1) if re.search(pattern, line)), 1))

    @cached_property
    def starts(self) -> list[Started]:
        """How each of its modules starts, in a process of its own."""
        return [self._start(one) for one in self.modules]

    def _start(self, module: str, path: Path | None = None) -> Started:
        with TemporaryDirectory(prefix="rkit-check-") as folder:
            answer = Path(folder) / "answer.json"
            file = self.file_of(module) if self.is_file else ""
            command = [sys.executable, "-m", "retrievalkit.testing.package_start", module, file, str(answer)]
            environment = dict(os.environ)
            if path is not None:
                environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), environment.get("PYTHONPATH")]))
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment
                )
            except subprocess.TimeoutExpired:
                return Started("", f"it does not end within {_SECONDS:.0f} s", "", self.file_of(module), 1, _SECONDS)
            if not answer.exists():
                last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                return Started("", last, "", self.file_of(module), 1, 0.0)
            return Started(printed=done.stdout + done.stderr, **json.loads(answer.read_text()))


def same_name(one: str, other: str) -> bool:
    """Whether two names are of one distribution: "_", "-", "." and case make no difference."""
    return re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()


def place_of(thing: Any) -> Place | None:
    """The line of a class or function."""
    try:
        lines, first = inspect.getsourcelines(thing)
    except (OSError, TypeError):
        return None
    down = next((row for row, line in enumerate(lines) if re.match(r"\s*(async def|def|class) ", line)), 0)
    return Place(str(inspect.getsourcefile(thing)), first + down, getattr(thing, "__qualname__", ""))


def package_cases(name: str, *, root: str | Path | None = None) -> list[PackageCase]:
    """A distribution as the one case.

    Args:
        name: Its name; of a plugin of a single file, its path.
        root: Its source folder, if not that of an editable install.
    """
    return [PackageCase(name, None if root is None else Path(root))]


PACKAGES: Kit[PackageCase] = Kit("package", package_cases, find=lambda _: PackageCase)
"""The properties of a distribution of plugins."""
