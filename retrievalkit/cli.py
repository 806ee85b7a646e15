"""The command line: options and hand-off only. Each command's body imports its program, so that `--help` stays instant."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from retrievalkit import __version__
from retrievalkit.errors import InputError, RetrievalkitError, nearest

Function = TypeVar("Function", bound=Callable[..., Any])
Settings = dict[str, Any]


class RkitGroup(click.Group):
    """Offers the nearest command for an unknown one, and prints a user's mistake without a traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the nearest name."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-") and (close := nearest(args[0], known)):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{close}'?")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run, and turn the errors that a user can meet into a message and an exit code."""
        try:
            return super().main(*args, standalone_mode=standalone_mode, **extra)
        except (RetrievalkitError, OSError, KeyboardInterrupt) as error:
            if not standalone_mode:
                raise
            sys.exit(report(error))


def report(error: BaseException) -> int:
    """Say what went wrong on standard error; returns the exit code."""
    if isinstance(error, RetrievalkitError):
        click.echo(f"Error: {error}", err=True)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return 130
    assert isinstance(error, OSError)
    if isinstance(error, BrokenPipeError):
        return 1
    if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT):
        raise error
    place = f" ({error.filename})" if error.filename else ""
    click.echo(f"Error: cannot write: {error.strerror}{place}. Free some space or choose another --output.", err=True)
    return 1


@click.group(cls=RkitGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rkit")
def main() -> None:
    """Train, index, search and compare first-stage text retrievers; every method is a plugin."""


def _set_option(function: Function) -> Function:
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any option by its key, such as pooler.layers=4,6.",
    )(function)


def _overwrite_option(function: Function) -> Function:
    return click.option("--overwrite", is_flag=True, help="Replace an output folder that is there already.")(function)


def _output_option(function: Function) -> Function:
    return click.option("--output", "-o", required=True, type=click.Path(), help="Where to write.")(function)


def _json_option(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print a machine-readable result.")(function)


_PRECISION = click.Choice(["auto", "fp32", "bf16", "fp16"])


def _parse(settings: tuple[str, ...]) -> Settings:
    from retrievalkit.recipe import parse_set

    return parse_set(settings)


def _section(settings: Settings, name: str) -> Settings:
    section = settings.pop(name, {})
    if not isinstance(section, dict):
        msg = f"--set {name}={section} sets no option. Name the {name} with --{name}, its options with {name}.OPTION=VALUE."
        raise InputError(msg)
    return section


def _given(flags: Settings) -> Settings:
    return {name: value for name, value in flags.items() if value is not None}


def _refuse(settings: Settings, command: str, sections: str) -> None:
    if settings:
        msg = f"rkit {command} has no option '{next(iter(settings))}'. --set takes {sections} here."
        raise InputError(msg)


@main.command()
@click.option(
    "--model", required=True, help="Pretrained model to start from: a hub name, a folder, package:NAME/FOLDER."
)
@click.option("--examples", required=True, help="Training examples: a file, a BEIR folder, pydoc:PACKAGES.")
@click.option("--corpus", help="The passages that the examples name.")
@click.option("--dev", help="Held-out examples, by which the best state is chosen.")
@_output_option
@click.option("--encoder", default="transformer", show_default=True, help="Encoder (rkit plugins list).")
@click.option("--pooler", default="cls", show_default=True, help="Pooler (rkit plugins list).")
@click.option("--loss", help="Loss; the pooler's own where not given.")
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Queries of a step.")
@click.option("--micro-batch-size", type=int, help="Texts encoded at once, with gradient caching.")
@click.option("--learning-rate", type=float)
@click.option("--negatives", type=int, help="Hard negatives of a query in a step.")
@click.option("--separate-towers/--shared-tower", default=False, help="An encoder for each side, or one for both.")
@click.option("--query-length", type=int, help="Most tokens of a query.")
@click.option("--document-length", type=int, help="Most tokens of a passage.")
@click.option("--precision", type=_PRECISION)
@click.option("--seed", type=int)
@click.option("--resume", is_flag=True, help="Go on with a training that was cut off.")
@_overwrite_option
@_json_option
@_set_option
def train(
    model: str,
    examples: str,
    corpus: str | None,
    dev: str | None,
    output: str,
    encoder: str,
    pooler: str,
    loss: str | None,
    query_length: int | None,
    document_length: int | None,
    separate_towers: bool,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> None:
    """Train a retriever on examples."""
    from retrievalkit import registry
    from retrievalkit.train import TrainingOptions
    from retrievalkit.train import train as program

    values = _parse(settings)
    encoder_options = _section(values, "encoder") | _given(
        {"query_length": query_length, "document_length": document_length}
    )
    pooler_options, loss_options = _section(values, "pooler"), _section(values, "loss")
    training = registry.check_options("rkit train", TrainingOptions, values | _given(flags))
    manifest = program(
        model=model,
        examples=examples,
        corpus=corpus,
        dev=dev,
        output=output,
        encoder=encoder,
        pooler=pooler,
        loss=loss,
        encoder_options=encoder_options,
        pooler_options=pooler_options,
        loss_options=loss_options,
        separate_towers=separate_towers,
        options=TrainingOptions(**training),
        resume=resume,
        overwrite=overwrite,
    )
    counts = manifest["counts"]
    _print(as_json, manifest, f"{output}: trained on {counts['examples']:,} examples in {counts['steps']:,} steps")


@main.command()
@click.argument("model")
@click.argument("texts")
@click.option("--side", type=click.Choice(["document", "query"]), default="document", show_default=True)
@_output_option
@click.option("--encoder", help="For a pretrained model; a checkpoint has its own.")
@click.option("--pooler", help="For a pretrained model; a checkpoint has its own.")
@click.option("--precision", type=_PRECISION, default="auto", show_default=True)
@click.option("--batch-tokens", type=int, help="Most tokens of a batch, padding included.")
@_overwrite_option
@_json_option
@_set_option
def encode(
    model: str,
    texts: str,
    encoder: str | None,
    pooler: str | None,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> None:
    """Encode TEXTS (a corpus or queries) with MODEL (a checkpoint or a pretrained model)."""
    from retrievalkit.encode import encode as program

    values = _parse(settings)
    encoder_options, pooler_options = _section(values, "encoder"), _section(values, "pooler")
    _refuse(values, "encode", "encoder.OPTION and pooler.OPTION")
    manifest = program(
        model,
        texts,
        encoder=encoder,
        pooler=pooler,
        encoder_options=encoder_options,
        pooler_options=pooler_options,
        **flags,
    )
    _print(as_json, manifest, f"{flags['output']}: {manifest['counts']['texts']:,} texts encoded")


@main.command()
@click.argument("source")
@click.option("--indexer", help="Indexer (rkit plugins list); flat for vectors, bm25 for a corpus where not given.")
@_output_option
@_overwrite_option
@_json_option
@_set_option
def index(
    source: str, indexer: str | None, output: str, overwrite: bool, as_json: bool, settings: tuple[str, ...]
) -> None:
    """Index SOURCE: a vectors folder (rkit encode) or a corpus."""
    from retrievalkit.index import build_index

    values = _parse(settings)
    options = _section(values, "indexer") | values
    manifest = build_index(source, indexer=indexer, output=output, options=options, overwrite=overwrite)
    _print(as_json, manifest, f"{output}: {manifest['counts']['texts']:,} texts indexed")


def _print(as_json: bool, result: Any, line: str) -> None:
    click.echo(json.dumps(result, indent=2, default=str) if as_json else line)


if __name__ == "__main__":
    main()
