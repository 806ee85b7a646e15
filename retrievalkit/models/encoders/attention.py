"""Fast attention with dropout on a CPU, where torch's fused attention has no dropout.

In bf16 a few texts are computed at a time, whose attention weights stay in the processor's caches through all
operations. The backward pass needs a single bf16 tensor, and the places in the stored dropout decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from retrievalkit.models.encoders.dropout import Dropped, drop, keep_scale, places

ATTENTION = "retrievalkit_cpu"

# Attention weights to compute together: two bf16 tensors of this size fit in a second-level cache.
_GROUP = 1 << 19


def use_fast_attention(model: nn.Module) -> None:
    """Replace torch's fused attention if a model uses it."""
    configuration: Any = getattr(model, "config", None)
    if getattr(configuration, "_attn_implementation", None) == "sdpa":
        import transformers

        transformers.AttentionInterface.register(ATTENTION, attention)
        transformers.AttentionMaskInterface.register(ATTENTION, mask)
        configuration._attn_implementation = ATTENTION


def mask(*arguments: Any, **options: Any) -> Tensor | None:
    """Return transformers' mask; on a GPU without reading the padding, which would wait for the device."""
    from transformers.masking_utils import sdpa_mask

    padding: Tensor | None = options.get("attention_mask")
    text = None
    if padding is not None and padding.device.type == "cuda":
        text = padding[:, None, None, :].bool()  # (batch, 1, 1, tokens)
        options |= {"attention_mask": None, "allow_is_causal_skip": False}
    pattern: Tensor | None = sdpa_mask(*arguments, **options)  # None = all
    return text if pattern is None else pattern if text is None else pattern & text


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention, with the signature of transformers: torch's fused attention, or ours for dropout on a CPU.

    Args:
        module: The attention layer.
        query: (batch, heads, tokens, width of a head).
        key: The same shape.
        value: The same shape.
        attention_mask: (batch, 1 or heads, tokens, tokens), bool with True = attend, or additive; None = no mask.
        dropout: Probability of dropping an attention weight.
        scaling: Factor of the inner products; None = 1 / sqrt(width).
        **options: Other arguments that transformers passes.

    Returns:
        (batch, tokens, heads, width of a head), and None for the weights.
    """
    # Grouped heads, causal masks without a tensor and position biases (T5) are left to transformers.
    biased = options.get("position_bias") is not None
    plain = key.shape[1] == query.shape[1] and not getattr(module, "is_causal", False) and not biased
    if not dropout or query.device.type != "cpu" or not plain:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.dtype == torch.bfloat16 and dropout < 1.0:
        bias = None if attention_mask is None else _bias(attention_mask, query.dtype)
        attended: Tensor = _DroppedAttention.apply(query * scale, key, value, bias, dropout)  # type: ignore[no-untyped-call]
        return attended.transpose(1, 2), None
    scores = (query * scale) @ key.transpose(-1, -2)  # (batch, heads, tokens, tokens)
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            attention_mask = _bias(attention_mask, scores.dtype)
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1)
    # Scale the smaller tensor.
    weights = Dropped.apply(weights, dropout, 1.0)  # type: ignore[no-untyped-call]
    return ((weights @ value) * keep_scale(dropout)).transpose(1, 2).contiguous(), None


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.stride(2) == 0:
        mask = mask[:, :, :1]  # the same row for all queries
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    # Finite: a query in the padding may have no key in its window (ModernBERT), and -inf alone has no softmax.
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


class _DroppedAttention(torch.autograd.Function):
    """softmax(query key' + bias) with dropout, times value, in bf16; the query is scaled.

    With weights P, kept weights K = P * kept / (1 - p), output O = K V and its gradient dO:

        dV = K' dO   dP = (dO V') * kept / (1 - p)   dS = P * (dP - sum(dP * P))   dQ = dS key   dK = dS' query
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, probability: float) -> Tensor:
        """Return the outputs (batch, heads, tokens, width)."""
        # Products of contiguous tensors are twice as fast.
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        out, kept, masks = torch.empty_like(value), [], []
        for rows in _groups(query, key):
            weights = torch.matmul(query[rows], key[rows].transpose(-1, -2))  # (texts, heads, tokens, tokens)
            if bias is not None:
                weights += bias[rows]
            torch.ops.aten._softmax.out(weights, -1, False, out=weights)
            masks.append(places(weights.numel()))
            torch.matmul(drop(weights, probability, masks[-1]), value[rows], out=out[rows])
            kept.append(weights)
        ctx.probability, ctx.masks = probability, masks
        ctx.save_for_backward(query, key, value, *kept)
        return out.mul_(keep_scale(probability))

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value."""
        query, key, value, *kept = ctx.saved_tensors
        gradient = gradient.contiguous() * keep_scale(ctx.probability)
        gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        for rows, weights, mask in zip(_groups(query, key), kept, ctx.masks, strict=True):
            remaining = drop(weights, ctx.probability, mask)
            torch.matmul(remaining.transpose(-1, -2), gradient[rows], out=gradients[2][rows])
            of_weights = torch.matmul(gradient[rows], value[rows].transpose(-1, -2))
            drop(of_weights, ctx.probability, mask, out=of_weights)
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            torch.matmul(of_scores, key[rows], out=gradients[0][rows])
            torch.matmul(of_scores.transpose(-1, -2), query[rows], out=gradients[1][rows])
        return *gradients, None, None


def _groups(query: Tensor, key: Tensor) -> Iterator[slice]:
    """Yield slices of texts whose attention weights fit in the cache."""
    texts, heads, tokens, _ = query.shape
    size = max(1, _GROUP // (heads * tokens * key.shape[2]))
    return (slice(first, min(first + size, texts)) for first in range(0, texts, size))
