"""Options that `evaluate` and `compare` share. Light to import: recipes check options before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from retrievalkit.data.runs import Ties
from retrievalkit.declarations import Flag

METRICS = "nDCG@10 RR@10 R@1000"
Metrics = Annotated[str | Sequence[str], Flag(metavar="NAMES")]
Over = Literal["qrels", "run"]


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """How metrics are computed where programs differ.

    Args:
        ties: Order of documents with equal scores: "document_id", descending, as in trec_eval; or "run", the ranks of
            the run's file, as in MS MARCO's script.
        over: Queries that count: all in the "qrels" (a query that the run lacks scores 0), or only those in the "run".
        exclude_self: Leave out hits with the query's own id, as BEIR does (ArguAna, Quora).
    """

    heading: ClassVar = "Conventions"

    ties: Ties = "document_id"
    over: Over = "qrels"
    exclude_self: bool = False
