"""Slice max pooling: from one value for each term of the vocabulary to a few hundred dimensions.

The vocabulary is written row by row into a table of C columns, the ids that are too many left out or the last row
filled up with zeros; a column is a slice of the vocabulary, and its maximum is what is kept of it:

    agg*  (full)    C = 2d; of the columns a = 2n and b = 2n + 1:   agg*[n] = a if a > b, otherwise -b
    agg+  (semi)    C = d;                                           agg+[n] = the maximum of column n

The sign tells which of its two slices a dimension speaks of, so that a term of one does not match a term of the other.
Ties go to the negative side. The gradient goes to the one term that won, and the sign is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from retrievalkit.errors import OptionError

Remainder = Literal["auto", "drop", "pad"]
SliceRule = Literal["strided", "seeded", "same_as_star"]
BERT_VOCABULARY = 30_522
"""The size of BERT's uncased vocabulary, of which about the first 1,000 ids are special or unused."""
DROP_LIMIT = 1_000


@dataclass(frozen=True)
class Table:
    """How a vocabulary is written into columns.

    Attributes:
        vocabulary: How many terms there are.
        columns: How many slices are made of them.
        dropped: So many of the first ids are in no slice.
        padded: So many zeros stand behind the last id.
    """

    vocabulary: int
    columns: int
    dropped: int
    padded: int

    @property
    def rows(self) -> int:
        """How many terms a slice has, zeros included."""
        return (self.vocabulary - self.dropped + self.padded) // self.columns


def table(vocabulary: int, columns: int, *, remainder: Remainder = "auto", drop_limit: int = DROP_LIMIT) -> Table:
    """The table for a vocabulary.

    Args:
        vocabulary: How many terms there are, at least as many as columns.
        columns: How many slices to make.
        remainder: What to do where the columns do not divide the vocabulary: "drop" the first ids, where these are
            few enough, or "pad" the last row with zeros; "auto" drops of BERT's vocabulary and pads any other.
        drop_limit: At most so many ids are dropped; where it would be more, the last row is padded.
    """
    too_many = vocabulary % columns
    if drops(vocabulary, remainder) and too_many <= drop_limit:
        return Table(vocabulary, columns, too_many, 0)
    return Table(vocabulary, columns, 0, -vocabulary % columns)


def check_fits(dimensions: int, vocabulary: int, *, slices: int = 1) -> None:
    """Refuse more dimensions, of so many slices each, than the vocabulary has terms for.

    Raises:
        OptionError: Says how many there can be.
    """
    if dimensions * slices > vocabulary:
        wanted = f"two slices of the vocabulary each, {2 * dimensions} terms at least" if slices == 2 else "a term each"
        msg = (
            f"agg_dim is {dimensions}: so many dimensions want {wanted}, and the vocabulary of this encoder has "
            f"{vocabulary}. Set agg_dim to {vocabulary // slices} or less."
        )
        raise OptionError(msg)


def drops(vocabulary: int, remainder: Remainder) -> bool:
    """Whether ids may be dropped at all."""
    return remainder == "drop" or (remainder == "auto" and vocabulary == BERT_VOCABULARY)


def column_maxima(values: Tensor, table: Table, order: Tensor | None = None) -> Tensor:
    """The maximum of each column.

    Args:
        values: (batch, vocabulary), one value a term.
        table: How the terms stand in columns.
        order: (vocabulary - dropped,) a permutation of the terms that are not dropped, or None for their own order.

    Returns:
        (batch, columns); the gradient of each goes to one of the terms that are its maximum.
    """
    kept = values[:, table.dropped :]
    if order is not None:
        kept = kept[:, order]
    kept = nn.functional.pad(kept, (0, table.padded))
    maxima: Tensor = kept.view(len(kept), table.rows, table.columns).max(dim=1).values
    return maxima


def signed_maxima(columns: Tensor) -> Tensor:
    """agg*: of each pair of columns (batch, 2d), the greater of the first or minus that of the second (batch, d)."""
    first, second = columns[:, 0::2], columns[:, 1::2]
    return torch.where(first > second, first, -second)


def paired_maxima(columns: Tensor) -> Tensor:
    """agg+ as the paper defines it, |agg*|: the greater of each pair of columns (batch, 2d) -> (batch, d)."""
    first, second = columns[:, 0::2], columns[:, 1::2]
    return torch.where(first > second, first, second)


class SlicePooling(nn.Module):
    """Slice max pooling of one vocabulary into a number of dimensions.

    A random order of the terms ("seeded") is stored with the weights, so that what was trained keeps it.
    """

    order: Tensor | None

    def __init__(
        self,
        vocabulary: int,
        dimensions: int,
        *,
        signed: bool = True,
        rule: SliceRule = "strided",
        seed: int = 0,
        remainder: Remainder = "auto",
        drop_limit: int = DROP_LIMIT,
    ) -> None:
        """Slice a vocabulary.

        Args:
            vocabulary: How many terms there are.
            dimensions: How many dimensions to pool them into.
            signed: Whether a dimension has two slices, told apart by the sign (agg*), or one (agg+).
            rule: Which terms make a slice: every so many-th ("strided"), such of a random order ("seeded"), or, for
                agg+, the two slices that agg* has ("same_as_star").
            seed: Of the random order.
            remainder: See `table`.
            drop_limit: See `table`.

        Raises:
            OptionError: There are fewer terms than slices.
        """
        super().__init__()
        self.signed = signed
        self.paired = signed or rule == "same_as_star"
        columns = 2 * dimensions if self.paired else dimensions
        check_fits(dimensions, vocabulary, slices=columns // dimensions)
        self.table = table(vocabulary, columns, remainder=remainder, drop_limit=drop_limit)
        order = None
        if rule == "seeded":
            order = torch.randperm(vocabulary - self.table.dropped, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("order", order)

    def forward(self, values: Tensor) -> Tensor:
        """(batch, dimensions) of the values (batch, vocabulary)."""
        columns = column_maxima(values, self.table, self.order)
        if not self.paired:
            return columns
        return signed_maxima(columns) if self.signed else paired_maxima(columns)

    def place(self, term: int) -> tuple[int, int] | None:
        """The dimension that a term is pooled into and its sign there (1 or -1), or None where it is dropped."""
        position = term - self.table.dropped
        if position < 0:
            return None
        if self.order is not None:
            position = int((self.order == position).nonzero())
        column = position % self.table.columns
        if not self.paired:
            return column, 1
        return column // 2, -1 if self.signed and column % 2 else 1
