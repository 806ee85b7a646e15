"""The program behind `rkit rerank apply`: scores the documents of a run, or of training examples, by a re-ranker.

    rkit rerank apply RERANKER --run RUN --queries QUERIES --corpus CORPUS [--k 100] --output RERANKED
    rkit rerank apply RERANKER --examples EXAMPLES --corpus CORPUS --output SCORED

A run is written in the order of the scores; examples are written with a teacher's score for each of their documents,
which `rkit train --loss distill_kl` and `margin_mse` learn from. Pairs are scored window by window: memory does not
grow with their number, and a killed command that is run again continues at the first incomplete window.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import artifacts, oddities
from retrievalkit.cluster import ClusterOptions, check_same, spread_map
from retrievalkit.contracts import Reranker, Text
from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.examples import Example, Examples, against_corpus, note_dropped, read_examples, write_examples
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import Run, open_run, write_run
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import DataError, InputError, nearest
from retrievalkit.model.batches import prefetch
from retrievalkit.model.precision import Precision, check_for_pairs, default_device, resolve_precision
from retrievalkit.model.rerankers import open_reranker, score_pairs
from retrievalkit.modules import make_callable
from retrievalkit.report.counts import counted
from retrievalkit.report.progress import ProgressBar
from retrievalkit.report.terminal import say

make_callable(__name__, "retrievalkit.api.reranking:rerank")

WINDOW = 4_096
DEPTH = 100
_Window = list[tuple[str, Text]]
_SCORES, _CHECKSUMS, _IDENTITY = "scores.f32", "checksums.txt", "identity.json"


@dataclass(frozen=True)
class Settings:
    """How pairs are scored.

    Args:
        max_length: Most tokens of a pair, for a cross-encoder that was not trained here; None = 512, or its limit.
        precision: The number format to compute in. In fp32 a pair has the same score, but for rounding in the last
            digits, whatever it is batched with; bf16 and "auto" are faster where the hardware multiplies in bf16.
        batch_tokens: Most tokens of a batch, padding included; None = a size that suits the device.
        window: Pairs that are sorted by length and scored together: the unit of memory and of resuming.
    """

    max_length: int | None = None
    precision: Precision = "fp32"
    batch_tokens: int | None = None
    window: int = WINDOW


def rerank_run(
    reranker: str | Path,
    *,
    run: str | Path,
    queries: str | Path,
    corpus: str | Path,
    output: str | Path,
    k: int | None = None,
    settings: Settings | None = None,
    cluster: ClusterOptions | None = None,
) -> dict[str, Any]:
    """Re-rank the best documents of a run.

    Args:
        reranker: Name or folder of a cross-encoder, or `NAME:MODEL` of a plugin.
        run: The run.
        queries: The texts of its queries.
        corpus: The texts of its documents.
        output: The run to write: the first `k` documents of each query, by score; equal scores stay in their order.
        k: Documents per query; None = 100.
        settings: How to score.
        cluster: The Ray cluster whose workers score; None = this process.

    Returns:
        Counts, for a report.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    _check_output(output, run)
    first = {query: hits[: k or DEPTH] for query, hits in open_run(run).items()}
    if k is not None and k > (deepest := max(map(len, first.values()))):
        oddities.note(
            f"the run '{run}' has at most {counted(deepest, 'documents')} per query, so --k {k:,} looks no further."
        )
    texts = _texts_of(first, run, queries)
    opened = open_corpus(corpus)
    _check_documents(first, run, opened)
    job = _Job.open(reranker, opened, settings or Settings(), cluster)
    identity = {"run": fingerprint(run), "queries": fingerprint(queries), "k": k or DEPTH}
    count = sum(map(len, first.values()))

    def pairs() -> Iterator[tuple[str, str]]:
        return ((texts[query], document) for query, hits in first.items() for document, _ in hits)

    with job.scores(pairs, count, Path(output), identity) as scores:
        values = iter(scores.tolist())
        ranked: Run = {
            # The sort is stable: equal scores stay in the order of the run.
            query: sorted(((document, next(values)) for document, _ in hits), key=lambda hit: -hit[1])
            for query, hits in first.items()
        }
        write_run(output, ranked)
    return {"output": str(output), "queries": len(first), "pairs": count}


def score_examples(
    reranker: str | Path,
    *,
    examples: str | Path,
    corpus: str | Path,
    output: str | Path,
    settings: Settings | None = None,
    cluster: ClusterOptions | None = None,
) -> dict[str, Any]:
    """Score all positives and negatives of training examples, for distillation.

    Args:
        reranker: Name or folder of a cross-encoder, or `NAME:MODEL` of a plugin.
        examples: The examples.
        corpus: The texts of their documents.
        output: The file to write: the examples with "teacher", document id -> score.
        settings: How to score.
        cluster: The Ray cluster whose workers score; None = this process.

    Returns:
        Counts, for a report.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    _check_output(output, examples)
    opened = open_corpus(corpus)
    read = against_corpus(read_examples(examples), opened)
    note_dropped(read)
    without = _without_negatives(read)
    job = _Job.open(reranker, opened, settings or Settings(), cluster)
    count = sum(len(_documents(row)) for row in read.rows)

    def pairs() -> Iterator[tuple[str, str]]:
        return ((row.query, document) for row in read.rows for document in _documents(row))

    with job.scores(pairs, count, Path(output), {"examples": fingerprint(examples)}) as scores:
        # As text and back: the shortest decimals that stand for these 32-bit floats.
        values = map(float, scores.astype(str))
        write_examples(output, (replace(row, teacher=dict(zip(_documents(row), values))) for row in read.rows))  # noqa: B905
    return {"output": str(output), "examples": len(read), "without_negatives": without, "pairs": count}


def _check_output(output: str | Path, source: str | Path) -> None:
    artifacts.check_output_file(output)
    if Path(output).exists() and Path(source).exists() and Path(output).samefile(source):
        msg = f"output '{output}' is the input too. Choose another --output."
        raise InputError(msg)


def _texts_of(run: Run, path: str | Path, queries: str | Path) -> dict[str, str]:
    texts = {query.id: query.text for query in read_queries(queries)}
    missing = [query for query in run if query not in texts]
    if missing:
        close = nearest(missing[0], texts)
        hint = f"; did you mean '{close}'?" if close else "."
        msg = (
            f"{len(missing)} of its {len(run)} queries, such as '{missing[0]}', are not "
            f"among the {counted(len(texts), 'queries')} of '{queries}'{hint} Give the queries that were searched."
        )
        raise DataError(msg, file=path)
    return texts


def _check_documents(run: Run, path: str | Path, corpus: Corpus) -> None:
    missing = corpus.missing({document for hits in run.values() for document, _ in hits})
    if missing:
        first = next(document for hits in run.values() for document, _ in hits if document in missing)
        raise corpus.unknown(first, file=path, line=_line_of(first, path))


def _line_of(document: str, path: str | Path) -> int | None:
    lines = files.filled_lines(files.inside(files.existing(path), "run.trec", "results"))
    return next((line.number for line in lines if document in line.text), None)


def _without_negatives(examples: Examples) -> int:
    without = sum(not row.negatives for row in examples.rows)
    if without == len(examples):
        msg = (
            f"none of the {without} examples of '{examples.source}' has negatives, and distillation compares a "
            f"teacher's scores of positives and negatives. Mine some: rkit mine-negatives --from bm25"
        )
        raise InputError(msg)
    if without:
        # The command's last line counts them.
        oddities.check(f"{without:,} of the {len(examples):,} examples of '{examples.source}' have no negatives.")
    return without


def _documents(row: Example) -> list[str]:
    return list(dict.fromkeys((*row.positives, *row.negatives)))


@dataclass
class _Job:
    """Scores pairs of a query's text and a document's id."""

    scorer: _Scorer
    corpus: Corpus
    cluster: ClusterOptions | None

    @classmethod
    def open(cls, reranker: str | Path, corpus: Corpus, settings: Settings, cluster: ClusterOptions | None) -> _Job:
        check_for_pairs(settings.precision)
        precision = resolve_precision(settings.precision, default_device())
        return cls(_Scorer.load(reranker, replace(settings, precision=precision)), corpus, cluster)

    @property
    def settings(self) -> Settings:
        return self.scorer.settings

    @contextmanager
    def scores(
        self, pairs: Callable[[], Iterator[tuple[str, str]]], count: int, output: Path, identity: Mapping[str, Any]
    ) -> Iterator[np.ndarray]:
        """The scores of all pairs, float32, mapped from a file; it is removed at the end of the block.

        Args:
            pairs: Gives the pairs, from the first one on at each call.
            count: The number of pairs.
            output: The final output; the scores are kept in a hidden folder beside it until it is complete.
            identity: The inputs; scores that a killed command left are used only if theirs are the same.
        """
        settings = {name: value for name, value in vars(self.settings).items() if name != "max_length"}
        identity = {
            **identity,
            "corpus": self.corpus.fingerprint(),
            "reranker": [self.scorer.model.fingerprint, self.scorer.model.max_length],
            "settings": settings,
        }
        with _work_folder(output, identity) as folder:
            path, checksums = folder / _SCORES, folder / _CHECKSUMS
            done = self._whole_windows(path, checksums)
            with (
                path.open("ab") as stream,
                checksums.open("a", encoding="ascii") as sums,
                ProgressBar("re-rank", count, unit="pairs", done=done) as bar,
            ):
                for scores in self._windows(partial(_texts, pairs, self.corpus, self.settings.window, done), bar):
                    data = scores.astype("<f4").tobytes()
                    stream.write(data)
                    stream.flush()
                    # Last: it marks the window as complete.
                    sums.write(f"{_checksum(data)}\n")
                    sums.flush()
            yield np.memmap(path, dtype="<f4", mode="r", shape=(count,))

    def _whole_windows(self, scores: Path, checksums: Path) -> int:
        """The number of pairs that an earlier, killed command scored, as far as they are what it wrote.

        What comes after them, such as a window that was cut off, is removed.
        """
        size = 4 * self.settings.window
        expected = checksums.read_bytes().split(b"\n")[:-1] if checksums.exists() and scores.exists() else []
        scores.touch()
        whole = 0
        with scores.open("r+b") as stream:
            # A window at the end may be shorter, and is scored again.
            while whole < len(expected) and len(data := stream.read(size)) == size:
                if _checksum(data).encode() != expected[whole]:
                    again = f"from pair {whole * self.settings.window + 1:,} on they are scored again"
                    say(f"scores in '{scores}' were changed after they were written: {again}", err=True)
                    break
                whole += 1
            stream.truncate(whole * size)
        checksums.write_bytes(b"".join(one + b"\n" for one in expected[:whole]))
        return whole * self.settings.window

    def _windows(self, texts: Callable[[], Iterator[_Window]], bar: ProgressBar) -> Iterator[np.ndarray]:
        """The scores of each window of pairs."""
        scorer = self.scorer
        if self.cluster is None:
            for window in prefetch(map(scorer.tokenize, texts())):
                yield scorer.score(window, bar.advance)
            return
        place = artifacts.absolute(scorer.reranker)
        for scores in spread_map(
            partial(_Worker, place, scorer.settings, scorer.model.fingerprint), texts, self.cluster
        ):
            bar.advance(len(scores))
            yield scores


@dataclass
class _Scorer:
    """Scores windows of pairs."""

    model: Reranker
    reranker: str | Path
    settings: Settings

    @classmethod
    def load(cls, reranker: str | Path, settings: Settings) -> _Scorer:
        return cls(open_reranker(reranker, max_length=settings.max_length), reranker, settings)

    def tokenize(self, window: _Window) -> Sequence[Any]:
        return self.model.tokenize([query for query, _ in window], [passage for _, passage in window])

    def score(self, window: Sequence[Any], advance: Callable[[int], None]) -> np.ndarray:
        settings = self.settings
        return score_pairs(
            self.model, window, batch_tokens=settings.batch_tokens, precision=settings.precision, advance=advance
        )


class _Worker:
    """Scores windows in a process of its own, which another machine may run."""

    def __init__(self, reranker: str | Path, settings: Settings, fingerprint: str) -> None:
        self._scorer = _Scorer.load(reranker, settings)
        check_same("model", reranker, self._scorer.model.fingerprint, fingerprint)

    def __call__(self, window: _Window) -> np.ndarray:
        return self._scorer.score(self._scorer.tokenize(window), lambda _: None)


def _texts(pairs: Callable[[], Iterator[tuple[str, str]]], corpus: Corpus, size: int, done: int) -> Iterator[_Window]:
    """The texts of the pairs after the first `done`, window by window."""
    rest = islice(pairs(), done, None)
    while window := list(islice(rest, size)):
        by_id = {document: corpus.get(document) for _, document in window}
        yield [(query, (by_id[document].title, by_id[document].text)) for query, document in window]


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@contextmanager
def _work_folder(output: Path, identity: Mapping[str, Any]) -> Iterator[Path]:
    """A folder beside the output for the scores; it stays only if the command is interrupted or the disk is full."""
    work = artifacts.partial_folder(output)
    note, text = work / _IDENTITY, json.dumps(identity, sort_keys=True)
    with artifacts.held(output):
        if work.is_dir() and (not note.is_file() or note.read_text(encoding="utf-8") != text):
            shutil.rmtree(work)
        with artifacts.work_folder(work):
            note.write_text(text, encoding="utf-8")
            yield work
