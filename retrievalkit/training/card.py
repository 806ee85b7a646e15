"""Model card of a trained model: the README.md that the Hugging Face hub shows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from retrievalkit.training.selection import dev_summary

Manifest = dict[str, Any]


def model_card(
    manifest: Manifest, *, title: str, about: str, facts: Mapping[str, Any], use: Sequence[str], **metadata: Any
) -> str:
    """Return the model card: the README.md that the Hugging Face hub shows, with the figures of the dev set."""
    options, inputs = manifest["options"], manifest["inputs"]
    facts = {"started from": options["model"], **facts}
    if dev := manifest.get("dev"):
        data = Path(inputs.get("dev", inputs["examples"])["path"]).name
        questions = f"{dev['questions']} {'held-out' if dev['held_out'] else 'dev'} questions of {data}"
        described = [metadata.get("pipeline_tag", "text-retrieval"), data, questions]
        metadata["eval_results"] = [
            EvalResult(*described, name.lower().replace("@", "_at_"), value, metric_name=name)
            for name, value in dev["after"].items()
        ]
        metadata["model_name"] = title
    if not os.path.isabs(options["model"]) and not options["model"].startswith("package:"):
        metadata["base_model"] = options["model"]
    if training := options.get("training"):
        names = ("epochs", "batch_size", "learning_rate")
        facts["epochs, batch size, learning rate"] = ", ".join(str(training[name]) for name in names)
    if measured := dev_summary(manifest):
        facts["what training changed"] = measured
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    about = f"{about} Trained with retrievalkit {manifest['versions'].get('retrievalkit', '')}."
    head = ["---", ModelCardData(**metadata).to_yaml(), "---", f"# {title}", "", about, ""]
    action, *commands = use
    commands = [f"    {command}" for command in commands]
    card = "\n".join([*head, "| | |", "|---|---|", *rows, "", f"{action}:", "", *commands, ""])
    for path in filter(os.path.isabs, (entry["path"] for entry in inputs.values())):
        card = card.replace(path, Path(path).name)  # the card may be published
    return card
