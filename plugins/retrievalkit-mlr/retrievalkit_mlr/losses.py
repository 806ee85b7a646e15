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

from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import cross_entropy_in_batch, own_scores, scores


class SelfContrastive(Loss):
    """MLR's self-contrastive loss: InfoNCE with in-batch negatives for the kept vector, plus a local contrast.

    From "Investigating Multi-layer Representations for Dense Passage Retrieval": `--pooler self_contrastive`, or
    another pooler that marks one vector as kept. With one vector per document it is the contrastive loss. Lexical
    weights add to the scores of L_con only.

    Args:
        regularization: Lambda, the weight of L_reg: larger separates the kept vector more from the document's others.
            The paper: 1 for layers 10,12 and ME-BERT, 0.1 for all layers and RetroMAE, 0.01 for ColBERT and MS MARCO.
        temperature: Divides the scores in both terms: larger gives easier negatives more of the gradient; None = 0.05
            for a pooler whose scores are cosines, else 1.
        negatives: Score a negative by the "max" over its vectors (the paper), or by its "kept" vector only.
    """

    def __init__(
        self,
        *,
        regularization: NonNegativeFloat = 1.0,
        temperature: PositiveFloat | None = None,
        negatives: Literal["max", "kept"] = "max",
    ) -> None:
        super().__init__()
        self.regularization = regularization
        self.temperature = temperature or 1.0
        self.negatives = negatives

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,  # noqa: ARG002 - by contract
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,  # noqa: ARG002 - by contract
    ) -> LossValue:
        """Compute the loss of a batch, in float32 also under autocast."""
        problem = ""
        if queries.vectors is None or documents.vectors is None:
            problem = "needs dense vectors, but this pooler computes none"
        elif queries.vectors.shape[1] != 1:
            problem = f"needs one vector per query, but this pooler computes {queries.vectors.shape[1]}"
        elif documents.kept is None:
            problem = "needs a pooler that keeps one vector per document (Representation.kept), but this one keeps all"
        if problem:
            msg = f"loss 'self_contrastive' {problem}. Choose --pooler self_contrastive, or --loss contrastive."
            raise UnsupportedError(msg)
        assert documents.kept is not None
        kept = documents.kept
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = queries.float(), documents.float()
            views = own_scores(queries, documents, positives)  # (Q, m): each vector of the positive
            positive = views[:, kept]
            if queries.weights is not None and documents.weights is not None:
                positive = positive + (queries.weights * documents.weights[positives]).sum(dim=1)
            # A query's positive is scored by its kept vector, all other documents according to `negatives`.
            logits = scores(queries, documents if self.negatives == "max" else documents.as_indexed())  # (Q, D)
            logits = logits.scatter(1, positives[:, None], positive[:, None]) / self.temperature
            contrastive = cross_entropy_in_batch(logits, positives, ignore)
            regularizer = functional.cross_entropy(views / self.temperature, torch.full_like(positives, kept))
            total = contrastive + self.regularization * regularizer
        return LossValue(total, {"contrastive": contrastive.detach(), "regularizer": regularizer.detach()})
