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

Remainder = Literal["auto", "drop", "pad"]
SliceRule = Literal["strided", "seeded", "same_as_star"]
BERT_VOCABULARY = 30_522
"""Size of BERT's uncased vocabulary, whose first 1,000 ids or so are special or unused."""
DROP_LIMIT = 1_000


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


def table(vocabulary: int, columns: int, *, remainder: Remainder = "auto", drop_limit: int = DROP_LIMIT) -> Table:
    """Lay out a vocabulary as a table.

    Args:
        vocabulary: Number of terms, at least as many as columns.
        columns: Number of slices.
        remainder: If the columns do not divide the vocabulary: "drop" the first ids, up to `drop_limit`, or "pad" the
            last row with zeros; "auto" drops ids of BERT's vocabulary and pads any other.
        drop_limit: Maximum number of ids to drop; beyond it, the last row is padded.
    """
    surplus = vocabulary % columns
    if drops(vocabulary, remainder) and surplus <= drop_limit:
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


def drops(vocabulary: int, remainder: Remainder) -> bool:
    """True if ids may be dropped at all."""
    return remainder == "drop" or (remainder == "auto" and vocabulary == BERT_VOCABULARY)


class SlicePooling(nn.Module):
    """Slice max pooling of one vocabulary into a number of dimensions.

    A random order of the terms ("seeded") is stored with the weights, because a trained model depends on it.
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
            vocabulary: Number of terms.
            dimensions: Number of dimensions to pool into.
            signed: Two slices per dimension, distinguished by the sign (agg*), or one (agg+).
            rule: Terms in a slice: every n-th by id ("strided"), terms in random order ("seeded"), or, for agg+, the
                two slices of agg* ("same_as_star").
            seed: Seed of the random order.
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
        """Pool values (batch, vocabulary) into (batch, dimensions)."""
        terms = values[:, self.table.dropped :]
        if self.order is not None:
            terms = terms[:, self.order]
        terms = nn.functional.pad(terms, (0, self.table.padded))
        columns: Tensor = terms.view(terms.shape[0], self.table.rows, self.table.columns).max(dim=1).values
        if not self.paired:
            return columns
        first, second = columns[:, 0::2], columns[:, 1::2]
        return torch.where(first > second, first, -second if self.signed else second)
