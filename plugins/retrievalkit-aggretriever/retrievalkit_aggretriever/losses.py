"""Aggretriever's loss: the contrastive loss of the whole vectors, plus that of each of their parts.

With S the scores of all queries with all documents, and S_p the scores by the part p of the vectors alone,

    L = CE(S) + lambda ( CE(S_cls) + CE(S_agg) )

CE being the cross entropy with each query's positive as the target. So each part learns to rank by itself, and neither
relies on the other. With a single part this is the plain contrastive loss.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import scores


class Aggretriever(Loss):
    """Contrastive loss of the whole vectors, plus that of each of their parts.

    For poolers that name the parts of their vectors (`Representation.parts`). Every score follows the shared rule: if a
    document has several vectors the best counts, and for each part the best in that part.

    Args:
        part_weight: Lambda, the weight of each part's loss; the loss of the whole has 1. The paper: 0.5.
        temperature: Divides the scores, in all terms.
    """

    def __init__(self, *, part_weight: NonNegativeFloat = 0.5, temperature: PositiveFloat = 1.0) -> None:
        super().__init__()
        self.part_weight = part_weight
        self.temperature = temperature

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,  # noqa: ARG002 - of the contract
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,  # noqa: ARG002 - of the contract
    ) -> LossValue:
        """The loss of a batch, computed in float32 even under autocast."""
        parts = _checked_parts(queries, documents)
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = queries.float(), documents.as_indexed().float()
            total = self._cross_entropy(queries, documents, positives, ignore)
            terms = {"contrastive": total.detach()}
            for name, columns in parts.items() if len(parts) > 1 else ():
                of_part = self._cross_entropy(_part(queries, columns), _part(documents, columns), positives, ignore)
                total = total + self.part_weight * of_part
                terms[name] = of_part.detach()
        return LossValue(total, terms)

    def _cross_entropy(
        self, queries: Representation, documents: Representation, positives: Tensor, ignore: Tensor | None
    ) -> Tensor:
        logits = scores(queries, documents) / self.temperature  # (Q, D)
        if ignore is not None:
            logits = logits.masked_fill(ignore, float("-inf"))
        return functional.cross_entropy(logits, positives)


def _part(representation: Representation, columns: slice) -> Representation:
    """A representation by some columns of the vectors."""
    assert representation.vectors is not None
    return Representation(representation.vectors[:, :, columns], representation.vector_mask)


def _checked_parts(queries: Representation, documents: Representation) -> Mapping[str, slice]:
    """The parts of the vectors; an error if they have none."""
    if queries.vectors is None or not queries.parts or queries.parts != documents.parts:
        msg = (
            "loss 'aggretriever' weighs the parts of a vector, and this pooler's vectors have none. "
            "Choose --pooler aggretriever, or --loss contrastive."
        )
        raise UnsupportedError(msg)
    return queries.parts
