"""`rkit search`: queries and one or several indexes in, a run or readable hits out.

    rkit search INDEX... --queries FILE|--query TEXT|--interactive [--k N] [--fusion rrf|sum|linear] [--output RUN]
    rkit search INDEX INDEX --fusion linear --tune QRELS --tune-queries FILE

Queries for an index of vectors are encoded by the checkpoint that made it; any other is refused. Several indexes may be
of different kinds and made by different checkpoints: each is searched, and their hits are fused. A run file may replace
an index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

from annotated_types import Ge

from retrievalkit.data import inputs
from retrievalkit.declarations import Argument, Flag, Place, Reads, Rest, command
from retrievalkit.search.options import HybridOptions, OpenOptions


@dataclass(frozen=True)
class SearchOptions(HybridOptions, OpenOptions):
    """Options of `search`.

    Args:
        indexes: Folders that rkit index wrote, or runs (TREC) to fuse with others.
        queries: Queries to search for: a file, a BEIR folder, pydoc:PACKAGES; in Python also a list, a dict, a table.
        split: Only the queries of this split's judgements, if the queries are a folder.
        query: One query; prints readable hits.
        interactive: Read queries from a prompt, or line by line from a pipe.
        k: Hits per query; 1000 for many queries, 10 for readable hits.
        tune: Find the weights that are best by these judgements (a BEIR folder: dev).
        tune_queries: The queries to tune on; by default those of the folder of judgements, or the queries.
        tune_metric: The metric to tune for, as ir-measures writes it; by default nDCG@10.
        explain: Show the reasons for the scores of readable hits, as is the default.
        output: The run to write (TREC) instead of printing it; of one query also a page (.html) or .json of its hits;
            with tune alone the weights.
        as_json: Print a machine-readable result.
        named_options: Options of some of the indexes, by the name of their indexer or of their folder.
    """

    indexes: Annotated[tuple[Place, ...], Argument(several=True), Flag(metavar="INDEX..."), Reads()]
    _: KW_ONLY
    queries: Annotated[Any, Reads(inputs.queries)] = None
    split: str | None = None
    query: str | None = None
    interactive: Annotated[bool, Flag(("--interactive", "-i"))] = False
    k: Annotated[int, Ge(1)] | None = None
    tune: Annotated[Any, Flag(metavar="QRELS"), Reads(inputs.judgements)] = None
    tune_queries: Annotated[Any, Reads(inputs.queries)] = None
    tune_metric: str | None = None
    explain: Annotated[bool | None, Flag(("--explain/--no-explain",))] = None
    output: Annotated[Place | None, Flag(("--output", "-o"))] = None
    as_json: Annotated[bool, Flag(("--json",))] = False
    named_options: Annotated[Mapping[str, Any], Rest(sections=True)] = field(default_factory=dict)

    @property
    def shows_hits(self) -> bool:
        """Whether hits are printed with their texts, instead of a run."""
        return self.query is not None or self.interactive


@command("search", SearchOptions)
def search(options: SearchOptions) -> None:
    """Search one INDEX, or several and combine what they find.

    Combined scores are 32-bit numbers, equal ones by document id. --set takes indexer.OPTION for all indexes that have
    it, and for some of them OPTION after the name of an indexer or of an index folder; encoder.query_length=N has
    queries cut there instead of where the checkpoint cuts them.

    \b
    rkit search dense --queries test.jsonl --output dense.trec
    rkit search dense bm25 --query "eigenvalues of a symmetric matrix"
    rkit search dense bm25 --fusion linear --tune dev.tsv --tune-queries dev.jsonl --output weights.json
    rkit search dense bm25 --weights weights.json --queries test.jsonl --output hybrid.trec
    rkit search dense.trec bm25.trec --fusion rrf --output hybrid.trec
    """  # noqa: D301 - for click, the backspace that is meant keeps the lines apart
    from retrievalkit.search import program

    program.perform(options)
