"""Aggretriever's loss: the contrastive loss of the whole vectors, plus the losses of their parts.

With S the scores of all queries with all documents, and S_p the scores computed from part p of the vectors alone,

    L = CE(S) + lambda ( CE(S_cls) + CE(S_agg) )

where CE is the cross entropy with each query's positive as the target. Each part learns to rank by itself, without
relying on the other. With a single part this is the plain contrastive loss.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import cross_entropy_in_batch, scores


class Aggretriever(Loss):
    """Aggretriever's loss: InfoNCE with in-batch negatives of the whole vectors, plus the same loss of each part.

    From Lin et al. 2023, for poolers that name the parts of their vectors (`Representation.parts`):
    `rkit train --pooler aggretriever`. If a document has several vectors, the best counts, in each part separately.

    Args:
        part_weight: Lambda, the weight of each part's loss: larger makes each part rank well by itself. The loss of the
            whole vector has weight 1. The paper: 0.5.
        temperature: Divides the scores in all terms: larger gives easier negatives more of the gradient; None = 0.05
            for a pooler whose scores are cosines, else 1.
    """

    def __init__(self, *, part_weight: NonNegativeFloat = 0.5, temperature: PositiveFloat | None = None) -> None:
        super().__init__()
        self.part_weight = part_weight
        self.temperature = temperature or 1.0

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,  # noqa: ARG002 - by contract
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,  # noqa: ARG002 - by contract
    ) -> LossValue:
        """Compute the loss of a batch, in float32 also under autocast."""
        parts = queries.parts
        if queries.vectors is None or not parts or parts != documents.parts:
            msg = (
                "loss 'aggretriever' needs vectors with parts, but this pooler's vectors have none. "
                "Choose --pooler aggretriever, or --loss contrastive."
            )
            raise UnsupportedError(msg)
        with torch.autocast(queries.device.type, enabled=False):
            both = queries.float(), documents.as_indexed().float()
            total = cross_entropy_in_batch(scores(*both) / self.temperature, positives, ignore)
            terms = {"contrastive": total.detach()}
            for name, columns in parts.items() if len(parts) > 1 else ():
                sides = [
                    Representation(side.vectors[:, :, columns], side.vector_mask)
                    for side in both
                    if side.vectors is not None
                ]
                of_part = cross_entropy_in_batch(scores(*sides) / self.temperature, positives, ignore)
                total = total + self.part_weight * of_part
                terms[name] = of_part.detach()
        return LossValue(total, terms)
