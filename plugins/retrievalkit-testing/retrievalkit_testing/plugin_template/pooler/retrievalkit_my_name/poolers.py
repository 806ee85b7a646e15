"""The pooler `my_name`: computes a representation from token states."""

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates
from torch.nn import functional


class MyName(Pooler):
    """Mean pooling: the mean of a text's token states as its single vector.

    Args:
        normalize: True to L2-normalise vectors, so that inner products are cosines.
    """

    # The encoder computes only the layers requested here: -1 is the last layer, 0 the embeddings.
    needs = Needs(layers=(-1,))

    # Keyword-only arguments are the options: typed, documented above, set by --set pooler.normalize=true.
    def __init__(self, info: EncoderInfo, *, normalize: bool = False) -> None:
        super().__init__()
        # Losses of cosines default to the temperature 0.05.
        self.normalize = self.cosine = normalize

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """The representation of a batch: vectors of (batch, 1, width)."""
        hidden = states.last  # (batch, tokens, width)
        # Padding may be at either end, and must have no effect.
        mask = states.attention_mask[..., None].to(hidden.dtype)  # (batch, tokens, 1)
        vectors = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors=vectors[:, None])
