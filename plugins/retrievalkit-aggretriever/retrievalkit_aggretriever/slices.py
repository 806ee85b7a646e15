"""Slice max pooling: from one value per term of the vocabulary to a few hundred dimensions.

The vocabulary is written row by row into a table of C columns; the ids that do not fit are left out, or the last row is
padded with zeros. A column is a slice of the vocabulary, and only its maximum is kept:

    agg*  (full)    C = 2d; of the columns a = 2n and b = 2n + 1:   agg*[n] = a if a > b, otherwise -b
    agg+  (semi)    C = d;                                           agg+[n] = the maximum of column n

The sign shows which of its two slices the value of a dimension comes from, so terms of different slices do not match.
Ties are negative. The gradient flows to the term of the maximum; the sign is treated as a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from retrievalkit.errors import OptionError

SliceRule = Literal["strided", "same_as_star"]
BERT_VOCABULARY = 30_522
"""Size of BERT's uncased vocabulary, whose first 1,000 ids or so are special or unused."""
_MOST_DROPPED = 1_000


@dataclass(frozen=True)
class Table:
    """Layout of a vocabulary in columns.

    Attributes:
        vocabulary: Number of terms.
        columns: Number of slices.
        dropped: Number of first ids that are in no slice.
        padded: Number of zeros after the last id.
    """

    vocabulary: int
    columns: int
    dropped: int
    padded: int

    @property
    def rows(self) -> int:
        """Number of terms in a slice, zeros included."""
        return (self.vocabulary - self.dropped + self.padded) // self.columns


def table(vocabulary: int, columns: int) -> Table:
    """Lay out a vocabulary of at least as many terms as columns.

    If the columns do not divide it, the first ids of BERT's vocabulary are dropped, up to 1,000; for more, and for any
    other vocabulary, the last row is padded with zeros.
    """
    surplus = vocabulary % columns
    if vocabulary == BERT_VOCABULARY and surplus <= _MOST_DROPPED:
        return Table(vocabulary, columns, surplus, 0)
    return Table(vocabulary, columns, 0, -vocabulary % columns)


def check_fits(dimensions: int, vocabulary: int, *, slices: int = 1) -> None:
    """Refuse more dimensions, of `slices` slices each, than the vocabulary can fill.

    Raises:
        OptionError: The vocabulary is too small; names the largest possible number.
    """
    if dimensions * slices > vocabulary:
        msg = (
            f"agg_dim is {dimensions}, which needs at least {slices * dimensions} terms, but the vocabulary of this "
            f"encoder has {vocabulary}. Set agg_dim to {vocabulary // slices} or less."
        )
        raise OptionError(msg)


class SlicePooling(nn.Module):
    """Slice max pooling of one vocabulary into a number of dimensions."""

    def __init__(self, vocabulary: int, dimensions: int, *, signed: bool = True, rule: SliceRule = "strided") -> None:
        """Slice a vocabulary.

        Args:
            vocabulary: Number of terms.
            dimensions: Number of dimensions to pool into.
            signed: Two slices per dimension, distinguished by the sign (agg*), or one (agg+).
            rule: Terms in a slice: every n-th by id ("strided"), or, for agg+, the two slices of agg* ("same_as_star").

        Raises:
            OptionError: There are fewer terms than slices.
        """
        super().__init__()
        self.signed = signed
        self.paired = signed or rule == "same_as_star"
        columns = 2 * dimensions if self.paired else dimensions
        check_fits(dimensions, vocabulary, slices=columns // dimensions)
        self.table = table(vocabulary, columns)

    def forward(self, values: Tensor) -> Tensor:
        """Pool values (batch, vocabulary) into (batch, dimensions)."""
        terms = nn.functional.pad(values[:, self.table.dropped :], (0, self.table.padded))
        columns: Tensor = terms.view(terms.shape[0], self.table.rows, self.table.columns).max(dim=1).values
        if not self.paired:
            return columns
        first, second = columns[:, 0::2], columns[:, 1::2]
        return torch.where(first > second, first, -second if self.signed else second)
