"""The pretrainer `my_name`: an objective that trains an encoder on plain text."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from retrievalkit.contracts import Batch, Encoder, LossValue, Needs, Pretrainer, Progress
from retrievalkit.data.tokenized_text import Pieces
from retrievalkit.scoring.lexical import token_loss
from retrievalkit_pretrain.masking import Masker, count_labels, pad_labels
from torch import Tensor


class MyName(Pretrainer):
    """Masked language modelling: predicts masked words from their context.

    Args:
        mask_ratio: Fraction of a text's tokens to mask.
    """

    # The vocabulary head: hidden states -> logits. A model without a head gets a random one.
    needs = Needs(vocabulary_head=True)

    # Keyword-only arguments are the options: typed, documented above, set by --set pretrainer.mask_ratio=0.15.
    def __init__(self, encoder: Encoder, max_length: int, *, mask_ratio: float = 0.3) -> None:
        super().__init__(encoder, max_length)
        self.masker = Masker(self.vocabulary, mask_ratio)

    # A sample is a span of a document, truncated to the maximum length, unless you override `samples` and `sample`.
    def collate(self, samples: Sequence[Pieces], draw: random.Random) -> dict[str, Batch | Tensor]:
        """The masked texts and their labels. All randomness comes from `draw`, so that a resumed run repeats it."""
        masked = [self.masker(pieces, draw) for pieces in samples]
        return {
            "texts": self.encoder.collate([ids for ids, _ in masked], "document"),
            "labels": pad_labels([labels for _, labels in masked]),
        }

    # Optional: with the number of tokens behind each term's mean, micro batches and several processes are exact.
    def counts(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """The number of masked tokens."""
        return {"mlm": count_labels(batch["labels"])}

    def forward(self, batch: Mapping[str, Any], progress: Progress) -> LossValue:
        """The mean cross-entropy of the masked tokens."""
        states = self.encoder(batch["texts"], [self.encoder.info.layers])
        return LossValue.weighted({"mlm": token_loss(states.last, states.head, batch["labels"])}, {})
