"""The contrastive loss (InfoNCE): each query's positive against in-batch negatives."""

from __future__ import annotations

import torch
from pydantic import PositiveFloat
from torch import Tensor

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.scoring import cross_entropy_in_batch, scores


class Contrastive(Loss):
    """InfoNCE with in-batch negatives: cross entropy of each query's scores, with its positive as the target.

        L = mean over queries q of  log sum over documents d of exp(score(q, d) / t)  -  score(q, positive of q) / t

        rkit train --pooler mean --set pooler.normalize=true --loss contrastive --set loss.temperature=0.02 ...

    The loss of DPR (Karpukhin et al. 2020) and, with cosines, of supervised SimCSE (Gao et al. 2021) and E5; also known
    as multiple negatives ranking loss. The negatives of a query are all other documents of the batch (its own hard
    negatives, and the positives and hard negatives of other queries), except those that `ignore` masks. Documents with
    several vectors, and weights, are compared by the scoring rule. If the pooler keeps a single vector for the index,
    the loss trains that vector.

    Args:
        temperature: t, divides the scores. A larger t spreads the gradient over all negatives, a smaller t concentrates
            it on the hardest. None = 0.05 for a pooler whose scores are cosines, else 1.
    """

    def __init__(self, *, temperature: PositiveFloat | None = None) -> None:
        super().__init__()
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
        """Compute the loss of a batch, in float32 under autocast too."""
        with torch.autocast(queries.device.type, enabled=False):
            logits = scores(queries.float(), documents.as_indexed().float()) / self.temperature  # (Q, D)
            total = cross_entropy_in_batch(logits, positives, ignore)
        return LossValue(total, {"contrastive": total.detach()})
