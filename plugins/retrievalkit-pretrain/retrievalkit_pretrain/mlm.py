"""Masked language modelling (MLM), BERT's objective."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from retrievalkit.contracts import Batch, Encoder, LossValue, Pretrainer, Progress
from retrievalkit.data.tokenized_text import Pieces
from retrievalkit.scoring.lexical import token_loss
from retrievalkit_pretrain.masking import Masker, count_labels, pad_labels

Ratio = Annotated[float, Field(gt=0, lt=1)]


class MaskedLanguageModel(Pretrainer):
    """Masked language modelling (MLM): predicts masked words from their context (BERT: Devlin et al. 2019).

    Adapts a model to another domain, or trains the vocabulary head that a model lacks (for SPLADE, Aggretriever).

        rkit pretrain --pretrainer mlm --model bert-base-uncased --corpus CORPUS --output DIR

    Args:
        mask_ratio: Fraction of a text's tokens to mask.
        whole_words: Mask all tokens of a word together.
    """

    def __init__(self, encoder: Encoder, max_length: int, *, mask_ratio: Ratio = 0.3, whole_words: bool = True) -> None:
        super().__init__(encoder, max_length)
        self.masker = Masker(self.vocabulary, mask_ratio, whole_words)

    def collate(self, samples: Sequence[Pieces], draw: random.Random) -> dict[str, Batch | Tensor]:
        """Return the masked texts and their labels."""
        masked = [self.masker(pieces, draw) for pieces in samples]
        return {
            "texts": self.encoder.collate([ids for ids, _ in masked], "document"),
            "labels": pad_labels([labels for _, labels in masked]),
        }

    def counts(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of masked tokens."""
        return {"mlm": count_labels(batch["labels"])}

    def forward(self, batch: Mapping[str, Any], progress: Progress) -> LossValue:  # noqa: ARG002 - by contract
        """Compute the mean cross entropy of the masked tokens."""
        states = self.encoder(batch["texts"], [self.encoder.info.layers])
        return LossValue.weighted({"mlm": token_loss(states.last, states.head, batch["labels"])}, {})
