"""The properties of an indexer's answers: which texts are found, in which order, with which scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import JoinedStore, VectorStore
from retrievalkit.errors import UnsupportedError
from retrievalkit.testing.indexer_cases import HITS, INDEXERS, TEXTS, IndexerCase, shown
from retrievalkit.testing.properties import PropertyError
from retrievalkit.testing.samples import ODD_IDS, tied

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
        msg = "build returns something else than numbers by name"
        raise PropertyError(msg, expected={"texts": len(case.main.sample)}, found=counts, method="build")
    case.main.indexer.open(case.main.index)
    case.search(case.main.indexer, case.main.sample.queries)
    return f"{len(case.main.sample)} texts, {len(case.main.sample.queries)} queries"


@INDEXERS.property(after=["build_open_search"])
def state_is_saved(case: IndexerCase) -> None:
    """Another object opens the folder and finds the same as the one that built it."""
    before = case.search(case.main.indexer, case.main.sample.queries)
    try:
        after = case.found
    except PropertyError:
        raise
    except Exception as error:
        msg = f"an object that did not build the index raises {type(error).__name__}: {error}"
        raise PropertyError(msg.rstrip("."), method="build") from error
    case.same(after, before, "once another object has opened the index: keep all state in the folder", method="build")


@INDEXERS.property(after=_SAVED)
def float32_scores(case: IndexerCase) -> None:
    """Scores are arrays of float32, from `search` and from `scores`."""
    for row, scores in enumerate(case.found[1]):
        dtype = getattr(scores, "dtype", type(scores).__name__)
        if not isinstance(scores, np.ndarray) or dtype != np.float32:
            msg = f"search gives query {row} scores of another type"
            raise PropertyError(msg, expected="float32", found=dtype, method="search")
    try:
        (given,) = case.opened.scores(case.main.sample.asked(slice(0, 1)), [case.found[0][0]])
    except UnsupportedError:
        return
    if getattr(given, "dtype", None) != np.float32:
        msg, found = "`scores` gives scores of another type", getattr(given, "dtype", type(given).__name__)
        raise PropertyError(msg, expected="float32", found=found, method="scores")


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
            msg = f"{which} gets scores that are not finite"
            raise PropertyError(msg, found=np.asarray(scores)[~np.isfinite(scores)][:3].tolist(), method="search")


@INDEXERS.property(after=_SAVED)
def best_first(case: IndexerCase) -> None:
    """At most k texts, none twice, with scores that never rise."""
    for row, (ids, scores) in enumerate(zip(*case.found, strict=True)):
        if len(ids) > HITS or len(set(ids)) < len(ids):
            msg = f"query {row} gets more than k texts, or one twice"
            raise PropertyError(msg, expected=HITS, found=f"{len(ids)} ({shown(ids)})", method="search")
        rises = np.flatnonzero(np.diff(scores) > 0)
        if len(rises):
            msg = f"query {row} gets a score at place {rises[0] + 2} that is above the one before"
            raise PropertyError(msg, found=scores[rises[0] : rises[0] + 2].tolist(), method="search")


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
            # Who lowers equal scores by a little has an order of its own.
            parted = len(set(np.asarray(values).tolist())) == len(values)
            if list(found) != by_row and not (parted and list(found) == by_id):
                msg = f"query {row} with k={k} gets equal texts in another order than that of the index"
                raise PropertyError(msg, expected=" ".join(by_row), found=" ".join(found), method="search")


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
            msg = f"query {row} with k={2 * len(sample)} gets a text twice"
            raise PropertyError(msg, expected=len(set(found)), found=len(found), method="search")
        if case.form != "texts" and len(found) < case.recall * matching[row]:
            msg = f"query {row} with k={2 * len(sample)} gets fewer texts than there are"
            raise PropertyError(msg, expected=int(matching[row]), found=len(found), method="search")
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
        raise PropertyError("a query gets other texts", expected=sample.ids, found=ids[0], method="build")


@INDEXERS.property(after=_SAVED)
def odd_ids(case: IndexerCase) -> None:
    """Ids with spaces, slashes, quotes and letters of any script come back as they are."""
    whole = case.sample()
    odd = [*ODD_IDS, *(f"Ω {row}" for row in range(len(ODD_IDS), len(whole)))]
    sample = replace(whole, ids=odd)
    opened = case.open(case.build(sample).index)
    for row, (ids, plain) in enumerate(zip(case.search(opened, sample.queries)[0], case.found[0], strict=True)):
        wanted = [odd[whole.ids.index(one)] for one in plain]
        # Equal scores may be in the order of ids.
        alike = ids[:1] == wanted[:1] if case.form == "texts" else ids == wanted
        if not alike or not set(ids) <= set(odd):
            msg = f"query {row} gets other ids than those of the texts that it found as t0, t1 ..."
            raise PropertyError(msg, expected=shown(wanted), found=shown(ids), method="build")
    everything = {one for ids in case.search(opened, sample.queries, len(odd))[0] for one in ids}
    if case.recall == 1 and (missing := sorted(set(odd) - everything)) and case.form != "weights":
        raise PropertyError("ids never come back", expected=len(odd), found=f"all but {missing[:3]}", method="build")


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
            msg = f"query {row}: a text that is not in the index gets no NaN"
            raise PropertyError(msg, expected="nan", found=values[-1:], method="scores")
        difference = float(np.abs(np.asarray(values)[:-1] - expected).max(initial=0))
        if not difference <= 10 * case.tolerance(expected):
            msg = f"query {row}: `scores` and `search` give the same texts other scores"
            raise PropertyError(msg, difference=difference, method="scores")


@INDEXERS.property(after=(*_SAVED, "brute_force"), once=True)
def segments(case: IndexerCase) -> None:
    """`open_joined` searches segments as one, without deleted texts, or returns False."""
    case.only("vectors", "several", "weights", "both")
    sample, gone = case.sample(), case.found[0][0][0]
    halves = [sample.first(TEXTS // 2), replace(sample, ids=sample.ids[TEXTS // 2 :], texts=_last(sample.texts))]
    stores = [VectorStore(case.build(one).source, view=case.created().view) for one in halves]
    indexer = case.created()
    if not indexer.open_joined(lambda: JoinedStore(stores, [{gone}, {gone}])):
        msg = "it opens each segment by itself."
        raise UnsupportedError(msg)
    found = case.search(indexer, sample.queries)
    rows = [row for row, one in enumerate(sample.ids) if one != gone]
    left = replace(sample, ids=[sample.ids[row] for row in rows], texts=sample.texts.rows(np.array(rows)))
    case.compare_with_truth(found, left, "of two segments, with a text deleted")


def _last(texts: Representation) -> Representation:
    return texts.rows(slice(TEXTS // 2, TEXTS))
