"""The fine-tuning loss of CoT-MAE v2, and its FLOPS regulariser as a separate loss.

With s(q, d) the score (dense plus sparse), d+ the query's positive and t the temperature:

    CE(s) = mean over queries q of  log sum over documents d of exp(s(q, d) / t)  -  s(q, d+) / t
    L     = CE(s_dense + s_sparse)  +  lambda_q FLOPS(weights of queries)  +  lambda_d FLOPS(weights of documents)

or, as in the authors' later code, with CE(s_dense) + CE(s_sparse) instead of the first term.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from retrievalkit.contracts import Loss, LossValue, Progress, Representation, refuse_idle
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import cross_entropy_in_batch, scores
from retrievalkit_cotmae.regularizers import STEPS, Norm, Schedule, Sparsity


class DenseSparse(Loss):
    """CoT-MAE v2 and SPLADE: InfoNCE with in-batch negatives over dense and sparse scores, plus FLOPS regularisation.

    From Wu et al. 2023, for poolers that compute vectors, weights or both: `rkit train --pooler dense_sparse`. FLOPS
    is computed over all queries and documents of the step, on the weights that are scored, i.e. after top-k.

    Args:
        views: One cross entropy over the "summed" scores (the paper), or the sum of "separate" cross entropies over
            dense and sparse scores.
        temperature: Divides the scores: larger gives easier negatives more of the gradient; None = 0.05 for a pooler
            whose scores are cosines, else 1.
        flops_query: Lambda of the queries' regulariser: larger gives fewer terms per query.
        flops_document: Lambda of the documents' regulariser: larger gives fewer terms per document.
        query_regularizer: "flops" (the paper), or the "l1" norm of the queries' weights, as in SPLADE's trainer.
        schedule: Keep the lambdas "constant", or increase them with the square of the step ("quadratic", SPLADE).
        schedule_steps: Steps until the quadratic schedule reaches the full lambdas.
    """

    def __init__(
        self,
        *,
        views: Literal["summed", "separate"] = "summed",
        temperature: PositiveFloat | None = None,
        flops_query: NonNegativeFloat = 0.002,
        flops_document: NonNegativeFloat = 0.002,
        query_regularizer: Norm = "flops",
        schedule: Schedule = "constant",
        schedule_steps: PositiveInt = STEPS,
    ) -> None:
        refuse_idle(locals(), {"schedule_steps": (schedule == "quadratic", "schedule")})
        super().__init__()
        self.views = views
        self.temperature = temperature or 1.0
        self.sparsity = Sparsity(flops_query, flops_document, query_regularizer, schedule, schedule_steps)

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,  # noqa: ARG002 - by contract
    ) -> LossValue:
        """Compute the loss of a batch, in float32 also under autocast."""
        with torch.autocast(queries.device.type, enabled=False):
            queries, documents = queries.float(), documents.as_indexed().float()
            logits = {"contrastive": scores(queries, documents)}
            if self.views == "separate":
                # Both sides have the same views: `scores` above rejects a mismatch.
                of_queries, of_documents = _views(queries), _views(documents)
                logits = {name: scores(view, of_documents[name]) for name, view in of_queries.items()}
            entropies = {
                name: cross_entropy_in_batch(view / self.temperature, positives, ignore)
                for name, view in logits.items()
            }
            norms = self.sparsity.terms(queries, documents)
            total = torch.stack(list(entropies.values())).sum() + self.sparsity.total(norms, progress.step)
        return LossValue(total, {name: term.detach() for name, term in (entropies | norms).items()})


class Flops(Loss):
    """SPLADE's FLOPS regulariser (Paria et al. 2020): sparsity of weights over a vocabulary, added to another loss.

    `--loss contrastive+flops` is SPLADE's loss, `--loss distill_kl+flops` the same with a teacher. FLOPS is computed
    over all queries and documents of the step; it depends neither on scores nor on which documents are positives.

    Args:
        flops_query: Lambda of the queries' regulariser: larger gives fewer terms per query.
        flops_document: Lambda of the documents' regulariser: larger gives fewer terms per document.
        query_regularizer: "flops", or the "l1" norm of the queries' weights, as in SPLADE's trainer.
        schedule: Keep the lambdas "constant", or increase them with the square of the step ("quadratic", SPLADE).
        schedule_steps: Steps until the quadratic schedule reaches the full lambdas.
    """

    def __init__(
        self,
        *,
        flops_query: NonNegativeFloat = 0.002,
        flops_document: NonNegativeFloat = 0.002,
        query_regularizer: Norm = "flops",
        schedule: Schedule = "constant",
        schedule_steps: PositiveInt = STEPS,
    ) -> None:
        refuse_idle(locals(), {"schedule_steps": (schedule == "quadratic", "schedule")})
        super().__init__()
        self.sparsity = Sparsity(flops_query, flops_document, query_regularizer, schedule, schedule_steps)

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,  # noqa: ARG002 - by contract
        progress: Progress,
        ignore: Tensor | None = None,  # noqa: ARG002 - by contract
        teacher: Tensor | None = None,  # noqa: ARG002 - by contract
    ) -> LossValue:
        """Compute the regulariser of a batch, in float32 also under autocast."""
        if queries.weights is None or documents.weights is None:
            msg = "loss 'flops' regularises weights over a vocabulary, but this pooler computes none. Choose a pooler "
            msg += "that does, such as --pooler dense_sparse with views=sparse or both, or leave out flops."
            raise UnsupportedError(msg)
        with torch.autocast(queries.device.type, enabled=False):
            norms = self.sparsity.terms(queries.float(), documents.float())
            total = self.sparsity.total(norms, progress.step)
        return LossValue(total, {name: term.detach() for name, term in norms.items()})


def _views(representation: Representation) -> dict[str, Representation]:
    """Return the dense and the sparse view as separate representations, without a view that does not exist."""
    views = {}
    if representation.vectors is not None:
        views["dense"] = replace(representation, weights=None)
    if representation.weights is not None:
        views["sparse"] = Representation(weights=representation.weights)
    return views
