"""Random states, weights and a bias that both sides pool vocabulary logits of, and the gradients that come of it."""

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
        """Draw them, the same in every process."""
        torch.manual_seed(0)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        shapes = {(texts, tokens, width): 1.0, (terms, width): 0.05, (terms,): 0.05, (texts, tokens): 1.0}
        drawn = [(torch.randn(shape) * scale).to(device).requires_grad_() for shape, scale in shapes.items()]
        return cls(*drawn, torch.ones(texts, tokens, dtype=torch.bool, device=device))

    def gradients(self, pooled: Tensor) -> Any:
        """A row of the gradient with regard to the states for each text; every output has a gradient of its own."""
        loss = (pooled * torch.linspace(-1, 1, pooled.numel(), device=pooled.device).view_as(pooled)).sum()
        leaves = [self.hidden, self.weight, self.bias, self.token_weights]
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        if found[0].is_cuda:
            torch.cuda.synchronize()
        return lambda: np.asarray(found[0].flatten(1).cpu())


def slices(pooled: Tensor) -> Tensor:
    """(texts, SLICES): the maximum of every SLICES-th term, what is left over dropped."""
    deep = pooled.shape[1] // SLICES
    return pooled[:, : deep * SLICES].unflatten(1, (deep, SLICES)).amax(dim=1)


def identity() -> torch.nn.Module:
    """A head without a layer before the product."""
    return torch.nn.Identity()
