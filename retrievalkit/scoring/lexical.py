"""Term weights over the vocabulary from token states, without storing the logits of a whole batch.

A vocabulary head computes (batch, tokens, vocabulary) logits; pooling over tokens reduces them to (batch, vocabulary).
The projection of a `VocabularyHead` is fused with its pooling here: logits are computed for a few unmasked tokens at a
time, and recomputed in the backward pass if needed. Between the passes, only the winning token of each term is kept.
Among equal tokens, the first wins and receives the whole gradient. `token_loss` does the same for the cross-entropy of
masked language models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from retrievalkit.contracts import TokenStates, VocabularyHead
from retrievalkit.errors import UnsupportedError

# Logits held at a time. On a CPU, few enough that the allocator keeps their memory (returning it to the system and
# requesting it again takes as long as the product); on a GPU, enough to keep it busy.
CPU_TILE, GPU_TILE = 1 << 21, 1 << 26

UNLABELLED = -100
"""The label of a position without a prediction: torch's default `ignore_index`."""


def text_mask(states: TokenStates) -> Tensor:
    """Return a mask, (batch, tokens) bool: True at text, False at padding and tokens like [CLS] and [SEP]."""
    return states.attention_mask.bool() & ~states.special_mask.bool()


def linear_head(head: Callable[[Tensor], Tensor] | None, width: int, otherwise: str) -> VocabularyHead:
    """Return the projection of a vocabulary head without the layers in front of it: a linear map, as in the papers.

    Args:
        head: The complete head.
        width: Size of the hidden states.
        otherwise: The setting that keeps the complete head, for the error message.

    Raises:
        UnsupportedError: The head has no projection of states of that size.
    """
    if not isinstance(head, VocabularyHead) or head.weight.shape[1] != width:
        msg = (
            "the options select the projection of the vocabulary head, without its other layers, and this model's head "
            f"has no projection of hidden states of size {width}. Set {otherwise}."
        )
        raise UnsupportedError(msg)
    return VocabularyHead(nn.Identity(), head.weight, head.bias)


def max_saturated(hidden: Tensor, head: Callable[[Tensor], Tensor], mask: Tensor) -> Tensor:
    """Pool log-saturated logits (SPLADE-max): w[j] = max over tokens t in the mask of log(1 + relu(z_t[j])).

    Args:
        hidden: (batch, tokens, width) hidden states.
        head: The vocabulary head; the projection of a `VocabularyHead` is fused with the pooling.
        mask: (batch, tokens) bool, True where a token takes part.

    Returns:
        (batch, vocabulary) float32 weights (float64 for float64 states), zeros where no token takes part.
    """
    # log(1 + relu(.)) is monotonic, so the greatest logit has the greatest weight.
    return torch.log1p(torch.relu(_pooled(hidden, head, None, mask)))


def max_weighted_softmax(hidden: Tensor, head: Callable[[Tensor], Tensor], weights: Tensor, mask: Tensor) -> Tensor:
    """Pool weighted word probabilities (Aggretriever): v[j] = max over t in the mask of w_t softmax(z_t)[j].

    Args:
        hidden: (batch, tokens, width) hidden states.
        head: The vocabulary head; the projection of a `VocabularyHead` is fused with the pooling.
        weights: (batch, tokens), a weight per token, of either sign.
        mask: (batch, tokens) bool, True where a token takes part.

    Returns:
        (batch, vocabulary) float32 (float64 for float64 states), zeros where no token takes part.
    """
    return _pooled(hidden, head, weights, mask).masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def keep_top_k(weights: Tensor, k: int) -> Tensor:
    """Keep exactly the k largest weights of each row, the others 0; ties keep the lowest index.

    Args:
        weights: (batch, vocabulary).
        k: Number to keep, at most the size of the vocabulary.

    Returns:
        (batch, vocabulary); dropped weights get no gradient.
    """
    values = weights.detach()
    best = values.topk(k, dim=1).values
    least = best[:, -1:]
    equal, room = values == least, (best == least).sum(dim=1, keepdim=True)
    # Selects what to drop, so that NaN survives and stays visible.
    dropped = (values < least) | (equal & (equal.cumsum(dim=1, dtype=torch.int32) > room))
    return weights.masked_fill(dropped, 0.0)


def _pooled(hidden: Tensor, head: Callable[[Tensor], Tensor], weights: Tensor | None, mask: Tensor) -> Tensor:
    """Pool logits, or weighted probabilities, by the maximum over tokens: (batch, vocabulary); -inf without tokens."""
    if not isinstance(head, VocabularyHead):
        return _greatest(head(hidden), weights, mask)
    if hidden.device.type != "cpu":
        # States at padding may be infinite.
        inner = head.transform(hidden.masked_fill(~mask[:, :, None], 0.0))
        scale = None if weights is None else weights.masked_fill(~mask, 0.0)
        return _greatest_of_texts(inner, head.weight, head.bias, scale, mask)
    scale = None if weights is None else weights[mask]
    inputs = head.transform(hidden[mask]), head.weight, head.bias, scale
    owner, texts = mask.nonzero()[:, 0], len(mask)
    if not (torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)):
        return _maxima(_Projection(_product_dtype(inputs[0]), *inputs[:3]), scale, owner, texts)
    pooled: Tensor = _MaxOfProjection.apply(*inputs, owner, texts)  # type: ignore[no-untyped-call]
    return pooled


def _greatest(logits: Tensor, scale: Tensor | None, mask: Tensor) -> Tensor:
    """Pool (batch, tokens, vocabulary) logits as `_pooled` does: (batch, vocabulary)."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    if scale is not None:
        logits = logits.to(wide).softmax(dim=2) * scale.to(wide)[:, :, None]
    return logits.masked_fill(~mask[:, :, None], float("-inf")).max(dim=1).values.to(wide)


def _maxima(
    projection: _Projection, scale: Tensor | None, owner: Tensor, texts: int, winner: Tensor | None = None
) -> Tensor:
    """Compute `_MaxOfProjection`, (texts, vocabulary); recording the tokens in `winner` takes twice as long."""
    best = projection.states.new_full((texts, len(projection.weight)), float("-inf"), dtype=projection.wide)
    for start in range(0, len(owner), projection.most):
        tokens = slice(start, start + projection.most)
        # The texts of these tokens, and the number of tokens of each.
        owners, counts = (part.tolist() for part in torch.unique_consecutive(owner[tokens], return_counts=True))
        values, first = projection.logits(tokens), tokens.start
        if winner is not None or scale is not None:
            values = values.to(projection.wide)
        if scale is not None:
            values = values.softmax(dim=1).mul_(scale[tokens, None])
        for text, part in zip(owners, values.split_with_sizes(counts), strict=True):
            if winner is None:
                torch.maximum(best[text], part.amax(dim=0), out=best[text])
                continue
            value, token = part.max(dim=0)
            winner[text] = torch.where(value > best[text], token + first, winner[text])
            best[text] = torch.maximum(best[text], value)
            first += len(part)
    return best


class _MaxOfProjection(torch.autograd.Function):
    """The maximum over each text's tokens of z = states @ weight.T + bias, or of scale * softmax(z).

    `states` and `scale` belong to the unmasked tokens, text after text; `owner` maps each token to its text.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, owner: Tensor, texts: int
    ) -> Tensor:
        projection = _Projection(_product_dtype(states), states, weight, bias)
        winner = torch.zeros(texts, len(weight), dtype=torch.long, device=states.device)
        best = _maxima(projection, scale, owner, texts, winner)
        ctx.dtype = projection.dtype
        ctx.save_for_backward(states, weight, bias, scale, winner)
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, winner = ctx.saved_tensors
        needed = ctx.needs_input_grad[:4]
        if inputs[3] is None:
            gradients = _of_logits(gradient, winner, inputs, needed)
        else:
            gradients = _of_weighted(gradient, winner, _Projection(ctx.dtype, *inputs[:3]), inputs, needed)
        pairs = zip(gradients, inputs, strict=True)
        return *(None if own is None else own.to(tensor.dtype) for own, tensor in pairs), None, None


def _greatest_of_texts(
    states: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, mask: Tensor
) -> Tensor:
    """Compute `_pooled` of whole texts: (texts, tokens, inner) states, (texts, tokens) scale and mask.

    On a GPU, projecting padding takes less time than waiting for the number of unmasked tokens. Between the passes only
    the winning tokens are kept; probabilities are computed again.
    """
    dtype = _product_dtype(states)
    states, weight, bias = states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)

    def greatest(states: Tensor, scale: Tensor | None, mask: Tensor) -> Tensor:
        return _greatest(nn.functional.linear(states, weight, bias), scale, mask)

    (texts, tokens), most, rows = mask.shape, _most_tokens(weight), list[Tensor]()
    size = max(1, most // tokens)
    with torch.autocast(states.device.type, enabled=False):
        for first in range(0, texts, size):
            best: Tensor | None = None
            for token in range(0, tokens, most):
                part = slice(first, first + size), slice(token, token + most)
                own = states[part], None if scale is None else scale[part], mask[part]
                if scale is None:
                    tile = greatest(*own)
                else:
                    tile = checkpoint(greatest, *own, use_reentrant=False, preserve_rng_state=False)
                best = tile if best is None else torch.where(tile > best, tile, best)
            assert best is not None
            rows.append(best)
    return torch.cat(rows)


def _of_logits(
    gradient: Tensor, winner: Tensor, inputs: Sequence[Tensor | None], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """Return the gradients of states, weight, bias and scale (none) from the gradient of the greatest logits.

    For each term of a text a single token has a gradient, so these are sums over few entries; a matrix product would
    multiply zeros for all other tokens.
    """
    states, weight, bias, _ = inputs
    assert states is not None
    assert weight is not None
    texts, terms = gradient.nonzero(as_tuple=True)
    tokens, values = winner[texts, terms], gradient[texts, terms]
    return (
        _sums(tokens, len(states), terms, weight, values) if needed[0] else None,
        _sums(terms, len(weight), tokens, states, values) if needed[1] else None,
        gradient.sum(dim=0) if bias is not None and needed[2] else None,
        None,
    )


def _sums(to: Tensor, count: int, rows: Tensor, source: Tensor, values: Tensor) -> Tensor:
    """Add `values` times the rows `rows` of the source to the rows `to` of a matrix of zeros, (count, width)."""
    order, sizes = to.argsort(stable=True), torch.bincount(to, minlength=count)
    starts, weights = sizes.cumsum(dim=0) - sizes, values[order]
    return nn.functional.embedding_bag(
        rows[order], source.to(values.dtype), starts, mode="sum", per_sample_weights=weights
    )


def _of_weighted(
    gradient: Tensor, winner: Tensor, projection: _Projection, inputs: Sequence[Tensor | None], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """Return the gradients of states, weight, bias and scale from the gradient of the greatest scaled probabilities."""
    *sums, of_scale = sums_and_scale = _zeros(inputs, needed, projection.wide)
    scale = inputs[3]
    assert scale is not None
    for tokens, rows, terms, values in _wins(gradient, winner, projection.most):
        probabilities = projection.logits(tokens).to(projection.wide).softmax(dim=1)
        at_logits = torch.zeros_like(probabilities)
        at_logits[rows, terms] = values * probabilities[rows, terms]
        at_scale = at_logits.sum(dim=1)
        at_logits.addcmul_(probabilities, at_scale[:, None], value=-1).mul_(scale[tokens, None])
        if of_scale is not None:
            of_scale[tokens] = at_scale
        projection.back(at_logits, tokens, *sums)
    return sums_and_scale


def _zeros(inputs: Sequence[Tensor | None], needed: Sequence[bool], dtype: torch.dtype) -> list[Tensor | None]:
    """Create zeros to accumulate the gradients in; None for inputs that need no gradient."""
    return [
        torch.zeros_like(tensor, dtype=dtype) if tensor is not None and gradient else None
        for tensor, gradient in zip(inputs, needed, strict=False)
    ]


class _Projection:
    """The projection of hidden states to logits, a few tokens at a time; products are in `dtype`, sums in `wide`."""

    def __init__(self, dtype: torch.dtype, states: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.dtype, self.wide = dtype, torch.promote_types(dtype, torch.float32)
        self.states, self.weight = states.to(dtype), weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)
        self.most = _most_tokens(weight)

    def logits(self, tokens: slice | Tensor) -> Tensor:
        """Return the logits, (tokens, vocabulary), in the product's `dtype`."""
        return nn.functional.linear(self.states[tokens], self.weight, self.bias)

    def back(
        self,
        at_logits: Tensor,
        tokens: slice | Tensor,
        to_states: Tensor | None,
        to_weight: Tensor | None,
        to_bias: Tensor | None,
    ) -> None:
        """Add the gradient at the logits of some tokens to the requested gradients."""
        if to_bias is not None:
            to_bias += at_logits.sum(dim=0)
        at_logits = at_logits.to(self.dtype)
        if to_states is not None:
            to_states[tokens] = (at_logits @ self.weight).to(self.wide)
        if to_weight is not None and self.dtype == self.wide:
            to_weight.addmm_(at_logits.T, self.states[tokens])  # without a temporary as large as the weight
        elif to_weight is not None:
            to_weight += (at_logits.T @ self.states[tokens]).to(self.wide)


def _wins(gradient: Tensor, winner: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield the entries that have a gradient, grouped by the token that receives it.

    Yields:
        (n,) tokens, n at most `most`; and for each of their entries: position among the n, term and gradient.
    """
    for first in range(0, len(gradient), most):
        part = gradient[first : first + most]
        texts, terms = part.nonzero(as_tuple=True)
        winners, order = winner[first : first + most][texts, terms].sort(stable=True)
        tokens, rows = torch.unique_consecutive(winners, return_inverse=True)
        sizes = torch.bincount(rows // most, minlength=1).tolist()
        entries = (rows % most, terms[order], part[texts, terms][order])
        yield from zip(tokens.split(most), *(entry.split_with_sizes(sizes) for entry in entries), strict=True)


def _most_tokens(weight: Tensor) -> int:
    """Return the number of tokens to project at a time, a multiple of the size that processors multiply."""
    return max(64, (CPU_TILE if weight.device.type == "cpu" else GPU_TILE) // len(weight) // 64 * 64)


def _product_dtype(states: Tensor) -> torch.dtype:
    """Return the number format that a linear layer would multiply in."""
    device = states.device.type
    if torch.is_autocast_enabled(device) and states.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return states.dtype


# As above, for the loss: each tile adds to the gradient of the whole weight, so fewer tiles are faster.
CPU_LOSS_TILE, GPU_LOSS_TILE = 1 << 24, 1 << 25


def token_loss(hidden: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the labelled tokens (masked language modelling).

    Logits are computed for labelled positions only, a few at a time, with their gradient, in the forward pass.

    Args:
        hidden: (batch, tokens, width) hidden states.
        head: The vocabulary head; the projection of a `VocabularyHead` is fused with the loss.
        labels: (batch, tokens) long: the token to predict at each position, or `UNLABELLED`.

    Returns:
        A scalar, float32 (float64 for float64 states); 0 if no token is labelled.
    """
    return token_losses(head, {"": (hidden, labels)})[""]


def token_losses(head: Callable[[Tensor], Tensor], predicted: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Compute `token_loss` for several (hidden, labels) by name, with a single GPU synchronisation."""
    masks = {id(labels): (labels != UNLABELLED).flatten() for _, labels in predicted.values()}
    counts = torch.stack([mask.sum() for mask in masks.values()]).tolist()
    places = {key: _true(mask, count) for (key, mask), count in zip(masks.items(), counts, strict=True)}
    return {name: _loss_at(places[id(labels)], hidden, head, labels) for name, (hidden, labels) in predicted.items()}


def _true(mask: Tensor, count: int) -> Tensor:
    """Return the positions of the `count` true values."""
    numbers = (mask.cumsum(dim=0) - 1).masked_fill(~mask, count)  # false values share a place behind the others
    places = torch.arange(len(mask), device=mask.device)
    return places.new_zeros(count + 1).scatter_(0, numbers, places)[:count]


def _loss_at(places: Tensor, hidden: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor) -> Tensor:
    states, targets = hidden.flatten(0, 1)[places], labels.flatten()[places]  # (n, width), (n,)
    if not len(targets):
        return hidden.sum() * 0.0
    if not isinstance(head, VocabularyHead):
        logits = head(states)
        return nn.functional.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)
    loss: Tensor = _Projected.apply(head.transform(states), head.weight, head.bias, targets)  # type: ignore[no-untyped-call]
    return loss


class _Projected(torch.autograd.Function):
    """Mean over rows of logsumexp(W x + b) - (W x + b)[target]."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        device, exact = states.device.type, torch.promote_types(states.dtype, torch.float32)
        computed = _product_dtype(states)  # as autocast would choose, once for all tiles
        tile = max(1, (CPU_LOSS_TILE if device == "cpu" else GPU_LOSS_TILE) // len(weight))
        inputs = (states, weight, bias)
        gradients = _zeros(inputs, ctx.needs_input_grad, exact)
        total = states.new_zeros((), dtype=exact)
        with torch.autocast(device, enabled=False):
            projection = _Projection(computed, states, weight, None)
            for start in range(0, len(states), tile):
                part = slice(start, start + tile)
                logits = projection.logits(part).to(exact)  # (tile, vocabulary)
                logits = logits if bias is None else logits.add_(bias)
                log_probabilities = logits.log_softmax(dim=1)
                total -= log_probabilities.gather(1, targets[part, None]).sum()
                if any(ctx.needs_input_grad):
                    # Of the sum: the gradient of the mean has small values, which would underflow in half precision.
                    at_logits = log_probabilities.exp_()
                    at_logits[torch.arange(len(at_logits), device=states.device), targets[part]] -= 1.0
                    projection.back(at_logits, part, *gradients)
        ctx.save_for_backward(*gradients)
        ctx.rows, ctx.dtypes = len(states), [None if tensor is None else tensor.dtype for tensor in inputs]
        return total / len(states)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [
            None if gradient is None else (gradient * (of_loss / ctx.rows)).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*gradients, None)
