"""Gradient caching (GradCache): large contrastive batches in bounded memory, with the gradient of the whole batch.

A contrastive loss needs the representations of the whole batch. They are small; the graph behind them is not. So encode
chunk by chunk without a graph, compute the loss and its gradient with respect to the representations, then encode each
chunk again with a graph (and the same dropout masks) and back-propagate that gradient (Gao et al. 2021, "Scaling Deep
Contrastive Learning Batch Size under Memory Limited Setup"). Between the two encodings, only non-zero vocabulary
weights are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from retrievalkit.contracts import SIDES, Batch, LossValue, Representation, Side
from retrievalkit.contracts.models import to_device
from retrievalkit.training.collective import GradientSum

Encode = Callable[[Batch, Side], Representation]
Compare = Callable[[Representation, Representation], LossValue]
Backward = Callable[[Tensor], None]


@dataclass(frozen=True)
class Chunk:
    """A batch of texts that are encoded together, and their rows in the step."""

    side: Side
    rows: Sequence[int]
    batch: Batch

    @property
    def tokens(self) -> int:
        """Number of tokens, padding included."""
        return self.batch.input_ids.numel()

    def parts(self, most: int | None) -> list[Chunk]:
        """Return the chunk in parts of at most `most` tokens, or of a single text; None = no limit."""
        if most is None or self.tokens <= most or len(self.rows) == 1:
            return [self]
        half = len(self.rows) // 2
        halves = (Chunk(self.side, self.rows[part], self.batch.rows(part)) for part in (slice(half), slice(half, None)))
        return [part for chunk in halves for part in chunk.parts(most)]


def plain_step(
    encode: Encode, chunks: Sequence[Chunk], compare: Compare, backward: Backward, gradients: GradientSum
) -> LossValue:
    """Compute a step with the whole graph in memory. See `cached_step`."""
    parts = [encode(chunk.batch, chunk.side) for chunk in chunks]
    gradients.await_others()
    loss = compare(*(_gathered(chunks, parts, side) for side in SIDES))
    with gradients.last_backward():
        backward(loss.total)
    return loss


def cached_step(
    encode: Encode,
    chunks: Sequence[Chunk],
    compare: Compare,
    backward: Backward,
    gradients: GradientSum,
    idle: int | None = None,
) -> LossValue:
    """Compute a step with the graph of one chunk in memory, with the same gradients as `plain_step`; return the loss.

    Args:
        encode: The model, with its autocast context.
        chunks: The queries and documents of the step.
        compare: Computes the loss from the representations of all queries and all documents, in row order.
        backward: Back-propagates the loss, scaled if the precision requires it.
        gradients: The sum of the step's gradients over all processes.
        idle: Number of extra encodings of this process, with zero gradient: with sharded weights, all processes encode
            equally often. None = weights are not sharded.
    """
    device = chunks[0].batch.input_ids.device
    states, leaves = [], []
    for chunk in chunks:
        states.append(_random_state(device))
        with torch.no_grad():
            leaves.append(_Leaf.of(encode(chunk.batch, chunk.side)))
    spare = [chunks[-1]] * (idle or 0)
    with torch.no_grad():
        for chunk in spare:
            encode(chunk.batch, chunk.side)
    gradients.await_others()
    loss = compare(*(_gathered_leaves(chunks, leaves, side) for side in SIDES))
    backward(loss.total)
    after = _random_state(device)
    for number, (chunk, state, leaf) in enumerate(zip(chunks, states, leaves, strict=True), 1):
        _repeat_from(state, device)
        encoded = encode(chunk.batch, chunk.side)
        with gradients.last_backward() if number == len(chunks) else nullcontext():
            leaf.pass_gradient_to(encoded, always=idle is not None)
    for chunk in spare:
        _Leaf.of(encoded := encode(chunk.batch, chunk.side)).pass_gradient_to(encoded, always=True)
    _repeat_from(after, device)
    return loss


@dataclass(frozen=True)
class _Leaf:
    """Values of a chunk's representation, as leaves of the loss's graph.

    Attributes:
        dense: The representation without its weights; without vectors, it has weights of no terms.
        terms: The weights.
    """

    dense: Representation
    terms: _Terms | None

    @classmethod
    def of(cls, encoded: Representation) -> _Leaf:
        vectors, weights = encoded.vectors, encoded.weights
        dense = replace(
            encoded,
            vectors=None if vectors is None else _leaf(vectors),
            weights=weights.new_empty(len(weights), 0) if vectors is None and weights is not None else None,
            extras={name: _leaf(tensor) for name, tensor in encoded.extras.items()},
        )
        return cls(dense, None if weights is None else _Terms.of(weights))

    def pass_gradient_to(self, encoded: Representation, *, always: bool = False) -> None:
        """Back-propagate the loss gradient of these leaves through the same representation, encoded again.

        With `always`, a missing gradient counts as zeros.
        """
        tensors, gradients = [], []
        for tensor, leaf in self._pairs(encoded):
            if tensor.requires_grad and (leaf.grad is not None or always):
                tensors.append(tensor)
                gradients.append(torch.zeros_like(tensor) if leaf.grad is None else leaf.grad.to(tensor.dtype))
        if tensors:
            torch.autograd.backward(tensors, gradients)

    def _pairs(self, encoded: Representation) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the tensors of a representation encoded again, each with its leaf."""
        if self.dense.vectors is not None and encoded.vectors is not None:
            yield encoded.vectors, self.dense.vectors
        if self.terms is not None and encoded.weights is not None:
            yield encoded.weights[self.terms.positions()], self.terms.values
        for name, leaf in self.dense.extras.items():
            yield encoded.extras[name], leaf


def _leaf(tensor: Tensor) -> Tensor:
    """Return the values as a leaf. Copied, since a slice would keep all hidden states in memory."""
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())


@dataclass(frozen=True)
class _Terms:
    """Non-zero entries of a weight matrix (texts, vocabulary), row by row.

    Attributes:
        rows: (n,) int32, rows of the non-zero weights.
        columns: (n,) int32, their columns.
        values: (n,) the non-zero weights; a leaf.
        vocabulary: Number of columns.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor
    vocabulary: int

    @classmethod
    def of(cls, weights: Tensor) -> _Terms:
        rows, columns = weights.detach().nonzero(as_tuple=True)
        values = weights.detach()[rows, columns].requires_grad_()
        return cls(rows.int(), columns.int(), values, weights.shape[1])

    def positions(self) -> tuple[Tensor, Tensor]:
        """Return the rows and columns of the entries."""
        return self.rows.long(), self.columns.long()


def _gathered(chunks: Sequence[Chunk], parts: Sequence[Representation], side: Side) -> Representation:
    """Return the representations of a side in row order."""
    own = [(chunk.rows, part) for chunk, part in zip(chunks, parts, strict=True) if chunk.side == side]
    together = Representation.concatenate([part for _, part in own])
    order = torch.tensor([row for rows, _ in own for row in rows]).argsort()
    return together.rows(to_device(order, together.device))


def _gathered_leaves(chunks: Sequence[Chunk], leaves: Sequence[_Leaf], side: Side) -> Representation:
    """Return the representations of a side in row order, with a graph down to the leaves."""
    together = _gathered(chunks, [leaf.dense for leaf in leaves], side)
    own = [(chunk.rows, leaf.terms) for chunk, leaf in zip(chunks, leaves, strict=True) if chunk.side == side]
    terms = [(rows, part) for rows, part in own if part is not None]
    if not terms:
        return together
    # Weights are written directly to their rows, to avoid a second copy.
    rows = torch.cat([to_device(torch.tensor(rows), part.rows.device)[part.positions()[0]] for rows, part in terms])
    columns = torch.cat([part.positions()[1] for _, part in terms])
    values = torch.cat([part.values for _, part in terms])
    weights = values.new_zeros(len(together), terms[0][1].vocabulary)
    return replace(together, weights=weights.index_put_((rows, columns), values))


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return the states of torch's random generators on the CPU and the device."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _repeat_from(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    """Set the random generators back to a state, to repeat their draws."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
