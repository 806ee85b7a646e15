"""Negatives that are mined anew during training, by the model as it is then: `rkit train --refresh-negatives every=2`.

After every so many epochs the corpus is encoded with the current weights, the training questions are searched in it,
and what passes the filters of `rkit mine-negatives` takes the place of the examples' negatives (Xiong et al.,
"Approximate nearest neighbor negative contrastive learning for dense text retrieval", 2021, but in step with the
training). It happens before the state of that step is saved, and which negatives are in use follows from the number of
steps: so a training that is resumed goes on with the same ones. Of several processes the main one mines, and the others
wait for it.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from retrievalkit import artifacts, registry
from retrievalkit.artifacts import NEGATIVES, NOT_WEIGHTS
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.errors import ArtifactError, OptionError, RetrievalkitError
from retrievalkit.mine.filters import PairScores
from retrievalkit.mine.merge import mined_examples

# The three choices are in the annotations that RefreshOptions inherits.
from retrievalkit.mine.options import Merge, MiningOptions, Positives, Question, Sample  # noqa: F401
from retrievalkit.mine.parts import Mining
from retrievalkit.mine.questions import group_questions
from retrievalkit.mine.reranker import open_scores
from retrievalkit.mine.sources import Sources
from retrievalkit.model.precision import Precision
from retrievalkit.model.retriever import Retriever
from retrievalkit.train import processes
from retrievalkit.train.sampling import ExampleSampler

_WORK = "refresh"


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(MiningOptions):
    """When negatives are mined anew, and which; beside `every`, the options of `rkit mine-negatives`.

    Args:
        every: After every so many epochs; not after the last one, which nothing comes after.
    """

    every: int

    def check_for(self, *, epochs: float, negatives: int) -> None:
        """Refuse values that make no sense in a training.

        Args:
            epochs: How many the training has.
            negatives: How many a query has in a step.

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
            msg = "negatives is 0, so that there are none to be mined anew. Leave --refresh-negatives out."
            raise OptionError(msg)
        if self.positives != "keep":
            msg = f"refresh.positives is '{self.positives}', and a training keeps its positives. Leave it out."
            raise OptionError(msg)
        self.check(merging=False)


def refresh_options(flag: str | None, settings: Mapping[str, Any]) -> RefreshOptions | None:
    """The options of `--refresh-negatives every=2` and of `--set refresh.OPTION=VALUE`; None where there are none.

    Raises:
        OptionError: The flag is not of that form, there is no such option, or `every` is missing.
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
class Negatives:
    """What is mined for.

    Attributes:
        rows: The training examples as they are drawn from.
        known: The same with the corpus's ids of their positives.
        corpus: The passages.
        options: Which hits become negatives.
        precision: What to compute in.
    """

    rows: Sequence[Example]
    known: Sequence[Example]
    corpus: Corpus
    options: RefreshOptions
    precision: Precision

    def check(self) -> None:
        """Refuse what the first mining would refuse; the re-ranker is loaded for that, and let go again.

        Raises:
            InputError: The questions have no answers, or there is no such re-ranker.
        """
        self._mining(group_questions(self.known), "").check()
        self._scores()

    def mine(self, retriever: Retriever, work: Path, title: str) -> tuple[list[Example], dict[str, Any]]:
        """The examples with new negatives, and the audit.

        Args:
            retriever: Finds them.
            work: A folder for what is built on the way.
            title: What the retriever is called in the audit.

        Raises:
            RetrievalkitError: No question has a negative.
        """
        questions = group_questions(self.known, self.corpus if self.options.drop_positives else None)
        sources = Sources([str(_save(retriever, work / "checkpoint"))], precision=self.precision)
        mining = replace(self._mining(questions, title), scores=self._scores())
        parts = work / f"parts-{sources.fingerprint()[:12]}"
        mined = mining.run(sources.open(self.corpus, work, questions), parts)
        found = [row.negatives for row in mined_examples(self.known, mined)]
        if not any(found):
            raise RetrievalkitError(mined.audit.complaint(title))
        rows = [replace(row, negatives=negatives) for row, negatives in zip(self.rows, found, strict=True)]
        report = mined.audit.report(self.corpus, without=sum(not one for one in found), examples=len(found))
        return rows, {"source": {"source": title, "kind": "checkpoint"}, "options": asdict(self.options), **report}

    def _mining(self, questions: list[Question], title: str) -> Mining:
        return Mining(questions, self.corpus, self.options, title)

    def _scores(self) -> PairScores | None:
        if self.options.reranker is None:
            return None
        return open_scores(self.options.reranker, self.corpus.get, precision=self.precision)[0]


class RefreshNegatives(transformers.TrainerCallback):
    """Mines anew at the end of the epochs that are due, and gives the sampler what was found.

    Args:
        negatives: What is mined for.
        retriever: What is trained.
        sampler: Draws from the examples.
        folder: The folder that is trained in.
        steps_an_epoch: How many steps an epoch has.
        log: Told what share of the negatives was not there before.
        say: Told the same, and how long it took, for a person.
    """

    def __init__(
        self,
        negatives: Negatives,
        retriever: Retriever,
        sampler: ExampleSampler,
        folder: Path,
        steps_an_epoch: int,
        log: Callable[[dict[str, float]], None],
        say: Callable[[str], object],
    ) -> None:
        self.negatives = negatives
        self.retriever = retriever
        self.sampler = sampler
        self.folder = folder
        self.steps_an_epoch = steps_an_epoch
        self.log = log
        self.say = say

    def resume(self, step: int) -> None:
        """Give the sampler the negatives that a training has after so many steps.

        Raises:
            ArtifactError: They are not there any more.
        """
        every = self.negatives.options.every
        if epoch := step // self.steps_an_epoch // every * every:
            with processes.together():
                rows = self._read(epoch) if processes.is_main() else []
            self.sampler.examples = processes.from_main(rows)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Mine anew, where an epoch ends with this step, it is due, and another step follows."""
        epoch, rest = divmod(state.global_step, self.steps_an_epoch)
        if rest == 0 and epoch % self.negatives.options.every == 0 and state.global_step < state.max_steps:
            should_log = control.should_log
            with processes.together():
                rows = self._mine(epoch) if processes.is_main() else []
            self.sampler.examples = processes.from_main(rows)
            # Logging what was found counts, for the Trainer, as the logging of this step.
            control.should_log = should_log

    def _mine(self, epoch: int) -> list[Example]:
        started, work = time.monotonic(), self.folder / _WORK
        work.mkdir(exist_ok=True)
        with _own_draws():
            rows, audit = self.negatives.mine(self.retriever, work, f"the model after epoch {epoch}")
        file = self._file(epoch)
        write_examples(file, rows)
        artifacts.write_json(file.with_suffix(".audit.json"), audit)
        shutil.rmtree(work)
        changed = share_changed(self.sampler.examples, rows)
        self.log({"negatives_changed": changed})
        seconds = time.monotonic() - started
        self.say(f"negatives mined anew after epoch {epoch}: {changed:.0%} were not there before ({seconds:.0f} s)")
        return rows

    def _read(self, epoch: int) -> list[Example]:
        file = self._file(epoch)
        if not file.is_file():
            msg = f"the negatives that were mined after epoch {epoch} are gone ('{file}'). Train without --resume."
            raise ArtifactError(msg)
        found = read_examples(file).rows
        return [replace(row, negatives=one.negatives) for row, one in zip(self.negatives.rows, found, strict=True)]

    def _file(self, epoch: int) -> Path:
        return self.folder / NEGATIVES / f"epoch-{epoch}.jsonl"


def share_changed(before: Sequence[Example], after: Sequence[Example]) -> float:
    """What share of the negatives the same examples did not have before."""
    new = sum(len(set(two.negatives) - set(one.negatives)) for one, two in zip(before, after, strict=True))
    return new / max(1, sum(len(row.negatives) for row in after))


def _save(retriever: Retriever, folder: Path) -> Path:
    """The retriever as a checkpoint folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    retriever.save(folder)
    print_of = artifacts.fingerprint_folder(folder, skip=NOT_WEIGHTS)
    artifacts.write_manifest(folder, "checkpoint", command="train", options={}, fingerprint=print_of)
    return folder


@contextmanager
def _own_draws() -> Iterator[None]:
    """What is drawn at random in this block does not change what is drawn after it."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
