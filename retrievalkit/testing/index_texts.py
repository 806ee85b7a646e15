"""The properties of indexers of texts, which nothing but sense can be compared with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.testing.indexer_cases import INDEXERS, IndexerCase, shown
from retrievalkit.testing.properties import PropertyError

_SAVED = ("build_open_search", "state_is_saved")
_TERM_SHARE = 0.02


@INDEXERS.property(after=_SAVED)
def sensible_texts(case: IndexerCase) -> str:
    """A query with words that a single passage has finds that passage first, by its title too."""
    case.only("texts")
    sample = case.main.sample
    by_title = case.search(case.opened, [title for title, _ in sample.texts[:12]])[0]
    for kind, found in (("words of its text", case.found[0]), ("its title", by_title)):
        for row, ids in enumerate(found):
            if list(ids[:1]) != [sample.ids[row]]:
                msg = f"the passage about {sample.texts[row][0]} is not the first for a query of {kind}"
                raise PropertyError(msg, expected=sample.ids[row], found=shown(ids), method="search")
    return f"{len(case.found[0]) + len(by_title)} queries"


@INDEXERS.property(after=_SAVED)
def odd_texts(case: IndexerCase) -> None:
    """Passages without a word, in any script or with the signs of a query language raise nothing."""
    case.only("texts")
    whole = case.sample()
    odd = (("", ""), ("", "   "), ("漢字", "東京は日本の首都です"), ("", "AND OR NOT ( [ { \" * ~ ^ \\"), ("", "🙂\u0000\u200b"))
    ids = [*whole.ids, *(f"odd{row}" for row in range(len(odd)))]
    opened = case.open(case.build(replace(whole, ids=ids, texts=[*whole.texts, *odd])).index)
    queries = [*(f"{title} {text}" for title, text in odd), "x" * 5000, "lima " * 500, "capital:lima AND (peru"]
    case.search(opened, queries)
    peru = whole.ids[next(row for row, (title, _) in enumerate(whole.texts) if title == "Peru")]
    found = case.search(opened, ["government of lima"])[0][0]
    if list(found[:1]) != [peru]:
        raise PropertyError("among such passages others are not found", expected=peru, found=shown(found), method="build")


@INDEXERS.property(after=_SAVED)
def terms(case: IndexerCase) -> None:
    """`contributions` of the terms of a query add up to the score, or it raises UnsupportedError."""
    case.only("texts")
    query, ids, scores = case.main.sample.queries[0], case.found[0][0], case.found[1][0]
    for row, terms_of in enumerate(case.opened.contributions(query, ids)):
        if not np.isclose(sum(terms_of.values()), scores[row], rtol=_TERM_SHARE, atol=1e-2):
            msg = f"the contributions of the terms to the score of '{ids[row]}' do not add up to it"
            found = float(sum(terms_of.values()))
            raise PropertyError(msg, expected=float(scores[row]), found=found, method="contributions")


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
        raise PropertyError(f"query {left[0]} finds a text that was deleted", found=gone, method="changed")
    if list(ids[-1][:1]) != ["new"]:
        raise PropertyError("a text that was added is not found", expected="new", found=shown(ids[-1]), method="changed")
    case.same(case.search(case.opened, case.main.sample.queries), case.found, "after a change into another folder")

