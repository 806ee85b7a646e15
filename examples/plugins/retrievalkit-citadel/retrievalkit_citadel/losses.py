"""CITADEL's loss: trains vectors and router to retrieve, and the router to use all keys.

CE is the contrastive loss over in-batch negatives, s the score of the vectors, and w(q), w(d) the largest weight of
each key over the tokens of a text:

    L = CE(s(q, d))  +  CE(<w(q), w(d)>)  +  lambda (B(queries) + B(documents))
    B = sum over keys e of (mean over texts of w_e)^2
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.scoring import cross_entropy_in_batch, scores


class Citadel(Loss):
    """CITADEL: InfoNCE with in-batch negatives over the vectors and over the router's weights, and load balancing.

    For a pooler that computes vectors and weights: `rkit train --pooler citadel`.

    Args:
        temperature: Divides the scores; None = 0.05 for a pooler whose scores are cosines, else 1.
        balance: Lambda: a larger value spreads the tokens over more keys, with fewer keys per text.
    """

    def __init__(self, *, temperature: PositiveFloat | None = None, balance: NonNegativeFloat = 0.01) -> None:
        super().__init__()
        self.temperature = temperature or 1.0
        self.balance = balance

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,  # noqa: ARG002 - by contract
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,  # noqa: ARG002 - by contract
    ) -> LossValue:
        """Compute the loss of a batch, in float32 under autocast too."""
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = queries.float(), documents.as_indexed().float()
            logits = {}
            if queries.vectors is not None:
                logits["vectors"] = scores(replace(queries, weights=None), replace(documents, weights=None))
            # In eval mode there are no weights of the router: on held-out questions, this is the loss of the vectors.
            weights = [side.weights for side in (queries, documents) if side.weights is not None]
            if weights:
                logits["router"] = scores(*(Representation(weights=side) for side in weights))
            terms = {
                name: cross_entropy_in_batch(part / self.temperature, positives, ignore)
                for name, part in logits.items()
            }
            if weights:
                terms["balance"] = torch.stack([side.mean(dim=0).square().sum() for side in weights]).sum()
        return LossValue.weighted(terms, {"balance": self.balance})
