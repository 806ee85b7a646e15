"""The conformance tests of sources: rows of passages, queries, judgements and examples."""

from __future__ import annotations

import csv
import json
import re
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import registry
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import PARTS, Source, open_source
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit_testing.drawing import Drawn
from retrievalkit_testing.option_effects import expect_typed_keywords
from retrievalkit_testing.properties import Kit, expect, fail, leave_out
from retrievalkit_testing.samples import WORDS, temporary_folder, tiny_collection
from retrievalkit_testing.shared import Subject, share

_ROWS = 2_000
"""Rows of a part that are compared."""


class SourceCase(Subject):
    """A source at an address."""

    kind = "source"

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, address.rpartition("/")[2], {})
        self.address = address
        source = self.created({})
        parts, splits = source.parts() or PARTS, source.splits() or ["test"]
        self.draws = {"part": parts, "split": splits}
        self.typical = [{"part": part, "split": splits[0]} for part in parts if self.holds(part, splits[0])]
        if not self.typical:
            msg = f"nothing of '{address}' can be read"
            raise InputError(msg)

    def holds(self, part: Any, split: str) -> bool:
        """True if a part has rows."""
        try:
            return next(iter(self.records(self.created({}), part, split)), None) is not None
        except InputError:
            return False
        except Exception:  # noqa: BLE001 - left to the properties
            return True

    def created(self, drawn: Drawn) -> Source:  # noqa: ARG002 - by contract
        return open_source(self.address)

    def inputs(self, drawn: Drawn) -> Any:
        if not any(typical["part"] == drawn["part"] for typical in self.typical):
            leave_out(f"it has no {drawn['part']}.")
        return (drawn["part"], drawn["split"])

    def call(self, component: Source, inputs: Any) -> Any:
        return list(islice(self.records(component, *inputs), _ROWS))

    def records(self, source: Source, part: Any, split: str) -> Any:
        """Return the rows of a part, from the source's own method if it has one."""
        own = getattr(type(source), part) is not getattr(Source, part)
        return (source._rows if own else source.records)(part, split)

    def read(self, inputs: Any, result: Any) -> list[dict[str, Any]]:  # noqa: ARG002 - by contract
        return [dict(getattr(row, "fields", row)) for row in result]

    def turned(self, inputs: Any, draw: np.random.Generator) -> Any:  # noqa: ARG002 - an address has no order
        return iter(())

    def check_form(self, inputs: Any, result: Any) -> None:
        for number, row in enumerate(result, 1):
            problem = f"row {number} of the {inputs[0]} is not a mapping of field names to values"
            mapping = isinstance(getattr(row, "fields", row), dict)
            expect(mapping, problem, expected="a mapping", actual=repr(row)[:60], method=inputs[0])


@cache
def _places() -> dict[str, Path]:
    """Paths for a source to read, by its name: files of the tiny collection, and a folder of text files for others."""
    folder = Path(temporary_folder())
    collection = tiny_collection(folder / "collection")
    rows = [json.loads(line) for line in collection.corpus.read_text(encoding="utf-8").splitlines()]
    places = {"jsonl": collection.corpus, "tsv": collection.qrels, "json": folder / "corpus.json"}
    places["json"].write_text(json.dumps(rows), encoding="utf-8")
    with (folder / "corpus.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([rows[0].keys(), *(row.values() for row in rows)])
    places["csv"] = folder / "corpus.csv"
    with suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "corpus.parquet")
        places["parquet"] = folder / "corpus.parquet"
    (folder / "texts").mkdir()
    for number, text in enumerate(WORDS.split()):
        (folder / "texts" / f"{number}.txt").write_text(f"a text about {text}", encoding="utf-8")
    return {"": folder / "texts", **places}


def _cases(name: str, *, address: str = "") -> list[SourceCase]:
    component, places = registry.get("source", name), _places()
    named = re.findall(rf"`({name}:[^`]+)`", component.__doc__ or "")
    refusals = []
    for place in [address] if address else [*named, str(places.get(name, places[""]))]:
        try:
            return [SourceCase(name, f"{name}:{place.removeprefix(f'{name}:')}")]
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
    """The name is the only argument of its constructor."""
    expect_typed_keywords(registry.get("source", case.name), "source")


@SOURCES.property(after=("form", "same_twice"))
def readable(case: SourceCase) -> str:
    """The commands read all of its parts: ids, texts and grades are valid, and ids of passages are unique."""
    readers: dict[str, Any] = {"passages": open_corpus, "queries": read_queries, "judgements": read_qrels}
    readers["examples"] = read_examples
    counts = {}
    for part, split in ((drawn["part"], drawn["split"]) for drawn in case.typical):
        options = {"split": split} if part == "judgements" and split != "test" else {}
        try:
            counts[part] = len(list(readers[part](case.address, **options)))
        except InputError as error:
            # A file may be of any part.
            if case.created({}).parts() is not None:
                fail(f"the {part} cannot be read: {str(error).rstrip('.')}", method=part)
    return ", ".join(f"{count} {part}" for part, count in counts.items())


@SOURCES.property(after=("form", "same_twice"))
def fingerprint(case: SourceCase) -> None:
    """`fingerprint` is a text, the same for the same content, and `size`, if known, the number of passages."""
    texts = [case.created({}).fingerprint() for _ in range(2)]
    same = isinstance(texts[0], str) and texts[0] == texts[1]
    problem = "`fingerprint` is not a text, or changes"
    expect(same, problem, expected=texts[0], actual=texts[1], method="fingerprint")
    size = case.created({}).size()
    if size is not None and any(drawn["part"] == "passages" for drawn in case.typical):
        count = sum(1 for _ in case.created({}).records("passages"))
        expect(count == size, "`size` is not the number of passages", expected=count, actual=size, method="size")
