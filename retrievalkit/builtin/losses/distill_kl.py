"""Distillation by the Kullback-Leibler divergence: the student ranks a query's passages as the teacher does.

Used by CoT-MAE v2, LexMAE and many others, with a re-ranker as the teacher.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional

from retrievalkit.builtin.losses.distillation import Distillation


class DistillKL(Distillation):
    """Divergence of the student's distribution over a query's own passages from the teacher's.

        L = mean over queries of  KL(softmax(teacher scores / T) || softmax(student scores / t))  +  c L_contrastive

    or with the two distributions exchanged. They cover the passages of the query that the teacher scored. A query with
    fewer than two of them counts as 0 in the mean.

    Args:
        temperature: t; the student's scores are divided by it, in the contrastive term too.
        teacher_temperature: T; the teacher's scores are divided by it.
        contrastive: c, the weight of the contrastive loss over all documents of the batch: 0 in CoT-MAE v2's paper, 1
            by default in its code, 0.2 in LexMAE.
        scale: Whether the divergence is multiplied by t squared, so that t leaves the size of its gradient as it is
            (Hinton et al. 2015; LexMAE).
        direction: "teacher_to_student" is KL(teacher || student), as in the code of CoT-MAE v2's authors and in LexMAE;
            "student_to_teacher" is KL(student || teacher), as CoT-MAE v2's Eq. 16 is printed.
    """

    name = "distill_kl"

    def __init__(
        self,
        *,
        temperature: PositiveFloat = 1.0,
        teacher_temperature: PositiveFloat = 1.0,
        contrastive: NonNegativeFloat = 0.0,
        scale: bool = False,
        direction: Literal["teacher_to_student", "student_to_teacher"] = "teacher_to_student",
    ) -> None:
        super().__init__(temperature=temperature, teacher_temperature=teacher_temperature, contrastive=contrastive)
        self.scale = scale
        self.reverse = direction == "student_to_teacher"

    def distance(self, student: Tensor, teacher: Tensor, positives: Tensor) -> Tensor:  # noqa: ARG002 - a passage like any
        """The divergence, summed over passages, mean over all queries."""
        scored = ~teacher.isnan()
        rows = scored.sum(dim=1) >= 2  # (Q,)
        unscored = ~scored[rows]
        student, teacher = _log_softmax(student[rows], unscored), _log_softmax(teacher[rows], unscored)
        # The divergence of the first from the second.
        pair = (teacher, student) if self.reverse else (student, teacher)
        divergence = functional.kl_div(*pair, reduction="sum", log_target=True) / len(rows)
        return divergence * self.temperature**2 if self.scale else divergence


def _log_softmax(scores: Tensor, unscored: Tensor) -> Tensor:
    """The log-softmax over the scored passages; 0 at the others, where both distributions then agree."""
    return scores.masked_fill(unscored, float("-inf")).log_softmax(dim=1).masked_fill(unscored, 0.0)
