"""Regularisers that keep weights over a vocabulary sparse, and their schedules.

FLOPS (Paria et al. 2020) of a batch of N texts with weights x is a smooth relaxation of the expected number of
multiplications in an inverted index. It penalises terms that occur in many texts:

    FLOPS = sum over terms j of (mean over texts i of |x_ij|)^2
    L1    = mean over texts i of sum over terms j of |x_ij|

Each side has its own weight lambda, either constant or increasing as in SPLADE: lambda (t / T)^2 at step t, and lambda
from step T on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from retrievalkit.contracts import Representation

Schedule = Literal["constant", "quadratic"]
Norm = Literal["flops", "l1"]
STEPS = 50_000
"""Steps until the quadratic schedule reaches its full weight, as in SPLADE."""


def flops(weights: Tensor) -> Tensor:
    """Sum the squared mean weights of all terms; `weights` is (batch, vocabulary)."""
    return weights.abs().mean(dim=0).square().sum()


def l1(weights: Tensor) -> Tensor:
    """Average the sum of a text's weights over texts; `weights` is (batch, vocabulary)."""
    return weights.abs().sum(dim=1).mean()


NORMS: dict[Norm, Callable[[Tensor], Tensor]] = {"flops": flops, "l1": l1}


@dataclass(frozen=True)
class Sparsity:
    """Regulariser of both sides, as configured by a loss's options.

    Attributes:
        query: Lambda of the queries.
        document: Lambda of the documents.
        query_norm: Norm of the queries' weights; documents always use FLOPS.
        schedule: Change of the lambdas over the steps.
        steps: T of the quadratic schedule.
    """

    query: float
    document: float
    query_norm: Norm
    schedule: Schedule
    steps: int

    def rise(self, step: int) -> float:
        """Return the fraction of the lambdas in effect at a step, counted from 0."""
        return 1.0 if self.schedule == "constant" else (min(step, self.steps) / self.steps) ** 2

    def terms(self, queries: Representation, documents: Representation) -> dict[str, Tensor]:
        """Return the two norms before weighting; 0 for a side without weights."""
        return {
            f"{self.query_norm}_query": _norm(NORMS[self.query_norm], queries),
            "flops_document": _norm(flops, documents),
        }

    def total(self, terms: dict[str, Tensor], step: int) -> Tensor:
        """Return the weighted sum of `terms` at a step."""
        query, document = terms.values()
        return self.rise(step) * (self.query * query + self.document * document)


def _norm(norm: Callable[[Tensor], Tensor], side: Representation) -> Tensor:
    if side.weights is not None:
        return norm(side.weights)
    assert side.vectors is not None
    return side.vectors.new_zeros(())
