"""`rkit doctor`: state of this machine: Python, packages, processor, plugins, and the checks of plugins."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from retrievalkit import registry
from retrievalkit.contracts.declarations import command
from retrievalkit.errors import RetrievalkitError
from retrievalkit.hookspecs import Finding
from retrievalkit.reporting.table import Table
from retrievalkit.reporting.terminal import counted

_PACKAGES = {
    "torch": "training and encoding",
    "transformers": "encoders",
    "accelerate": "training",
    "faiss-cpu": "indexer faiss (optional)",
    "pyarrow": "Parquet and .zst files",
    "ir-measures": "evaluation",
    "scipy": "sparse weights and tests",
    "pydantic": "options",
    "tensorboard": "TensorBoard logs (optional)",
}


@dataclass(frozen=True)
class DoctorOptions:
    """Options of `doctor`."""


class Findings(Table):
    """Findings of `doctor`: a row per finding with `ok`, `name`, `value` and `hint` (the fix of a problem)."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        super().__init__("This machine", rows)
        self.exit_code = int(any(not row["ok"] for row in self))

    def as_json(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return list(self)

    @property
    def summary(self) -> str:
        """Findings as lines; a problem is marked BAD and followed by its fix."""
        width = max(len(row["name"]) for row in self)
        lines = []
        for row in self:
            lines.append(f"{'ok ' if row['ok'] else 'BAD'}  {row['name']:<{width}}  {row['value']}")
            lines += [f"     {'':<{width}}  {row['hint']}"] if row["hint"] else []
        return "\n".join(lines)


@command("doctor", DoctorOptions)
def doctor(options: DoctorOptions) -> Findings:
    """Report the state of this machine: Python, packages, processor, plugins and their requirements.

    Exits with code 1 if anything is wrong.
    """
    del options
    findings = [Finding("Python", platform.python_version())]
    for name, use in _PACKAGES.items():
        try:
            findings.append(Finding(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            # The GPU build of faiss is another distribution with the same module.
            if name == "faiss-cpu" and importlib.util.find_spec("faiss"):
                findings.append(Finding(name, "another build of faiss"))
                continue
            optional = use.endswith("(optional)")
            findings.append(Finding(name, "not installed", ok=optional, hint=f"for {use}: pip install {name}"))
    findings += [_processor(), *(finding for name in registry.names("check") for finding in _checked(name))]
    for plugin in registry.plugins():
        contents = f"{plugin.distribution} {plugin.version}: {counted(len(plugin.components), 'components')}"
        findings.append(Finding(f"plugin {plugin.name}", plugin.error or contents, ok=plugin.error is None))
    return Findings({name: getattr(finding, name) for name in ("ok", "name", "value", "hint")} for finding in findings)


def _processor() -> Finding:
    import torch

    from retrievalkit.models.backends import resolve_backend
    from retrievalkit.models.precision import auto_precision, default_device

    device = default_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    try:
        precision, reason = auto_precision(device)
        selected = resolve_backend("auto", device.type)
    except RetrievalkitError as error:
        return Finding("processor", name, ok=False, hint=str(error))
    backend = "torch" if selected is None else selected.name
    return Finding("processor", f"{name}, precision auto = {precision} ({reason}), backend auto = {backend}")


def _checked(name: str) -> list[Finding]:
    """Run a plugin's check and return its findings; a check that fails is a finding too."""
    try:
        findings = registry.component("check", name).load()()
        if isinstance(findings, list) and all(isinstance(finding, Finding) for finding in findings):
            return findings
        reason = f"it returned {findings!r}, but must return a list of retrievalkit.hookspecs.Finding"
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and doctor must report the rest
        reason = str(error) if isinstance(error, RetrievalkitError) else f"{type(error).__name__}: {error}"
    owners = ", ".join(owner.distribution for owner in registry.default_registry().candidates("check", name))
    return [Finding(f"check {name}", reason, ok=False, hint=f"a fault of {owners}: report it there")]
