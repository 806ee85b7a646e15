"""The command `rkit analyse-views`: shows which vector of a document answers which query.

rkit analyse-views CHECKPOINT --corpus CORPUS --queries QUERIES --qrels QRELS --output DIR
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt

from retrievalkit.contracts.commands import Argument, Named, Precision, Reads, WritingOptions, command

if TYPE_CHECKING:
    from retrievalkit_mvr.analyse_views.figures import Analysis


@dataclass(frozen=True)
class AnalyseViewsOptions(WritingOptions):
    """Options of `analyse-views`.

    Args:
        model: A checkpoint, or a pretrained model with a pooler.
        corpus: The passages; optional with examples that contain texts.
        queries: The judged queries.
        qrels: Judgements; documents judged above 0 are analysed.
        examples: Training examples, instead of queries and qrels.
        scores: The scores that Local Variation is computed on: the cosine of query and view, the softmax of a
            document's inner products, or the inner products (raw). Figures of different kinds cannot be compared.
        temperature: Temperature of the softmax; 1 by default.
        limit: Number of documents to analyse, with all of their queries.
        encoder: Encoder for a pretrained model; a checkpoint has its own.
        pooler: Pooler for a pretrained model, by default its own (modules.json), else cls; a checkpoint has its own.
        precision: Number format that texts are encoded in.
        plot: Draw views.png, which needs matplotlib.
        encoder_options: Options of the encoder.
        pooler_options: Options of the pooler.
    """

    model: Annotated[str, Argument(), Reads()]
    _: KW_ONLY
    corpus: Annotated[str | None, Reads()] = None
    queries: Annotated[str | None, Reads()] = None
    qrels: Annotated[str | None, Reads()] = None
    examples: Annotated[str | None, Reads()] = None
    scores: Literal["cosine", "softmax", "raw"] = "cosine"
    temperature: Annotated[float, Gt(0)] | None = None
    limit: Annotated[int, Ge(1)] | None = None
    encoder: Annotated[str | None, Named("encoder")] = None
    pooler: Annotated[str | None, Named("pooler")] = None
    precision: Precision = "auto"
    plot: bool = True
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    pooler_options: Mapping[str, Any] = field(default_factory=dict)


@command("analyse-views", AnalyseViewsOptions)
def analyse_views(options: AnalyseViewsOptions) -> Analysis:
    """Show which vector of a document (viewer, layer or token) matches which query.

    Writes a table, a plot and a line for each pair.
    """
    from retrievalkit_mvr.analyse_views.program import analyse

    return analyse(options)
