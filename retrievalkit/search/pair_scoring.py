"""Implementation of `rkit rerank apply`: scores query-document pairs with a re-ranker.

Pairs are scored window by window: memory use does not grow with their number, and a killed command that is run again
resumes at the first incomplete window.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import storage
from retrievalkit.contracts.cluster import check_same, spread_map
from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.example_table import Examples
from retrievalkit.data.examples import against_corpus, note_dropped, read_examples, write_examples
from retrievalkit.data.passage_parts import in_passages
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import Hits, open_run, write_run
from retrievalkit.data.same_text import FORMS
from retrievalkit.data.sources import InMemory, fingerprint
from retrievalkit.data.vectors.ranges import read_ahead
from retrievalkit.errors import DataError, InputError, nearest
from retrievalkit.evaluation.run import Run
from retrievalkit.models.backends import resolve_backend
from retrievalkit.models.precision import Precision, default_device, resolve_precision
from retrievalkit.models.rerankers import open_reranker, score_pairs
from retrievalkit.reporting import notices
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import counted, say
from retrievalkit.search.rerank import DEPTH, RerankOptions

WINDOW = 4_096
"""Number of pairs sorted by length and scored together: the unit of memory use and of resuming."""
_CALIBRATED, _LISTED = 512, 64  # calibration pairs, and the most of a query
_Window = list[tuple[str, tuple[str, str]]]


def rerank_run(options: RerankOptions) -> Run:
    """Re-rank the best documents of a run, and write them by score; ties keep the order of the run."""
    output, run = Path(options.output or ""), options.run
    _check_output(output, run)
    first = {query: hits[: options.k or DEPTH] for query, hits in open_run(run).items()}
    deepest = max(map(len, first.values()), default=0)
    if not deepest:
        msg = f"the run '{run}' is empty: there is nothing to re-rank. Give a run with hits."
        raise InputError(msg)
    if options.k is not None and options.k > deepest:
        notices.note(
            f"the run '{run}' has at most {counted(deepest, 'documents')} per query, fewer than k={options.k:,}."
        )
    texts = {query.id: query.text for query in read_queries(options.queries)}
    if absent := [query for query in first if query not in texts]:
        close = nearest(absent[0], texts)
        hint = f"; did you mean '{close}'?" if close else "."
        msg = (
            f"{len(absent)} of its {len(first)} queries, such as '{absent[0]}', are not among the "
            f"{counted(len(texts), 'queries')} of '{options.queries}'{hint} Give the queries that were searched."
        )
        raise DataError(msg, file=run)
    corpus = open_corpus(options.corpus)
    if missing := corpus.missing({document for hits in first.values() for document, _ in hits}):
        unknown = next(document for hits in first.values() for document, _ in hits if document in missing)
        place = None if isinstance(run, InMemory) else files.inside(files.existing(run), "run.trec", "results")
        lines = () if place is None else files.filled_lines(place)
        line = next((line.number for line in lines if unknown in line.text), None)
        raise corpus.unknown(unknown, file=run, line=line)
    identity = {"run": fingerprint(run), "queries": fingerprint(options.queries), "k": options.k or DEPTH}
    count = sum(map(len, first.values()))

    def pairs() -> Iterator[tuple[str, str]]:
        return ((texts[query], document) for query, hits in first.items() for document, _ in hits)

    with _scores(options, corpus, pairs, count, identity) as scores:
        # Converted through text: the shortest decimals that represent these 32-bit floats.
        values = map(float, scores.astype(str))
        ranked: dict[str, Hits] = {
            # The sort is stable: ties keep the order of the run.
            query: sorted(((document, next(values)) for document, _ in hits), key=lambda hit: -hit[1])
            for query, hits in first.items()
        }
        write_run(output, ranked)
    reranked = Run.of(ranked.items(), f"{run}, re-ranked" if isinstance(run, InMemory) else "re-ranked")
    reranked.report = {"output": str(output), "queries": len(first), "pairs": count}
    reranked.summary = f"{output}: {counted(len(first), 'queries')}, {counted(count, 'pairs')} scored"
    return reranked


def score_examples(options: RerankOptions, *, stays: bool) -> Examples:
    """Write training examples with a teacher's score for each document, for distillation."""
    output = Path(options.output or "")
    _check_output(output, options.examples)
    corpus = open_corpus(options.corpus)
    read = against_corpus(in_passages(read_examples(options.examples), corpus), corpus)
    note_dropped(read)
    without = sum(not row.negatives for row in read.rows)
    if without == len(read):
        msg = (
            f"none of the {without} examples of '{read.source}' has negatives, but distillation compares a teacher's "
            "scores of positives and negatives. Mine negatives first: rkit mine-negatives --from bm25"
        )
        raise InputError(msg)
    if without:
        # The last line of the command has their number.
        notices.check(f"{without:,} of the {len(read):,} examples of '{read.source}' have no negatives.")
    documents = [list(dict.fromkeys((*row.positives, *row.negatives))) for row in read.rows]
    count = sum(map(len, documents))

    def pairs() -> Iterator[tuple[str, str]]:
        return ((row.query, document) for row, ids in zip(read.rows, documents, strict=True) for document in ids)

    with _scores(options, corpus, pairs, count, {"examples": fingerprint(options.examples)}) as scores:
        values = map(float, scores.astype(str))
        scored = zip(read.rows, documents, strict=True)
        write_examples(output, (replace(row, teacher={name: next(values) for name in ids}) for row, ids in scored))
    report = {"output": str(output), "examples": len(read), "without_negatives": without, "pairs": count}
    summary = f"{output}: {counted(len(read), 'examples')}, {counted(count, 'pairs')} scored"
    summary += f" ({without:,} without negatives)" if without else ""
    return Examples.written(output, options.corpus, report, summary, stays=stays)


def _check_output(output: str | Path, source: str | Path) -> None:
    storage.check_output_file(output)
    on_disk = not isinstance(source, InMemory) and Path(output).exists() and Path(source).exists()
    if on_disk and Path(output).samefile(source):
        msg = f"output '{output}' is also the input. Choose another output."
        raise InputError(msg)


@contextmanager
def _scores(
    options: RerankOptions,
    corpus: Corpus,
    pairs: Callable[[], Iterator[tuple[str, str]]],
    count: int,
    inputs: Mapping[str, Any],
) -> Iterator[np.ndarray]:
    """Yield the float32 scores of all pairs, memory-mapped from a file that is removed at the end of the block.

    Until the output is complete, the scores are in a hidden folder next to it; scores of a killed command are reused if
    the fingerprints in `inputs` match. Each call of `pairs` starts from the beginning.
    """
    backend = resolve_backend(options.backend, default_device().type)
    among = None if backend is None else backend.precisions
    precision = resolve_precision(options.precision, default_device(), among=among)
    settings = options.max_length, precision, options.batch_tokens, options.backend
    output, reranker = Path(options.output or ""), str(options.reranker)
    sample = _sample(pairs, corpus) if precision == "int8" else []
    scorer = _Scorer(reranker, *settings, sample)
    model = scorer.model
    if sample:
        tried = counted(len(sample), "queries")
        say(f"int8 finds {scorer.shared:.1%} of the best passages that fp32 finds ({tried} tried)", err=True)
    identity = json.dumps(
        {
            **inputs,
            "corpus": corpus.fingerprint(),
            "reranker": [model.fingerprint, model.max_length],
            "settings": [*settings, WINDOW],
        },
        sort_keys=True,
    )
    work = storage.partial_folder(output)
    note, path = work / "identity.json", work / "scores.f32"
    with storage.held(output):
        if not storage.holds(note, identity):
            storage.discard(work)
        with storage.work_folder(work):
            note.write_text(identity, encoding="utf-8")
            with path.open("ab") as stream:
                # A truncated window, or the shorter last window, is scored again.
                done = stream.tell() // (4 * WINDOW) * WINDOW
                stream.truncate(4 * done)
                windows = partial(_windows, pairs, corpus, WINDOW, done)
                with ProgressBar("re-rank", count, unit="pairs", done=done) as bar:
                    if options.cluster is None:
                        tokenized = read_ahead(map(scorer.tokenize, windows()))
                        scored: Iterator[np.ndarray] = (scorer.score(window, bar.advance) for window in tokenized)
                    else:
                        elsewhere = partial(_Scorer, storage.absolute(reranker), *settings, sample, model.fingerprint)
                        scored = spread_map(elsewhere, windows, options.cluster, here=scorer)
                    for scores in scored:
                        stream.write(scores.astype("<f4").tobytes())
                        stream.flush()
                        if options.cluster is not None:
                            bar.advance(len(scores))
            yield np.memmap(path, dtype="<f4", mode="r", shape=(count,))


class _Scorer:
    """Scores windows of pairs, in this process or on another machine."""

    def __init__(
        self,
        reranker: str | Path,
        max_length: int | None,
        precision: Precision,
        batch_tokens: int | None,
        backend: str,
        sample: Sequence[_Window],
        fingerprint: str | None = None,
    ) -> None:
        self.model = open_reranker(reranker, max_length=max_length, backend=backend)
        self.options: dict[str, Any] = {"precision": precision, "batch_tokens": batch_tokens}
        if fingerprint is not None:
            check_same("model", reranker, self.model.fingerprint, fingerprint)
        self.shared = self.model.calibrate([self.tokenize(window) for window in sample]) if sample else 1.0

    def tokenize(self, window: _Window) -> Sequence[Any]:
        return self.model.tokenize([query for query, _ in window], [passage for _, passage in window])

    def score(self, window: Sequence[Any], advance: Callable[[int], None]) -> np.ndarray:
        return score_pairs(self.model, window, **self.options, advance=advance)

    def __call__(self, window: _Window) -> np.ndarray:
        return self.score(self.tokenize(window), lambda _: None)


def _windows(pairs: Callable[[], Iterator[tuple[str, str]]], corpus: Corpus, size: int, done: int) -> Iterator[_Window]:
    """Yield the texts of the pairs after the first `done`, window by window."""
    rest = islice(pairs(), done, None)
    while window := list(islice(rest, size)):
        yield _with_texts(window, corpus)


def _sample(pairs: Callable[[], Iterator[tuple[str, str]]], corpus: Corpus) -> list[_Window]:
    """Sample the first pairs of queries spread over all queries, to calibrate int8."""
    lists = [list(islice(group, _LISTED)) for _, group in groupby(pairs(), key=itemgetter(0))]
    return [_with_texts(pairs, corpus) for pairs in lists[:: -(-sum(map(len, lists)) // _CALIBRATED)]]


def _with_texts(pairs: Sequence[tuple[str, str]], corpus: Corpus) -> _Window:
    by_id = {document: corpus.get(document) for _, document in pairs}
    scored = ((query, by_id[document]) for query, document in pairs)
    return [(FORMS[passage.text_form](query), (passage.title, passage.text)) for query, passage in scored]
