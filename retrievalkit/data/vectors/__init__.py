"""The vectors/ folder: reading, writing, ids and sparse weights."""

from __future__ import annotations

from retrievalkit.data.vectors.arrays import check_starts, open_array
from retrievalkit.data.vectors.csr import spread
from retrievalkit.data.vectors.ids import Ids
from retrievalkit.data.vectors.joined import JoinedStore
from retrievalkit.data.vectors.store import IDS, VectorBlock, VectorStore, View
from retrievalkit.data.vectors.writer import VectorWriter

__all__ = [
    "IDS", "VectorBlock", "VectorStore", "JoinedStore", "View", "VectorWriter", "Ids", "check_starts", "open_array",
    "spread",
]  # fmt: skip
