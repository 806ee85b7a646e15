"""The program behind `rkit search`: queries and one or several indexes in, a run or hits to read out.

    rkit search INDEX... --queries FILE|--query TEXT|--interactive [--k N] [--fusion rrf|sum|linear] [--output RUN]
    rkit search INDEX INDEX --fusion linear --tune QRELS --tune-queries FILE

Queries of an index of vectors are encoded by the checkpoint that made it; another one is refused. Several indexes may
be of different kinds and made by different checkpoints: each is searched, and what they find is fused. A run file may
stand in the place of an index.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, track

from retrievalkit.data import sources
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, check_queries, read_queries
from retrievalkit.data.runs import Run, write_run
from retrievalkit.errors import InputError, OptionError, shortlist
from retrievalkit.model.precision import Precision
from retrievalkit.score import check_k
from retrievalkit.search.fusion import Candidates, Fusion, Method, Missing, Normalization, as_hits, fusion_of
from retrievalkit.search.interactive import Reader
from retrievalkit.search.searcher import BATCH_QUERIES, Note, OpenRun, Options, Place, Searcher, to_stderr
from retrievalkit.search.tuning import METRIC, Tuned, read_choice, write_choice
from retrievalkit.search.tuning import tune as tune_fusion

HITS, HITS_TO_READ = 1000, 10

_DEV = "dev"


def search(
    indexes: Sequence[Place],
    *,
    queries: Sequence[Query] | None,
    k: int = 1000,
    model: Place | None = None,
    fusion: Method | None = None,
    weights: Sequence[float] | None = None,
    normalization: Normalization | None = None,
    missing: Missing | None = None,
    rrf_k: int | None = None,
    depth: int | None = None,
    options: Options | None = None,
    precision: Precision = "auto",
    batch_size: int = BATCH_QUERIES,
    note: Note = to_stderr,
) -> Run:
    """Search one index, or several and fuse what they find.

    Args:
        indexes: Index folders, and run files to fuse.
        queries: What to search for; None where there are only runs: all of theirs.
        k: Hits of a query.
        model: The checkpoint that encodes queries, where it is not the one at the place where the index was made.
        fusion: How what several found becomes one ("rrf" where not given); see `fusion.Fusion`, also for
            the next four.
        weights: For "rrf" and "linear" fusion: one number an index.
        normalization: For "linear" fusion: what is done with the scores of an index.
        missing: For "sum" and "linear" fusion: the scores of documents that an index did not find. Where not given,
            they are computed by the indexes that can, and are the "minimum" of the others.
        rrf_k: For "rrf" fusion: its constant.
        depth: Hits of each index that are fused; 1,000 where not given, or k where that is more.
        options: Options of indexers that are to be other than when they built their index; see `Searcher`.
        precision: What queries are encoded in.
        batch_size: Queries that are encoded and searched at once.
        note: Told what a user should know.

    Returns:
        The run: for each query, in the order given, ids and scores, best first.

    Raises:
        InputError: There is no query, one is empty, an index or the model is wrong, or an option has no effect.
    """
    check_k(k)
    if queries is not None:
        check_queries(queries)
    chosen = fusion_of(
        len(indexes), fusion, weights=weights, normalization=normalization, missing=missing, rrf_k=rrf_k, depth=depth
    )
    searcher = Searcher(indexes, model=model, options=options, precision=precision, note=note)
    return find(searcher, queries, k, chosen, depth=depth, batch_size=batch_size)


def find(
    searcher: Searcher,
    queries: Sequence[Query] | None,
    k: int,
    fusion: Fusion | None,
    *,
    depth: int | None = None,
    batch_size: int = BATCH_QUERIES,
) -> Run:
    """Search what is open already; see `search`.

    Raises:
        InputError: There is nothing to search for, or a run has none of the queries.
    """
    wanted = _all_queries(searcher) if queries is None else queries
    _check_runs(searcher, wanted)
    run: Run = {}
    for batch in _batches(wanted, batch_size):
        found = searcher.search(searcher.ask(batch), k, fusion, depth)
        run.update({query.id: as_hits(*one) for query, one in zip(batch, found.rankings, strict=True)})
    return run


def tune(
    searcher: Searcher,
    queries: Sequence[Query],
    qrels: Qrels,
    fusion: Fusion,
    *,
    metric: str = METRIC,
    k: int = 1000,
    depth: int | None = None,
    batch_size: int = BATCH_QUERIES,
) -> Tuned:
    """Find out how the indexes are best fused; see `retrievalkit.search.tuning`.

    Args:
        searcher: The indexes.
        queries: What to search for; only those that are judged are.
        qrels: The judgements.
        fusion: What is not to be tuned.
        metric: What is to be high.
        k: Hits of a query that are judged.
        depth: As for `search`.
        batch_size: As for `search`.

    Raises:
        InputError: No query is judged, or there is nothing to tune.
    """
    judged = [query for query in queries if query.id in qrels]
    if not judged:
        msg = (
            f"none of the {len(queries):,} queries to tune on is judged: they have ids like '{queries[0].id}', the "
            f"judgements like '{next(iter(qrels))}'. Give the queries of these judgements with --tune-queries."
        )
        raise InputError(msg)
    if searcher.indexes:
        check_queries(judged)
    _check_runs(searcher, judged)
    names: dict[str, str] = {}
    found: dict[str, Candidates] = {}
    for batch in _batches(judged, batch_size):
        for query, one in zip(batch, searcher.candidates(searcher.ask(batch), k, fusion, depth), strict=True):
            # One text for each id, however many queries found it.
            one.ids = [names.setdefault(name, name) for name in one.ids]
            found[query.id] = one
    with _spinner("tuning") as progress:
        return tune_fusion(
            found,
            qrels,
            fusion=fusion,
            labels=searcher.labels,
            identities=searcher.identities,
            metric=metric,
            k=k,
            progress=progress,
        )


def _batches(queries: Sequence[Query], size: int) -> Iterator[Sequence[Query]]:
    parts = [queries[start : start + size] for start in range(0, len(queries), size)]
    console = Console(stderr=True)
    yield from track(parts, "searching", console=console, transient=True, disable=len(parts) == 1)


@contextmanager
def _spinner(doing: str) -> Iterator[Note]:
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(doing)
        yield lambda what: progress.update(task, description=f"{doing}: {what}")


def _all_queries(searcher: Searcher) -> list[Query]:
    """Those of the runs."""
    if searcher.indexes:
        msg = f"'{searcher.indexes[0].label}' is to be searched, and there is no query. Give --queries or --query."
        raise InputError(msg)
    ids = dict.fromkeys(query_id for one in searcher.sources if isinstance(one, OpenRun) for query_id in one.run)
    return [Query(query_id, "") for query_id in ids]


def _check_runs(searcher: Searcher, queries: Sequence[Query]) -> None:
    """See to it that each run is of these queries."""
    for source in searcher.sources:
        if not isinstance(source, OpenRun):
            continue
        lacking = [query.id for query in queries if query.id not in source.run]
        if len(searcher.sources) == 1:
            msg = f"'{source.label}' is a run, and there is nothing to fuse it with. Give an index to search."
            raise InputError(msg)
        if len(lacking) == len(queries):
            msg = (
                f"the run '{source.label}' has none of the {len(queries):,} queries: its ids are like "
                f"'{next(iter(source.run))}', theirs like '{queries[0].id}'. Give the run of these queries."
            )
            raise InputError(msg)
        if lacking:
            searcher.note(
                f"the run '{source.label}' has no hits for {len(lacking):,} of {len(queries):,} queries: "
                f"{shortlist(lacking, 3)}."
            )


@dataclass(frozen=True)
class Request:
    """What `rkit search` was asked for; see its --help.

    Attributes:
        places: Index folders and run files.
        queries: Where the queries are, of which only those of a `split`; or one `query`; or `interactive`.
        tune: Where the judgements are to tune by, of the queries in `tune_queries`.
        options: Options of indexers.
    """

    places: Sequence[str]
    queries: str | None = None
    split: str | None = None
    query: str | None = None
    interactive: bool = False
    model: str | None = None
    k: int | None = None
    depth: int | None = None
    fusion: Method | None = None
    weights: str | None = None
    normalization: Normalization | None = None
    missing: Missing | None = None
    rrf_k: int | None = None
    tune: str | None = None
    tune_queries: str | None = None
    tune_metric: str | None = None
    corpus: str | None = None
    why: bool | None = None
    output: str | None = None
    as_json: bool = False
    options: Options | None = None

    @property
    def read_by_people(self) -> bool:
        """Whether hits are printed with their texts."""
        return self.query is not None or self.interactive

    def check(self) -> None:
        """Find out what does not go together, before anything is opened.

        Raises:
            OptionError: An option would have no effect, or nothing is searched for.
        """
        runs_alone = all(Path(place).is_file() for place in self.places)
        modes = {"--queries": self.queries, "--query": self.query, "--interactive": self.interactive or None}
        given = [name for name, value in modes.items() if value is not None]
        if len(given) > 1:
            msg = f"{' and '.join(given)} exclude each other. Give one of them."
            raise OptionError(msg)
        if not given and self.tune is None and not runs_alone:
            msg = "there is nothing to search for. Give --queries FILE, --query TEXT or --interactive."
            raise OptionError(msg)
        if self.read_by_people and runs_alone:
            msg = f"{given[0]} wants an index folder to search, and '{self.places[0]}' is a file. Give an index."
            raise OptionError(msg)
        _check_effect(
            {"--corpus": self.corpus, "--explain": self.why},
            self.read_by_people,
            "hits to read (--query, --interactive)",
        )
        _check_effect({"--split": self.split}, self.queries is not None, "--queries")
        _check_effect({"--output": self.output}, not self.interactive, "--queries, --query or --tune")
        _check_effect({"--tune": self.tune}, not self.read_by_people, "--queries, or stands alone")
        tuned_by = {"--tune-queries": self.tune_queries, "--tune-metric": self.tune_metric}
        _check_effect(tuned_by, self.tune is not None, "--tune QRELS")
        if self.output is not None and Path(self.output).is_dir():
            msg = f"output '{self.output}' is a folder, and a file is to be written there. Choose another --output."
            raise OptionError(msg)

    def chosen(self) -> Fusion | None:
        """How the indexes are fused, as far as it is given by options.

        Raises:
            OptionError: The options do not fit.
        """
        tuned = self.tune is not None and len(self.places) > 1
        return fusion_of(
            len(self.places),
            (self.fusion or "linear") if tuned else self.fusion,
            weights=None if self.weights is None or self._choice() else _numbers(self.weights),
            normalization=self.normalization,
            missing=self.missing,
            rrf_k=self.rrf_k,
            depth=self.depth,
        )

    def _choice(self) -> bool:
        """Whether the weights are a file that --tune has written."""
        return self.weights is not None and Path(self.weights).is_file()

    def settled(self, searcher: Searcher) -> Fusion | None:
        """How the indexes are fused; by what --tune has chosen where --weights is its file.

        Raises:
            InputError: The file is none of --tune, or is for other indexes, or another option contradicts it.
        """
        if self.weights is None or not self._choice():
            return self.chosen()
        choice = read_choice(self.weights, searcher.identities)
        given = {name: getattr(self, name) for name in ("normalization", "missing", "rrf_k")} | {"method": self.fusion}
        for name, value in given.items():
            if value not in (None, getattr(choice, name)):
                chosen = getattr(choice, name)
                msg = (
                    f"'{self.weights}' has chosen {name}={chosen}, and {value} is asked for. Leave out one of the two."
                )
                raise OptionError(msg)
        return choice


def perform(request: Request, note: Note = to_stderr) -> None:
    """Do what was asked for, and print or write the outcome.

    Raises:
        InputError: Something does not fit, or is missing; nothing is written.
    """
    request.check()
    request.chosen()
    wanted = None if request.queries is None else read_queries(request.queries, request.split)
    judged = None if request.tune is None else _judged(request)
    searcher = Searcher(request.places, model=request.model, options=request.options, note=note)
    fusion = request.settled(searcher)
    if request.read_by_people:
        _read(request, searcher, fusion)
        return
    k, tuned = request.k or HITS, None
    if judged is not None:
        if fusion is None:
            msg = "--tune weights several indexes, and there is only one. Give more."
            raise OptionError(msg)
        qrels, dev = judged
        dev = _all_queries(searcher) if dev is None else dev
        tuned = tune(searcher, dev, qrels, fusion, metric=request.tune_metric or METRIC, k=k, depth=request.depth)
        _report(request, tuned, wanted, [query.text for query in dev if query.id in qrels], note)
        fusion = tuned.best.fusion
    if judged is None or wanted is not None:
        _write(request, find(searcher, wanted, k, fusion, depth=request.depth), fusion, tuned)


def _read(request: Request, searcher: Searcher, fusion: Fusion | None) -> None:
    k, why = request.k or HITS_TO_READ, request.why is not False
    reader = Reader(searcher, fusion, request.corpus, request.depth, why=why, as_json=request.as_json)
    if request.query is None:
        reader.converse(k)
        return
    hits = reader(request.query, k)
    if request.output is not None:
        write_run(request.output, {"query": [(hit.id, hit.score) for hit in hits]})


def _judged(request: Request) -> tuple[Qrels, list[Query] | None]:
    """The judgements to tune by and the queries to tune on; None = those of the runs."""
    tune = str(request.tune)
    qrels = read_qrels(tune, _DEV)
    holds_queries = Path(tune).is_dir() or sources.split_prefix(tune)[0]
    source = request.tune_queries or (tune if holds_queries else request.queries)
    if source is not None:
        return qrels, read_queries(source)
    if all(Path(place).is_file() for place in request.places):
        return qrels, None
    msg = f"'{tune}' holds judgements alone: give the queries that they are of with --tune-queries FILE."
    raise InputError(msg)


def _report(request: Request, tuned: Tuned, wanted: Sequence[Query] | None, texts: Sequence[str], note: Note) -> None:
    """Print what tuning found, and write it where nothing else is."""
    if wanted is not None:
        known = set(texts)
        if seen := sum(query.text in known for query in wanted):
            note(
                f"{seen:,} of the {len(wanted):,} queries that are searched are among the {tuned.queries:,} that the "
                f"weights were tuned on: figures on these are better than on new queries."
            )
    elif request.output:
        write_choice(request.output, tuned)
    if request.as_json:
        if wanted is None:
            sys.stdout.write(json.dumps(tuned.to_json(), indent=2, ensure_ascii=False) + "\n")
        return
    # Standard output is for the run, where one is printed.
    to_run = wanted is not None and request.output is None
    tuned.render(Console(highlight=False, stderr=to_run), request.places)
    if wanted is None and request.output:
        sys.stdout.write(f"{request.output}: what was chosen; --weights {request.output} searches so\n")


def _write(request: Request, run: Run, fusion: Fusion | None, tuned: Tuned | None) -> None:
    if request.output is None and not request.as_json:
        for query_id, hits in run.items():
            scores = np.array([score for _, score in hits], dtype=np.float32).astype(str).tolist()
            sys.stdout.writelines(
                f"{query_id} Q0 {document_id} {rank} {score} rkit\n"
                for rank, ((document_id, _), score) in enumerate(zip(hits, scores, strict=True), 1)
            )
        return
    lines = write_run(request.output, run) if request.output else sum(map(len, run.values()))
    if request.as_json:
        result: dict[str, Any] = {"queries": len(run), "hits": lines, "run": request.output}
        result |= {} if fusion is None else {"fusion": asdict(fusion)}
        result |= {} if tuned is None else {"tuned": tuned.to_json()}
        result |= {} if request.output else {"results": run}
        sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(f"{request.output}: {len(run):,} queries, {lines:,} hits\n")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        msg = f"--weights '{text}' is neither numbers such as 0.3,0.7 nor a file that --tune has written."
        raise OptionError(msg) from None


def _check_effect(options: Mapping[str, object], has_effect: bool, with_: str) -> None:
    if not has_effect and (named := [name for name, value in options.items() if value is not None]):
        msg = f"{', '.join(named)} has no effect here: it goes with {with_}."
        raise OptionError(msg)
