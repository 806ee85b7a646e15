"""`rkit index`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.cluster import cluster_options, taken_cluster
from retrievalkit.cli.options import (
    Settings,
    echo,
    given_flags,
    json_option,
    overwrite_option,
    parse,
    precision_option,
    reserved,
    section,
    set_option,
    strict_option,
    verify_option,
)
from retrievalkit.errors import ArtifactError, OptionError
from retrievalkit.report.counts import counted


@click.command()
@click.argument("source")
@click.option("--indexer", help="Indexer (rkit plugins list); by default flat for vectors, bm25 for a corpus.")
@click.option("--output", "-o", type=click.Path(), help="The index folder to write; not needed to check an index.")
@overwrite_option
@click.option(
    "--shards", type=click.IntRange(min=1), help="Build it in parts; killed and run again, it goes on with the next."
)
@cluster_options("Build --shards")
@click.option(
    "--add", metavar="PLACE", help="Add passages, or vectors, to the index SOURCE; only new texts are encoded."
)
@click.option(
    "--delete",
    multiple=True,
    metavar="ID|FILE",
    help="Delete from the index SOURCE: a text or a document, or those that a file lists (ids, or a corpus).",
)
@click.option("--compact", is_flag=True, help="Make one segment of the index SOURCE, as a new build would.")
@click.option("--check", is_flag=True, help="Compare the new index (or the index SOURCE) with brute force.")
@click.option("--check-queries", metavar="FILE", help="Queries of the check; by default texts of the folder.")
@click.option("--check-count", type=click.IntRange(min=1), help="How many queries to check; by default 100.")
@click.option("--check-k", type=click.IntRange(min=1), help="Hits per query to check; by default 10.")
@click.option("--model", help="With --add or --check-queries: where the checkpoint that encodes is, if it was moved.")
@precision_option("the texts of --add or the queries of --check-queries are encoded in", "fp32", unset=True)
@verify_option
@strict_option
@json_option
@set_option
@reserved
def index(
    source: str,
    indexer: str | None,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    check: bool,
    shards: int | None,
    **flags: Any,
) -> dict[str, Any]:
    """Index SOURCE: a vectors folder (rkit encode) or a corpus.

    With --add, --delete, --compact or --check alone, SOURCE is the index that is changed or checked.
    """
    from retrievalkit.index import build_index

    change = {name: flags.pop(name) for name in ("add", "delete", "compact")}
    cluster = taken_cluster(flags)
    if cluster is not None and shards is None:
        msg = "--ray builds shards of an index side by side. Add --shards N, or leave it out."
        raise OptionError(msg)
    if any(change.values()):
        building = {
            "--indexer": indexer,
            "--output": output,
            "--overwrite": overwrite,
            "--shards": shards,
            "--set": settings,
            "--check": check,
        }
        return _change(source, as_json, change, given_flags(flags), [name for name, value in building.items() if value])
    values = parse(settings)
    options = section(values, "indexer") | values
    given = given_flags(flags)
    if given and not check:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        msg = f"{named} is about a check of the index. Add --check, or leave it out."
        raise OptionError(msg)
    if "precision" in given and "check_queries" not in given:
        msg = "--precision is for the encoding of --check-queries, and texts of the folder are encoded. Leave it out."
        raise OptionError(msg)
    if output is None:
        if not check:
            raise click.MissingParameter(param_hint="'--output' / '-o'", param_type="option")
        if indexer is not None or overwrite or shards:
            msg = "--indexer, --overwrite and --shards are for building an index. Give --output too, or leave them out."
            raise OptionError(msg)
        return _check_index(source, as_json, given, options)
    if check:
        from retrievalkit.search.recall import check_beforehand

        check_beforehand(source, given.get("check_queries"))
    manifest = build_index(
        source,
        indexer=indexer,
        output=output,
        options=options,
        overwrite=overwrite,
        parts=shards,
        cluster=cluster,
    )
    counts = dict(manifest["counts"])
    line = f"{output}: {counted(counts.pop('texts'), 'texts')} indexed"
    more = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in counts.items())
    if not (check and as_json):
        echo(as_json, manifest, f"{line}; {more}" if more else line)
    return _check_index(output, as_json, given, {}) if check else manifest


def _change(
    folder: str, as_json: bool, change: dict[str, Any], flags: dict[str, Any], others: list[str]
) -> dict[str, Any]:
    """Change an index; the result is what was changed."""
    from retrievalkit import artifacts
    from retrievalkit import change as program

    if artifacts.store_of(folder):
        msg = f"'{folder}' is in a store, where indexes are not changed. Change a copy here, or index again."
        raise ArtifactError(msg)
    used = {"model", "precision"} if change["add"] else set()
    if others := [*others, *(f"--{name.replace('_', '-')}" for name in flags if name not in used)]:
        msg = f"{others[0]} has no part in changing the index '{folder}'. Leave it out, or give it in another command."
        raise OptionError(msg)
    outcome = program.change_index(folder, **flags, **change, id_files=True)
    changed = program.as_json(outcome)
    echo(as_json, changed, f"{folder}: {program.describe(outcome)}")
    return changed


def _check_index(folder: str, as_json: bool, flags: dict[str, Any], options: Settings) -> dict[str, Any]:
    from retrievalkit.search import recall

    given = {name.removeprefix("check_"): value for name, value in flags.items()}
    found = recall.check_index(folder, options=options, **given)
    return echo(as_json, recall.as_json(found), f"{folder}: {recall.describe(found)}")
