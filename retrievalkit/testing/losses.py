"""The conformance kit of losses: what they depend on, and the training by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Each adds its properties, in this order.
import retrievalkit.testing.loss_inputs
import retrievalkit.testing.loss_training  # noqa: F401
from retrievalkit.testing.loss_cases import LOSSES


def check_loss(
    name: str, *, kept: int | None = None, parts: Mapping[str, slice] | None = None, **settings: Any
) -> None:
    """Check that a loss has every property that the contract asks for.

    It is given representations of every form that it takes; one that needs a teacher, also the scores of each query's
    own passages.

    Args:
        name: Registered name of the loss.
        kept: `Representation.kept` of the documents, which then have two vectors each.
        parts: `Representation.parts` of both sides, whose vectors have 8 numbers.
        settings: Options of the loss; `only` or `without`, names of properties.

    Raises:
        PropertyError: Which property it lacks, the numbers, and the line to look at.
    """
    LOSSES.check(name, kept=kept, parts=parts, **settings)
