"""How a re-ranker is trained: its data and model, and the steps of `rkit rerank train`, on lists of passages.

Each query's passages are compared among themselves only, so a step can be computed a few queries at a time, and the sum
of the gradients is that of the whole step: memory is bounded without encoding anything twice.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, Self

import torch
import transformers
from torch import Tensor
from torch.nn import functional

from retrievalkit import storage
from retrievalkit.contracts import LossValue, Progress
from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example, Examples
from retrievalkit.errors import InputError
from retrievalkit.models.batches import token_budget_batches
from retrievalkit.models.cross_encoder import KIND, CrossEncoder, default_batch_tokens, to_device
from retrievalkit.models.precision import Precision, autocast, default_device, resolve_precision
from retrievalkit.models.pretrained import model_fingerprint
from retrievalkit.reporting import notices
from retrievalkit.training import processes
from retrievalkit.training.examples import ExampleData, chosen
from retrievalkit.training.loop import Backward, Key, TrainingStep
from retrievalkit.training.microbatch import Part, Parts, run_parts, slices
from retrievalkit.training.options import RerankerOptions
from retrievalkit.training.sampling import Draw, ExampleSampler, StepAssembler, example_sampler
from retrievalkit.training.session import Manifest, Training, model_card
from retrievalkit.training.train_reranker import TrainRerankerOptions

Loss = Literal["listwise", "pointwise"]
_NEGATIVES_RANKED = 30


def prepare(options: TrainRerankerOptions) -> Training:
    """The training of a re-ranker, ready to start.

    Raises:
        InputError: The data or the model does not fit, or no example has negatives.
    """
    data = ExampleData.read(options.examples, options.corpus, options.dev)
    rows, dropped = _with_negatives(data.train)
    dev = None if data.dev is None else DevLists(_with_negatives(data.dev)[0], data.passage)
    samples = example_sampler(rows, options)
    assembler = StepAssembler(data.passage, data.train.rows, mask_false_negatives=options.false_negatives == "mask")
    transformers.set_seed(options.seed)
    reranker = CrossEncoder.create(options.model, max_length=options.max_length, seed=options.seed).to(default_device())
    described = {
        "model": os.path.abspath(options.model) if os.path.isdir(options.model) else options.model,
        "training": options.training(),
    }
    inputs = {"model": storage.describe_input(options.model, model_fingerprint(options.model)), **data.inputs}
    step = RerankerStep(reranker, samples, assembler, options, dev=dev, dropped=dropped)
    return Training(step, KIND, "rerank train", described, inputs, partial(_card, reranker.max_length))


def _with_negatives(examples: Examples) -> tuple[Sequence[Example], int]:
    """The examples that have negatives to rank a positive against, and the number of those that lack them."""
    kept = array("I", (position for position, row in enumerate(examples.rows) if row.negatives))
    if not kept:
        msg = (
            f"none of the {len(examples)} examples of '{examples.source}' has negatives, and a re-ranker learns to "
            f"rank a positive before them. Mine some: rkit mine-negatives --from bm25"
        )
        raise InputError(msg)
    dropped = len(examples) - len(kept)
    if dropped:
        # The command's last line counts them.
        notices.check(f"{dropped:,} of the {len(examples):,} examples of '{examples.source}' have no negatives.")
    return chosen(examples.rows, kept), dropped


def _card(max_length: int, manifest: Manifest) -> str:
    training = manifest["options"]["training"]
    return model_card(
        manifest,
        library_name="transformers",
        pipeline_tag="text-ranking",
        tags=["retrieval", "reranking", "cross-encoder"],
        title="A re-ranker",
        about="A cross-encoder that scores a query and a passage (title, space, text) together: its one logit.",
        facts={
            "longest pair": f"{max_length} tokens",
            "examples": f"{manifest['counts']['examples']} from {manifest['inputs']['examples']['path']}",
            "loss": f"{training['loss']}, {training['negatives']} negatives",
        },
        use=(
            "Re-rank a run, or score examples for `rkit train --loss distill_kl`",
            "rkit rerank apply FOLDER --run RUN --queries QUERIES --corpus CORPUS --output RERANKED",
            "rkit rerank apply FOLDER --examples EXAMPLES --corpus CORPUS --output SCORED",
        ),
    )


def listwise(scores: Tensor, candidates: Tensor) -> Tensor:
    """Minus the logarithm of the positive's share of the softmax over its list, summed over queries.

    With negatives from a retriever this is the localised contrastive estimation of Gao et al. (2021).

    Args:
        scores: (pairs,) of all pairs.
        candidates: (Q, c) long: for each query the rows of its pairs, the positive first; -1 is padding.
    """
    lists = scores[candidates.clamp(min=0)].masked_fill(candidates < 0, float("-inf"))  # (Q, c)
    return -lists.log_softmax(dim=1)[:, 0].sum()


def pointwise(scores: Tensor, candidates: Tensor) -> Tensor:
    """Binary cross entropy of each pair, with label 1 for the positive and 0 for the others, summed over pairs.

    Args:
        scores: (pairs,) of all pairs.
        candidates: As for `listwise`.
    """
    present = candidates >= 0
    labels = torch.zeros_like(candidates, dtype=scores.dtype)
    labels[:, 0] = 1.0
    return functional.binary_cross_entropy_with_logits(scores[candidates[present]], labels[present], reduction="sum")


LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {"listwise": listwise, "pointwise": pointwise}


@dataclass(frozen=True)
class Lists:
    """Some queries of a step, whose pairs are in memory at once."""

    chunks: list[tuple[list[int], dict[str, Tensor]]]
    candidates: Tensor

    def to(self, device: torch.device) -> Self:
        """The same lists on another device."""
        chunks = [(rows, to_device(batch, device)) for rows, batch in self.chunks]
        return replace(self, chunks=chunks, candidates=self.candidates.to(device))

    def size(self, loss: Loss) -> int:
        """The number of queries or pairs that the loss is a mean of."""
        return len(self.candidates) if loss == "listwise" else int((self.candidates >= 0).sum())


@dataclass(frozen=True)
class ListCollator:
    """Makes the lists of a step, in batches of at most `batch_tokens` tokens, padding included."""

    assembler: StepAssembler
    model: CrossEncoder
    batch_tokens: int

    def __call__(self, draws: Sequence[Draw]) -> Lists:
        """The lists of some draws."""
        queries: list[str] = []
        passages: list[tuple[str, str]] = []
        lists: list[list[int]] = []
        for draw in draws:
            # One query at a time, since its passages are not compared with another's.
            texts = self.assembler.assemble([draw])
            ignored = {document for _, document in texts.ignore}
            kept = [text for row, text in enumerate(texts.documents) if row not in ignored]
            lists.append(list(range(len(passages), len(passages) + len(kept))))
            queries += [draw.example.query] * len(kept)
            passages += kept
        pairs = self.model.tokenize(queries, passages)
        batches = token_budget_batches([len(ids) for ids, _ in pairs], self.batch_tokens)
        chunks = [(rows, self.model.collate([pairs[row] for row in rows])) for rows in batches]
        width = max(map(len, lists))
        return Lists(chunks, torch.tensor([rows + [-1] * (width - len(rows)) for rows in lists]))


def sum_of_losses(model: CrossEncoder, lists: Lists, loss: Loss, precision: Precision) -> Tensor:
    """The loss of some lists, summed over their queries or pairs."""
    rows = torch.tensor([row for own, _ in lists.chunks for row in own], device=lists.candidates.device)
    with autocast(precision, lists.candidates.device):
        computed = torch.cat([model(batch) for _, batch in lists.chunks])
    scores = torch.empty_like(computed).index_copy(0, rows, computed)  # (pairs,)
    return LOSSES[loss](scores, lists.candidates)


@dataclass
class DevLists:
    """Held-out questions, each with its gold passage and up to 30 hard negatives to rank it against.

    Attributes:
        examples: The questions; the first positive is the gold passage.
        passage: Id -> passage.
    """

    examples: Sequence[Example]
    passage: Callable[[str], Passage]

    def average_rank(self, model: CrossEncoder, precision: Precision, at_once: int = 64) -> float:
        """The mean rank (from 0) of the gold passage in its list; a negative with an equal score ranks before it."""
        total = 0
        for start in range(0, len(self.examples), at_once):
            rows = self.examples[start : start + at_once]
            lists = []
            for row in rows:
                negatives = [identifier for identifier in row.negatives if identifier not in row.positives]
                lists.append([row.positives[0], *negatives[:_NEGATIVES_RANKED]])
            passages = [self.passage(identifier) for own in lists for identifier in own]
            queries = [row.query for row, own in zip(rows, lists, strict=True) for _ in own]
            pairs = model.tokenize(queries, [(passage.title, passage.text) for passage in passages])
            scores = model.score(pairs, precision=precision)
            first = 0
            for own in lists:
                total += int((scores[first + 1 : first + len(own)] >= scores[first]).sum())
                first += len(own)
        return total / len(self.examples)


class RerankerStep(TrainingStep):
    """Trains a cross-encoder on lists."""

    samples: ExampleSampler
    dev: DevLists | None

    def __init__(
        self,
        model: CrossEncoder,
        samples: ExampleSampler,
        assembler: StepAssembler,
        options: RerankerOptions,
        *,
        dev: DevLists | None = None,
        dropped: int = 0,
    ) -> None:
        self.module = self.model = model
        self.samples = samples
        self.options = options
        self.dev = dev
        self.dropped = dropped
        self.precision = resolve_precision(options.precision, model.device)
        batch_tokens = options.batch_tokens or default_batch_tokens(model.device)
        self.collator = ListCollator(assembler, model, batch_tokens)

    def dry_run(self) -> None:
        """Take the loss of an example once, so that what cannot be trained fails before anything is written."""
        part = self._part([self.samples.draw(0, 0)]).to(self.model.device)
        self.model.eval()
        with torch.no_grad():
            self._loss(part)

    def collate(self, keys: Sequence[Key]) -> Parts:
        """The lists of this process."""
        draws = [self.samples.draw(position, epoch) for epoch, position in keys]
        own = list(slices(len(draws), self.options.micro_batch_size))[processes.rank()]
        pairs = sum(1 + len(draw.negatives) for draw in draws)
        if not own:
            return Parts([self._part(draws[:1]).without_weight()], pairs)
        return Parts([self._part(draws[part]) for part in own], pairs)

    def _part(self, draws: Sequence[Draw]) -> Part:
        lists = self.collator(draws)
        return Part({"lists": lists}, lists.size(self.options.loss))

    def run(self, inputs: Parts, progress: Progress, backward: Backward) -> dict[str, Tensor]:  # noqa: ARG002
        """The mean loss over the queries (listwise) or pairs (pointwise) of the step."""
        return run_parts(inputs.parts, self._loss, backward)

    def _loss(self, part: Part) -> LossValue:
        lists = part.batch["lists"]
        return LossValue(sum_of_losses(self.model, lists, self.options.loss, self.precision) / max(1, part.size))

    def save(self, folder: Path) -> None:
        """Write the re-ranker."""
        self.model.save(folder)

    @property
    def counts(self) -> dict[str, int]:
        """Examples that were trained on, and those that were dropped."""
        return {"examples": len(self.samples), "without_negatives": self.dropped}

    def measure(self, epoch: int) -> tuple[str, float]:  # noqa: ARG002 - the same in every epoch
        """The average rank of the gold passage."""
        assert self.dev is not None
        return "average_rank", self.dev.average_rank(self.model, "fp32")
