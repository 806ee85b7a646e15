"""The contract of components: the kinds of component, and the data types that flow between them.

    Text -> Batch --Encoder--> TokenStates --Pooler--> Representation --score--> Loss
                                                       Representation --Compressor--> vectors/ --Indexer--> index/

Other kinds are filters of mined negatives, fusion methods, metrics, re-rankers and backends, which compute the layers
of encoders; sources are in `data.sources`.
`VERSION` is the version of the whole contract with plugins; tests/contracts lists every name in it.

Names and fields of the data types are a promise to plugin authors. A component's options are the keyword-only
arguments of its constructor. Names that need torch are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrievalkit.contracts.backends import Backend, ExportError, Function, Program, QueryEncoder
from retrievalkit.contracts.encoding import Compressor, Text
from retrievalkit.contracts.indexers import Allowed, Indexer
from retrievalkit.contracts.mining import Filter, FilterInputs, Found, PairScores, Places, Question
from retrievalkit.contracts.searching import Candidates, FusionMethod, Judged, Metric, Reranker
from retrievalkit.contracts.workers import ClusterOptions, Staying, Workers
from retrievalkit.hookspecs import VERSION

if TYPE_CHECKING:
    from retrievalkit.contracts.models import (
        SIDES,
        Batch,
        Encoder,
        EncoderInfo,
        ExtraTokens,
        Fields,
        LayerShape,
        Loss,
        LossValue,
        Needs,
        Pooler,
        Pretrainer,
        Progress,
        Representation,
        Side,
        TokenStates,
        VocabularyHead,
        absolute_layer,
        absolute_layers,
        masked_mean,
        refuse_idle,
    )

__all__ = [
    "Allowed", "Backend", "Batch", "Candidates", "ClusterOptions", "Compressor", "Encoder", "EncoderInfo",
    "ExportError", "ExtraTokens", "Fields", "Filter", "FilterInputs", "Found", "Function", "FusionMethod", "Indexer",
    "Judged", "LayerShape", "Loss", "LossValue", "Metric", "Needs", "PairScores", "Places", "Pooler", "Pretrainer",
    "Program", "Progress", "QueryEncoder", "Question", "Representation", "Reranker",
    "SIDES", "Side", "Staying", "Text", "TokenStates", "VERSION", "VocabularyHead", "Workers",
    "absolute_layer", "absolute_layers", "masked_mean", "refuse_idle",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module '{__name__}' has no attribute '{name}'"
        raise AttributeError(msg)
    from retrievalkit.contracts import models

    return getattr(models, name)
