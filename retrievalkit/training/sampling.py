"""Sampling of a step's texts from training examples: positives, hard negatives and masked false negatives.

A draw depends only on the seed, the epoch and the example, so a resumed training sees the same texts as an
uninterrupted training.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from retrievalkit.contracts import Text
from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example
from retrievalkit.data.same_text import passage_digest, same_text, text_hash
from retrievalkit.training.examples import examples_at, hashes_of
from retrievalkit.training.options import ExampleOptions

FEWEST_TO_HOLD_OUT = 100
"""Smallest number of examples from which some are held out."""
HELD_OUT = (50, 500)
"""Minimum and maximum number of held-out questions."""
_REMEMBERED = 1 << 16


@dataclass(frozen=True)
class Draw:
    """Contribution of an example to a step: its query, one positive and some negatives, by id."""

    example: Example
    positive: str
    negatives: tuple[str, ...]


@dataclass(frozen=True)
class StepTexts:
    """The texts of a training step.

    Attributes:
        queries: Q texts.
        documents: D texts; each query's positive is followed by its own negatives.
        positives: For each query, the row of its positive in `documents`.
        ignore: (query row, document row) pairs that do not count as negatives: the document is another known positive
            of the query, or has the same text as a known positive (`data.same_text`).
        teacher: (query row, document row) -> teacher score.
    """

    queries: list[Text]
    documents: list[Text]
    positives: list[int]
    ignore: list[tuple[int, int]]
    teacher: dict[tuple[int, int], float]

    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the targets of a loss: positives (Q,); ignore (Q, D) or None; teacher (Q, D), NaN = none, or None."""
        ignore = teacher = None
        size = (len(self.queries), len(self.documents))
        if self.ignore:
            ignore = torch.zeros(size, dtype=torch.bool)
            ignore[tuple(torch.tensor(self.ignore).T)] = True
        if self.teacher:
            teacher = torch.full(size, float("nan"))
            teacher[tuple(torch.tensor(list(self.teacher)).T)] = torch.tensor(list(self.teacher.values()))
        return torch.tensor(self.positives), ignore, teacher


@dataclass
class ExampleSampler:
    """Draws a positive and hard negatives for an example in each epoch, by the training options of the same names.

    "window" is Tevatron's rule: a window slides over a pool that is shuffled once.
    """

    examples: Sequence[Example]
    _: KW_ONLY
    negatives: int = 1
    pool: int | None = None
    positive: Literal["first", "random"] = "first"
    sampling: Literal["random", "window"] = "random"
    seed: int = 42

    @classmethod
    def of(
        cls, rows: Sequence[Example], options: ExampleOptions, sampling: Literal["random", "window"] = "random"
    ) -> Self:
        """Create the sampler of a training with these options."""
        kept = limited(rows, options.limit, options.seed)
        count, pool, positive = options.negatives, options.negative_pool, options.positive
        return cls(kept, negatives=count, pool=pool, positive=positive, sampling=sampling, seed=options.seed)

    def __len__(self) -> int:
        return len(self.examples)

    def order(self, epoch: int) -> Sequence[int]:
        """Return the positions of all examples in the order of an epoch, four bytes each."""
        positions = array("I", range(len(self.examples)))
        random.Random(f"order {self.seed} {epoch}").shuffle(positions)
        return positions

    def draw(self, position: int, epoch: int) -> Draw:
        """Draw the positive and negatives of an example in an epoch."""
        example = self.examples[position]
        pool = example.negatives[: self.pool]
        if self.sampling == "window":
            index, negatives = window_sample(
                position, epoch, seed=self.seed, positives=len(example.positives), pool=pool, count=self.negatives
            )
            return Draw(example, example.positives[0 if self.positive == "first" else index], tuple(negatives))
        source = random.Random(f"draw {self.seed} {epoch} {position}")
        positive = example.positives[0] if self.positive == "first" else source.choice(example.positives)
        return Draw(example, positive, tuple(source.sample(pool, min(self.negatives, len(pool)))))


def window_sample(
    item: int, epoch: int, *, seed: int, positives: int, pool: Sequence[str], count: int
) -> tuple[int, list[str]]:
    """Draw as Tevatron does: the index of an item's positive in an epoch, and its negatives.

    With h = item + seed, the positive is (h + epoch) mod n; the pool is shuffled by Random(h), and a window of `count`
    moves by `count` per epoch over the pool repeated twice. From a pool smaller than the window, negatives are drawn
    with replacement.
    """
    mixed = item + seed
    index = (mixed + epoch) % positives
    if count == 0 or not pool:
        return index, []
    source = random.Random(mixed)
    if len(pool) < count:
        return index, source.choices(list(pool), k=count)
    shuffled = list(pool)
    source.shuffle(shuffled)
    start = epoch * count % len(shuffled)
    return index, (shuffled * 2)[start : start + count]


class StepAssembler:
    """Looks up the texts of a step's draws, and masks false negatives."""

    def __init__(
        self, passage: Callable[[str], Passage], examples: Sequence[Example], *, mask_false_negatives: bool = True
    ) -> None:
        self.passage = passage
        self.mask_false_negatives = mask_false_negatives
        self._known = Known(examples)
        # A cache for known positives outside of their query's step, to avoid repeated look-ups.
        self._digest_of = lru_cache(_REMEMBERED)(lambda identifier: passage_digest(passage(identifier)))

    def assemble(self, draws: Sequence[Draw]) -> StepTexts:
        """Return the texts of a step."""
        ids: list[str] = []
        positives: list[int] = []
        teacher: dict[tuple[int, int], float] = {}
        for row, draw in enumerate(draws):
            positives.append(len(ids))
            scored = draw.example.teacher or {}
            for identifier in (draw.positive, *draw.negatives):
                if identifier in scored:
                    teacher[row, len(ids)] = scored[identifier]
                ids.append(identifier)
        passages = [self.passage(identifier) for identifier in ids]
        documents = [passage.content for passage in passages]
        ignore = list(self._false_negatives(draws, passages, positives)) if self.mask_false_negatives else []
        return StepTexts([draw.example.content for draw in draws], documents, positives, ignore, teacher)

    def _false_negatives(
        self, draws: Sequence[Draw], passages: Sequence[Passage], positives: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        digests = {passage.id: passage_digest(passage) for passage in passages}
        rows_of_id: dict[str, list[int]] = {}
        rows_of_text: dict[bytes, list[int]] = {}
        for row, passage in enumerate(passages):
            rows_of_id.setdefault(passage.id, []).append(row)
            rows_of_text.setdefault(digests[passage.id], []).append(row)
        for row, draw in enumerate(draws):
            own = positives[row]
            same: set[int] = set()
            for known in self._known.positives(draw.example) | {draw.positive}:
                same.update(rows_of_id.get(known, ()))
                same.update(rows_of_text.get(digests.get(known) or self._digest_of(known), ()))
            yield from ((row, other) for other in sorted(same - {own}))


class Known:
    """Known positives of every query; only queries that occur more than once take memory."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        hashes = hashes_of(examples)
        ordered = np.sort(hashes)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        rows = np.flatnonzero(np.isin(hashes, repeated))
        order = rows[np.argsort(hashes[rows], kind="stable")]
        self._hashes, self._rows = hashes[order], order

    def positives(self, example: Example) -> set[str]:
        """Return the positives of the example, and of all other examples with its query."""
        wanted = np.uint32(text_hash(example.query))
        first, last = (int(self._hashes.searchsorted(wanted, side=side)) for side in ("left", "right"))
        others = (self._examples[row] for row in self._rows[first:last].tolist())
        return set(example.positives).union(
            *(other.positives for other in others if same_text(other.query, example.query))
        )


def hold_out(rows: Sequence[Example], options: ExampleOptions) -> tuple[Sequence[Example], Sequence[Example]]:
    """Return the rows to train on, and all rows of the held-out questions; none are held out of few rows.

    The choice depends on seed and text, so a question is held out again after its negatives were mined again.
    """
    total = min(len(rows), options.limit or len(rows))
    if not options.held_out or total < FEWEST_TO_HOLD_OUT:
        return rows, ()
    hashes = hashes_of(rows)
    questions, sizes = np.unique(hashes, return_counts=True)
    order = np.argsort(_mixed(questions, options.seed), kind="stable")
    held = sizes[order].cumsum()  # rows of the first question, of the first two, ...
    least, most = HELD_OUT
    wanted = max(least, int(held.searchsorted(round(options.held_out * total))) + 1)
    count = min(wanted, most, int(held.searchsorted(total // 2, side="right")))
    is_held = np.isin(hashes, questions[order[:count]])
    return examples_at(rows, np.flatnonzero(~is_held)), examples_at(rows, np.flatnonzero(is_held))


def _mixed(hashes: np.ndarray, seed: int) -> np.ndarray:
    """Mix the seed into the hashes, by the finaliser of MurmurHash3."""
    mixed = hashes.astype(np.uint32) ^ np.uint32(seed * 0x9E3779B1 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    return mixed ^ (mixed >> np.uint32(16))


def limited(rows: Sequence[Example], limit: int | None, seed: int) -> Sequence[Example]:
    """Return `limit` of the examples, drawn with the seed, in their original order; None = all."""
    if limit is None or limit >= len(rows):
        return rows
    kept = random.Random(f"limit {seed}").sample(range(len(rows)), limit)
    return examples_at(rows, sorted(kept))
