"""The command line: options and hand-off only. Each command's body imports its program, so `--help` stays instant."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from retrievalkit import __version__
from retrievalkit.errors import InputError, OptionError, RetrievalkitError, nearest

Function = TypeVar("Function", bound=Callable[..., Any])
Settings = dict[str, Any]
_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_SEVERAL_PROCESSES = ("train",)


class RkitGroup(click.Group):
    """Offers the nearest command for an unknown one, and prints a user's mistake without a traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the nearest name."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-") and (close := nearest(args[0], known)):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{close}'?")
        if _STARTED_BY_TORCHRUN in os.environ and args and args[0] not in _SEVERAL_PROCESSES:
            ctx.fail(f"rkit {args[0]} runs in one process. Start it without torchrun, which is for rkit train alone.")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run, and turn the errors that a user can meet into a message and an exit code."""
        try:
            return super().main(*args, standalone_mode=standalone_mode, **extra)  # type: ignore[call-overload]
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


def _ties_option(function: Function) -> Function:
    told = "How documents of equal score stand: by id, descending, as in trec_eval; or by the ranks in the run's file."
    choice = click.Choice(["document_id", "run"])
    return click.option("--ties", type=choice, default="document_id", show_default=True, help=told)(function)


def _over_option(function: Function) -> Function:
    told = "Which queries count: all of the qrels, those a run lacks with 0; or those in the run."
    choice = click.Choice(["qrels", "run"])
    return click.option("--over", type=choice, default="qrels", show_default=True, help=told)(function)


def _exclude_self_option(function: Function) -> Function:
    told = "Leave out hits with the query's own id, as BEIR does (ArguAna, Quora)."
    return click.option("--exclude-self", "--ignore-same-id", "ignore_same_id", is_flag=True, help=told)(function)


_PRECISION = click.Choice(["auto", "fp32", "bf16", "fp16"])


def _parse(settings: tuple[str, ...]) -> Settings:
    from retrievalkit.recipe import parse_set

    return parse_set(settings)


def _section(settings: Settings, name: str) -> Settings:
    section = settings.pop(name, {})
    if not isinstance(section, dict):
        msg = f"--set {name}={section} sets no option. Name the {name} by --{name}, an option by {name}.OPTION=VALUE."
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
@click.option("--loss", help="Loss, or a sum of them such as contrastive+flops; the pooler's own where not given.")
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Queries of a step.")
@click.option("--micro-batch-size", type=int, help="Texts encoded at once, with gradient caching.")
@click.option("--learning-rate", type=float)
@click.option("--negatives", type=int, help="Hard negatives of a query in a step.")
@click.option(
    "--refresh-negatives",
    metavar="every=N",
    help="Mine new negatives with the model as it is, after every N epochs; more by --set refresh.depth=100 and the "
    "other options of mine-negatives.",
)
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
    refresh_negatives: str | None,
    separate_towers: bool,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> None:
    """Train a retriever on examples (on several GPUs: torchrun --nproc-per-node 2 --no-python rkit train ...)."""
    from retrievalkit import processes, registry
    from retrievalkit.refresh import refresh_options
    from retrievalkit.train import TrainingOptions
    from retrievalkit.train import train as program

    processes.join()
    with processes.together():
        values = _parse(settings)
        encoder_options = _section(values, "encoder") | _given(
            {"query_length": query_length, "document_length": document_length}
        )
        pooler_options, loss_options = _section(values, "pooler"), _section(values, "loss")
        refresh = refresh_options(refresh_negatives, _section(values, "refresh"))
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
        refresh=refresh,
        resume=resume,
        overwrite=overwrite,
    )
    counts = manifest["counts"]
    if processes.is_main():
        _echo(as_json, manifest, f"{output}: trained on {counts['examples']:,} examples in {counts['steps']:,} steps")
    processes.leave()


@main.command()
@click.option("--pretrainer", required=True, help="Objective (rkit plugins list).")
@click.option("--model", required=True, help="Model to start from: a hub name, a folder, package:NAME/FOLDER.")
@click.option("--corpus", required=True, help="The documents: a file, a folder, pydoc:PACKAGES.")
@_output_option
@click.option("--steps", type=int, help="Optimiser steps, instead of epochs.")
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Samples of a step.")
@click.option("--micro-batch-size", type=int, help="Samples computed at once.")
@click.option("--learning-rate", type=float)
@click.option("--max-length", type=int, help="Most tokens of a text.")
@click.option("--precision", type=_PRECISION)
@click.option("--seed", type=int)
@click.option("--resume", is_flag=True, help="Go on with a pre-training that was cut off.")
@_overwrite_option
@_json_option
@_set_option
def pretrain(
    pretrainer: str,
    model: str,
    corpus: str,
    output: str,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> None:
    """Pre-train a model on documents."""
    from retrievalkit import registry
    from retrievalkit.pretrain import PretrainingOptions
    from retrievalkit.pretrain import pretrain as program

    values = _parse(settings)
    pretrainer_options, encoder_options = _section(values, "pretrainer"), _section(values, "encoder")
    training = registry.check_options("rkit pretrain", PretrainingOptions, values | _given(flags))
    manifest = program(
        pretrainer=pretrainer,
        model=model,
        corpus=corpus,
        output=output,
        pretrainer_options=pretrainer_options,
        encoder_options=encoder_options,
        options=PretrainingOptions(**training),
        resume=resume,
        overwrite=overwrite,
    )
    counts = manifest["counts"]
    taken = f"{counts['samples']:,} samples of {counts['documents']:,} documents"
    dropped = f"; {counts['dropped']:,} without {manifest['wants']} were dropped" if counts["dropped"] else ""
    _echo(as_json, manifest, f"{output}: pre-trained on {taken} in {counts['steps']:,} steps{dropped}")


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
    _echo(as_json, manifest, f"{flags['output']}: {manifest['counts']['texts']:,} texts encoded")


@main.command()
@click.argument("source")
@click.option("--indexer", help="Indexer (rkit plugins list); flat for vectors, bm25 for a corpus where not given.")
@click.option("--output", "-o", type=click.Path(), help="What to write; left out where an index is checked.")
@_overwrite_option
@click.option("--check", is_flag=True, help="Compare the index with brute force, once built; or an index (SOURCE).")
@click.option("--check-queries", metavar="FILE", help="Queries of the check; texts of the folder where not given.")
@click.option("--check-count", type=click.IntRange(min=1), help="How many queries are checked; 100 where not given.")
@click.option("--check-k", type=click.IntRange(min=1), help="Hits of a query that are checked; 10 where not given.")
@click.option("--model", help="With --check-queries: the checkpoint that encodes them, where it was moved.")
@_json_option
@_set_option
def index(
    source: str,
    indexer: str | None,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    check: bool,
    **flags: Any,
) -> None:
    """Index SOURCE: a vectors folder (rkit encode) or a corpus. With --check alone, SOURCE is the index to check."""
    from retrievalkit.index import build_index

    values = _parse(settings)
    options = _section(values, "indexer") | values
    given = {name: value for name, value in flags.items() if value is not None}
    if given and not check:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        msg = f"{named} is about a check of the index. Add --check, or leave it out."
        raise OptionError(msg)
    if output is None:
        if not check:
            raise click.MissingParameter(param_hint="'--output' / '-o'", param_type="option")
        if indexer is not None or overwrite:
            msg = "--indexer and --overwrite are for building an index. Give --output too, or leave them out."
            raise OptionError(msg)
        _check_index(source, as_json, given, options)
        return
    if check:
        from retrievalkit.recall import check_beforehand

        check_beforehand(source, given.get("check_queries"))
    manifest = build_index(source, indexer=indexer, output=output, options=options, overwrite=overwrite)
    counts = dict(manifest["counts"])
    line = f"{output}: {counts.pop('texts'):,} texts indexed"
    more = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in counts.items())
    if not (check and as_json):
        _echo(as_json, manifest, f"{line}; {more}" if more else line)
    if check:
        _check_index(output, as_json, given, {})


def _check_index(folder: str, as_json: bool, flags: dict[str, Any], options: Settings) -> None:
    from retrievalkit import recall

    given = {name.removeprefix("check_"): value for name, value in flags.items()}
    found = recall.check_index(folder, options=options, **given)
    _echo(as_json, recall.as_json(found), f"{folder}: {recall.describe(found)}")


@main.command()
@click.argument("indexes", nargs=-1, required=True, metavar="INDEX...")
@click.option("--queries", help="Queries to search: a file, a BEIR folder, pydoc:PACKAGES.")
@click.option("--split", help="Only the queries of this split's judgements, where --queries is a folder.")
@click.option("--query", help="One query, typed here; prints hits as people read them.")
@click.option("--interactive", "-i", is_flag=True, help="Read queries from a prompt, or line by line from a pipe.")
@click.option("--model", help="The checkpoint that encodes queries; the one that made the index where not given.")
@click.option("--k", type=click.IntRange(min=1), help="Hits of a query; 1000 for --queries, 10 for hits to read.")
@click.option(
    "--fusion",
    type=click.Choice(["rrf", "sum", "linear"]),
    help="How several indexes are combined: by ranks (rrf, where not given), by the sum of their scores, or by a "
    "weighted sum of scores that may be normalised.",
)
@click.option("--weights", help="One number an index, such as 0.3,0.7; or a file that --tune has written.")
@click.option(
    "--normalization", type=click.Choice(["none", "min_max", "z_score"]), help="Of scores, for linear fusion."
)
@click.option(
    "--missing",
    type=click.Choice(["computed", "minimum", "zero"]),
    help="Scores of documents that an index did not find: computed by it (where not given, and it can), its lowest of "
    "the query, or 0.",
)
@click.option("--rrf-k", type=click.IntRange(min=0), help="The constant of rrf; 60 where not given.")
@click.option("--depth", type=click.IntRange(min=1), help="Hits of each index that are combined; 1000, or --k if more.")
@click.option(
    "--tune", metavar="QRELS", help="Find the weights that are best by these judgements (a BEIR folder: dev)."
)
@click.option("--tune-queries", help="The queries to tune on; where not given those of --tune's folder, or --queries.")
@click.option("--tune-metric", help="What to tune for, as ir-measures writes it; nDCG@10 where not given.")
@click.option("--corpus", help="Where the texts of hits are; the corpus that was indexed where not given.")
@click.option("--explain/--no-explain", "why", default=None, help="Say what made the score of hits to read (default).")
@click.option(
    "--output",
    "-o",
    type=click.Path(),
    help="The run to write (TREC), printed where not given; or the choice of --tune alone.",
)
@_json_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of an index, such as indexer.device=cpu or faiss.parameters=nprobe=32.",
)
def search(indexes: tuple[str, ...], settings: tuple[str, ...], interactive: bool, **flags: Any) -> None:
    """Search one INDEX, or several and combine what they find.

    INDEX is a folder that rkit index made, or a run (TREC) to combine with others. Combined scores are 32-bit numbers,
    equal ones by document id. --set takes indexer.OPTION for all indexes that have it, and for some of them OPTION
    after the name of an indexer or of an index folder.

    \b
    rkit search dense --queries test.jsonl --output dense.trec
    rkit search dense bm25 --query "eigenvalues of a symmetric matrix"
    rkit search dense bm25 --fusion linear --tune dev.tsv --tune-queries dev.jsonl --output weights.json
    rkit search dense bm25 --weights weights.json --queries test.jsonl --output hybrid.trec
    rkit search dense.trec bm25.trec --fusion rrf --output hybrid.trec
    """  # noqa: D301 - for click, the backspace that is meant keeps the lines apart
    from retrievalkit import search as program

    program.perform(program.Request(indexes, interactive=interactive, options=_parse(settings), **flags))


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        msg = f"'{text}' is not a list of numbers such as 0.3,0.7."
        raise click.UsageError(msg) from None


@main.command("mine-negatives")
@click.option(
    "--from",
    "source",
    required=True,
    multiple=True,
    help="bm25, a checkpoint, an index or a run (TREC); several, each with --from, are fused.",
)
@click.option("--corpus", required=True, help="The passages to mine.")
@click.option("--examples", required=True, help="The examples to find negatives for.")
@_output_option
@click.option("--depth", type=click.IntRange(min=1), default=200, show_default=True, help="Hits of a query to look at.")
@click.option(
    "--negatives", type=click.IntRange(min=1), default=100, show_default=True, help="Negatives to keep of them."
)
@click.option("--skip-top", type=click.IntRange(min=0), default=0, show_default=True, help="First hits to leave out.")
@click.option("--drop-answers", is_flag=True, help="Drop hits that contain an answer (DPR's rule).")
@click.option(
    "--same-document",
    metavar="title|REGEX",
    help="Drop hits of a positive's document: of its title, or whose id starts with the same, such as '(.+)#'.",
)
@click.option(
    "--near-duplicates",
    type=float,
    metavar="SHARE",
    help="Drop hits that share so many of their word 5-grams with a positive or a better hit (Jaccard), such as 0.8.",
)
@click.option("--reranker", help="A re-ranker that looks at hits too: a folder, a hub name, or a run of its scores.")
@click.option("--reranker-above", type=float, metavar="SCORE", help="Drop hits that it scores above this.")
@click.option(
    "--reranker-margin", type=float, metavar="SCORE", help="Drop hits not so much below the positive's score."
)
@click.option("--fusion", type=click.Choice(["rrf", "sum", "linear"]), help="How several sources are fused.")
@click.option("--weights", help="One number a source, such as 0.3,0.7; or a file that rkit search --tune has written.")
@click.option("--merge-with", help="Examples to put in front of the mined ones.")
@click.option("--keep", type=click.IntRange(min=1), help="Negatives of an example to keep when merging.")
@click.option("--seed", type=int, default=42, show_default=True)
@_json_option
@_set_option
def mine_negatives(source: tuple[str, ...], as_json: bool, settings: tuple[str, ...], **flags: Any) -> None:
    """Find hard negatives: passages that rank high and are not the answer.

    Hits are dropped in this order: known positives and copies of their text, passages of a positive's document, its
    near duplicates, passages with an answer, the first ranks, scores too near the positive's (--set margin_absolute=1,
    margin_relative=0.95), near duplicates of a better hit, and what a re-ranker takes for relevant. More by --set:
    drop_positives, sample=random, positives=retrieved, merge=pool, model, normalization, missing, rrf_k, indexer.OPTION
    (of bm25).

    OUTPUT.audit.html (and .json) shows what was dropped and what was kept. Killed and run again, it goes on.
    """
    from retrievalkit import mine
    from retrievalkit.audit import audit_table

    places = {name: flags.pop(name) for name in ("corpus", "examples", "output", "merge_with")}
    audit = mine.mine(source, **places, **mine.check_settings(_given(flags) | _parse(settings)))
    click.echo(json.dumps(audit, indent=2, default=str) if as_json else audit_table(audit))


@main.group(cls=RkitGroup)
def rerank() -> None:
    """Cross-encoders: train one, and apply it to a run or to training examples."""


@rerank.command("train")
@click.option(
    "--model", required=True, help="Pretrained encoder to start from: a hub name, a folder, package:NAME/FOLDER."
)
@click.option("--examples", required=True, help="Training examples with negatives (rkit mine-negatives).")
@click.option("--corpus", help="The passages that the examples name.")
@click.option("--dev", help="Held-out examples, by which the best state is chosen.")
@_output_option
@click.option("--loss", type=click.Choice(["listwise", "pointwise"]), help="Over a query's list, or pair by pair.")
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Queries of a step.")
@click.option("--negatives", type=int, help="Hard negatives of a query in a step.")
@click.option("--learning-rate", type=float)
@click.option("--max-length", type=int, help="Most tokens of a query and a passage together.")
@click.option("--precision", type=_PRECISION)
@click.option("--seed", type=int)
@click.option("--resume", is_flag=True, help="Go on with a training that was cut off.")
@_overwrite_option
@_json_option
@_set_option
def rerank_train(
    model: str,
    examples: str,
    corpus: str | None,
    dev: str | None,
    output: str,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> None:
    """Train a re-ranker on examples."""
    from retrievalkit import registry
    from retrievalkit.train_reranker import RerankerOptions, train_reranker

    training = registry.check_options("rkit rerank train", RerankerOptions, _parse(settings) | _given(flags))
    manifest = train_reranker(
        model=model,
        examples=examples,
        corpus=corpus,
        dev=dev,
        output=output,
        options=RerankerOptions(**training),
        resume=resume,
        overwrite=overwrite,
    )
    counts = manifest["counts"]
    dropped = f", {counts['without_negatives']:,} without negatives dropped" if counts["without_negatives"] else ""
    line = f"{output}: trained on {counts['examples']:,} examples in {counts['steps']:,} steps{dropped}"
    _echo(as_json, manifest, line)


@rerank.command("apply")
@click.argument("reranker")
@click.option("--run", help="The run to rank anew.")
@click.option("--queries", help="The texts of its queries.")
@click.option("--k", type=click.IntRange(min=1), help="Documents of a query to look at; 100 where not given.")
@click.option("--examples", help="Training examples to score for distillation, instead of --run.")
@click.option("--corpus", required=True, help="The texts of the documents.")
@_output_option
@click.option("--max-length", type=int, help="For a cross-encoder that was not trained here; ours has its own.")
@click.option("--precision", type=_PRECISION, default="auto", show_default=True)
@click.option("--batch-tokens", type=click.IntRange(min=1), help="Most tokens of a batch, padding included.")
@_json_option
def rerank_apply(
    reranker: str,
    run: str | None,
    queries: str | None,
    k: int | None,
    examples: str | None,
    corpus: str,
    output: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Rank a run anew with RERANKER (a folder or a hub name), or give training examples a teacher's scores."""
    from retrievalkit.rerank import DEPTH, Settings, rerank_run, score_examples

    if (run is None) == (examples is None):
        msg = "give either --run RUN with --queries QUERIES, or --examples EXAMPLES."
        raise click.UsageError(msg)
    settings = Settings(**flags)
    if examples is not None:
        if queries is not None or k is not None:
            msg = f"{'--k' if queries is None else '--queries'} goes with --run, and --examples has its own."
            raise click.UsageError(msg)
        found = score_examples(reranker, examples=examples, corpus=corpus, output=output, settings=settings)
        rest = f" ({found['without_negatives']:,} without negatives)" if found["without_negatives"] else ""
        _echo(as_json, found, f"{output}: {found['examples']:,} examples, {found['pairs']:,} pairs scored{rest}")
        return
    if queries is None:
        msg = "--run holds no texts: give its queries, --queries QUERIES."
        raise click.UsageError(msg)
    found = rerank_run(
        reranker, run=run or "", queries=queries, corpus=corpus, output=output, k=k or DEPTH, settings=settings
    )
    _echo(as_json, found, f"{output}: {found['queries']:,} queries, {found['pairs']:,} pairs scored")


@main.command()
@click.argument("run", nargs=-1, required=True, metavar="RUN [RUN...]")
@click.option("--qrels", help="Judgements: TREC, BEIR, MS MARCO, a BEIR folder, pydoc:PACKAGES.")
@click.option("--metrics", default="nDCG@10 RR@10 R@1000", show_default=True, help="Names as ir-measures writes them.")
@click.option("--answers", "queries", help="Queries with answers, for top-k accuracy.")
@click.option("--split", help="Only the queries of this split's judgements, where --answers is a folder.")
@click.option("--corpus", help="The passages that were searched, for top-k accuracy.")
@click.option("--top", "ks", default="5 20 100", show_default=True, help="Each k of top-k accuracy.")
@click.option("--answer-mode", "mode", type=click.Choice(["string", "regex"]), default="string", show_default=True)
@click.option(
    "--processes", type=click.IntRange(min=1), help="That look for answers; by the size of the run if not given."
)
@_ties_option
@_over_option
@_exclude_self_option
@click.option("--per-query", is_flag=True, help="The values of each query too.")
@_json_option
def evaluate(
    run: tuple[str, ...],
    queries: str | None,
    split: str | None,
    ks: str,
    per_query: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Evaluate RUNs by judgements, or by the answers that their passages contain.

    As trec_eval -c counts: over all queries of the qrels, those a run lacks with 0; a grade is its own gain in nDCG.
    As MS MARCO's script: --metrics RR@10 --ties run. As BEIR: --exclude-self.
    """
    from retrievalkit.data.queries import read_queries
    from retrievalkit.evaluate import as_text, cutoffs, evaluate_runs

    answers = read_queries(queries, split) if queries is not None else None
    found = evaluate_runs(run, queries=answers, ks=cutoffs(ks), **flags)
    if as_json:
        values = {name: one.to_json(per_query=per_query) for name, one in found.items()}
        click.echo(json.dumps({"runs": values} if len(values) > 1 else next(iter(values.values())), indent=2))
        return
    click.echo(as_text(found, per_query=per_query))
    for name, one in found.items():
        for note in one.notes:
            click.echo(f"Note: {f'{name}: ' if len(found) > 1 else ''}{note}", err=True)


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--qrels", required=True, help="Judgements.")
@click.option("--metrics", default="nDCG@10", show_default=True, help="Names as ir-measures writes them.")
@click.option("--baseline", help="The run that the others are compared with; the first where not given, or 'all'.")
@click.option("--queries", help="To show the texts of the queries that differ most.")
@click.option("--corpus", help="To show what each run has first for them.")
@click.option("--output", "-o", type=click.Path(), help="A page (.html), the figures (.json), or a folder.")
@click.option("--plot/--no-plot", default=True, help="Draw plots for the page, which needs matplotlib.")
@click.option("--examples", type=click.IntRange(min=0), default=5, show_default=True, help="Wins and losses to list.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the intervals.")
@_ties_option
@_over_option
@_exclude_self_option
@click.option("--seed", type=int, default=0, show_default=True)
@_overwrite_option
@_json_option
def compare(runs: tuple[str, ...], output: str | None, as_json: bool, **flags: Any) -> None:
    """Compare runs: paired significance tests, wins and losses; with --output as a page."""
    from rich.console import Console

    from retrievalkit.compare import PAGE
    from retrievalkit.compare import compare as program
    from retrievalkit.comparison import render

    comparison = program(runs, output=output, **flags)
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2))
        return
    render(comparison, Console())
    if output is not None:
        page = os.path.join(output, PAGE) if os.path.isdir(output) else output
        click.echo(f"{output}: written" + (f"; open {page} in a browser" if page.endswith(".html") else ""))


@main.command("analyse-views")
@click.argument("model")
@click.option("--corpus", help="The passages.")
@click.option("--queries", help="The queries that the judgements are of.")
@click.option("--qrels", help="Judgements; documents judged above 0 are analysed.")
@click.option("--examples", help="Training examples, instead of --queries and --qrels.")
@_output_option
@click.option("--scores", type=click.Choice(["cosine", "softmax", "raw"]), default="cosine", show_default=True)
@click.option("--temperature", type=float, help="Of --scores softmax; 1 where not given.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many documents, with all their queries.")
@click.option("--encoder", help="For a pretrained model; a checkpoint has its own.")
@click.option("--pooler", help="For a pretrained model; a checkpoint has its own.")
@click.option("--precision", type=_PRECISION, default="auto", show_default=True)
@click.option("--plot/--no-plot", default=True, help="Draw views.png, which needs matplotlib.")
@_overwrite_option
@_json_option
@_set_option
def analyse_views(model: str, as_json: bool, settings: tuple[str, ...], **flags: Any) -> None:
    """Show which of a document's vectors (viewers, layers, tokens) answers which query, with MODEL."""
    from rich.console import Console

    from retrievalkit.analyse_views import analyse_views as program
    from retrievalkit.views import render

    values = _parse(settings)
    encoder_options, pooler_options = _section(values, "encoder"), _section(values, "pooler")
    _refuse(values, "analyse-views", "encoder.OPTION and pooler.OPTION")
    found = program(model, encoder_options=encoder_options, pooler_options=pooler_options, **flags)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        render(found, Console())


@main.command()
@click.argument("source")
@click.argument("output", type=click.Path())
@click.option("--kind", type=click.Choice(["corpus", "queries", "examples", "qrels", "run", "collection"]))
@click.option("--split", help="Of a collection with several.")
@click.option("--form", type=click.Choice(["trec", "msmarco", "beir"]), help="To write a run or qrels in.")
@_json_option
def convert(source: str, output: str, as_json: bool, **flags: Any) -> None:
    """Read SOURCE in any known format and write it in ours."""
    from retrievalkit.convert import convert as program

    counts = program(source, output, **_given(flags))
    _echo(as_json, counts, f"{output}: " + ", ".join(f"{value:,} {name}" for name, value in counts.items()))


@main.command()
@click.argument("recipe")
@_output_option
@click.option("--variants", help="Only these rows of its table: names or patterns, such as mlr,dpr_*.")
@click.option("--force", is_flag=True, help="Run every step again, also those whose inputs have not changed.")
@_json_option
@_set_option
def run(recipe: str, output: str, variants: str | None, as_json: bool, settings: tuple[str, ...], force: bool) -> None:
    """Run the steps of a RECIPE (a file, or the name of one that comes along)."""
    from retrievalkit import run as program

    wanted = None if variants is None else [name.strip() for name in variants.split(",") if name.strip()]
    outcome = program.run(recipe, output, cli=main, overrides=_parse(settings), variants=wanted, force=force)
    _echo(as_json, outcome.to_json(), outcome.text())


@main.command()
@click.option("--output", "-o", default="quickstart", show_default=True, type=click.Path())
@click.option("--model", help="The pretrained encoder to start from.")
@click.option("--corpus", help="Your own passages instead of the documentation of installed packages.")
@click.option("--examples", help="Your own training examples.")
@click.option("--queries", help="Your own test queries.")
@click.option("--qrels", help="Your own judgements of the test queries.")
@click.option("--force", is_flag=True, help="Run every step again, also those whose inputs have not changed.")
@_json_option
@_set_option
def quickstart(as_json: bool, settings: tuple[str, ...], **flags: Any) -> None:
    """The whole way on real text: negatives, two training stages, indexes, search, a table of results."""
    from retrievalkit.quickstart import quickstart as program

    program(cli=main, overrides=_parse(settings), as_json=as_json, **flags)


@main.group()
def plugins() -> None:
    """What is installed: encoders, poolers, losses, indexers, pretrainers."""


@plugins.command("list")
@_json_option
def list_plugins(as_json: bool) -> None:
    """List plugins and what they bring; a broken one with its reason."""
    from retrievalkit import plugins as program

    click.echo(json.dumps(program.as_json(), indent=2) if as_json else program.listing())


@plugins.command("show")
@click.argument("name")
def show_plugin(name: str) -> None:
    """Show a component: what it is, and its options with types and defaults."""
    from retrievalkit import plugins as program

    click.echo(program.show(name))


@plugins.command("new")
@click.argument("name")
@click.option("--kind", type=click.Choice(["pooler", "loss"]), default="pooler", show_default=True)
@_output_option
def new_plugin(name: str, kind: str, output: str) -> None:
    """Write the start of a plugin package called NAME."""
    from retrievalkit import plugins as program

    click.echo(program.new(name, kind, output))


@plugins.command("check")
@click.argument("name")
@click.option("--model", help="A model to check encoders and poolers with; a tiny one where not given.")
@_set_option
def check_plugin(name: str, model: str | None, settings: tuple[str, ...]) -> None:
    """Check that a component keeps the contract."""
    from retrievalkit import plugins as program

    click.echo(program.check(name, model=model, options=_parse(settings)))


@main.command()
@_json_option
def doctor(as_json: bool) -> None:
    """Say what this machine has: Python, packages, Java, processor, plugins; and what is wrong."""
    from retrievalkit import doctor as program

    findings = program.examine()
    click.echo(json.dumps(findings, indent=2) if as_json else program.report(findings))
    if any(not one["ok"] for one in findings):
        sys.exit(1)


def _echo(as_json: bool, result: Any, line: str) -> None:
    click.echo(json.dumps(result, indent=2, default=str) if as_json else line)


if __name__ == "__main__":
    main()
