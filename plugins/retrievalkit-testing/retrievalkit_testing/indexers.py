"""The conformance tests of indexers: results, folders, processes, texts, and detection of damage."""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
import tracemalloc
import unicodedata
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

import numpy as np
import torch

from retrievalkit import registry, scoring
from retrievalkit.contracts import Allowed, Indexer, Representation
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.records import id_problem
from retrievalkit.data.vectors import JoinedStore, VectorStore, VectorWriter
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import expect_typed_keywords
from retrievalkit_testing.properties import Kit, accepted, expect, fail, leave_out, tried
from retrievalkit_testing.samples import COUNTRIES
from retrievalkit_testing.shared import Subject, forget_written, share

DIM, TERMS = 16, 30
TEXTS, FEW, HITS = 300, 40, 10
_SHOWN = 5

Form = Literal["vectors", "several", "keyed", "weights", "both", "texts"]
"""Kinds of texts: one vector, one to three vectors, the same with keys, weights, a vector and weights, or words."""
_VECTORS: tuple[Form, ...] = ("vectors", "several", "keyed", "weights", "both")

ODD_IDS = (
    "with space", "a/b/../c", "..", "\u00fcn\u00efc\u00f6d\u00e9", "\u6f22\u5b57", "\U0001f642", "-1", "007", "7",
    "'quoted'", '"quoted"', "a,b;c", "null", "x" * 300, "%20", "back\\nslash", "[1]", "*", "\uff21", "\u00e9",
    "e\u0301", "a\u00a0b", "Id", "ID",
)  # fmt: skip
"""Ids that a store or a query language may misinterpret; two of them look the same."""

Hits = tuple[list[list[str]], list[np.ndarray]]
"""The result of `Indexer.search`: ids and scores of each query."""


@dataclass
class Sample:
    """Texts to index, and queries to search them; shards end at the cuts."""

    form: Form
    ids: list[str]
    texts: Any
    queries: Any
    cuts: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: Sequence[int]) -> Sample:
        """Return the sample with some of its texts."""
        texts = [self.texts[row] for row in rows] if self.form == "texts" else self.texts.rows(torch.tensor(rows))
        return replace(self, ids=[self.ids[row] for row in rows], texts=texts)

    def truth(self, view: str = "all") -> np.ndarray:
        """(queries, texts) float32: the scores of all texts by the scoring rule."""
        queries, texts = self.queries, self.texts
        if view != "all":
            other = "weights" if view == "vectors" else "vectors"
            queries, texts = (replace(side, **{other: None}) for side in (queries, texts))
        return scoring.scores(queries, texts).numpy()

    def write(self, folder: Path) -> Path:
        """Write the indexer's input, a vectors/ folder or a corpus file, to a new folder; returns its path."""
        import scipy.sparse

        folder.mkdir(parents=True)
        if self.form == "texts":
            rows = zip(self.ids, self.texts, strict=True)
            lines = [json.dumps({"_id": name, "title": title, "text": text}) + "\n" for name, (title, text) in rows]
            (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
            return folder / "corpus.jsonl"
        writer = VectorWriter(folder)
        for shard, (start, end) in enumerate(itertools.pairwise([0, *self.cuts, len(self)])):
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


def queries_of(form: Form, count: int, seed: int) -> Representation:
    """Draw random queries for indexes of this form; for some seeds, the first is a query of zeros."""
    queries = _side(form, count, 2, seed + 1000)
    for numbers in (queries.vectors, queries.weights):
        if numbers is not None and seed % 4 == 3:
            numbers[:1] = 0
    return queries


def _side(form: Form, rows: int, most: int, seed: int) -> Representation:
    """Draw random texts. Weights are multiples of 1/255 up to 1, so an index that rounds to 8 bits loses nothing."""
    draw, most = np.random.default_rng(seed), most if form in ("several", "keyed") else 1
    parts: dict[str, Any] = {}
    if form != "weights":
        parts["vectors"] = torch.from_numpy(draw.standard_normal((rows, most, DIM), dtype=np.float32))
    if form in ("several", "keyed"):
        counts = torch.from_numpy(draw.integers(1, most + 1, rows))
        counts[:1] = most
        parts["vector_mask"] = torch.arange(most) < counts[:, None]
    if form == "keyed":
        parts["keys"] = torch.from_numpy(draw.integers(0, 3, (rows, most)))
    if form in ("weights", "both"):
        levels = draw.integers(0, 256, (rows, TERMS))
        parts["weights"] = torch.from_numpy((levels * (levels > 127) / 255).astype(np.float32))
    return Representation(**parts)


def countries() -> Sample:
    """Return a passage about each country, and queries for capitals and currencies in the words of a passage."""
    rows = [[word.replace("-", " ") for word in line.split()] for line in COUNTRIES.split("|")]
    texts = [
        (country, f"The seat of government is {capital}, people pay with the {currency}, and speak {language}.")
        for country, capital, currency, language in rows
    ]
    queries = [f"which country has its government in {capital}" for _, capital, _, _ in rows[:12]]
    return Sample("texts", [f"c{row}" for row in range(len(rows))], texts, queries)


@dataclass
class Search:
    """The arguments of a search."""

    queries: Any
    k: int


class Built:
    """An index built from a sample."""

    def __init__(self, indexer: Indexer, sample: Sample, folder: Path) -> None:
        self.sample, self.folder, self.index, self.indexer = sample, folder, folder / "index", indexer
        self.source = folder / "source" / ("corpus.jsonl" if sample.form == "texts" else "")
        if not self.index.is_dir():
            sample.write(folder / "source")
            self.index.mkdir()
            forget_written()
            opened: Any = VectorStore(self.source) if self.source.is_dir() else open_corpus(self.source)
            self.counts = indexer.build(opened, self.index)


class IndexerCase(Subject):
    """An indexer with one kind of texts."""

    kind = "indexer"

    def __init__(self, name: str, form: Form, folder: Path, options: dict[str, Any], recall: float = 1.0) -> None:
        super().__init__(name, form, options)
        self.form, self.folder, self.recall = form, folder, recall
        self.view = self.create(self.options).view
        # Another process opens the indexes of this process.
        self.shared = {"folder": str(folder.parent)}
        self.draws = {"texts": (FEW, TEXTS), "queries": sorted([*range(4), *sizes(1, 100)])}
        self.draws |= {"k": (1, HITS, 64, 2 * TEXTS), "seed": SEEDS}
        self.large = {"texts": sizes(1, 5000), "queries": sizes(1, 70), "shards": range(1, 5), "seed": SEEDS}
        self.typical = [{"texts": TEXTS, "queries": 12, "k": HITS, "seed": 0}]

    @property
    def of_weights(self) -> bool:
        """True if a text that shares no term with the query need not be a hit."""
        return self.form == "weights" or self.view == "weights"

    def built(self, texts: int) -> Built:
        """Return an index with a number of texts, built once; another process opens the same index."""
        sample = self.sample(texts)
        return Built(self.create(self.options), sample, self.folder / f"of {len(sample)} texts")

    def created(self, drawn: Drawn) -> Indexer:
        return self.open(self.built(drawn["texts"]).index)

    def inputs(self, drawn: Drawn) -> Search:
        queries, seed = drawn["queries"], drawn["seed"]
        if self.form == "texts":
            return Search(
                list(itertools.islice(itertools.cycle(countries().queries), seed, seed + queries)), drawn["k"]
            )
        return Search(queries_of(self.form, queries, seed), drawn["k"])

    def call(self, component: Indexer, inputs: Search) -> Any:
        return component.search(inputs.queries, inputs.k)

    def read(self, inputs: Search, result: Hits) -> list[tuple[list[str], np.ndarray]]:  # noqa: ARG002 - by contract
        return [(list(ids), np.asarray(scores)) for ids, scores in zip(*result, strict=True)]

    def rows(self, inputs: Search) -> int:
        return len(inputs.queries)

    def chosen(self, inputs: Search, rows: Sequence[int]) -> Search:
        if self.form == "texts":
            return Search([inputs.queries[row] for row in rows], inputs.k)
        return Search(inputs.queries.rows(torch.tensor(rows, dtype=torch.long)), inputs.k)

    def near(self, inputs: Search) -> Search:
        """Return slightly different queries."""
        if self.form == "texts":
            return Search([f"{query} city" for query in inputs.queries], inputs.k)
        changed = {}
        for name in ("vectors", "weights"):
            if (numbers := getattr(inputs.queries, name)) is not None:
                changed[name] = numbers.clone()
                changed[name][..., 0] += 4e-3
        return Search(replace(inputs.queries, **changed), inputs.k)

    def same(self, problem: str, actual: Any, expected: Any) -> None:
        """Fail if hits differ, other than in the order of texts with equal scores up to rounding."""
        if actual and isinstance(actual[0], list):
            actual, expected = (list(itertools.chain.from_iterable(hits)) for hits in (actual, expected))
        for row, ((ids, scores), (known, values)) in enumerate(zip(actual, expected, strict=True)):
            least, by_id = self.tolerance_of(values), dict(zip(known, values, strict=True))
            if len(ids) != len(known):
                fail(f"query {row}: {problem}", expected=shown(known), actual=shown(ids))
            for place, (name, score) in enumerate(zip(ids, scores, strict=True)):
                reference = by_id.get(name, values[-1])
                if name != known[place] and not abs(score - values[place]) <= least:
                    fail(f"query {row}: {problem}", expected=shown(known), actual=shown(ids))
                if not abs(score - reference) <= least:
                    fail(f"query {row}, '{name[:20]}': {problem}", expected=float(reference), actual=float(score))

    def exercise(self, drawn: Drawn) -> None:
        built = self.build(self.sample(drawn["texts"]).part(range(FEW)))
        self.kept = (built.folder / "source",)
        self.call(self.open(built.index), self.inputs(drawn))

    def check_form(self, inputs: Search, result: Any) -> None:
        shape = [len(part) for part in result] if isinstance(result, tuple) else type(result).__name__
        problem = "search does not return ids and scores for each query"
        expect(shape == [len(inputs.queries)] * 2, problem, expected=[len(inputs.queries)] * 2, actual=shape)
        for row, (ids, scores) in enumerate(zip(*result, strict=True)):
            dtype = scores.dtype if isinstance(scores, np.ndarray) else type(scores).__name__
            expect(dtype == np.float32, f"scores of query {row} have another type", expected="float32", actual=dtype)
            strings = len(ids) == len(scores) and all(isinstance(name, str) for name in ids)
            problem = f"query {row} has {len(ids)} ids ({shown(ids)}), not all strings, or another number of scores"
            expect(strings, problem, expected=len(ids), actual=len(scores))
            wrong = scores[~np.isfinite(scores)][:3].tolist()
            expect(not wrong, f"scores of query {row} are not finite", actual=wrong)
            distinct, actual = len(ids) <= inputs.k and len(set(ids)) == len(ids), f"{len(ids)} ({shown(ids)})"
            expect(distinct, f"query {row} has more than k hits, or a text twice", expected=inputs.k, actual=actual)
            if len(rises := np.flatnonzero(np.diff(scores) > 0)):
                problem = f"query {row} has a score at rank {rises[0] + 2} above that of the rank before"
                fail(problem, actual=scores[rises[0] : rises[0] + 2].tolist())

    def sample(self, count: int = TEXTS) -> Sample:
        """Draw texts of this kind; the texts about countries are always the same."""
        if self.form == "texts":
            return countries()
        # Without ties among the scores of a query.
        names = [f"t{row}" for row in range(count)]
        return Sample(self.form, names, _side(self.form, count, 3, 0), queries_of(self.form, 8, 0))

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
    def hits(self) -> Hits:
        """Its results for all queries."""
        return self.search(self.opened, self.main.sample.queries)

    def new_folder(self) -> Path:
        """Return a path that does not exist yet, in this and other processes."""
        self.folder.mkdir(exist_ok=True)
        return Path(mkdtemp(dir=self.folder)) / "new"

    def build(self, sample: Sample) -> Built:
        """Build an index in a new folder."""
        return Built(self.create(self.options), sample, self.new_folder())

    def open(self, index: Path) -> Indexer:
        """Open the index with a new indexer."""
        indexer: Indexer = self.create(self.options)
        indexer.open(index)
        return indexer

    def search(self, indexer: Indexer, queries: Any, k: int = HITS) -> Hits:
        """Search, and check the form of the result."""
        hits: Hits = self.call(indexer, Search(queries, k))
        self.check_form(Search(queries, k), hits)
        return hits

    def searched(self, sample: Sample, k: int = HITS) -> Hits:
        """Build an index, open it with a new indexer and search it."""
        return self.search(self.open(self.build(sample).index), sample.queries, k)

    def alike(self, actual: Hits, expected: Hits, when: str) -> None:
        """Fail if two results of the same queries differ."""
        results = (list(zip(*hits, strict=True)) for hits in (actual, expected))
        self.same(f"hits or scores differ {when}", *results)

    def tolerance_of(self, scores: np.ndarray) -> float:
        """Return the tolerance for these scores; Lucene rounds BM25 to four decimals and lowers tied scores."""
        largest = float(np.abs(scores).max(initial=0))
        share = 0.05 if self.recall < 1 else 1e-3 if self.form == "texts" else 1e-4
        return share * largest + (1e-4 if self.form == "texts" else 1e-5)

    def compare_with_truth(self, hits: Hits, sample: Sample, when: str) -> None:
        """Fail if too few of the best texts are hits, or scores break the scoring rule."""
        truth, row_of, shares = sample.truth(self.view), {name: row for row, name in enumerate(sample.ids)}, []
        for row, (ids, scores) in enumerate(zip(*hits, strict=True)):
            unknown = [name for name in ids if name not in row_of]
            expect(not unknown, f"query {row} has hits that are not in the index ({when})", actual=shown(unknown))
            exact = truth[row][[row_of[name] for name in ids]]
            least, difference = self.tolerance_of(exact), np.abs(np.asarray(scores, dtype=np.float64) - exact)
            if not (difference <= least).all():
                place = int(np.nan_to_num(difference, nan=np.inf).argmax())
                problem = f"query {row} gives '{ids[place]}' another score than the scoring rule ({when})"
                fail(problem, expected=float(exact[place]), actual=float(scores[place]))
            best = np.sort(truth[row][truth[row] > 0] if self.of_weights else truth[row])[::-1][:HITS]
            # Any of the texts with the same score may be hits.
            share = (exact >= best[-1] - least).sum() / len(best) if len(best) else 1.0
            shares.append(min(1.0, float(share)))
            problem = f"query {row} misses texts of the best {HITS} of brute force ({when}); see `recall`"
            names = [sample.ids[text] for text in np.argsort(-truth[row], kind="stable")[:HITS]]
            expect(self.recall < 1 or share >= 1, problem, expected=shown(names), actual=shown(ids))
        problem = f"recall@{HITS} is too low ({when})"
        expect(np.mean(shares) >= self.recall, problem, expected=self.recall, actual=float(np.mean(shares)))


def indexer_cases(
    name: str, *, folder: str | Path | None = None, recall: float = 1.0, **options: Any
) -> list[IndexerCase]:
    """Return an indexer with each kind of texts that it supports; it must refuse others with UnsupportedError."""
    root = Path(mkdtemp(prefix="rkit-check-") if folder is None else folder)
    root.mkdir(parents=True, exist_ok=True)
    component: Any = registry.get("indexer", name)
    forms: tuple[Form, ...] = ("texts",) if component.indexes == "texts" else _VECTORS
    forms = tuple(form for form in forms if form != "keyed" or component.compares_keys)
    cases = [IndexerCase(name, form, root / form, options, recall) for form in forms]
    for case in cases if folder is None else ():  # a folder is removed with the last case that uses it
        weakref.finalize(case, shutil.rmtree, case.folder, ignore_errors=True)
    none = "it supports neither vectors nor weights."
    factories = [partial(tried, case, lambda case: case.build(case.sample().part(range(20)))) for case in cases]
    return accepted(factories, none=none)


def shown(ids: Sequence[str]) -> str:
    """Return the first few ids."""
    listed = ", ".join(str(name)[:20] for name in ids[:_SHOWN])
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
    """`build` returns numbers by name; another object has the same hits, from a copy of the folder alone."""
    built, inputs = case.build(case.sample()), case.inputs(case.typical[0])
    numbers = isinstance(built.counts, Mapping) and all(
        isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)
        for name, value in built.counts.items()
    )
    problem = "build does not return numbers by name"
    expect(numbers, problem, expected={"texts": len(built.sample)}, actual=built.counts, method="build")
    manifest = (built.index / "manifest.json").exists()
    expect(not manifest, "build writes 'manifest.json', which `rkit index` overwrites", method="build")
    built.indexer.open(built.index)
    expected, copied = case.answer(built.indexer, inputs), case.new_folder()
    shutil.copytree(built.index, copied)
    shutil.rmtree(built.folder)
    try:
        actual = case.answer(case.open(copied), inputs)
    except Exception as error:  # noqa: BLE001 - a component may raise anything
        problem = f"another object cannot search a copy of the folder ({type(error).__name__}: {error})"
        fail(f"{problem}: keep all state in the folder, and no paths", method="build")
    case.same("another object has other hits: keep all state in the folder", actual, expected)


@INDEXERS.property(once=True)
def options_typed(case: IndexerCase) -> None:
    """Options are typed keyword-only arguments, and their defaults have the type."""
    expect_typed_keywords(registry.get("indexer", case.name), "indexer")


share(INDEXERS, rows=True, threads=True)
_SAVED = ("build_open_search", "form", "inputs_unchanged", "same_twice", "no_memory")


@INDEXERS.property(after=_SAVED, draws="large", examples=10)
def brute_force(case: IndexerCase, drawn: Drawn) -> None:
    """Hits and scores equal those of brute force with the scoring rule, of up to 5,000 texts in several shards."""
    case.only(*_VECTORS)
    count = drawn["texts"]
    cuts = sorted({count * part // drawn["shards"] for part in range(1, drawn["shards"])} - {0, count})
    sample = replace(case.sample(count), cuts=cuts, queries=queries_of(case.form, drawn["queries"], drawn["seed"]))
    indexer = case.open(case.build(sample).index)
    case.compare_with_truth(case.search(indexer, sample.queries), sample, f"{count} texts, k={HITS}")
    matching = (sample.truth("weights") > 0).sum(axis=1) if case.of_weights else [count] * drawn["queries"]
    for row, ids in enumerate(case.search(indexer, sample.queries.rows(slice(0, 4)), 2 * count)[0]):
        problem = f"query {row} with k={2 * count} has fewer hits than there are texts"
        expect(len(ids) >= case.recall * matching[row], problem, expected=int(matching[row]), actual=len(ids))


@INDEXERS.property(after=_SAVED, draws="large", examples=5)
def words(case: IndexerCase, drawn: Drawn) -> None:
    """Of up to 5,000 passages, the only passage with a word in its text or title is the first hit for it."""
    case.only("texts")
    names = [f"w{number}x" for number in range(drawn["texts"])]
    texts = [(f"{name} story", f"The {name[::-1]} is number {name[1:-1]} of many.") for name in names]
    opened = case.open(case.build(Sample("texts", names, texts, [])).index)
    wanted = np.random.default_rng(drawn["seed"]).choice(names, drawn["queries"]).tolist()
    for queries in ([f"which {name}" for name in wanted], [f"the {name[::-1]}" for name in wanted]):
        for name, query, ids in zip(wanted, queries, case.search(opened, queries)[0], strict=True):
            problem = f"of {len(names)} passages, that with the word '{query.split()[1]}' is not the first hit"
            expect(list(ids[:1]) == [name], problem, expected=name, actual=shown(ids))


@INDEXERS.property(after=_SAVED)
def any_ids(case: IndexerCase) -> None:
    """Ids of any script, with spaces, slashes and quotes, are returned unchanged."""
    draw, some = random.Random(0), list(ODD_IDS)
    while len(some) < FEW + len(ODD_IDS):
        name = "".join(chr(draw.randrange(32, 1 << draw.randint(7, 17))) for _ in range(draw.randint(1, 40)))
        odd = {unicodedata.category(letter) for letter in name} & {"Cc", "Cs", "Cn"}
        some += [] if odd or id_problem(name) or name in some else [name]
    whole = case.sample(len(some))
    ids = some[: len(whole)]
    results = [case.searched(replace(whole, ids=names), 2 * len(ids))[0] for names in (whole.ids, ids)]
    for row, (known, actual) in enumerate(zip(*results, strict=True)):
        wanted = [ids[whole.ids.index(name)] for name in known]
        # Ties may be in id order.
        if sorted(wanted) != sorted(actual) or (wanted != actual and case.form != "texts"):
            strange = sorted(set(actual) - set(ids)) or sorted(set(wanted) - set(actual))
            problem = f"query {row} has other ids than those of its texts"
            fail(problem, expected=shown(sorted(set(wanted) - set(actual))), actual=shown(strange), method="build")


@INDEXERS.property(after=(*_SAVED, "order"))
def order_of_texts(case: IndexerCase) -> None:
    """Texts indexed in another order have the same scores."""
    sample = case.sample()
    turned = sample.part(np.random.default_rng(0).permutation(len(sample)).tolist())
    case.alike(case.searched(turned), case.hits, "if the texts are indexed in another order")


@INDEXERS.property(after=_SAVED)
def ties(case: IndexerCase) -> None:
    """Texts with equal scores rank in the order of the index, also at the cut-off k."""
    case.only("vectors", "weights", "both")
    # Sums of zeros and ones are exact; ids are not in the order of the texts.
    few = case.sample(4)
    texts, queries = (
        replace(side, vectors=_rough(side.vectors), weights=_rough(side.weights)) for side in (few.texts, few.queries)
    )
    copies = replace(few, texts=texts, queries=queries).part(list(range(4)) * 6)
    sample = replace(copies, ids=[f"t{row * 7 % 24}" for row in range(24)])
    opened, truth = case.open(case.build(sample).index), sample.truth(case.view)
    for k in (5, 24):
        for row, (ids, scores) in enumerate(zip(*case.search(opened, queries, k), strict=True)):
            most = min(k, int((truth[row] > 0).sum()) if case.of_weights else 24)
            by_row = [sample.ids[text] for text in np.argsort(-truth[row], kind="stable")][:most]
            by_id = [sample.ids[text] for text in np.lexsort((np.array(sample.ids), -truth[row]))][:most]
            # An indexer that lowers tied scores slightly has its own order.
            parted = len(set(np.asarray(scores).tolist())) == len(scores)
            problem = f"query {row} with k={k} has equal texts in another order than that of the index"
            ordered = list(ids) == by_row or (parted and list(ids) == by_id)
            expect(ordered, problem, expected=" ".join(by_row), actual=" ".join(ids))


def _rough(numbers: torch.Tensor | None) -> torch.Tensor | None:
    return None if numbers is None else (numbers > 0).float()


@INDEXERS.property(after=_SAVED)
def scores(case: IndexerCase) -> None:
    """`scores` returns the scores of `search`, NaN for unknown ids, or raises UnsupportedError."""
    queries, ids = case.main.sample.queries, [[*names[::-1], "nobody"] for names in case.hits[0][:3]]
    queries = queries[:3] if case.form == "texts" else queries.rows(slice(0, 3))
    for row, values in enumerate(case.opened.scores(queries, ids)):
        expected = np.asarray(case.hits[1][row])[::-1]
        missing, problem = len(values) == len(ids[row]) and np.isnan(values[-1]), "an unknown id has a score"
        expect(missing, f"query {row}: {problem}", expected="nan", actual=values[-1:], method="scores")
        difference = float(np.abs(np.asarray(values)[:-1] - expected).max(initial=0))
        problem = f"query {row}: scores of `scores` and `search` differ"
        same = difference <= 10 * case.tolerance_of(expected)
        expect(same, problem, difference=difference, method="scores")


@INDEXERS.property(after=_SAVED)
def filtered(case: IndexerCase) -> None:
    """A filtered search returns the unfiltered hits without the excluded texts, with the same scores."""
    sample = case.main.sample
    every = case.search(case.opened, sample.queries, len(sample))
    order = np.random.default_rng(0).permutation(len(sample))
    for count in (1, 2, len(sample) // 10, len(sample) // 2, len(sample)):
        allowed = Allowed([sample.ids[row] for row in sorted(order[:count])], len(sample))
        hits, when = case.opened.search_among(sample.queries, HITS, allowed), f"among {count} of {len(sample)} texts"
        wrong = [name for ids in hits[0] for name in ids if name not in allowed]
        expect(not wrong, f"a search {when} has others as hits", actual=shown(wrong), method="search_among")
        kept = [[row for row, name in enumerate(ids) if name in allowed][:HITS] for ids in every[0]]
        names = [[ids[row] for row in rows] for ids, rows in zip(every[0], kept, strict=True)]
        if case.recall == 1:
            values = [np.asarray(some)[rows] for some, rows in zip(every[1], kept, strict=True)]
            case.alike(hits, (names, values), when)


@INDEXERS.property(after=(*_SAVED, "brute_force"), once=True)
def segments(case: IndexerCase) -> None:
    """`open_joined` searches segments as one index, without deleted texts, or returns False."""
    case.only(*_VECTORS)
    sample, gone, indexer = case.sample(), case.hits[0][0][0], case.create(case.options)
    halves = [sample.part(rows) for rows in (range(TEXTS // 2), range(TEXTS // 2, TEXTS))]
    stores = [VectorStore(case.build(half).source, view=case.view) for half in halves]
    if not indexer.open_joined(lambda: JoinedStore(stores, [{gone}, {gone}])):
        leave_out("it opens each segment by itself.")
    left = sample.part([row for row, name in enumerate(sample.ids) if name != gone])
    case.compare_with_truth(case.search(indexer, sample.queries), left, "of two segments, with a text deleted")


@INDEXERS.property(after=_SAVED)
def several_open(case: IndexerCase) -> None:
    """Several open indexes, one of them opened twice, do not interfere."""
    sample = case.main.sample
    turned = replace(sample.part([*range(5, len(sample)), *range(5)]), ids=sample.ids)
    again, other = case.open(case.main.index), case.open(case.build(turned).index)
    different = case.search(other, sample.queries)
    when = "while another index is open: does the class keep state of its objects?"
    for indexer, expected in ((case.opened, case.hits), (again, case.hits), (other, different)):
        case.alike(case.search(indexer, sample.queries), expected, when)


_ROUNDS, _MOST_KEPT = 5, 1 << 16


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
    kept, most = held[1] - held[0], f"at most {_MOST_KEPT:,} bytes"
    expect(kept <= _MOST_KEPT, f"{_ROUNDS} searches keep memory", expected=most, actual=f"{kept:,}")
    return f"{max(0, kept):,} bytes kept by {_ROUNDS} searches"


@INDEXERS.property(after=_SAVED)
def odd_texts(case: IndexerCase) -> None:
    """Passages without words, in any script, or with characters of a query syntax raise no error."""
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
    first = case.search(opened, ["government of lima"])[0][0]
    expect(list(first[:1]) == [peru], "other passages are not hits", expected=peru, actual=shown(first), method="build")


@INDEXERS.property(after=_SAVED)
def terms(case: IndexerCase) -> None:
    """`contributions` of a query's terms add up to the score, or raises UnsupportedError."""
    case.only("texts")
    query, ids, values = case.main.sample.queries[0], case.hits[0][0], case.hits[1][0]
    for row, of_terms in enumerate(case.opened.contributions(query, ids)):
        added, expected = float(sum(of_terms.values())), float(values[row])
        problem = f"the contributions of the terms do not add up to the score of '{ids[row]}'"
        same = np.isclose(added, expected, rtol=0.02, atol=1e-2)
        expect(same, problem, expected=expected, actual=added, method="contributions")


@INDEXERS.property(after=_SAVED, once=True)
def changes(case: IndexerCase) -> None:
    """`changed` keeps the old index intact, deletes and adds texts, or raises UnsupportedError."""
    case.only("texts")
    gone, target = case.hits[0][0][0], case.new_folder()
    target.mkdir()
    added = Corpus.of([Passage("new", "Atlantis", "The seat of government is Poseidonis.")])
    indexer: Indexer = case.create(case.options)
    indexer.changed(case.main.index, target, deleted={gone}, added=added, compact=False)
    queries = [*case.main.sample.queries, "government in poseidonis"]
    ids, _ = case.search(case.open(target), queries, 2 * len(case.main.sample))
    left = [row for row, names in enumerate(ids) if gone in names]
    expect(not left, f"queries {left} have a deleted text as hit", actual=gone, method="changed")
    new = list(ids[-1][:1]) == ["new"]
    expect(new, "an added text is not a hit", expected="new", actual=shown(ids[-1]), method="changed")
    again = case.search(case.opened, case.main.sample.queries)
    case.alike(again, case.hits, "after a change into another folder")
