"""API for commands of plugins: declared options, retrievers, folders with manifests.

A frozen dataclass declares the options of a command: its flags, its names in recipes, the arguments of the Python
function and of `rk.command`. docs/write-a-plugin.md has an example. The result of the command has `summary`, the text
to print, and `as_json()`, the output of `--json`; it may have `notes`.

A promise to plugins, like `retrievalkit.contracts`. Plugins use the core's programs only through this module, so their
commands encode texts and write folders exactly as the built-in commands do. Importing it does not import torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit.contracts.declarations import (
    Argument,
    Command,
    CommandOptions,
    Flag,
    Named,
    Place,
    ReadingOptions,
    Reads,
    WritingOptions,
    command,
)
from retrievalkit.contracts.encoding import Precision
from retrievalkit.models.opening import describe_retriever, open_retriever
from retrievalkit.models.pretrained import check_finite, model_fingerprint, model_identity, uploading
from retrievalkit.registry import create, describe, get, names, options
from retrievalkit.reporting.notices import check as refuse_if_strict
from retrievalkit.reporting.page import render as render_page
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import counted, printable, say
from retrievalkit.search.options import DocumentOptions, HybridOptions, OpenOptions
from retrievalkit.storage import (
    check_files,
    check_output,
    describe_files,
    describe_input,
    fingerprint_value,
    held,
    indexes_of,
    kind_of,
    read_document,
    read_entry,
    read_manifest,
    write_entry,
    write_folder,
    write_json,
    write_manifest,
)
from retrievalkit.training.options import LoopOptions, RunOptions

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

__all__ = [
    "command", "Command", "CommandOptions", "ReadingOptions", "WritingOptions", "Place", "Argument", "Flag",
    "Named", "Reads", "refuse_if_strict", "Precision", "resolve_precision", "Retriever", "DocumentOptions",
    "HybridOptions", "OpenOptions", "LoopOptions", "RunOptions", "create", "describe", "get", "names",
    "options", "open_retriever", "describe_retriever", "describe_source", "describe_input", "model_fingerprint",
    "model_identity", "check_finite",
    "fingerprint_value", "held", "indexes_of", "kind_of", "check_output", "describe_files", "check_files",
    "read_document", "read_entry", "read_manifest", "write_entry", "write_folder", "write_json",
    "write_manifest", "uploading", "ProgressBar", "counted", "printable", "render_page", "say",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "Retriever":
        msg = f"module '{__name__}' has no attribute '{name}'"
        raise AttributeError(msg)
    from retrievalkit.models.retriever import Retriever

    return Retriever


def resolve_precision(precision: Precision) -> Precision:
    """Return the number format that models compute in on this machine; "auto" is resolved.

    Raises:
        UnsupportedError: fp16 on a CPU, or int8 on a GPU.
    """
    from retrievalkit.models.precision import default_device
    from retrievalkit.models.precision import resolve_precision as resolve

    return resolve(precision, default_device())


def describe_source(source: str | Path) -> dict[str, str]:
    """Return a manifest's entry (place and fingerprint) for a corpus, queries, judgements or examples."""
    from retrievalkit.data.sources import fingerprint

    return describe_input(source, fingerprint(source))
