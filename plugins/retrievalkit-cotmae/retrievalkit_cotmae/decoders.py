"""The decoders of CoT-MAE v2: one layer each, so weak that they have to rely on the vector in their first place.

Both are given the embeddings of a text with a vector of another text in the place of [CLS], and make the states from
which the encoder's vocabulary head predicts tokens. Their layers have the encoder's heads, activation and dropout.

    AE  each place sees all:             layers as BERT's (the norm behind)
    AR  each place sees what it follows: layers as GPT-2's (dropout, the norm in front, a last norm)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from retrievalkit.contracts import LayerShape

_DEVIATION = 0.02
_RESIDUAL_OUTPUTS = ("out_proj.weight", "linear2.weight")


class Decoder(nn.Module):
    """Layers over embeddings whose first place holds a vector.

    Args:
        width: Of the states.
        shape: Of the layers.
        layers: How many.
        causal: Whether a place sees itself and those in front of it alone (AR), or all (AE).
        positions: Most tokens of a text, where the decoder is to have positions of its own, for embeddings that do not
            tell them; 0 = none.
    """

    def __init__(self, width: int, shape: LayerShape, *, layers: int, causal: bool, positions: int = 0) -> None:
        super().__init__()
        self.causal = causal
        self.positions = nn.Embedding(positions, width) if positions else None
        self.dropout = nn.Dropout(shape.dropout) if causal else nn.Identity()
        self.layers = nn.ModuleList(_layer(width, shape, norm_first=causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if causal else nn.Identity()
        self._initialise()

    def forward(self, vectors: Tensor, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        """The states from which tokens are predicted.

        Args:
            vectors: (batch, width), what stands in the first place, as it is.
            embeddings: (batch, tokens, width) of a text.
            attention_mask: (batch, tokens), 1 = a real token, padding behind.

        Returns:
            (batch, tokens, width).
        """
        rest = embeddings[:, 1:]
        if self.positions is not None:
            rest = rest + self.positions.weight[1 : embeddings.shape[1]]
        states: Tensor = self.dropout(torch.cat([vectors[:, None].to(rest.dtype), rest], dim=1))
        masks = self._masks(attention_mask)
        for layer in self.layers:
            states = layer(states, **masks)
        decoded: Tensor = self.norm(states)
        return decoded

    def _masks(self, attention_mask: Tensor) -> dict[str, Any]:
        """What is not seen, as torch's layers call it."""
        if not self.causal:
            return {"src_key_padding_mask": ~attention_mask.bool()}
        # Padding is behind the text, so no place of the text sees it anyway.
        tokens = attention_mask.shape[1]
        ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=attention_mask.device).triu(diagonal=1)
        return {"src_mask": ahead, "is_causal": True}

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:  # else it is of a norm, which starts at 1
                # As in GPT-2, what is added to the stream of states starts small.
                small = self.causal and name.endswith(_RESIDUAL_OUTPUTS)
                nn.init.normal_(parameter, std=_DEVIATION / (2 * len(self.layers)) ** 0.5 if small else _DEVIATION)


def _layer(width: int, shape: LayerShape, *, norm_first: bool) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        width, shape.heads, shape.inner, shape.dropout, shape.activation, batch_first=True, norm_first=norm_first
    )
    layer.self_attn.dropout = shape.attention_dropout
    # Inside the feed-forward part, where neither BERT nor GPT-2 drops.
    layer.dropout = nn.Identity()  # type: ignore[assignment]
    return layer
