"""An indexer with one form of texts, on trial: builds, opens and searches small indexes, and compares the answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from retrievalkit import registry
from retrievalkit.contracts import Indexer
from retrievalkit.errors import UnsupportedError
from retrievalkit.testing.properties import Kit, PropertyError
from retrievalkit.testing.samples import Form, Sample, countries, drawn, opened_source

TEXTS, HITS = 300, 10
_SHOWN = 5

Hits = tuple[list[list[str]], list[np.ndarray]]
"""What `Indexer.search` returns: ids and scores of each query."""


class Built:
    """An index of a sample, built.

    Attributes:
        sample: The texts.
        folder: A folder that holds the source and the index.
        source: What the indexer was given.
        index: The index folder.
        indexer: The indexer that built it.
        counts: What `build` returned.
    """

    def __init__(self, indexer: Indexer, sample: Sample, folder: Path) -> None:
        self.sample, self.folder, self.index, self.indexer = sample, folder, folder / "index", indexer
        self.source = sample.write(folder / "source")
        self.index.mkdir()
        self.counts = indexer.build(opened_source(self.source), self.index)


class IndexerCase:
    """An indexer with one form of texts.

    Args:
        name: Registered name.
        form: Of the texts.
        folder: For the files; a folder that does not exist.
        options: Of the indexer.
        recall: Least share of the best texts that it has to find; below 1, scores may be off by 5 %.
    """

    def __init__(self, name: str, form: Form, folder: Path, options: dict[str, Any], recall: float = 1.0) -> None:
        self.name, self.form, self.folder, self.options, self.recall = name, form, folder, options, recall
        self.label = form
        self.own: Any = None  # a temporary folder, which is there as long as its cases are
        self._number = 0

    def refusal(self) -> str:
        """Why it does not take this form of texts; "" if it does."""
        try:
            self.build(self.sample().first(20))
        except UnsupportedError as error:
            return str(error)
        except Exception:  # noqa: BLE001 - a property will say what it raises
            return ""
        return ""

    def created(self) -> Indexer:
        """A new indexer with the options."""
        made: Indexer = registry.create("indexer", self.name, **self.options)
        return made

    def sample(self, count: int = TEXTS) -> Sample:
        """Texts of the form."""
        return countries() if self.form == "texts" else drawn(self.form, count)

    def only(self, *forms: Form) -> None:
        """Leave a property out if it is one of other forms of texts."""
        if self.form not in forms:
            msg = f"it is a property of indexes of {' and '.join(forms)}."
            raise UnsupportedError(msg)

    @cached_property
    def main(self) -> Built:
        """An index that properties share."""
        return self.build(self.sample())

    @cached_property
    def opened(self) -> Indexer:
        """That index, opened by a new indexer."""
        return self.open(self.main.index)

    @cached_property
    def found(self) -> Hits:
        """Its answers to all queries."""
        return self.search(self.opened, self.main.sample.queries)

    def new_folder(self) -> Path:
        """A folder that does not exist."""
        self.folder.mkdir(exist_ok=True)
        self._number += 1
        return self.folder / f"{self._number:03d}"

    def build(self, sample: Sample) -> Built:
        """Build an index in a folder of its own."""
        return Built(self.created(), sample, self.new_folder())

    def open(self, index: Path) -> Indexer:
        """The index, opened by a new indexer."""
        indexer = self.created()
        indexer.open(index)
        return indexer

    def search(self, indexer: Indexer, queries: Any, k: int = HITS) -> Hits:
        """Search, and check the shape of the answer."""
        found = indexer.search(queries, k)
        if not isinstance(found, tuple) or [len(one) for one in found] != [len(queries)] * 2:
            shape = [len(one) for one in found] if isinstance(found, tuple) else type(found).__name__
            msg = f"search of {len(queries)} queries does not give lists of ids and of scores, one of each a query"
            raise PropertyError(msg, expected=[len(queries)] * 2, found=shape, method="search")
        for row, (ids, scores) in enumerate(zip(*found, strict=True)):
            if len(ids) != len(scores) or not all(isinstance(one, str) for one in ids):
                msg = f"query {row} gets {len(ids)} ids ({shown(ids)}), not all of them strings, or not as many scores"
                raise PropertyError(msg, expected=len(ids), found=len(scores), method="search")
        return found

    def same(self, found: Hits, expected: Hits, when: str, *, method: str = "search") -> None:
        """Fail where two answers to the same queries differ.

        Args:
            found: One.
            expected: The other.
            when: What differs between the two, such as "after the index was copied".
            method: Where to look.
        """
        for row, (ids, known) in enumerate(zip(found[0], expected[0], strict=True)):
            if list(ids) != list(known):
                msg = f"query {row} finds other texts {when}"
                raise PropertyError(msg, expected=shown(known), found=shown(ids), method=method)
            difference = float(np.abs(np.asarray(found[1][row]) - expected[1][row]).max(initial=0))
            if not difference <= self.tolerance(expected[1][row]):
                msg = f"query {row} finds the same texts with other scores {when}"
                raise PropertyError(msg, difference=difference, method=method)

    def tolerance(self, scores: np.ndarray) -> float:
        """How far these scores may be off."""
        largest = float(np.abs(scores).max(initial=0))
        return (0.05 if self.recall < 1 else 1e-4) * largest + 1e-5

    def compare_with_truth(self, found: Hits, sample: Sample, when: str) -> str:
        """Fail where too few of the best texts are found, or scores are not those of the rule; returns the numbers."""
        truth = sample.truth(self.created().view)
        row_of = {one: row for row, one in enumerate(sample.ids)}
        shares, off = [], 0.0
        for row, (ids, scores) in enumerate(zip(*found, strict=True)):
            best = [sample.ids[text] for text in np.argsort(-truth[row], kind="stable")[:HITS]]
            if unknown := [one for one in ids if one not in row_of]:
                msg = f"query {row} finds '{unknown[0]}', which is not in the index ({when})"
                raise PropertyError(msg, method="search")
            shares.append(len(set(ids) & set(best)) / len(best))
            if shares[-1] < 1 and self.recall == 1:
                msg = f"query {row} does not find what brute force finds ({when}); see `recall` if it is approximate"
                raise PropertyError(msg, expected=shown(best), found=shown(ids), method="search")
            exact = truth[row][[row_of[one] for one in ids]]
            difference = np.abs(np.asarray(scores, dtype=np.float64) - exact)
            off = max(off, float(difference.max(initial=0)))
            if not off <= self.tolerance(exact):
                place = int(np.nan_to_num(difference, nan=np.inf).argmax())
                msg = f"query {row} gives '{ids[place]}' another score than the scoring rule ({when})"
                raise PropertyError(msg, expected=float(exact[place]), found=float(scores[place]), method="search")
        share = float(np.mean(shares))
        if share < self.recall:
            msg = f"it finds fewer of the best {HITS} texts than was stated ({when})"
            raise PropertyError(msg, expected=self.recall, found=share, method="search")
        return f"recall@{HITS} {share:.3f}, scores within {off:.0e}"

    @contextmanager
    def elsewhere(self, built: Built) -> Iterator[Path]:
        """A copy of an index in another folder, while the source and the index are not where they were."""
        copied, hidden = self.new_folder(), self.new_folder()
        shutil.copytree(built.index, copied)
        built.folder.rename(hidden)
        try:
            yield copied
        finally:
            hidden.rename(built.folder)


def indexer_cases(
    name: str, *, folder: str | Path | None = None, recall: float = 1.0, **options: Any
) -> list[IndexerCase]:
    """An indexer with each form of texts that it takes: it refuses others with UnsupportedError.

    Args:
        name: Registered name.
        folder: For the files; None = a temporary one.
        recall: Least share of the best texts that it has to find.
        options: Of the indexer.
    """
    own = TemporaryDirectory(prefix="rkit-check-", ignore_cleanup_errors=True) if folder is None else None
    root = Path(folder if own is None else own.name)  # type: ignore[union-attr, arg-type]
    root.mkdir(parents=True, exist_ok=True)
    component: Any = registry.get("indexer", name)
    forms: tuple[Form, ...] = ("vectors", "several", "weights", "both")
    if component.indexes == "texts":
        forms = ("texts",)
    cases, refusals = [], []
    for form in forms:
        case = IndexerCase(name, form, root / form, options, recall)
        case.own = own
        if refusal := case.refusal():
            refusals.append(f"{form}: {refusal}")
        else:
            cases.append(case)
    if not cases:
        msg = f"it takes neither vectors nor weights. {' '.join(refusals)}"
        raise PropertyError(msg, method="build")
    return cases


def shown(ids: Sequence[str]) -> str:
    """The first of some ids."""
    listed = ", ".join(str(one)[:20] for one in ids[:_SHOWN])
    return f"{listed} ..." if len(ids) > _SHOWN else listed or "nothing"


INDEXERS: Kit[IndexerCase] = Kit("indexer", indexer_cases)
"""The properties of indexers. Each form of texts that an indexer takes is a case."""
