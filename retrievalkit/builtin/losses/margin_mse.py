"""Distillation by margins: the student learns the teacher's difference between positive and negative.

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

    A pair is a query with one of its own negatives, if the teacher scored both that negative and the positive.

    Args:
        temperature: t; divides the student's scores, in the contrastive term too. Cosines, which differ by at most 2,
            need a value below 1 to reach a re-ranker's margins of about 10.
        teacher_temperature: T; the teacher's scores are divided by it.
        contrastive: c, the weight of the contrastive loss over all documents of the batch, which is added; 0 = none.
    """

    name = "margin_mse"

    def distance(self, student: Tensor, teacher: Tensor, positives: Tensor) -> Tensor:
        """The mean squared error over all pairs of the batch."""
        wanted = _margins(teacher, positives)
        pairs = ~wanted.isnan().scatter(1, positives[:, None], True)  # (Q, D)
        errors = functional.mse_loss(_margins(student, positives)[pairs], wanted[pairs], reduction="sum")
        # A step may lack pairs if not all negatives were scored; its loss is then 0.
        return errors / pairs.sum().clamp(min=1)


def _margins(scores: Tensor, positives: Tensor) -> Tensor:
    """(Q, D): how far the positive's score is above each document's."""
    return scores.gather(1, positives[:, None]) - scores
