"""What an index and a hybrid of several have in common: queries in, hits or a run out."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, overload

from retrievalkit import oddities
from retrievalkit.api.hits import Hit, Hits
from retrievalkit.contracts import Candidates
from retrievalkit.data import inputs as given
from retrievalkit.data.queries import Query, check_queries, read_queries
from retrievalkit.errors import InputError
from retrievalkit.evaluate.run import Run
from retrievalkit.search.encoders import EncodedBatch
from retrievalkit.search.fusion import Fusion, as_hits
from retrievalkit.search.interactive import Reader, search_one
from retrievalkit.search.program import HITS, HITS_TO_READ, find, hit_count
from retrievalkit.search.searcher import Searcher


class Searching:
    """Something to search. Several threads may search at once.

    Attributes:
        name: Its display name, which its runs get.
        fusion: How several indexes are fused; None for one.
        depth: How many hits of each index are fused; None = 1,000, or k if that is more.
        corpus: The address of the texts of hits; None = the corpus that was indexed.
    """

    def __init__(
        self,
        name: str,
        searcher: Searcher,
        *,
        fusion: Fusion | None = None,
        depth: int | None = None,
        corpus: str | None = None,
    ) -> None:
        self.name = name
        self.fusion = fusion
        self.depth = depth
        self.corpus = corpus
        self._searcher: Searcher | None = searcher
        self._reader: Reader | None = None
        # Looking up texts builds an index of the corpus once.
        self._reading = threading.Lock()

    @property
    def searcher(self) -> Searcher:
        """The program's searcher.

        Raises:
            InputError: It was closed.
        """
        if self._searcher is None:
            msg = f"'{self.name}' was closed. Open it again to search it."
            raise InputError(msg)
        return self._searcher

    @overload
    def search(self, query: str, k: int | None = None, *, explain: bool = True, strict: bool = False) -> Hits: ...
    @overload
    def search(
        self, query: Any = None, k: int | None = None, *, split: str | None = None, strict: bool = False
    ) -> Run: ...
    def search(
        self,
        query: Any = None,
        k: int | None = None,
        *,
        split: str | None = None,
        explain: bool = True,
        strict: bool = False,
    ) -> Hits | Run:
        """Search for a text, or for many queries.

        Args:
            query: A text gives its hits, with their texts and reasons. Many queries give a run: a list of texts
                (numbered from 0), a dict id -> text, a table, a data set, or the `pathlib.Path` of a file or folder.
                Vectors do too (`Vectors`, arrays, tensors); a single vector (dim,) gives hits.
                None = all queries of the runs that are fused.
            k: Hits per query; None = 10 for a text, 1,000 for many queries.
            split: Only the queries that are judged in this split of a BEIR folder.
            explain: Whether to find the reasons for the scores of a text's hits.
            strict: Take what a note would tell (queries that were cut ...) for an error.

        Raises:
            InputError: A query is empty, or an option does not fit.
        """
        with oddities.collected(strict=strict):
            if isinstance(query, str):
                return self._hits(query, hit_count(k, HITS_TO_READ), explain)
            if given.are_vectors(query):
                return self._by_vectors(query, k)
            wanted = None if query is None else read_queries(given.queries(query), split)
            if wanted is not None:
                check_queries(wanted)
            found = find(self.searcher, wanted, hit_count(k, HITS), self.fusion, depth=self.depth)
            return Run.found(found, self.name)

    def explain(self, query: str, hits: Iterable[Any], *, explain: bool = True) -> Hits:
        """The texts of hits that were found before, and the reasons for their scores.

        Args:
            query: The text of the query.
            hits: `Hits`, or pairs of id and score as a run has them.
            explain: Whether to find the reasons; False = only titles and texts.

        Raises:
            InputError: The indexes do not find one of them for this query.
        """
        pairs = [(hit.id, hit.score) if isinstance(hit, Hit) else (str(hit[0]), float(hit[1])) for hit in hits]
        asked, reader = _query(query), self._open_reader()
        candidates = None
        if self.fusion is not None and pairs:
            batch = reader.searcher.ask([asked])
            candidates = reader.searcher.candidates(batch, len(pairs), self.fusion, self.depth)[0]
            if unknown := [name for name, _ in pairs if name not in set(candidates.ids)]:
                msg = f"'{unknown[0]}' is not among the hits of '{query}'. Give hits of this query."
                raise InputError(msg)
        return self._described(reader, asked, pairs, candidates, explain)

    def warm(self) -> Self:
        """Load what the first query would load: the models that encode queries, and the index of the texts."""
        for index in self.searcher.indexes:
            if index.needs_encoding:
                self.searcher.encoders.of(index)
        reader = self._open_reader()
        with self._reading:
            reader.warm()
        return self

    def close(self) -> None:
        """Give models and indexes back; it cannot be searched any more."""
        self._searcher = self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _by_vectors(self, data: Any, k: int | None) -> Hits | Run:
        import torch

        from retrievalkit.api.arrays import as_vectors

        vectors, alone = as_vectors(data), getattr(data, "ndim", 0) == 1
        rows = {name: number for number, name in enumerate(vectors.ids)}
        encoded = vectors.representation
        reader = self._open_reader() if alone else None
        searcher = self.searcher if reader is None else reader.searcher

        def ask(queries: Sequence[Query]) -> EncodedBatch:
            wanted = torch.tensor([rows[query.id] for query in queries])
            return EncodedBatch(queries, searcher.encoders, encoded=encoded.rows(wanted))

        queries = [Query(name, "") for name in vectors.ids]
        count = hit_count(k, HITS_TO_READ if alone else HITS)
        if reader is None:
            return Run.found(find(searcher, queries, count, self.fusion, depth=self.depth, ask=ask), self.name)
        found = searcher.search(ask(queries), count, self.fusion, self.depth)
        candidates = None if found.candidates is None else found.candidates[0]
        return self._described(reader, queries[0], as_hits(*found.rankings[0]), candidates, explain=False)

    def _hits(self, text: str, k: int, explain: bool) -> Hits:
        # Its searcher finds and explains the same, though the index may change in between.
        asked, reader = _query(text), self._open_reader()
        pairs, candidates = search_one(reader.searcher, asked, k, self.fusion, self.depth)
        return self._described(reader, asked, pairs, candidates, explain)

    def _described(
        self,
        reader: Reader,
        query: Query,
        pairs: list[tuple[str, float]],
        candidates: Candidates | None,
        explain: bool,
    ) -> Hits:
        with self._reading:
            described = reader.described(query, pairs, candidates, explain)
        return Hits(query.text, map(Hit.of, described))

    def _open_reader(self) -> Reader:
        with self._reading:
            searcher = self.searcher
            if self._reader is None or self._reader.searcher is not searcher:
                self._reader = Reader(searcher, self.fusion, self.corpus, self.depth)
            return self._reader


def _query(text: str) -> Query:
    query = Query("query", text)
    check_queries([query])
    return query
