"""The decoders of CoT-MAE v2: one layer each, so weak that they must rely on the vector at the first position.

Both take the embeddings of a text with [CLS] replaced by a vector of another text, and produce the states from which
the encoder's vocabulary head predicts tokens. Their layers use the encoder's number of heads, activation and dropout.

    AE  each position attends to all positions:               layers as in BERT (post-norm)
    AR  each position attends to itself and those before it:  layers as in GPT-2 (input dropout, pre-norm, final norm)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from retrievalkit.contracts import LayerShape

_DEVIATION = 0.02
_RESIDUAL_OUTPUTS = ("out_proj.weight", "linear2.weight")


class Decoder(nn.Module):
    """Transformer layers over embeddings whose first position holds a vector.

    Args:
        width: Width of the states.
        shape: Shape of the layers.
        layers: Number of layers.
        causal: A position attends to itself and preceding positions (AR), or, if False, to all positions (AE).
        positions: Maximum number of tokens per text for which the decoder learns position embeddings, needed if the
            encoder's embeddings carry no position; 0 = no position embeddings.
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
        """Compute the states from which tokens are predicted.

        Args:
            vectors: (batch, width), used unchanged at the first position.
            embeddings: (batch, tokens, width), the embeddings of the text.
            attention_mask: (batch, tokens), 1 = real token; padding must be on the right.

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
        return self.norm(states)  # type: ignore[no-any-return]

    def _masks(self, attention_mask: Tensor) -> dict[str, Any]:
        """Return the attention masks, as keyword arguments of torch's layers."""
        if not self.causal:
            return {"src_key_padding_mask": ~attention_mask.bool()}
        # Padding is on the right, so the causal mask already hides it from every position of the text.
        tokens = attention_mask.shape[1]
        ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=attention_mask.device).triu(diagonal=1)
        return {"src_mask": ahead, "is_causal": True}

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:  # otherwise it belongs to a norm, which torch initialises to 1
                # As in GPT-2, projections into the residual stream start small, so that depth does not inflate it.
                small = self.causal and name.endswith(_RESIDUAL_OUTPUTS)
                nn.init.normal_(parameter, std=_DEVIATION / (2 * len(self.layers)) ** 0.5 if small else _DEVIATION)


def _layer(width: int, shape: LayerShape, *, norm_first: bool) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        width, shape.heads, shape.inner, shape.dropout, shape.activation, batch_first=True, norm_first=norm_first
    )
    layer.self_attn.dropout = shape.attention_dropout
    # torch applies this dropout between the feed-forward layers, where neither BERT nor GPT-2 applies any.
    layer.dropout = nn.Identity()  # type: ignore[assignment]
    return layer
