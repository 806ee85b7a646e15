"""The README.md of an export, as a Hugging Face model card: how to use it, and its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import ModelCard, ModelCardData

from retrievalkit.contracts.commands import kind_of


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


def card_text(source: str, written: Written, license: str | None) -> str:  # noqa: A002
    """Return the model card; the facts and dev figures of a checkpoint's own card are included."""
    path = Path(source) / "README.md"
    own = ModelCard.load(path) if kind_of(source) == "checkpoint" and path.is_file() else None
    data = ModelCardData() if own is None else own.data
    data.library_name, data.pipeline_tag, data.tags = written.library, written.pipeline, ["retrieval", *written.tags]
    data.license = license or data.license
    rows = [f"| {name} | {value} |" for name, value in written.figures.items()]
    lines = [
        *("---", data.to_yaml(), "---", f"# {Path(source).name}", ""),
        *(f"A text retriever, exported by retrievalkit for {written.library}.", ""),
        *(f"```{written.language}", written.example, "```", ""),
        *(f"- {note}" for note in written.notes),
        *(["", "| | |", "|---|---|", *rows] if rows else []),
        *([] if own is None else ["", own.text.strip().replace("# ", "## Training: ", 1)]),
    ]
    return "\n".join(lines) + "\n"
