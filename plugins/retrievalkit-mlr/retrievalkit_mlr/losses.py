"""The self-contrastive loss of "Investigating Multi-layer Representations for Dense Passage Retrieval".

With S(q, d)_i the inner product of a query with the i-th vector of a document, the kept vector being the first, and d+
the query's own positive:

    s(q, d)  = S(q, d)_1 if d is d+, otherwise max_i S(q, d)_i
    L_con    = mean over queries of  log sum_d exp s(q, d)  -  s(q, d+)
    L_reg    = mean over queries of  log sum_i exp S(q, d+)_i  -  S(q, d+)_1
    L        = L_con + lambda L_reg

The kept vector of the positive must beat the best vector of every negative (L_con) and the other vectors of its own
document (L_reg), so that only the kept vector needs to be indexed. Positives of other queries count as negatives and
are therefore also scored by their best vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import scores


class SelfContrastive(Loss):
    """Contrastive loss of the kept vectors against all vectors of negatives, and a regulariser within each positive.

    For poolers that mark one vector as kept (`self_contrastive`). With one vector per document it reduces to the plain
    contrastive loss. Lexical weights, if any, add to the scores of L_con; they do not affect L_reg, which compares
    vectors of the same document.

    Args:
        regularization: Lambda, the weight of L_reg. The paper uses 1 for layers 10,12 and for ME-BERT, 0.1 for all
            layers and for RetroMAE, 0.01 for ColBERT and on MS MARCO.
        temperature: Divides the scores in both terms.
        negatives: Score a negative by the "max" over its vectors (the paper), or by its "kept" vector only.
    """

    def __init__(
        self,
        *,
        regularization: NonNegativeFloat = 1.0,
        temperature: PositiveFloat = 1.0,
        negatives: Literal["max", "kept"] = "max",
    ) -> None:
        super().__init__()
        self.regularization = regularization
        self.temperature = temperature
        self.negatives = negatives

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,  # noqa: ARG002 - of the contract
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,  # noqa: ARG002 - of the contract
    ) -> LossValue:
        """The loss of a batch, computed in float32 under autocast too."""
        kept = _checked_kept(queries, documents)
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = queries.float(), documents.float()
            own = _own_scores(queries, documents, positives)
            targets = torch.full_like(positives, kept)
            contrastive = functional.cross_entropy(
                self._logits(queries, documents, positives, own, kept, ignore) / self.temperature, positives
            )
            regularizer = functional.cross_entropy(own.dense / self.temperature, targets)
            total = contrastive + self.regularization * regularizer
        return LossValue(total, {"contrastive": contrastive.detach(), "regularizer": regularizer.detach()})

    def _logits(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        own: OwnScores,
        kept: int,
        ignore: Tensor | None,
    ) -> Tensor:
        """(Q, D): each query's own positive scored by its kept vector, all others according to `negatives`."""
        logits = scores(queries, documents if self.negatives == "max" else _only(documents, kept))
        positive = own.dense[:, kept] + own.lexical  # (Q,)
        logits = logits.scatter(1, positives[:, None], positive[:, None])
        return logits if ignore is None else logits.masked_fill(ignore, float("-inf"))


@dataclass(frozen=True)
class OwnScores:
    """The scores of each query with its own positive.

    Attributes:
        dense: (Q, m), the score of each vector of the positive, -inf for masked vectors.
        lexical: (Q,), or 0.0 without weights.
    """

    dense: Tensor
    lexical: Tensor | float


def _own_scores(queries: Representation, documents: Representation, positives: Tensor) -> OwnScores:
    assert queries.vectors is not None
    assert documents.vectors is not None
    dense = (documents.vectors[positives] @ queries.vectors.transpose(1, 2))[:, :, 0]  # (Q, m)
    if documents.vector_mask is not None:
        dense = dense.masked_fill(~documents.vector_mask[positives], float("-inf"))
    if queries.weights is None or documents.weights is None:
        return OwnScores(dense, 0.0)
    return OwnScores(dense, (queries.weights * documents.weights[positives]).sum(dim=1))


def _checked_kept(queries: Representation, documents: Representation) -> int:
    """The index of the kept vector; raises UnsupportedError if the loss does not support these representations."""
    problem = ""
    if queries.vectors is None or documents.vectors is None:
        problem = "needs dense vectors, but this pooler makes none"
    elif queries.vectors.shape[1] != 1:
        problem = f"needs one vector per query, but this pooler makes {queries.vectors.shape[1]}"
    elif documents.kept is None:
        problem = "needs a pooler that keeps one vector per document (Representation.kept), but this one keeps all"
    if problem:
        msg = f"loss 'self_contrastive' {problem}. Choose --pooler self_contrastive, or --loss contrastive."
        raise UnsupportedError(msg)
    assert documents.kept is not None
    return documents.kept


def _only(documents: Representation, kept: int) -> Representation:
    """The documents, reduced to their kept vectors."""
    assert documents.vectors is not None
    return replace(documents, vectors=documents.vectors[:, kept : kept + 1], vector_mask=None, kept=0)
