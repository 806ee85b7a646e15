"""`rkit doctor`: the state of this machine: Python, packages, processor, plugins, and the checks that plugins bring."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from dataclasses import asdict
from typing import Any

import click

from retrievalkit import registry
from retrievalkit.cli.options import echo, is_called, json_option
from retrievalkit.errors import OptionError, PluginError, RetrievalkitError
from retrievalkit.hookspecs import Finding
from retrievalkit.report.counts import counted

_PACKAGES = {
    "torch": "training and encoding",
    "transformers": "encoders",
    "accelerate": "training",
    "faiss-cpu": "indexer faiss",
    "pyarrow": "Parquet and .zst files",
    "ir-measures": "evaluation",
    "scipy": "sparse weights and tests",
    "pydantic": "options",
    "tensorboard": "TensorBoard logs (optional)",
    "datasets": "hf: sources (optional)",
    "ir-datasets": "irds: sources (optional)",
}


def examine() -> list[Finding]:
    """Examine everything, one finding each."""
    findings = [Finding("Python", platform.python_version())]
    findings += [_package(name, use) for name, use in _PACKAGES.items()]
    findings += [_processor(), *_checks(), *(_plugin(plugin) for plugin in registry.plugins())]
    return findings


def report(findings: list[Finding]) -> str:
    """The findings as lines of text; a problem is marked BAD and followed by its remedy."""
    width = max(len(one.name) for one in findings)
    lines = []
    for one in findings:
        lines.append(f"{'ok ' if one.ok else 'BAD'}  {one.name:<{width}}  {one.value}")
        if one.hint:
            lines.append(f"     {'':<{width}}  {one.hint}")
    return "\n".join(lines)


def _package(name: str, use: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        optional = use.endswith("(optional)")
        # The GPU build brings the same module under another distribution's name.
        if name == "faiss-cpu" and importlib.util.find_spec("faiss"):
            return Finding(name, "another build of faiss")
        return Finding(name, "not installed", ok=optional, hint=f"for {use}: pip install {name}")


def _processor() -> Finding:
    import torch

    from retrievalkit.model.precision import auto_precision, default_device

    device = default_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    try:
        precision, reason = auto_precision(device)
    except OptionError as error:
        return Finding("processor", name, ok=False, hint=str(error))
    return Finding("processor", f"{name}, precision auto = {precision} ({reason})")


def _checks() -> list[Finding]:
    """The findings of the checks that plugins bring; a check that fails is a finding too."""
    return [finding for name in registry.names("check") for finding in _checked(name)]


def _checked(name: str) -> list[Finding]:
    try:
        return _valid(registry.component("check", name).load()())
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and doctor must report the rest
        reason = str(error) if isinstance(error, RetrievalkitError) else f"{type(error).__name__}: {error}"
        owners = ", ".join(one.distribution for one in registry.default_registry().candidates("check", name))
        return [Finding(f"check {name}", reason, ok=False, hint=f"a fault of {owners}: report it there")]


def _valid(findings: object) -> list[Finding]:
    if not isinstance(findings, list) or any(not isinstance(one, Finding) for one in findings):
        msg = f"it returned {findings!r}, and must return a list of retrievalkit.hookspecs.Finding"
        raise PluginError(msg)
    return findings


def _plugin(plugin: registry.Plugin) -> Finding:
    value = plugin.error or f"{plugin.distribution} {plugin.version}: {counted(len(plugin.components), 'components')}"
    return Finding(f"plugin {plugin.name}", value, ok=plugin.error is None)


@click.command()
@json_option
def doctor(as_json: bool) -> list[dict[str, Any]]:
    """Examine this machine: Python, packages, processor, plugins and what they need, and report problems.

    Exits with code 1 if anything is wrong.
    """
    findings = examine()
    found = echo(as_json, [asdict(one) for one in findings], report(findings))
    if any(not one.ok for one in findings) and not is_called():
        sys.exit(1)
    return found
