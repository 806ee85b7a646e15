"""The model card of a checkpoint: its README.md, as the Hugging Face hub shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def model_card(manifest: Mapping[str, Any]) -> str:
    """What a checkpoint is and how it is used, from its manifest."""
    options = manifest["options"]
    training = options["training"]
    return f"""---
library_name: retrievalkit
base_model: {options["model"]}
tags: [retrieval, {options["pooler"]["name"]}]
---
# A {options["pooler"]["name"]} retriever

A text retriever trained with retrievalkit {manifest["versions"].get("retrievalkit", "")}.

| | |
|---|---|
| started from | {options["model"]} |
| encoder | {options["encoder"]["name"]} {options["encoder"]["options"]} |
| towers | {"separate" if options["separate_towers"] else "shared"} |
| pooler | {options["pooler"]["name"]} {options["pooler"]["options"]} |
| loss | {options["loss"]["name"]} {options["loss"]["options"]} |
| examples | {manifest["counts"]["examples"]} from {manifest["inputs"]["examples"]["path"]} |
| epochs, batch size, learning rate | {training["epochs"]}, {training["batch_size"]}, {training["learning_rate"]} |

Encode a corpus and search it:

    rkit encode CHECKPOINT CORPUS --side document --output vectors
    rkit index vectors --indexer flat --output index
    rkit search index --query "..."
"""
