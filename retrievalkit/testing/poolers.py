"""The conformance kit of poolers: the properties of their outputs, and of their training."""

from __future__ import annotations

from typing import Any

# Each adds its properties, in this order.
import retrievalkit.testing.pooler_outputs
import retrievalkit.testing.pooler_training  # noqa: F401
from retrievalkit.testing.pooler_cases import POOLERS


def check_pooler(name: str, *, model: str | None = None, **settings: Any) -> None:
    """Check that a pooler has every property that the contract asks for.

    Args:
        name: Registered name of the pooler.
        model: A model that has what it needs; None = tiny ones of several architectures.
        settings: Options of the pooler; `only` or `without`, names of properties.

    Raises:
        PropertyError: Which property it lacks, the numbers, and the line to look at.
    """
    POOLERS.check(name, model=model, **settings)
