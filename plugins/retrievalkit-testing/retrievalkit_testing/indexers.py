"""The conformance tests of indexers: results, folders, processes, texts, and detection of damage."""

from __future__ import annotations

import itertools
import json
import math
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
from hypothesis import strategies as st

from retrievalkit import registry, scoring
from retrievalkit.contracts import Allowed, Indexer, Representation
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.vectors import JoinedStore, VectorStore, VectorWriter
from retrievalkit_testing.drawing import IDS, SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import expect_typed_keywords
from retrievalkit_testing.properties import Kit, PropertyError, accepted, fail, leave_out
from retrievalkit_testing.samples import COUNTRIES
from retrievalkit_testing.shared import Subject, forget_written, share

DIM, TERMS = 16, 30
MANIFEST = "manifest.json"

Form = Literal["vectors", "several", "keyed", "weights", "both", "texts"]
"""Kinds of texts: one vector, one to three vectors, the same with keys, weights, a vector and weights, or words."""

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
            vectors, mask, weights, keys = part.vectors, part.vector_mask, part.weights, part.keys
            writer.write_shard(
                shard,
                self.ids[start:end],
                None if vectors is None else (vectors if mask is None else vectors[mask]).numpy(),
                counts=None if mask is None else mask.sum(1).numpy(),
                weights=None if weights is None else scipy.sparse.csr_matrix(weights.numpy()),
                keys=None if keys is None else keys[mask].numpy(),
            )
        writer.finish()
        return folder


def drawn_texts(form: Form, count: int, *, queries: int = 8, seed: int = 0) -> Sample:
    """Random texts `t0`, `t1` ... and queries, without ties among the scores of a query."""
    names = [f"t{row}" for row in range(count)]
    return Sample(form, names, _side(form, count, 3, seed), queries_of(form, queries, seed))


def queries_of(form: Form, count: int, seed: int) -> Representation:
    """Random queries of indexes of this form."""
    made = _side(form, count, 2, seed + 1000)
    if seed % 4 == 3:
        # The first is a query of zeros.
        for one in (made.vectors, made.weights):
            if one is not None:
                one[:1] = 0
    return made


def _side(form: Form, rows: int, most: int, seed: int) -> Representation:
    """Random texts. Weights are multiples of 1/255 and at most 1, so an index that rounds to 8 bits loses nothing."""
    random = np.random.default_rng(seed)
    most = most if form in ("several", "keyed") else 1
    made: dict[str, Any] = {}
    if form != "weights":
        made["vectors"] = torch.from_numpy(random.standard_normal((rows, most, DIM), dtype=np.float32))
    if form in ("several", "keyed"):
        many = torch.from_numpy(random.integers(1, most + 1, rows))
        many[:1] = most
        made["vector_mask"] = torch.arange(most) < many[:, None]
    if form == "keyed":
        made["keys"] = torch.from_numpy(random.integers(0, 3, (rows, most)))
    if form in ("weights", "both"):
        levels = random.integers(0, 256, (rows, TERMS))
        made["weights"] = torch.from_numpy((levels * (levels > 127) / 255).astype(np.float32))
    return Representation(**made)


def countries() -> Sample:
    """A passage about each country; the queries ask for capitals and currencies, in words of a passage."""
    rows = [[word.replace("-", " ") for word in line.split()] for line in COUNTRIES.split("|")]
    texts = [
        (country, f"The seat of government is {capital}, people pay with the {currency}, and speak {language}.")
        for country, capital, currency, language in rows
    ]
    queries = [f"which country has its government in {capital}" for _, capital, _, _ in rows[:12]]
    return Sample("texts", [f"c{row}" for row in range(len(rows))], texts, queries)


TEXTS, FEW, HITS = 300, 40, 10
_SHOWN = 5

Hits = tuple[list[list[str]], list[np.ndarray]]
"""The result of `Indexer.search`: ids and scores of each query."""


@dataclass
class Search:
    """The arguments of a search."""

    queries: Any
    k: int


class Built:
    """An index built from a sample."""

    def __init__(self, indexer: Indexer, sample: Sample, folder: Path) -> None:
        self.sample, self.folder, self.index, self.indexer = sample, folder, folder / "index", indexer
        self.source = folder / "source"
        if sample.form == "texts":
            self.source = self.source / "corpus.jsonl"
        if not self.index.is_dir():
            sample.write(folder / "source")
            self.index.mkdir()
            forget_written()
            opened: Any = VectorStore(self.source) if self.source.is_dir() else open_corpus(self.source)
            self.counts = indexer.build(opened, self.index)


class IndexerCase(Subject):
    """An indexer with one kind of texts."""

    def __init__(self, name: str, form: Form, folder: Path, options: dict[str, Any], recall: float = 1.0) -> None:
        self.name, self.form, self.folder, self.options, self.recall = name, form, folder, options, recall
        self.label: str = form
        self._number = 0
        several = st.one_of(st.integers(0, 4), sizes(1, 100))
        self.draws = {
            "texts": st.sampled_from((FEW, TEXTS)),
            "queries": several,
            "k": st.sampled_from((1, HITS, 64, 2 * TEXTS)),
            "seed": SEEDS,
        }
        self.large = {"texts": sizes(1, 5000), "queries": sizes(1, 70), "shards": st.integers(1, 4), "seed": SEEDS}
        self.any_ids = {"ids": st.lists(IDS, min_size=60, max_size=60, unique=True)}
        self.typical = [{"texts": TEXTS, "queries": 12, "k": HITS, "seed": 0}]

    @property
    def origin(self) -> tuple[str, str, dict[str, Any], int]:  # type: ignore[override]
        """Kind, name, settings and number; another process opens the indexes of this one."""
        return self._origin

    @origin.setter
    def origin(self, origin: tuple[str, str, dict[str, Any], int]) -> None:
        kind, name, settings, number = origin
        self._origin = kind, name, {**settings, "folder": str(self.folder.parent)}, number

    def new(self) -> Indexer:
        """A new indexer with the options, without an index."""
        made: Indexer = registry.create("indexer", self.name, **self.options)
        return made

    def built(self, texts: int) -> Built:
        """An index of so many texts, built once; another process opens the same."""
        # Texts of countries are always the same.
        folder = self.folder / f"of {len(countries()) if self.form == 'texts' else texts} texts"
        return Built(self.new(), self.sample(texts), folder)

    def created(self, drawn: Drawn) -> Indexer:
        return self.open(self.built(drawn["texts"]).index)

    def given(self, drawn: Drawn) -> Search:
        many = itertools.islice(itertools.cycle(countries().queries), drawn["seed"], drawn["seed"] + drawn["queries"])
        if self.form == "texts":
            return Search(list(many), drawn["k"])
        return Search(queries_of(self.form, drawn["queries"], drawn["seed"]), drawn["k"])

    def call(self, component: Indexer, given: Search) -> Any:
        return component.search(given.queries, given.k)

    def read(self, given: Search, found: Hits) -> list[tuple[list[str], np.ndarray]]:  # noqa: ARG002 - by contract
        return [(list(ids), np.asarray(scores)) for ids, scores in zip(*found, strict=True)]

    def rows(self, given: Search) -> int:
        return len(given.queries)

    def chosen(self, given: Search, rows: Sequence[int]) -> Search:
        if self.form == "texts":
            return Search([given.queries[row] for row in rows], given.k)
        return Search(given.queries.rows(torch.tensor(rows, dtype=torch.long)), given.k)

    def near(self, given: Search) -> Search:
        """The same queries, changed a little."""
        queries, k = given.queries, given.k
        if self.form == "texts":
            return Search([f"{one} city" for one in queries], k)
        changed = {}
        for name in ("vectors", "weights"):
            if (one := getattr(queries, name)) is not None:
                changed[name] = one.clone()
                changed[name][..., 0] += 4e-3
        return Search(replace(queries, **changed), given.k)

    def same(self, problem: str, found: Any, expected: Any) -> None:
        """Fail if hits differ, other than in the order of texts whose scores are the same up to rounding."""
        if found and isinstance(found[0], list):
            found, expected = (list(itertools.chain.from_iterable(one)) for one in (found, expected))
        for row, ((ids, scores), (known, values)) in enumerate(zip(found, expected, strict=True)):
            least = self.tolerance_of(values)
            by_id = dict(zip(known, values, strict=True))
            if len(ids) != len(known):
                fail(f"query {row}: {problem}", expected=shown(known), found=shown(ids))
            for place, (name, score) in enumerate(zip(ids, scores, strict=True)):
                reference = by_id.get(name, values[-1])
                if name != known[place] and not abs(score - values[place]) <= least:
                    fail(f"query {row}: {problem}", expected=shown(known), found=shown(ids))
                if not abs(score - reference) <= least:
                    fail(f"query {row}, '{name[:20]}': {problem}", expected=float(reference), found=float(score))

    def exercise(self, drawn: Drawn) -> None:
        sample = self.sample(drawn["texts"]).first(FEW)
        built = Built(self.new(), sample, self.new_folder())
        self.kept = (built.folder / "source",)
        self.call(self.open(built.index), self.given(drawn))

    def check_form(self, given: Search, found: Any) -> None:
        if not isinstance(found, tuple) or [len(one) for one in found] != [len(given.queries)] * 2:
            shape = [len(one) for one in found] if isinstance(found, tuple) else type(found).__name__
            problem = "search does not give lists of ids and of scores, one of each a query"
            fail(problem, expected=[len(given.queries)] * 2, found=shape)
        for row, (ids, scores) in enumerate(zip(*found, strict=True)):
            dtype = getattr(scores, "dtype", type(scores).__name__)
            if not isinstance(scores, np.ndarray) or dtype != np.float32:
                fail(f"search gives query {row} scores of another type", expected="float32", found=dtype)
            if len(ids) != len(scores) or not all(isinstance(one, str) for one in ids):
                problem = (
                    f"query {row} gets {len(ids)} ids ({shown(ids)}), not all of them strings, or not as many scores"
                )
                fail(problem, expected=len(ids), found=len(scores))
            if not np.isfinite(scores).all():
                fail(f"query {row} gets scores that are not finite", found=scores[~np.isfinite(scores)][:3].tolist())
            if len(ids) > given.k or len(set(ids)) < len(ids):
                told = f"{len(ids)} ({shown(ids)})"
                fail(f"query {row} gets more than k texts, or one twice", expected=given.k, found=told)
            if len(rises := np.flatnonzero(np.diff(scores) > 0)):
                problem = f"query {row} gets a score at place {rises[0] + 2} that is above the one before"
                fail(problem, found=scores[rises[0] : rises[0] + 2].tolist())

    def sample(self, count: int = TEXTS) -> Sample:
        """Texts of this kind."""
        return countries() if self.form == "texts" else drawn_texts(self.form, count)

    def only(self, *forms: Form) -> None:
        """Skip a property if it applies to other kinds of texts."""
        if self.form not in forms:
            leave_out(f"it is a property of indexes of {' and '.join(forms)}.")

    @cached_property
    def main(self) -> Built:
        """An index shared by properties."""
        return self.built(TEXTS)

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
        return Built(self.new(), sample, self.new_folder())

    def open(self, index: Path) -> Indexer:
        """Open the index with a new indexer."""
        indexer = self.new()
        indexer.open(index)
        return indexer

    def search(self, indexer: Indexer, queries: Any, k: int = HITS) -> Hits:
        """Search, and check the form of the result."""
        found: Hits = self.call(indexer, Search(queries, k))
        self.check_form(Search(queries, k), found)
        return found

    def alike(self, found: Hits, expected: Hits, when: str, *, method: str = "search") -> None:
        """Fail if two results of the same queries differ."""
        given = Search(None, 0)
        try:
            self.same(f"it finds other texts or scores {when}", self.read(given, found), self.read(given, expected))
        except PropertyError as error:
            error.method = method
            raise

    def tolerance_of(self, scores: np.ndarray) -> float:
        """The tolerance for these scores; Lucene rounds BM25 to four decimals, and lowers equal scores to rank them."""
        largest = float(np.abs(scores).max(initial=0))
        share = 0.05 if self.recall < 1 else 1e-3 if self.form == "texts" else 1e-4
        return share * largest + (1e-4 if self.form == "texts" else 1e-5)

    def compare_with_truth(self, found: Hits, sample: Sample, when: str) -> str:
        """Fail if too few of the best texts are found, or scores break the scoring rule; returns the numbers."""
        truth = sample.truth(self.new().view)
        row_of = {one: row for row, one in enumerate(sample.ids)}
        shares, off = [], 0.0
        for row, (ids, scores) in enumerate(zip(*found, strict=True)):
            best = [sample.ids[text] for text in np.argsort(-truth[row], kind="stable")[:HITS]]
            if self.form == "weights" or self.new().view == "weights":
                # A text that shares no term with the query need not be found.
                best = best[: int((truth[row] > 0).sum())]
            if unknown := [one for one in ids if one not in row_of]:
                fail(f"query {row} finds '{unknown[0]}', which is not in the index ({when})")
            shares.append(len(set(ids) & set(best)) / len(best) if best else 1.0)
            if set(best) - set(ids) and self.recall == 1:
                problem = (
                    f"query {row} does not find what brute force finds ({when}); see `recall` if it is approximate"
                )
                fail(problem, expected=shown(best), found=shown(ids))
            exact = truth[row][[row_of[one] for one in ids]]
            difference = np.abs(np.asarray(scores, dtype=np.float64) - exact)
            off = max(off, float(difference.max(initial=0)))
            if not off <= self.tolerance_of(exact):
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
    if component.compares_keys:
        forms = (*forms, "keyed")
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


INDEXERS: Kit[IndexerCase] = Kit(
    "indexer",
    indexer_cases,
    method="search",
    unchecked="its speed, and more texts than 5,000 with other dimensions than 16",
)
"""The properties of indexers. Each kind of texts that an indexer supports is a case."""


@INDEXERS.property()
def build_open_search(case: IndexerCase) -> None:
    """`build` returns numbers by name, and another object opens the folder and finds the same as its builder."""
    built = case.build(case.sample())
    numbers = isinstance(built.counts, Mapping) and all(
        isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)
        for name, value in built.counts.items()
    )
    if not numbers:
        problem = "build returns something else than numbers by name"
        fail(problem, expected={"texts": len(built.sample)}, found=built.counts, method="build")
    if (built.index / MANIFEST).exists():
        fail(f"build writes '{MANIFEST}', which `rkit index` writes over", method="build")
    built.indexer.open(built.index)
    expected = case.answer(built.indexer, case.given(case.typical[0]))
    try:
        found = case.answer(case.open(built.index), case.given(case.typical[0]))
    except Exception as error:  # noqa: BLE001 - a component may raise anything
        told = f"another object cannot search the index ({type(error).__name__}: {error})"
        fail(f"{told}: keep all state in the folder", method="build")
    case.same(
        "once another object has opened the index, other texts are found: keep all state in the folder", found, expected
    )


@INDEXERS.property(once=True)
def options_typed(case: IndexerCase) -> None:
    """Options are typed keyword-only arguments, and their defaults have the type."""
    expect_typed_keywords(registry.get("indexer", case.name), "indexer")


share(INDEXERS, rows=True, threads=True, builds=32)
_SAVED = ("build_open_search", "form", "inputs_unchanged", "same_twice", "no_memory")


@INDEXERS.property(after=_SAVED, draws="large", examples=10)
def brute_force(case: IndexerCase, drawn: Drawn) -> None:
    """It finds what brute force finds, with the scores of the scoring rule, of up to 5,000 texts in several shards."""
    case.only("vectors", "several", "keyed", "weights", "both")
    count = drawn["texts"]
    cuts = sorted({count * part // drawn["shards"] for part in range(1, drawn["shards"])} - {0, count})
    sample = replace(case.sample(count), cuts=cuts, queries=queries_of(case.form, drawn["queries"], drawn["seed"]))
    indexer, matching = case.open(case.build(sample).index), np.full(drawn["queries"], count)
    found = case.search(indexer, sample.queries)
    case.compare_with_truth(found, sample, f"{count} texts, k={HITS}")
    every = case.search(indexer, sample.queries, 2 * count)
    if case.form == "weights" or case.new().view == "weights":
        matching = (sample.truth("weights") > 0).sum(axis=1)
    for row, ids in enumerate(every[0]):
        if len(ids) < case.recall * matching[row]:
            problem = f"query {row} with k={2 * count} gets fewer texts than there are"
            fail(problem, expected=int(matching[row]), found=len(ids))


@INDEXERS.property(after=_SAVED, draws="large", examples=5)
def words(case: IndexerCase, drawn: Drawn) -> None:
    """A query with words that a single passage has, in its text or title, finds it first, of up to 5,000 passages."""
    case.only("texts")
    names = [f"w{number}x" for number in range(drawn["texts"])]
    texts = [(f"{name} story", f"The {name[::-1]} is number {name[1:-1]} of many.") for name in names]
    opened = case.open(case.build(Sample("texts", names, texts, [])).index)
    asked = np.random.default_rng(drawn["seed"]).choice(names, drawn["queries"]).tolist()
    for queries in ([f"which {name}" for name in asked], [f"the {name[::-1]}" for name in asked]):
        for name, query, ids in zip(asked, queries, case.search(opened, queries)[0], strict=True):
            if list(ids[:1]) != [name]:
                problem = f"of {len(names)} passages, that with the word '{query.split()[1]}' is not the first"
                fail(problem, expected=name, found=shown(ids))


@INDEXERS.property(after=_SAVED, draws="any_ids", examples=3)
def any_ids(case: IndexerCase, drawn: Drawn) -> None:
    """Ids of any script, with spaces, slashes and quotes, come back as they are."""
    ids = list(dict.fromkeys([*drawn["ids"][:FEW], *ODD_IDS]))
    whole = case.sample(len(ids)).first(len(ids))
    ids = ids[-len(whole) :]
    plain, odd = (case.open(case.build(replace(whole, ids=names)).index) for names in (whole.ids, ids))
    for row, (known, found) in enumerate(
        zip(*(case.search(one, whole.queries, 2 * len(ids))[0] for one in (plain, odd)), strict=True)
    ):
        wanted = [ids[whole.ids.index(one)] for one in known]
        # Ties may be in id order.
        if sorted(wanted) != sorted(found) or (wanted != found and case.form != "texts"):
            strange = sorted(set(found) - set(ids)) or sorted(set(wanted) - set(found))
            problem = f"query {row} gets other ids than those of the texts that it finds as t0, t1 ..."
            fail(problem, expected=shown(sorted(set(wanted) - set(found))), found=shown(strange), method="build")


@INDEXERS.property(after=(*_SAVED, "order"))
def order_of_texts(case: IndexerCase) -> None:
    """The same texts in another order are found with the same scores."""
    sample = case.sample()
    turned = np.random.default_rng(0).permutation(len(sample))
    texts = (
        [sample.texts[row] for row in turned] if case.form == "texts" else sample.texts.rows(torch.from_numpy(turned))
    )
    other = replace(sample, ids=[sample.ids[row] for row in turned], texts=texts)
    when = "if the texts are indexed in another order"
    case.alike(case.search(case.open(case.build(other).index), sample.queries), case.found, when, method="build")


@INDEXERS.property(after=_SAVED)
def ties(case: IndexerCase) -> None:
    """Of equal scores, the text that comes first in the index ranks first, also at the cut-off k."""
    case.only("vectors", "weights", "both")
    # Sums of zeros and ones are exact; ids are not in the order of the texts.
    few, rows = case.sample(4), torch.arange(4).repeat(6)
    texts, queries = (
        replace(one, vectors=_rough(one.vectors), weights=_rough(one.weights)) for one in (few.texts, few.queries)
    )
    sample = replace(few, ids=[f"t{row * 7 % 24}" for row in range(24)], texts=texts.rows(rows), queries=queries)
    opened, truth = case.open(case.build(sample).index), sample.truth(case.new().view)
    for k in (5, 24):
        for row, (found, values) in enumerate(zip(*case.search(opened, queries, k), strict=True)):
            # An index of weights finds what shares a term.
            matching = int((truth[row] > 0).sum()) if case.form == "weights" or case.new().view == "weights" else 24
            by_row = [sample.ids[text] for text in np.argsort(-truth[row], kind="stable")][: min(k, matching)]
            by_id = [sample.ids[text] for text in np.lexsort((np.array(sample.ids), -truth[row]))][: min(k, matching)]
            # An indexer that lowers tied scores slightly has its own order.
            parted = len(set(np.asarray(values).tolist())) == len(values)
            if list(found) != by_row and not (parted and list(found) == by_id):
                problem = f"query {row} with k={k} gets equal texts in another order than that of the index"
                fail(problem, expected=" ".join(by_row), found=" ".join(found))


def _rough(numbers: torch.Tensor | None) -> torch.Tensor | None:
    return None if numbers is None else (numbers > 0).float()


@INDEXERS.property(after=_SAVED)
def given_scores(case: IndexerCase) -> None:
    """`scores` gives a text the same score as `search`, NaN for unknown ids, or raises UnsupportedError."""
    queries, ids = case.main.sample.asked(slice(0, 3)), [[*one[::-1], "nobody"] for one in case.found[0][:3]]
    given = case.opened.scores(queries, ids)
    for row, values in enumerate(given):
        expected = np.asarray(case.found[1][row])[::-1]
        if len(values) != len(ids[row]) or not np.isnan(values[-1]):
            problem = f"query {row}: a text that is not in the index gets no NaN"
            fail(problem, expected="nan", found=values[-1:], method="scores")
        difference = float(np.abs(np.asarray(values)[:-1] - expected).max(initial=0))
        if not difference <= 10 * case.tolerance_of(expected):
            problem = f"query {row}: `scores` and `search` give the same texts other scores"
            fail(problem, difference=difference, method="scores")


@INDEXERS.property(after=_SAVED)
def filtered(case: IndexerCase) -> None:
    """A filtered search returns the unfiltered hits without the excluded texts, with the same scores."""
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
            case.alike((ids, scores), (names, values), when, method="search_among")


@INDEXERS.property(after=(*_SAVED, "brute_force"), once=True)
def segments(case: IndexerCase) -> None:
    """`open_joined` searches segments as one index, without deleted texts, or returns False."""
    case.only("vectors", "several", "keyed", "weights", "both")
    sample, gone = case.sample(), case.found[0][0][0]
    halves = [
        sample.first(TEXTS // 2),
        replace(sample, ids=sample.ids[TEXTS // 2 :], texts=sample.texts.rows(slice(TEXTS // 2, TEXTS))),
    ]
    stores = [VectorStore(case.build(one).source, view=case.new().view) for one in halves]
    indexer = case.new()
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
    """A copy of the folder can be searched after the source and the original are deleted: it contains no paths."""
    with case.elsewhere(case.main) as copied:
        found = case.search(case.open(copied), case.main.sample.queries)
    case.alike(found, case.found, "in a copy of the index once the source is gone", method="build")


@INDEXERS.property(after=_SAVED)
def several_open(case: IndexerCase) -> None:
    """Indexes that are open at the same time, one of them twice, do not interfere."""
    sample = case.main.sample
    turned = replace(sample, texts=sample.texts[::-1] if case.form == "texts" else sample.texts.rows(slice(5, None)))
    turned = replace(turned, ids=sample.ids[: len(turned.texts)])
    again, other = case.open(case.main.index), case.open(case.build(turned).index)
    different = case.search(other, sample.queries)
    when = "while another index is open too: is something shared by all objects of the class?"
    case.alike(case.search(case.opened, sample.queries), case.found, when, method="open")
    case.alike(case.search(again, sample.queries), case.found, when, method="open")
    case.alike(case.search(other, sample.queries), different, when, method="open")


@INDEXERS.property(after=_SAVED, once=True)
def memory(case: IndexerCase) -> str:
    """Repeated searches do not leak memory."""
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


@INDEXERS.property(after=_SAVED)
def odd_texts(case: IndexerCase) -> None:
    """Passages without words, in any script, or with characters of a query syntax raise nothing."""
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
    """`contributions` of a query's terms add up to the score, or raises UnsupportedError."""
    case.only("texts")
    query, ids, scores = case.main.sample.queries[0], case.found[0][0], case.found[1][0]
    for row, terms_of in enumerate(case.opened.contributions(query, ids)):
        if not np.isclose(sum(terms_of.values()), scores[row], rtol=0.02, atol=1e-2):
            msg = f"the contributions of the terms to the score of '{ids[row]}' do not add up to it"
            found = float(sum(terms_of.values()))
            fail(msg, expected=float(scores[row]), found=found, method="contributions")


@INDEXERS.property(after=_SAVED, once=True)
def changes(case: IndexerCase) -> None:
    """`changed` keeps the old index intact, deletes and adds texts, or raises UnsupportedError."""
    case.only("texts")
    gone, target = case.found[0][0][0], case.new_folder()
    target.mkdir()
    added = Corpus.of([Passage("new", "Atlantis", "The seat of government is Poseidonis.")])
    case.new().changed(case.main.index, target, deleted={gone}, added=added, compact=False)
    queries = [*case.main.sample.queries, "government in poseidonis"]
    ids, _ = case.search(case.open(target), queries, 2 * len(case.main.sample))
    if left := [row for row, one in enumerate(ids) if gone in one]:
        fail(f"query {left[0]} finds a text that was deleted", found=gone, method="changed")
    if list(ids[-1][:1]) != ["new"]:
        fail("a text that was added is not found", expected="new", found=shown(ids[-1]), method="changed")
    case.alike(case.search(case.opened, case.main.sample.queries), case.found, "after a change into another folder")


def check_indexer(name: str, folder: str | Path | None = None, *, recall: float = 1.0, **options: Any) -> None:
    """Check that an indexer fulfils the contract: it finds the same as brute force, and its folder is self-contained.

    It is tested with each kind of texts that it supports: one vector per text, several, several with keys, weights,
    both, or words.

    Args:
        name: Registered name of the indexer.
        folder: Folder for indexes; None = a temporary folder.
        recall: For approximate indexers: the minimum share of the ten best texts that must be found. Below 1, scores
            may be off by 5 %.
        options: Options of the indexer.
    """
    INDEXERS.check(name, folder=folder, recall=recall, **options)
