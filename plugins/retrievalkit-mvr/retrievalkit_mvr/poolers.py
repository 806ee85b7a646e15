"""The pooler that represents texts by the states of viewer tokens.

After "Multi-View Document Representation Learning for Open-Domain Dense Retrieval": k viewer tokens replace a
document's [CLS], all at position 0, so that they differ only in their embeddings and the text keeps its positions; a
query has a single viewer. Their last hidden states are the vectors.

    document   [VIE_0] ... [VIE_k-1] text [SEP]     positions 0 ... 0, 1, 2, ...     k vectors
    query      [VIE] text [SEP]                     positions 0, 1, 2, ...           1 vector
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn

from retrievalkit.contracts import (
    Encoder,
    EncoderInfo,
    ExtraTokens,
    Needs,
    Pooler,
    Representation,
    Side,
    Text,
    TokenStates,
    absolute_layers,
    refuse_idle,
)
from retrievalkit.errors import OptionError, UnsupportedError


class Viewers(Pooler):
    """MVR's multi-view documents: one vector per viewer token, and one per query; the best vector gives the score.

    From "Multi-View Document Representation Learning for Open-Domain Dense Retrieval" (Zhang et al. 2022):
    `rkit train --pooler viewers --set pooler.viewers=4`.

    Args:
        viewers: Number of viewers per document; a query has one.
        source: Embeddings of the viewers: "new" rows, or vocabulary rows that pre-training left "unused".
        standard_deviation: Standard deviation of the normal distribution from which new embeddings are drawn.
        position: Position number of all viewers; null numbers viewers and text consecutively, like ordinary tokens.
        replace_first: Put viewers in place of the [CLS]-like token (true), or after it (false).
        query_viewer: Give a query a viewer too (true), or use the vector of its [CLS]-like token (false).
        layers: Layers that each contribute one vector per viewer, in any order; 0 = embeddings, -1 = the last. A
            document has viewers x layers vectors, highest layer first; a query has one, from the last layer.
        keep: With several layers, index "all" vectors, or only the "last" layer's; the latter requires one viewer and
            a loss that contrasts its vector with those of the other layers (self_contrastive).
        normalize: L2-normalise every vector. The paper does not.
    """

    def __init__(
        self,
        info: EncoderInfo,
        *,
        viewers: PositiveInt = 8,
        source: Literal["new", "unused"] = "new",
        standard_deviation: PositiveFloat = 0.02,
        position: NonNegativeInt | None = 0,
        replace_first: bool = True,
        query_viewer: bool = True,
        layers: tuple[int, ...] = (-1,),
        keep: Literal["all", "last"] = "all",
        normalize: bool = False,
    ) -> None:
        refuse_idle(locals(), {"standard_deviation": (source == "new", "source")})
        super().__init__()
        self.info = info
        self.viewers = viewers
        self.query_viewer = query_viewer
        self.layers = absolute_layers(layers, info, keep=keep)
        self.keep = keep
        self.normalize = self.cosine = normalize
        if keep == "last" and viewers != 1:
            msg = f"pooler 'viewers' with keep=last needs one viewer, not {viewers}. Set viewers=1, or keep=all."
            raise OptionError(msg)
        counts = {"document": viewers, "query": int(query_viewer)}
        self.extra_tokens = {
            side: ExtraTokens(count, source, standard_deviation, replace_first, position)
            for side, count in counts.items()
            if count
        }

    @property
    def default_loss(self) -> str:  # type: ignore[override]
        """The paper's loss; with keep=last, retrievalkit-mlr's loss, which trains the kept vector."""
        return "self_contrastive" if self.keep == "last" else "global_local"

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Viewers on both sides; the last layer for queries, the indexed or trained layers for documents."""
        layers = {"query": (self.info.layers,), "document": self._document_layers()}
        return Needs(layers=layers, extra_tokens=self.extra_tokens)

    def bind(self, encoder: Encoder) -> None:
        """Refuse an encoder without the [CLS]-like token that the query's vector needs."""
        if self.query_viewer:
            return
        batch = encoder.collate(encoder.tokenize([Text("", "a")], "query"), "query")
        if not bool(batch.special_mask[0, 0]):
            msg = "pooler 'viewers' with query_viewer=false needs a [CLS]-like token, but this encoder adds none. "
            msg += "Leave out query_viewer=false."
            raise UnsupportedError(msg)

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Return (batch, layers x viewers, width) for documents, layer by layer; (batch, 1, width) for queries."""
        positions, layers = states.extra, self._document_layers()
        kept_vector = 0 if self.keep == "last" and side == "document" else None
        if side == "query":
            positions = positions if self.query_viewer else states.first[:, None]
            layers = (self.info.layers,)
        assert positions is not None, "the encoder inserted no extra tokens"
        hidden = torch.stack([states.layers[layer] for layer in layers], dim=1)  # (batch, layers, tokens, width)
        rows = positions[:, None, :, None].expand(-1, len(layers), -1, hidden.shape[3])
        vectors = hidden.gather(2, rows).flatten(1, 2)  # (batch, layers x viewers, width)
        return Representation(nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors, kept=kept_vector)

    def view_names(self, count: int) -> list[str]:
        """Name vectors after their viewers, after their layers if there is one viewer, or after both."""
        names = [f"viewer {viewer}" for viewer in range(self.viewers)]
        if len(self.layers) > 1:
            layers = [f"layer {layer}" for layer in self.layers]
            names = layers if self.viewers == 1 else [f"{layer}, {name}" for layer in layers for name in names]
        return names[:count]

    def _document_layers(self) -> tuple[int, ...]:
        return self.layers[:1] if self.keep == "last" and not self.training else self.layers
