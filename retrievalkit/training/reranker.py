"""Training of a cross-encoder re-ranker: data, model, and the steps of `rkit rerank train`, on lists of passages.

Passages are compared only within a query's list, so a step can be computed a few queries at a time, whose gradients add
up to the gradient of the whole step: memory is bounded without encoding twice.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Self

import torch
import transformers
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from retrievalkit import storage
from retrievalkit.contracts import LossValue, Progress
from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example, Examples
from retrievalkit.data.same_text import passage_digest
from retrievalkit.errors import InputError
from retrievalkit.models.batches import token_budget_batches
from retrievalkit.models.cross_encoder import CPU_BATCH_TOKENS, KIND, CrossEncoder, to_device
from retrievalkit.models.precision import Precision, autocast, default_device, resolve_precision
from retrievalkit.models.pretrained import model_fingerprint
from retrievalkit.reporting import notices
from retrievalkit.training.collective import ALONE, Collective
from retrievalkit.training.examples import ExampleData, examples_at
from retrievalkit.training.loop import Key
from retrievalkit.training.microbatch import Part, PartedTraining, Parts, slices
from retrievalkit.training.options import TrainRerankerOptions
from retrievalkit.training.pages import Manifest, model_card
from retrievalkit.training.sampling import Draw, ExampleSampler, Known, StepAssembler, hold_out, limited
from retrievalkit.training.selection import LISTED, MOST_MEASURED, Values, note_few, rank_metrics, report_held_out


def listwise(scores: Tensor, candidates: Tensor) -> Tensor:
    """Compute the softmax cross entropy of the positive within its list, summed over queries.

    With negatives from a retriever, this is localised contrastive estimation (LCE; Gao et al. 2021).

    Args:
        scores: (pairs,) scores of all pairs.
        candidates: (Q, c) long: for each query the rows of its pairs, the positive first; -1 is padding.
    """
    lists = scores[candidates.clamp(min=0)].masked_fill(candidates < 0, float("-inf"))  # (Q, c)
    return -lists.log_softmax(dim=1)[:, 0].sum()


def pointwise(scores: Tensor, candidates: Tensor) -> Tensor:
    """Compute the binary cross entropy of each pair (label 1 for the positive), summed over pairs.

    Args:
        scores: (pairs,) scores of all pairs.
        candidates: As for `listwise`.
    """
    present = candidates >= 0
    labels = torch.zeros_like(candidates, dtype=scores.dtype)
    labels[:, 0] = 1.0
    return functional.binary_cross_entropy_with_logits(scores[candidates[present]], labels[present], reduction="sum")


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"listwise": listwise, "pointwise": pointwise}


@dataclass(frozen=True)
class Lists:
    """A micro batch: queries of a step whose pairs are in memory at a time."""

    chunks: list[tuple[list[int], dict[str, Tensor]]]
    candidates: Tensor

    def to(self, device: torch.device) -> Self:
        """Return the same lists on another device."""
        chunks = [(rows, to_device(batch, device)) for rows, batch in self.chunks]
        return replace(self, chunks=chunks, candidates=self.candidates.to(device))


@dataclass
class DevLists:
    """Dev set for re-ranking: each question with its first known positives and hard negatives."""

    examples: Sequence[Example]
    passage: Callable[[str], Passage]
    collective: Collective = ALONE

    @cached_property
    def known(self) -> Known:
        """The positives of every question, which are not negatives of the question in another example."""
        return Known(self.examples)

    def measure(self, model: CrossEncoder, precision: Precision, at_once: int = 64) -> Values:
        """Return nDCG@10 and RR@10 of each question; of equal scores, negatives rank before positives."""

        def ranked(start: int) -> dict[str, list[float]]:
            rows = self.examples[start : start + at_once]
            lists, relevant = [], []
            for row in rows:
                known = {passage_digest(self.passage(identifier)) for identifier in self.known.positives(row)}
                hard = (passage for passage in map(self.passage, row.negatives) if passage_digest(passage) not in known)
                negatives, positives = list(islice(hard, LISTED)), list(map(self.passage, row.positives[:LISTED]))
                lists.append([*negatives, *positives])
                relevant.append(torch.arange(len(lists[-1])) >= len(negatives))
            passages = [passage for own in lists for passage in own]
            queries = [row.query for row, own in zip(rows, lists, strict=True) for _ in own]
            pairs = model.tokenize(queries, [(passage.title, passage.text) for passage in passages])
            scored = torch.from_numpy(model.score(pairs, precision=precision))
            scores = torch.split(scored, [len(own) for own in lists])
            padded = pad_sequence(list(scores), batch_first=True, padding_value=-torch.inf)
            return rank_metrics(padded, pad_sequence(relevant, batch_first=True))

        parts = self.collective.spread(ranked, range(0, len(self.examples), at_once))
        return {name: [value for part in parts for value in part[name]] for name in parts[0]}


class RerankerTraining(PartedTraining):
    """Trains a cross-encoder on lists of a positive and its hard negatives."""

    kind, command = KIND, "rerank train"
    module: CrossEncoder
    options: TrainRerankerOptions
    samples: ExampleSampler
    dev: DevLists | None = None

    def __init__(self, options: TrainRerankerOptions, collective: Collective = ALONE) -> None:
        self.collective = collective
        self.options, self.size = options, options.micro_batch_size
        data = ExampleData.read(options.examples, options.corpus, options.dev)
        rows, dropped = _with_negatives(data.train)
        if data.dev is not None:
            dev = limited(_with_negatives(data.dev)[0], MOST_MEASURED, options.seed)
        else:
            rows, dev = hold_out(rows, options)
            self.held_out = bool(dev)
        if dev:
            self.dev, self.measured_before = DevLists(dev, data.passage, collective), True
        self.samples = ExampleSampler.of(rows, options)
        self.counts = {"examples": len(self.samples), "without_negatives": dropped}
        if self.held_out:
            self.counts["held_out"] = len(dev)
        mask = options.false_negatives == "mask"
        self.assembler = StepAssembler(data.passage, data.train.rows, mask_false_negatives=mask)
        transformers.set_seed(options.seed)
        model = CrossEncoder.create(options.model, max_length=options.max_length, seed=options.seed)
        self.module = model.to(default_device())
        self.precision = resolve_precision(options.precision, model.device)
        self.batch_tokens = options.batch_tokens or model.limit.budget(model.device, CPU_BATCH_TOKENS)
        self.described = {
            "model": os.path.abspath(options.model) if os.path.isdir(options.model) else options.model,
            "training": options.training(),
        }
        fingerprint = model_fingerprint(options.model)
        self.inputs = {"model": storage.describe_input(options.model, fingerprint), **data.inputs}

    def dry_run(self) -> None:
        """Compute the loss of an example once: a wrong setup fails before anything is written."""
        note_few(self)
        part = self._part([self.samples.draw(0, 0)]).to(self.module.device)
        self.module.eval()
        with torch.no_grad():
            self.loss(part, Progress(0, 0.0, 1))

    def open(self, folder: Path) -> None:
        """Print the number of held-out examples."""
        del folder
        report_held_out(self)

    def collate(self, keys: Sequence[Key]) -> Parts:
        """Return the lists of this process."""
        draws, size = [self.samples.draw(position, epoch) for epoch, position in keys], self.size
        own = list(slices(len(draws), size, self.collective.size))[self.collective.rank]
        pairs = sum(1 + len(draw.negatives) for draw in draws)
        parts = [self._part(draws[part]) for part in own] or [self._part(draws[:1]).without_weight()]
        return Parts(parts, pairs, keys, size)

    def _part(self, draws: Sequence[Draw]) -> Part:
        """Return the lists of these draws, in batches of at most `batch_tokens` tokens, padding included."""
        queries: list[str] = []
        passages: list[tuple[str, str]] = []
        rows: list[list[int]] = []
        for draw in draws:
            # One query at a time, since passages are compared only within a query's list.
            texts = self.assembler.assemble([draw])
            ignored = {document for _, document in texts.ignore}
            kept = [text[:2] for row, text in enumerate(texts.documents) if row not in ignored]
            rows.append(list(range(len(passages), len(passages) + len(kept))))
            queries += [draw.example.query] * len(kept)
            passages += kept
        pairs = self.module.tokenize(queries, passages)
        batches = token_budget_batches([len(ids) for ids, _ in pairs], self.batch_tokens)
        chunks = [(batch, self.module.collate([pairs[row] for row in batch])) for batch in batches]
        width = max(map(len, rows))
        lists = Lists(chunks, torch.tensor([own + [-1] * (width - len(own)) for own in rows]))
        return Part({"lists": lists}, len(rows) if self.options.loss == "listwise" else len(passages))

    def loss(self, part: Part, progress: Progress) -> LossValue:  # noqa: ARG002 - the same at every point
        """Return the mean loss over the queries (listwise) or pairs (pointwise) of a part."""
        lists: Lists = part.batch["lists"]
        device = lists.candidates.device
        with autocast(self.precision, device):
            computed = torch.cat([self.module(batch) for _, batch in lists.chunks])
        rows = torch.tensor([row for own, _ in lists.chunks for row in own], device=device)
        scores = torch.empty_like(computed).index_copy(0, rows, computed)  # (pairs,)
        return LossValue(LOSSES[self.options.loss](scores, lists.candidates) / max(1, part.size))

    def measure(self, epoch: int) -> Values:  # noqa: ARG002 - the same in every epoch
        """Return nDCG@10 and RR@10 of the dev questions after re-ranking their lists."""
        assert self.dev is not None
        return self.dev.measure(self.module, "fp32")

    def card(self, manifest: Manifest) -> str:
        """Return the model card of a re-ranker."""
        training = self.described["training"]
        return model_card(
            manifest,
            library_name="transformers",
            pipeline_tag="text-ranking",
            tags=["retrieval", "reranking", "cross-encoder"],
            title="A re-ranker",
            about="A cross-encoder, whose logit is the score of a query and a passage (title, space, text).",
            facts={
                "longest pair": f"{self.module.max_length} tokens",
                "examples": f"{manifest['counts']['examples']} from {manifest['inputs']['examples']['path']}",
                "loss": f"{training['loss']}, {training['negatives']} negatives",
            },
            use=(
                "Re-rank a run, or score examples for `rkit train --loss distill_kl`",
                "rkit rerank apply FOLDER --run RUN --queries QUERIES --corpus CORPUS --output RERANKED",
                "rkit rerank apply FOLDER --examples EXAMPLES --corpus CORPUS --output SCORED",
            ),
        )


def _with_negatives(examples: Examples) -> tuple[Sequence[Example], int]:
    """Return the examples with negatives to rank a positive against, and the number of examples without."""
    kept = array("I", (position for position, row in enumerate(examples.rows) if row.negatives))
    if not kept:
        problem = f"none of the {len(examples)} examples of '{examples.source}' has negatives, which train a re-ranker"
        msg = f"{problem}. Mine negatives: rkit mine-negatives --from bm25"
        raise InputError(msg)
    dropped = len(examples) - len(kept)
    if dropped:
        # The command's last line reports their number.
        notices.check(f"{dropped:,} of the {len(examples):,} examples of '{examples.source}' have no negatives.")
    return examples_at(examples.rows, kept), dropped
