"""Sources of hits to mine: BM25, a checkpoint, an index, a run, or several of these, whose hits are fused.

For a checkpoint and BM25 an index is built first, in a folder next to the output. Its name is a hash of its inputs, so
that only an interrupted run with the same inputs reuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit import storage
from retrievalkit.contracts import Question
from retrievalkit.contracts.cluster import ClusterOptions, spread_map
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.queries import check_queries
from retrievalkit.data.runs import write_run
from retrievalkit.data.sources import InMemory, fingerprint
from retrievalkit.errors import ArtifactError, InputError, OptionError, nearest
from retrievalkit.reporting import notices
from retrievalkit.reporting.terminal import counted
from retrievalkit.search.options import FusionOptions

if TYPE_CHECKING:
    from retrievalkit.indexing.open_indexes import OpenRun
    from retrievalkit.models.precision import Precision
    from retrievalkit.search.fusion import Fusion
    from retrievalkit.search.searcher import Searcher

Hits = tuple[Sequence[str], Sequence[float]]
"""The ids and scores of a question's hits, best first."""
Search = Callable[[Sequence[Question], int, int], Iterator[Hits]]
"""(questions, depth, batch) -> the best `depth` hits of each, at most `batch` questions at a time."""

_KNOWN = "Hits come from bm25, a checkpoint (rkit train), an index (rkit index) or a run file (rkit search)."


@dataclass(frozen=True)
class Sources:
    """The sources of hits.

    Attributes:
        names: Checkpoints, indexes, runs and "bm25" (Lucene, over the corpus; "./bm25" is a folder of that name).
        model: The new path of an index's checkpoint, if it was moved.
        indexer_options: Options of the index built for "bm25".
        fusion: Fusion of the hits of several sources, as in `rkit search`.
        precision: The number format in which checkpoints encode; None = fp32 for questions, as their scores are
            compared, and auto for the corpus.
        cluster: The Ray cluster whose workers encode the corpus and search; None = this process.
        backend: The library that runs the checkpoints.
    """

    names: Sequence[str]
    model: str | None = None
    indexer_options: Mapping[str, Any] = field(default_factory=dict)
    fusion: FusionOptions = field(default_factory=FusionOptions)
    precision: Precision | None = None
    cluster: ClusterOptions | None = None
    backend: str = "auto"

    @property
    def kinds(self) -> list[str]:
        """The kind of each name."""
        return [source_kind(name) for name in self.names]

    @property
    def kind(self) -> str:
        """The kind of the only source, or "fusion"."""
        return self.kinds[0] if len(self.names) == 1 else "fusion"

    @property
    def title(self) -> str:
        """The sources' name in the audit."""
        return " + ".join(self.names)

    def check(self) -> None:
        """Refuse unknown sources and options without effect."""
        if not self.names:
            msg = f"there is nothing to mine from. {_KNOWN}"
            raise InputError(msg)
        kinds = self.kinds
        if self.indexer_options and "bm25" not in kinds:
            msg = f"indexer options only apply to bm25, but '{self.names[0]}' is of kind {kinds[0]}. Leave them out."
            raise OptionError(msg)
        if self.model is not None and "index" not in kinds:
            msg = f"model only applies to an index, but '{self.names[0]}' is of kind {kinds[0]}. Leave it out."
            raise OptionError(msg)
        self.fusion.fused(len(self.names))
        if self.cluster is not None and set(kinds) == {"run"}:
            msg = f"ray and torchrun distribute a search, but '{self.names[0]}' is a run. Leave them out."
            raise OptionError(msg)
        if len(set(self.names)) < len(self.names):
            msg = f"a source is listed twice ({self.title}). List each once, and set weights instead."
            raise OptionError(msg)

    def fingerprint(self) -> str:
        """Return a fingerprint of everything that determines the hits, except the corpus."""
        prints = [self._fingerprint(name, kind) for name, kind in zip(self.names, self.kinds, strict=True)]
        return storage.fingerprint_value([prints, self.model, self.fusion.given(), self.precision])

    def _fingerprint(self, name: str, kind: str) -> Any:
        if kind == "bm25":
            return ["bm25", dict(self.indexer_options)]
        if kind == "run":
            return fingerprint(name)
        manifest = storage.read_manifest(name, kind)
        # Lucene's files differ when the same index is built again.
        entries = {entry: value for entry, value in manifest.items() if entry != "files"}
        return manifest.get("fingerprint") or storage.fingerprint_value(entries)

    def open(self, corpus: Corpus, work: Path, questions: Sequence[Question]) -> Search:
        """Prepare the sources for searching; indexes are built in the work folder unless they already exist there."""
        from retrievalkit.indexing.open_indexes import OpenRun
        from retrievalkit.search.searcher import BATCH_QUERIES, Searcher, opened_elsewhere

        named = dict(zip(self.names, self.kinds, strict=True))
        places = [self._built(name, kind, corpus, work) for name, kind in named.items()]
        searcher = Searcher(
            places, model=self.model, precision=self.precision or "fp32", backend=self.backend, note=notices.note
        )
        check_queries([question.query for question in questions])
        for name, source in zip(self.names, searcher.sources, strict=True):
            if isinstance(source, OpenRun):
                source.names = _names_in(source, questions)
                if questions and not any(source.run.get(query_id) for query_id in source.names.values()):
                    msg = (
                        f"the run '{name}' has none of the {counted(len(questions), 'questions')}: the examples have "
                        f"query ids like '{questions[0].query.id}', the run like '{next(iter(source.run))}'. Give a "
                        "run of these examples."
                    )
                    raise InputError(msg)
        fusion = self.fusion.fused(len(places), searcher.identities)

        def search(questions: Sequence[Question], depth: int, at_once: int) -> Iterator[Hits]:
            size = min(at_once, BATCH_QUERIES)
            batches = [questions[start : start + size] for start in range(0, len(questions), size)]
            find = partial(_searched, fusion, depth)
            here_search = partial(find, searcher)
            if self.cluster is None:
                rankings: Iterator[list[Hits]] = map(here_search, batches)
            else:
                here = [storage.absolute(place) for place in places]
                model = None if self.model is None else str(storage.absolute(self.model))
                settings: dict[str, Any] = {"precision": self.precision or "fp32", "backend": self.backend}
                opened = partial(Searcher, here, model=model, note=notices.note, **settings)
                make = partial(opened_elsewhere, opened, searcher.identities, find)
                rankings = spread_map(make, partial(list, batches), self.cluster, here=here_search)
            for hits in rankings:
                yield from hits
            searcher.note_short_runs(depth)

        return search

    def _built(self, name: str, kind: str, corpus: Corpus, work: Path) -> Path:
        if kind == "run" and isinstance(name, InMemory):
            run = work / f"run-{self._fingerprint(name, kind)[:12]}.trec"
            write_run(run, name.run)
            return run
        if kind in ("index", "run"):
            return Path(name)
        from retrievalkit.indexing.build import build_index
        from retrievalkit.indexing.corpus_encoding import encode
        from retrievalkit.indexing.options import EncodingOptions

        inputs = [self._fingerprint(name, kind), corpus.fingerprint(), self.precision]
        place = storage.fingerprint_value(inputs)[:12]
        index = work / f"{kind}-{place}"
        if index.exists():
            return index
        if kind == "bm25":
            build_index(corpus.source, indexer="bm25", output=index, options=self.indexer_options)
            return index
        vectors = work / f"vectors-{place}"
        if not vectors.exists():
            options = EncodingOptions(precision=self.precision or "auto", backend=self.backend)
            encode(name, corpus.source, side="document", output=vectors, options=options, cluster=self.cluster)
        build_index(str(vectors), indexer="flat", output=index)
        return index


def _searched(fusion: Fusion | None, depth: int, searcher: Searcher, questions: Sequence[Question]) -> list[Hits]:
    """Search for a batch of questions."""
    import numpy as np

    from retrievalkit.indexing.open_indexes import OpenRun

    for source in searcher.sources:
        if isinstance(source, OpenRun):
            source.names = _names_in(source, questions)
    results = searcher.search(searcher.ask([question.query for question in questions]), depth, fusion)
    return [(ids, np.asarray(scores).tolist()) for ids, scores in results.rankings]


def source_kind(source: str | Path) -> str:
    """Return the kind of a source: "bm25", "checkpoint", "index" or "run"."""
    path = Path(source)
    if str(source) == "bm25":
        return "bm25"
    if path.is_file() or isinstance(source, InMemory):
        return "run"
    kind = storage.kind_of(path)
    if kind in ("checkpoint", "index"):
        return str(kind)
    if path.is_dir():
        first = ", which must be indexed first (rkit index)" if kind == "vectors" else ""
        description = f"a {kind} folder{first}" if kind else "a folder that rkit did not write"
        msg = f"'{source}' is {description}. {_KNOWN}"
        raise ArtifactError(msg)
    near = [str(sibling) for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
    close = nearest(str(path), [*near, "bm25"])
    msg = f"'{source}' does not exist{f'; did you mean {close!r}?' if close else '.'} {_KNOWN}"
    raise InputError(msg)


def _names_in(source: OpenRun, questions: Sequence[Question]) -> dict[str, str]:
    """Map each question's id to the id that the run has for it, among all ids of the question."""
    return {
        question.query.id: next((other for other in question.ids if other in source.run), question.query.id)
        for question in questions
    }
