"""The steps of a re-ranker's training: a positive and its negatives, the losses of a list, a step on the Trainer.

Each query's passages are compared among themselves alone, so a step can be taken a few queries at a time, and the sum
of the gradients is that of the whole step: memory is bounded without encoding anything twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example
from retrievalkit.model.batches import token_budget_batches
from retrievalkit.model.cross_encoder import CrossEncoder, to_device
from retrievalkit.model.precision import Precision, autocast
from retrievalkit.train.sampling import Draw, ExampleSampler, StepAssembler
from retrievalkit.train.selection import KeepBest
from retrievalkit.train.trainer import RetrieverTrainer

Loss = Literal["listwise", "pointwise"]
_NEGATIVES_RANKED = 30


def listwise(scores: Tensor, candidates: Tensor) -> Tensor:
    """Minus the logarithm of the positive's share of the softmax over its list, summed over queries.

    With negatives that a retriever found this is the localised contrastive estimation of Gao et al. (2021).

    Args:
        scores: (pairs,) of all pairs.
        candidates: (Q, c) long: for each query the rows of its pairs, the positive first; -1 where there is none.
    """
    lists = scores[candidates.clamp(min=0)].masked_fill(candidates < 0, float("-inf"))  # (Q, c)
    return -lists.log_softmax(dim=1)[:, 0].sum()


def pointwise(scores: Tensor, candidates: Tensor) -> Tensor:
    """Binary cross entropy of each pair, where the positive's label is 1 and the others' is 0, summed over pairs.

    Args:
        scores: (pairs,) of all pairs.
        candidates: As for `listwise`.
    """
    there = candidates >= 0
    labels = torch.zeros_like(candidates, dtype=scores.dtype)
    labels[:, 0] = 1.0
    return functional.binary_cross_entropy_with_logits(scores[candidates[there]], labels[there], reduction="sum")


LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {"listwise": listwise, "pointwise": pointwise}


@dataclass(frozen=True)
class Group:
    """Some queries of a step, whose pairs are in memory at once.

    Attributes:
        chunks: (rows of the group's pairs, their batch), of like length.
        candidates: (Q, c) long: for each query the rows of its pairs, the positive first; -1 where there is none.
    """

    chunks: list[tuple[list[int], dict[str, Tensor]]]
    candidates: Tensor

    def to(self, device: torch.device) -> Group:
        """The same group on another device."""
        chunks = [(rows, to_device(batch, device)) for rows, batch in self.chunks]
        return replace(self, chunks=chunks, candidates=self.candidates.to(device))


@dataclass(frozen=True)
class Step:
    """A step that is ready for the model.

    Attributes:
        groups: Computed one after the other.
        queries: How many it has.
        pairs: How many it has.
    """

    groups: list[Group]
    queries: int
    pairs: int

    def to(self, device: torch.device) -> Step:
        """The same step on another device."""
        return replace(self, groups=[group.to(device) for group in self.groups])


class Collator:
    """Makes a Step of the positions of its examples.

    Args:
        sampler: Draws positives and negatives.
        assembler: Finds the texts, and negatives that are none.
        model: Tokenises.
        batch_tokens: Most tokens of a batch, padding included.
        micro_batch_size: Queries of a group; None = all of a step.
    """

    def __init__(
        self,
        sampler: ExampleSampler,
        assembler: StepAssembler,
        model: CrossEncoder,
        *,
        batch_tokens: int,
        micro_batch_size: int | None,
    ) -> None:
        self.sampler = sampler
        self.assembler = assembler
        self.model = model
        self.batch_tokens = batch_tokens
        self.micro_batch_size = micro_batch_size

    def __call__(self, keys: Sequence[tuple[int, int]]) -> Step:
        """The step of some (epoch, position) pairs."""
        return self.step([self.sampler.draw(position, epoch) for epoch, position in keys])

    def step(self, draws: Sequence[Draw]) -> Step:
        """The step of some draws."""
        size = self.micro_batch_size or max(1, len(draws))
        groups = [self._group(draws[start : start + size]) for start in range(0, len(draws), size)]
        return Step(groups, len(draws), sum(int((group.candidates >= 0).sum()) for group in groups))

    def _group(self, draws: Sequence[Draw]) -> Group:
        queries: list[str] = []
        passages: list[tuple[str, str]] = []
        lists: list[list[int]] = []
        for draw in draws:
            # One query at a time: another's passages are not compared with its own.
            own = self.assembler.assemble([draw])
            ignored = {document for _, document in own.ignore}
            kept = [text for row, text in enumerate(own.documents) if row not in ignored]
            lists.append(list(range(len(passages), len(passages) + len(kept))))
            queries += [draw.example.query] * len(kept)
            passages += kept
        pairs = self.model.tokenize(queries, passages)
        rows_of = token_budget_batches([len(ids) for ids, _ in pairs], self.batch_tokens)
        chunks = [(rows, self.model.collate([pairs[row] for row in rows])) for rows in rows_of]
        width = max(map(len, lists))
        return Group(chunks, torch.tensor([rows + [-1] * (width - len(rows)) for rows in lists]))


class RerankerTrainer(RetrieverTrainer):
    """The trainer of retrievers with another step, for a cross-encoder.

    Args:
        *arguments: As for the trainer of retrievers.
        loss: Which loss.
        **options: As for the trainer of retrievers.
    """

    def __init__(self, *arguments: Any, loss: Loss, **options: Any) -> None:
        self.loss_name = loss
        super().__init__(*arguments, cache_gradients=False, **options)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        """Forward and backward of one step, group by group: the mean over its queries (listwise) or pairs."""
        reranker: CrossEncoder = self.model  # type: ignore[assignment]
        reranker.train()
        step: Step = inputs["step"]
        total = torch.zeros((), device=self.args.device)
        for group in step.groups:
            loss = group_loss(reranker, group, self.loss_name, self.precision) / _count(step, self.loss_name)
            self.accelerator.backward(loss)
            total += loss.detach()
        self._terms.setdefault("loss", []).append(total)
        return total


def group_loss(model: CrossEncoder, group: Group, loss: Loss, precision: Precision) -> Tensor:
    """The loss of a group, summed over its queries or pairs."""
    rows = torch.tensor([row for own, _ in group.chunks for row in own], device=group.candidates.device)
    with autocast(precision, group.candidates.device):
        found = torch.cat([model(batch) for _, batch in group.chunks])
    scores = torch.empty_like(found).index_copy(0, rows, found)  # (pairs,)
    return LOSSES[loss](scores, group.candidates)


def _count(step: Step, loss: Loss) -> int:
    return step.queries if loss == "listwise" else step.pairs


@dataclass
class DevLists:
    """Held-out questions, each with its gold passage and up to 30 hard negatives that it is to be ranked before.

    Attributes:
        examples: The questions; the first positive is the gold passage.
        passage: Id -> passage.
    """

    examples: Sequence[Example]
    passage: Callable[[str], Passage]

    def average_rank(self, model: CrossEncoder, precision: Precision) -> float:
        """The mean rank (from 0) of the gold passage in its list; one of equal score is ranked before it."""
        return sum(self._ranks(model, precision)) / len(self.examples)

    def _ranks(self, model: CrossEncoder, precision: Precision, at_once: int = 64) -> Iterator[int]:
        for start in range(0, len(self.examples), at_once):
            rows = self.examples[start : start + at_once]
            lists = [_ranked(row) for row in rows]
            passages = [self.passage(one) for own in lists for one in own]
            queries = [row.query for row, own in zip(rows, lists, strict=True) for _ in own]
            pairs = model.tokenize(queries, [(one.title, one.text) for one in passages])
            scores = model.score(pairs, precision=precision)
            first = 0
            for own in lists:
                yield int((scores[first + 1 : first + len(own)] >= scores[first]).sum())
                first += len(own)


def _ranked(row: Example) -> list[str]:
    negatives = [one for one in row.negatives if one not in row.positives]
    return [row.positives[0], *negatives[:_NEGATIVES_RANKED]]


class KeepBestReranker(KeepBest):
    """Judges the state after each epoch by the average rank on the dev questions, and stores the best one."""

    def measure(self, epoch: int) -> tuple[str, float]:  # noqa: ARG002 - the same in all
        """The measure and its value; lower is better."""
        dev: DevLists = self.dev  # type: ignore[assignment]
        return "average_rank", dev.average_rank(self.objective, self.precision)  # type: ignore[arg-type]
