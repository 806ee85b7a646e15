"""RetroMAE (Xiao et al. 2022): the reconstruction of a text from little more than its [CLS] vector."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from retrievalkit.contracts import Batch, Encoder, LayerShape, LossValue, Pretrainer, Progress
from retrievalkit.data.tokenized_text import Pieces
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring.lexical import UNLABELLED, token_losses
from retrievalkit_pretrain.masking import Masker, count_labels, pad_labels

Ratio = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
_DEVIATION = 0.02


class RetroMAE(Pretrainer):
    """RetroMAE (Xiao et al. 2022): masked language modelling, and a small decoder that predicts the text from [CLS].

    With h the last state of [CLS] in the masked text, E the embeddings of the unmasked text and P positions:

        queries = P + h;  keys and values = [h, E_1, ..., E_n]
        loss = CE of the masked tokens by the encoder + CE of all tokens by the decoder (one layer)

    Each position attends to h and to its own random fraction of the other positions, never to itself. The decoder uses
    the encoder's embeddings and vocabulary head and trains both. It has its own position embeddings, for encoders
    without any (ModernBERT). Pre-trains the [CLS] vector for dense retrieval, as in MLR:

        rkit pretrain --pretrainer retromae --model bert-base-uncased --corpus CORPUS --output DIR
        rkit train --model DIR --pooler cls ...

    Args:
        mask_ratio: Fraction of a text's tokens to mask for the encoder.
        decoder_mask_ratio: Fraction of the positions to hide from each position of the decoder.
        whole_words: Mask all tokens of a word together.
        decoder_weight: Weight of the decoder's loss.
    """

    def __init__(
        self,
        encoder: Encoder,
        max_length: int,
        *,
        mask_ratio: Ratio = 0.3,
        decoder_mask_ratio: Share = 0.5,
        whole_words: bool = True,
        decoder_weight: NonNegativeFloat = 1.0,
    ) -> None:
        super().__init__(encoder, max_length)
        if not self.vocabulary.before:
            msg = "retromae needs a [CLS]-like token before a text, but this tokenizer adds none. Choose another model."
            raise UnsupportedError(msg)
        self.masker = Masker(self.vocabulary, mask_ratio, whole_words)
        self.decoder_mask_ratio = decoder_mask_ratio
        self.decoder_weight = decoder_weight
        self.decoder = EnhancedDecoder(encoder.info.width, max_length, encoder.layer_shape())

    def collate(self, samples: Sequence[Pieces], draw: random.Random) -> dict[str, Batch | Tensor]:
        """Return the masked texts, their labels, and the unmasked texts."""
        masked = [self.masker(pieces, draw) for pieces in samples]
        return {
            "masked": self.encoder.collate([ids for ids, _ in masked], "document"),
            "labels": pad_labels([labels for _, labels in masked]),
            "texts": self.encoder.collate([self.vocabulary.wrap(pieces.ids) for pieces in samples], "document"),
        }

    def counts(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of tokens that the encoder and the decoder predict."""
        return {"encoder_mlm": count_labels(batch["labels"]), "decoder": count_labels(_decoder_labels(batch["texts"]))}

    def forward(self, batch: Mapping[str, Any], progress: Progress) -> LossValue:  # noqa: ARG002 - by contract
        """Compute the sum of the encoder's loss and the weighted loss of the decoder."""
        texts: Batch = batch["texts"]
        states = self.encoder(batch["masked"], [self.encoder.info.layers])
        decoded = self.decoder(states.last[:, :1], self.encoder.embed(texts), self._visible(texts.attention_mask))
        predicted = {"encoder_mlm": (states.last, batch["labels"]), "decoder": (decoded, _decoder_labels(texts))}
        terms = token_losses(states.head, predicted)
        return LossValue.weighted(terms, {"decoder": self.decoder_weight})

    def _visible(self, attention_mask: Tensor) -> Tensor:
        """Draw the positions (last axis) that each position attends to, (batch, tokens, tokens) bool."""
        texts, tokens = attention_mask.shape
        visible = torch.rand(texts, tokens, tokens, device=attention_mask.device) >= self.decoder_mask_ratio
        visible &= ~torch.eye(tokens, dtype=torch.bool, device=attention_mask.device)
        visible[:, :, 0] = True  # the [CLS] vector
        return visible & attention_mask[:, None, :].bool()


def _decoder_labels(texts: Batch) -> Tensor:
    """Return the labels (batch, tokens) long: all tokens except special tokens."""
    return texts.input_ids.masked_fill(texts.special_mask | ~texts.attention_mask.bool(), UNLABELLED)


class EnhancedDecoder(nn.Module):
    """A transformer layer: its queries are positions plus the text's vector, its keys the text's embeddings.

    Args:
        width: Hidden size.
        positions: Maximum number of tokens per text.
        shape: Sizes and activation, as in the encoder's layers.
    """

    def __init__(self, width: int, positions: int, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape
        self.positions = nn.Embedding(positions, width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, shape.inner), nn.Linear(shape.inner, width)
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(shape.dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_DEVIATION)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, vector: Tensor, embeddings: Tensor, visible: Tensor) -> Tensor:
        """Compute the states (batch, tokens, width) to predict the tokens from.

        Args:
            vector: (batch, 1, width), the text's vector.
            embeddings: (batch, tokens, width), the embeddings of its tokens.
            visible: (batch, tokens, tokens) bool, the keys (last axis) that each query attends to.
        """
        queries = self.positions.weight[: embeddings.shape[1]] + vector  # (batch, tokens, width)
        keys = torch.cat([vector, embeddings[:, 1:]], dim=1)
        query, key, value = (
            states.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)
            for states in (self.query(queries), self.key(keys), self.value(keys))
        )  # (batch, heads, tokens, width of a head)
        dropped = self.shape.attention_dropout if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(query, key, value, visible[:, None], dropped)
        attended = self.output(attended.transpose(1, 2).flatten(2))
        states = self.attention_norm(queries + self.dropout(attended))
        added = self.outer(self.shape.activation(self.inner(states)))
        decoded: Tensor = self.norm(states + self.dropout(added))
        return decoded
