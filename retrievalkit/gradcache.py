"""Large batches in bounded memory, with the gradient of the whole batch.

A contrastive loss needs the representations of the whole batch at once, and they are small; the graph behind them is
not. So: encode chunk by chunk without a graph, take the loss and its gradient at the representations, then encode each
chunk again with a graph (and the same dropout masks) and pass that gradient on (Gao et al. 2021, "Scaling Deep
Contrastive Learning Batch Size under Memory Limited Setup").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from retrievalkit.contracts import Batch, LossValue, Representation, Side

Encode = Callable[[Batch, Side], Representation]
Compare = Callable[[Representation, Representation], LossValue]
Backward = Callable[[Tensor], None]


@dataclass(frozen=True)
class Chunk:
    """Texts that are encoded together, and their rows in the step."""

    side: Side
    rows: Sequence[int]
    batch: Batch


def plain_step(encode: Encode, chunks: Sequence[Chunk], compare: Compare, backward: Backward) -> LossValue:
    """One step with the whole graph in memory. See `cached_step`."""
    parts = [encode(chunk.batch, chunk.side) for chunk in chunks]
    loss = compare(_gather(chunks, parts, "query"), _gather(chunks, parts, "document"))
    backward(loss.total)
    return loss


def cached_step(encode: Encode, chunks: Sequence[Chunk], compare: Compare, backward: Backward) -> LossValue:
    """One step with the graph of one chunk in memory; equal gradients to `plain_step`.

    Args:
        encode: The model, with its autocast context.
        chunks: The queries and documents of the step.
        compare: Representations of all queries and of all documents, in the order of their rows -> the loss.
        backward: Back-propagates the loss, scaled where the precision wants that.

    Returns:
        The loss; gradients are added to the parameters.
    """
    states, parts = [], []
    for chunk in chunks:
        states.append(RandomState.now(chunk.batch.input_ids.device))
        with torch.no_grad():
            parts.append(_as_leaf(encode(chunk.batch, chunk.side)))
    loss = compare(_gather(chunks, parts, "query"), _gather(chunks, parts, "document"))
    backward(loss.total)
    after = RandomState.now(chunks[0].batch.input_ids.device)
    for chunk, state, leaf in zip(chunks, states, parts, strict=True):
        state.restore()
        torch.autograd.backward(_surrogate(encode(chunk.batch, chunk.side), leaf))
    after.restore()
    return loss


def _as_leaf(representation: Representation) -> Representation:
    """The same values as leaves of a new graph, so that the loss leaves its gradient there."""
    tensors = {
        name: tensor.detach().requires_grad_()
        for name in ("vectors", "weights")
        if (tensor := getattr(representation, name)) is not None
    }
    return replace(representation, **tensors)


def _surrogate(representation: Representation, leaf: Representation) -> Tensor:
    """A scalar whose gradient at the representation is the one that the loss left at the leaf."""
    products = [
        (tensor * cached.grad.to(tensor.dtype)).sum()
        for name in ("vectors", "weights")
        if (tensor := getattr(representation, name)) is not None and (cached := getattr(leaf, name)).grad is not None
    ]
    return torch.stack(products).sum() if products else torch.zeros((), requires_grad=True)


def _gather(chunks: Sequence[Chunk], parts: Sequence[Representation], side: Side) -> Representation:
    """The representations of one side in the order of their rows."""
    chosen = [(chunk, part) for chunk, part in zip(chunks, parts, strict=True) if chunk.side == side]
    rows = torch.tensor([row for chunk, _ in chosen for row in chunk.rows])
    together = Representation.concatenate([part for _, part in chosen])
    return together.rows(torch.argsort(rows).to(together.device))


@dataclass(frozen=True)
class RandomState:
    """The state of torch's random generators on the CPU and on one device."""

    cpu: Tensor
    device: torch.device
    cuda: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """The state at this moment."""
        return cls(torch.get_rng_state(), device, torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def restore(self) -> None:
        """Make the generators draw again what they drew from that moment on."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)
