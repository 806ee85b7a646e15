"""Distillation by margins: the student sets positive and negative as far apart as the teacher does.

Hofstätter et al. 2020, "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation".
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from retrievalkit.builtin.losses.distillation import Distillation


class MarginMSE(Distillation):
    """Mean squared error of the margins between a query's positive and its negatives.

        L = mean over pairs (q, d-) of  ((s(q, d+) - s(q, d-)) / t  -  (teacher(q, d+) - teacher(q, d-)) / T)^2
            +  c L_contrastive

    The pairs are those of each query with its own negatives, where the teacher scored both them and the positive.

    Args:
        temperature: t; the student's scores are divided by it, in the contrastive term too. Cosines, which cannot be
            more than 2 apart, want one below 1 for a re-ranker's margins of about 10.
        teacher_temperature: T; the teacher's scores are divided by it.
        contrastive: c, the weight of the contrastive loss over all documents of the batch, which is added; 0 = none.
    """

    name = "margin_mse"

    def distance(self, student: Tensor, teacher: Tensor, positives: Tensor) -> Tensor:
        """The mean squared error over all pairs of the batch."""
        wanted = _margins(teacher, positives)
        pairs = ~wanted.isnan().scatter(1, positives[:, None], True)  # (Q, D)
        errors = functional.mse_loss(_margins(student, positives)[pairs], wanted[pairs], reduction="sum")
        # 0 where a step has no pair, which may be where not all negatives were scored.
        return errors / pairs.sum().clamp(min=1)


def _margins(scores: Tensor, positives: Tensor) -> Tensor:
    """(Q, D): how far the positive's score is above each document's."""
    return scores.gather(1, positives[:, None]) - scores
