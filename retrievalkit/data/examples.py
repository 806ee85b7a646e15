"""Training examples: a query, the documents that answer it, and documents that look like it and do not.

Examples hold ids. Where a file brings the texts of its passages (Tevatron 1.x, DPR, triples), they are kept beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retrievalkit.data import files, sources
from retrievalkit.data.corpus import Corpus, Passage, text_digest
from retrievalkit.data.qrels import judgements
from retrievalkit.data.queries import QuestionNamer, hashed_id, read_queries, straight_quotes
from retrievalkit.data.records import Record, Table, read_records
from retrievalkit.data.sources.remote import fetched_records
from retrievalkit.data.teachers import teacher_scores
from retrievalkit.errors import DataError, InputError

FORMS = (
    "ours (query_id, query, positives, negatives)",
    "Tevatron (query_id, query, positive_passages, negative_passages)",
    "Tevatron 2 (query_id, query_text, positive_document_ids, negative_document_ids)",
    "DPR (question, answers, positive_ctxs, hard_negative_ctxs)",
    "triples (anchor, positive, negative) or (query, pos, neg)",
)

_ONE_THING = "Every id stands for one thing."

_PASSAGE_IDS = ("docid", "passage_id", "psg_id", "_id", "id")

_ANCHORS = ("anchor", "query", "question", "sentence1")

_POSITIVES = ("positive", "pos", "positives")

_NEGATIVES = ("negative", "neg", "negatives")


@dataclass(frozen=True, slots=True)
class Example:
    """A query with its documents.

    Attributes:
        query_id: Of the query.
        query: The text.
        positives: Ids of documents that answer it; the first is the main one.
        negatives: Ids of documents that do not, the hardest first.
        answers: Strings that a document with the answer holds.
        teacher: Document id -> a teacher's score, or None.
    """

    query_id: str
    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    teacher: Mapping[str, float] | None = None


@dataclass
class Examples:
    """The examples of a source.

    Attributes:
        rows: In the order of the source, less those without any positive.
        passages: Id -> the passages whose texts came in the file.
        source: What they were read from.
        dropped: How many examples had no positive.
        lines: For each row, where it stands in the source.
    """

    rows: list[Example]
    passages: dict[str, Passage] = field(default_factory=dict)
    source: str = "memory"
    dropped: int = 0
    lines: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.rows)


def read_examples(source: str | Path, *, corpus: Corpus | None = None, split: str = "train") -> Examples:
    """Read training examples in any known form.

    Args:
        source: A file, a BEIR folder, `pydoc:`, `hf:` or `irds:`.
        corpus: If given, every id is looked up in it.
        split: Of a folder: SPLIT.jsonl there, or else the judgements of a BEIR folder, of which those above 0 are
            the positives.

    Raises:
        DataError: An example is damaged, an id is in no corpus, or no example has a positive.
    """
    prefix, rest = sources.split_prefix(source)
    written = files.find_file(Path(rest), f"{split}.jsonl") if sources.is_folder(source) else None
    if written is not None:
        examples = _collect(written, read_records(written, _table, "training examples", FORMS))
    elif prefix in ("pydoc", "irds") or sources.is_folder(source):
        examples = _judged(source, split)
    elif prefix == "hf":
        examples = _collect(source, fetched_records(prefix, rest, "examples", split))
    else:
        path = files.existing(rest)
        examples = _collect(source, read_records(path, _table, "training examples", FORMS))
    if not examples.rows:
        count = examples.dropped
        what = f"none of the {count} examples has a positive." if count else "there is no example in it."
        msg = f"{what} Training needs a passage that answers each query."
        raise DataError(msg, file=source)
    if corpus is not None:
        check_examples(examples, corpus)
    return examples


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Write examples as JSON lines of ids and return how many there were."""
    return files.write_jsonl(path, (_row(example) for example in examples))


def check_examples(examples: Examples, corpus: Corpus | None) -> None:
    """Look up every id of the examples, in the corpus and in the passages that came with them.

    Raises:
        DataError: An id is nowhere; names its line and the nearest id.
    """
    wanted = {one for row in examples.rows for one in (*row.positives, *row.negatives)} - examples.passages.keys()
    if not wanted:
        return
    if corpus is None:
        msg = f"the examples name {len(wanted)} documents whose texts they do not hold. Give the corpus: --corpus."
        raise DataError(msg, file=examples.source)
    missing = corpus.missing(wanted)
    if not missing:
        return
    lines = examples.lines or [None] * len(examples.rows)  # type: ignore[list-item]
    for row, line in zip(examples.rows, lines, strict=True):
        for one in (*row.positives, *row.negatives):
            if one in missing:
                raise corpus.unknown(one, file=examples.source, line=line)


def check_teacher(examples: Examples, *, negatives: int = 1) -> None:
    """Look for a teacher's scores in every example: of its first positive and of a negative, as distillation wants.

    Args:
        examples: All that are trained on.
        negatives: How many of an example's are drawn in a step.

    Raises:
        InputError: No negatives are drawn.
        DataError: An example has too few scores; names its line.
    """
    if negatives == 0:
        msg = "the loss learns from a teacher's scores of negatives, and negatives is 0. Draw some: --negatives 1"
        raise InputError(msg)
    lines = examples.lines or [None] * len(examples.rows)  # type: ignore[list-item]
    for row, line in zip(examples.rows, lines, strict=True):
        if lacking := unscored(row):
            msg = (
                f"the teacher scores no {' and no '.join(lacking)} of the query '{row.query_id}', and the loss learns "
                "from such scores. Give the examples a re-ranker's (rkit rerank apply RERANKER --examples FILE "
                '--corpus CORPUS) or others as "teacher": {document id: score}, or choose another --loss.'
            )
            raise DataError(msg, file=examples.source, line=line)


def unscored(example: Example) -> list[str]:
    """Of "positive" (the first one) and "negative" (any), those that no teacher scored."""
    scored = (example.teacher or {}).keys()
    wanted = {"positive": example.positives[:1], "negative": example.negatives}
    return [what for what, ids in wanted.items() if scored.isdisjoint(ids)]


def example_of(record: Record, namer: QuestionNamer) -> tuple[Example, list[Passage]]:
    """The example in a record, whichever form it has, and the passages whose texts it brings."""
    fields = record.fields
    if "positive_ctxs" in fields:
        return _dpr(record, namer)
    if "positive_passages" in fields:
        return _tevatron(record)
    if "positive_document_ids" in fields:
        return _by_ids(record, "query_text", "positive_document_ids", "negative_document_ids"), []
    if "query_id" in fields and "positives" in fields:
        return _by_ids(record, "query", "positives", "negatives"), []
    if has_form(fields.keys()):
        return _triple(record)
    raise record.unknown_form("training example", FORMS)


def has_form(names: Set[str]) -> bool:
    """Whether a record with these fields is a training example."""
    if names & {"positive_ctxs", "positive_passages", "positive_document_ids"}:
        return True
    return bool(names & set(_ANCHORS)) and any(_is(name, _POSITIVES) for name in names)


def _row(example: Example) -> dict[str, Any]:
    row: dict[str, Any] = {
        "query_id": example.query_id,
        "query": example.query,
        "positives": list(example.positives),
        "negatives": list(example.negatives),
        "answers": list(example.answers),
    }
    return row if example.teacher is None else {**row, "teacher": dict(example.teacher)}


def _collect(source: str | Path, records: Iterable[Record]) -> Examples:
    examples = Examples([], source=str(source))
    namer = QuestionNamer()
    texts: dict[str, tuple[str, int]] = {}
    for record in records:
        example, passages = example_of(record, namer)
        first, line = texts.setdefault(example.query_id, (example.query, record.line))
        if first != example.query:
            msg = f"the query id '{example.query_id}' is used already at line {line}, for another query. {_ONE_THING}"
            raise record.error(msg)
        if not example.positives:
            examples.dropped += 1
            continue
        examples.rows.append(example)
        examples.lines.append(record.line)
        for passage in passages:
            _keep(examples.passages, passage, record)
    return examples


def _keep(held: dict[str, Passage], passage: Passage, record: Record) -> None:
    first = held.setdefault(passage.id, passage)
    if first.text != passage.text:
        msg = f"the passage id '{passage.id}' stands for another text earlier in the file. {_ONE_THING}"
        raise record.error(msg)


def _by_ids(record: Record, query: str, positives: str, negatives: str) -> Example:
    _require(record, "query_id", query)
    ids = record.identifiers(positives), record.identifiers(negatives)
    return Example(
        record.identifier("query_id"),
        record.text(query),
        ids[0],
        ids[1],
        record.texts("answers"),
        teacher_scores(record, ids[0], ids[1]),
    )


def _tevatron(record: Record) -> tuple[Example, list[Passage]]:
    _require(record, "query_id", "query")
    return _with_passages(
        record, record.identifier("query_id"), record.text("query"), "positive_passages", "negative_passages"
    )


def _dpr(record: Record, namer: QuestionNamer) -> tuple[Example, list[Passage]]:
    _require(record, "question")
    question = straight_quotes(record.text("question"))
    negatives = "hard_negative_ctxs" if record.fields.get("hard_negative_ctxs") else "negative_ctxs"
    return _with_passages(record, namer.name(question), question, "positive_ctxs", negatives)


def _with_passages(
    record: Record, query_id: str, query: str, positives: str, negatives: str
) -> tuple[Example, list[Passage]]:
    """An example whose passages come in two fields, with their texts."""
    as_read = record.items(positives), record.items(negatives)
    good = [_embedded(one, record, positives) for one in as_read[0]]
    bad = [_embedded(one, record, negatives) for one in as_read[1]]
    ids = tuple(one.id for one in good), tuple(one.id for one in bad)
    teacher = teacher_scores(record, ids[0], ids[1], [*as_read[0], *as_read[1]])
    return Example(query_id, query, ids[0], ids[1], record.texts("answers"), teacher), good + bad


def _triple(record: Record) -> tuple[Example, list[Passage]]:
    anchor = next(name for name in _ANCHORS if name in record.fields)
    positives = [_hashed(text) for name in record.fields if _is(name, _POSITIVES) for text in record.texts(name)]
    negatives = [_hashed(text) for name in record.fields if _is(name, _NEGATIVES) for text in record.texts(name)]
    query = record.text(anchor)
    ids = tuple(one.id for one in positives), tuple(one.id for one in negatives)
    example = Example(hashed_id(query), query, ids[0], ids[1], teacher=teacher_scores(record, ids[0], ids[1]))
    return example, positives + negatives


def _is(name: str, names: tuple[str, ...]) -> bool:
    """Whether a field is one of the names, or numbered: negative_1, negative_2 ..."""
    return name in names or (name.rpartition("_")[0] in names and name.rpartition("_")[2].isdigit())


def _hashed(text: str) -> Passage:
    return Passage(hashed_id(text), "", text)


def _embedded(value: object, record: Record, where: str) -> Passage:
    if not isinstance(value, dict):
        msg = f"'{where}' should hold passages (objects with docid, title and text)."
        raise record.error(msg)
    inner = record._replace(fields=value)
    name = next((one for one in _PASSAGE_IDS if value.get(one) not in (None, "")), None)
    if "text" not in value:
        msg = f"a passage in '{where}' has no text; it has these fields: {', '.join(value) or 'none'}."
        raise record.error(msg)
    title = inner.text("title") if value.get("title") is not None else ""
    text = inner.text("text")
    return Passage(inner.identifier(name) if name else hashed_id(f"{title}\n{text}"), title, text)


def _require(record: Record, *names: str) -> None:
    missing = [name for name in names if name not in record.fields]
    if missing:
        found = ", ".join(record.fields)
        msg = f"missing: {', '.join(missing)}; it has {found}. Known forms: {'; '.join(FORMS)}."
        raise record.error(msg)


def _table(row: list[str]) -> Table | None:
    """Triples in a table with a header."""
    names = tuple(cell.strip().lower() for cell in row)
    return Table(names, header=True) if names[0] in _ANCHORS and set(names) & set(_POSITIVES) else None


def _judged(source: str | Path, split: str) -> Examples:
    """Examples of queries and judgements: the documents judged above 0 are the positives."""
    queries = {query.id: query for query in read_queries(source)}
    positives: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    for record, query_id, document_id, grade in judgements(source, split):
        if query_id not in queries:
            msg = f"the judged query '{query_id}' is not among the {len(queries)} queries of '{source}'."
            raise record.error(msg)
        lines.setdefault(query_id, record.line)
        if grade > 0:
            positives.setdefault(query_id, []).append(document_id)
    rows = [Example(one, queries[one].text, tuple(found), (), queries[one].answers) for one, found in positives.items()]
    return Examples(rows, {}, str(source), len(lines) - len(rows), [lines[row.query_id] for row in rows])


def against_corpus(examples: Examples, corpus: Corpus) -> Examples:
    """The examples with ids of a corpus: a passage whose text came with the examples is found there by its text.

    Raises:
        DataError: A passage is not in the corpus; names the example's line and the nearest id.
    """
    wanted = {one for row in examples.rows for one in (*row.positives, *row.negatives)}
    missing = corpus.missing(wanted) if wanted else set()
    if not missing:
        return examples
    digests = {one: text_digest(examples.passages[one]) for one in missing if one in examples.passages}
    looked_for = set(digests.values())
    ids = (
        {digest: passage.id for passage in corpus if (digest := text_digest(passage)) in looked_for} if digests else {}
    )
    found = {one: ids[digest] for one, digest in digests.items() if digest in ids}
    lines: Sequence[int | None] = examples.lines or [None] * len(examples.rows)
    for row, line in zip(examples.rows, lines, strict=True):
        for one in (*row.positives, *row.negatives):
            if one in missing and one not in found:
                raise corpus.unknown(one, file=examples.source, line=line)
    return replace(examples, rows=[_renamed(row, found) for row in examples.rows])


def _renamed(row: Example, names: Mapping[str, str]) -> Example:
    return replace(
        row,
        positives=tuple(dict.fromkeys(names.get(one, one) for one in row.positives)),
        negatives=tuple(dict.fromkeys(names.get(one, one) for one in row.negatives)),
        teacher={names.get(one, one): score for one, score in row.teacher.items()} if row.teacher else row.teacher,
    )
