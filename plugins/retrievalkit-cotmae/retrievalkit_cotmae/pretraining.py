"""The pre-training of CoT-MAE v2 (Wu et al. 2023): reconstruct one span of a document from two views of another.

With a and b two spans of a document, a' and b' their masked versions, h the last hidden states and z the logits of a',
E the word embeddings (detached), and e(x) the embeddings of a text from its second token on:

    DEN    = h_0                                                        SPR[j] = max over t of log(1 + relu(z_t[j]))
    L_mlm  = CE of the masked tokens of a, from the encoder
    L_ae   = CE of the masked tokens of b, from AE([v, e(b')])          v = DEN, and v = SPR E
    L_ar   = CE of every next token of b, from AR([v, e(b)])            v = DEN, and v = SPR E
    L      = L_mlm + L_ae(DEN) + L_ae(SPR E) + L_ar(DEN) + L_ar(SPR E)

and the same with a and b swapped. All logits come from the encoder's vocabulary head, which every term trains.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from retrievalkit_pretrain.masking import Masker, count_labels, pad_labels
from retrievalkit_pretrain.spans import PARTNERS
from torch import Tensor, nn

from retrievalkit.contracts import Batch, Encoder, LossValue, Pretrainer, Progress, TokenStates, refuse_idle
from retrievalkit.data.tokenized_text import Document, Pieces, Vocabulary
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.scoring.lexical import UNLABELLED, linear_head, max_saturated, text_mask, token_losses
from retrievalkit_cotmae.decoders import Decoder

Ratio = Annotated[float, Field(gt=0, lt=1)]
Partner = Literal["nearby", "random_sampled", "overlap"]
Normalization = Literal["none", "l1"]
Row = TypeVar("Row")
_MIXED: tuple[Partner, ...] = ("nearby", "random_sampled", "overlap")
_LEAST_SUM = 1e-4


class CoTMAEv2(Pretrainer):
    """Contextual masked auto-encoding with a dense and a sparse view, an auto-encoding and an auto-regressive decoder.

    A sample is a random span of a document, redrawn in each epoch, and its partner. The encoder and its vocabulary
    head are saved; the decoders are discarded. Terms of weight 0 are not computed, and a decoder is created only if one
    of its terms has a weight.
    """

    wants = "two spans"

    def __init__(
        self,
        encoder: Encoder,
        max_length: int,
        *,
        encoder_mlm: NonNegativeFloat = 1.0,
        ae_dense: NonNegativeFloat = 1.0,
        ae_sparse: NonNegativeFloat = 1.0,
        ar_dense: NonNegativeFloat = 1.0,
        ar_sparse: NonNegativeFloat = 1.0,
        partners: tuple[Partner, ...] = _MIXED,
        directions: Literal["both", "one"] = "both",
        mask_ratio: Ratio = 0.30,
        decoder_mask_ratio: Ratio = 0.45,
        whole_words: bool = True,
        decoder_layers: PositiveInt = 1,
        sparse_head: Literal["complete", "projection"] = "complete",
        sparse_normalization: Normalization = "none",
    ) -> None:
        """Choose the terms and their details.

        Args:
            encoder: The encoder to train.
            max_length: Maximum number of tokens per text, special tokens included.
            encoder_mlm: Weight of the encoder's masked language modelling.
            ae_dense: Weight of the AE decoder on the dense view.
            ae_sparse: Weight of the AE decoder on the sparse view.
            ar_dense: Weight of the AR decoder on the dense view.
            ar_sparse: Weight of the AR decoder on the sparse view.
            partners: Kinds of partner span; a kind is drawn per sample: the adjacent span ("nearby"), another
                span at most 100 spans away ("random_sampled"), or some sentences of the span and those next to
                them ("overlap").
            directions: Reconstruct each span from the other ("both"), or only the partner from the span ("one").
            mask_ratio: Fraction of tokens to mask in the encoder's input.
            decoder_mask_ratio: Fraction of tokens to mask in the AE decoder's input.
            whole_words: Mask all tokens of a word together (whole word masking).
            decoder_layers: Layers of each decoder.
            sparse_head: Compute the logits of the sparse view with the "complete" vocabulary head, or with only its
                "projection", as printed in Eq. 4.
            sparse_normalization: Pass the weights of a text to the decoders unchanged ("none"), or divided by their
                sum ("l1").
        """
        ae, sparse = bool(ae_dense or ae_sparse), bool(ae_sparse or ar_sparse)
        of_sparse = sparse, "ae_sparse ar_sparse"
        refuse_idle(
            locals(),
            {
                "decoder_mask_ratio": (ae, "ae_dense ae_sparse"),
                "decoder_layers": (ae or bool(ar_dense or ar_sparse), "ae_dense ae_sparse ar_dense ar_sparse"),
                "sparse_head": of_sparse,
                "sparse_normalization": of_sparse,
            },
        )
        super().__init__(encoder, max_length)
        self.weights = {
            "encoder_mlm": encoder_mlm,
            "ae_dense": ae_dense,
            "ae_sparse": ae_sparse,
            "ar_dense": ar_dense,
            "ar_sparse": ar_sparse,
        }
        self.partners = partners
        self.both = directions == "both"
        self.sparse_head = sparse_head
        self.normalization: Normalization = sparse_normalization
        self._check()
        self.masker = Masker(self.vocabulary, mask_ratio, whole_words)
        self.decoder_masker = Masker(self.vocabulary, decoder_mask_ratio, whole_words)
        shape, width = encoder.layer_shape(), encoder.info.width
        positions = 0 if _embeddings_have_positions(encoder, self.vocabulary) else max_length
        self.decoders = nn.ModuleDict(
            {
                name: Decoder(width, shape, layers=decoder_layers, causal=name == "ar", positions=positions)
                for name in ("ae", "ar")
                if self._views(name)
            }
        )

    def samples(self, document: Document) -> int:
        """Return 1 for a document of at least two spans, else 0."""
        return int(len(document.spans) > 1)

    def sample(self, document: Document, number: int, draw: random.Random) -> tuple[Pieces, Pieces]:  # noqa: ARG002
        """Draw a span and its partner."""
        anchor = draw.randrange(len(document.spans))
        partner = PARTNERS[draw.choice(self.partners)](document, anchor, draw)
        both = (document.text(part).cut(self.room, draw) for part in (document.spans[anchor], partner))
        return next(both), next(both)

    def collate(self, samples: Sequence[tuple[Pieces, Pieces]], draw: random.Random) -> dict[str, Batch | Tensor]:
        """Return inputs and labels of the encoder and each decoder; each row reconstructs a text from another."""
        rows: dict[str, list[tuple[list[int], list[int]]]] = {"encoder": [], "ae": []}
        for pair in samples:
            # Draw masks sample by sample, so that they do not depend on the batch size.
            rows["encoder"] += [self.masker(pieces, draw) for pieces in (pair if self.both else pair[:1])]
            if self._views("ae"):
                rows["ae"] += [self.decoder_masker(pieces, draw) for pieces in self._decoded(pair)]
        batch: dict[str, Batch | Tensor] = {}
        for name, masked in rows.items():
            if masked:
                ordered = self._by_direction(masked)
                batch[f"{name}_texts"] = self.encoder.collate([ids for ids, _ in ordered], "document")
                batch[f"{name}_labels"] = pad_labels([labels for _, labels in ordered])
        if self._views("ar"):
            wrapped = [self.vocabulary.wrap(pieces.ids) for pair in samples for pieces in self._decoded(pair)]
            texts = self.encoder.collate(self._by_direction(wrapped), "document")
            batch |= {"ar_texts": texts, "ar_labels": next_tokens(texts)}
        return batch

    def _decoded(self, pair: tuple[Pieces, Pieces]) -> tuple[Pieces, ...]:
        return pair[::-1] if self.both else pair[1:]

    def _by_direction(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Reorder rows: first all rows of one direction, then all rows of the other."""
        return [*rows[::2], *rows[1::2]] if self.both else rows

    def counts(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """Count the tokens that each term predicts: masked tokens, or next tokens for the AR decoder."""
        counts = {"encoder_mlm": count_labels(batch["encoder_labels"])} if self.weights["encoder_mlm"] else {}
        for name in self.decoders:
            labels = count_labels(batch[f"{name}_labels"])
            counts |= {f"{name}_{view}": labels for view in self._views(name)}
        return counts

    def forward(self, batch: Mapping[str, Any], progress: Progress) -> LossValue:  # noqa: ARG002 - by contract
        """Compute the weighted sum of all terms."""
        states = self.encoder(batch["encoder_texts"], [self.encoder.info.layers])
        assert states.head is not None
        predicted: dict[str, tuple[Tensor, Tensor]] = {}  # states to predict tokens from, and the tokens
        if self.weights["encoder_mlm"]:
            predicted["encoder_mlm"] = states.last, batch["encoder_labels"]
        vectors = self.bottlenecks(states)
        for name, decoder in self.decoders.items():
            texts: Batch = batch[f"{name}_texts"]
            embeddings = self.encoder.embed(texts)
            for view in self._views(name):
                decoded = decoder(vectors[view], embeddings, texts.attention_mask)
                predicted[f"{name}_{view}"] = decoded, batch[f"{name}_labels"]
        return LossValue.weighted(token_losses(states.head, predicted), self.weights)

    def bottlenecks(self, states: TokenStates) -> dict[str, Tensor]:
        """Return the decoders' input vectors (batch, width) by view, for the views that have a term."""
        views = {view for name in self.decoders for view in self._views(name)}
        vectors = {"dense": states.last[:, 0]} if "dense" in views else {}
        if "sparse" in views:
            head = states.head
            if self.sparse_head == "projection":
                head = linear_head(head, states.last.shape[2], "pretrainer.sparse_head=complete")
            assert head is not None
            weights = max_saturated(states.last, head, text_mask(states))
            vectors["sparse"] = project(weights, self.encoder.word_embeddings(), self.normalization)
        return vectors

    def _views(self, decoder: str) -> list[str]:
        """Return the views for which a decoder has a term."""
        return [view for view in ("dense", "sparse") if self.weights[f"{decoder}_{view}"]]

    def _check(self) -> None:
        """Refuse encoders without [CLS] or word embeddings, and an objective without terms or partners."""
        if not self.vocabulary.before:
            msg = "cot_mae_v2 needs a first token such as [CLS], but this tokenizer adds none. Choose another model."
            raise UnsupportedError(msg)
        if not any(self.weights.values()):
            msg = f"all terms ({', '.join(self.weights)}) have weight 0. Set at least one weight above 0."
            raise OptionError(msg)
        if not self.partners:
            msg = f"option 'partners' is empty. Set at least one of {', '.join(_MIXED)}."
            raise OptionError(msg)
        if self.weights["ae_sparse"] or self.weights["ar_sparse"]:
            self.encoder.word_embeddings()


def project(weights: Tensor, words: Tensor, normalization: Normalization = "none") -> Tensor:
    """Project weights over the vocabulary to a vector: the weighted sum of the word embeddings.

    Args:
        weights: (batch, vocabulary).
        words: (vocabulary, width), detached.
        normalization: "l1" divides the weights of a text by their sum.

    Returns:
        (batch, width), float32.
    """
    with torch.autocast(weights.device.type, enabled=False):
        if normalization == "l1":
            weights = weights / (weights.sum(dim=1, keepdim=True) + _LEAST_SUM)
        return weights @ words.detach().to(weights.dtype)


def next_tokens(texts: Batch) -> Tensor:
    """Return (batch, tokens) long: the next token at each position, `UNLABELLED` at the end."""
    tokens = texts.input_ids.masked_fill(texts.attention_mask == 0, UNLABELLED)
    return nn.functional.pad(tokens[:, 1:], (0, 1), value=UNLABELLED)


def _embeddings_have_positions(encoder: Encoder, vocabulary: Vocabulary) -> bool:
    """True if a token's embedding depends on its position; with rotary positions (ModernBERT) it does not."""
    token = vocabulary.ordinary[-1]
    text = encoder.collate([vocabulary.wrap([token, token])], "document")
    device = next(encoder.parameters()).device
    training = encoder.training
    encoder.eval()
    with torch.no_grad():
        embeddings = encoder.embed(text.to(device))[0, len(vocabulary.before) :]
    encoder.train(training)
    return not torch.equal(embeddings[0], embeddings[1])
