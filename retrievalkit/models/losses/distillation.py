"""Knowledge distillation from a teacher's scores (`distill_kl`, `margin_mse`), with an optional contrastive term."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import DataError
from retrievalkit.scoring import cross_entropy_in_batch, scores


class Distillation(Loss):
    """Knowledge distillation: trains the student's scores to match a teacher's; subclasses define the distance.

    Only passages that the teacher scored for the query count: the query's own positive and hard negatives. Passages
    masked by `ignore` stay in this term, since the teacher scored their relevance, and are masked in the contrastive
    term. Options mean the same in each subclass.
    """

    needs_teacher = True
    name: str
    """The registered name, for the log and for error messages."""

    def __init__(
        self,
        *,
        temperature: PositiveFloat | None = None,
        teacher_temperature: PositiveFloat = 1.0,
        contrastive: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature or 1.0
        self.teacher_temperature = teacher_temperature
        self.contrastive = contrastive

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,  # noqa: ARG002 - by contract
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> LossValue:
        """Compute the loss of a batch, in float32 under autocast too."""
        if teacher is None or bool(teacher.isnan().all()):
            problem = f"loss '{self.name}' learns from a teacher's scores, and no query of a step has any"
            ways = 'a re-ranker (rkit rerank apply RERANKER --examples ...) or as "teacher": {document id: score}'
            msg = f"{problem}. Add scores to the examples by {ways}, or choose another --loss."
            raise DataError(msg)
        with torch.autocast(queries.device.type, enabled=False):
            logits = scores(queries.float(), documents.as_indexed().float()) / self.temperature  # (Q, D)
            total = self.distance(logits, teacher.to(logits.dtype) / self.teacher_temperature, positives)
            terms = {self.name: total.detach()}
            if self.contrastive:
                contrastive = cross_entropy_in_batch(logits, positives, ignore)
                terms["contrastive"] = contrastive.detach()
                total = total + self.contrastive * contrastive
        return LossValue(total, terms)

    @abstractmethod
    def distance(self, student: Tensor, teacher: Tensor, positives: Tensor) -> Tensor:
        """Return the distance of the student's scores (Q, D) from the teacher's (Q, D), NaN where it has none."""


class DistillKL(Distillation):
    """Distillation by KL divergence between teacher and student distributions over a query's own passages.

        L = mean over queries of  KL(softmax(teacher scores / T) || softmax(student scores / t))  +  c L_contrastive

    or with the two distributions swapped, over the query's passages that the teacher scored. A query with fewer than
    two of them contributes 0 to the mean. CoT-MAE v2, LexMAE and many others distil a re-ranker with it:

        rkit rerank apply RERANKER --examples train.jsonl --corpus CORPUS --output scored.jsonl
        rkit train --examples scored.jsonl --loss distill_kl --negatives 7 ...

    A larger T softens the teacher's distribution: passages that it ranks lower count more.

    Args:
        temperature: t, divides the student's scores, in the contrastive term too; None = 0.05 for a pooler whose scores
            are cosines, else 1.
        teacher_temperature: T, divides the teacher's scores.
        contrastive: c, the weight of the contrastive loss over all documents of the batch: 0 in CoT-MAE v2's paper, 1
            by default in its code, 0.2 in LexMAE.
        scale: Multiply the divergence by t squared, so that the size of its gradient does not depend on t (Hinton et
            al. 2015; LexMAE).
        direction: "teacher_to_student" is KL(teacher || student), as in the code of CoT-MAE v2's authors and in LexMAE;
            "student_to_teacher" is KL(student || teacher), as CoT-MAE v2's Eq. 16 is printed.
    """

    name = "distill_kl"

    def __init__(
        self,
        *,
        temperature: PositiveFloat | None = None,
        teacher_temperature: PositiveFloat = 1.0,
        contrastive: NonNegativeFloat = 0.0,
        scale: bool = False,
        direction: Literal["teacher_to_student", "student_to_teacher"] = "teacher_to_student",
    ) -> None:
        super().__init__(temperature=temperature, teacher_temperature=teacher_temperature, contrastive=contrastive)
        self.scale = scale
        self.reverse = direction == "student_to_teacher"

    def distance(self, student: Tensor, teacher: Tensor, positives: Tensor) -> Tensor:  # noqa: ARG002 - by contract
        """Return the divergence, summed over passages and averaged over all queries."""
        scored = ~teacher.isnan()
        rows = scored.any(dim=1)  # (Q,)
        unscored = ~scored[rows]
        # 0 at unscored passages, where the two distributions then agree.
        student, teacher = (
            logits[rows].masked_fill(unscored, float("-inf")).log_softmax(dim=1).masked_fill(unscored, 0.0)
            for logits in (student, teacher)
        )
        pair = (teacher, student) if self.reverse else (student, teacher)
        divergence = functional.kl_div(*pair, reduction="sum", log_target=True) / len(rows)
        return divergence * self.temperature**2 if self.scale else divergence


class MarginMSE(Distillation):
    """Margin-MSE distillation: mean squared error of positive-negative score margins (Hofstätter et al. 2020).

        L = mean over pairs (q, d-) of  ((s(q, d+) - s(q, d-)) / t  -  (teacher(q, d+) - teacher(q, d-)) / T)^2
            +  c L_contrastive

    A pair is a query and one of its own negatives, where the teacher scored both the negative and the positive. Margins
    of cosines are at most 2, and a re-ranker's about 10: a smaller t, or a larger T, brings them to the same range.

        rkit train --examples scored.jsonl --loss margin_mse --negatives 7 ...

    Args:
        temperature: t, divides the student's scores, in the contrastive term too; None = 0.05 for a pooler whose scores
            are cosines, else 1.
        teacher_temperature: T, divides the teacher's scores.
        contrastive: c, the weight of the contrastive loss over all documents of the batch; 0 = none.
    """

    name = "margin_mse"

    def distance(self, student: Tensor, teacher: Tensor, positives: Tensor) -> Tensor:
        """Return the mean squared error over all pairs of the batch."""
        # (Q, D): the positive's score minus each document's.
        margins, targets = (scored.gather(1, positives[:, None]) - scored for scored in (student, teacher))
        pairs = ~targets.isnan().scatter(1, positives[:, None], True)
        errors = functional.mse_loss(margins[pairs], targets[pairs], reduction="sum")
        # A step without pairs, whose negatives the teacher did not score, has the loss 0.
        return errors / pairs.sum().clamp(min=1)
