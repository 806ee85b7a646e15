"""Splitting of passages into parts: sentences, equal parts, or sliding windows.

The parts of passage ID are ID#1, ID#2 ... with its title. They rank the document, which can be restored from them.
Each records this (`Passage.cut`), and vectors and indexes list the documents in documents.json, with their numbers of
parts. Ids without such a record are opaque: ID#1 may be a text of the user's own.

Table 5 of MVR compares several vectors per document with vectors of its sentences and of its 4 or 8 equal parts. A part
is a positive if its passage is a positive and it contains an answer; if no part does, or no answer is known, all parts
are positives. All parts of a negative are negatives.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any, Literal, NamedTuple

from retrievalkit import storage
from retrievalkit.data.answers import AnswerMatcher
from retrievalkit.data.corpus import Corpus, Cut, Passage
from retrievalkit.data.examples import Examples
from retrievalkit.data.fields import FIELDS, write_fields
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Hits
from retrievalkit.data.same_text import PLAIN, plain_form
from retrievalkit.data.sentences import sentence_ends
from retrievalkit.data.sources import open_source, split_prefix
from retrievalkit.errors import ArtifactError, DataError
from retrievalkit.reporting import notices

# Scripts without spaces: Chinese and Japanese, and Thai, Lao, Tibetan, Burmese and Khmer.
_SIGNS = "\u2e80-\u2fff\u3005-\u3007\u3021-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_LETTERS = "\u0e01-\u0eff\u0f40-\u0fff\u1000-\u109f\u1780-\u17ff"
_MARKS = "\u0e30-\u0e3a\u0e45-\u0e4e"  # vowels and tones after a letter of Thai
_REST = rf"[^\w\s{_LETTERS}]*"  # punctuation after a sign
_WORD = re.compile(rf"[{_SIGNS}]{_REST}|(?:[{_LETTERS}][{_MARKS}]*){{1,4}}{_REST}|[^\s{_SIGNS}{_LETTERS}]+")
"""Words; in scripts without spaces, a sign, or four letters, in place of a word."""
_PARENTS = 4  # of COLLECTION/dense/segments/corpus-0001.jsonl
_PART = re.compile(r"(.+)#([1-9][0-9]{0,15})", re.DOTALL)
DOCUMENTS = "documents.json"
TABLES = {"fields": FIELDS, "documents": DOCUMENTS}
"""Entries of an index's manifest -> files that describe its texts."""

_MOST_BYTES = 1 << 32

DocumentScore = Literal["best", "sum"]

PartsOf = Callable[[str], Sequence[Passage]]
"""The id of a passage -> its parts."""


class Part(NamedTuple):
    """A part of a text: start, end, and the header of its table if it begins with a later row."""

    start: int
    end: int
    header: str = ""


Parts = Callable[[Passage], list[Passage]]
"""A passage -> the passages that it is cut into, see `parts_of`."""


def words_in(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word; in scripts without spaces, of each sign, or of up to four letters."""
    return [word.span() for word in _WORD.finditer(text)]


def windows(text: str, size: int, stride: int | None = None, by: Literal["words", "sentences"] = "words") -> list[Part]:
    """Cut a text into windows of `size` words or sentences, starting every `stride` (None = `size`).

    The last window ends with the text and may be shorter; a blank text has no windows.
    """
    spans = words_in(text)
    if by == "sentences":
        ends = sentence_ends(text)
        cut = ((text[start:end].strip(), start) for start, end in zip([0, *ends], ends, strict=False))
        spans = [(first := text.index(sentence, start), first + len(sentence)) for sentence, start in cut if sentence]
    step = stride or size
    # The last window is the first to reach the end of the text.
    firsts = range(0, max(len(spans) - size + step, min(len(spans), 1)), step)
    return [Part(spans[a][0], spans[min(a + size, len(spans)) - 1][1]) for a in firsts]


def equal_parts(text: str, count: int) -> list[Part]:
    """Cut a text into parts whose word counts differ by at most one; fewer than `count` if it has fewer words."""
    words = words_in(text)
    count = min(count, len(words))
    firsts = [number * len(words) // count for number in range(count + 1)] if count else []
    return [Part(words[a][0], words[b - 1][1]) for a, b in pairwise(firsts)]


def parts_of(passage: Passage, parts: Iterable[Part]) -> list[Passage]:
    """Return the parts of a passage, whose records restore its text; a passage without text is its own part."""
    text, above = passage.text, passage.cut or Cut(passage.id, 1, 1)
    parts = list(parts) or [Part(0, len(text))]
    if not text[parts[-1].end :].strip():
        parts[-1] = parts[-1]._replace(end=len(text))
    ends = (0, *(part.end for part in parts))
    passages = []
    for number, (end, part) in enumerate(zip(ends, parts, strict=False), 1):
        outline = passage.outline
        heading, page = (above.heading, above.page) if outline is None else outline.place(part.start)
        own = Cut(passage.id, number, len(parts), part.start, text[end : part.start], len(part.header), heading, page)
        within = part.header + text[part.start : part.end]
        passages.append(replace(passage, id=f"{passage.id}#{number}", text=within, cut=own, outline=None))
    return passages


def part_of(identifier: str, documents: Mapping[str, int]) -> tuple[str, int] | None:
    """Return the document of a passage and its number; None if it was not cut from `documents` (-> number of parts)."""
    part = _PART.fullmatch(identifier) if documents else None
    if part is None or int(part[2]) > documents.get(part[1], 0):
        return None
    return part[1], int(part[2])


def collected(
    passages: Iterable[Passage], documents: dict[str, int], forms: set[str] | None = None
) -> Iterator[Passage]:
    """Pass passages through; collect their documents (document -> number of its passages) and their forms of text."""
    forms = set() if forms is None else forms
    for passage in passages:
        forms.add(passage.text_form)
        if (cut := passage.cut) is not None:
            documents[cut.document] = max(cut.of, documents.get(cut.document, 0))
        yield passage


def documents_of(corpus: Iterable[Passage]) -> dict[str, int]:
    """Return the documents that the passages of a corpus were cut from: document -> number of its passages."""
    documents: dict[str, int] = {}
    deque(collected(corpus, documents), maxlen=0)
    return documents


def write_tables(folder: Path, passages: Iterable[Passage]) -> tuple[dict[str, Any], dict[str, str]]:
    """Write the fields of passages and the documents that they were cut from, if any.

    Returns:
        A description of each file, and the entry of a manifest that records the form of all texts; {} if it has none.
    """
    documents, forms = dict[str, int](), set[str]()
    rows = collected(passages, documents, forms)
    write_fields(folder / FIELDS, ((passage.id, passage.title, passage.fields) for passage in rows))
    if documents:
        storage.write_json(folder / DOCUMENTS, documents, indent=None)
    files = {name: storage.describe_file(folder / name) for name in TABLES.values() if (folder / name).exists()}
    if len(forms) > 1:
        notices.note(
            "some texts are in plain form, others are not, so queries are searched as they are typed. To search all in "
            "plain form, index the documents alone, and add the others: rkit index INDEX --add."
        )
    return files, {"text_form": forms.pop()} if len(forms) == 1 and any(forms) else {}


def read_documents(path: Path) -> dict[str, int]:
    """Read the documents that passages were cut from."""
    documents: dict[str, int] = storage.read_json(path, do="Index again.", most=_MOST_BYTES)
    if not isinstance(documents, dict) or {*map(type, documents.values())} - {int}:
        msg = f"'{path}' is damaged: it is not a list of documents with their numbers of passages. Index again."
        raise ArtifactError(msg)
    return documents


def _relevant(parts: Sequence[Passage], answers: Sequence[str]) -> Sequence[Passage]:
    matcher = AnswerMatcher(answers)
    return [part for part in parts if answers and matcher.matches(part.text)] or parts


def judged_parts(qrels: Qrels, parts: PartsOf, answers: Mapping[str, Sequence[str]]) -> Qrels:
    """Return the judgements of the parts."""
    return {
        query: {
            part.id: grade
            for document, grade in judged.items()
            for part in (_relevant(parts(document), answers.get(query, ())) if grade > 0 else parts(document))
        }
        for query, judged in qrels.items()
    }


def examples_of_parts(examples: Examples, parts: PartsOf) -> Examples:
    """Return the examples with parts in place of their documents."""
    if scored := sum(row.teacher is not None for row in examples.rows):
        notices.note(f"Dropped the teacher scores of {scored:,} examples: they belong to whole passages, not to parts.")
    rows = [
        replace(
            row,
            positives=tuple(part.id for document in row.positives for part in _relevant(parts(document), row.answers)),
            negatives=tuple(part.id for document in row.negatives for part in parts(document)),
            teacher=None,
        )
        for row in examples.rows
    ]
    return replace(examples, rows=rows)


def in_passages(examples: Examples, corpus: Corpus) -> Examples:
    """Return the examples with passages in place of the documents that the corpus has cut into passages."""
    unknown = corpus.missing({document for _, document in examples.documents()} - examples.passages.keys())
    parts = {document: passages for document in unknown if (passages := passages_of(corpus, document))}
    if not parts:
        return examples
    return replace(examples_of_parts(examples, lambda name: parts.get(name) or [Passage(name, "", "")]), reread=None)


class DocumentHit(NamedTuple):
    """A document with its score and its retrieved passages, best first."""

    id: str
    score: float
    passages: Hits


def by_document(
    hits: Iterable[tuple[str, float]], documents: Mapping[str, int], score: DocumentScore = "best"
) -> list[DocumentHit]:
    """Aggregate ranked passages to documents (MaxP or SumP), best first; ties go to the best-ranked passage.

    Args:
        hits: Ids and scores, best first.
        documents: The documents that passages were cut from -> number of passages; other texts are whole documents.
        score: The document score: the score of its best passage, or the sum over its passages.
    """
    passages: dict[str, Hits] = {}
    for passage, value in hits:
        part = part_of(passage, documents)
        passages.setdefault(passage if part is None else part[0], []).append((passage, value))
    if score == "best":
        return [DocumentHit(document, ranked[0][1], ranked) for document, ranked in passages.items()]
    summed = [
        DocumentHit(document, fsum(value for _, value in ranked), ranked) for document, ranked in passages.items()
    ]
    return sorted(summed, key=lambda hit: -hit.score)


def merged(run: Iterable[tuple[str, Hits]], source: object, corpus: Corpus) -> Iterator[tuple[str, Hits]]:
    """Convert a run of the parts in a corpus to a run of passages, each with the score of its best part."""
    documents = documents_of(corpus)
    if not documents:
        msg = f"'{corpus.source}' does not record that its passages are parts. Give the corpus that rkit convert wrote."
        raise DataError(msg)
    for query, hits in run:
        whole = [name for name, _ in hits if part_of(name, documents) is None]
        if whole and (unknown := corpus.missing(whole)):
            raise corpus.unknown(min(unknown), file=source)
        yield query, [(hit.id, hit.score) for hit in by_document(hits, documents)]


@dataclass(frozen=True)
class Document:
    """A whole document, restored from its passages.

    Attributes:
        id: The document's id.
        title: The title of its passages.
        text: The texts of its passages in order, without repeating overlaps.
        passages: Passage id -> start and end in the text.
        cuts: Passage id -> the record of the cut, with heading and page; empty for a document that was not cut.
        file: The document's file, if the corpus is a folder of documents, or was converted from one.
        text_form: The record of the form of its id and texts; "" = as they came.
    """

    id: str
    title: str
    text: str
    passages: Mapping[str, tuple[int, int]]
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    file: Path | None = None
    text_form: str = ""


def passages_of(corpus: Corpus, document: str) -> list[Passage]:
    """Return the passages that a document of a corpus was cut into, in order."""
    passages: list[Passage] = []
    first, count = 1, 16
    while count:
        names = [f"{document}#{number}" for number in range(first, first + count)]
        batch = corpus.find(names)
        passages += [batch[name] for name in names if name in batch and batch[name].cut is not None]
        first, count = first + count, 2 * count if batch else 0
    return passages


def open_document(corpus: Corpus, document: str) -> Document | None:
    """Return the document, or the single passage, with this id; None if the corpus has neither."""
    passages = list(corpus.find([document]).values()) or passages_of(corpus, document)
    if not passages:
        plain = plain_form(document).strip()
        other = None if plain in ("", document) else open_document(corpus, plain)
        return other if other and other.text_form == PLAIN else None
    root = _root(corpus.source)
    text, spans = joined(passages)
    cuts = {passage.id: passage.cut for passage in passages if passage.cut is not None}
    file = None if root is None else _file_at(root, document)
    return Document(document, passages[0].title, text, spans, cuts, file, passages[0].text_form)


def _file_at(place: Path, document: str) -> Path | None:
    """Return the file of a document, or of the table whose row it is: an id is a path, and a row's own id, if any."""
    for name in Path(document).parts:
        if not (place / name).exists():
            # An id is in plain form, a file name may have decomposed or full-width letters.
            names = os.listdir(place) if place.is_dir() else []
            name = next((other for other in sorted(names) if plain_form(other) == name), "")
        place = place / name
        if not name or place.is_file():
            return place if name else None
    return None


def joined(passages: Sequence[Passage]) -> tuple[str, dict[str, tuple[int, int]]]:
    """Join consecutive passages of a document; returns its text, and the start and end of each passage in it.

    Shared text is not repeated. A space precedes passages whose record has no start, or whose predecessor is missing.
    """
    text, end = "", 0
    spans: dict[str, tuple[int, int]] = {}
    for passage in passages:
        cut = passage.cut or Cut(passage.id, 1, 1, 0)
        if not spans and cut.number > 1:
            end = cut.start or 0
        own = passage.text[cut.header :]
        start = cut.start if cut.start is not None else end + bool(spans)
        if start > end:
            text += cut.gap or " "
        shared = max(0, end - start)
        spans[passage.id] = (len(text) - shared, len(text) - shared + len(own))
        text, end = text + own[shared:], max(end, start + len(own))
    return text, spans


def _root(source: object) -> Path | None:
    """Return the folder of a corpus's documents, if known."""
    if not isinstance(source, str):  # passages in memory
        return None
    if split_prefix(source)[0] == "documents":
        return open_source(source).root
    folders = [Path(source), *Path(source).parents][:_PARENTS]
    collection = next((folder for folder in folders if storage.kind_of(folder) == "collection"), None)
    if collection is None:
        return None
    manifest = storage.read_manifest(collection)
    root = manifest.get("options", {}).get("root") or manifest.get("inputs", {}).get("folder", {}).get("path")
    return None if root is None else Path(root)
