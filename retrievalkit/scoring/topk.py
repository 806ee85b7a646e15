"""The top-k documents of each query, from scores that arrive tile by tile.

Only scores above a query's current k-th best are examined, and after a few tiles these are rare. They are buffered, and
merged when the buffer is full. Score and document number are packed into one integer key, so that ties need no special
case: of two equal scores, the earlier document has the greater key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievalkit.scoring.bf16_filter import Slack

EXACT = Slack(0.0, 0.0)
_EMPTY = torch.iinfo(torch.int64).min
_LAST = (1 << 32) - 1
_SIGN = 0x7FFFFFFF
_SAMPLE = 2048


class Best:
    """The top-k documents so far, for each of a group of queries."""

    def __init__(self, queries: int, k: int, device: torch.device, least: float) -> None:
        self.k = k
        self.least = least
        self._floor = torch.full((queries, 1), least, device=device)
        self._keys = torch.full((queries, k), _EMPTY, device=device)
        self._hits = torch.empty(0, dtype=torch.bool, device=device)
        self._merged = False
        self._buffered: list[tuple[Tensor, Tensor, Tensor]] = []
        self._counts = torch.zeros(queries, dtype=torch.long, device=device)

    def offer(
        self,
        tile: Tensor,
        first: int,
        documents: Tensor | None = None,
        most: int = 1,
        *,
        slack: Slack = EXACT,
        exact: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        """Add the scores of all queries with the next range of documents.

        Args:
            tile: (queries, columns) scores.
            first: Number of the document in the first column.
            documents: (columns,) the document of each column, counted from `first`, ascending; None = its own number.
            most: Largest number of columns of a document.
            slack: Error bound of the scores.
            exact: Computes the exact scores of (rows, columns).
        """
        enough = self.k * most
        floor = self._floor
        on_cpu = tile.device.type == "cpu"
        if tile.shape[1] > enough and (bool((floor == self.least).any()) if on_cpu else not self._merged):
            # Some query has no k-th document yet, so its floor would let every score through. On a GPU, reading the
            # floors would wait for its kernels.
            floor = _sharper(floor, tile, enough, slack)
        flat = self._sieve(tile, slack.below(floor))
        if tile.shape[1] > enough and len(flat) > 4 * enough * len(tile):
            floor = _sharper(floor, tile, enough, slack)
            flat = self._sieve(tile, slack.below(floor))
        if on_cpu:
            word, byte = self._hits.view(-1, 8)[flat].nonzero(as_tuple=True)
            flat = flat[word] * 8 + byte
        rows = flat // tile.shape[1]
        columns = flat - rows * tile.shape[1]
        if exact is None:
            scores = tile[rows, columns].float()
        else:
            if len(rows) > enough * len(tile):
                rows, columns = _sharpened(rows, columns, tile[rows, columns].float(), enough, slack)
            scores = exact(rows, columns)
            kept = scores > self._floor[rows, 0]
            rows, columns, scores = rows[kept], columns[kept], scores[kept]
        if documents is not None:
            columns = documents[columns]
            scores = _greatest_of_each(rows, columns, scores)
        counts = torch.zeros_like(self._counts).index_add_(0, rows, torch.ones_like(rows))
        # Rows ascend, as `_merge` expects.
        self._buffered.append((rows, _keys(scores, columns + first), counts))
        self._counts += counts
        if 2 * sum(len(rows) for rows, _, _ in self._buffered) > self._keys.numel():
            self._merge()

    def result(self) -> tuple[Tensor, Tensor]:
        """Return scores and documents, (queries, k), best first; -inf and -1 past the last."""
        self._merge()
        keys = torch.sort(self._keys, dim=1, descending=True).values
        empty = keys == _EMPTY
        return _scores(keys).masked_fill(empty, float("-inf")), (_LAST - (keys & _LAST)).masked_fill(empty, -1)

    def _sieve(self, tile: Tensor, floor: Tensor) -> Tensor:
        """Mark the scores above their row's floor in `_hits`; return the marked groups of eight, on a GPU the marks."""
        size = -(-tile.numel() // 8) * 8
        if self._hits.numel() != size:
            self._hits = torch.empty(size, dtype=torch.bool, device=tile.device)
        self._hits[tile.numel() :] = False
        hits = self._hits[: tile.numel()].view(tile.shape)
        if tile.device.type != "cpu":
            torch.gt(tile, floor, out=hits)
            return self._hits.nonzero().squeeze(1)
        if tile.dtype == torch.bfloat16 and bool((floor > 0).all()):
            # The bits of positive floats sort like the floats, and a bf16 has the first half of a float32's bits.
            np.greater(
                tile.view(torch.int16).numpy(),
                (floor.view(torch.int32) >> 16).to(torch.int16).numpy(),
                out=hits.numpy(),
            )
        else:
            # Several times faster than torch.gt, which is not vectorised for this broadcast.
            np.greater(tile.float().numpy(), floor.numpy(), out=hits.numpy())
        # Several times faster than torch.
        return torch.from_numpy(np.flatnonzero(self._hits.view(torch.int64).numpy()))

    def _merge(self) -> None:
        """Merge the buffered keys into the top k."""
        if not self._buffered:
            return
        width = self.k + int(self._counts.max())
        keys = torch.full((len(self._keys), width), _EMPTY, device=self._keys.device)
        keys[:, : self.k] = self._keys
        used = torch.full_like(self._counts, self.k)
        for rows, new, counts in self._buffered:
            # Column within the row: entries written earlier, plus preceding entries of the same row.
            keys[rows, (used - counts.cumsum(0) + counts)[rows] + torch.arange(len(rows), device=rows.device)] = new
            used += counts
        self._keys = _largest(keys, self.k)
        last = self._keys.amin(dim=1, keepdim=True)
        self._floor = _scores(last).clamp(min=self.least).masked_fill(last == _EMPTY, self.least)
        self._merged = True
        self._buffered.clear()
        self._counts.zero_()


def _keys(scores: Tensor, documents: Tensor) -> Tensor:
    """Pack scores and documents into integers that sort by score, then by descending document; -inf is `_EMPTY`."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0, because -0.0 has different bits
    # As integers, the bits of negative floats sort in reverse.
    ordered = bits ^ ((bits >> 31) & _SIGN)
    return ((ordered.long() << 32) + (_LAST - documents)).masked_fill_(scores == float("-inf"), _EMPTY)


def _scores(keys: Tensor) -> Tensor:
    ordered = (keys >> 32).int()
    return (ordered ^ ((ordered >> 31) & _SIGN)).view(torch.float32)


def _largest(keys: Tensor, k: int) -> Tensor:
    """Return the k largest of each row, in any order."""
    if keys.device.type != "cpu":
        return keys.topk(k, dim=1, sorted=False).values
    # numpy's partition is vectorised, torch's topk on a CPU is not.
    partitioned: np.ndarray[Any, Any] = np.partition(keys.numpy(), keys.shape[1] - k, axis=1)
    return torch.from_numpy(np.ascontiguousarray(partitioned[:, -k:]))


def _sharper(floor: Tensor, tile: Tensor, enough: int, slack: Slack) -> Tensor:
    """Return a higher floor, below at least the best `enough` columns of each row."""
    if tile.shape[1] > 8 * max(enough, _SAMPLE):
        # A sample has `enough` columns above the floor only if all columns together do too.
        tile = tile[:, :: tile.shape[1] // (4 * max(enough, _SAMPLE))]
    tile = tile.float()
    if tile.device.type == "cpu":
        place = tile.shape[1] - enough
        least = torch.from_numpy(np.partition(tile.numpy(), place, axis=1)[:, place : place + 1])
    else:
        least = tile.topk(enough, dim=1).values[:, -1:]
    least = slack.below(least)
    return torch.maximum(floor, torch.nextafter(least, torch.full_like(least, float("-inf"))))


def _sharpened(rows: Tensor, columns: Tensor, scores: Tensor, enough: int, slack: Slack) -> tuple[Tensor, Tensor]:
    """Return the entries that may be among the `enough` best of their row; `rows` ascends."""
    counts = torch.bincount(rows)
    wide = torch.full((len(counts), max(enough, int(counts.max()))), float("-inf"))
    wide[rows, torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]] = scores
    place = wide.shape[1] - enough
    least = torch.from_numpy(np.partition(wide.numpy(), place, axis=1)[:, place].copy())
    kept = scores >= slack.below(slack.below(least))[rows]
    return rows[kept], columns[kept]


def _greatest_of_each(rows: Tensor, documents: Tensor, scores: Tensor) -> Tensor:
    """Give the greatest score of each row and document to its first entry, -inf to the others, which are adjacent."""
    new = torch.ones_like(rows, dtype=torch.bool)
    new[1:] = (rows[1:] != rows[:-1]) | (documents[1:] != documents[:-1])
    group = new.cumsum(0) - 1
    greatest = torch.full_like(scores, float("-inf")).scatter_reduce_(0, group, scores, "amax")
    return greatest[group].masked_fill_(~new, float("-inf"))
