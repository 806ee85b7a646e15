"""A step of `rkit train`, ready for the model: which texts are encoded, in which chunks, by which process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from retrievalkit.contracts import SIDES, Side, Text
from retrievalkit.model.batches import token_budget_batches
from retrievalkit.model.retriever import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, Retriever
from retrievalkit.train import processes
from retrievalkit.train.gradcache import Chunk
from retrievalkit.train.objective import Objective
from retrievalkit.train.sampling import ExampleSampler, StepAssembler

_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class StepInputs:
    """A step that is ready for the model: tokenised, padded, in chunks.

    Attributes:
        chunks: The queries and documents that this process encodes, in batches of like length. Their rows are counted
            among these.
        hands: Which rows of the step's queries and documents each process encodes.
        positives: (Q,) long: the document row that answers each query.
        ignore: (Q, D) bool, or None.
        teacher: (Q, D) float, NaN where there is no score, or None.
    """

    chunks: list[Chunk]
    hands: Mapping[Side, list[list[int]]]
    positives: Tensor
    ignore: Tensor | None
    teacher: Tensor | None

    def to(self, device: torch.device) -> StepInputs:
        """The same step on another device."""
        chunks = [replace(chunk, batch=chunk.batch.to(device)) for chunk in self.chunks]
        ignore = None if self.ignore is None else self.ignore.to(device)
        teacher = None if self.teacher is None else self.teacher.to(device)
        return replace(self, chunks=chunks, positives=self.positives.to(device), ignore=ignore, teacher=teacher)


class StepCollator:
    """Makes StepInputs of the positions of a step's examples.

    Args:
        sampler: Draws positives and negatives.
        assembler: Puts texts and rows together.
        retriever: Tokenises.
        batch_tokens: Most tokens of a chunk, padding included.
        micro_batch_size: Most texts of a chunk, or None where the token budget decides.
    """

    def __init__(
        self,
        sampler: ExampleSampler,
        assembler: StepAssembler,
        retriever: Retriever,
        *,
        batch_tokens: int,
        micro_batch_size: int | None,
    ) -> None:
        self.sampler = sampler
        self.assembler = assembler
        self.retriever = retriever
        self.batch_tokens = batch_tokens
        self.micro_batch_size = micro_batch_size

    def __call__(self, keys: Sequence[tuple[int, int]]) -> StepInputs:
        """The inputs of a step, from its (epoch, position) pairs."""
        step = self.assembler.assemble([self.sampler.draw(position, epoch) for epoch, position in keys])
        texts: dict[Side, list[Text]] = {"query": step.queries, "document": step.documents}
        hands = {side: self._dealt(texts[side]) for side in SIDES}
        chunks = [chunk for side in SIDES for chunk in self._chunks(texts[side], side, hands[side][processes.rank()])]
        return StepInputs(chunks, hands, *step.tensors())

    def _dealt(self, texts: Sequence[Text]) -> list[list[int]]:
        # By characters: a process tokenises its own texts alone.
        return processes.deal([len(title) + len(body) for title, body in texts], processes.count())

    def _chunks(self, texts: Sequence[Text], side: Side, hand: Sequence[int]) -> Iterator[Chunk]:
        tower = self.retriever.tower(side)
        # A process without a text encodes one for its shape.
        texts = [texts[row] for row in hand] or texts[:1]
        token_ids = tower.tokenize(texts, side)
        lengths = [len(ids) for ids in token_ids]
        if self.micro_batch_size is None:
            groups = token_budget_batches(lengths, self.batch_tokens)
        else:
            groups = token_budget_batches(lengths, _UNLIMITED, most=self.micro_batch_size)
        for rows in groups:
            yield Chunk(side, rows, tower.collate([token_ids[row] for row in rows], side))


def _add_gradients(objective: Objective) -> None:
    # The gradient of the loss's own weights is whole in every process.
    for parameter in objective.loss.parameters():
        if parameter.grad is not None:
            parameter.grad /= processes.count()
    processes.add_gradients([parameter for parameter in objective.parameters() if parameter.requires_grad])


def train_batch_tokens(device: torch.device) -> int:
    """The default token budget of a chunk in training."""
    return CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS
