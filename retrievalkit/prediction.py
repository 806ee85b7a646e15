"""Predicting tokens: the cross-entropy of a vocabulary head, without ever holding the logits of a whole batch.

Logits are made only of positions that have a label, a few at a time; their gradient is taken at once, in the forward
pass, so that no logits are kept for the backward pass or made again in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from retrievalkit.contracts import VocabularyHead
from retrievalkit.data.masking import UNLABELLED

# Logits held at a time: few enough for the caches of a CPU's allocator, enough to keep a GPU busy.
CPU_TILE, GPU_TILE = 1 << 22, 1 << 25


def token_loss(hidden: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor) -> Tensor:
    """The mean cross-entropy of the tokens that are to be predicted.

    Args:
        hidden: (batch, tokens, width) hidden states.
        head: The vocabulary head; the projection of a `VocabularyHead` is fused with the loss.
        labels: (batch, tokens) long: the token to be predicted at a position, or `UNLABELLED`.

    Returns:
        A scalar, float32 (float64 of float64 states); 0 where nothing is to be predicted.
    """
    rows = labels != UNLABELLED
    states, targets = hidden[rows], labels[rows]  # (n, width), (n,)
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
        # As autocast would, but the weight is converted once.
        computed = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        tile = max(1, (CPU_TILE if device == "cpu" else GPU_TILE) // len(weight))
        wanted = (states, weight, bias)
        gradients = [
            torch.zeros_like(one, dtype=exact) if one is not None and needed else None
            for one, needed in zip(wanted, ctx.needs_input_grad, strict=False)
        ]
        total = states.new_zeros((), dtype=exact)
        with torch.autocast(device, enabled=False):
            rows, matrix = states.to(computed), weight.to(computed)
            for start in range(0, len(rows), tile):
                part = slice(start, start + tile)
                logits = (rows[part] @ matrix.T).to(exact)  # (tile, vocabulary)
                logits = logits if bias is None else logits.add_(bias)
                chances = logits.log_softmax(dim=1)
                total -= chances.gather(1, targets[part, None]).sum()
                if any(ctx.needs_input_grad):
                    _add_gradients(gradients, part, chances, rows[part], matrix, targets[part])
        ctx.save_for_backward(*gradients)
        ctx.rows, ctx.kinds = len(rows), [None if one is None else one.dtype for one in wanted]
        return total / len(rows)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor | None, ...]:
        found = [
            None if gradient is None else (gradient * (of_loss / ctx.rows)).to(kind)
            for gradient, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
        ]
        return (*found, None)


def _add_gradients(
    gradients: list[Tensor | None], part: slice, chances: Tensor, rows: Tensor, matrix: Tensor, targets: Tensor
) -> None:
    """Add what some rows bring to the gradient of the sum over rows; `chances` (log-probabilities) are used up.

    Not of the mean, whose small numbers would vanish in half precision.
    """
    of_states, of_weight, of_bias = gradients
    of_logits = chances.exp_()  # (tile, vocabulary)
    of_logits[torch.arange(len(targets), device=targets.device), targets] -= 1.0
    if of_bias is not None:
        of_bias += of_logits.sum(dim=0)
    of_logits = of_logits.to(rows.dtype)
    if of_states is not None:
        of_states[part] = of_logits @ matrix
    if of_weight is not None and of_logits.dtype == of_weight.dtype:
        of_weight.addmm_(of_logits.T, rows)  # without a product as large as the weight
    elif of_weight is not None:
        of_weight += of_logits.T @ rows
