"""The vectors of viewer tokens.

After "Multi-View Document Representation Learning for Open-Domain Dense Retrieval": k viewer tokens stand in the place
of a document's [CLS], all at position 0, so that they differ by their own embeddings alone and the text keeps its
positions; a query has one viewer of its own. What the last layer makes of them are the vectors.

    document   [VIE_0] ... [VIE_k-1] text [SEP]     positions 0 ... 0, 1, 2, ...     k vectors
    query      [VIE] text [SEP]                     positions 0, 1, 2, ...           1 vector
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from retrievalkit.contracts import (
    Encoder,
    EncoderInfo,
    ExtraTokens,
    Needs,
    Pooler,
    Representation,
    Side,
    TokenStates,
    absolute_layers,
)
from retrievalkit.errors import OptionError, UnsupportedError

STANDARD_DEVIATION = 0.02


class Viewers(Pooler):
    """One vector for each viewer token of a document, and one for a query; the best of a document's counts.

    Args:
        viewers: How many viewers a document has; a query has one.
        source: Where viewers come from: "new" embeddings, or rows of the vocabulary that pre-training left "unused".
        standard_deviation: Of the normal distribution that new embeddings are drawn from.
        position: Position number of all viewers; null numbers them as ordinary tokens, and the text behind them.
        replace_first: Whether viewers stand in the place of the [CLS]-like token, or behind it.
        query_viewer: Whether a query has a viewer too, or its vector is that of its [CLS]-like token.
        layers: Layers that each viewer has a vector from, in any order; 0 = embeddings, -1 = the last. A document has
            viewers x layers vectors, the highest layer first; a query has one, from the last layer.
        keep: With several layers: "all" vectors are indexed, or the "last" layer's alone, which wants one viewer and a
            loss that sets it against the other layers' (self_contrastive).
        normalize: Whether every vector is divided by its length (L2). The paper does not.
    """

    def __init__(
        self,
        info: EncoderInfo,
        *,
        viewers: PositiveInt = 8,
        source: Literal["new", "unused"] = "new",
        standard_deviation: PositiveFloat = STANDARD_DEVIATION,
        position: NonNegativeInt | None = 0,
        replace_first: bool = True,
        query_viewer: bool = True,
        layers: tuple[int, ...] = (-1,),
        keep: Literal["all", "last"] = "all",
        normalize: bool = False,
    ) -> None:
        super().__init__()
        if source == "unused" and standard_deviation != STANDARD_DEVIATION:
            msg = (
                f"pooler 'viewers': source=unused takes rows that are there, so that standard_deviation="
                f"{standard_deviation} has no effect. Leave one out."
            )
            raise OptionError(msg)
        self.info = info
        self.viewers = viewers
        self.query_viewer = query_viewer
        self.layers = absolute_layers(layers, info, keep=keep)
        self.keep = keep
        self.normalize = normalize
        if keep == "last" and viewers != 1:
            msg = (
                f"pooler 'viewers': keep=last leaves one vector to the index, and the last layer has viewers="
                f"{viewers}. Set viewers=1, or keep=all."
            )
            raise OptionError(msg)
        counts = {"document": viewers, "query": int(query_viewer)}
        self.extra_tokens = {
            side: ExtraTokens(count, source, standard_deviation, replace_first, position)
            for side, count in counts.items()
            if count
        }

    @property
    def default_loss(self) -> str:  # type: ignore[override]
        """The paper's; with keep=last the one that trains the kept vector (of retrievalkit-mlr)."""
        return "self_contrastive" if self.keep == "last" else "global_local"

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Viewers on both sides; the last layer for queries, the layers that are indexed or trained for documents."""
        layers = {"query": (self.info.layers,), "document": self._document_layers()}
        return Needs(layers=layers, extra_tokens=self.extra_tokens)

    def bind(self, encoder: Encoder) -> None:
        """Refuse an encoder without the [CLS]-like token that is to be the query's vector."""
        if self.query_viewer:
            return
        batch = encoder.collate(encoder.tokenize([("", "a")], "query"), "query")
        if not bool(batch.special_mask[0, 0]):
            msg = (
                "pooler 'viewers' with query_viewer=false takes a query's [CLS]-like token, and this encoder's texts "
                "begin with none. Leave query_viewer out, so that queries get a viewer."
            )
            raise UnsupportedError(msg)

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """(batch, layers x viewers, width) for documents, layer by layer; (batch, 1, width) for queries."""
        if side == "query":
            positions = states.extra if self.query_viewer else states.first[:, None]
            return Representation(self._finish(_gather(states.layers[self.info.layers], positions)))
        vectors = [_gather(states.layers[layer], states.extra) for layer in self._document_layers()]
        return Representation(self._finish(torch.cat(vectors, dim=1)), kept=0 if self.keep == "last" else None)

    def view_names(self, count: int) -> list[str]:
        """The viewer's number, its layer's where there are several, or both."""
        names = [f"viewer {viewer}" for viewer in range(self.viewers)]
        if len(self.layers) > 1:
            layers = [f"layer {layer}" for layer in self.layers]
            names = layers if self.viewers == 1 else [f"{layer}, {name}" for layer in layers for name in names]
        return names[:count]

    def _document_layers(self) -> tuple[int, ...]:
        return self.layers[:1] if self.keep == "last" and not self.training else self.layers

    def _finish(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors


def _gather(hidden: Tensor, positions: Tensor | None) -> Tensor:
    """(batch, n, width): the states (batch, tokens, width) at the positions (batch, n)."""
    assert positions is not None, "the encoder has put in no extra tokens"
    return hidden.gather(1, positions[:, :, None].expand(-1, -1, hidden.shape[2]))
