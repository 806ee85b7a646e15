"""The model card of what was trained: its README.md, as the Hugging Face hub shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a card says.

    Attributes:
        metadata: The hub's metadata: library_name, base_model, tags, ...
        title: Headline.
        about: What the model is, in a sentence.
        facts: Rows of the table: from what, with what and how it was trained.
        use: What to do with it, in a few words.
        commands: The commands that do so.
    """

    metadata: Mapping[str, Any]
    title: str
    about: str
    facts: Mapping[str, Any]
    use: str
    commands: Sequence[str]

    def text(self) -> str:
        """The card in Markdown."""
        metadata = [f"{name}: {_yaml(value)}" for name, value in self.metadata.items()]
        rows = [f"| {name} | {value} |" for name, value in self.facts.items()]
        commands = [f"    {command}" for command in self.commands]
        head = ["---", *metadata, "---", f"# {self.title}", "", self.about, ""]
        return "\n".join([*head, "| | |", "|---|---|", *rows, "", f"{self.use}:", "", *commands, ""])


def _yaml(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)


def how_trained(training: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a card about the options that every training has."""
    names = ("epochs", "batch_size", "learning_rate")
    return {"epochs, batch size, learning rate": ", ".join(str(training[name]) for name in names)}
