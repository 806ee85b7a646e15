"""`rkit export`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.options import echo, given_flags, json_option, overwrite_option
from retrievalkit.export.targets import TARGETS


@click.command()
@click.argument("source")
@click.argument("output", type=click.Path())
@click.option("--to", type=click.Choice(list(TARGETS)), required=True, help="The library that is to open it.")
@click.option("--length", type=click.IntRange(min=3), help="One length in tokens for queries and documents.")
@click.option(
    "--quantize", type=click.Choice(["int8"]), help="Of onnx: also write 8-bit weights, and state their loss."
)
@click.option("--texts", help="The corpus on whose vectors the loss is stated.")
@click.option("--queries", help="Queries, to state the loss as nDCG@10 and R@100 too.")
@click.option("--qrels", help="The judgements of the queries.")
@click.option("--license", help='The licence that the model card names, such as "apache-2.0".')
@click.option("--figures", multiple=True, help="A file of `rkit evaluate --json`, whose figures the card shows.")
@click.option(
    "--push", metavar="NAME", help="Upload to this repository on the Hugging Face hub; only with --no-dry-run."
)
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="List what --push would upload.")
@overwrite_option
@json_option
def export(
    source: str, output: str, push: str | None, dry_run: bool, overwrite: bool, as_json: bool, **flags: Any
) -> dict[str, Any]:
    """Write SOURCE (a checkpoint, a model, or for Pyserini vectors) as another library opens it."""
    from retrievalkit.errors import InputError
    from retrievalkit.export.program import export as program
    from retrievalkit.export.targets import ExportOptions
    from retrievalkit.report.terminal import say

    if push is None and not dry_run:
        msg = "--no-dry-run is for --push NAME, which is not given. Name the repository, or drop it."
        raise InputError(msg)
    options = ExportOptions(**given_flags(flags))
    manifest = program(source, output, options, overwrite=overwrite)
    lines = [f"{output}: a folder for {options.to}"]
    lines += [f"{name}: {value}" for name, value in manifest["figures"].items()]
    for note in manifest["notes"]:
        say(note, err=True)
    if push is not None:
        from retrievalkit.export.push import files_of
        from retrievalkit.export.push import push as upload

        files = files_of(output)
        manifest["push"] = {"name": push, "dry_run": dry_run, "files": dict(files)}
        if dry_run:
            lines += [f"would be uploaded to {push}: {name} ({size:,} bytes)" for name, size in files]
            lines.append("Nothing was uploaded. Upload with --no-dry-run.")
        else:
            lines.append(f"uploaded to {upload(output, push)}")
    return echo(as_json, manifest, "\n".join(lines))
