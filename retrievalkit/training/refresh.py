"""Hard negatives mined again during training with the current model: `rkit train --refresh-negatives every=2`.

Every N epochs, the corpus is encoded with the current weights and searched with the training questions, and the hits
that pass the filters of `rkit mine-negatives` replace the examples' negatives (ANCE: Xiong et al., "Approximate nearest
neighbor negative contrastive learning for dense text retrieval", 2021, but synchronous with the training). Negatives
are mined before the state of that step is saved, so a resumed training continues with the same negatives. Several
processes share the encoding and the search.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievalkit import registry, storage
from retrievalkit.contracts import PairScores
from retrievalkit.contracts.cluster import RANKS, ClusterOptions
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.errors import ArtifactError, OptionError, RetrievalkitError
from retrievalkit.mining.examples import group_questions, mined_examples
from retrievalkit.mining.options import MiningOptions
from retrievalkit.mining.parts import Mining
from retrievalkit.mining.reranker import open_scores
from retrievalkit.mining.sources import Sources
from retrievalkit.models.precision import Precision
from retrievalkit.models.retriever import Retriever
from retrievalkit.reporting.terminal import say
from retrievalkit.storage import NEGATIVES, NOT_WEIGHTS
from retrievalkit.training.collective import Collective
from retrievalkit.training.loop import Log
from retrievalkit.training.options import TrainOptions
from retrievalkit.training.ranks import lead
from retrievalkit.training.sampling import ExampleSampler

_WORK = "refresh"


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(MiningOptions):
    """Options of mining negatives during training: `every`, and the options of `rkit mine-negatives`.

    Args:
        every: Number of epochs between minings; nothing is mined after the last epoch.
    """

    every: int


def refresh_options(options: TrainOptions) -> RefreshOptions | None:
    """Return the options of `--refresh-negatives every=2` and `--set refresh.OPTION=VALUE`; None if neither is set."""
    flag, values = options.refresh_negatives, dict(options.refresh_options)
    if flag is None and not values:
        return None
    for part in () if flag is None else flag.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            msg = f"--refresh-negatives is '{flag}', and should be a number of epochs, such as every=2."
            raise OptionError(msg)
        values[name.strip()] = value.strip()
    refresh = RefreshOptions(**registry.check_options("refresh", RefreshOptions, values))
    problem = ""
    assert options.epochs is not None
    if not 1 <= refresh.every < options.epochs:
        problem = f"refresh.every is {refresh.every}, and has to be from 1 to less than the {options.epochs:g} epochs"
    elif options.negatives == 0:
        problem = "negatives is 0, so mined negatives would not be used"
    elif refresh.positives != "keep":
        problem = f"refresh.positives is '{refresh.positives}', and a training keeps its positives"
    if problem:
        msg = f"{problem}. Change that, or leave --refresh-negatives out."
        raise OptionError(msg)
    refresh.check(merging=False)
    return refresh


@dataclass
class NegativeRefresh:
    """Mines negatives after every N epochs, and passes them to the sampler."""

    sampler: ExampleSampler
    known: Sequence[Example]
    corpus: Corpus
    options: RefreshOptions
    precision: Precision
    retriever: Retriever
    collective: Collective

    def __post_init__(self) -> None:
        self.rows = self.sampler.examples

    def check(self) -> None:
        """Run the checks of the first mining; the re-ranker is loaded for them, and released."""
        Mining(group_questions(self.known), self.corpus, self.options, "").applicable()
        self._scores()

    def restore(self, epochs: int, folder: Path) -> None:
        """Pass the negatives in use after this number of whole epochs to the sampler."""
        every = self.options.every
        if epoch := epochs // every * every:
            self._use(partial(self._read, epoch, folder))

    def end_epoch(self, epoch: int, folder: Path, log: Log) -> None:
        """Mine new negatives if they are due after this number of epochs."""
        if epoch % self.options.every == 0:
            self._use(partial(self.mine, epoch, folder, log))

    def _use(self, rows_of_main: Callable[[], list[Example]]) -> None:
        drawn = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                rows = lead(self.collective, rows_of_main)
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])
        self.sampler.examples = self.collective.from_main(rows or [])

    def mine(self, epoch: int, folder: Path, log: Log) -> list[Example]:
        """Mine new negatives, write them to the folder with their audit, and return the examples with them."""
        started, work, title = time.monotonic(), folder / _WORK, f"the model after epoch {epoch}"
        work.mkdir(exist_ok=True)
        questions = group_questions(self.known, self.corpus if self.options.drop_positives else None)
        checkpoint = str(_save(self.retriever, work / "checkpoint"))
        cluster = ClusterOptions(ray=RANKS) if self.collective.size > 1 else None
        sources = Sources([checkpoint], precision=self.precision, cluster=cluster)
        search, parts = sources.open(self.corpus, work, questions), f"parts-{sources.fingerprint()[:12]}"
        mined = Mining(questions, self.corpus, self.options, title, self._scores()).run(search, work / parts)
        negatives = [row.negatives for row in mined_examples(self.known, mined)]
        if not any(negatives):
            raise RetrievalkitError(mined.audit.complaint(title))
        rows = [replace(row, negatives=new) for row, new in zip(self.rows, negatives, strict=True)]
        report = mined.audit.report(self.corpus, without=sum(not new for new in negatives), examples=len(negatives))
        audit = {"source": {"source": title, "kind": "checkpoint"}, "options": asdict(self.options), **report}
        file = _file(folder, epoch)
        write_examples(file, rows)
        storage.write_json(file.with_suffix(".audit.json"), audit)
        shutil.rmtree(work)
        changed, seconds = share_changed(self.sampler.examples, rows), time.monotonic() - started
        log({"negatives_changed": changed})
        say(f"negatives mined again after epoch {epoch}: {changed:.0%} are new ({seconds:.0f} s)", err=True)
        return rows

    def _read(self, epoch: int, folder: Path) -> list[Example]:
        file = _file(folder, epoch)
        if not file.is_file():
            msg = f"the negatives mined after epoch {epoch} are missing ('{file}'). Train without --resume."
            raise ArtifactError(msg)
        mined = read_examples(file).rows
        return [replace(row, negatives=new.negatives) for row, new in zip(self.rows, mined, strict=True)]

    def _scores(self) -> PairScores | None:
        reranker = self.options.reranker
        return None if reranker is None else open_scores(reranker, self.corpus.get)[0]


def _file(folder: Path, epoch: int) -> Path:
    return folder / NEGATIVES / f"epoch-{epoch}.jsonl"


def share_changed(before: Sequence[Example], after: Sequence[Example]) -> float:
    """Return the fraction of negatives that the same examples did not have before."""
    pairs = zip(before, after, strict=True)
    new = sum(len(set(row.negatives) - set(old.negatives)) for old, row in pairs)
    return new / max(1, sum(len(row.negatives) for row in after))


def _save(retriever: Retriever, folder: Path) -> Path:
    """Write the retriever as a checkpoint folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    retriever.save(folder)
    files = storage.describe_files(folder, skip=NOT_WEIGHTS)
    entries: dict[str, Any] = {"fingerprint": storage.fingerprint_files(files), "files": files}
    storage.write_manifest(folder, "checkpoint", command="train", options={}, **entries)
    return folder
