"""The compressor `my_name`: documents with fewer vectors."""

from dataclasses import replace

import torch
from pydantic import PositiveInt
from retrievalkit.contracts import Compressor, Representation
from retrievalkit.errors import UnsupportedError


class MyName(Compressor):
    """Keeps the first vectors of each document.

    Args:
        keep: Number of vectors to keep.
    """

    # Keyword-only arguments are the options: typed, documented above, set by --compressor "my_name(keep=4)".
    def __init__(self, *, keep: PositiveInt = 8) -> None:
        self.keep = keep

    def compress(self, documents: Representation) -> Representation:
        """The same documents with fewer vectors; the vectors of `documents` must not be changed."""
        if documents.vectors is None:
            msg = "my_name drops vectors, and this model computes only weights. Leave --compressor out."
            raise UnsupportedError(msg)
        mask = documents.vector_mask  # (documents, m) True = a vector; None = all
        if mask is None:
            mask = torch.ones_like(documents.vectors[:, :, 0], dtype=torch.bool)
        return replace(documents, vector_mask=mask & (mask.cumsum(dim=1) <= self.keep))
