"""The README.md of an export, as a Hugging Face model card: how to use it, and its origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from retrievalkit.contracts.commands import kind_of, read_document, read_manifest
from retrievalkit.contracts.declarations import Place

_DO = "Write it again: rkit evaluate RUN --qrels Q --json"


@dataclass(frozen=True)
class Written:
    """The result of writing an export target.

    Attributes:
        library: The library that opens it, by its name on the Hugging Face hub.
        example: Code or commands that use the folder, which they call FOLDER.
        language: Language of `example`.
        notes: Information that the user needs.
        tags: Tags of the model card.
        pipeline: The task shown on the hub.
        figures: Measurements, by name.
    """

    library: str
    example: str
    language: Literal["python", "bash"] = "python"
    notes: Sequence[str] = ()
    tags: Sequence[str] = ()
    pipeline: str = "feature-extraction"
    figures: Mapping[str, Any] = field(default_factory=dict)


def card_text(source: str, written: Written, license: str | None, figures: Sequence[Place]) -> str:  # noqa: A002
    """The model card in Markdown.

    Raises:
        ArtifactError: A file of figures contains no figures.
    """
    metadata = {
        "library_name": written.library,
        "pipeline_tag": written.pipeline,
        "tags": f"[{', '.join(['retrieval', *written.tags])}]",
        **({"license": license} if license else {}),
    }
    lines = ["---", *(f"{name}: {value}" for name, value in metadata.items()), "---", f"# {Path(source).name}", ""]
    lines += ["A text retriever trained with retrievalkit, exported for other libraries.", ""]
    lines += [f"```{written.language}", written.example, "```", ""]
    lines += [f"- {note}" for note in written.notes]
    facts = {**_training(source), **written.figures}
    for file in figures:
        values = read_document(Path(file), dict[str, Any], do=_DO)
        facts |= {f"{name} ({Path(file).stem})": value for name, value in _numbers(values).items()}
    if license is None:
        facts["licence"] = "not stated"
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts.items()), ""]
    return "\n".join(lines)


def _training(source: str) -> dict[str, Any]:
    """Training information from the checkpoint's manifest: the command, the options and the data."""
    if kind_of(source) is None:
        return {"model": source}
    manifest = read_manifest(source)
    options = manifest.get("options", {})
    facts: dict[str, Any] = {"command": f"rkit {manifest.get('command', '')}"}
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
    facts.update(manifest.get("counts", {}))
    return facts


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of a nested document, by their innermost name."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            numbers |= _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[name] = value
    return numbers


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
