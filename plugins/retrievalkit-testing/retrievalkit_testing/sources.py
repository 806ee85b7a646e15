"""The conformance tests of sources: rows of passages, queries, judgements and examples."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import PARTS, Source, open_source
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit_testing.drawing import Drawn
from retrievalkit_testing.option_effects import expect_typed_keywords
from retrievalkit_testing.properties import Kit, fail, leave_out
from retrievalkit_testing.samples import WORDS, tiny_collection
from retrievalkit_testing.shared import Subject, share

_ROWS = 2_000
"""Rows of a part that are compared."""


class SourceCase(Subject):
    """A source at an address."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.label, self.address = name, address.rpartition("/")[2], address
        self.parts = self.open().parts() or PARTS
        self.splits = self.open().splits()
        self.draws = {"part": st.sampled_from(self.parts), "split": st.sampled_from(self.splits)}
        self.typical = [{"part": one, "split": self.splits[0]} for one in self.parts if self.holds(one)]
        if not self.typical:
            msg = f"nothing of '{address}' can be read"
            raise InputError(msg)

    def holds(self, part: Any) -> bool:
        """True if a part has rows."""
        try:
            return next(iter(self.records(self.open(), part, self.splits[0])), None) is not None
        except InputError:
            return False
        except Exception:  # noqa: BLE001 - left to the properties
            return True

    def open(self) -> Source:
        """The source, opened again."""
        return open_source(self.address)

    def created(self, drawn: Drawn) -> Source:  # noqa: ARG002 - by contract
        return self.open()

    def given(self, drawn: Drawn) -> Any:
        if not any(one["part"] == drawn["part"] for one in self.typical):
            leave_out(f"it has no {drawn['part']}.")
        return (drawn["part"], drawn["split"])

    def call(self, component: Source, given: Any) -> Any:
        return list(islice(self.records(component, *given), _ROWS))

    def records(self, source: Source, part: Any, split: str) -> Any:
        """The rows of a part: as the source's own method yields them, if it has one."""
        own = getattr(type(source), part) is not getattr(Source, part)
        return (source._rows if own else source.records)(part, split)

    def read(self, given: Any, found: Any) -> list[dict[str, Any]]:  # noqa: ARG002 - by contract
        return [dict(getattr(row, "fields", row)) for row in found]

    def turned(self, given: Any, draw: np.random.Generator) -> Any:  # noqa: ARG002 - an address has no order
        return iter(())

    def check_form(self, given: Any, found: Any) -> None:
        for number, row in enumerate(found, 1):
            if not isinstance(getattr(row, "fields", row), dict):
                problem = f"row {number} of the {given[0]} is no mapping of field names to values"
                fail(problem, expected="a mapping", found=repr(row)[:60], method=given[0])


@cache
def _places() -> dict[str, Path]:
    """What a source may read: a folder of text files, and the files of the tiny collection, by their endings."""
    folder = Path(tempfile.mkdtemp(prefix="retrievalkit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    collection = tiny_collection(folder / "collection")
    (folder / "texts").mkdir()
    for number, text in enumerate(WORDS.split()):
        (folder / "texts" / f"{number}.txt").write_text(f"a text about {text}")
    return {"": folder / "texts", "jsonl": collection.corpus, "tsv": collection.qrels}


def _cases(name: str, *, address: str = "") -> list[SourceCase]:
    component, places = registry.get("source", name), _places()
    named = re.findall(rf"`({name}:[^`]+)`", component.__doc__ or "")
    offered = [address] if address else [*named, str(places.get(name, places[""]))]
    refusals = []
    for one in offered:
        try:
            return [SourceCase(name, f"{name}:{one.removeprefix(f'{name}:')}")]
        except InputError as error:
            refusals.append(error)
    msg = f"there is nothing to read ({refusals[0]}). Name an address: --set address={name}:NAME"
    raise UnsupportedError(msg)


SOURCES: Kit[SourceCase] = Kit(
    "source", _cases, method="passages", unchecked="more rows than 2,000, and other addresses"
)
share(SOURCES)


@SOURCES.property()
def options_typed(case: SourceCase) -> None:
    """Its constructor takes the name alone."""
    expect_typed_keywords(registry.get("source", case.name), "source")


@SOURCES.property(after=("form", "same_twice"))
def readable(case: SourceCase) -> str:
    """The commands read all of its parts: ids, texts and grades are valid, and no passage is there twice."""
    counts, address = {}, case.address
    for drawn in case.typical:
        part, split = drawn["part"], drawn["split"]
        try:
            counts[part] = _read(address, part, split)
        except InputError as error:
            # A file may be of any part.
            if case.open().parts() is not None:
                fail(f"the {part} cannot be read: {str(error).rstrip('.')}", method=part)
    return ", ".join(f"{count} {part}" for part, count in counts.items())


def _read(address: str, part: str, split: str) -> int:
    if part == "passages":
        return sum(1 for _ in open_corpus(address))
    if part == "queries":
        return sum(1 for _ in read_queries(address))
    if part == "judgements":
        return len(read_qrels(address, split=split) if split != "test" else read_qrels(address))
    found: Sequence[Any] = list(read_examples(address))
    return len(found)


@SOURCES.property(after=("form", "same_twice"))
def fingerprint(case: SourceCase) -> None:
    """`fingerprint` is a text, the same for the same content."""
    found = [case.open().fingerprint() for _ in range(2)]
    if not isinstance(found[0], str) or found[0] != found[1]:
        problem = "`fingerprint` is no text, or another one each time"
        fail(problem, expected=found[0], found=found[1], method="fingerprint")


@SOURCES.property(after=("form",))
def size(case: SourceCase) -> None:
    """`size`, if it is known, is the number of passages."""
    stated = case.open().size()
    if stated is None or not any(one["part"] == "passages" for one in case.typical):
        leave_out("it does not know its size.")
    if (counted := sum(1 for _ in case.open().records("passages"))) != stated:
        fail("`size` is not the number of passages", expected=counted, found=stated, method="size")
