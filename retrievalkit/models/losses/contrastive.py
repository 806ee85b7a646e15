"""The contrastive loss (InfoNCE): each query's positive against all other documents of the batch."""

from __future__ import annotations

import torch
from pydantic import PositiveFloat
from torch import Tensor

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.scoring import cross_entropy_in_batch, scores


class Contrastive(Loss):
    """Cross entropy of each query's scores, divided by a temperature, with its positive as the target.

        L = mean over queries q of  log sum over documents d of exp(score(q, d) / t)  -  score(q, positive of q) / t

    The negatives of a query are all other documents of the batch: its own hard negatives, those of the other queries
    and their positives, except what `ignore` masks. With documents of several vectors this is the multi-vector loss,
    with weights the lexical one: the scoring rule decides. If a pooler keeps one of its vectors for the index, that
    vector is trained.

    Args:
        temperature: Divides the scores; None = 0.05 for a pooler whose scores are cosines, else 1.
    """

    def __init__(self, *, temperature: PositiveFloat | None = None) -> None:
        super().__init__()
        self.temperature = temperature or 1.0

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,  # noqa: ARG002 - required by the contract
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,  # noqa: ARG002 - required by the contract
    ) -> LossValue:
        """The loss of a batch, computed in float32 under autocast too."""
        with torch.autocast(queries.device.type, enabled=False):
            logits = scores(queries.float(), documents.as_indexed().float()) / self.temperature  # (Q, D)
            total = cross_entropy_in_batch(logits, positives, ignore)
        return LossValue(total, {"contrastive": total.detach()})
