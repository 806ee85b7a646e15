"""An encoder with one tiny model, on trial: tokenises, pads and computes states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from retrievalkit import registry
from retrievalkit.contracts import Batch, Encoder, Needs, Side, Text, TokenStates
from retrievalkit.errors import InputError
from retrievalkit.testing.models import kit_models
from retrievalkit.testing.properties import Kit, PropertyError

WORDS: tuple[Text, ...] = (
    ("", "what is the capital of france"),
    ("", "lima peru"),
    ("", "rome"),
    ("", "which language is spoken in iceland and which currency do people use in the city"),
)
LONG: Text = ("", "the government people pay with currency and language " * 60)


class EncoderCase:
    """An encoder with a model.

    Args:
        name: Registered name.
        label: What the model is.
        model: Its folder or name.
        options: Of the encoder.
    """

    def __init__(self, name: str, label: str, model: str, options: dict[str, Any]) -> None:
        self.name, self.label, self.model = name, label, model
        known = registry.options(registry.get("encoder", name))
        # A prefix of the texts is nothing that a property could tell from special tokens.
        self.options = {one: "" for one in ("query_prefix", "document_prefix") if one in known} | options
        self.known = frozenset(known)

    def created(self, **more: Any) -> Encoder:
        """A new encoder, not yet prepared."""
        made: Encoder = registry.create("encoder", self.name, self.model, **(self.options | more))
        return made

    def prepared(self, needs: Needs, **more: Any) -> Encoder:
        """A new encoder, ready for these needs, in eval mode."""
        encoder = self.created(**more)
        encoder.prepare(needs)
        return encoder.eval()

    @cached_property
    def encoder(self) -> Encoder:
        """One whose layers are all wanted."""
        return self.prepared(Needs(layers=tuple(range(self.created().info.layers + 1))))

    @property
    def last(self) -> int:
        """The number of the last layer."""
        return self.encoder.info.layers

    def batch(self, texts: Sequence[Text], side: Side = "document", encoder: Encoder | None = None) -> Batch:
        """Texts, tokenised and padded."""
        encoder = encoder or self.encoder
        return encoder.collate(encoder.tokenize(texts, side), side)

    def states(self, batch: Batch, layers: Sequence[int] | None = None, encoder: Encoder | None = None) -> TokenStates:
        """The states of layers, by default of the last."""
        with torch.no_grad():
            states: TokenStates = (encoder or self.encoder)(batch, [self.last] if layers is None else list(layers))
        return states

    def of_text(self, states: TokenStates, row: int, layer: int | None = None) -> torch.Tensor:
        """(tokens, width): the states of a text's real tokens."""
        values = states.last if layer is None else states.layers[layer]
        return values[row][states.attention_mask[row].bool()]

    def alone(self, text: Text, side: Side = "document") -> torch.Tensor:
        """(tokens, width): the last states of a text in a batch of its own."""
        return self.of_text(self.states(self.batch([text], side)), 0)


def encoder_cases(name: str, *, model: str | None = None, **options: Any) -> list[EncoderCase]:
    """An encoder with each of the tiny models that it takes: a BERT, the encoder of a T5, a decoder.

    Args:
        name: Registered name.
        model: A model to try it with instead.
        options: Of the encoder.

    Raises:
        InputError: It takes none of the models.
    """
    if model is not None:
        return [EncoderCase(name, Path(model).name, model, options)]
    cases, refusals = [], []
    for architecture, folder in kit_models().items():
        case = EncoderCase(name, architecture, folder, options)
        try:
            case.prepared(Needs())
        except InputError as error:
            refusals.append(f"{architecture}: {error}")
        except Exception:  # noqa: BLE001 - a property will say what it raises
            cases.append(case)
        else:
            cases.append(case)
    if not cases:
        msg = f"it takes none of the tiny models; name one that it takes by `model`. {' '.join(refusals)}"
        raise PropertyError(msg.rstrip("."), method="__init__")
    return cases


ENCODERS: Kit[EncoderCase] = Kit("encoder", encoder_cases)
"""The properties of encoders. Each tiny model that an encoder takes is a case."""
