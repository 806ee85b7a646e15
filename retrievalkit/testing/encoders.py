"""The conformance kit of encoders: the properties of their tokens and of their states."""

from __future__ import annotations

from typing import Any

# Each adds its properties, in this order.
import retrievalkit.testing.encoder_texts
import retrievalkit.testing.encoder_states  # noqa: F401, I001
from retrievalkit.testing.encoder_cases import ENCODERS


def check_encoder(name: str, *, model: str | None = None, **options: Any) -> None:
    """Check that an encoder keeps the contract, with each of the tiny models that it takes.

    Args:
        name: Registered name of the encoder.
        model: A model to try it with instead of a tiny BERT, T5 and decoder.
        options: Of the encoder.

    Raises:
        PropertyError: Says what it does wrong.
    """
    ENCODERS.check(name, model=model, **options)
