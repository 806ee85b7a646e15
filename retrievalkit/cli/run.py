"""`rkit run`: options and hand-off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from retrievalkit.cli.cluster import cluster_options, taken_cluster
from retrievalkit.cli.options import echo, json_option, parse, root_group, set_option, strict_option
from retrievalkit.errors import OptionError

if TYPE_CHECKING:
    from retrievalkit.cluster import ClusterOptions
    from retrievalkit.recipe.apart import Runner


@click.command()
@click.argument("recipe")
@click.option("--output", "-o", required=True, type=click.Path(), help="Where to write.")
@click.option("--variants", help="Only these rows of its table: names or patterns, such as mlr,dpr_*.")
@click.option("--plan", is_flag=True, help="Show each step's command line, and which are done already; run nothing.")
@click.option("--force", is_flag=True, help="Run every step again, also those whose inputs have not changed.")
@click.option("--verbose", "-v", is_flag=True, help="Show the command line of each step.")
@click.option("--jobs", type=click.IntRange(min=1), help="Steps to run side by side on this machine.")
@cluster_options("Run steps side by side")
@strict_option
@json_option
@set_option
def run(
    recipe: str,
    output: str,
    variants: str | None,
    as_json: bool,
    settings: tuple[str, ...],
    plan: bool,
    force: bool,
    verbose: bool,
    jobs: int | None,
    **flags: Any,
) -> Any:
    """Run the steps of a RECIPE: a file, or the name of one that comes with retrievalkit or (PLUGIN/NAME) a plugin."""
    from retrievalkit.recipe import run as program
    from retrievalkit.recipe.recipe import load_recipe

    runner = _runner(jobs, taken_cluster(flags))
    wanted = None if variants is None else [name.strip() for name in variants.split(",") if name.strip()]
    found = load_recipe(recipe, parse(settings), wanted)
    if plan:
        planned = program.preview(found, output, cli=root_group(), force=force)
        return echo(as_json, planned.to_json(), planned.text())
    outcome = program.run(found, output, cli=root_group(), force=force, verbose=verbose, runner=runner)
    return echo(as_json, outcome.to_json(), outcome.text())


def _runner(jobs: int | None, cluster: ClusterOptions | None) -> Callable[[], Runner] | None:
    """What runs steps side by side; None = one after the other.

    Raises:
        OptionError: They are to run in two places.
    """
    from retrievalkit.recipe.apart import Local, OnCluster

    if cluster is None:
        return None if jobs is None else partial(Local, jobs)
    if jobs is not None:
        msg = "--jobs is for steps on this machine, and --ray for those on a cluster. Give --ray-workers instead."
        raise OptionError(msg)
    return partial(OnCluster, cluster)
