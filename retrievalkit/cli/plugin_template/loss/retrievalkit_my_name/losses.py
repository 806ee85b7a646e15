"""The loss `my_name`: from the representations of a batch to a number to minimise."""

import torch
from torch import Tensor, nn

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.score import scores


class MyName(Loss):
    """Cross-entropy of the positive among all documents of the batch.

    Args:
        temperature: Scores are divided by this.
    """

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> LossValue:
        """The mean over the queries."""
        logits = scores(queries, documents).float() / self.temperature  # (Q, D)
        if ignore is not None:
            logits = logits.masked_fill(ignore, -torch.inf)
        return LossValue(nn.functional.cross_entropy(logits, positives))
