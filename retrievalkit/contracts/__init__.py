"""The contract of components: the data types that flow between them, and the five kinds of component.

    texts -> Batch --Encoder--> TokenStates --Pooler--> Representation --score--> Loss

Names and fields of the data types are a promise to plugin authors. Every component's options are the keyword-only
arguments of its constructor. What needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from retrievalkit.contracts.indexers import Indexer

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
        Text,
        TokenStates,
        VocabularyHead,
        absolute_layer,
        absolute_layers,
    )

__all__ = [
    "Batch",
    "Encoder",
    "EncoderInfo",
    "ExtraTokens",
    "Fields",
    "Indexer",
    "LayerShape",
    "Loss",
    "LossValue",
    "Needs",
    "Pooler",
    "Pretrainer",
    "Progress",
    "Representation",
    "SIDES",
    "Side",
    "Text",
    "TokenStates",
    "VocabularyHead",
    "absolute_layer",
    "absolute_layers",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module '{__name__}' has no attribute '{name}'"
        raise AttributeError(msg)
    return getattr(importlib.import_module("retrievalkit.contracts.models"), name)
