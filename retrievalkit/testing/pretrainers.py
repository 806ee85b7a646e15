"""The conformance kit of pretrainers: their batches, and the training by them."""

from __future__ import annotations

from typing import Any

# Each adds its properties, in this order.
import retrievalkit.testing.pretrainer_batches
import retrievalkit.testing.pretrainer_training  # noqa: F401
from retrievalkit.testing.pretrainer_cases import PRETRAINERS


def check_pretrainer(name: str, *, model: str | None = None, max_length: int = 24, **settings: Any) -> None:
    """Check that a pretrainer has every property that the contract asks for.

    Args:
        name: Registered name of the pretrainer.
        model: A model that has what it needs; None = tiny ones of several architectures.
        max_length: Most tokens of a text.
        settings: Options of the pretrainer; `only` or `without`, names of properties.

    Raises:
        PropertyError: Which property it lacks, the numbers, and the line to look at.
    """
    PRETRAINERS.check(name, model=model, max_length=max_length, **settings)
