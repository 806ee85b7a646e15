"""The global-local loss of "Multi-View Document Representation Learning for Open-Domain Dense Retrieval".

With f_i(q, d) the inner product of a query with the i-th vector of a document, f = max_i f_i, d+ the query's own
positive, and t the epoch, counted from 0:

    tau      = max(floor, exp(-alpha t))
    L_global = mean over queries of  log sum_d exp(f(q, d) / tau)     -  f(q, d+) / tau
    L_local  = mean over queries of  log sum_i exp(f_i(q, d+) / tau)  -  f(q, d+) / tau
    L        = L_global + lambda L_local

L_global is the contrastive loss of the best vectors. L_local contrasts the best vector with the others of its own
document; its gradient reaches all of them, so that they do not collapse into one. The temperature is annealed over the
epochs: at first all vectors share the gradient, later the best vector receives most of it.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, autocast
from torch.nn import functional

from retrievalkit.contracts import Loss, LossValue, Progress, Representation, refuse_idle
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import cross_entropy_in_batch, own_scores, scores

# Progress accumulates fractions of an epoch, so rounding can leave it this far below a whole number.
ROUNDING = 1e-6


class GlobalLocal(Loss):
    """MVR's global-local loss: InfoNCE with in-batch negatives over each document's best view, plus a local loss.

    From "Multi-View Document Representation Learning for Open-Domain Dense Retrieval" (Zhang et al. 2022), for poolers
    with several vectors per document: `rkit train --pooler viewers --loss global_local`. With one vector per document
    it is the contrastive loss. Lexical weights add to the scores of the global part only.

    Args:
        local_weight: Lambda, the weight of the local part: larger keeps a document's vectors further apart; 0 = none.
        annealing: Alpha: in epoch t, counted from 0, the temperature is exp(-alpha t); larger lowers it faster.
        floor: Minimum temperature; at most 1, the initial temperature.
        temperature: "annealed", or a constant for all epochs; larger gives more of a document's vectors and easier
            negatives a share of the gradient. About 0.05 suits vectors of length 1.
    """

    def __init__(
        self,
        *,
        local_weight: NonNegativeFloat = 0.01,
        annealing: NonNegativeFloat = 0.1,
        floor: Annotated[float, Field(gt=0, le=1)] = 0.3,
        temperature: PositiveFloat | Literal["annealed"] = "annealed",
    ) -> None:
        anneals = temperature == "annealed", "temperature"
        refuse_idle(locals(), {"annealing": anneals, "floor": anneals})
        super().__init__()
        self.local_weight = local_weight
        self.annealing = annealing
        self.floor = floor
        self.fixed = temperature

    def temperature(self, progress: Progress) -> float:
        """Return the temperature of the current epoch; constant within an epoch."""
        if self.fixed != "annealed":
            return self.fixed
        epoch = math.floor(progress.epoch + ROUNDING)
        return max(self.floor, math.exp(-self.annealing * epoch))

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
        problem = ""
        if queries.vectors is None or documents.vectors is None:
            problem = "needs dense vectors, but this pooler computes none. Choose --loss contrastive"
        elif (several := queries.vectors.shape[1]) != 1:
            problem = f"needs one vector per query, but this pooler computes {several}. Choose --loss contrastive"
        elif documents.kept is not None and documents.vectors.shape[1] > 1:
            problem = (
                "needs a pooler that indexes all vectors, but this one indexes one. Choose --loss self_contrastive"
            )
        if problem:
            msg = f"loss 'global_local' {problem}."
            raise UnsupportedError(msg)
        temperature = self.temperature(progress)
        with autocast(queries.device.type, enabled=False):
            queries, documents = queries.float(), documents.float()
            global_part = cross_entropy_in_batch(scores(queries, documents) / temperature, positives, ignore)
            views = own_scores(queries, documents, positives) / temperature  # (Q, m): each view of the positive
            local_part = functional.cross_entropy(views, views.argmax(dim=1))
            total = global_part + self.local_weight * local_part
        terms = {"global": global_part, "local": local_part, "temperature": total.new_tensor(temperature)}
        return LossValue(total, {name: term.detach() for name, term in terms.items()})
