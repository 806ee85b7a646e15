"""The options of commands whose work can be spread over the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from retrievalkit.cli.options import Function, Settings

if TYPE_CHECKING:
    from retrievalkit.cluster import ClusterOptions


def cluster_options(verb: str) -> Callable[[Function], Function]:
    """`--ray` and what belongs to it; `verb` says in the help what the workers do, such as "Encode"."""
    added = (
        click.option("--ray", metavar="auto|ADDRESS|local", help=f"{verb} on the workers of a Ray cluster."),
        click.option("--ray-workers", type=click.IntRange(min=1), help="Most workers; all that have room otherwise."),
        click.option("--ray-cpus", type=click.IntRange(min=1), help="Processors of a worker; 1 where not given."),
        click.option("--ray-gpus", type=click.FloatRange(min=0), help="GPUs of a worker; 1 if the cluster has any."),
    )

    def add(function: Function) -> Function:
        for option in reversed(added):
            function = option(function)
        return function

    return add


def taken_cluster(flags: Settings) -> ClusterOptions | None:
    """Takes these options out of the flags of a command; None without `--ray`.

    Raises:
        OptionError: Another of them is given, and `--ray` is not.
    """
    from retrievalkit.cluster import RayOptions

    names = ("ray", "ray_workers", "ray_cpus", "ray_gpus")
    return RayOptions(**{name: flags.pop(name, None) for name in names}).cluster
