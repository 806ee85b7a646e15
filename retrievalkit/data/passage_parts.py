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
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
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
_UNSPACED = re.compile(rf"[{_SIGNS}{_LETTERS}\u3000-\u303f\uff00-\uffef]")
_PARENTS = 4  # of COLLECTION/dense/segments/corpus-0001.jsonl
_PART = re.compile(r"(.+)#([1-9][0-9]{0,15})", re.DOTALL)
DOCUMENTS = "documents.json"
TABLES = {"fields": FIELDS, "documents": DOCUMENTS}
"""Entries of an index's manifest -> files that describe its texts."""

_MOST_BYTES = 1 << 32

DocumentScore = Literal["best", "sum"]

Parts = Callable[[str], Sequence[Passage]]
"""The id of a passage -> its parts."""


def windows(text: str, size: int, stride: int | None = None, by: Literal["words", "sentences"] = "words") -> list[str]:
    """Cut a text into windows of `size` words or sentences, starting every `stride` (None = `size`).

    The last window ends with the text and may be shorter; a blank text has no windows.
    """
    spans = [word.span() for word in _WORD.finditer(text)]
    if by == "sentences":
        ends = sentence_ends(text)
        cut = ((text[start:end].strip(), start) for start, end in zip([0, *ends], ends, strict=False))
        spans = [(first := text.index(sentence, start), first + len(sentence)) for sentence, start in cut if sentence]
    step = stride or size
    # The last window is the first to reach the end of the text.
    firsts = range(0, max(len(spans) - size + step, min(len(spans), 1)), step)
    return [text[spans[a][0] : spans[min(a + size, len(spans)) - 1][1]] for a in firsts]


def equal_parts(text: str, count: int) -> list[str]:
    """Cut a text into parts whose word counts differ by at most one; fewer than `count` if it has fewer words."""
    words = [match.span() for match in _WORD.finditer(text)]
    count = min(count, len(words))
    firsts = [number * len(words) // count for number in range(count + 1)] if count else []
    return [text[words[a][0] : words[b - 1][1]] for a, b in pairwise(firsts)]


def parts_of(passage: Passage, cut: Callable[[str], list[str]]) -> list[Passage]:
    """Return the parts of a passage; a passage without text is its own part."""
    texts = cut(passage.text) or [""]
    return [
        replace(passage, id=f"{passage.id}#{number}", text=text, cut=Cut(passage.id, number, len(texts)))
        for number, text in enumerate(texts, 1)
    ]


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


def judged_parts(qrels: Qrels, parts: Parts, answers: Mapping[str, Sequence[str]]) -> Qrels:
    """Return the judgements of the parts."""
    return {
        query: {
            part.id: grade
            for document, grade in judged.items()
            for part in (_relevant(parts(document), answers.get(query, ())) if grade > 0 else parts(document))
        }
        for query, judged in qrels.items()
    }


def examples_of_parts(examples: Examples, parts: Parts) -> Examples:
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
        file: The document's file, if the corpus is a folder of documents, or was converted from one.
        text_form: The record of the form of its id and texts; "" = as they came.
    """

    id: str
    title: str
    text: str
    passages: Mapping[str, tuple[int, int]]
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
    root, shared = _origin(corpus.source)
    text, starts = joined([passage.text for passage in passages], shared)
    spans = {passage.id: (start, start + len(passage.text)) for passage, start in zip(passages, starts, strict=True)}
    file = None if root is None else _file_at(root, document)
    return Document(document, passages[0].title, text, spans, file, passages[0].text_form)


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


def joined(texts: Sequence[str], shared: int | None = None) -> tuple[str, list[int]]:
    """Join consecutive passages; returns the text and the start of each passage in it.

    Args:
        texts: The passages.
        shared: The number of words that each passage shares with the next; None = detected: passages overlap if each
            begins with whole words that end the previous one. Otherwise a space separates them, if the script has any.
    """
    sizes = [_overlap(before, after, shared) for before, after in pairwise(texts)]
    if shared is None and not all(sizes):
        sizes = [0] * len(sizes)
    gaps = (
        "" if _UNSPACED.match(before[-1:]) and _UNSPACED.match(after[:1]) else " " for before, after in pairwise(texts)
    )
    rests = [text[size:] if size else gap + text for gap, text, size in zip(gaps, texts[1:], sizes, strict=True)]
    ends = accumulate(map(len, rests), initial=len(texts[0]))
    return texts[0] + "".join(rests), [end - len(text) for end, text in zip(ends, texts, strict=True)]


def _overlap(before: str, after: str, shared: int | None) -> int:
    """Return the number of characters shared by the end of a passage and the start of the next."""
    starts = [word.start() for word in _WORD.finditer(before)]
    candidates = starts[1:] if shared is None else starts[len(starts) - shared :][:1]
    sizes = (len(before) - start for start in candidates if after.startswith(before[start:]))
    ends = {word.end() for word in _WORD.finditer(after)}
    return next((size for size in sizes if size in ends), 0)


def _origin(source: object) -> tuple[Path | None, int | None]:
    """Return the folder of a corpus's documents, and the number of words shared by consecutive passages, if known."""
    if not isinstance(source, str):  # passages in memory
        return None, None
    if split_prefix(source)[0] == "documents":
        return open_source(source).root, None
    folders = [Path(source), *Path(source).parents][:_PARENTS]
    collection = next((folder for folder in folders if storage.kind_of(folder) == "collection"), None)
    if collection is None:
        return None, None
    manifest = storage.read_manifest(collection)
    options = manifest.get("options", {})
    root = options.get("root") or manifest.get("inputs", {}).get("folder", {}).get("path")
    by_words = "passages" in options and options.get("by", "words") == "words"
    return None if root is None else Path(root), options["passages"] - options["stride"] if by_words else None
