"""Selection of the best state of a training, by DPR's rule on held-out questions.

In early epochs the loss on the dev questions is compared; from a given epoch on, the average rank of the gold passage
among all dev passages, which is closer to search but costs more. The best value is reset at the switch, since the two
are not comparable (Karpukhin et al. 2020; the released code of MLR omits the reset).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from retrievalkit import storage
from retrievalkit.contracts import SIDES, Loss, Progress, Representation, Text
from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example, unscored
from retrievalkit.models.precision import Precision
from retrievalkit.models.pretrained import save_weights
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores
from retrievalkit.training.sampling import Draw, StepAssembler

if TYPE_CHECKING:
    from retrievalkit.training.loop import Log, Training

BEST, SELECTION = "best.safetensors", "selection.json"
_DO = "Start the training anew, without --resume."
_RANKED_QUESTIONS = 10_000
_HARD_NEGATIVES_RANKED = 30
# Questions scored at once, and passages encoded at once: weights over a vocabulary are large.
_BLOCK, _POOL_BLOCK = 256, 2_048


@dataclass
class Best:
    """The best state so far: after which epoch, by which measure, and its value (lower is better)."""

    epoch: int = -1
    measure: str = ""
    value: float = float("inf")

    def improve(self, epoch: int, measure: str, value: float) -> bool:
        """Record a new value if it is better, or the first of its measure; returns whether it was recorded."""
        # NaN is worse than any number.
        if measure == self.measure and not (value < self.value or math.isnan(self.value)):
            return False
        self.epoch, self.measure, self.value = epoch, measure, value
        return True


def best_of(folder: Path) -> Best | None:
    """The best state of a training in this folder; None if it judged none."""
    path = folder / SELECTION
    return storage.read_document(path, Best, do=_DO, nan=True) if path.exists() else None


class DevSet:
    """Held-out questions with a gold passage each, and hard negatives if the examples have any."""

    def __init__(
        self,
        examples: Sequence[Example],
        passage: Callable[[str], Passage],
        *,
        batch_size: int,
        rank_from: int = 30,
        mask_false_negatives: bool = True,
    ) -> None:
        self.examples = examples
        self.passage = passage
        self.batch_size = batch_size
        self.rank_from = rank_from
        self.has_teacher = not any(unscored(row) for row in examples)
        self.assembler = StepAssembler(passage, examples, mask_false_negatives=mask_false_negatives)

    def measure(self, retriever: Retriever, loss: Loss, epoch: int, precision: Precision) -> tuple[str, float]:
        """The measure of this epoch and its value; lower is better for both.

        If the loss needs a teacher's scores and the dev questions lack them, the average rank is used from the start.
        """
        if epoch >= self.rank_from or (loss.needs_teacher and not self.has_teacher):
            return "average_rank", self.average_rank(retriever, precision)
        return "loss", self.loss(retriever, loss, precision)

    def loss(self, retriever: Retriever, loss: Loss, precision: Precision) -> float:
        """The training loss on the dev questions, each with its gold passage and first hard negative.

        If the loss needs a teacher, the first negative that the teacher scored is used. The loss is computed as at the
        start of training, so that values stay comparable if its temperature falls over time.
        """
        was_training = loss.training
        loss.eval()
        total = 0.0
        for start in range(0, len(self.examples), self.batch_size):
            rows = self.examples[start : start + self.batch_size]
            draws = []
            for row in rows:
                known = row.teacher if loss.needs_teacher and row.teacher else row.negatives
                draws.append(Draw(row, row.positives[0], tuple(one for one in row.negatives if one in known)[:1]))
            step = self.assembler.assemble(draws)
            queries, documents = _encode(retriever, step.queries, step.documents, precision)
            with torch.inference_mode():
                positives, ignore, teacher = (
                    one if one is None else one.to(retriever.device) for one in step.tensors()
                )
                value = loss(queries, documents, positives, Progress(0, 0.0, 1), ignore, teacher)
            total += float(value.total) * len(rows)
        loss.train(was_training)
        return total / len(self.examples)

    def average_rank(self, retriever: Retriever, precision: Precision) -> float:
        """The mean rank (from 0) of the gold passage among the gold passages and hard negatives of all questions.

        A passage with an equal score ranks before it, so that a model which maps all texts to one vector is the worst.
        """
        rows = self.examples[:_RANKED_QUESTIONS]
        golds = {one: row for row, one in enumerate(dict.fromkeys(example.positives[0] for example in rows))}
        negatives = dict.fromkeys(one for example in rows for one in example.negatives[:_HARD_NEGATIVES_RANKED])
        others = [one for one in negatives if one not in golds]
        asked = [("", example.query) for example in rows]
        queries, documents = _encode(retriever, asked, self._texts(list(golds)), precision)
        place = torch.tensor([golds[example.positives[0]] for example in rows], device=queries.device)
        places = torch.split(place, _BLOCK)
        own = [
            block.gather(1, some[:, None]) for block, some in zip(_blocks(queries, documents), places, strict=True)
        ]  # blocks of (queries, 1): the score of the gold passage

        def at_least(others: Representation) -> Tensor:
            blocks = zip(_blocks(queries, others.to(queries.device)), own, strict=True)
            return torch.cat([(block >= some).sum(dim=1) for block, some in blocks])

        # The gold passage counted itself.
        before = at_least(documents) - 1
        for start in range(0, len(others), _POOL_BLOCK):
            texts = self._texts(others[start : start + _POOL_BLOCK])
            before += at_least(retriever.encode(texts, "document", precision=precision))
        return float(before.double().mean())

    def _texts(self, ids: Sequence[str]) -> list[Text]:
        return [(passage.title, passage.text) for passage in map(self.passage, ids)]


def _blocks(queries: Representation, documents: Representation) -> Iterator[Tensor]:
    """(queries, documents) scores, some queries at a time."""
    for start in range(0, len(queries), _BLOCK):
        yield scores(queries.rows(slice(start, start + _BLOCK)), documents)


def judge(training: Training, folder: Path, epoch: int, log: Log) -> float:
    """Measure the state after an epoch, log the value, and store the state if it is the best so far."""
    measure, value = training.measure(epoch)
    log({f"dev_{measure}": value})
    best = best_of(folder) or Best()
    if best.improve(epoch, measure, value):
        with storage.write_file(folder / BEST) as staging:
            save_weights(training.module, staging)
        storage.write_json(folder / SELECTION, asdict(best), indent=None)
    return value


def _encode(
    retriever: Retriever, queries: Sequence[Text], documents: Sequence[Text], precision: Precision
) -> tuple[Representation, Representation]:
    one, other = (
        retriever.encode(texts, side, precision=precision).to(retriever.device)
        for texts, side in ((queries, SIDES[0]), (documents, SIDES[1]))
    )
    return one, other
