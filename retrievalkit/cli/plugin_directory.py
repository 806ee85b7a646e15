"""`rkit plugins search`, `install` and `remove`: plugins that are known, from plugins/directory.toml or another list.

The list comes along with retrievalkit, so that searching needs no network. Installing and removing are left to the pip
of this environment; what is not in the list is refused, so that a typing error installs nobody's package.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from retrievalkit.errors import DataError, InputError, RetrievalkitError, UnknownNameError
from retrievalkit.options import check_options

_HERE = Path(__file__).parent
DIRECTORY = next(
    (one for one in (_HERE / "directory.toml", _HERE.parents[1] / "plugins" / "directory.toml") if one.is_file()),
    _HERE / "directory.toml",
)
"""The list that comes along; in a checkout, that of the repository."""

_MOST_BYTES = 1 << 20
_SECONDS = 20
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A known plugin.

    Attributes:
        name: Its distribution.
        summary: A sentence.
        components: Kind -> names of what it brings.
        licence: As SPDX writes it.
        home: A page about it.
        requirement: What pip is to install.
        contract: The version of `retrievalkit.contracts` that it was written for.
    """

    name: str
    summary: str
    components: Mapping[str, list[str]]
    licence: str
    home: str
    requirement: str
    contract: str

    @property
    def brings(self) -> str:
        """Its components on a line, such as "pooler viewers, loss global_local"."""
        return ", ".join(f"{kind} {name}" for kind, names in self.components.items() for name in names)


def read_directory(place: str | None = None) -> list[Entry]:
    """The plugins of a list.

    Args:
        place: A file or an address; None = the list that comes along.

    Raises:
        InputError: It cannot be read.
        DataError: It is no such list.
    """
    name = str(place or DIRECTORY)
    text = _fetched(name) if "://" in name else _read(Path(name))
    try:
        entries = tomllib.loads(text).get("plugin", [])
        return [Entry(**_checked(entry, name)) for entry in entries]
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        problem = f"it is no list of plugins ({error}). See plugins/directory.toml of retrievalkit."
        raise DataError(problem, file=name) from error


def _checked(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    fields = check_options(f"an entry of '{place}'", Entry, entry)
    # pip takes what begins with a dash for an option.
    if not re.match(rf"{re.escape(fields['name'])}(?![\w.-])", fields["requirement"]) or fields["name"][0] == "-":
        problem = f"the requirement '{fields['requirement']}' does not begin with the name '{fields['name']}'."
        raise DataError(problem, file=place)
    return fields


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"the list of plugins '{path}' cannot be read ({error}). Give another: --directory FILE"
        raise InputError(msg) from error


def _fetched(address: str) -> str:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        _check_address(address)
        with urlopen(address, timeout=_SECONDS) as answer:
            _check_address(answer.url)
            content: bytes = answer.read(_MOST_BYTES)
        return content.decode()
    except (OSError, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        msg = f"the list of plugins '{address}' cannot be fetched ({error}). Without --directory no network is needed."
        raise InputError(msg) from error


def _check_address(address: str) -> None:
    """Refuse what others could change on the way: the list says what pip installs."""
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
        msg = "lists are fetched by https alone"
        raise ValueError(msg)


def search(words: Sequence[str], entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The entries that have all words in name, summary or components; each with the version that is installed."""

    def found(entry: Entry) -> bool:
        text = f"{entry.name} {entry.summary} {entry.brings}".lower()
        return all(word.lower() in text for word in words)

    return [
        {**vars(entry), "kinds": list(entry.components), "installed": _installed(entry.name)}
        for entry in entries
        if found(entry)
    ]


def shown(rows: Sequence[Mapping[str, Any]]) -> str:
    """What `rkit plugins search` prints."""
    lines = []
    for row in rows:
        state = f"installed: {row['installed']}" if row["installed"] else f"rkit plugins install {row['name']}"
        brought = "; ".join(f"{kind} {', '.join(names)}" for kind, names in row["components"].items())
        lines += [f"{row['name']}  ({state})", f"    {row['summary']}", f"    {brought}"]
        lines += [f"    {row['home']}  {row['licence']}, contract {row['contract']}", ""]
    return "\n".join(lines).rstrip() or "No plugin has all of these words. rkit plugins search lists all."


def install(name: str, place: str | None) -> str:
    """Install a plugin of the list into this environment.

    Raises:
        UnknownNameError: It is not in the list.
        InputError: This environment has no pip, or is not to be changed.
        RetrievalkitError: pip failed.
    """
    entry = _entry(name, place)
    # In a checkout, the plugins that come along are there.
    folder = Path(place or DIRECTORY).parent / entry.name
    there = (folder / "pyproject.toml").is_file()
    _pip("install", str(folder) if there else entry.requirement)
    return f"{entry.name} is installed: {entry.brings}"


def remove(name: str, place: str | None) -> str:
    """Remove an installed plugin of the list from this environment.

    Raises:
        UnknownNameError: It is not in the list.
        InputError: It is not installed, or this environment has no pip or is not to be changed.
        RetrievalkitError: pip failed.
    """
    entry = _entry(name, place)
    if not _installed(entry.name):
        msg = f"'{entry.name}' is not installed in {sys.prefix}. rkit plugins list shows what is."
        raise InputError(msg)
    _pip("uninstall", "--yes", entry.name)
    if _installed(entry.name):
        msg = f"pip left '{entry.name}' where it is, outside {sys.prefix}. Remove it where it was installed."
        raise RetrievalkitError(msg)
    return f"{entry.name} is removed"


def _entry(name: str, place: str | None) -> Entry:
    known = {entry.name: entry for entry in read_directory(place)}
    if name not in known:
        hint = "Others are installed by pip, or put in a list of one's own (--directory)."
        raise UnknownNameError("plugin", name, known, hint=hint)
    return known[name]


def _installed(name: str) -> str | None:
    """The version of a distribution that is installed; None if it is not."""
    importlib.invalidate_caches()
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", *words]
    _check_environment(words)
    click.echo(shlex.join(command), err=True)
    # What pip says of its progress is not our result; its errors are read for what can be explained.
    done = subprocess.run(command, stdout=sys.__stderr__, stderr=subprocess.PIPE, text=True, check=False)
    click.echo(done.stderr, nl=False, err=True)
    if done.returncode:
        msg = f"pip failed with code {done.returncode}{_explained(done.stderr)}"
        raise RetrievalkitError(msg)


def _check_environment(words: Sequence[str]) -> None:
    """Refuse an environment that pip cannot or should not change, and say what can."""
    same = shlex.join(word for word in words if word != "--yes")
    if importlib.util.find_spec("pip") is None:
        msg = (
            f"the environment {sys.prefix} has no pip, as those that uv makes. "
            f"Run: uv pip {same} --python {shlex.quote(sys.executable)}"
        )
        raise InputError(msg)
    if sys.prefix == sys.base_prefix and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").is_file():
        msg = (
            f"the Python in {sys.prefix} is managed by the operating system, which pip must not change. "
            f"Install retrievalkit in an environment of its own: python -m venv .venv"
        )
        raise InputError(msg)


def _explained(errors: str) -> str:
    if re.search(r"NewConnectionError|ConnectTimeout|NameResolutionError|name resolution|ProxyError", errors):
        return ": the package index cannot be reached. Check the network, or set PIP_INDEX_URL to one that can be."
    if "No matching distribution" in errors:
        return ": the package index does not have it for this Python. See its page: rkit plugins search."
    return ". What it said is above; nothing else was changed."
