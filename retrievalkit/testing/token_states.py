"""Token states that an encoder might have given: padded otherwise, longer, in another order, fewer of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from retrievalkit.contracts import TokenStates

_SIZE = 100.0
"""Of the states at padding: larger than any real one, so that what reads them shows."""


def copied(states: TokenStates) -> TokenStates:
    """The same values in memory of their own, as leaves of no graph."""
    return _mapped(states, lambda tensor: tensor.detach().clone())


def selected(states: TokenStates, rows: Tensor) -> TokenStates:
    """Some texts, as padded as they are."""
    return _mapped(states, lambda tensor: tensor[rows])


def widened(states: TokenStates, more: int) -> TokenStates:
    """More padding on the right; all padding has states that are large and drawn at random."""
    padded = states.attention_mask == 0
    filler = int(states.input_ids[padded][0]) if padded.any() else 0
    mask = nn.functional.pad(states.attention_mask, (0, more))
    generator = torch.Generator().manual_seed(3)

    def pad(layer: Tensor) -> Tensor:
        wide = nn.functional.pad(layer, (0, 0, 0, more))
        drawn = _SIZE * torch.randn(wide.shape, generator=generator)
        return torch.where(mask[:, :, None].bool(), wide, drawn.to(wide.dtype))

    return replace(
        states,
        layers={number: pad(layer) for number, layer in states.layers.items()},
        attention_mask=mask,
        input_ids=nn.functional.pad(states.input_ids, (0, more), value=filler),
        special_mask=nn.functional.pad(states.special_mask, (0, more)),
    )


def of_one(states: TokenStates, row: int) -> TokenStates:
    """As many texts, all of them the one in this row, without padding."""
    texts = selected(states, torch.full((len(states.input_ids),), row))
    order = (1 - texts.attention_mask).argsort(dim=1, stable=True)[:, : max(1, int(texts.attention_mask[0].sum()))]
    return replace(_mapped(replace(texts, extra=None), lambda tensor: _gathered(tensor, order)), extra=texts.extra)


def left_padded(states: TokenStates) -> TokenStates:
    """The padding of each text in front of it."""
    order = states.attention_mask.argsort(dim=1, stable=True)  # (batch, tokens): padding, then the text
    extra = None if states.extra is None else order.argsort(dim=1).gather(1, states.extra)
    moved = _mapped(replace(states, extra=None), lambda tensor: _gathered(tensor, order))
    return replace(moved, extra=extra)


def repeated(states: TokenStates, tokens: int) -> TokenStates:
    """The first text again and again up to a number of tokens, in a batch with the others as they are."""
    missing = tokens - states.attention_mask.shape[1]
    wide = widened(states, missing)
    length = int(states.attention_mask[0].sum())
    order = torch.arange(tokens).repeat(len(states.attention_mask), 1)
    order[0] = torch.arange(tokens) % max(1, length)
    return replace(_mapped(replace(wide, extra=None), lambda tensor: _gathered(tensor, order)), extra=states.extra)


def _gathered(tensor: Tensor, order: Tensor) -> Tensor:
    """The tokens of each row in an order."""
    index = order.view(*order.shape, *([1] * (tensor.dim() - 2))).expand(*order.shape, *tensor.shape[2:])
    return tensor.gather(1, index)


def _mapped(states: TokenStates, function: Callable[[Tensor], Tensor]) -> TokenStates:
    """Each tensor by a function; the vocabulary head as it is."""
    names = ("attention_mask", "input_ids", "special_mask", "extra")
    tensors = {name: getattr(states, name) for name in names}
    mapped: dict[str, Any] = {name: one if one is None else function(one) for name, one in tensors.items()}
    return replace(states, layers={number: function(layer) for number, layer in states.layers.items()}, **mapped)
