"""Vectors cut to their first numbers: which cuts a checkpoint was trained for (loss `matryoshka`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrievalkit import artifacts, oddities
from retrievalkit.model.checkpoint import is_checkpoint

LOSS = "matryoshka"


def trained_dimensions(model: str | Path) -> list[int]:
    """The lengths that vectors of a checkpoint were trained to be cut to, besides their own; [] if there are none."""
    loss = artifacts.read_manifest(model, "checkpoint").get("options", {}).get("loss", {})
    options = loss.get("options", {}) if isinstance(loss, Mapping) else {}
    own: Any = options.get(LOSS, {})
    return list(own.get("dimensions", [])) if isinstance(own, Mapping) else []


def note_untrained_dimensions(model: str | Path, dimensions: int | None) -> None:
    """Tell `oddities` of a checkpoint's vectors that are cut as they were not trained to be.

    Raises:
        InputError: The command is strict.
    """
    if dimensions is None or not is_checkpoint(model):
        return
    trained = trained_dimensions(model)
    if dimensions not in trained:
        cuts = f"to {', '.join(map(str, trained))}" if trained else f"by no --loss '{LOSS}(...)'"
        oddities.note(
            f"the vectors of '{model}' are cut to {dimensions} numbers, and were trained for cuts {cuts}: less may be "
            f"found than with whole ones."
        )
