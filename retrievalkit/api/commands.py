"""The commands about this machine and about plugins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from retrievalkit.api.options import call, options_of
from retrievalkit.api.tables import Table


@options_of("doctor")
def doctor() -> Table:
    """Examine this machine: Python, packages, processor, plugins and what they need.

    Returns:
        A row for each finding with `ok`, `name`, `value` and `hint`, which says what to do where something is wrong.
    """
    columns = ("ok", "name", "value", "hint")
    return Table("This machine", [{name: one[name] for name in columns} for one in call("doctor", {})])


def plugins() -> Table:
    """List the components of all plugins, and the plugins that could not be loaded.

    Returns:
        A row for each with `kind`, `name`, `plugin`, `version`, `summary` and `problem`; the kind of a broken plugin
        is "broken".
    """
    rows: list[Mapping[str, Any]] = []
    for plugin in call("plugins list", {}):
        owner = {"plugin": plugin["distribution"], "version": plugin["version"]}
        if plugin["error"]:
            rows.append({"kind": "broken", "name": plugin["plugin"], **owner, "problem": plugin["error"]})
        for one in plugin["components"]:
            clash = f"also registered by {' and '.join(one['clashes_with'])}" if one["clashes_with"] else ""
            shown = {"kind": one["kind"], "name": one["name"], **owner, "summary": one["summary"]}
            rows.append(shown | ({"problem": clash} if clash else {}))
    return Table("Components", rows)


def show_plugin(name: str) -> str:
    """The documentation of a component and its options.

    Args:
        name: Such as "self_contrastive" or "flat".
            of the trainings.

    Raises:
        UnknownNameError: There is no such component.
    """
    return str(call("plugins show", {"name": name}))


@options_of("plugins check", without=("name",))
def check_plugin(name: str, **options: Any) -> list[dict[str, Any]]:
    """Check that a component, or a distribution with all of its components, keeps the contract.

    Args:
        name: The component or the distribution.
        **options: Of `rkit plugins check`.

    Returns:
        What was checked, with a row for each property.

    Raises:
        RetrievalkitError: A property failed; says which.
    """
    found: list[dict[str, Any]] = call("plugins check", {"name": name, **options})
    return found


@options_of("plugins new", without=("name", "output"))
def new_plugin(name: str, output: str | os.PathLike[str], **options: Any) -> str:
    """Write a plugin package with a component, ready to install and to change.

    Args:
        name: What the component is called, in snake_case.
        output: The folder to write.
        **options: Of `rkit plugins new`.

    Returns:
        What to do next.

    Raises:
        InputError: The name does not fit, or the folder exists.
    """
    return str(call("plugins new", {"name": name, "output": output, **options}))


@options_of("plugins package", without=("file", "output"))
def package_plugin(file: str | os.PathLike[str], output: str | os.PathLike[str], **options: Any) -> str:
    """Write a plugin package with the components of a plugin of a single file.

    Args:
        file: The file, as `RKIT_PLUGIN_FILES` names it.
        output: The folder to write.
        **options: Of `rkit plugins package`.

    Returns:
        What to do next.

    Raises:
        InputError: The file is no plugin, or the folder exists.
    """
    return str(call("plugins package", {"file": file, "output": output, **options}))


def install_plugin(name: str) -> str:
    """Install a plugin with pip into this environment.

    Args:
        name: Its distribution, or the folder of one.

    Returns:
        What was installed.

    Raises:
        RetrievalkitError: pip failed.
    """
    return str(call("plugins install", {"name": name}))


def remove_plugin(name: str) -> str:
    """Remove a plugin from this environment with pip.

    Args:
        name: Its distribution.

    Returns:
        What was removed.

    Raises:
        UnknownNameError: It is not installed.
        RetrievalkitError: pip failed.
    """
    return str(call("plugins remove", {"name": name}))
