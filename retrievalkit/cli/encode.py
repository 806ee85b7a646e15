"""`rkit encode`: options and hand-off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from retrievalkit.cli.cluster import cluster_options, taken_cluster
from retrievalkit.cli.options import (
    Settings,
    echo,
    given_flags,
    json_option,
    output_option,
    overwrite_option,
    parse,
    precision_option,
    refuse,
    section,
    set_option,
    strict_option,
    verify_option,
)
from retrievalkit.modules import large_imports
from retrievalkit.report.counts import counted

if TYPE_CHECKING:
    from retrievalkit.encode import EncodeOptions

Side = Literal["document", "query"]


@click.command()
@click.argument("model")
@click.argument("texts")
@click.option("--side", type=click.Choice(["document", "query"]), default="document", show_default=True)
@output_option
@click.option("--encoder", help="For a pretrained model; a checkpoint has its own.")
@click.option("--pooler", help="For a pretrained model: its own (modules.json), else cls, where not given.")
@precision_option("texts are encoded in", "auto")
@click.option(
    "--dimensions", type=click.IntRange(min=1), help="Keep only the first numbers of each vector (Matryoshka)."
)
@click.option("--stored", type=click.Choice(["fp32", "fp16"]), help="Number format of the vectors in the folder; fp32.")
@click.option("--batch-tokens", type=click.IntRange(min=1), help="Most tokens in a batch, padding included.")
@cluster_options("Encode")
@verify_option
@overwrite_option
@strict_option
@json_option
@set_option
def encode(
    model: str,
    texts: str,
    side: Side,
    output: str,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> dict[str, Any]:
    """Encode TEXTS (a corpus or queries) with MODEL (a checkpoint or a pretrained model)."""
    with large_imports():
        from retrievalkit.encode import encode as program

    cluster = taken_cluster(flags)
    options = encode_options(settings, flags)
    manifest = program(model, texts, side=side, output=output, options=options, overwrite=overwrite, cluster=cluster)
    pooling = manifest["checkpoint"].get("description", {}).get("pooling")
    line = f"{output}: {counted(manifest['counts']['texts'], 'texts')} encoded"
    return echo(as_json, manifest, f"{line} ({pooling})" if pooling else line)


def encode_options(settings: tuple[str, ...], flags: Settings) -> EncodeOptions:
    """The options of the program that `--set` and flags describe.

    Raises:
        InputError: There is no such option, or a value does not fit.
    """
    from retrievalkit import registry
    from retrievalkit.encode import EncodeOptions

    values = parse(settings)
    given = given_flags(flags) | {f"{part}_options": section(values, part) for part in ("encoder", "pooler")}
    refuse(values, "encode", "encoder.OPTION and pooler.OPTION")
    return EncodeOptions(**registry.check_options("rkit encode", EncodeOptions, given))
