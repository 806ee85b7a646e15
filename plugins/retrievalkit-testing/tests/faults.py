"""Components with one fault each, and the property that must detect it: a plugin for RKIT_PLUGIN_FILES.

A row has a name, the property, a sound component and the change to it.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from retrievalkit_pretrain.masking import count_labels
from retrievalkit_pretrain.mlm import MaskedLanguageModel as Mlm
from torch import nn
from torch.nn import functional

from retrievalkit import hookimpl
from retrievalkit.contracts import (
    EncoderInfo,
    Filter,
    FusionMethod,
    Indexer,
    Loss,
    LossValue,
    Metric,
    Needs,
    Pooler,
    Representation,
    Reranker,
)
from retrievalkit.data.sources import Source
from retrievalkit.errors import DataError, UnsupportedError
from retrievalkit.models.encoders.transformer import Transformer
from retrievalkit.models.poolers.colbert import ColBERT
from retrievalkit.models.poolers.single_vector import Cls, Mean, masked_mean
from retrievalkit.scoring import scores
from retrievalkit.scoring.lexical import UNLABELLED, max_saturated, text_mask


def after(method, change):
    """Change the result of a method."""
    return lambda self, *arguments: change(method(self, *arguments))


# --- encoders ------------------------------------------------------------------------------------------------------


class SoundEncoder(Transformer):
    """A sound encoder."""


def mapped(change):
    """`forward` with other states of each layer."""
    return {"forward": after(Transformer.forward, lambda states: replace(
        states, layers={number: change(one) for number, one in states.layers.items()}))}  # fmt: skip


def collated(**changes):
    """`collate` with other fields of the batch."""
    return {"collate": after(Transformer.collate, lambda batch: replace(
        batch, **{name: change(batch) for name, change in changes.items()}))}  # fmt: skip


def tokenized(change):
    """`tokenize` of other titles and texts."""
    return {"tokenize": lambda self, texts, side: Transformer.tokenize(
        self, [change(one.title, one.body) for one in texts], side)}  # fmt: skip


def tokenized_to(length):
    """`tokenize` with another maximum length, which a function of the encoder and the side gives."""

    def tokenize(self, texts, side):
        before, self.lengths[side] = self.lengths[side], length(self, side)
        try:
            return Transformer.tokenize(self, texts, side)
        finally:
            self.lengths[side] = before

    return tokenize


def forward_with_all_tokens(self, batch, layers):
    states = Transformer.forward(self, replace(batch, attention_mask=torch.ones_like(batch.attention_mask)), layers)
    return replace(states, attention_mask=batch.attention_mask)


def forward_below(self, batch, layers):
    states = Transformer.forward(self, batch, range(self.info.layers + 1))
    return replace(states, layers={one: states.layers[max(0, one - 1)] for one in layers})


class NeverCuts(SoundEncoder):
    def __init__(self, model, *, query_length: int = 64, document_length: int = 100):
        super().__init__(model)
        self.lengths = {"query": 120, "document": 120}


class UnusedParameterOfAnEncoder(SoundEncoder):
    def prepare(self, needs):
        super().prepare(needs)
        self.scale = nn.Parameter(torch.ones(()))


class SavesTheStart(SoundEncoder):
    def save(self, folder):
        start = type(self)(self.source)
        start.prepare(self.needs)
        Transformer.save(start, folder)


def sets_threads(self, batch, layers):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return Transformer.forward(self, batch, layers)


ENCODERS: list[tuple[Any, ...]] = [
    ("ignores_the_mask", "batch", SoundEncoder, {"forward": forward_with_all_tokens}),
    ("one_layer_below", "layer_numbers", SoundEncoder, {"forward": forward_below}),
    ("all_layers", "layer_numbers", SoundEncoder,
     {"forward": lambda self, batch, layers: Transformer.forward(self, batch, range(self.info.layers + 1))}),
    ("words_are_special", "batch_fields", SoundEncoder,
     collated(special_mask=lambda batch: ~batch.special_mask & batch.attention_mask.bool())),
    ("mask_of_the_other_side", "batch_fields", SoundEncoder,
     collated(attention_mask=lambda batch: batch.attention_mask.flip(1))),
    ("cuts_the_end_token", "truncation", SoundEncoder, {"tokenize": lambda self, texts, side: [
        ids[: self.lengths[side]] for ids in tokenized_to(lambda *_: 512)(self, texts, side)]}),
    ("never_cuts", "truncation", NeverCuts, {}),
    ("reads_no_title", "pairs", SoundEncoder, tokenized(lambda _, text: ("", text))),
    ("drops_out", "same_twice", SoundEncoder, mapped(lambda one: functional.dropout(one, 0.1))),
    ("detached_states", "trained", SoundEncoder, mapped(torch.Tensor.detach)),
    ("unused_parameter_of_an_encoder", "trained", UnusedParameterOfAnEncoder, {}),
    ("saves_the_start", "saved", SavesTheStart, {}),
    ("half_states", "form", SoundEncoder, mapped(torch.Tensor.half)),
    ("extra_one_off", "extra_tokens", SoundEncoder,
     collated(extra=lambda batch: None if batch.extra is None else batch.extra + 1)),
    ("extra_beyond_the_length", "extra_tokens", SoundEncoder,
     {"tokenize": tokenized_to(lambda self, side: self.lengths[side] + len(self.extra.ids[side]))}),
    ("fills_attended", "filled_with_masks", SoundEncoder, {"prepare": lambda self, needs: Transformer.prepare(
        self, replace(needs, fill_attended=bool(needs.mask_filled)))}),
    ("not_a_number_in_bf16", "gradients", SoundEncoder,
     mapped(lambda one: one * (3e38 if torch.is_autocast_enabled("cpu") else 1.0) * 10 / 10)),
    ("fails_on_empty", "form", SoundEncoder,
     tokenized(lambda title, text: (title, text if text.split()[0] else ""))),
    ("names_too_few", "names_of_tokens", SoundEncoder, {"tokens": after(Transformer.tokens, lambda one: one[1:-1])}),

    ("mixes_rows_of_large_batches", "batch", SoundEncoder,
     mapped(lambda one: one + 0.1 * one.mean(0, keepdim=True) if len(one) > 8 else one)),
    ("other_without_gradients", "grad_mode", SoundEncoder,
     mapped(lambda one: one if torch.is_grad_enabled() else one * 1.05)),
    ("sets_threads", "no_side_effects", SoundEncoder, {"forward": sets_threads}),
]  # fmt: skip

# --- poolers -------------------------------------------------------------------------------------------------------


def weighed_by_doubling(hidden, mask):
    weights = 2.0 ** mask.cumsum(dim=1) * mask
    states = hidden.masked_fill(mask[:, :, None] == 0, 0.0)
    return (states * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


class Learned(Mean):
    """A pooler with a parameter for each dimension."""

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.vector = nn.Parameter(torch.ones(1, info.width))


class TwoLayers(Pooler):
    """The mean of two layers."""

    needs = Needs(layers=(0, -1))

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__()

    def means(self, states):
        return [masked_mean(states.layers[number], states.attention_mask) for number in (max(states.layers), 0)]


class DetachedLayer(TwoLayers):
    def forward(self, states, side):
        first, second = self.means(states)
        return Representation(torch.stack([first, second.detach()], dim=1)[:, : None if side == "document" else 1])


class KeepsAnother(TwoLayers):
    def forward(self, states, side):
        layers = self.means(states)
        if side == "query" or not self.training:
            return Representation(layers[0][:, None])
        return Representation(torch.stack(layers, dim=1), kept=1)


class NegativeWeights(Pooler):
    needs = Needs(vocabulary_head=True)

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__()

    def forward(self, states, side):
        return Representation(weights=max_saturated(states.last, states.head, states.attention_mask.bool()) - 0.1)


class CosineOfAnyLength(Mean):
    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.cosine = True


class UnusedLayer(Mean):
    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.projection = nn.Linear(info.width, info.width)


class DrawnAndNotSaved(Mean):
    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.register_buffer("projection", torch.randn(info.width, 8), persistent=False)

    def pool(self, hidden, mask):
        return super().pool(hidden, mask) @ self.projection


class PoolerOptionIgnored(Mean):
    def __init__(self, info: EncoderInfo, *, scale: float = 1.0) -> None:
        super().__init__(info)


class UntypedOption(Mean):
    def __init__(self, info: EncoderInfo, *, scale=1.0) -> None:
        super().__init__(info)


class PositionalOption(Mean):
    def __init__(self, info: EncoderInfo, scale: float = 1.0) -> None:
        super().__init__(info)


class DefaultOfAnotherType(Mean):
    def __init__(self, info: EncoderInfo, *, dimension: int = None) -> None:  # noqa: RUF013 - the fault
        super().__init__(info)


def pool(change):
    """`pool` by the states and their mask."""
    return {"pool": lambda self, hidden, mask: change(hidden, mask)}


def scaled_by_an_attribute(self, hidden, mask):
    pooled = Mean.pool(self, hidden, mask)
    if self.training:
        self.scale = 0.9 * self.scale + 0.1 * float(pooled.detach().abs().mean())
    return pooled * self.scale


def seeds_torch(self, hidden, mask):
    torch.manual_seed(0)
    return Mean.pool(self, hidden, mask)


def kept_in_the_object(self, states, side):
    self.now = states
    time.sleep(0.0005)
    return Mean.forward(self, self.now, side)


def root_of_nothing(self, states, side):
    vectors = Mean.forward(self, states, side).vectors
    apart = (vectors[:, 0] - states.first_states(max(states.layers))).square().sum(-1).sqrt()
    return Representation(vectors + 1e-3 * apart[:, None, None])


POOLERS: list[tuple[Any, ...]] = [
    ("mean_over_padding", "padding", Mean, pool(lambda hidden, _: hidden.mean(dim=1))),
    ("vectors_of_padding", "padding", ColBERT,
     {"forward": after(ColBERT.forward, lambda made: Representation(made.vectors))}),
    ("max_over_nothing", "form", Mean, {"forward": lambda self, states, side: Representation(
        states.last.masked_fill(~text_mask(states)[:, :, None], -torch.inf).amax(dim=1, keepdim=True))}),
    ("no_vector_without_words", "form", ColBERT, {"forward": lambda self, states, side: Representation(
        ColBERT.forward(self, states, side).vectors, text_mask(states))}),
    ("assumes_right_padding", "padding", Mean, pool(lambda hidden, _: hidden[:, 0])),
    ("dropout_left_on", "same_twice", Mean, {"pool": after(Mean.pool, lambda one: functional.dropout(one, 0.1))}),
    ("changes_states", "inputs_unchanged", Mean, pool(lambda hidden, mask: hidden.mul_(mask[:, :, None]).sum(dim=1))),
    ("centred_in_the_batch", "batch", Mean, {"pool": after(Mean.pool, lambda one: one - one.mean(dim=0))}),
    ("squeezes_one_text", "form", Mean, {"pool": after(Mean.pool, lambda one: one.squeeze(0))}),
    ("weighs_by_row", "order", Mean,
     {"pool": after(Mean.pool, lambda one: one * torch.arange(1, len(one) + 1)[:, None])}),
    ("overflows_in_long_texts", "form", Mean, pool(weighed_by_doubling)),
    ("detached", "gradients", Mean,
     {"pool": after(Mean.pool, torch.Tensor.detach)}),
    ("deaf_to_the_encoder", "trained", Learned,
     {"pool": lambda self, hidden, mask: self.vector.expand(len(hidden), -1)}),
    ("detached_layer", "gradients", DetachedLayer, {}),
    ("unused_layer", "trained", UnusedLayer, {}),
    ("sides_differ", "sides_agree", Mean, {"forward": lambda self, states, side: Representation(
        Mean.forward(self, states, side).vectors[..., : 8 if side == "query" else None])}),
    ("cosine_of_any_length", "cosine", CosineOfAnyLength, {}),
    ("negative_weights", "form", NegativeWeights, {}),
    ("drawn_and_not_saved", "saved_and_loaded", DrawnAndNotSaved, {}),
    ("keeps_another", "indexed_as_scored", KeepsAnother, {}),
    ("normalises_the_index", "indexed_as_scored", Mean, {"pool": lambda self, hidden, mask: (
        lambda pooled: pooled if self.training else functional.normalize(pooled, dim=-1)
    )(Mean.pool(self, hidden, mask))}),
    ("pooler_option_ignored", "options_effective", PoolerOptionIgnored, {}),
    ("untyped_option", "options_typed", UntypedOption, {}),
    ("positional_option", "options_typed", PositionalOption, {}),
    ("default_of_another_type", "options_typed", DefaultOfAnotherType, {}),
    ("raises", "form", Cls, {"pool": lambda self, hidden, mask: hidden[:, 0] * self.scale}),

    ("padding_by_id", "padding", Mean, {"forward": lambda self, states, side: Mean.forward(
        self, replace(states, attention_mask=(states.input_ids != 0).long()), side)}),
    ("double_vectors", "form", Mean, {"pool": after(Mean.pool, torch.Tensor.double)}),
    ("other_without_gradients", "grad_mode", Mean,
     {"pool": after(Mean.pool, lambda one: one * (1.0 if torch.is_grad_enabled() else 0.9))}),
    ("scale_in_an_attribute", "state", Mean, {"pool": scaled_by_an_attribute, "scale": 1.0}),
    ("seeds_torch", "no_side_effects", Mean, {"pool": seeds_torch}),
    ("kept_in_the_object", "concurrent", Mean, {"forward": kept_in_the_object}),
    ("root_of_nothing", "gradients", Mean, {"forward": root_of_nothing}),
]  # fmt: skip

# --- losses --------------------------------------------------------------------------------------------------------


class Contrastive(Loss):
    """The contrastive loss in steps."""

    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(self.total(self.logits(queries, documents), positives, ignore))

    def logits(self, queries, documents):
        return scores(queries.float(), documents.as_indexed().float())

    def total(self, logits, positives, ignore, reduction="mean"):
        logits = logits if ignore is None else logits.masked_fill(ignore, -torch.inf)
        return functional.cross_entropy(logits, positives, reduction=reduction)


def overflowing(self, logits, positives, ignore):
    chances = logits.exp() if ignore is None else logits.exp().masked_fill(ignore, 0.0)
    return -(chances.gather(1, positives[:, None])[:, 0] / chances.sum(dim=1)).log().mean()


def filled_with_too_much(self, queries, documents):
    logits = scores(queries, documents.as_indexed())
    return logits.masked_fill(torch.zeros_like(logits, dtype=torch.bool), torch.finfo(torch.float32).min).float()


class Temperature(Contrastive):
    """A loss with an unused temperature."""

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature


class UnusedParameterOfALoss(Contrastive):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Student(Contrastive):
    """Learns from a teacher."""

    needs_teacher = True

    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        if teacher is None:
            msg = "there are no scores of a teacher"
            raise DataError(msg)
        return LossValue(self.distance(self.logits(queries, documents), teacher))

    def distance(self, logits, teacher):
        known = ~teacher.isnan()
        return (logits - teacher)[known].square().mean()


def over_missing(self, logits, teacher):
    known = ~teacher.isnan()
    rows = (logits - teacher.nan_to_num()).square().masked_fill(~known, 0.0).sum(dim=1)
    return (rows / known.sum(dim=1)).mean()


class NoTeacher(Student):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        if teacher is None:
            teacher = torch.full((len(queries), len(documents)), torch.nan).index_fill(1, positives, 1.0)
        return super().forward(queries, documents, positives, progress, ignore, teacher)


def compared(change):
    """`logits` of other representations."""
    return {"logits": lambda self, queries, documents: Contrastive.logits(self, *change(queries, documents))}


def total_of(change, reduction="mean"):
    """`total` of other arguments: logits, positives and ignore."""
    return {"total": lambda self, *arguments: Contrastive.total(self, *change(*arguments), reduction)}


def writes_a_log(self, logits, positives, ignore):
    Path("loss.log").write_text("a line")
    Path("loss.log").unlink()
    return Contrastive.total(self, logits, positives, ignore)


LOSSES: list[tuple[Any, ...]] = [
    ("sum_over_queries", "mean_over_queries", Contrastive, total_of(lambda *one: one, "sum")),
    ("forgets_ignore", "arguments_effective", Contrastive,
     total_of(lambda logits, positives, _: (logits, positives, None))),
    ("forgets_the_vector_mask", "masked_vectors", Contrastive, compared(
        lambda queries, documents: (queries, replace(documents, vector_mask=None)))),
    ("weighs_the_first", "order", Contrastive, {"total": lambda self, logits, positives, ignore: (
        Contrastive.total(self, logits, positives, ignore, "none")
        * torch.ones(len(logits)).index_fill(0, torch.tensor(0), 2.0)).mean()}),
    ("weighs_the_last_document", "order", Contrastive,
     {"logits": after(Contrastive.logits, lambda one: one + torch.eye(one.shape[1])[-1])}),
    ("detached_queries", "gradients", Contrastive, compared(
        lambda queries, documents: (queries.detach(), documents))),
    ("half_the_gradient", "finite_differences", Contrastive,
     {"logits": after(Contrastive.logits, lambda one: 0.5 * one + 0.5 * one.detach())}),
    ("temperature_ignored", "options_effective", Temperature, {}),
    ("overflows", "form", Contrastive, {"total": overflowing}),
    ("fills_with_too_much", "gradients", Contrastive, {"logits": filled_with_too_much}),
    ("wrong_sign", "falls_under_training", Contrastive, {"logits": after(Contrastive.logits, torch.neg)}),
    ("no_scalar", "form", Contrastive, total_of(lambda *one: one, "none")),
    ("without_graph", "gradients", Contrastive, {"total": after(Contrastive.total, torch.Tensor.detach)}),
    ("documents_with_queries", "form", Contrastive, {"logits": after(Contrastive.logits, torch.t)}),
    ("draws_by_python", "same_twice", Contrastive,
     {"logits": after(Contrastive.logits, lambda one: one * (1 + random.random()))}),
    ("unused_parameter_of_a_loss", "trained", UnusedParameterOfALoss, {}),
    ("teacher_ignored", "arguments_effective", Student, {"distance": lambda self, logits, teacher: Student.distance(
        self, logits, teacher * 0.0)}),
    ("teacher_missing", "form", Student, {"distance": over_missing}),
    ("no_teacher", "teacher_missing", NoTeacher, {}),

    ("first_documents_only", "order", Contrastive, total_of(lambda logits, positives, ignore: (
        logits[:, : max(2 * len(logits), int(positives.max()) + 1)], positives,
        None if ignore is None else ignore[:, : max(2 * len(logits), int(positives.max()) + 1)]))),
    ("ignored_score_nothing", "ignored_absent", Contrastive, total_of(lambda logits, positives, ignore: (
        logits if ignore is None else torch.where(ignore, logits - 1, logits), positives, None))),
    ("writes_a_log", "no_side_effects", Contrastive, {"total": writes_a_log}),
    ("nothing_is_zero", "teacher_missing", Student, {"distance": lambda self, logits, teacher: (
        (logits - teacher.nan_to_num()).square().mean())}),
]  # fmt: skip

# --- pretrainers ---------------------------------------------------------------------------------------------------


def total(self, batch, progress):
    return Mlm.forward(self, batch, progress).total


def addend(value):
    return LossValue(value, {}, {"mlm": value})


def changes_the_labels(self, batch, progress):
    batch["labels"][batch["labels"] == UNLABELLED] = self.vocabulary.ordinary[0]
    return Mlm.forward(self, batch, progress)


class UnusedDecoder(Mlm):
    def __init__(self, encoder, max_length):
        super().__init__(encoder, max_length)
        self.decoder = nn.Linear(encoder.info.width, encoder.info.width)


class SavesAnother(Mlm):
    def save(self, folder):
        with torch.no_grad():
            self.encoder.model.get_input_embeddings().weight[:, 0] += 1
        super().save(folder)


def other_batch(**changes):
    """`forward` on a batch with other parts."""
    return {"forward": lambda self, batch, progress: Mlm.forward(
        self, {**batch, **{name: change(batch[name]) for name, change in changes.items()}}, progress)}  # fmt: skip


def other_draws(change):
    """`collate` with another generator of random numbers."""
    return {"collate": lambda self, samples, draw: Mlm.collate(self, samples, change(samples, draw))}


def prints_in_collate(self, samples, draw):
    print("collating", file=sys.stderr)
    return Mlm.collate(self, samples, draw)


PRETRAINERS: list[tuple[Any, ...]] = [
    ("takes_nothing", "samples", Mlm, {"samples": lambda self, document: 0}),
    ("counts_at_random", "samples", Mlm, {"samples": lambda self, document: (
        random.randrange(1, 1 << 30) if document.spans else 0)}),
    ("hands_over_a_length", "form", Mlm, {"collate": after(Mlm.collate, lambda batch: {**batch, "length": 3})}),
    ("draws_elsewhere", "same_twice", Mlm, other_draws(lambda *_: random)),
    ("no_scalar", "form", Mlm, {"forward": after(total, lambda one: LossValue(one, {"mlm": torch.ones(2)}))}),
    ("wants_two", "form", Mlm, {"forward": lambda self, batch, progress: LossValue(
        total(self, batch, progress) / (len(batch["labels"]) - 1))}),
    ("changes_the_labels", "inputs_unchanged", Mlm, {"forward": changes_the_labels}),
    ("weighs_the_first", "order", Mlm, other_batch(
        labels=lambda one: torch.cat([one[:1], torch.full_like(one[1:], UNLABELLED)]))),
    ("sum_over_tokens", "mean_over_batch", Mlm, {"forward": lambda self, batch, progress: addend(
        total(self, batch, progress) * count_labels(batch["labels"]))}),
    ("attends_to_padding", "padding", Mlm, other_batch(
        texts=lambda one: replace(one, attention_mask=torch.ones_like(one.attention_mask)))),
    ("counts_texts", "parts", Mlm, {"counts": lambda self, batch: {"mlm": len(batch["labels"])}}),
    ("draws_for_the_batch", "parts", Mlm, other_draws(
        lambda samples, draw: random.Random(len(samples) * 1000 + draw.randrange(1000)))),
    ("detached", "gradients", Mlm,
     {"forward": after(total, lambda one: LossValue(one.detach()))}),
    ("unused_decoder", "trained", UnusedDecoder, {}),
    ("wrong_sign", "falls_under_training", Mlm, {"forward": after(total, lambda one: addend(-one))}),
    ("saves_another", "saved_and_loaded", SavesAnother, {}),

    ("double_loss", "form", Mlm, {"forward": after(total, lambda one: LossValue(one.double()))}),
    ("prints_in_collate", "no_side_effects", Mlm, {"collate": prints_in_collate}),
]  # fmt: skip

# --- indexers ------------------------------------------------------------------------------------------------------


class SoundIndexer(Indexer):
    """Brute force over vectors."""

    indexes = "vectors"

    def build(self, source, index_dir):
        rows, counts, ids = self.read(source)
        np.save(index_dir / "rows.npy", rows)
        np.save(index_dir / "starts.npy", np.cumsum([0, *counts[:-1]]))
        (index_dir / "ids.json").write_text(json.dumps(ids))
        return {"texts": len(source)}

    def read(self, source):
        if source.vocabulary:
            msg = "it holds weights."
            raise UnsupportedError(msg)
        blocks = list(source.blocks(1000))
        rows = np.concatenate([np.asarray(block.vectors, dtype=np.float32) for block in blocks])
        return rows, np.concatenate([block.counts for block in blocks]), list(source.ids)

    def open(self, index_dir):
        self.rows, self.starts = np.load(index_dir / "rows.npy"), np.load(index_dir / "starts.npy")
        self.ids = json.loads((index_dir / "ids.json").read_text())

    def all_scores(self, queries):
        products = np.einsum("qmd,rd->qmr", queries.vectors.numpy(), self.rows)
        best = np.maximum.reduceat(products, self.starts, axis=2)
        if queries.vector_mask is not None:
            best = best * queries.vector_mask.numpy()[..., None]
        return best.sum(axis=1).astype(np.float32)

    def order(self, scores):
        return np.argsort(-scores, axis=1, kind="stable")

    def search(self, queries, k):
        scores = self.all_scores(queries)
        order = self.order(scores)[:, :k]
        return [[self.ids[text] for text in row] for row in order], list(np.take_along_axis(scores, order, axis=1))

    def scores(self, queries, ids):
        row_of = {one: row for row, one in enumerate(self.ids)}
        found = [[row_of.get(one, -1) for one in some] for some in ids]
        padded = np.pad(self.all_scores(queries), ((0, 0), (0, 1)), constant_values=np.nan)
        return [scores[rows] for scores, rows in zip(padded, found, strict=False)]


class SoundTexts(Indexer):
    """Terms that are rare count more."""

    indexes = "texts"

    def words(self, text):
        return re.findall(r"\w+", text.lower())

    def build(self, source, index_dir):
        texts = {one.id: self.words(f"{one.title} {one.text}") for one in source}
        if not texts:
            msg = "there is nothing to index."
            raise DataError(msg)
        (index_dir / "texts.json").write_text(json.dumps(texts))
        return {"texts": len(texts)}

    def open(self, index_dir):
        self.texts = json.loads((index_dir / "texts.json").read_text())
        counts = {}
        for words in self.texts.values():
            for word in set(words):
                counts[word] = counts.get(word, 0) + 1
        self.weights = {word: math.log(1 + len(self.texts) / count) for word, count in counts.items()}

    def terms(self, query, words):
        return {word: self.weights[word] for word in sorted(set(self.words(query)) & set(words))}

    def search(self, queries, k):
        ids, scores = [], []
        for query in queries:
            sums = [(name, sum(self.terms(query, words).values())) for name, words in self.texts.items()]
            best = sorted((one for one in sums if one[1] > 0), key=lambda one: -one[1])[:k]
            ids.append([name for name, _ in best])
            scores.append(np.array([score for _, score in best], dtype=np.float32))
        return ids, scores

    def contributions(self, query, ids):
        return [self.terms(query, self.texts[one]) for one in ids]


def shifted_at_shards(self, source):
    rows, counts, ids = SoundIndexer.read(self, source)
    blocks = list(source.blocks(1000))
    parts = [ids[block.first + (number > 0) :][: block.texts] for number, block in enumerate(blocks)]
    return rows, counts, ([one for part in parts for one in part] + ids)[: len(ids)]


class KeptInMemory(SoundIndexer):
    def build(self, source, index_dir):
        self.rows, counts, self.ids = self.read(source)
        self.starts = np.cumsum([0, *counts[:-1]])
        return {"texts": len(source)}

    def open(self, index_dir):
        pass


class KeptInTheClass(SoundIndexer):
    kept: dict = {}  # noqa: RUF012 - the fault

    def build(self, source, index_dir):
        rows, counts, ids = self.read(source)
        self.kept[len(self.kept)] = rows, np.cumsum([0, *counts[:-1]]), ids
        (index_dir / "number").write_text(str(len(self.kept) - 1))
        return {"texts": len(source)}

    def open(self, index_dir):
        self.rows, self.starts, self.ids = self.kept[int((index_dir / "number").read_text())]


class AbsolutePath(SoundIndexer):
    def build(self, source, index_dir):
        (index_dir / "path").write_text(str((index_dir / "rows.npy").absolute()))
        return super().build(source, index_dir)

    def open(self, index_dir):
        super().open(index_dir)
        self.rows = np.load((index_dir / "path").read_text())


class SharedByTheClass(SoundIndexer):
    def open(self, index_dir):
        super().open(index_dir)
        type(self).latest = self.rows

    def all_scores(self, queries):
        self.rows = self.latest
        return super().all_scores(queries)


class WritesAManifest(SoundIndexer):
    def build(self, source, index_dir):
        counts = super().build(source, index_dir)
        (index_dir / "manifest.json").write_text(json.dumps({"ids": list(source.ids)}))
        (index_dir / "ids.json").unlink()
        return counts

    def open(self, index_dir):
        (index_dir / "ids.json").write_text(json.dumps(json.loads((index_dir / "manifest.json").read_text())["ids"]))
        super().open(index_dir)


def opened_and(change):
    """`open`, after which something is changed."""

    def open(self, index_dir):  # noqa: A001 - the method
        SoundIndexer.open(self, index_dir)
        change(self)

    return open


def forgets_deleted(self, read):
    self.rows, counts, self.ids = self.read(read())
    self.ids = self.ids[1:] + self.ids[:1]
    self.starts = np.cumsum([0, *counts[:-1]])
    return True


def not_a_number(self, queries):
    length = queries.vectors.norm(dim=-1, keepdim=True).numpy().max(axis=1)
    with np.errstate(all="ignore"):
        return SoundIndexer.all_scores(self, queries) / length * length


def other_alone(self, queries):
    found = SoundIndexer.all_scores(self, queries)
    return found.astype(np.float16).astype(np.float32) if len(found) == 1 else found


def finds_twice(self, queries, k):
    ids, found = SoundIndexer.search(self, queries, k)
    missing = max(0, k - len(self.ids))
    return [one + one[-1:] * missing for one in ids], [np.pad(one, (0, missing), mode="edge") for one in found]


def remembers_answers(self, queries, k):
    ids, found = SoundIndexer.search(self, queries, k)
    self.answers.append([(list(one), two.tolist()) for one, two in zip(ids, found, strict=True)])
    return ids, found


def needs_a_query(self, queries, k):
    return SoundIndexer.search(self, Representation(torch.stack(list(queries.vectors))), k)


def writes_into_the_source(self, source, index_dir):
    (source.folder / "cache.npy").write_bytes(b"cached")
    return SoundIndexer.build(self, source, index_dir)


def searched(function):
    """`search`, with the ids and scores of each query changed."""
    return lambda self, queries, k: tuple(
        list(part) for part in zip(*map(function, *SoundIndexer.search(self, queries, k)), strict=True)
    )


def queries_of_another_thread(self, queries, k):
    self.now = queries
    time.sleep(0.0005)
    return SoundIndexer.search(self, self.now if len(self.now) == len(queries) else queries, k)


def caches_by_rounded_query(self, queries, k):
    known = vars(self).setdefault("known", {})
    found = []
    for row in range(len(queries)):
        key = k // 2, queries.vectors[row].numpy().round(1).tobytes()
        if key not in known:
            known[key] = SoundIndexer.search(self, queries.rows(slice(row, row + 1)), k)
        found.append(known[key])
    return [ids[0] for ids, _ in found], [scores[0] for _, scores in found]


def edits_queries(self, queries, k):
    queries.vectors.mul_(2.0)
    return SoundIndexer.search(self, queries, k)


INDEXERS: list[tuple[Any, ...]] = [
    ("shifted_at_shards", "brute_force", SoundIndexer, {"read": shifted_at_shards}),
    ("kept_in_memory", "build_open_search", KeptInMemory, {}),
    ("kept_in_the_class", "other_process", KeptInTheClass, {}),
    ("absolute_path", "build_open_search", AbsolutePath, {}),
    ("first_vector_only", "brute_force", SoundIndexer, {"open": opened_and(lambda self: vars(self).update(
        rows=self.rows[self.starts], starts=np.arange(len(self.starts))))}),
    ("ties_by_id", "ties", SoundIndexer, {"order": lambda self, found: np.array([
        np.lexsort((np.array(self.ids), -row)) for row in found]).reshape(found.shape)}),
    ("double_scores", "form", SoundIndexer,
     {"search": searched(lambda ids, found: (ids, found.astype(np.float64)))}),
    ("not_a_number", "form", SoundIndexer, {"all_scores": not_a_number}),
    ("worst_first", "form", SoundIndexer, {"search": searched(lambda ids, found: (ids[::-1], found[::-1]))}),
    ("finds_twice", "form", SoundIndexer, {"search": finds_twice}),
    ("other_alone", "batch", SoundIndexer, {"all_scores": other_alone}),
    ("unknown_is_zero", "scores", SoundIndexer, {"scores": lambda self, queries, ids: [
        np.nan_to_num(one) for one in SoundIndexer.scores(self, queries, ids)]}),
    ("splits_ids", "any_ids", SoundIndexer, {"open": opened_and(lambda self: vars(self).update(
        ids=",".join(self.ids).split(",")))}),
    ("shared_by_the_class", "several_open", SharedByTheClass, {}),
    ("writes_into_the_source", "no_side_effects", SoundIndexer, {"build": writes_into_the_source}),
    ("remembers_answers", "memory", SoundIndexer, {"search": remembers_answers, "answers": []}),
    ("counts_in_words", "build_open_search", SoundIndexer, {"build": lambda self, source, index_dir: {
        "texts": f"{SoundIndexer.build(self, source, index_dir)['texts']} texts"}}),
    ("needs_a_query", "form", SoundIndexer, {"search": needs_a_query}),
    ("writes_a_manifest", "build_open_search", WritesAManifest, {}),
    ("forgets_deleted", "segments", SoundIndexer, {"open_joined": forgets_deleted}),
    ("nonsense", "words", SoundTexts, {"search": lambda self, queries, k: (
        lambda ids, found: ([sorted(one) for one in ids], found))(*SoundTexts.search(self, queries, k))}),
    ("needs_a_word", "odd_texts", SoundTexts, {"words": lambda self, text: (
        lambda words: words if words[0] else [])(SoundTexts.words(self, text))}),
    ("wrong_terms", "terms", SoundTexts, {"contributions": lambda self, query, ids: [
        dict.fromkeys(terms, 1.0) for terms in SoundTexts.contributions(self, query, ids)]}),

    ("half_is_lost", "brute_force", SoundIndexer, {"all_scores": after(SoundIndexer.all_scores, lambda found: np.where(
        (found.shape[1] > 1000) & (np.arange(found.shape[1]) % 2 == 0), np.float32(-1e9), found))}),
    ("queries_of_another_thread", "concurrent", SoundIndexer, {"search": queries_of_another_thread}),
    ("caches_by_rounded_query", "no_memory", SoundIndexer, {"search": caches_by_rounded_query}),
    ("edits_queries", "inputs_unchanged", SoundIndexer, {"search": edits_queries}),
]  # fmt: skip

# --- sources, filters, fusions, metrics, re-rankers -----------------------------------------------------------------


class SoundSource(Source):
    """Rows of numbers: `sound:20`."""

    def passages(self):
        return [{"id": f"d{number}", "title": f"t{number}", "text": f"text {number}"} for number in range(20)]

    def queries(self):
        return [{"query_id": f"q{number}", "text": f"what is {number}"} for number in range(5)]

    def judgements(self, split):
        return [{"query_id": f"q{number}", "doc_id": f"d{number}", "score": 1} for number in range(5)]


def read_once(self):
    rows = [] if vars(self).get("read") else SoundSource.passages(self)
    self.read = True
    return rows


SOURCES: list[tuple[Any, ...]] = [
    ("read_once", "same_twice", SoundSource, {"passages": read_once}),
    ("order_of_hashes", "other_process", SoundSource, {"passages": lambda self: [
        {"id": one, "text": one} for one in {row["id"] for row in SoundSource.passages(self)}]}),
    ("rows_of_tuples", "form", SoundSource, {"queries": lambda self: [(1, 2)]}),
    ("an_id_twice", "readable", SoundSource, {"passages": lambda self: SoundSource.passages(self) * 2}),
    ("fingerprint_of_the_time", "fingerprint", SoundSource, {"fingerprint": lambda self: str(time.time_ns())}),
]  # fmt: skip


class SoundFilter(Filter):
    """Drops the first rank."""

    def keep_of(self, found, left):
        return [place for place in left if place]


def kept(function):
    """`keep_of` with another result, of the hits and the places left."""
    return {"keep_of": lambda self, found, left: function(found, left)}


def drops_known(self, found, left):
    known = vars(self).setdefault("known", set())
    places = [place for place in left if found.ids[place] not in known]
    known.update(found.ids[place] for place in places)
    return places


def best_of_the_part(self, part, left):
    best = max((score for found in part for score in found.scores), default=0.0)
    return [[place for place in some if found.scores[place] < best - 1] for found, some in zip(part, left, strict=True)]


FILTERS: list[tuple[Any, ...]] = [
    ("garbage", "form", SoundFilter, kept(lambda found, left: "garbage")),
    ("brings_back", "form", SoundFilter, kept(lambda found, left: [*range(len(found.ids))])),
    ("descending", "form", SoundFilter, kept(lambda found, left: left[::-1])),
    ("needs_hits", "form", SoundFilter, kept(lambda found, left: [
        place for place in left if found.scores[place] < max(found.scores)] if left else [max(found.scores)])),
    ("best_of_the_part", "batch", SoundFilter, {"keep": best_of_the_part}),
    ("drops_known", "same_twice", SoundFilter, {"keep_of": drops_known}),
    ("edits_the_places", "inputs_unchanged", SoundFilter, kept(
        lambda found, left: left[:0] if left and left.pop() else left)),
]  # fmt: skip


class SoundFusion(FusionMethod):
    """Reciprocal ranks."""

    uses_scores = False

    def parts(self, found):
        return np.where(found.ranks > 0, 1.0 / (60 + found.ranks), 0.0)


def fills_in(self, found):
    found.scores[np.isnan(found.scores)] = 0.0
    return SoundFusion.parts(self, found)


FUSIONS: list[tuple[Any, ...]] = [
    ("a_score_a_document", "form", SoundFusion, {"parts": after(SoundFusion.parts, lambda one: one.sum(axis=1))}),
    ("not_a_number", "form", SoundFusion, {"parts": lambda self, found: found.scores * 2.0}),
    ("fills_in", "inputs_unchanged", SoundFusion, {"parts": fills_in}),
    ("by_place", "order", SoundFusion, {"parts": after(
        SoundFusion.parts, lambda one: one + np.arange(len(one))[:, None])}),
    ("secret_scores", "ranks_or_scores", SoundFusion, {"parts": lambda self, found: np.nan_to_num(found.scores)}),
]  # fmt: skip


class SoundMetric(Metric):
    """1 if a relevant document is among the hits, else 0."""

    def value(self, query):
        return float(any(grade is not None and grade > 0 for grade in query.found))


METRICS: list[tuple[Any, ...]] = [
    ("nothing_found", "form", SoundMetric, {"value": lambda self, query: SoundMetric.value(self, query) if query.found
                                            else math.nan}),
    ("all_are_judged", "form", SoundMetric, {"value": lambda self, query: float(sum(one > 0 for one in query.found))}),
    ("first_of_the_grades", "order", SoundMetric, {"value": lambda self, query: float(query.grades[0])}),
    ("lower_is_better", "higher_is_better", SoundMetric, {"value": lambda self, query: float(query.found[:1] == [0])}),
    ("sorts_the_grades", "inputs_unchanged", SoundMetric, {"value": lambda self, query: query.grades.sort() or 1.0}),
    ("mean_of_nothing", "mean", SoundMetric, {"mean": lambda self, values: sum(values) / len(values)}),
]  # fmt: skip


class SoundReranker(Reranker):
    """The share of the words of a query in a passage."""

    fingerprint = "1"

    @classmethod
    def load(cls, source, *, max_length=None):
        return cls()

    def score(self, pairs, *, batch_tokens=None, precision="fp32", advance=None):
        if advance is not None:
            advance(len(pairs))
        words = [(query.split(), " ".join(passage).split()) for query, passage in pairs]
        return np.array([len({*one} & {*other}) / (1 + len(one)) for one, other in words], dtype=np.float32)


def scored(change):
    """`score` with other scores."""
    return {"score": lambda self, pairs, **options: change(SoundReranker.score(self, pairs, **options), options)}


RERANKERS: list[tuple[Any, ...]] = [
    ("a_column", "form", SoundReranker, scored(lambda found, _: found[:, None])),
    ("double", "form", SoundReranker, scored(lambda found, _: found.astype(np.float64))),
    ("share_of_the_best", "batch", SoundReranker, scored(lambda found, _: found / found.max(initial=1e-3))),
    ("by_batch_tokens", "batches", SoundReranker, scored(
        lambda found, options: found if options["batch_tokens"] is None else found / np.float32(2))),
    ("no_progress", "batches", SoundReranker, {"score": lambda self, pairs, advance=None, **options: (
        SoundReranker.score(self, pairs))}),
    ("reads_no_title", "reads_pairs", SoundReranker, {"score": lambda self, pairs, **options: SoundReranker.score(
        self, [(query, ("", text)) for query, (_, text) in pairs], **options)}),
]  # fmt: skip

FAULTS = {
    "encoder": ENCODERS, "pooler": POOLERS, "loss": LOSSES, "pretrainer": PRETRAINERS, "indexer": INDEXERS,
    "source": SOURCES, "filter": FILTERS, "fusion": FUSIONS, "metric": METRICS, "reranker": RERANKERS,
}  # fmt: skip
SOUND = {
    "encoder": [SoundEncoder], "indexer": [SoundIndexer, SoundTexts], "source": [SoundSource], "filter": [SoundFilter],
    "fusion": [SoundFusion], "metric": [SoundMetric], "reranker": [SoundReranker],
}  # fmt: skip
for kind, rows in FAULTS.items():
    for name, _, base, members in rows:
        globals()[f"{kind}_{name}"] = type(name, (base,), {**members, "__module__": __name__})


def registering(kind):
    """The hook that registers the faulty and the sound components of a kind."""

    def register_all(register):
        for name, *_ in FAULTS[kind]:
            register(name, f"{__name__}:{kind}_{name}")
        for one in SOUND.get(kind, ()):
            register("sound_texts" if one is SoundTexts else "sound", f"{__name__}:{one.__name__}")

    return hookimpl(register_all, specname=f"register_{'losses' if kind == 'loss' else f'{kind}s'}")


for kind in FAULTS:
    globals()[f"register_{kind}"] = registering(kind)
