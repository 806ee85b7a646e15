"""Selection of a training's best state on the dev set, and its improvement over the untrained model.

By default, states are compared by nDCG@10 over a pool of passages, before training and five times during it. A training
that only harms returns the untrained model.

DPR's rule compares the dev loss in early epochs, and in later epochs the average rank of the gold passage among all dev
passages. The best value is reset at the switch, since the two measures are not comparable (Karpukhin et al. 2020; the
released code of MLR omits the reset).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from retrievalkit import storage
from retrievalkit.contracts import Loss, Progress, Representation, Side, Text
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.examples import Example, unscored
from retrievalkit.data.same_text import normal_form, passage_digest
from retrievalkit.evaluation.significance import randomisation_test
from retrievalkit.models.precision import Precision
from retrievalkit.models.pretrained import save_weights
from retrievalkit.models.retriever import Retriever
from retrievalkit.reporting import notices
from retrievalkit.reporting.terminal import counted, say
from retrievalkit.scoring import scores
from retrievalkit.training.collective import ALONE, Collective
from retrievalkit.training.options import ExampleOptions
from retrievalkit.training.sampling import Draw, StepAssembler

if TYPE_CHECKING:
    from retrievalkit.training.loop import Log, Training

Values = Mapping[str, Sequence[float]]
"""Measure -> a value per dev question, or a single value for all; states are compared by the first measure."""

BEST, SELECTION = "best.safetensors", "selection.json"
NDCG, RR = "nDCG@10", "RR@10"
_DO = "Start the training again, without --resume."
_RANKED_QUESTIONS = 10_000
_HARD_NEGATIVES_RANKED = 30
_CUTOFF = 10
LISTED = 10
"""Maximum number of positives, and of hard negatives, ranked per dev question."""
MOST_MEASURED = 1_000
"""Maximum number of ranked dev questions; a larger set is sampled."""
_POOL, _DRAWN_FROM = 500, 20_000
_FEW, _FEW_TEXTS = 50, 64
# Questions scored and passages encoded at a time: weights over a vocabulary are large.
_BLOCK, _POOL_BLOCK = 256, 2_048


@dataclass
class Best:
    """The best state so far.

    Attributes:
        epoch: Number of epochs after which it was reached; 0 = before training.
        measure: Measure by which states are compared.
        value: Mean of the measure; higher is better for nDCG@10, lower for a loss or a rank.
        before: Values before training; {} if the untrained model was not evaluated.
        after: Values of the best state.
    """

    epoch: float = -1
    measure: str = ""
    value: float = float("inf")
    before: dict[str, list[float]] = field(default_factory=dict)
    after: dict[str, list[float]] = field(default_factory=dict)

    def improve(self, epoch: float, values: Values) -> bool:
        """Record new values if they are better, or the first of their measure; return True if recorded."""
        measure = next(iter(values))
        value = fmean(values[measure])
        better = value > self.value if measure == NDCG else value < self.value
        # NaN is worse than any number.
        if measure == self.measure and not (better or math.isnan(self.value)):
            return False
        self.epoch, self.measure, self.value = epoch, measure, value
        if measure == NDCG:
            self.after = {name: list(figures) for name, figures in values.items()}
            self.before = self.before or self.after
        return True

    def entries(self, *, held_out: bool) -> dict[str, Any]:
        """Return the entries of the manifest."""
        entries: dict[str, Any] = {"selection": {"epoch": self.epoch, "measure": self.measure, "value": self.value}}
        if self.before:
            pairs = zip(self.after[NDCG], self.before[NDCG], strict=True)
            entries["dev"] = {
                "questions": len(self.before[NDCG]),
                "held_out": held_out,
                "before": {name: fmean(values) for name, values in self.before.items()},
                "after": {name: fmean(values) for name, values in self.after.items()},
                "p": randomisation_test([after - before for after, before in pairs]),
                "epoch": self.epoch,
            }
        return entries


def dev_summary(manifest: Mapping[str, Any]) -> str:
    """Describe the improvement on the dev set in a clause; "" without an evaluation before training."""
    dev = manifest.get("dev")
    if dev is None:
        return ""
    questions = f"{dev['questions']:,} {'held-out' if dev['held_out'] else 'dev'} questions"
    if dev["epoch"] == 0:
        return f"no better than before training on {questions}: the kept state is the untrained model"
    before, after = dev["before"][NDCG], dev["after"][NDCG]
    p = "p < .001" if dev["p"] < 0.001 else f"p {_short(dev['p'])}"
    epochs = manifest["options"]["training"]["epochs"]
    return (
        f"{NDCG} on {questions} {_short(before)} -> {_short(after)} (+{_short(after - before)}, {p}), after epoch "
        f"{dev['epoch']:.3g} of {epochs:.3g}"
    )


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def rank_metrics(scores: Tensor, relevant: Tensor) -> dict[str, list[float]]:
    """Return nDCG@10 and RR@10 of each query, as in trec_eval; of equal scores, the first column ranks first.

    Args:
        scores: (Q, D); -inf for a document that is not ranked.
        relevant: (Q, D) bool: known positives, at least one per query.
    """
    top = scores.argsort(dim=1, descending=True, stable=True)[:, :_CUTOFF]
    hits = relevant.gather(1, top).double()  # (Q, 10 or fewer): 1 for a known positive
    ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    gains = 1 / (ranks + 1).double().log2()
    ideal = gains.cumsum(0)[relevant.sum(dim=1).clamp(max=hits.shape[1]) - 1]
    return {NDCG: ((hits * gains).sum(dim=1) / ideal).tolist(), RR: (hits / ranks).amax(dim=1).tolist()}


def best_of(folder: Path) -> Best | None:
    """Return the best state of the training in this folder; None if no state was evaluated."""
    path = folder / SELECTION
    return storage.read_document(path, Best, do=_DO, nan=True) if path.exists() else None


@dataclass(kw_only=True)
class DevSet:
    """Dev set for a retriever: questions with their known positives, and hard negatives if the examples have any.

    Attributes:
        examples: Dev questions; the first positive is the gold passage.
        batch_size: Queries per batch of the dev loss.
        rank_from: First epoch, counted from 0, where DPR's rule uses the average rank; None = nDCG@10 in all epochs.
        corpus: Passages to draw from if the pool of positives and hard negatives is small.
        pool_size: Minimum number of texts in the pool, if there are as many.
    """

    examples: Sequence[Example]
    passage: Callable[[str], Passage]
    batch_size: int
    rank_from: int | None = None
    mask_false_negatives: bool = True
    corpus: Corpus | None = None
    pool_size: int = _POOL
    seed: int = 42
    collective: Collective = ALONE

    def measure(self, retriever: Retriever, loss: Loss, epoch: int, precision: Precision) -> Values:
        """Evaluate the model in this epoch, counted from 0.

        DPR's rule uses the average rank from the start if the loss needs a teacher's scores and the dev questions lack
        them.
        """
        if self.rank_from is None:
            return self.ranking(retriever, precision)
        if epoch >= self.rank_from or (loss.needs_teacher and any(unscored(row) for row in self.examples)):
            return {"average_rank": [self.average_rank(retriever, precision)]}
        return {"loss": [self.loss(retriever, loss, precision)]}

    def ranking(self, retriever: Retriever, precision: Precision) -> Values:
        """Return nDCG@10 and RR@10 of each question over the pool."""
        texts, answers = self.pool
        queries = self._divided(retriever, list(answers), "query", precision)
        columns = []
        for start in range(0, len(texts), _POOL_BLOCK):
            documents = self._divided(retriever, texts[start : start + _POOL_BLOCK], "document", precision)
            blocks = _blocks(queries.to(retriever.device), documents.to(retriever.device))
            columns.append(torch.cat([block.float().cpu() for block in blocks]))
        scored = torch.cat(columns, dim=1)
        relevant = torch.zeros(scored.shape, dtype=torch.bool)
        for row, places in enumerate(answers.values()):
            relevant[row, places] = True
        return rank_metrics(scored, relevant)

    @cached_property
    def pool(self) -> tuple[list[Text], dict[Text, list[int]]]:
        """Texts to rank, without duplicates, and for each question the positions of its known positives.

        The pool has the positives, the first hard negatives of all questions, then the second, and random passages.
        Positives come last, so that a model that scores all texts equally is the worst.
        """
        spelled: dict[str, Text] = {}
        known: dict[Text, dict[bytes, Text]] = {}
        for row in self.examples:
            own = known.setdefault(spelled.setdefault(normal_form(row.query), row.content), {})
            for passage in map(self.passage, row.positives[: LISTED - len(own)]):
                own.setdefault(passage_digest(passage), passage.content)
        golds = {digest: text for own in known.values() for digest, text in own.items()}
        positives = {identifier for row in self.examples for identifier in row.positives}
        negatives = (row.negatives[place : place + 1] for place in range(LISTED) for row in self.examples)
        others: dict[bytes, Text] = {}
        for passage in chain(map(self.passage, chain.from_iterable(negatives)), self._drawn()):
            if len(golds) + len(others) >= self.pool_size:
                break
            digest = passage_digest(passage)
            if digest not in golds and passage.id not in positives:
                others.setdefault(digest, passage.content)
        places = {digest: place for place, digest in enumerate([*others, *golds])}
        answers = {query: [places[digest] for digest in own] for query, own in known.items()}
        return [*others.values(), *golds.values()], answers

    def loss(self, retriever: Retriever, loss: Loss, precision: Precision) -> float:
        """Return the training loss on the dev questions, each with its gold passage and first hard negative.

        If the loss needs a teacher, the first negative with a teacher score is used. The loss is computed as at the
        start of training, so values stay comparable if its temperature falls over time.
        """
        assembler = StepAssembler(self.passage, self.examples, mask_false_negatives=self.mask_false_negatives)
        was_training = loss.training
        loss.eval()
        total = 0.0
        for start in range(0, len(self.examples), self.batch_size):
            rows = self.examples[start : start + self.batch_size]
            draws = []
            for row in rows:
                usable = row.teacher if loss.needs_teacher and row.teacher else row.negatives
                negatives = tuple(negative for negative in row.negatives if negative in usable)
                draws.append(Draw(row, row.positives[0], negatives[:1]))
            step = assembler.assemble(draws)
            queries, documents = self._encode(retriever, step.queries, step.documents, precision)
            with torch.inference_mode():
                positives, ignore, teacher = (
                    None if tensor is None else tensor.to(retriever.device) for tensor in step.tensors()
                )
                value = loss(queries, documents, positives, Progress(0, 0.0, 1), ignore, teacher)
            total += float(value.total) * len(rows)
        loss.train(was_training)
        return total / len(self.examples)

    def average_rank(self, retriever: Retriever, precision: Precision) -> float:
        """Return the mean rank (from 0) of the gold passage among gold passages and hard negatives of all questions.

        Passages with an equal score rank before it: a model that maps all texts to the same vector is the worst.
        """
        rows = self.examples[:_RANKED_QUESTIONS]
        golds = {gold: row for row, gold in enumerate(dict.fromkeys(example.positives[0] for example in rows))}
        negatives = chain.from_iterable(example.negatives[:_HARD_NEGATIVES_RANKED] for example in rows)
        others = [negative for negative in dict.fromkeys(negatives) if negative not in golds]
        texts = [example.content for example in rows]
        queries, documents = self._encode(retriever, texts, self._texts(list(golds)), precision)
        place = torch.tensor([golds[example.positives[0]] for example in rows], device=queries.device)
        places = torch.split(place, _BLOCK)
        blocks = zip(_blocks(queries, documents), places, strict=True)
        own = [block.gather(1, columns[:, None]) for block, columns in blocks]  # (queries, 1): gold passages

        def at_least(others: Representation) -> Tensor:
            blocks = zip(_blocks(queries, others.to(queries.device)), own, strict=True)
            return torch.cat([(block >= gold).sum(dim=1) for block, gold in blocks])

        # Without the gold passage itself.
        before = at_least(documents) - 1
        for start in range(0, len(others), _POOL_BLOCK):
            texts = self._texts(others[start : start + _POOL_BLOCK])
            before += at_least(self._divided(retriever, texts, "document", precision))
        return float(before.double().mean())

    def _drawn(self) -> Iterator[Passage]:
        """Yield passages of the corpus in random order."""
        first = list(islice(() if self.corpus is None else self.corpus, _DRAWN_FROM))
        yield from random.Random(f"pool {self.seed}").sample(first, len(first))

    def _texts(self, ids: Sequence[str]) -> list[Text]:
        return [self.passage(identifier).content for identifier in ids]

    def _encode(
        self, retriever: Retriever, queries: Sequence[Text], documents: Sequence[Text], precision: Precision
    ) -> tuple[Representation, Representation]:
        encoded = (
            self._divided(retriever, queries, "query", precision),
            self._divided(retriever, documents, "document", precision),
        )
        return encoded[0].to(retriever.device), encoded[1].to(retriever.device)

    def _divided(self, retriever: Retriever, texts: Sequence[Text], side: Side, precision: Precision) -> Representation:
        """Encode texts, divided among the processes; a few texts, as in a dry run, in each process."""
        if self.collective.size == 1 or len(texts) < _FEW_TEXTS:
            return retriever.encode(texts, side, precision=precision)
        size = -(-len(texts) // self.collective.size)
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        return Representation.concatenate(
            self.collective.spread(lambda part: retriever.encode(part, side, precision=precision), parts)
        )


def _blocks(queries: Representation, documents: Representation) -> Iterator[Tensor]:
    """Yield (queries, documents) scores, a block of queries at a time."""
    for start in range(0, len(queries), _BLOCK):
        yield scores(queries.rows(slice(start, start + _BLOCK)), documents)


def note_few(training: Training) -> None:
    """Warn about too few examples to train on or to hold some out."""
    count = training.counts["examples"]
    if count < _FEW:
        notices.note(f"Training on {counted(count, 'examples')} seldom helps. Gather {_FEW} or more.")
    options = training.options
    held_out = isinstance(options, ExampleOptions) and options.held_out > 0
    if training.dev is None and not training.sharded and held_out:
        few = f"{counted(count, 'examples')} are too few to hold some out. Add dev examples: --dev DEV"
        notices.note(f"Nothing shows whether this training helps: {few}")


def report_held_out(training: Training) -> None:
    """Print the number of held-out examples."""
    if training.held_out and training.collective.is_main:
        held = training.counts["held_out"]
        total = f"{held + training.counts['examples']:,} examples"
        say(f"held out {held:,} of {total} to measure; --set held_out=0 trains on all", err=True)


def judge(training: Training, folder: Path, epochs: float, log: Log) -> float:
    """Evaluate the state after this number of epochs, log the values, and store the state if it is the best so far.

    All processes evaluate, and the main process stores. Returns the value by which states are compared.
    """
    values = training.measure(max(0, math.ceil(epochs) - 1))
    means = {f"dev_{measure}": fmean(figures) for measure, figures in values.items()}
    log(means)
    if training.collective.is_main and (best := best_of(folder) or Best()).improve(epochs, values):
        with storage.write_file(folder / BEST) as staging:
            save_weights(training.module, staging)
        storage.write_json(folder / SELECTION, asdict(best), indent=None)
    return next(iter(means.values()))
