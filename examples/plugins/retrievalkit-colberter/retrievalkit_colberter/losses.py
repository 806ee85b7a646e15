"""ColBERTer's regulariser: closes the gates of words that the ranking does not need.

    L_stop = mean over documents of  sum over words w of r_w

This is the L1 norm of the gates, which the paper adds to the ranking loss.
"""

from __future__ import annotations

from pydantic import NonNegativeFloat
from torch import Tensor

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit_colberter.poolers import GATE


class Stopwords(Loss):
    """ColBERTer's regulariser: the L1 norm of the documents' gates, added to a loss: `--loss contrastive+stopwords`.

    Args:
        weight: Lambda: a larger weight drops more words.
    """

    def __init__(self, *, weight: NonNegativeFloat = 0.01) -> None:
        super().__init__()
        self.weight = weight

    def forward(
        self,
        queries: Representation,  # noqa: ARG002 - by contract
        documents: Representation,
        positives: Tensor,  # noqa: ARG002 - by contract
        progress: Progress,  # noqa: ARG002 - by contract
        ignore: Tensor | None = None,  # noqa: ARG002 - by contract
        teacher: Tensor | None = None,  # noqa: ARG002 - by contract
    ) -> LossValue:
        """Compute the regulariser of a batch, in float32 under autocast too."""
        if documents.vectors is None or GATE not in (documents.parts or {}):
            msg = "loss 'stopwords' trains the gates of pooler 'colberter', but this pooler's vectors have none. "
            msg += "Choose --pooler colberter with gate=true, or leave out stopwords."
            raise UnsupportedError(msg)
        assert documents.parts is not None
        gates = documents.vectors[:, :, documents.parts[GATE]].float()[:, :, 0]  # (documents, words)
        if documents.vector_mask is not None:
            gates = gates.masked_fill(~documents.vector_mask, 0.0)
        norm = gates.sum(dim=1).mean()
        open_gates = (gates > 0).float().sum(dim=1).mean()
        return LossValue(self.weight * norm, {"gates": norm.detach(), "words_kept": open_gates})
