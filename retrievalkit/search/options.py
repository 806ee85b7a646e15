"""Search options: fusion of several indexes, document scores, and opening of indexes.

This module imports nothing heavy, so that recipes can check options before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Ge, Le

from retrievalkit.contracts.cluster import RayOptions
from retrievalkit.contracts.declarations import Flag, Named, ReadingOptions, Reads
from retrievalkit.data import inputs
from retrievalkit.errors import OptionError, check_choice
from retrievalkit.indexing.options import Backend

if TYPE_CHECKING:
    from retrievalkit.data.passage_parts import DocumentScore
    from retrievalkit.search.fusion import Fusion

By = Literal["document", "passage"]
Normalization = Literal["none", "min_max", "z_score"]
Missing = Literal["computed", "minimum", "zero"]
METRIC = "nDCG@10"
"""The default metric for tuning."""
RankConstant = Annotated[int, Ge(0), Le(1_000_000_000)]
"""The constant of rrf; bounded, as ranks are added as 32-bit numbers."""


@dataclass(frozen=True, kw_only=True)
class FusionOptions:
    """Fusion of the hits of several indexes.

    Args:
        fusion: Fuse by ranks ("rrf", the default), by the "sum" of scores, or by a "linear" combination of optionally
            normalised scores; or by a plugin's method, with options as in "combined(power=2)".
        weights: Weights of the indexes, such as 0.3,0.7; or a file written by rkit search --tune.
        normalization: Normalisation of scores, for linear fusion.
        missing: Scores of documents that an index did not retrieve: computed by the index (the default, if it can), its
            lowest score for the query, or 0.
        rrf_k: The constant k of rrf, 60 by default; a larger value gives the first ranks less weight.
    """

    heading: ClassVar = "Fusion"

    fusion: Annotated[str | None, Named("fusion")] = None
    weights: Annotated[str | Sequence[float] | None, Flag(metavar="NUMBERS|FILE")] = None
    normalization: Normalization | None = None
    missing: Missing | None = None
    rrf_k: RankConstant | None = None

    def given(self) -> dict[str, Any]:
        """Return the options that are set."""
        declaring = HybridOptions if isinstance(self, HybridOptions) else FusionOptions
        values = {option.name: getattr(self, option.name) for option in fields(declaring)}
        return {name: value for name, value in values.items() if value is not None}

    def fused(self, indexes: int, identities: Sequence[str] | None = None) -> Fusion | None:
        """Return the fusion for a number of indexes; None for a single index.

        A weights file is read and checked only with `identities`, the fingerprints of the open indexes.
        """
        from retrievalkit.search.fusion import Fusion, read_choice

        chosen = self.given()
        if indexes == 1:
            if chosen:
                msg = f"{', '.join(chosen)} needs several indexes, but there is only one. Give more, or leave it out."
                raise OptionError(msg)
            return None
        weights = self.weights
        if isinstance(weights, str) and Path(weights).is_file():
            if identities is not None:
                tuned = read_choice(weights, identities)
                known = {"fusion": tuned.method, **vars(tuned)}
                for name, value in chosen.items():
                    if name not in ("weights", "depth") and value != known[name]:
                        msg = f"'{weights}' has {name}={known[name]}, but the option is {value}. Leave out the option."
                        raise OptionError(msg)
                return tuned
            weights = None
        elif isinstance(weights, str):
            try:
                weights = [float(part) for part in weights.split(",")]
            except ValueError:
                msg = f"weights '{weights}' are neither numbers such as 0.3,0.7 nor a file that --tune wrote."
                raise OptionError(msg) from None
        settings = (None if weights is None else tuple(weights), self.normalization, self.missing, self.rrf_k)
        fusion = Fusion("rrf" if self.fusion is None else self.fusion, *settings)
        if indexes:
            fusion.weights_of(indexes)
        return fusion


@dataclass(frozen=True, kw_only=True)
class HybridOptions(FusionOptions):
    """Joint search of several indexes.

    Args:
        depth: Hits of each index to fuse; by default 1000, or the number of hits requested if that is more.
    """

    heading: ClassVar = "Fusion"

    depth: Annotated[int, Ge(1)] | None = None


@dataclass(frozen=True, kw_only=True)
class DocumentOptions:
    """Grouping of the passages of a document that rkit cut into hits.

    Args:
        by: Hits are documents, each with its passages, or single passages; by default documents in readable hits, and
            passages in runs.
        document_score: Score of a document: the best score of its passages (the default), or the sum of the scores of
            its passages among the first 1000 passages, or 10 times the number of hits if that is more.
    """

    heading: ClassVar = "Documents"

    by: By | None = None
    document_score: Literal["best", "sum"] | None = None

    @property
    def requires_documents(self) -> bool:
        """True if hits are documents by request, not by default."""
        return self.by == "document" or self.document_score is not None

    def scored(self, default: By) -> DocumentScore | None:
        """Return the kind of document score; None if hits are passages."""
        by, score = self.by or default, self.document_score
        check_choice("kind of hit", by, get_args(By))
        check_choice("score of documents", score or "best", ("best", "sum"))
        if by == "passage" and score is not None:
            msg = f"document_score={score} has no effect on passages. Add by=document, or leave it out."
            raise OptionError(msg)
        return (score or "best") if by == "document" else None


def _model(value: Any) -> Any:
    """Return a loaded retriever unchanged, or the path of a model."""
    return value if hasattr(value, "encode_queries") else inputs.place(value, "the model")


@dataclass(frozen=True, kw_only=True)
class OpenOptions(ReadingOptions, RayOptions):
    """Options for opening indexes.

    Args:
        model: Checkpoint that encodes queries, in Python also a loaded retriever; by default the index's own.
        precision: Number format for encoding queries, fp32 by default; auto is bf16 if the hardware computes in it,
            else fp32.
        backend: Library that runs the encoder: "auto" (the default) is OpenVINO on a CPU if installed,
            else "torch"; "openvino" or "onnx".
        corpus: Corpus with the texts of hits; by default the indexed corpus.
        indexer_options: Indexer options that differ from the options at indexing, for all indexes that have them.
        encoder_options: query_length=N truncates queries to N tokens instead of the checkpoint's limit.
    """

    heading: ClassVar = "Indexes"

    model: Annotated[Any, Reads(_model)] = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None
    backend: Backend = "auto"
    corpus: Annotated[Any, Reads(inputs.passages)] = None
    indexer_options: Mapping[str, Any] = field(default_factory=dict)
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
