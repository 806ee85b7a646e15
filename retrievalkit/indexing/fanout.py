"""Distributed search: each worker of a Ray cluster searches some segments of an index, and hits are merged.

    rkit search INDEX --ray auto --queries FILE
    rkit serve INDEX --ray auto

The folder must be at the same path on each machine: a shared disk, or copies. Queries are encoded, and hits merged,
where the command runs. If a worker is lost, another opens its segments.
"""

from __future__ import annotations

import itertools
import socket
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit import storage
from retrievalkit.contracts import Allowed, Indexer
from retrievalkit.contracts.cluster import ClusterOptions, workers
from retrievalkit.contracts.workers import Staying
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.indexing.segments import Hits, Lease, Segmented, filled, merged, segments_of
from retrievalkit.registry import trust

if TYPE_CHECKING:
    import numpy as np

_workers: weakref.WeakValueDictionary[ClusterOptions, Staying] = weakref.WeakValueDictionary()
"""Shared by all open indexes of this process, and by the indexes that replace them."""


@dataclass(frozen=True)
class Call:
    """A method call on some segments; the method "" only opens them.

    The manifest is None at first, because the worker may have the segments open; `version` identifies it.
    """

    place: Path
    version: str
    segments: tuple[str, ...]
    options: Mapping[str, Any]
    method: str = ""
    arguments: tuple[Any, ...] = ()
    manifest: Mapping[str, Any] | None = None
    verify: bool = False
    in_recipe: bool = False


class Spread(Segmented):
    """The segments of an index, searched on the workers of a cluster."""

    def __init__(
        self,
        indexer: Indexer,
        folder: Path,
        manifest: Mapping[str, Any],
        options: Mapping[str, Any],
        cluster: ClusterOptions,
    ) -> None:
        self.view, self.segmented = indexer.view, indexer.segmented
        self.indexes = indexer.indexes  # type: ignore[misc]
        self._manifest = manifest
        self._workers = _workers.get(cluster) or _workers.setdefault(cluster, workers(cluster).stay(Holder))
        names = [segment.name for segment in segments_of(manifest)]
        count = min(self._workers.grow(len(names)), len(names))
        place, version = Path(storage.absolute(folder)), storage.fingerprint_value(dict(manifest))
        cuts = [len(names) * part // count for part in range(count + 1)]
        verify, in_recipe = storage.verifies(), trust.in_recipe()
        self._calls = [
            Call(place, version, tuple(names[first:last]), dict(options), verify=verify, in_recipe=in_recipe)
            for first, last in itertools.pairwise(cuts)
        ]
        self._call_all("")

    def search(self, queries: Any, k: int) -> Hits:
        """Return the top-k texts of all segments; ties in segment order, then in the order of each segment."""
        return merged(self._call_all("search", queries, k), k)

    def search_among(self, queries: Any, k: int, allowed: Allowed) -> Hits:
        """Return the top-k allowed texts of all segments."""
        return merged(self._call_all("search_among", queries, k, allowed), k)

    def scores(self, queries: Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return the scores of texts, each from the segment that holds it."""
        return filled(self._call_all("scores", queries, [list(names) for names in ids]), ids)

    def contributions(self, query: Any, ids: Sequence[str]) -> list[dict[str, float]]:
        """Return the indexer's contributions; only for one segment."""
        if len(self._calls) > 1:
            msg = "the contributions of terms are unknown for an index whose segments are searched separately."
            raise UnsupportedError(msg)
        contributions: list[dict[str, float]] = self._call_all("contributions", query, list(ids))[0]
        return contributions

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on all parts."""
        calls = {number: replace(part, method=method, arguments=arguments) for number, part in enumerate(self._calls)}
        answers = self._workers(calls)
        closed = [number for number, answer in answers.items() if answer is None]
        answers |= self._workers({number: replace(calls[number], manifest=self._manifest) for number in closed})
        return [answers[number] for number in range(len(self._calls))]


class Holder:
    """The open segments of a worker."""

    def __init__(self) -> None:
        self._opened: dict[tuple[Path, tuple[str, ...]], tuple[tuple[str, Any], Indexer, Lease]] = {}

    def __call__(self, call: Call) -> Any:
        """Return the result of a call, or None if the manifest is needed."""
        key, state = (call.place, call.segments), (call.version, call.options)
        if key not in self._opened or self._opened[key][0] != state:
            if call.manifest is None:
                return None
            # The state before a change is reopened if a client still requests it.
            self._opened = {
                other: index for other, index in self._opened.items() if other[0] != call.place or index[0] == state
            }
            with (
                storage.verifying() if call.verify else nullcontext(),
                trust.recipe_step() if call.in_recipe else nullcontext(),
            ):
                self._opened[key] = (state, *_opened(call, call.manifest))
        return getattr(self._opened[key][1], call.method)(*call.arguments) if call.method else True


def _opened(call: Call, manifest: Mapping[str, Any]) -> tuple[Indexer, Lease]:
    """Open segments of an index."""
    from retrievalkit.indexing.open_indexes import opened_indexer

    folder, whole = call.place, manifest
    if not folder.is_dir():
        msg = f"on {socket.gethostname()}, '{folder}' is not an index. Copy it there, or index on a shared disk."
        raise ArtifactError(msg)
    if "segments" in manifest:
        entries = [segment for segment in manifest["segments"] if segment["name"] in call.segments]
        manifest = {**manifest, "segments": entries}
    lease = Lease(folder, manifest)
    try:
        # After a change, files of other states may have these names.
        same = storage.read_manifest(folder, "index") == whole
        with nullcontext() if same else storage.verifying():
            return opened_indexer(folder, manifest, call.options), lease
    except ArtifactError as error:
        msg = f"on {socket.gethostname()}: {error}"
        raise ArtifactError(msg) from error
