"""The properties of an indexer's files and processes: what is moved, killed, opened by others, or grows."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

from retrievalkit.artifacts import MANIFEST
from retrievalkit.contracts import Indexer
from retrievalkit.errors import InputError, RetrievalkitError
from retrievalkit.indexing.build import build_index
from retrievalkit.search.sources import open_index
from retrievalkit.testing import elsewhere
from retrievalkit.testing.indexer_cases import HITS, INDEXERS, IndexerCase
from retrievalkit.testing.properties import PropertyError
from retrievalkit.testing.samples import Sample

_SAVED = ("build_open_search", "state_is_saved")
_ROUNDS, _MOST_KEPT = 5, 1 << 16
_SMALL, _GROWTH, _SLACK = 75, 25.0, 1 << 16


@INDEXERS.property(after=_SAVED)
def moved_folder(case: IndexerCase) -> None:
    """A copy of the folder is searched while the source and the first folder are gone: no path is kept in it."""
    with case.elsewhere(case.main) as copied:
        try:
            found = case.search(case.open(copied), case.main.sample.queries)
        except PropertyError:
            raise
        except Exception as error:
            msg = f"a copy of the index raises {type(error).__name__} once the source is gone: {error}"
            raise PropertyError(msg.rstrip("."), method="build") from error
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
    code, found, error = elsewhere.started(built.folder, "search", *arguments)
    if found is None:
        msg = f"another process cannot search the index: {error or f'exit code {code}'}"
        raise PropertyError(msg.rstrip("."), method="open")
    case.same(found, expected, "in another process", method="build")


@INDEXERS.property(after=_SAVED, once=True)
def killed_build(case: IndexerCase) -> None:
    """`rkit index`, killed half-way, leaves nothing that can be opened, and can be run again."""
    folder = case.new_folder()
    source = case.sample().write(folder / "source")
    output = folder / "index"
    code, _, error = elsewhere.started(folder, "build_and_die", case.name, case.options, source, output)
    if code >= 0:
        msg = f"build does not come to its end: {error}" if error else "build reads nothing, and is not killed"
        raise PropertyError(msg.rstrip("."), method="build")
    if output.exists():
        msg = f"a build that was killed leaves '{output.name}', where a whole index should be"
        raise PropertyError(msg, found=sorted(one.name for one in output.iterdir())[:3], method="build")
    build_index(source, indexer=case.name, output=output, options=case.options)
    found = case.search(open_index(output).indexer, case.main.sample.queries)
    case.same(found, case.found, "in an index that was built after a killed build", method="build")


@INDEXERS.property(after=_SAVED, once=True)
def manifest(case: IndexerCase) -> None:
    """The folder of `rkit index` opens by its manifest, and is refused where that is of a newer version."""
    folder = case.new_folder()
    output = folder / "index"
    made = build_index(case.sample().write(folder / "source"), indexer=case.name, output=output, options=case.options)
    found = case.search(open_index(output).indexer, case.main.sample.queries)
    case.same(found, case.found, "in the folder of `rkit index`", method="build")
    (output / MANIFEST).write_text(json.dumps({**made, "format": made["format"] + 1}))
    try:
        open_index(output)
    except InputError:
        return
    msg = "an index with the manifest of a newer version is opened"
    raise PropertyError(msg, method="open")


@INDEXERS.property(after=_SAVED)
def source_untouched(case: IndexerCase) -> None:
    """Building changes nothing in the folder of the source."""
    fresh = case.new_folder()
    case.sample().write(fresh)
    case.found  # noqa: B018 - the index has been built and searched
    root = case.main.source if case.main.source.is_dir() else case.main.source.parent
    before, after = _contents(fresh), _contents(root)
    if changed := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        msg = "build changes the source"
        raise PropertyError(msg, expected=sorted(before)[:5], found=changed[:5], method="build")


def _contents(folder: Path) -> dict[str, str]:
    files = (one for one in folder.rglob("*") if one.is_file() and one.suffix != ".pickle")
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


@INDEXERS.property(after=_SAVED)
def size_of_folder(case: IndexerCase) -> str:
    """The folder grows as the source does, and not with the square of the number of texts."""
    few, many = case.main.sample.first(_SMALL), case.main
    part = case.build(replace(few, ids=few.ids))
    texts = case.main.sample
    grown = _bytes(many.index) - _bytes(part.index)
    source = max(1, _source_bytes(texts) - _source_bytes(few))
    if grown > _GROWTH * source + _SLACK:
        msg = f"with {len(texts)} texts instead of {len(few)} the folder grows by {grown:,} bytes"
        raise PropertyError(msg, expected=f"at most {_GROWTH:.0f} times the source's {source:,}", method="build")
    return f"{max(0, grown) / source:.1f} bytes for each of the source"


def _source_bytes(sample: Sample) -> int:
    if sample.form == "texts":
        return sum(len(title) + len(text) for title, text in sample.texts)
    tensors = (sample.texts.vectors, sample.texts.weights)
    return sum(one.numel() * one.element_size() for one in tensors if one is not None)


def _bytes(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


@INDEXERS.property(after=_SAVED, once=True)
def memory(case: IndexerCase) -> str:
    """Searching again and again keeps no memory."""
    sample, indexer = case.main.sample, case.opened
    tracemalloc.start()
    try:
        before = _after_searches(indexer, sample)
        kept = _after_searches(indexer, sample) - before
    finally:
        tracemalloc.stop()
    if kept > _MOST_KEPT:
        msg = f"{_ROUNDS} searches keep memory"
        raise PropertyError(msg, expected=f"at most {_MOST_KEPT:,} bytes", found=f"{kept:,}", method="search")
    return f"{max(0, kept):,} bytes kept by {_ROUNDS} searches"


def _after_searches(indexer: Indexer, sample: Sample) -> int:
    for _ in range(_ROUNDS):
        indexer.search(sample.queries, len(sample))
    return tracemalloc.get_traced_memory()[0]


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
        msg = "an index of nothing finds something"
        raise PropertyError(msg, found=ids[0], method="search")
