"""The conformance tests of indexers: results, folders, processes, texts, and detection of damage."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import shutil
import tracemalloc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

import numpy as np
import torch

import retrievalkit as rk
from retrievalkit import registry, scoring
from retrievalkit.contracts import Allowed, Indexer, Representation
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.vectors import JoinedStore, VectorStore, VectorWriter
from retrievalkit.errors import InputError, RetrievalkitError, UnsupportedError
from retrievalkit_testing.processes import started
from retrievalkit_testing.properties import Kit, accepted, fail, leave_out
from retrievalkit_testing.samples import COUNTRIES

DIM, TERMS = 16, 30
MANIFEST = "manifest.json"

Form = Literal["vectors", "several", "weights", "both", "texts"]
"""Kinds of texts: one vector, one to three vectors, weights, a vector and weights, or words."""

ODD_IDS = (
    "with space", "a/b/../c", "..", "\u00fcn\u00efc\u00f6d\u00e9", "\u6f22\u5b57", "\U0001f642", "-1", "007", "7",
    "'quoted'", '"quoted"', "a,b;c", "null", "x" * 300, "%20", "back\\nslash", "[1]", "*", "\uff21", "\u00e9",
    "e\u0301", "a\u00a0b", "Id", "ID",
)  # fmt: skip
"""Ids that a store or a query language may misinterpret; two of them look the same."""


@dataclass
class Sample:
    """Texts to index, and queries to search them."""

    form: Form
    ids: list[str]
    texts: Any
    queries: Any
    cuts: Sequence[int] = field(default_factory=tuple)

    def __len__(self) -> int:
        return len(self.ids)

    def asked(self, rows: slice) -> Any:
        """A slice of the queries."""
        return self.queries[rows] if self.form == "texts" else self.queries.rows(rows)

    def first(self, count: int) -> Sample:
        """The same sample with only the first texts."""
        texts = self.texts[:count] if self.form == "texts" else self.texts.rows(slice(0, count))
        return replace(self, ids=self.ids[:count], texts=texts)

    def truth(self, view: str = "all") -> np.ndarray:
        """(queries, texts) float32: the scores of all texts by the scoring rule."""
        queries, texts = self.queries, self.texts
        if view != "all":
            other = "weights" if view == "vectors" else "vectors"
            queries, texts = (replace(one, **{other: None}) for one in (queries, texts))
        return scoring.scores(queries, texts).numpy()

    def write(self, folder: Path) -> Path:
        """Write the indexer's input, a vectors/ folder or a corpus file, to a new folder; returns its path."""
        import scipy.sparse

        folder.mkdir(parents=True)
        if self.form == "texts":
            rows = zip(self.ids, self.texts, strict=True)
            lines = [json.dumps({"_id": one, "title": title, "text": text}) + "\n" for one, (title, text) in rows]
            (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
            return folder / "corpus.jsonl"
        writer = VectorWriter(folder)
        edges = [0, *self.cuts, len(self.ids)]
        for shard, (start, end) in enumerate(itertools.pairwise(edges)):
            part = self.texts.rows(slice(start, end))
            vectors, mask, weights = part.vectors, part.vector_mask, part.weights
            writer.write_shard(
                shard,
                self.ids[start:end],
                None if vectors is None else (vectors if mask is None else vectors[mask]).numpy(),
                counts=None if mask is None else mask.sum(1).numpy(),
                weights=None if weights is None else scipy.sparse.csr_matrix(weights.numpy()),
            )
        writer.finish()
        return folder


def drawn(form: Form, count: int, *, queries: int = 8, seed: int = 0) -> Sample:
    """Random texts `t0`, `t1` ... and queries, without ties among the scores of a query.

    Weights are multiples of 1/255 and at most 1, so an index that rounds them to 8 bits loses nothing.
    """
    random = np.random.default_rng(seed)
    names = [f"t{row}" for row in range(count)]
    sides = []
    for rows, most in ((count, 3 if form == "several" else 1), (queries, 2 if form == "several" else 1)):
        made: dict[str, Any] = {}
        if form != "weights":
            made["vectors"] = torch.from_numpy(random.standard_normal((rows, most, DIM), dtype=np.float32))
        if form == "several":
            many = torch.from_numpy(random.integers(1, most + 1, rows))
            many[0] = most
            made["vector_mask"] = torch.arange(most) < many[:, None]
        if form in ("weights", "both"):
            levels = random.integers(0, 256, (rows, TERMS))
            made["weights"] = torch.from_numpy((levels * (levels > 127) / 255).astype(np.float32))
        sides.append(Representation(**made))
    return Sample(form, names, sides[0], sides[1])


def tied(form: Form) -> Sample:
    """Twelve texts in groups of four equal texts, whose ids are not in text order; sums are exact.

    For the first query, all scores are equal.
    """
    kinds = torch.tensor([2, 0, 1] * 4)
    # Zeros and ones, so that rounding to a few bits does not make different groups equal.
    numbers = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
    asked = torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 0.0, 1.0]])

    def side(rows: torch.Tensor) -> Representation:
        wide, pad = rows.shape[1], torch.nn.functional.pad
        vectors = None if form == "weights" else pad(rows, (0, DIM - wide))[:, None]
        return Representation(vectors, weights=pad(rows, (0, TERMS - wide)) if form in ("weights", "both") else None)

    ids = [f"t{number}" for number in (7, 3, 11, 0, 9, 4, 1, 10, 6, 2, 8, 5)]
    return Sample(form, ids, side(numbers[kinds]), side(asked))


def countries() -> Sample:
    """A passage about each country; the queries ask for capitals and currencies, in words of a passage."""
    rows = [[word.replace("-", " ") for word in line.split()] for line in COUNTRIES.split("|")]
    texts = [
        (country, f"The seat of government is {capital}, people pay with the {currency}, and speak {language}.")
        for country, capital, currency, language in rows
    ]
    queries = [f"which country has its government in {capital}" for _, capital, _, _ in rows[:12]]
    return Sample("texts", [f"c{row}" for row in range(len(rows))], texts, queries)


TEXTS, HITS = 300, 10
_SHOWN = 5

Hits = tuple[list[list[str]], list[np.ndarray]]
"""The result of `Indexer.search`: ids and scores of each query."""


class Built:
    """An index built from a sample."""

    def __init__(self, indexer: Indexer, sample: Sample, folder: Path) -> None:
        self.sample, self.folder, self.index, self.indexer = sample, folder, folder / "index", indexer
        self.source = sample.write(folder / "source")
        self.index.mkdir()
        opened: Any = VectorStore(self.source) if self.source.is_dir() else open_corpus(self.source)
        self.counts = indexer.build(opened, self.index)


class IndexerCase:
    """An indexer with one kind of texts."""

    def __init__(self, name: str, form: Form, folder: Path, options: dict[str, Any], recall: float = 1.0) -> None:
        self.name, self.form, self.folder, self.options, self.recall = name, form, folder, options, recall
        self.label: str = form
        self._number = 0

    def created(self) -> Indexer:
        """A new indexer with the options."""
        made: Indexer = registry.create("indexer", self.name, **self.options)
        return made

    def sample(self, count: int = TEXTS) -> Sample:
        """Texts of this kind."""
        return countries() if self.form == "texts" else drawn(self.form, count)

    def only(self, *forms: Form) -> None:
        """Skip a property if it applies to other kinds of texts."""
        if self.form not in forms:
            leave_out(f"it is a property of indexes of {' and '.join(forms)}.")

    @cached_property
    def main(self) -> Built:
        """An index shared by properties."""
        return self.build(self.sample())

    @cached_property
    def first_found(self) -> Hits:
        """Its results for all queries, from the indexer that built it."""
        self.main.indexer.open(self.main.index)
        return self.search(self.main.indexer, self.main.sample.queries)

    @cached_property
    def opened(self) -> Indexer:
        """The shared index, opened by a new indexer."""
        return self.open(self.main.index)

    @cached_property
    def found(self) -> Hits:
        """Its results for all queries."""
        return self.search(self.opened, self.main.sample.queries)

    def new_folder(self) -> Path:
        """A path that does not exist yet."""
        self.folder.mkdir(exist_ok=True)
        self._number += 1
        return self.folder / f"{self._number:03d}"

    def build(self, sample: Sample) -> Built:
        """Build an index in a new folder."""
        return Built(self.created(), sample, self.new_folder())

    def open(self, index: Path) -> Indexer:
        """Open the index with a new indexer."""
        indexer = self.created()
        indexer.open(index)
        return indexer

    def indexed(self, source: Path, output: Path) -> Indexer:
        """Run `rkit index`, which writes a manifest, and open the index with a new indexer."""
        rk.index(str(source), indexer=self.name, output=str(output), indexer_options=self.options)
        rk.Index.open(output)
        return self.open(output)

    def search(self, indexer: Indexer, queries: Any, k: int = HITS) -> Hits:
        """Search, and check the shape of the result."""
        found = indexer.search(queries, k)
        if not isinstance(found, tuple) or [len(one) for one in found] != [len(queries)] * 2:
            shape = [len(one) for one in found] if isinstance(found, tuple) else type(found).__name__
            problem = f"search of {len(queries)} queries does not give lists of ids and of scores, one of each a query"
            fail(problem, expected=[len(queries)] * 2, found=shape)
        for row, (ids, scores) in enumerate(zip(*found, strict=True)):
            if len(ids) != len(scores) or not all(isinstance(one, str) for one in ids):
                problem = (
                    f"query {row} gets {len(ids)} ids ({shown(ids)}), not all of them strings, or not as many scores"
                )
                fail(problem, expected=len(ids), found=len(scores))
        return found

    def same(self, found: Hits, expected: Hits, when: str, *, method: str = "search", slack: float = 1) -> None:
        """Fail if two results of the same queries differ, or scores by more than `slack` times the tolerance."""
        for row, (ids, known) in enumerate(zip(found[0], expected[0], strict=True)):
            if list(ids) != list(known):
                fail(f"query {row} finds other texts {when}", expected=shown(known), found=shown(ids), method=method)
            difference = float(np.abs(np.asarray(found[1][row]) - expected[1][row]).max(initial=0))
            if not difference <= slack * self.tolerance(expected[1][row]):
                fail(f"query {row} finds the same texts with other scores {when}", difference=difference, method=method)

    def tolerance(self, scores: np.ndarray) -> float:
        """The tolerance for these scores."""
        largest = float(np.abs(scores).max(initial=0))
        return (0.05 if self.recall < 1 else 1e-4) * largest + 1e-5

    def compare_with_truth(self, found: Hits, sample: Sample, when: str) -> str:
        """Fail if too few of the best texts are found, or scores break the scoring rule; returns the numbers."""
        truth = sample.truth(self.created().view)
        row_of = {one: row for row, one in enumerate(sample.ids)}
        shares, off = [], 0.0
        for row, (ids, scores) in enumerate(zip(*found, strict=True)):
            best = [sample.ids[text] for text in np.argsort(-truth[row], kind="stable")[:HITS]]
            if unknown := [one for one in ids if one not in row_of]:
                fail(f"query {row} finds '{unknown[0]}', which is not in the index ({when})")
            shares.append(len(set(ids) & set(best)) / len(best))
            if shares[-1] < 1 and self.recall == 1:
                problem = (
                    f"query {row} does not find what brute force finds ({when}); see `recall` if it is approximate"
                )
                fail(problem, expected=shown(best), found=shown(ids))
            exact = truth[row][[row_of[one] for one in ids]]
            difference = np.abs(np.asarray(scores, dtype=np.float64) - exact)
            off = max(off, float(difference.max(initial=0)))
            if not off <= self.tolerance(exact):
                place = int(np.nan_to_num(difference, nan=np.inf).argmax())
                problem = f"query {row} gives '{ids[place]}' another score than the scoring rule ({when})"
                fail(problem, expected=float(exact[place]), found=float(scores[place]))
        share = float(np.mean(shares))
        if share < self.recall:
            fail(f"it finds fewer of the best {HITS} texts than was stated ({when})", expected=self.recall, found=share)
        return f"recall@{HITS} {share:.3f}, scores within {off:.0e}"

    @contextmanager
    def elsewhere(self, built: Built) -> Iterator[Path]:
        """Yield a copy of an index in another folder, with source and index moved away meanwhile."""
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
    """An indexer with each kind of texts that it supports: it refuses others with UnsupportedError."""
    root = Path(mkdtemp(prefix="rkit-check-") if folder is None else folder)
    root.mkdir(parents=True, exist_ok=True)
    component: Any = registry.get("indexer", name)
    forms: tuple[Form, ...] = ("vectors", "several", "weights", "both")
    if component.indexes == "texts":
        forms = ("texts",)
    cases = [IndexerCase(name, form, root / form, options, recall) for form in forms]
    for case in cases if folder is None else ():  # a folder is removed with the last case that uses it
        weakref.finalize(case, shutil.rmtree, case.folder, ignore_errors=True)
    none = "it takes neither vectors nor weights."
    return accepted(cases, lambda case: case.build(case.sample().first(20)), none=none, method="build")


def shown(ids: Sequence[str]) -> str:
    """The first few ids."""
    listed = ", ".join(str(one)[:20] for one in ids[:_SHOWN])
    return f"{listed} ..." if len(ids) > _SHOWN else listed or "nothing"


INDEXERS: Kit[IndexerCase] = Kit("indexer", indexer_cases, method="search")
"""The properties of indexers. Each kind of texts that an indexer supports is a case."""


_SAVED = ("build_open_search", "state_is_saved")


@INDEXERS.property()
def build_open_search(case: IndexerCase) -> str:
    """`build` returns numbers by name, and what is built can be opened and searched."""
    counts = case.main.counts
    numbers = isinstance(counts, Mapping) and all(
        isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)
        for name, value in counts.items()
    )
    if not numbers:
        problem = "build returns something else than numbers by name"
        fail(problem, expected={"texts": len(case.main.sample)}, found=counts, method="build")
    assert case.first_found
    return f"{len(case.main.sample)} texts, {len(case.main.sample.queries)} queries"


@INDEXERS.property(after=["build_open_search"])
def state_is_saved(case: IndexerCase) -> None:
    """Another object opens the folder and finds the same as the one that built it."""
    before, when = case.first_found, "once another object has opened the index: keep all state in the folder"
    case.same(case.found, before, when, method="build")


@INDEXERS.property(after=_SAVED)
def float32_scores(case: IndexerCase) -> None:
    """Scores are arrays of float32, from `search` and from `scores`."""
    for row, scores in enumerate(case.found[1]):
        dtype = getattr(scores, "dtype", type(scores).__name__)
        if not isinstance(scores, np.ndarray) or dtype != np.float32:
            fail(f"search gives query {row} scores of another type", expected="float32", found=dtype)
    try:
        (given,) = case.opened.scores(case.main.sample.asked(slice(0, 1)), [case.found[0][0]])
    except UnsupportedError:
        return
    if getattr(given, "dtype", None) != np.float32:
        found = getattr(given, "dtype", type(given).__name__)
        fail("`scores` gives scores of another type", expected="float32", found=found, method="scores")


@INDEXERS.property(after=_SAVED)
def finite_scores(case: IndexerCase) -> None:
    """No score is NaN or infinite, for a query of zeros or without a word neither."""
    blank: Any = [""]
    if case.form != "texts":
        one = case.main.sample.queries.rows(slice(0, 1))
        tensors = {name: getattr(one, name) for name in ("vectors", "weights")}
        blank = replace(one, **{name: None if two is None else two * 0 for name, two in tensors.items()})
    nothing = case.search(case.opened, blank)
    for row, scores in enumerate([*case.found[1], *nothing[1]]):
        if not np.isfinite(scores).all():
            which = f"query {row}" if row < len(case.found[1]) else "a query of zeros"
            problem = f"{which} gets scores that are not finite"
            fail(problem, found=np.asarray(scores)[~np.isfinite(scores)][:3].tolist())


@INDEXERS.property(after=_SAVED)
def best_first(case: IndexerCase) -> None:
    """At most k texts, none twice, with scores that never rise."""
    for row, (ids, scores) in enumerate(zip(*case.found, strict=True)):
        if len(ids) > HITS or len(set(ids)) < len(ids):
            fail(f"query {row} gets more than k texts, or one twice", expected=HITS, found=f"{len(ids)} ({shown(ids)})")
        rises = np.flatnonzero(np.diff(scores) > 0)
        if len(rises):
            problem = f"query {row} gets a score at place {rises[0] + 2} that is above the one before"
            fail(problem, found=scores[rises[0] : rises[0] + 2].tolist())


@INDEXERS.property(after=(*_SAVED, "finite_scores"))
def brute_force(case: IndexerCase) -> str:
    """It finds what brute force finds, with the scores of the scoring rule."""
    case.only("vectors", "several", "weights", "both")
    return case.compare_with_truth(case.found, case.main.sample, f"{TEXTS} texts, k={HITS}")


@INDEXERS.property(after=(*_SAVED, "finite_scores", "brute_force"))
def shards(case: IndexerCase) -> None:
    """Shards of the source change nothing: ids and rows fit behind their borders too."""
    case.only("vectors", "several", "weights", "both")
    sample = replace(case.sample(), cuts=(1, 100, TEXTS - 1))
    built = case.build(sample)
    case.same(case.search(case.open(built.index), sample.queries), case.found, "of 4 shards", method="build")


@INDEXERS.property(after=_SAVED)
def ties(case: IndexerCase) -> None:
    """Of equal scores, the text that comes first in the index ranks first, also where k cuts."""
    case.only("vectors", "weights", "both")
    sample = tied(case.form)
    opened, truth = case.open(case.build(sample).index), sample.truth(case.created().view)
    for k in (3, len(sample)):
        ids, scores = case.search(opened, sample.queries, k)
        for row, (found, values) in enumerate(zip(ids, scores, strict=True)):
            by_row = [sample.ids[text] for text in np.lexsort((np.arange(len(sample)), -truth[row]))][:k]
            by_id = [sample.ids[text] for text in np.lexsort((np.array(sample.ids), -truth[row]))][:k]
            # An indexer that lowers tied scores slightly has its own order.
            parted = len(set(np.asarray(values).tolist())) == len(values)
            if list(found) != by_row and not (parted and list(found) == by_id):
                problem = f"query {row} with k={k} gets equal texts in another order than that of the index"
                fail(problem, expected=" ".join(by_row), found=" ".join(found))


@INDEXERS.property(after=_SAVED)
def large_k(case: IndexerCase) -> str:
    """A k beyond the number of texts finds each text once, and raises nothing."""
    sample = case.main.sample
    ids, _ = case.search(case.opened, sample.queries, 2 * len(sample))
    matching = np.full(len(sample.queries), len(sample))
    if case.form == "weights" or case.created().view == "weights":
        matching = (sample.truth("weights") > 0).sum(axis=1)
    for row, found in enumerate(ids):
        if len(set(found)) < len(found) or len(found) > len(sample):
            fail(f"query {row} with k={2 * len(sample)} gets a text twice", expected=len(set(found)), found=len(found))
        if case.form != "texts" and len(found) < case.recall * matching[row]:
            problem = f"query {row} with k={2 * len(sample)} gets fewer texts than there are"
            fail(problem, expected=int(matching[row]), found=len(found))
    return f"k={2 * len(sample)}: {min(map(len, ids))} texts or more"


@INDEXERS.property(after=_SAVED)
def no_queries(case: IndexerCase) -> None:
    """No query at all gives an empty answer."""
    case.search(case.opened, case.main.sample.asked(slice(0, 0)))


@INDEXERS.property(after=_SAVED)
def one_text(case: IndexerCase) -> None:
    """An index of a single text is built, and finds it."""
    sample = case.sample().first(1)
    ids, _ = case.search(case.open(case.build(sample).index), sample.asked(slice(0, 1)), 5)
    if list(ids[0]) != sample.ids:
        fail("a query gets other texts", expected=sample.ids, found=ids[0], method="build")


@INDEXERS.property(after=_SAVED)
def odd_ids(case: IndexerCase) -> None:
    """Ids with spaces, slashes, quotes and letters of any script come back as they are."""
    whole = case.sample()
    odd = [*ODD_IDS, *(f"Ω {row}" for row in range(len(ODD_IDS), len(whole)))]
    sample = replace(whole, ids=odd)
    opened = case.open(case.build(sample).index)
    for row, (ids, plain) in enumerate(zip(case.search(opened, sample.queries)[0], case.found[0], strict=True)):
        wanted = [odd[whole.ids.index(one)] for one in plain]
        # Ties may be in id order.
        alike = ids[:1] == wanted[:1] if case.form == "texts" else ids == wanted
        if not alike or not set(ids) <= set(odd):
            problem = f"query {row} gets other ids than those of the texts that it found as t0, t1 ..."
            fail(problem, expected=shown(wanted), found=shown(ids), method="build")
    everything = {one for ids in case.search(opened, sample.queries, len(odd))[0] for one in ids}
    if case.recall == 1 and (missing := sorted(set(odd) - everything)) and case.form != "weights":
        fail("ids never come back", expected=len(odd), found=f"all but {missing[:3]}", method="build")


@INDEXERS.property(after=_SAVED)
def batch_of_queries(case: IndexerCase) -> None:
    """A query finds the same alone as among others, and each time."""
    sample = case.main.sample
    case.same(case.search(case.opened, sample.queries), case.found, "the second time")
    for row in range(3):
        alone = case.search(case.opened, sample.asked(slice(row, row + 1)))
        case.same(alone, ([case.found[0][row]], [case.found[1][row]]), f"alone (it is query {row} of a batch)")


@INDEXERS.property(after=_SAVED)
def given_scores(case: IndexerCase) -> None:
    """`scores` gives texts the scores that `search` gives them, NaN to unknown ones, or raises UnsupportedError."""
    queries, ids = case.main.sample.asked(slice(0, 3)), [[*one[::-1], "nobody"] for one in case.found[0][:3]]
    given = case.opened.scores(queries, ids)
    for row, values in enumerate(given):
        expected = np.asarray(case.found[1][row])[::-1]
        if len(values) != len(ids[row]) or not np.isnan(values[-1]):
            problem = f"query {row}: a text that is not in the index gets no NaN"
            fail(problem, expected="nan", found=values[-1:], method="scores")
        difference = float(np.abs(np.asarray(values)[:-1] - expected).max(initial=0))
        if not difference <= 10 * case.tolerance(expected):
            problem = f"query {row}: `scores` and `search` give the same texts other scores"
            fail(problem, difference=difference, method="scores")


@INDEXERS.property(after=(*_SAVED, "finite_scores"))
def filtered(case: IndexerCase) -> None:
    """A search among some texts finds what is left of all hits without the others, with their scores."""
    sample = case.main.sample
    every = case.search(case.opened, sample.queries, len(sample))
    order = np.random.default_rng(0).permutation(len(sample))
    for count in (1, 2, len(sample) // 10, len(sample) // 2, len(sample)):
        allowed = Allowed([sample.ids[row] for row in sorted(order[:count])], len(sample))
        ids, scores = case.opened.search_among(sample.queries, HITS, allowed)
        when = f"among {count} of the {len(sample)} texts"
        if wrong := [one for some in ids for one in some if one not in allowed]:
            fail(f"a search {when} finds '{wrong[0]}', which is another", method="search_among")
        kept = [[row for row, one in enumerate(some) if one in allowed][:HITS] for some in every[0]]
        names = [[some[row] for row in rows] for some, rows in zip(every[0], kept, strict=True)]
        if case.recall == 1:
            values = [np.asarray(some)[rows] for some, rows in zip(every[1], kept, strict=True)]
            # With words, tied scores may be lowered slightly, each more than the previous one.
            slack = 10 if case.form == "texts" else 1
            case.same((ids, scores), (names, values), when, method="search_among", slack=slack)


@INDEXERS.property(after=(*_SAVED, "brute_force"), once=True)
def segments(case: IndexerCase) -> None:
    """`open_joined` searches segments as one, without deleted texts, or returns False."""
    case.only("vectors", "several", "weights", "both")
    sample, gone = case.sample(), case.found[0][0][0]
    halves = [
        sample.first(TEXTS // 2),
        replace(sample, ids=sample.ids[TEXTS // 2 :], texts=sample.texts.rows(slice(TEXTS // 2, TEXTS))),
    ]
    stores = [VectorStore(case.build(one).source, view=case.created().view) for one in halves]
    indexer = case.created()
    if not indexer.open_joined(lambda: JoinedStore(stores, [{gone}, {gone}])):
        leave_out("it opens each segment by itself.")
    found = case.search(indexer, sample.queries)
    rows = [row for row, one in enumerate(sample.ids) if one != gone]
    left = replace(sample, ids=[sample.ids[row] for row in rows], texts=sample.texts.rows(np.array(rows)))
    case.compare_with_truth(found, left, "of two segments, with a text deleted")


_ROUNDS, _MOST_KEPT = 5, 1 << 16
_SMALL, _GROWTH, _SLACK = 75, 25.0, 1 << 16


@INDEXERS.property(after=_SAVED)
def moved_folder(case: IndexerCase) -> None:
    """A copy of the folder is searched while the source and the first folder are gone: no path is kept in it."""
    with case.elsewhere(case.main) as copied:
        found = case.search(case.open(copied), case.main.sample.queries)
    case.same(found, case.found, "in a copy of the index once the source is gone", method="build")


@INDEXERS.property(after=_SAVED)
def several_open(case: IndexerCase) -> None:
    """Indexes that are open at the same time, one of them twice, do not get in each other's way."""
    sample = case.main.sample
    turned = replace(sample, texts=sample.texts[::-1] if case.form == "texts" else sample.texts.rows(slice(5, None)))
    turned = replace(turned, ids=sample.ids[: len(turned.texts)])
    again, other = case.open(case.main.index), case.open(case.build(turned).index)
    different = case.search(other, sample.queries)
    when = "while another index is open too: is something shared by all objects of the class?"
    case.same(case.search(case.opened, sample.queries), case.found, when, method="open")
    case.same(case.search(again, sample.queries), case.found, when, method="open")
    case.same(case.search(other, sample.queries), different, when, method="open")


@INDEXERS.property(after=_SAVED, once=True)
def other_process(case: IndexerCase) -> None:
    """A process of its own opens the folder, while this process has it open, and finds the same."""
    expected, built = case.found, case.main
    arguments = (case.name, case.options, built.index, built.sample.queries, HITS)
    code, found, printed = started("search", *arguments)
    if found is None:
        error = printed.rpartition("\n")[2].rstrip(".") or f"exit code {code}"
        fail(f"another process cannot search the index: {error}", method="open")
    case.same(found, expected, "in another process", method="build")


@INDEXERS.property(after=_SAVED, once=True)
def killed_build(case: IndexerCase) -> None:
    """`rkit index`, killed half-way, leaves nothing that can be opened, and can be run again."""
    folder = case.new_folder()
    source = case.sample().write(folder / "source")
    output = folder / "index"
    code, _, printed = started("build_and_die", case.name, case.options, source, output)
    if code >= 0:
        error = printed.rpartition("\n")[2].rstrip(".")
        fail(f"build does not end: {error}" if error else "build reads nothing, and is not killed", method="build")
    if output.exists():
        problem = f"a build that was killed leaves '{output.name}', where a whole index should be"
        fail(problem, found=sorted(one.name for one in output.iterdir())[:3], method="build")
    found = case.search(case.indexed(source, output), case.main.sample.queries)
    case.same(found, case.found, "in an index that was built after a killed build", method="build")


@INDEXERS.property(after=_SAVED, once=True)
def manifest(case: IndexerCase) -> None:
    """The folder of `rkit index` opens by its manifest, and is refused where that is of a newer version."""
    folder = case.new_folder()
    output = folder / "index"
    found = case.search(case.indexed(case.sample().write(folder / "source"), output), case.main.sample.queries)
    case.same(found, case.found, "in the folder of `rkit index`", method="build")
    made = json.loads((output / MANIFEST).read_text())
    (output / MANIFEST).write_text(json.dumps({**made, "format": made["format"] + 1}))
    try:
        rk.Index.open(output)
    except InputError:
        return
    fail("an index with the manifest of a newer version is opened", method="open")


@INDEXERS.property(after=_SAVED)
def source_untouched(case: IndexerCase) -> None:
    """Building changes nothing in the folder of the source."""
    fresh = case.new_folder()
    case.sample().write(fresh)
    case.found  # noqa: B018 - the index has been built and searched
    root = case.main.source if case.main.source.is_dir() else case.main.source.parent
    before, after = _contents(fresh), _contents(root)
    if changed := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        fail("build changes the source", expected=sorted(before)[:5], found=changed[:5], method="build")


def _contents(folder: Path) -> dict[str, str]:
    files = (one for one in folder.rglob("*") if one.is_file() and one.suffix != ".pickle")
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


@INDEXERS.property(after=_SAVED)
def size_of_folder(case: IndexerCase) -> str:
    """The folder grows as the source does, and not with the square of the number of texts."""

    def size_of(sample: Sample) -> int:
        if sample.form == "texts":
            return sum(len(title) + len(text) for title, text in sample.texts)
        tensors = (sample.texts.vectors, sample.texts.weights)
        return sum(one.numel() * one.element_size() for one in tensors if one is not None)

    texts, few = case.main.sample, case.main.sample.first(_SMALL)
    many, part = (
        sum(one.stat().st_size for one in index.rglob("*") if one.is_file())
        for index in (case.main.index, case.build(few).index)
    )
    grown, source = many - part, max(1, size_of(texts) - size_of(few))
    if grown > _GROWTH * source + _SLACK:
        problem = f"with {len(texts)} texts instead of {len(few)} the folder grows by {grown:,} bytes"
        fail(problem, expected=f"at most {_GROWTH:.0f} times the source's {source:,}", method="build")
    return f"{max(0, grown) / source:.1f} bytes for each of the source"


@INDEXERS.property(after=_SAVED, once=True)
def memory(case: IndexerCase) -> str:
    """Searching again and again keeps no memory."""
    held = []
    tracemalloc.start()
    try:
        for _ in range(2):
            for _ in range(_ROUNDS):
                case.opened.search(case.main.sample.queries, TEXTS)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    kept = held[1] - held[0]
    if kept > _MOST_KEPT:
        fail(f"{_ROUNDS} searches keep memory", expected=f"at most {_MOST_KEPT:,} bytes", found=f"{kept:,}")
    return f"{max(0, kept):,} bytes kept by {_ROUNDS} searches"


@INDEXERS.property(once=True)
def empty_source(case: IndexerCase) -> None:
    """A corpus without a text is refused in words, or gives an index that finds nothing."""
    case.only("texts")
    try:
        built = case.build(case.sample().first(0))
        ids, _ = case.search(case.open(built.index), ["government"])
    except RetrievalkitError:
        return
    if ids[0]:
        fail("an index of nothing finds something", found=ids[0])


@INDEXERS.property(after=_SAVED)
def sensible_texts(case: IndexerCase) -> str:
    """A query with words that a single passage has finds that passage first, by its title too."""
    case.only("texts")
    sample = case.main.sample
    by_title = case.search(case.opened, [title for title, _ in sample.texts[:12]])[0]
    for kind, found in (("words of its text", case.found[0]), ("its title", by_title)):
        for row, ids in enumerate(found):
            if list(ids[:1]) != [sample.ids[row]]:
                problem = f"the passage about {sample.texts[row][0]} is not the first for a query of {kind}"
                fail(problem, expected=sample.ids[row], found=shown(ids))
    return f"{len(case.found[0]) + len(by_title)} queries"


@INDEXERS.property(after=_SAVED)
def odd_texts(case: IndexerCase) -> None:
    """Passages without a word, in any script or with the signs of a query language raise nothing."""
    case.only("texts")
    whole = case.sample()
    odd = (
        ("", ""),
        ("", "   "),
        ("漢字", "東京は日本の首都です"),
        ("", 'AND OR NOT ( [ { " * ~ ^ \\'),
        ("", "🙂\u0000\u200b"),
    )
    ids = [*whole.ids, *(f"odd{row}" for row in range(len(odd)))]
    opened = case.open(case.build(replace(whole, ids=ids, texts=[*whole.texts, *odd])).index)
    queries = [*(f"{title} {text}" for title, text in odd), "x" * 5000, "lima " * 500, "capital:lima AND (peru"]
    case.search(opened, queries)
    peru = whole.ids[next(row for row, (title, _) in enumerate(whole.texts) if title == "Peru")]
    found = case.search(opened, ["government of lima"])[0][0]
    if list(found[:1]) != [peru]:
        fail("among such passages others are not found", expected=peru, found=shown(found), method="build")


@INDEXERS.property(after=_SAVED)
def terms(case: IndexerCase) -> None:
    """`contributions` of the terms of a query add up to the score, or it raises UnsupportedError."""
    case.only("texts")
    query, ids, scores = case.main.sample.queries[0], case.found[0][0], case.found[1][0]
    for row, terms_of in enumerate(case.opened.contributions(query, ids)):
        if not np.isclose(sum(terms_of.values()), scores[row], rtol=0.02, atol=1e-2):
            msg = f"the contributions of the terms to the score of '{ids[row]}' do not add up to it"
            found = float(sum(terms_of.values()))
            fail(msg, expected=float(scores[row]), found=found, method="contributions")


@INDEXERS.property(after=_SAVED, once=True)
def changes(case: IndexerCase) -> None:
    """`changed` leaves the index as it is, takes out and adds texts, or raises UnsupportedError."""
    case.only("texts")
    gone, target = case.found[0][0][0], case.new_folder()
    target.mkdir()
    added = Corpus.of([Passage("new", "Atlantis", "The seat of government is Poseidonis.")])
    case.created().changed(case.main.index, target, deleted={gone}, added=added, compact=False)
    queries = [*case.main.sample.queries, "government in poseidonis"]
    ids, _ = case.search(case.open(target), queries, 2 * len(case.main.sample))
    if left := [row for row, one in enumerate(ids) if gone in one]:
        fail(f"query {left[0]} finds a text that was deleted", found=gone, method="changed")
    if list(ids[-1][:1]) != ["new"]:
        fail("a text that was added is not found", expected="new", found=shown(ids[-1]), method="changed")
    case.same(case.search(case.opened, case.main.sample.queries), case.found, "after a change into another folder")


Damage = Literal["bytes", "cut", "longer", "gone", "added", "other", "link"]
DAMAGES: tuple[Damage, ...] = ("bytes", "cut", "longer", "gone", "added", "other", "link")
"""64 random bytes, fewer bytes, more bytes, no file, another file next to it, the file of another index, a link."""


def check_damage(index: str | Path, other: str | Path, folder: str | Path, *, seeds: int = 4) -> None:
    """Check that `--verify` rejects copies of an index with damage to one file, naming the file.

    Args:
        index: An index folder written by `rkit index`.
        other: An index of the same indexer with other texts.
        folder: A folder for copies.
        seeds: Number of copies for each kind of damage.

    Raises:
        AssertionError: Names the damage that was not detected.
    """
    for kind, seed in itertools.product(DAMAGES, range(seeds)):
        copy = Path(folder) / f"{kind}-{seed}"
        shutil.copytree(index, copy)
        damaged = _damage(copy, Path(other), kind, random.Random(f"{kind}:{seed}"))
        where = f"{kind}, seed {seed}: '{damaged.relative_to(copy)}'"
        message = ""
        try:
            rk.Index.open(copy, verify=True)
        except InputError as error:
            message = str(error)
        assert message, f"an index is opened whose files were damaged ({where})"
        named = str(damaged) in message or (damaged.name == MANIFEST and str(copy) in message)
        assert named, f"a message that does not name the file ({where}): {message}"
        assert "\n" not in message, f"a message of several lines ({where}): {message}"


def _damage(index: Path, other: Path, kind: Damage, draw: random.Random) -> Path:
    """Damage a copy of an index; returns the path of the damaged file."""
    files = sorted(path for path in index.rglob("*") if path.is_file())
    # The location of a manifest does not matter.
    path = draw.choice([path for path in files if kind != "link" or path.name != MANIFEST])
    content = path.read_bytes()
    if kind == "added":
        # The files of a vectors folder are read by name.
        path = (index if (path.parent / MANIFEST).is_file() else path.parent) / f"{path.name}.more"
        path.write_bytes(content)
        return path
    # Write a new file: the copy may share files with the original index.
    path.unlink()
    match kind:
        case "bytes":
            altered = bytearray(content or b"?")
            for _ in range(64):
                altered[draw.randrange(len(altered))] = draw.randrange(256)
            path.write_bytes(altered if altered != content else content + b"?")
        case "cut":
            path.write_bytes(content[: draw.randrange(len(content))] if content else b"?")
        case "longer":
            path.write_bytes(content + draw.randbytes(draw.randint(1, 5000)))
        case "other":
            named = other / path.relative_to(index)
            files = [named] if named.is_file() else sorted(one for one in other.rglob("*") if one.is_file())
            found = draw.choice(files).read_bytes()
            path.write_bytes(found if found != content else content + b"?")
        case "link":
            (index.parent / f"{index.name}.moved").write_bytes(content)
            path.symlink_to(index.parent / f"{index.name}.moved")
    return path


def check_indexer(name: str, folder: str | Path | None = None, *, recall: float = 1.0, **options: Any) -> None:
    """Check that an indexer fulfils the contract: it finds the same as brute force, and its folder is self-contained.

    It is tested with each kind of texts that it supports: one vector per text, several, weights, both, or words.

    Args:
        name: Registered name of the indexer.
        folder: Folder for indexes; None = a temporary folder.
        recall: For approximate indexers: the minimum share of the ten best texts that must be found. Below 1, scores
            may be off by 5 %.
        options: Options of the indexer.
    """
    INDEXERS.check(name, folder=folder, recall=recall, **options)
