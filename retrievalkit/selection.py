"""Which state of a training is kept: DPR's rule on held-out questions.

Early on, the loss on the dev questions is compared; from a given epoch on, the average rank of the gold passage among
all dev passages, which is closer to what search does but costs more. The best value is reset at the switch, since the two
are not comparable (Karpukhin et al. 2020; the released code of MLR omits the reset).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from retrievalkit.contracts import Loss, Progress, Representation
from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example
from retrievalkit.precision import Precision
from retrievalkit.retriever import Retriever
from retrievalkit.score import scores

_RANKED_QUESTIONS = 10_000
_HARD_NEGATIVES_RANKED = 30


@dataclass
class Best:
    """The best state so far: after which epoch, by which measure, and its value (lower is better)."""

    epoch: int = -1
    measure: str = ""
    value: float = float("inf")

    def improve(self, epoch: int, measure: str, value: float) -> bool:
        """Take a new value if it is better, or the first of its measure; says whether it was taken."""
        if measure == self.measure and not value < self.value:
            return False
        self.epoch, self.measure, self.value = epoch, measure, value
        return True

    def as_dict(self) -> dict[str, object]:
        """For a file."""
        return asdict(self)


class DevSet:
    """Held-out questions with a gold passage each, and hard negatives where there are some.

    Args:
        examples: The questions; the first positive is the gold passage.
        passage: Id -> passage.
        batch_size: Questions that share their passages when the loss is taken.
        rank_from: The first epoch (counted from 0) after which the average rank is used.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        passage: Callable[[str], Passage],
        *,
        batch_size: int,
        rank_from: int = 30,
    ) -> None:
        self.examples = examples
        self.passage = passage
        self.batch_size = batch_size
        self.rank_from = rank_from

    def measure(self, retriever: Retriever, loss: Loss, epoch: int, precision: Precision) -> tuple[str, float]:
        """The measure of this epoch and its value; lower is better for both."""
        if epoch >= self.rank_from:
            return "average_rank", self.average_rank(retriever, precision)
        return "loss", self.loss(retriever, loss, precision)

    def loss(self, retriever: Retriever, loss: Loss, precision: Precision) -> float:
        """The training loss on the dev questions, each with its gold passage and first hard negative.

        Taken as at the start of training, so that a loss whose temperature falls over time stays comparable.
        """
        loss.eval()
        total = 0.0
        for start in range(0, len(self.examples), self.batch_size):
            rows = self.examples[start : start + self.batch_size]
            ids = [one for example in rows for one in (example.positives[0], *example.negatives[:1])]
            starts = [0]
            for example in rows[:-1]:
                starts.append(starts[-1] + 1 + len(example.negatives[:1]))
            queries, documents = self._encode(retriever, rows, ids, precision)
            with torch.inference_mode():
                value = loss(queries, documents, torch.tensor(starts), Progress(0, 0.0, 1))
            total += float(value.total) * len(rows)
        loss.train()
        return total / len(self.examples)

    def average_rank(self, retriever: Retriever, precision: Precision) -> float:
        """The mean rank (from 0) of the gold passage among the gold passages and hard negatives of all questions."""
        rows = self.examples[:_RANKED_QUESTIONS]
        pool = dict.fromkeys(
            one for example in rows for one in (example.positives[0], *example.negatives[:_HARD_NEGATIVES_RANKED])
        )
        position = {one: row for row, one in enumerate(pool)}
        queries, documents = self._encode(retriever, rows, list(pool), precision)
        gold = torch.tensor([position[example.positives[0]] for example in rows])
        ranks = []
        for start in range(0, len(rows), 256):
            block = scores(queries.rows(slice(start, start + 256)), documents)
            own = block.gather(1, gold[start : start + 256, None])
            ranks.append((block > own).sum(dim=1))
        return float(torch.cat(ranks).float().mean())

    def _encode(
        self, retriever: Retriever, rows: Sequence[Example], ids: Sequence[str], precision: Precision
    ) -> tuple[Representation, Representation]:
        passages = [self.passage(one) for one in ids]
        queries = retriever.encode([("", example.query) for example in rows], "query", precision=precision)
        documents = retriever.encode([(one.title, one.text) for one in passages], "document", precision=precision)
        return queries, documents
