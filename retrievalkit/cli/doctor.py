"""`rkit doctor`: what this machine has, and what is missing for what."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
from typing import Any

import click

from retrievalkit import registry
from retrievalkit.cli.options import json_option

Finding = dict[str, Any]

_PACKAGES = {
    "torch": "training and encoding",
    "transformers": "encoders",
    "accelerate": "training",
    "datasets": "hf: sources",
    "faiss-cpu": "indexer faiss",
    "ir-measures": "evaluation",
    "scipy": "sparse weights and tests",
    "pydantic": "options",
    "tensorboard": "TensorBoard logs (optional)",
    "zstandard": ".zst files (optional)",
    "ir-datasets": "irds: sources (optional)",
}


def examine() -> list[Finding]:
    """One finding a thing: {"name", "value", "ok", "hint"}."""
    findings = [_finding("Python", platform.python_version(), ok=True)]
    findings += [_package(name, use) for name, use in _PACKAGES.items()]
    findings += [_processor(), *_java(), *(_plugin(plugin) for plugin in registry.plugins())]
    return findings


def report(findings: list[Finding]) -> str:
    """The findings as lines of text; what is wrong is marked and followed by what to do."""
    width = max(len(one["name"]) for one in findings)
    lines = []
    for one in findings:
        lines.append(f"{'ok ' if one['ok'] else 'BAD'}  {one['name']:<{width}}  {one['value']}")
        if one["hint"]:
            lines.append(f"     {'':<{width}}  {one['hint']}")
    return "\n".join(lines)


def _finding(name: str, value: str, *, ok: bool, hint: str = "") -> Finding:
    return {"name": name, "value": value, "ok": ok, "hint": hint}


def _package(name: str, use: str) -> Finding:
    try:
        return _finding(name, importlib.metadata.version(name), ok=True)
    except importlib.metadata.PackageNotFoundError:
        optional = use.endswith("(optional)")
        # The GPU build brings the same module under another distribution's name.
        if name == "faiss-cpu" and importlib.util.find_spec("faiss"):
            return _finding(name, "another build of faiss", ok=True)
        return _finding(name, "not installed", ok=optional, hint=f"for {use}: pip install {name}")


def _processor() -> Finding:
    import torch

    from retrievalkit.model.precision import default_device, resolve_precision

    device = default_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return _finding("processor", f"{name}, precision auto = {resolve_precision('auto', device)}", ok=True)


def _java() -> list[Finding]:
    if not importlib.util.find_spec("retrievalkit_pyserini"):
        return []
    described = importlib.import_module("retrievalkit_pyserini.java").describe()
    problem = str(described.get("problem") or "")
    value = ", ".join(f"{key} {value}" for key, value in described.items() if key != "problem" and value)
    return [_finding("Lucene", value or "not available", ok=not problem, hint=problem)]


def _plugin(plugin: registry.Plugin) -> Finding:
    value = plugin.error or f"{plugin.distribution} {plugin.version}: {len(plugin.components)} components"
    return _finding(f"plugin {plugin.name}", value, ok=plugin.error is None)


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what this machine has: Python, packages, Java, processor, plugins; and what is wrong."""
    findings = examine()
    click.echo(json.dumps(findings, indent=2) if as_json else report(findings))
    if any(not one["ok"] for one in findings):
        sys.exit(1)
