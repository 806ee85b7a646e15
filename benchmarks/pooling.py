"""Random states, weights and a bias, from which both sides pool vocabulary logits, and the gradients of the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOP_K, SLICES = 768, 1280


@dataclass
class Inputs:
    """Hidden states (texts, tokens, width), the head's weight and bias, token weights, and a mask that is all True."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor
    token_weights: Tensor
    mask: Tensor

    @classmethod
    def random(cls, texts: int, tokens: int, terms: int, width: int) -> Inputs:
        """Draw the inputs, equally in every process."""
        torch.manual_seed(0)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        shapes = {(texts, tokens, width): 1.0, (terms, width): 0.05, (terms,): 0.05, (texts, tokens): 1.0}
        drawn = [(torch.randn(shape) * scale).to(device).requires_grad_() for shape, scale in shapes.items()]
        return cls(*drawn, torch.ones(texts, tokens, dtype=torch.bool, device=device))

    def gradients(self, pooled: Tensor) -> Any:
        """The gradient with respect to the states, a row per text; every output has a different gradient."""
        loss = (pooled * torch.linspace(-1, 1, pooled.numel(), device=pooled.device).view_as(pooled)).sum()
        leaves = [self.hidden, self.weight, self.bias, self.token_weights]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        if gradients[0].is_cuda:
            torch.cuda.synchronize()
        return lambda: np.asarray(gradients[0].flatten(1).cpu())


def slices(pooled: Tensor) -> Tensor:
    """(texts, SLICES): the maximum over every SLICES-th term; the remaining terms are dropped."""
    deep = pooled.shape[1] // SLICES
    return pooled[:, : deep * SLICES].unflatten(1, (deep, SLICES)).amax(dim=1)


def identity() -> torch.nn.Module:
    """A vocabulary head without layers before the projection."""
    return torch.nn.Identity()
