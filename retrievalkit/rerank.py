"""The program behind `rkit rerank apply`: a cross-encoder's scores of a run or of training examples.

    rkit rerank apply RERANKER --run RUN --queries QUERIES --corpus CORPUS [--k 100] --output RERANKED
    rkit rerank apply RERANKER --examples EXAMPLES --corpus CORPUS --output SCORED

A run comes out in the order of the scores; examples come out with a teacher's score for each of their documents, which
`rkit train --loss distill_kl` and `margin_mse` learn from. Pairs are scored window by window: memory does not grow
with them, and a killed command, run again, goes on at the first window that is not whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from retrievalkit import artifacts
from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.examples import Example, Examples, against_corpus, read_examples, write_examples
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import Run, read_run, write_run
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import ArtifactError, DataError, InputError, nearest
from retrievalkit.model.batches import prefetch
from retrievalkit.model.cross_encoder import CrossEncoder, Pair
from retrievalkit.model.precision import Precision, default_device, resolve_precision

WINDOW = 4_096
DEPTH = 100
_SCORES, _IDENTITY = "scores.f32", "identity.json"


@dataclass(frozen=True)
class Settings:
    """How pairs are scored.

    Args:
        max_length: Most tokens of a pair, for a cross-encoder that was not trained here; None = 512, or its limit.
        precision: What to compute in; "auto" is bf16 where the hardware multiplies in it.
        batch_tokens: Most tokens of a batch, padding included; None = what suits the device.
        window: Pairs that are sorted by length and scored between two writings: the unit of memory and of resuming.
    """

    max_length: int | None = None
    precision: Precision = "auto"
    batch_tokens: int | None = None
    window: int = WINDOW


def rerank_run(
    reranker: str | Path,
    *,
    run: str | Path,
    queries: str | Path,
    corpus: str | Path,
    output: str | Path,
    k: int = DEPTH,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Rank the best documents of a run anew.

    Args:
        reranker: Name or folder of a cross-encoder.
        run: The run.
        queries: The texts of its queries.
        corpus: The texts of its documents.
        output: The run to write: the first `k` documents of each query, by score; equal scores stay in their order.
        k: How deep to look.
        settings: How to score.

    Returns:
        Counts, for a report.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    _check_output(output, run)
    found = {query: hits[:k] for query, hits in read_run(run).items()}
    texts = _texts_of(found, run, queries)
    opened = open_corpus(corpus)
    _check_documents(found, run, opened)
    job = _Job.open(reranker, opened, settings or Settings())
    identity = {"run": fingerprint(run), "queries": fingerprint(queries), "k": k}
    count = sum(map(len, found.values()))

    def pairs() -> Iterator[tuple[str, str]]:
        return ((texts[query], document) for query, hits in found.items() for document, _ in hits)

    with job.scores(pairs, count, Path(output), identity) as scores:
        values = iter(scores.tolist())
        ranked: Run = {
            # Sorting is stable.
            query: sorted(((document, next(values)) for document, _ in hits), key=lambda hit: -hit[1])
            for query, hits in found.items()
        }
        write_run(output, ranked)
    return {"output": str(output), "queries": len(found), "pairs": count}


def score_examples(
    reranker: str | Path,
    *,
    examples: str | Path,
    corpus: str | Path,
    output: str | Path,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Score all positives and negatives of training examples, for distillation.

    Args:
        reranker: Name or folder of a cross-encoder.
        examples: The examples.
        corpus: The texts of their documents.
        output: The file to write: the examples with "teacher", document id -> score.
        settings: How to score.

    Returns:
        Counts, for a report.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    _check_output(output, examples)
    opened = open_corpus(corpus)
    read = against_corpus(read_examples(examples), opened)
    without = _without_negatives(read)
    job = _Job.open(reranker, opened, settings or Settings())
    count = sum(len(_documents(row)) for row in read.rows)

    def pairs() -> Iterator[tuple[str, str]]:
        return ((row.query, document) for row in read.rows for document in _documents(row))

    with job.scores(pairs, count, Path(output), {"examples": fingerprint(examples)}) as scores:
        # The shortest numbers that give the same 32-bit floats.
        values = map(float, scores.astype(str))
        write_examples(output, (replace(row, teacher=dict(zip(_documents(row), values))) for row in read.rows))  # noqa: B905
    return {"output": str(output), "examples": len(read), "without_negatives": without, "pairs": count}


def _check_output(output: str | Path, source: str | Path) -> None:
    if Path(output).is_dir():
        msg = f"output '{output}' is a folder, and a file is to be written there. Choose another --output."
        raise ArtifactError(msg)
    if Path(output).exists() and Path(source).exists() and Path(output).samefile(source):
        msg = f"output '{output}' is what is read. Choose another --output."
        raise InputError(msg)


def _texts_of(run: Run, path: str | Path, queries: str | Path) -> dict[str, str]:
    texts = {query.id: query.text for query in read_queries(queries)}
    missing = [query for query in run if query not in texts]
    if missing:
        close = nearest(missing[0], texts)
        hint = f"; did you mean '{close}'?" if close else "."
        msg = (
            f"{len(missing)} of its {len(run)} queries, such as '{missing[0]}', are none of the {len(texts)} queries "
            f"of '{queries}'{hint} Give the queries that were searched."
        )
        raise DataError(msg, file=path)
    return texts


def _check_documents(run: Run, path: str | Path, corpus: Corpus) -> None:
    missing = corpus.missing({document for hits in run.values() for document, _ in hits})
    if missing:
        one = next(document for hits in run.values() for document, _ in hits if document in missing)
        raise corpus.unknown(one, file=path, line=_line_of(one, path))


def _line_of(document: str, path: str | Path) -> int | None:
    lines = files.filled_lines(files.inside(files.existing(path), "run.trec", "results"))
    return next((line.number for line in lines if document in line.text), None)


def _without_negatives(examples: Examples) -> int:
    without = sum(not row.negatives for row in examples.rows)
    if without == len(examples):
        msg = (
            f"none of the {without} examples of '{examples.source}' has negatives, and distillation compares a "
            f"teacher's scores of positives and negatives. Find some: rkit mine-negatives --from bm25"
        )
        raise InputError(msg)
    return without


def _documents(row: Example) -> list[str]:
    return list(dict.fromkeys((*row.positives, *row.negatives)))


@dataclass
class _Job:
    """Scores pairs of a query's text and a document's id."""

    model: CrossEncoder
    corpus: Corpus
    settings: Settings

    @classmethod
    def open(cls, reranker: str | Path, corpus: Corpus, settings: Settings) -> _Job:
        chosen = resolve_precision(settings.precision, default_device())
        model = CrossEncoder.load(reranker, max_length=settings.max_length)
        return cls(model, corpus, replace(settings, precision=chosen))

    @contextmanager
    def scores(
        self, pairs: Callable[[], Iterator[tuple[str, str]]], count: int, output: Path, identity: Mapping[str, Any]
    ) -> Iterator[np.ndarray]:
        """The scores of all pairs, float32, from a file; it is removed once the block has ended.

        Args:
            pairs: Makes them anew.
            count: How many there are.
            output: What is made of them: the scores are kept beside it, in a hidden folder, until that is whole.
            identity: What is scored: where a killed command left scores of something else, these are not used.
        """
        settings = {name: value for name, value in vars(self.settings).items() if name != "max_length"}
        identity = {
            **identity,
            "corpus": self.corpus.fingerprint(),
            "reranker": [self.model.fingerprint, self.model.max_length],
            "settings": settings,
        }
        with _work_folder(output, identity) as folder:
            path = folder / _SCORES
            done = self._whole_windows(path)
            with path.open("ab") as stream, self._bar(count, done) as advance:
                for window in prefetch(self._tokenized(islice(pairs(), done, None))):
                    scores = self.model.score(
                        window,
                        batch_tokens=self.settings.batch_tokens,
                        precision=self.settings.precision,
                        advance=advance,
                    )
                    stream.write(scores.astype("<f4").tobytes())
                    stream.flush()
            yield np.memmap(path, dtype="<f4", mode="r", shape=(count,))

    def _whole_windows(self, path: Path) -> int:
        """How many pairs an earlier, killed command scored; a window that it had not finished is cut off."""
        windows = path.stat().st_size // (4 * self.settings.window) if path.exists() else 0
        if path.exists():
            with path.open("r+b") as stream:
                stream.truncate(windows * 4 * self.settings.window)
        return windows * self.settings.window

    def _tokenized(self, pairs: Iterator[tuple[str, str]]) -> Iterator[list[Pair]]:
        while window := list(islice(pairs, self.settings.window)):
            wanted = {document: self.corpus.get(document) for _, document in window}
            passages = [(wanted[document].title, wanted[document].text) for _, document in window]
            yield self.model.tokenize([query for query, _ in window], passages)

    @contextmanager
    def _bar(self, count: int, done: int) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("[bold]re-ranking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=count, completed=done)
            yield lambda pairs: progress.advance(task, pairs)


@contextmanager
def _work_folder(output: Path, identity: Mapping[str, Any]) -> Iterator[Path]:
    """A folder beside the output for the scores; it stays only where the command is interrupted."""
    work = artifacts.partial_folder(output)
    note, text = work / _IDENTITY, json.dumps(identity, sort_keys=True)
    if work.is_dir() and (not note.is_file() or note.read_text(encoding="utf-8") != text):
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    try:
        note.write_text(text, encoding="utf-8")
        yield work
    except Exception:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)
