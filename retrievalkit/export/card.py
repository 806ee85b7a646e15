"""The README.md of an export: how to use it, and what it was made from, as the Hugging Face hub shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.export.targets import ExportOptions, Written

_DO = "Write it again: rkit evaluate RUN --qrels Q --json"


def card_text(source: str, written: Written, options: ExportOptions) -> str:
    """The card in Markdown.

    Args:
        source: What was exported.
        written: What the target says.
        options: The licence and the files of figures.

    Raises:
        ArtifactError: A file of figures is none.
    """
    metadata = {
        "library_name": written.library,
        "pipeline_tag": written.pipeline,
        "tags": f"[{', '.join(['retrieval', *written.tags])}]",
        **({"license": options.license} if options.license else {}),
    }
    lines = ["---", *(f"{name}: {value}" for name, value in metadata.items()), "---", f"# {Path(source).name}", ""]
    lines += ["A text retriever made with retrievalkit, exported for other libraries.", ""]
    lines += [f"```{written.language}", written.example, "```", ""]
    lines += [f"- {note}" for note in written.notes]
    facts = {**_training(source), **written.figures, **_figures(options.figures)}
    if options.license is None:
        facts["licence"] = "not stated"
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts.items()), ""]
    return "\n".join(lines)


def _training(source: str) -> dict[str, Any]:
    """What the checkpoint's manifest says of its training: the command, the options and the data."""
    if artifacts.kind_of(source) is None:
        return {"model": source}
    manifest = artifacts.read_manifest(source)
    options = manifest.get("options", {})
    facts: dict[str, Any] = {"made by": f"rkit {manifest.get('command', '')}"}
    if "model" in options:
        facts["started from"] = options["model"]
    for part in ("encoder", "pooler", "loss"):
        if isinstance(described := options.get(part), Mapping):
            facts[part] = f"{described['name']} {described['options']}"
    names = ("epochs", "batch_size", "learning_rate", "seed")
    if isinstance(training := options.get("training"), Mapping):
        facts["training"] = ", ".join(f"{name} {training[name]}" for name in names if name in training)
    for name, entry in manifest.get("inputs", {}).items():
        if name != "model":
            facts[f"data: {name}"] = Path(entry["path"]).name
    for name, count in manifest.get("counts", {}).items():
        facts[name] = count
    return facts


def _figures(files: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in files:
        values = artifacts.read_document(file, dict[str, Any], do=_DO)
        found |= {f"{name} ({Path(file).stem})": value for name, value in _numbers(values).items()}
    return found


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a document, whatever they are nested in, by the innermost name."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
    return found


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
