"""The k best documents of each query, out of scores that come tile by tile.

Only what beats a query's k-th document so far is looked at, which soon is little, and it is sorted in only when enough
has come together. A score and a document's place make one number to compare by, so that ties need no care: of equal
scores the earlier document is the greater number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_EMPTY = torch.iinfo(torch.int64).min
_LAST = (1 << 32) - 1
_SIGN = 0x7FFFFFFF
_SAMPLE = 2048


class Best:
    """The k best documents of some queries so far.

    Args:
        queries: How many queries.
        k: Documents of each.
        device: Where the scores are.
        least: A score that a document must be above.
    """

    def __init__(self, queries: int, k: int, device: torch.device, least: float) -> None:
        self.k = k
        self.least = least
        self._floor = torch.full((queries, 1), least, device=device)
        self._keys = torch.full((queries, k), _EMPTY, device=device)
        self._hits = torch.empty(0, dtype=torch.bool, device=device)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._counts = torch.zeros(queries, dtype=torch.long, device=device)

    def offer(self, tile: Tensor, first: int, documents: Tensor | None = None, most: int = 1) -> None:
        """Take note of the scores of all queries with some documents, later ones than before.

        Args:
            tile: (queries, columns) scores.
            first: Which document the first column is.
            documents: (columns,) the document of each column, counted from `first`, ascending; None = its own number.
            most: Columns that a document can have.
        """
        enough = self.k * most
        floor = self._floor
        if tile.shape[1] > enough and bool((floor == self.least).any()):
            # No k-th document is known yet for some query, so that everything would be looked at.
            floor = _sharper(floor, tile, enough)
        words = self._sieve(tile, floor)
        if tile.shape[1] > enough and len(words) > 4 * enough * len(tile):
            words = self._sieve(tile, _sharper(floor, tile, enough))
        word, byte = self._hits.view(-1, 8)[words].nonzero(as_tuple=True)
        flat = words[word] * 8 + byte
        rows = flat // tile.shape[1]
        columns = flat - rows * tile.shape[1]
        scores = tile[rows, columns]
        if documents is not None:
            rows, columns, scores = _greatest_of_each(rows, documents[columns], scores)
        self._wait(rows, _keys(scores, columns + first))

    def result(self) -> tuple[Tensor, Tensor]:
        """(queries, k) float32 scores, descending, and (queries, k) documents; -inf and -1 where there are fewer."""
        self._settle()
        keys = torch.sort(self._keys, dim=1, descending=True).values
        empty = keys == _EMPTY
        return _scores(keys).masked_fill(empty, float("-inf")), (_LAST - (keys & _LAST)).masked_fill(empty, -1)

    def _sieve(self, tile: Tensor, floor: Tensor) -> Tensor:
        """Mark in `_hits` what is above its row's floor; returns the numbers of the groups of eight with a mark."""
        size = -(-tile.numel() // 8) * 8
        if self._hits.numel() != size:
            self._hits = torch.empty(size, dtype=torch.bool, device=tile.device)
        self._hits[tile.numel() :] = False
        hits = self._hits[: tile.numel()].view(tile.shape)
        if tile.device.type == "cpu":
            # Several times faster than torch's, which does not use the processor's vector instructions here.
            np.greater(tile.numpy(), floor.numpy(), out=hits.numpy())
        else:
            torch.gt(tile, floor, out=hits)
        return self._hits.view(torch.int64).nonzero().squeeze(1)

    def _wait(self, rows: Tensor, keys: Tensor) -> None:
        """Set aside the keys of these queries; `rows` ascends."""
        self._waiting.append((rows, keys))
        self._counts += torch.bincount(rows, minlength=len(self._counts))
        if 2 * sum(len(one) for one, _ in self._waiting) > self._keys.numel():
            self._settle()

    def _settle(self) -> None:
        """Keep the k best of what was best and what is waiting."""
        if not self._waiting:
            return
        width = self.k + int(self._counts.max())
        keys = torch.full((len(self._keys), width), _EMPTY, device=self._keys.device)
        keys[:, : self.k] = self._keys
        used = torch.full_like(self._counts, self.k)
        for rows, new in self._waiting:
            counts = torch.bincount(rows, minlength=len(used))
            # The place in its row: what is used there, and how many of this row stand before it.
            keys[rows, (used - counts.cumsum(0) + counts)[rows] + torch.arange(len(rows), device=rows.device)] = new
            used += counts
        self._keys = _largest(keys, self.k)
        last = self._keys.amin(dim=1, keepdim=True)
        self._floor = _scores(last).clamp(min=self.least).masked_fill(last == _EMPTY, self.least)
        self._waiting.clear()
        self._counts.zero_()


def _keys(scores: Tensor, documents: Tensor) -> Tensor:
    """Numbers in the order of the scores, and where these are equal, against the order of the documents."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0, because -0.0 has other bits
    # The bits of a negative number rise as it falls.
    ordered = bits ^ ((bits >> 31) & _SIGN)
    return (ordered.long() << 32) + (_LAST - documents)


def _scores(keys: Tensor) -> Tensor:
    ordered = (keys >> 32).int()
    return (ordered ^ ((ordered >> 31) & _SIGN)).view(torch.float32)


def _largest(keys: Tensor, k: int) -> Tensor:
    """(rows, k): the k greatest of each row, in any order."""
    if keys.device.type != "cpu":
        return keys.topk(k, dim=1, sorted=False).values
    # numpy's partition uses the processor's vector instructions.
    parted: np.ndarray[Any, Any] = np.partition(keys.numpy(), keys.shape[1] - k, axis=1)
    return torch.from_numpy(np.ascontiguousarray(parted[:, -k:]))


def _sharper(floor: Tensor, tile: Tensor, enough: int) -> Tensor:
    """A floor that each row's best columns, at least `enough`, are above."""
    if tile.shape[1] > 8 * max(enough, _SAMPLE):
        # What is enough among some columns is enough among all.
        tile = tile[:, :: tile.shape[1] // (4 * max(enough, _SAMPLE))]
    if tile.device.type == "cpu":
        place = tile.shape[1] - enough
        least = torch.from_numpy(np.partition(tile.numpy(), place, axis=1)[:, place : place + 1])
    else:
        least = tile.topk(enough, dim=1).values[:, -1:]
    return torch.maximum(floor, torch.nextafter(least, torch.full_like(least, float("-inf"))))


def _greatest_of_each(rows: Tensor, documents: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One entry for each row and document; the entries of a document are next to each other."""
    if not len(rows):
        return rows, documents, scores
    new = torch.ones_like(rows, dtype=torch.bool)
    new[1:] = (rows[1:] != rows[:-1]) | (documents[1:] != documents[:-1])
    group = new.cumsum(0) - 1
    greatest = torch.full((int(group[-1]) + 1,), float("-inf"), device=scores.device)
    greatest.scatter_reduce_(0, group, scores, "amax")
    return rows[new], documents[new], greatest
