"""`rkit mine-negatives`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.cluster import cluster_options, taken_cluster
from retrievalkit.cli.options import (
    FUSION,
    Registered,
    echo,
    given_flags,
    json_option,
    output_option,
    parse,
    precision_option,
    set_option,
    strict_option,
    verify_option,
)


@click.command("mine-negatives")
@click.option(
    "--from",
    "source",
    required=True,
    multiple=True,
    help="bm25, a checkpoint, an index or a run (TREC); several, each with --from, are fused.",
)
@click.option("--corpus", required=True, help="The passages to mine.")
@click.option("--examples", required=True, help="The examples to find negatives for.")
@click.option("--split", help="Which split of --examples, if that is a folder; train where not given.")
@output_option
@click.option("--depth", type=click.IntRange(min=1), default=200, show_default=True, help="Hits per query to consider.")
@click.option(
    "--negatives", type=click.IntRange(min=1), default=100, show_default=True, help="Negatives per query to keep."
)
@click.option(
    "--skip-top", type=click.IntRange(min=0), default=0, show_default=True, help="How many of the first ranks to drop."
)
@click.option("--drop-answers", is_flag=True, help="Drop hits that contain an answer (DPR's rule).")
@click.option(
    "--same-document",
    metavar="title|REGEX",
    help="Drop hits of a positive's document: with the same title, or the same match of a pattern of ids ('(.+)#').",
)
@click.option(
    "--near-duplicates",
    type=float,
    metavar="SHARE",
    help="Drop hits that share this fraction of word 5-grams with a positive or a better hit (Jaccard), such as 0.8.",
)
@click.option("--reranker", help="A re-ranker to check hits with: a folder, a hub name, or a run of its scores.")
@click.option("--reranker-above", type=float, metavar="SCORE", help="Drop hits that it scores above this.")
@click.option(
    "--reranker-margin", type=float, metavar="SCORE", help="Drop hits less than this below the positive's score."
)
@click.option(
    "--filter",
    "filters",
    type=Registered("filter", "NAME"),
    multiple=True,
    help="A plugin's filter, with options as in 'NAME(option=value)'; several, each with --filter.",
)
@click.option("--fusion", type=FUSION, help="How several sources are fused.")
@click.option("--weights", help="One number per source, such as 0.3,0.7; or a file that rkit search --tune wrote.")
@click.option("--merge-with", help="Examples to put before the mined ones.")
@click.option("--keep", type=click.IntRange(min=1), help="Negatives per example to keep when merging.")
@precision_option("questions are encoded and pairs scored in (passages too if given)", "fp32", unset=True)
@click.option("--seed", type=int, default=42, show_default=True)
@cluster_options("Search")
@verify_option
@strict_option
@json_option
@set_option
def mine_negatives(source: tuple[str, ...], as_json: bool, settings: tuple[str, ...], **flags: Any) -> dict[str, Any]:
    """Find hard negatives: passages that rank high and are not the answer.

    Hits are dropped in this order: known positives and copies of their text, passages of a positive's document, its
    near duplicates, passages with an answer, the first ranks, scores too near the positive's (--set margin_absolute=1,
    margin_relative=0.95), hits that filters of plugins drop, near duplicates of a better hit, and what a re-ranker
    considers relevant. More by --set: drop_positives, sample=random, positives=retrieved, merge=pool, model,
    normalization, missing, rrf_k, indexer.OPTION (of bm25).

    OUTPUT.audit.html (and .json) shows what was dropped and what was kept. Killed and run again, it resumes.
    """
    from retrievalkit.mine import program as mine
    from retrievalkit.mine.audit import audit_table

    places = ("corpus", "examples", "split", "output", "merge_with")
    files = mine.MiningFiles(**{name: flags.pop(name) for name in places})
    cluster = taken_cluster(flags)
    sources, options = mine.parse_settings(source, given_flags(flags) | parse(settings), cluster)
    audit = mine.mine(sources, files, options)
    return echo(as_json, audit, audit_table(audit))
