"""ColBERTer's vectors: a vector for each distinct word of a text, and a gate with which documents drop words.

After Hofstätter, Khattab, Althammer, Sertkan and Hanbury 2022, "Introducing Neural Bag of Whole-Words with ColBERTer:
Contextualized Late Interactions using Enhanced Reduction" (arXiv:2203.13088). With h_i the last state of token i:

    v_i = W h_i + b                                       a smaller vector for each token
    u_w = mean of v_i over all tokens i of the word w     BOW2: the bag of unique whole words
    r_w = relu(g . u_w + c)                               the gate of a document's word: a contextualized stopword has 0
    d_w = r_w u_w                                         the indexed vector, if r_w > 0;  a query has q_w = u_w

Two texts are compared as in ColBERT: the sum over the query's words of the best word of the document. The loss
`stopwords` closes gates.
"""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from retrievalkit.contracts import Encoder, EncoderInfo, Needs, Pooler, Representation, Side, TokenStates
from retrievalkit.scoring.lexical import text_mask
from retrievalkit_colberter.words import continuing, mean_by_word, word_numbers

GATE = "gate"
"""The part of the vectors that the loss `stopwords` reads: the last column, which is 0 in queries."""


class ColBERTer(Pooler):
    """ColBERTer, late interaction over whole words: a vector per distinct word; gates let documents drop words.

    `rkit train --pooler colberter`, without ColBERTer's [CLS] vector. With gates, each vector has an additional column
    for the loss: the gate, which is 0 in queries and so does not affect scores. A document whose gates are all closed
    keeps its first word. [CLS] and [SEP] have no vectors.

    Args:
        dimension: Size of the vectors.
        whole_words: Share a vector between the pieces of a word and its repetitions; false: one vector per token.
        gate: Let documents drop words.
    """

    continues: Tensor

    def __init__(
        self, info: EncoderInfo, *, dimension: PositiveInt = 32, whole_words: bool = True, gate: bool = True
    ) -> None:
        super().__init__()
        self.whole_words = whole_words
        self.needs = Needs(layers=(-1,))
        self.projection = nn.Linear(info.width, dimension)
        self.gate = nn.Linear(dimension, 1) if gate else None
        if self.gate is not None:
            nn.init.ones_(self.gate.bias)  # all open at first, as in the released code
        # Not stored: `bind` reads it from the loaded encoder, which has the same vocabulary.
        self.register_buffer("continues", torch.zeros(info.vocabulary_size, dtype=torch.bool), persistent=False)

    @property
    def default_loss(self) -> str:  # type: ignore[override]
        """Contrastive loss; with gates, plus their regulariser."""
        return "contrastive" if self.gate is None else "contrastive+stopwords"

    def bind(self, encoder: Encoder) -> None:
        """Look up the tokens that continue a word."""
        if self.whole_words:
            self.continues = continuing(encoder)

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Compute vectors (batch, words, dimension) and their mask; with gates, with an additional column."""
        mask = text_mask(states)
        # Masked first, because states at padding may be infinite.
        hidden = states.last.masked_fill(~mask[:, :, None], 0.0)  # (batch, tokens, width)
        numbers = word_numbers(states.input_ids, mask, self.continues if self.whole_words else None)
        words, real = mean_by_word(self.projection(hidden), numbers)
        if self.gate is None:
            return Representation(words, _at_least_one(real))
        gates = words.new_zeros(real.shape)
        if side == "document":
            gates = self.gate(words)[:, :, 0].relu().to(words.dtype).masked_fill(~real, 0.0)  # (batch, words)
            words, real = gates[:, :, None] * words, real & (gates > 0)
        dimension = words.shape[2]
        parts = {"words": slice(0, dimension), GATE: slice(dimension, dimension + 1)}
        return Representation(torch.cat([words, gates[:, :, None]], dim=2), _at_least_one(real), parts=parts)


def _at_least_one(mask: Tensor) -> Tensor:
    """Add to the mask (batch, words) the first word of texts that have none."""
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    return torch.where(mask.any(dim=1, keepdim=True), mask, first)
