"""`rkit rerank apply`: a run in the order of a re-ranker's scores, or training examples with these as a teacher's.

    rkit rerank apply RERANKER --run RUN --queries QUERIES --corpus CORPUS [--k 100] --output RERANKED
    rkit rerank apply RERANKER --examples EXAMPLES --corpus CORPUS --output SCORED

`rkit train --loss distill_kl` and `margin_mse` learn from a teacher's scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge

from retrievalkit import storage
from retrievalkit.contracts.cluster import RayOptions
from retrievalkit.contracts.declarations import Argument, Flag, Place, ReadingOptions, Reads, command
from retrievalkit.data import inputs
from retrievalkit.data.example_table import Examples
from retrievalkit.errors import OptionError
from retrievalkit.evaluation.run import Run
from retrievalkit.indexing.options import Backend

DEPTH = 100


@dataclass(frozen=True)
class RerankOptions(RayOptions, ReadingOptions):
    """Options of `rerank apply`.

    Args:
        reranker: A cross-encoder: a folder or a hub name, or `NAME:MODEL` of a plugin.
        run: The run whose best documents are scored; in Python also one in memory.
        queries: The texts of its queries; in Python also a dict, a table.
        corpus: The texts of the documents; in Python by default those of the examples.
        examples: Training examples to score for distillation, instead of a run.
        output: The file to write: a run, or examples with a score for each of their documents.
        k: Documents of a query to score and keep, 100 by default.
        max_length: Most tokens of a pair, for a cross-encoder that was not trained here; 512 or its limit by default.
        precision: Number format that pairs are scored in. In fp32 a pair has the same score, but for rounding in the
            last digits, whatever it is batched with; auto is bf16 if the hardware multiplies in it, else fp32.
        backend: Library that computes a cross-encoder's layers: "auto" (the default) is OpenVINO on a processor where
            it is installed, else torch.
        batch_tokens: Most tokens of a batch, padding included; a size that suits the device by default.
    """

    reranker: Annotated[Place, Argument(), Reads()]
    run: Annotated[Any, Reads(inputs.run)] = None
    queries: Annotated[Any, Reads(inputs.queries)] = None
    corpus: Annotated[Any, Flag(required=True), Reads(inputs.passages)] = None
    _: KW_ONLY
    examples: Annotated[Any, Reads(inputs.examples)] = None
    output: Annotated[Place | None, Flag(("--output", "-o"), required=True)] = None
    k: Annotated[int, Ge(1)] | None = None
    max_length: Annotated[int, Ge(1)] | None = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    backend: Backend = "auto"
    batch_tokens: Annotated[int, Ge(1)] | None = None

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with the passages that `rk.Examples` name where no corpus was given."""
        return inputs.with_corpus(values)


@command("rerank apply", RerankOptions)
def rerank(options: RerankOptions) -> Run | Examples:
    """Rank a run by the scores of RERANKER, or give training examples its scores as a teacher's.

    Killed and run again, it continues.
    """
    if (options.run is None) == (options.examples is None) or options.corpus is None:
        msg = "give either a run with its queries, or examples; and the corpus with their texts."
        raise OptionError(msg)
    if options.run is None and not options.queries is options.k is None:
        msg = f"{'k' if options.queries is None else 'queries'} goes with a run, and examples have their own."
        raise OptionError(msg)
    if options.run is not None and options.queries is None:
        msg = "a run holds no texts. Give its queries: queries=..."
        raise OptionError(msg)
    from retrievalkit.search.pair_scoring import rerank_run, score_examples

    with ExitStack() as stack:
        stays = options.output is not None
        if not stays:
            options = replace(options, output=stack.enter_context(storage.scratch()) / "output")
        return rerank_run(options) if options.examples is None else score_examples(options, stays=stays)
