"""Several sources searched together: their hits are joined by query, and scores that a source lacks are filled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrievalkit.contracts import Candidates
from retrievalkit.data.queries import Query
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.search.encoders import Encoders, QueryBatch
from retrievalkit.search.fusion import Fusion, Ranking, gather
from retrievalkit.search.options import Missing
from retrievalkit.search.sources import OpenIndex, OpenRun, Options, Place, Source, open_sources

if TYPE_CHECKING:
    from retrievalkit.cluster import ClusterOptions
    from retrievalkit.model.precision import Precision

BATCH_QUERIES = 1024
FUSION_DEPTH = 1000

Note = Callable[[str], None]


@dataclass(frozen=True)
class Findings:
    """The hits of some queries.

    Attributes:
        rankings: For each query the ids and scores of its hits, best first.
        candidates: For each query, the hits of all sources, if several were fused.
    """

    rankings: Sequence[Ranking]
    candidates: Sequence[Candidates] | None = None


class Searcher:
    """Indexes and runs, opened.

    Args:
        places: Index folders and run files.
        model: The checkpoint that encodes queries, if it is not at the path recorded in the index.
        options: Options of indexers that differ from those used at indexing: under "indexer" for all of them, under
            the name of an indexer or of an index folder for that one only.
        precision: The number format to encode queries in.
        query_length: Most tokens of a query; None = as each index's manifest or checkpoint has it.
        note: Called with messages for the user, one sentence at a time.
        cluster: The Ray cluster whose workers search the indexes; None = this process.

    Raises:
        InputError: A place is neither an index nor a run, the model did not make the indexes, or an option belongs to
            none of them.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        model: Place | None = None,
        options: Options | None = None,
        precision: Precision = "fp32",
        query_length: int | None = None,
        note: Note = lambda _: None,
        cluster: ClusterOptions | None = None,
    ) -> None:
        if not places:
            msg = "there is no index to search. Give one or more index folders."
            raise InputError(msg)
        sources = open_sources([Path(place) for place in places], options or {}, cluster)
        indexes = [source for source in sources if isinstance(source, OpenIndex)]
        self._begin(sources, Encoders(model, indexes, precision, query_length), note)

    @classmethod
    def of(cls, sources: Sequence[Source], encoders: Encoders, note: Note) -> Searcher:
        """A searcher of sources that are open already."""
        searcher = cls.__new__(cls)
        searcher._begin(sources, encoders, note)
        return searcher

    def _begin(self, sources: Sequence[Source], encoders: Encoders, note: Note) -> None:
        self.sources = sources
        self.encoders = encoders
        self.note = note
        # Labels of indexes whose scores have no parts to report.
        self.without_reasons: set[str] = set()
        # Sources already reported to the user, because they cannot compute scores or lack documents.
        self._without_scores: set[int] = set()
        self._lacking_documents: set[int] = set()
        if problem := _different_corpora(self.indexes):
            note(problem)
        if len({source.place.resolve() for source in sources}) < len(sources):
            note("an index or run is given twice: what it finds counts twice. Give each once; --weights weighs it.")

    @property
    def indexes(self) -> list[OpenIndex]:
        """The sources that are indexes."""
        return [source for source in self.sources if isinstance(source, OpenIndex)]

    @property
    def labels(self) -> list[str]:
        """The display names of the sources."""
        return [source.label for source in self.sources]

    @property
    def identities(self) -> list[str]:
        """A fingerprint of each source."""
        return [source.identity for source in self.sources]

    def note_short_runs(self, depth: int) -> None:
        """Tell of runs that end before the depth that was asked for, once they were searched."""
        for source in self.sources:
            if isinstance(source, OpenRun) and 0 < source.deepest < depth:
                self.note(f"the run '{source.label}' ends before rank {depth:,}, so --depth looks no further.")

    def ask(self, queries: Sequence[Query]) -> QueryBatch:
        """Prepare queries for `search`.

        Raises:
            ArtifactError: It is not known which model encodes them.
        """
        self.encoders.check()
        return QueryBatch(queries, self.encoders)

    def search(self, queries: QueryBatch, k: int, fusion: Fusion | None, depth: int | None = None) -> Findings:
        """The best hits of queries.

        Args:
            queries: Made by `ask`.
            k: Hits per query.
            fusion: How the hits of several sources are combined; None for a single source.
            depth: How many hits of each source are fused; None = 1,000, or k if that is more.
        """
        if fusion is None:
            return Findings(self.sources[0].rankings(queries, k))
        candidates = self.candidates(queries, k, fusion, depth)
        return Findings([fusion(hits, k) for hits in candidates], candidates)

    def candidates(self, queries: QueryBatch, k: int, fusion: Fusion, depth: int | None = None) -> list[Candidates]:
        """For each query the hits of all sources, with the scores that the fusion needs; see `search`."""
        depth = max(k, FUSION_DEPTH) if depth is None else depth
        rankings = [source.rankings(queries, depth) for source in self.sources]
        candidates = [gather([ranking[row] for ranking in rankings], query.id) for row, query in enumerate(queries)]
        if fusion.looks_at_scores and fusion.missing in (None, "computed"):
            for number in range(len(self.sources)):
                self._fill_in(number, queries, candidates, fusion.missing)
        return candidates

    def _fill_in(
        self, number: int, queries: QueryBatch, candidates: Sequence[Candidates], missing: Missing | None
    ) -> None:
        """Let a source compute the scores of documents that only the others found."""
        source = self.sources[number]
        lacking = [hits.missing(number) for hits in candidates]
        if number in self._without_scores or not any(lacking):
            return
        try:
            scores = source.scores(queries, lacking)
        except UnsupportedError as error:
            if missing is not None:
                msg = f"'{source.label}' cannot compute the missing scores: {error} Choose another --missing."
                raise UnsupportedError(msg) from error
            self._without_scores.add(number)
            self.note(f"documents that '{source.label}' did not find get its lowest score for the query: {error}")
            return
        for hits, values in zip(candidates, scores, strict=True):
            hits.fill(number, values)
        if number not in self._lacking_documents and any(np.isnan(values).any() for values in scores):
            self._lacking_documents.add(number)
            self.note(f"'{source.label}' lacks documents that others found; they get its lowest score for the query.")


def _different_corpora(indexes: Sequence[OpenIndex]) -> str:
    """A sentence about two indexes of different corpora; "" if there are none."""
    known = [index for index in indexes if "corpus" in index.manifest]
    for index in known[1:]:
        first, second = known[0].manifest["corpus"], index.manifest["corpus"]
        if first["fingerprint"] != second["fingerprint"]:
            return (
                f"'{known[0].label}' and '{index.label}' are indexes of different corpora ('{first['source']}' and "
                f"'{second['source']}', by their fingerprints)."
            )
    return ""
