"""`rkit search`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.cluster import cluster_options, taken_cluster
from retrievalkit.cli.options import (
    FUSION,
    json_option,
    parse,
    precision_option,
    reserved,
    strict_option,
    verify_option,
)


@click.command()
@click.argument("indexes", nargs=-1, required=True, metavar="INDEX...")
@click.option("--queries", help="Queries to search: a file, a BEIR folder, pydoc:PACKAGES.")
@click.option("--split", help="Only the queries of this split's judgements, if --queries is a folder.")
@click.option("--query", help="One query; prints readable hits.")
@click.option("--interactive", "-i", is_flag=True, help="Read queries from a prompt, or line by line from a pipe.")
@click.option("--model", help="The checkpoint that encodes queries; by default the one that made the index.")
@precision_option("queries are encoded in", "fp32", unset=True)
@click.option(
    "--k", type=click.IntRange(min=1), help="Hits per query; 1000 for --queries, 10 for --query and --interactive."
)
@click.option(
    "--fusion",
    type=FUSION,
    help="How several indexes are combined: by ranks (rrf, the default), by the sum of their scores, or by a "
    "weighted sum of scores that may be normalised.",
)
@click.option("--weights", help="One number per index, such as 0.3,0.7; or a file that --tune wrote.")
@click.option(
    "--normalization", type=click.Choice(["none", "min_max", "z_score"]), help="Of scores, for linear fusion."
)
@click.option(
    "--missing",
    type=click.Choice(["computed", "minimum", "zero"]),
    help="Scores of documents that an index did not find: computed by it (the default, if it can), its lowest for the "
    "query, or 0.",
)
@click.option("--rrf-k", type=click.IntRange(min=0), help="The constant of rrf; 60 by default.")
@click.option("--depth", type=click.IntRange(min=1), help="Hits of each index that are combined; 1000, or --k if more.")
@click.option(
    "--tune", metavar="QRELS", help="Find the weights that are best by these judgements (a BEIR folder: dev)."
)
@click.option("--tune-queries", help="The queries to tune on; where not given those of --tune's folder, or --queries.")
@click.option("--tune-metric", help="What to tune for, as ir-measures writes it; nDCG@10 where not given.")
@click.option("--corpus", help="Where the texts of hits are; by default the corpus that was indexed.")
@click.option("--explain/--no-explain", "why", default=None, help="Show the reasons for the scores (default).")
@click.option(
    "--output",
    "-o",
    type=click.Path(),
    help="The run to write (TREC) [default: print it]; with --query also a page (.html) or .json of its hits; with "
    "--tune alone the weights.",
)
@cluster_options("Search")
@verify_option
@strict_option
@json_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of an index, such as indexer.device=cpu or faiss.parameters=nprobe=32; or encoder.query_length=N.",
)
@reserved
def search(indexes: tuple[str, ...], settings: tuple[str, ...], interactive: bool, **flags: Any) -> None:
    """Search one INDEX, or several and combine what they find.

    INDEX is a folder that rkit index made, or a run (TREC) to combine with others. Combined scores are 32-bit numbers,
    equal ones by document id. --set takes indexer.OPTION for all indexes that have it, and for some of them OPTION
    after the name of an indexer or of an index folder; encoder.query_length=N has queries cut there instead of where
    the checkpoint cuts them.

    \b
    rkit search dense --queries test.jsonl --output dense.trec
    rkit search dense bm25 --query "eigenvalues of a symmetric matrix"
    rkit search dense bm25 --fusion linear --tune dev.tsv --tune-queries dev.jsonl --output weights.json
    rkit search dense bm25 --weights weights.json --queries test.jsonl --output hybrid.trec
    rkit search dense.trec bm25.trec --fusion rrf --output hybrid.trec
    """  # noqa: D301 - for click, the backspace that is meant keeps the lines apart
    from retrievalkit.search import program
    from retrievalkit.search.request import Request

    program.perform(
        Request(indexes, interactive=interactive, options=parse(settings), cluster=taken_cluster(flags), **flags)
    )
