"""The pooler `my_name`: from token states to a representation."""

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates


class MyName(Pooler):
    """Takes the state of the first token as a text's one vector.

    Args:
        scale: The vector is multiplied by this.
    """

    needs = Needs(layers=(-1,))

    def __init__(self, info: EncoderInfo, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """The representation of a batch: vectors of (batch, 1, width)."""
        return Representation(vectors=self.scale * states.last[:, :1])
