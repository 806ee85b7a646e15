"""`rkit rerank apply`: re-ranks a run, or adds a re-ranker's scores to training examples as a teacher's.

    rkit rerank apply RERANKER --run RUN --queries QUERIES --corpus CORPUS [--k 100] --output RERANKED
    rkit rerank apply RERANKER --examples EXAMPLES --corpus CORPUS --output SCORED

`rkit train --loss distill_kl` and `margin_mse` learn from a teacher's scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any

from annotated_types import Ge

from retrievalkit import storage
from retrievalkit.contracts.cluster import RayOptions
from retrievalkit.contracts.declarations import Argument, Flag, Place, ReadingOptions, Reads, command
from retrievalkit.data import inputs
from retrievalkit.data.example_table import Examples
from retrievalkit.errors import OptionError
from retrievalkit.evaluation.run import Run
from retrievalkit.indexing.options import Backend, Precision

DEPTH = 100


@dataclass(frozen=True)
class RerankOptions(RayOptions, ReadingOptions):
    """Options of `rerank apply`.

    Args:
        reranker: A cross-encoder (a folder or a hub name), or a plugin's re-ranker as `NAME:MODEL`.
        run: The run to re-rank; in Python also an in-memory run.
        queries: The queries of the run, with texts; in Python also a dict or a table.
        corpus: The corpus with the documents' texts; in Python by default the corpus of the examples.
        examples: Training examples to score for distillation, instead of a run.
        output: The file to write: a run, or examples with a score for each of their documents.
        k: Documents per query to score and keep, 100 by default.
        max_length: Maximum tokens per pair, for a cross-encoder not trained with rkit; 512 or its limit by default.
        precision: Number format for scoring. In fp32 a pair's score does not depend on its batch, except for rounding
            in the last digits; auto is bf16 if the hardware computes in it, else fp32. "int8" (OpenVINO) is calibrated
            on the pairs: about twice as fast on a CPU, but less exact.
        backend: Library that runs a cross-encoder: "auto" (the default) is OpenVINO on a CPU if installed,
            else "torch"; "openvino" or "onnx".
        batch_tokens: Maximum tokens per batch, padding included; by default a size that suits the device.
    """

    reranker: Annotated[Place, Argument(), Reads(accepts=("reranker",))]
    run: Annotated[Any, Reads(inputs.run)] = None
    queries: Annotated[Any, Reads(inputs.queries)] = None
    corpus: Annotated[Any, Flag(required=True), Reads(inputs.passages)] = None
    _: KW_ONLY
    examples: Annotated[Any, Reads(inputs.examples)] = None
    output: Annotated[Place | None, Flag(("--output", "-o"), required=True)] = None
    k: Annotated[int, Ge(1)] | None = None
    max_length: Annotated[int, Ge(1)] | None = None
    precision: Precision = "fp32"
    backend: Backend = "auto"
    batch_tokens: Annotated[int, Ge(1)] | None = None

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, with the corpus of `rk.Examples` if none was passed."""
        return inputs.with_corpus(values)


@command("rerank apply", RerankOptions)
def rerank(options: RerankOptions) -> Run | Examples:
    """Re-rank a run with RERANKER, or add its scores to training examples as teacher scores.

    A killed command resumes when it is run again.
    """
    if (options.run is None) == (options.examples is None) or options.corpus is None:
        msg = "rerank apply needs a corpus, and either a run with its queries or examples. Give these options."
        raise OptionError(msg)
    if options.run is None and not options.queries is options.k is None:
        msg = f"{'k' if options.queries is None else 'queries'} only applies to a run, not to examples. Leave it out."
        raise OptionError(msg)
    if options.run is not None and options.queries is None:
        msg = "a run contains no query texts. Give its queries: queries=..."
        raise OptionError(msg)
    from retrievalkit.search.pair_scoring import rerank_run, score_examples

    with storage.scratch() as folder:
        stays = options.output is not None
        options = options if stays else replace(options, output=folder / "output")
        return rerank_run(options) if options.examples is None else score_examples(options, stays=stays)
