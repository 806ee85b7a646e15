"""Base of `distill_kl` and `margin_mse`: learning from a teacher's scores, with an optional contrastive term."""

from __future__ import annotations

from abc import abstractmethod

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from retrievalkit.builtin.losses.contrastive import cross_entropy_in_batch
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import DataError
from retrievalkit.score import scores


class Distillation(Loss):
    """Brings the student's scores close to a teacher's; a subclass defines the distance.

    Only passages that the teacher scored for the query count: its own positive and hard negatives. What `ignore` masks
    stays in this term, since the teacher says how relevant it is, and is masked in the contrastive term. Options mean
    the same in each subclass.

    Args:
        temperature: The student's scores are divided by it, in the contrastive term too.
        teacher_temperature: The teacher's scores are divided by it.
        contrastive: Weight of the contrastive loss over all documents of the batch, which is added; 0 = none.
    """

    needs_teacher = True
    name: str
    """The registered name, for the log and for error messages."""

    def __init__(
        self,
        *,
        temperature: PositiveFloat = 1.0,
        teacher_temperature: PositiveFloat = 1.0,
        contrastive: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.teacher_temperature = teacher_temperature
        self.contrastive = contrastive

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,  # noqa: ARG002 - required by the contract
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> LossValue:
        """The loss of a batch, computed in float32 under autocast too.

        Raises:
            DataError: No passage has a teacher's score.
        """
        if teacher is None or bool(teacher.isnan().all()):
            msg = (
                f"loss '{self.name}' learns from a teacher's scores, and no query of a step has any. Give the "
                "examples a re-ranker's (rkit rerank apply RERANKER --examples FILE --corpus CORPUS) or others as "
                '"teacher": {document id: score}, or choose another --loss.'
            )
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
        """How far the student's scores (Q, D) are from the teacher's (Q, D), NaN where the teacher has none."""
