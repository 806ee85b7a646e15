"""Hard negatives in sentence-transformers' format: for each query, ids of passages retrieved by several systems.

    {"qid": 867436, "pos": [5238393], "neg": {"bm25": [3724, 91], "msmarco-distilbert-base-tas-b": [91, 2005]}}

The texts of queries are in another file, or in a field "query" of each line. A margin drops likely false negatives: a
negative is kept only if its re-ranker score is at most the lowest score of a positive minus the margin. The scores also
become the teacher scores.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge

from retrievalkit.contracts.declarations import Place, Reads
from retrievalkit.data import inputs
from retrievalkit.data.forms import QUERY_TEXTS
from retrievalkit.data.json_text import shown
from retrievalkit.data.queries import read_queries
from retrievalkit.data.records import Record
from retrievalkit.errors import OptionError, UnknownNameError, nearest

if TYPE_CHECKING:
    from retrievalkit.data.pair_scores import PairScores


@dataclass(frozen=True, kw_only=True)
class HardNegatives:
    """Options for sentence-transformers' file of hard negatives by system.

    Args:
        queries: The query texts.
        systems: Only hard negatives of these systems (comma-separated), in this order.
        per_system: Maximum number of hard negatives per system.
        scores: Re-ranker scores (qid, pid, score), used as teacher scores.
        margin: Keep only hard negatives that score at least this much below each positive.
    """

    heading: ClassVar = "Hard negatives by system"

    queries: Annotated[Any, Reads(inputs.queries)] = None
    systems: str | Sequence[str] | None = None
    per_system: Annotated[int, Ge(1)] | None = None
    scores: Annotated[Place | None, Reads()] = None
    margin: float | None = None


class Chooser:
    """Selects the negatives of each line."""

    def __init__(self, options: HardNegatives) -> None:
        if options.margin is not None and options.scores is None:
            msg = f"margin {options.margin:g} compares re-ranker scores, and scores is not set. Set it to their file."
            raise OptionError(msg)
        self.options = options
        systems = [options.systems] if isinstance(options.systems, str) else options.systems or ()
        self._systems = [name.strip() for listed in systems for name in listed.split(",")]
        self.seen: set[str] = set()
        texts = [] if options.queries is None else read_queries(options.queries)
        self._texts = {query.id: query.text for query in texts}
        self._scores: PairScores | None = None
        if options.scores is not None:
            from retrievalkit.data.pair_scores import PairScores

            self._scores = PairScores.read(os.fspath(options.scores))

    def choose(self, record: Record) -> tuple[str, str, tuple[str, ...], tuple[str, ...], dict[str, float] | None]:
        """Return the query id, query text, ids of positives and negatives, and teacher scores (or None) of a line."""
        query_id, positives = record.identifier("qid"), record.identifiers("pos")
        by_system = record.fields["neg"]
        if not isinstance(by_system, Mapping):
            msg = f"'neg' is {shown(by_system)}, but should be the passages of each system: {{\"bm25\": [ids]}}."
            raise record.error(msg)
        self.seen.update(by_system)
        scores = {} if self._scores is None else self._scores.of(query_id)
        ranked = record._replace(fields=dict(by_system))
        systems = [name for name in self._systems if name in by_system] if self._systems else by_system
        lists = [ranked.identifiers(system) for system in systems]
        highest = math.inf
        if positives and self.options.margin is not None:
            highest = min(self._score(record, passage, scores) for passage in positives) - self.options.margin
        # System by system, without duplicates and without scores too close to a positive.
        negatives: dict[str, None] = {}
        for ids in lists if positives else ():
            fitting = (
                passage
                for passage in dict.fromkeys(ids)
                if passage not in positives
                and passage not in negatives
                and (highest == math.inf or self._score(record, passage, scores) <= highest)
            )
            negatives |= dict.fromkeys(list(islice(fitting, self.options.per_system)))
        teacher = {passage: scores[passage] for passage in (*positives, *negatives) if passage in scores}
        return query_id, self._text(record, query_id), positives, tuple(negatives), teacher or None

    def check_systems(self) -> None:
        """Refuse systems that are in no line."""
        for system in self._systems:
            if system not in self.seen:
                raise UnknownNameError("system", system, self.seen)

    def _score(self, record: Record, identifier: str, scores: Mapping[str, float]) -> float:
        if identifier not in scores:
            msg = (
                f"'{self.options.scores}' has no score of the passage '{identifier}' for this query, which margin "
                f"needs. Give a file that scores all positives and negatives, or leave margin out."
            )
            raise record.error(msg)
        return scores[identifier]

    def _text(self, record: Record, query_id: str) -> str:
        name = next((field for field in QUERY_TEXTS if field in record.fields), None)
        if name is not None:
            return record.text(name)
        if query_id in self._texts:
            return self._texts[query_id]
        if self.options.queries is None:
            msg = (
                "the line has no query text: sentence-transformers' hard negatives contain only ids. Convert them "
                "with the file of queries: rkit convert FILE train.jsonl --queries QUERIES"
            )
            raise record.error(msg)
        close = nearest(query_id, self._texts)
        offer = f"; did you mean '{close}'?" if close else "."
        msg = f"the query '{query_id}' is not in '{self.options.queries}'{offer} Give the file with these queries."
        raise record.error(msg)
