"""Negatives mined anew during training with the current model: `rkit train --refresh-negatives every=2`.

Every so many epochs the corpus is encoded with the current weights, the training questions are searched in it, and the
hits that pass the filters of `rkit mine-negatives` replace the examples' negatives (Xiong et al., "Approximate nearest
neighbor negative contrastive learning for dense text retrieval", 2021, but synchronous with the training). This happens
before the state of that step is saved, and the number of steps determines which negatives are in use: so a resumed
training goes on with the same ones. Of several processes the main one mines, and the others wait for it.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievalkit import artifacts, registry
from retrievalkit.artifacts import NEGATIVES, NOT_WEIGHTS
from retrievalkit.contracts import PairScores, Question
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.errors import ArtifactError, OptionError, RetrievalkitError
from retrievalkit.mine.examples import group_questions, mined_examples
from retrievalkit.mine.options import MiningOptions
from retrievalkit.mine.parts import Mining
from retrievalkit.mine.reranker import open_scores
from retrievalkit.mine.sources import Sources
from retrievalkit.model.precision import Precision
from retrievalkit.model.retriever import Retriever
from retrievalkit.training import processes
from retrievalkit.training.sampling import ExampleSampler
from retrievalkit.training.step import Log, Say

_WORK = "refresh"


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(MiningOptions):
    """When negatives are mined anew, and how: `every`, and the options of `rkit mine-negatives`.

    Args:
        every: Number of epochs between two minings; there is none after the last epoch.
    """

    every: int

    def check_for(self, *, epochs: float, negatives: int) -> None:
        """Refuse values that make no sense in a training.

        Args:
            epochs: Epochs of the training.
            negatives: Negatives per query in a step.

        Raises:
            OptionError: Names the option.
        """
        if self.every < 1:
            msg = f"refresh.every is {self.every}, and must be at least 1: --refresh-negatives every=2"
            raise OptionError(msg)
        if self.every >= epochs:
            msg = (
                f"refresh.every is {self.every}, and the training has {epochs:g} epochs: negatives would never be "
                "mined anew. Lower it, or leave --refresh-negatives out."
            )
            raise OptionError(msg)
        if negatives == 0:
            msg = "negatives is 0, so there are none to mine anew. Leave --refresh-negatives out."
            raise OptionError(msg)
        if self.positives != "keep":
            msg = f"refresh.positives is '{self.positives}', and a training keeps its positives. Leave it out."
            raise OptionError(msg)
        self.check(merging=False)


def refresh_options(flag: str | None, settings: Mapping[str, Any]) -> RefreshOptions | None:
    """The options of `--refresh-negatives every=2` and `--set refresh.OPTION=VALUE`; None if neither was given.

    Raises:
        OptionError: The flag has another form, an option is unknown, or `every` is missing.
    """
    if flag is None and not settings:
        return None
    given = dict(settings)
    for part in (flag or "").split(",") if flag is not None else ():
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            msg = f"--refresh-negatives is '{flag}', and should say after how many epochs, such as every=2."
            raise OptionError(msg)
        given[name.strip()] = value.strip()
    return RefreshOptions(**registry.check_options("refresh", RefreshOptions, given))


@dataclass(frozen=True)
class NegativeMiner:
    """Mines negatives for training examples.

    Attributes:
        rows: The training examples that are sampled from.
        known: The same examples, with the corpus's ids of their positives.
        corpus: The passages.
        options: Which hits become negatives.
        precision: Number format of matrix products.
    """

    rows: Sequence[Example]
    known: Sequence[Example]
    corpus: Corpus
    options: RefreshOptions
    precision: Precision

    def check(self) -> None:
        """Refuse what the first mining would refuse; the re-ranker is loaded for that, and released.

        Raises:
            InputError: The questions have no answers, or there is no such re-ranker.
        """
        self._mining(group_questions(self.known), "").applicable()
        self._scores()

    def mine(self, retriever: Retriever, work: Path, title: str) -> tuple[list[Example], dict[str, Any]]:
        """The examples with new negatives, and the audit.

        Args:
            retriever: Searches for them.
            work: A folder for intermediate files.
            title: Name of the retriever in the audit.

        Raises:
            RetrievalkitError: No question has a negative.
        """
        questions = group_questions(self.known, self.corpus if self.options.drop_positives else None)
        sources = Sources([str(_save(retriever, work / "checkpoint"))], precision=self.precision)
        mining = replace(self._mining(questions, title), scores=self._scores())
        parts = work / f"parts-{sources.fingerprint()[:12]}"
        mined = mining.run(sources.open(self.corpus, work, questions), parts)
        negatives = [row.negatives for row in mined_examples(self.known, mined)]
        if not any(negatives):
            raise RetrievalkitError(mined.audit.complaint(title))
        rows = [replace(row, negatives=new) for row, new in zip(self.rows, negatives, strict=True)]
        without = sum(not new for new in negatives)
        report = mined.audit.report(self.corpus, without=without, examples=len(negatives))
        return rows, {"source": {"source": title, "kind": "checkpoint"}, "options": asdict(self.options), **report}

    def _mining(self, questions: list[Question], title: str) -> Mining:
        return Mining(questions, self.corpus, self.options, title)

    def _scores(self) -> PairScores | None:
        if self.options.reranker is None:
            return None
        return open_scores(self.options.reranker, self.corpus.get)[0]


class NegativeRefresh:
    """Mines anew after the epochs where that is due, and gives the new negatives to the sampler.

    Args:
        miner: Mines.
        retriever: The model that is trained.
        sampler: Draws from the examples.
    """

    def __init__(self, miner: NegativeMiner, retriever: Retriever, sampler: ExampleSampler) -> None:
        self.miner = miner
        self.retriever = retriever
        self.sampler = sampler

    def restore(self, epochs: int, folder: Path) -> None:
        """Give the sampler the negatives in use after so many whole epochs.

        Raises:
            ArtifactError: Their file is missing.
        """
        every = self.miner.options.every
        if epoch := epochs // every * every:
            with processes.together():
                rows = self._read(epoch, folder) if processes.is_main() else []
            self.sampler.examples = processes.from_main(rows)

    def end_epoch(self, epoch: int, folder: Path, log: Log, say: Say) -> None:
        """Mine anew if that is due after this many epochs."""
        if epoch % self.miner.options.every == 0:
            with processes.together():
                rows = self._mine(epoch, folder, log, say) if processes.is_main() else []
            self.sampler.examples = processes.from_main(rows)

    def _mine(self, epoch: int, folder: Path, log: Log, say: Say) -> list[Example]:
        started, work = time.monotonic(), folder / _WORK
        work.mkdir(exist_ok=True)
        with _random_state_kept():
            rows, audit = self.miner.mine(self.retriever, work, f"the model after epoch {epoch}")
        file = _file(folder, epoch)
        write_examples(file, rows)
        artifacts.write_json(file.with_suffix(".audit.json"), audit)
        shutil.rmtree(work)
        changed = share_changed(self.sampler.examples, rows)
        log({"negatives_changed": changed})
        seconds = time.monotonic() - started
        say(f"negatives mined anew after epoch {epoch}: {changed:.0%} are new ({seconds:.0f} s)")
        return rows

    def _read(self, epoch: int, folder: Path) -> list[Example]:
        file = _file(folder, epoch)
        if not file.is_file():
            msg = f"the negatives that were mined after epoch {epoch} are gone ('{file}'). Train without --resume."
            raise ArtifactError(msg)
        mined = read_examples(file).rows
        return [replace(row, negatives=new.negatives) for row, new in zip(self.miner.rows, mined, strict=True)]


def _file(folder: Path, epoch: int) -> Path:
    return folder / NEGATIVES / f"epoch-{epoch}.jsonl"


def share_changed(before: Sequence[Example], after: Sequence[Example]) -> float:
    """The fraction of the negatives that the same examples did not have before."""
    pairs = zip(before, after, strict=True)
    new = sum(len(set(row.negatives) - set(old.negatives)) for old, row in pairs)
    return new / max(1, sum(len(row.negatives) for row in after))


def _save(retriever: Retriever, folder: Path) -> Path:
    """The retriever as a checkpoint folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    retriever.save(folder)
    files = artifacts.describe_files(folder, skip=NOT_WEIGHTS)
    entries: dict[str, Any] = {"fingerprint": artifacts.fingerprint_files(files), "files": files}
    artifacts.write_manifest(folder, "checkpoint", command="train", options={}, **entries)
    return folder


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Random numbers drawn in this block leave those drawn after it as they are."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
