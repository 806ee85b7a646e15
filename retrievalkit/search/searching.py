"""Search interface shared by `Index` and `Hybrid`: queries in, hits or a run out."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, overload

from retrievalkit.data import inputs
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.passage_parts import Document, DocumentScore, open_document
from retrievalkit.data.queries import Query, check_queries, check_query, read_queries
from retrievalkit.errors import InputError
from retrievalkit.evaluation.run import Run
from retrievalkit.indexing.query_encoders import EncodedBatch
from retrievalkit.reporting import notebook, notices
from retrievalkit.reporting.table import Tabular
from retrievalkit.search.explain import described
from retrievalkit.search.fusion import Fusion
from retrievalkit.search.hits import DescribedHit, reasons_of
from retrievalkit.search.options import By, DocumentOptions
from retrievalkit.search.searcher import HITS, HITS_TO_READ, PASSAGES, Answer, Searcher, find, hit_count, open_texts

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Hit(DescribedHit):
    """A retrieved document; its text and title are "" if the texts of the index are not available."""

    @classmethod
    def of(cls, hit: DescribedHit) -> Self:
        """Convert a described hit."""
        return cls(**{**vars(hit), "passages": tuple(map(cls.of, hit.passages))})

    @property
    def why(self) -> tuple[str, ...]:
        """Explanations of the score as sentences, one per index that has any."""
        return tuple(reasons_of(self))

    def __repr__(self) -> str:
        shown = {"title": self.title, "text": self.snippet, "why": "; ".join(self.why)}
        fields = "".join(f", {name}={value!r}" for name, value in shown.items() if value)
        return f"Hit(id={self.id!r}, score={self.score:.4f}{fields})"


class Hits(Sequence[Hit], Tabular):
    """The hits of one query, best first.

    Attributes:
        query: The text of the query; "" if it was a vector.
    """

    def __init__(self, query: str, hits: Iterable[Hit]) -> None:
        self.query = query
        self._hits = tuple(hits)

    def __len__(self) -> int:
        return len(self._hits)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Hits: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Hit | Hits:
        return Hits(self.query, self._hits[place]) if isinstance(place, slice) else self._hits[place]

    def to_pandas(self) -> DataFrame:
        """Return a DataFrame with the columns rank, id, score, title, text and why."""
        import pandas

        rows = [(hit.rank, hit.id, hit.score, hit.title, hit.text, "; ".join(hit.why)) for hit in self]
        return pandas.DataFrame(rows, columns=["rank", "id", "score", "title", "text", "why"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hits) and (self.query, self._hits) == (other.query, other._hits)

    def __repr__(self) -> str:
        return "\n".join([f"Hits({self._title!r}):", *(f"  {hit!r}" for hit in self)])

    def _repr_html_(self) -> str:
        return notebook.hits(self._title, self)

    @property
    def _title(self) -> str:
        return self.query or "(a vector)"


class Searching:
    """Search over one or several indexes. Several threads may search concurrently.

    Attributes:
        name: The display name, also of its runs.
        fusion: Fusion of the indexes; None for a single index.
        depth: Hits of each index to fuse; None = 1,000, or k if that is more.
        corpus: The address of the hits' texts; None = the indexed corpus.
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
        self._texts: tuple[Searcher, Corpus | None] | None = None
        # The first lookup of a text builds an index of the corpus.
        self._reading = threading.Lock()

    @property
    def searcher(self) -> Searcher:
        """The open searcher."""
        if self._searcher is None:
            msg = f"'{self.name}' was closed. Open it again to search it."
            raise InputError(msg)
        return self._searcher

    @overload
    def search(
        self,
        query: str,
        k: int | None = None,
        *,
        filter: str | None = None,
        by: By | None = None,
        document_score: DocumentScore | None = None,
        explain: bool = True,
        strict: bool = False,
    ) -> Hits: ...
    @overload
    def search(
        self,
        query: Any = None,
        k: int | None = None,
        *,
        filter: str | None = None,
        by: By | None = None,
        document_score: DocumentScore | None = None,
        split: str | None = None,
        strict: bool = False,
    ) -> Run: ...
    def search(
        self,
        query: Any = None,
        k: int | None = None,
        *,
        filter: str | None = None,
        by: By | None = None,
        document_score: DocumentScore | None = None,
        split: str | None = None,
        explain: bool = True,
        strict: bool = False,
    ) -> Hits | Run:
        """Search for a text, or for many queries.

        Args:
            query: A text returns hits with texts and explanations. Many queries return a run: a list of texts (numbered
                from 0), a dict id -> text, a table, a data set, or the `pathlib.Path` of a file or folder. Vectors
                (`Vectors`, arrays, tensors) return a run too; a single vector (dim,) returns hits.
                None = all queries of the fused runs.
            k: Hits per query; None = 10 for a text, 1,000 for many queries.
            filter: Only texts whose fields match, as in "year >= 2020 and source = faq".
            by: Hits are documents ("document"), each with the passages that rkit cut it into, or single passages
                ("passage"); None = documents for a text, passages for many queries.
            document_score: Score of a document: the "best" score of its passages (the default), or the "sum" of the
                scores of its passages among the first 1,000 passages, or 10 * k if that is more.
            split: Only the queries judged in this split of a BEIR folder.
            explain: Explain the scores of a text's hits.
            strict: Treat notes (such as a query that was cut) as errors.

        Raises:
            InputError: The text is blank, or an option is invalid. Blank queries among many have no hits.
        """
        kinds = DocumentOptions(by=by, document_score=document_score)
        with notices.collected(strict=strict):
            if kinds.requires_documents:
                self.searcher.require_documents(self.corpus)
            if isinstance(query, str):
                documents = kinds.scored("document")
                count = hit_count(k, HITS_TO_READ)
                return Hits(query, self.each(query, count, filter=filter, documents=documents, explain=explain))
            if inputs.are_vectors(query):
                return self._by_vectors(query, k, filter, kinds)
            queries = None if query is None else read_queries(inputs.queries(query), split)
            if queries is not None:
                check_queries(queries)
            count, scored = hit_count(k, HITS), kinds.scored("passage")
            runs = find(self.searcher, queries, count, self.fusion, depth=self.depth, filter=filter, documents=scored)
            return Run.of(runs, self.name)

    def explain(self, query: str, hits: Iterable[Any], *, explain: bool = True) -> Hits:
        """Add texts and explanations to the hits of an earlier search.

        Args:
            query: The text of the query.
            hits: `Hits`, or (id, score) pairs as in a run.
            explain: Explain the scores; False = only titles and texts.

        Raises:
            InputError: The indexes do not retrieve a hit for this query.
        """
        known = list(hits)
        pairs = [(hit.id, hit.score) if isinstance(hit, Hit) else (str(hit[0]), float(hit[1])) for hit in known]
        documents = [hit for hit in known if isinstance(hit, Hit) and hit.passages]
        passages = {hit.id: [(passage.id, passage.score) for passage in hit.passages] for hit in documents}
        checked, (searcher, texts) = check_query(query), self._opened_texts()
        # Passages need their ranks even with a single index.
        fusion = self.fusion or (Fusion("sum", missing="minimum") if passages else None)
        candidates = None
        if fusion is not None and pairs:
            count = len(pairs) * (PASSAGES if passages else 1)
            candidates = searcher.candidates(searcher.ask([checked]), count, fusion, self.depth)[0]
            names = [name for hit in pairs for name, _ in passages.get(hit[0], [hit])]
            if unknown := [name for name in names if name not in set(candidates.ids)]:
                msg = f"'{unknown[0]}' is not among the hits of '{query}'. Give hits of this query."
                raise InputError(msg)
        return Hits(query, self._described(searcher, texts, checked, (pairs, candidates, passages), explain))

    def warm(self) -> Self:
        """Load what the first query would load: the query encoders and the index of the texts."""
        for index in self.searcher.indexes:
            if index.needs_encoding:
                self.searcher.encoders.of(index)
        _, texts = self._opened_texts()
        if texts is not None:
            with self._reading:
                texts.missing([""])
        return self

    def close(self) -> None:
        """Release models and indexes; searching is no longer possible."""
        self._searcher = self._texts = None

    def __copy__(self) -> Self:
        """Return a copy that shares the open files and models, which never change; `add` changes one of the two."""
        copied = object.__new__(type(self))
        copied.__dict__ |= self.__dict__
        return copied

    def __deepcopy__(self, _: Any) -> Self:
        """Return a copy; see `__copy__`."""
        return copy.copy(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def document(self, hit: str | Hit) -> Document:
        """Return the document of a hit, joined from its passages.

        Args:
            hit: A hit, or its id.

        Raises:
            InputError: The texts are not available, or the document is unknown.
        """
        identifier = hit.id if isinstance(hit, Hit) else hit
        _, texts = self._opened_texts()
        if texts is None:
            msg = f"the texts of '{self.name}' are not available. Open it with corpus=..."
            raise InputError(msg)
        with self._reading:
            document = open_document(texts, identifier)
        if document is None:
            raise texts.unknown(identifier)
        return document

    def _by_vectors(self, data: Any, k: int | None, filter: str | None, kinds: DocumentOptions) -> Hits | Run:
        import torch

        from retrievalkit.indexing.vectors import Vectors

        vectors, alone = Vectors.of(data), getattr(data, "ndim", 0) == 1
        rows = {name: number for number, name in enumerate(vectors.ids)}
        encoded = vectors.representation.float()
        # The same searcher for search and explanation, as the index may change in between.
        searcher, texts = self._opened_texts() if alone else (self.searcher, None)

        def ask(queries: Sequence[Query]) -> EncodedBatch:
            numbers = torch.tensor([rows[query.id] for query in queries])
            return EncodedBatch(queries, searcher.encoders, encoded=encoded.rows(numbers))

        queries = [Query(name, "") for name in vectors.ids]
        count = hit_count(k, HITS_TO_READ if alone else HITS)
        documents = kinds.scored("document" if alone else "passage")
        if not alone:
            depth = self.depth
            runs = find(searcher, queries, count, self.fusion, depth=depth, filter=filter, documents=documents, ask=ask)
            return Run.of(runs, self.name)
        results = searcher.search(ask(queries), count, self.fusion, self.depth, filter, documents)
        return Hits("", self._described(searcher, texts, queries[0], results.of(0), False))

    def each(
        self,
        text: str,
        k: int,
        *,
        filter: str | None = None,
        documents: DocumentScore | None = None,
        explain: bool = True,
    ) -> Iterator[Hit]:
        """Yield a query's hits with their texts and, unless `explain` is False, explanations of their scores."""
        query, (searcher, texts) = check_query(text), self._opened_texts()
        results = searcher.search(searcher.ask([query]), k, self.fusion, self.depth, filter, documents)
        return self._described(searcher, texts, query, results.of(0), explain)

    def _described(
        self, searcher: Searcher, texts: Corpus | None, query: Query, answer: Answer, why: bool
    ) -> Iterator[Hit]:
        hits, candidates, passages = answer
        with self._reading:
            yield from map(
                Hit.of,
                described(searcher, query, hits, corpus=texts, candidates=candidates, passages=passages, why=why),
            )

    def _opened_texts(self) -> tuple[Searcher, Corpus | None]:
        """Return the searcher and the corpus of its hits."""
        with self._reading:
            searcher = self.searcher
            if self._texts is None or self._texts[0] is not searcher:
                texts = open_texts(searcher, self.corpus)
                if texts is not None:
                    # Indexing has reported empty texts.
                    texts.counts_empty = False
                self._texts = searcher, texts
            elif self._texts[1] is not None and self._texts[1]._modified:
                place = self._texts[1].source
                searcher.note(f"'{place}' was modified, so hits have no texts. Index it again, and open the index.")
                self._texts = searcher, None
            return self._texts
