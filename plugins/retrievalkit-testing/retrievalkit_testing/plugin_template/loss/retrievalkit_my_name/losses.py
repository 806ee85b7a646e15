"""The loss `my_name`: computes a scalar to minimise from the representations of a batch."""

import torch
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.scoring import scores
from torch import Tensor, nn


class MyName(Loss):
    """In-batch negatives (InfoNCE): cross-entropy of each query's positive among all documents of the batch.

    Args:
        temperature: Divides the scores.
    """

    # Keyword-only arguments are the options: typed, documented above, set by --set loss.temperature=0.05.
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
        """The mean loss over the queries."""
        # Sums over many scores need float32, also under autocast.
        with torch.autocast(queries.device.type, enabled=False):
            # as_indexed: train the same vectors that search compares.
            logits = scores(queries.float(), documents.as_indexed().float()) / self.temperature  # (Q, D)
            # Known positives and duplicates are not negatives.
            if ignore is not None:
                logits = logits.masked_fill(ignore, -torch.inf)
            return LossValue(nn.functional.cross_entropy(logits, positives))
