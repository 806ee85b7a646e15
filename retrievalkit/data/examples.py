"""Training examples: a query with positives and hard negatives.

Examples refer to documents by id. If a file also contains texts (Tevatron 1.x, DPR, triples), `Examples` keeps them.
The field names determine whether a file has ids or texts: "positives" are ids, "positive" and "pos" are texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from retrievalkit.contracts.encoding import Text
from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.fields import Value
from retrievalkit.data.forms import (
    ANCHORS,
    EXAMPLES,
    HARD_NEGATIVES,
    NEGATIVES,
    PASSAGE_TEXTS,
    POSITIVES,
    TEACHER_COLUMNS,
    is_example,
    is_numbered,
    roles_of,
    unread,
)
from retrievalkit.data.hard_negatives import Chooser, HardNegatives
from retrievalkit.data.json_text import field_names, shown
from retrievalkit.data.qrels import judgements
from retrievalkit.data.queries import query_fields, read_queries, straight_quotes
from retrievalkit.data.records import QuestionNamer, Record, hashed_id
from retrievalkit.data.same_text import passage_digest, same_text
from retrievalkit.data.sources import open_source
from retrievalkit.data.teachers import labelled, teacher_scores
from retrievalkit.errors import DataError, InputError
from retrievalkit.reporting import notices
from retrievalkit.reporting.notices import Blanks
from retrievalkit.reporting.terminal import counted

ONE_MEANING = "An id must always refer to the same text."
_OF_SYSTEMS = next(form for form in EXAMPLES.known if "system" in form)


@dataclass(frozen=True, slots=True)
class Example:
    """A query with its positive and negative documents.

    Attributes:
        query_id: The id of the query.
        query: The text of the query.
        positives: Ids of relevant documents; the first is the main positive.
        negatives: Ids of non-relevant documents, hardest first.
        answers: Strings that a document with the answer contains.
        teacher: Document id -> teacher score, or None.
        fields: Metadata of the query, see `data.fields`.
    """

    query_id: str
    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    teacher: Mapping[str, float] | None = None
    fields: Mapping[str, Value] = field(default_factory=dict, hash=False)

    @property
    def content(self) -> Text:
        """The text of the query to encode."""
        return Text("", self.query, self.fields)


@dataclass
class Examples:
    """The examples of a source.

    Attributes:
        rows: The examples with at least one positive, in the order of the source.
        passages: Id -> passage, for the passages whose texts the file contains.
        source: The file or address of the examples.
        dropped: The number of examples without a positive.
        lines: The line of each row in the source.
        reread: Reads the examples with their lines again, if `lines` is not kept.
    """

    rows: Sequence[Example]
    passages: Mapping[str, Passage] = field(default_factory=dict)
    source: str = "memory"
    dropped: int = 0
    lines: list[int] = field(default_factory=list)
    reread: Callable[[], Iterator[tuple[int, Example]]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.rows)

    def located(self) -> Iterator[tuple[int | None, Example]]:
        """Yield the examples with their lines (None = unknown)."""
        if self.reread is not None:
            return self.reread()
        lines: Sequence[int | None] = self.lines or [None] * len(self.rows)
        return zip(lines, self.rows, strict=True)

    def documents(self) -> Iterator[tuple[int | None, str]]:
        """Yield the line and id of every document in the examples."""
        return ((line, document) for line, row in self.located() for document in (*row.positives, *row.negatives))


def read_examples(
    source: str | Path,
    *,
    corpus: Corpus | None = None,
    split: str = "train",
    hard_negatives: HardNegatives | None = None,
) -> Examples:
    """Read training examples in any known format.

    Args:
        source: A file, a BEIR folder, or a source such as `hf:NAME`.
        corpus: If set, every id must be in it.
        split: Selects SPLIT.jsonl of a folder. A source without examples, but with queries and judgements, yields an
            example for each query with documents judged above 0, its positives.
        hard_negatives: For sentence-transformers' file of hard negatives: the selection, and the source of the query
            texts; None = all.

    Raises:
        DataError: An example is damaged, an id is not in the corpus, or no example has a positive.
    """
    opened = open_source(source)
    if hard_negatives is not None or opened.holds("examples", split):
        examples = _collect(source, opened.records("examples", split), hard_negatives)
    else:
        examples = _judged(source, split)
    if not examples.rows:
        raise no_positive(examples.dropped, source)
    queries, passages = (Blanks(kind, examples.source) for kind in ("queries", "passages"))
    for identifier, text in {row.query_id: row.query for row in examples.rows}.items():
        queries.see(identifier, text)
    for passage in examples.passages.values():
        passages.see(passage.id, passage.title, passage.text)
    queries.report()
    passages.report()
    if corpus is not None:
        check_examples(examples, corpus)
    return examples


def no_positive(count: int, source: str | Path) -> DataError:
    """Return the error for a source of `count` examples without any positive."""
    problem = f"it contains {counted(count, 'examples')}, but no positive." if count else "it contains no examples."
    return DataError(f"{problem} Training needs a passage that answers each query.", file=source)


def note_dropped(examples: Examples) -> None:
    """Note the number of examples dropped because they have no positive."""
    if count := examples.dropped:
        whole = f"{count:,} of the {count + len(examples):,} examples of '{examples.source}'"
        notices.note(
            f"{whole} {'has' if count == 1 else 'have'} no positive and {'is' if count == 1 else 'are'} skipped."
        )


def note_unread(names: Set[str], source: str) -> None:
    """Note the fields of examples that are neither texts, ids, scores nor metadata."""
    if names:
        listed = ", ".join(f"'{name}'" for name in sorted(names))
        problem = f"the examples of '{source}' have fields that are neither their texts, ids nor scores: {listed}"
        notices.note(f"{problem}. They are metadata of the queries if their values are simple. Rename or drop others.")


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Write examples as JSON lines of ids; returns their number."""
    rows = (
        {
            "query_id": example.query_id,
            "query": example.query,
            "positives": list(example.positives),
            "negatives": list(example.negatives),
            "answers": list(example.answers),
            **({} if example.teacher is None else {"teacher": dict(example.teacher)}),
            **({"metadata": dict(example.fields)} if example.fields else {}),
        }
        for example in examples
    )
    return files.write_jsonl(path, rows)


def check_examples(examples: Examples, corpus: Corpus | None) -> None:
    """Check that every document id is in the corpus or among the passages of the examples.

    Raises:
        DataError: An id is in neither, or is in a field for texts; the message names its line.
    """
    if corpus is not None:
        check_texts(_texts_of(examples), corpus)
    wanted = {document for _, document in examples.documents()} - examples.passages.keys()
    if not wanted:
        return
    if corpus is None:
        raise texts_wanted(len(wanted), examples.source)
    _refuse(corpus.missing(wanted), examples, corpus)


def texts_wanted(count: int, source: str) -> DataError:
    """Return the error for `count` documents without texts."""
    msg = (
        f"the examples refer to {counted(count, 'documents')} by id, without texts. Give the corpus: --corpus. "
        'If "positives" and "negatives" are texts, name these fields "positive" and "negative".'
    )
    return DataError(msg, file=source)


def is_bare(passage: Passage) -> bool:
    """True if a passage was read as a text without an id."""
    return passage.id == hashed_id(passage.text)


def check_texts(texts: Mapping[str, tuple[str, int | None]], corpus: Corpus) -> None:
    """Raise an error for a corpus id in a field for texts.

    Args:
        texts: The texts of passages without ids, with the file and line of each.
        corpus: The corpus.
    """
    unknown = corpus.missing(texts) if texts else ()
    for text, (file, line) in texts.items():
        if text not in unknown:
            msg = (
                f"{shown(text)} is the id of a passage of '{corpus.source}', but this field is for texts. "
                'Put ids in "positives" and "negatives".'
            )
            raise DataError(msg, file=file, line=line)


def _texts_of(examples: Examples) -> dict[str, tuple[str, int | None]]:
    """Return the texts of passages without ids, with file and line."""
    bare = {passage.id: passage.text for passage in examples.passages.values() if is_bare(passage)}
    if not bare:
        return {}
    return {bare[name]: (examples.source, line) for line, name in examples.documents() if name in bare}


def _refuse(unknown: Set[str], examples: Examples, corpus: Corpus) -> None:
    """Raise an error for the first unknown document, if there is any."""
    for line, document in examples.documents() if unknown else ():
        if document in unknown:
            passage = examples.passages.get(document)
            if passage is not None and is_bare(passage):
                msg = f"no passage of '{corpus.source}' has the text {shown(passage.text)}. Give its corpus."
                raise DataError(msg, file=examples.source, line=line)
            raise corpus.unknown(document, file=examples.source, line=line)


def check_teacher(examples: Examples, *, negatives: int = 1) -> None:
    """Check that every example has the teacher scores for distillation: of its first positive and a negative."""
    if negatives == 0:
        msg = "the loss needs teacher scores of negatives, but negatives is 0. Set --negatives 1 or more."
        raise InputError(msg)
    for line, row in examples.located():
        if missing := unscored(row):
            msg = (
                f"the query '{row.query_id}' has no teacher score of a {' or a '.join(missing)}, which the loss needs. "
                "Add scores with a re-ranker (rkit rerank apply RERANKER --examples FILE --corpus CORPUS), or as "
                '"teacher": {document id: score}, or choose another --loss.'
            )
            raise DataError(msg, file=examples.source, line=line)


def unscored(example: Example) -> list[str]:
    """Return the kinds without teacher score: "positive" (the first), "negative" (all)."""
    scored = (example.teacher or {}).keys()
    needed = {"positive": example.positives[:1], "negative": example.negatives}
    return [name for name, ids in needed.items() if scored.isdisjoint(ids)]


def example_of(record: Record, namer: QuestionNamer, chooser: Chooser) -> tuple[Example, list[Passage]]:
    """Return the example in a record of any known format, and the passages whose texts it contains."""
    example, passages = _example_of(record, namer, chooser)
    fields = query_fields(record)
    # Numbers in these columns are scores; a text, such as a topic, is metadata.
    for name in TEACHER_COLUMNS if example.teacher else ():
        fields.pop(name, None)
    return replace(example, fields=fields), passages


def _example_of(record: Record, namer: QuestionNamer, chooser: Chooser) -> tuple[Example, list[Passage]]:
    fields = record.fields
    # With texts instead of ids, and a query text, the record is a triple.
    if fields.keys() >= HARD_NEGATIVES and (isinstance(fields["neg"], Mapping) or not fields.keys() & {*ANCHORS}):
        query_id, query, positives, negatives, teacher = chooser.choose(record)
        return Example(query_id, query, positives, negatives, record.texts("answers"), teacher), []
    if chooser.options != HardNegatives():
        kind = "line of sentence-transformers' hard negatives"
        raise record.unknown_form(kind, (_OF_SYSTEMS,))
    if "positive_ctxs" in fields:
        _require(record, "question")
        question = straight_quotes(record.text("question"))
        bad = "hard_negative_ctxs" if fields.get("hard_negative_ctxs") else "negative_ctxs"
        return _with_passages(record, namer.name(question), question, "positive_ctxs", bad)
    if "positive_passages" in fields:
        _require(record, "query_id", "query")
        identity = record.identifier("query_id"), record.text("query")
        return _with_passages(record, *identity, "positive_passages", "negative_passages")
    if "positive_document_ids" in fields:
        return _by_ids(record, "query_text", "positive_document_ids", "negative_document_ids"), []
    if "positives" in fields:
        query = next((name for name in ANCHORS if name in fields), "query")
        return _by_ids(record, query, "positives", "negatives"), []
    if is_example(fields.keys()):
        return _triple(record)
    raise record.unknown_form("training example", EXAMPLES.known)


def _collect(source: str | Path, records: Iterable[Record], hard_negatives: HardNegatives | None) -> Examples:
    rows: list[Example] = []
    embedded: dict[str, Passage] = {}
    examples = Examples(rows, embedded, str(source))
    namer, chooser = QuestionNamer(), Chooser(hard_negatives or HardNegatives())
    texts: dict[str, tuple[str, int]] = {}
    others: set[str] = set()
    for record in records:
        examples.source = record.file
        others |= unread(record.fields)
        example, passages = example_of(record, namer, chooser)
        first, line = texts.setdefault(example.query_id, (example.query, record.line))
        if not same_text(first, example.query):
            msg = f"the query id '{example.query_id}' is already used at line {line}, for another query. {ONE_MEANING}"
            raise record.error(msg)
        if not example.positives:
            examples.dropped += 1
            continue
        rows.append(example)
        examples.lines.append(record.line)
        for passage in passages:
            if not same_text(embedded.setdefault(passage.id, passage).text, passage.text):
                msg = f"the passage id '{passage.id}' is used for another text earlier in the file. {ONE_MEANING}"
                raise record.error(msg)
    chooser.check_systems()
    note_unread(others, str(source))
    return examples


def _by_ids(record: Record, query: str, positives: str, negatives: str) -> Example:
    _require(record, query)
    for name in record.fields.keys() - {positives, negatives}:
        if is_numbered(name, POSITIVES + NEGATIVES):
            msg = f"'{positives}' holds ids, but '{name}' a text. Use ids for all documents, or texts for all."
            raise record.error(msg)
    ids = record.identifiers(positives), record.identifiers(negatives)
    text, answers, teacher = record.text(query), record.texts("answers"), teacher_scores(record, *ids)
    query_id = record.identifier("query_id") if "query_id" in record.fields else hashed_id(text)
    return Example(query_id, text, *ids, answers, teacher)


def _with_passages(
    record: Record, query_id: str, query: str, positives: str, negatives: str
) -> tuple[Example, list[Passage]]:
    """Return an example with embedded passages, texts included, in two fields."""
    items = record.items(positives), record.items(negatives)
    good = [_embedded(item, record, positives) for item in items[0]]
    bad = [_embedded(item, record, negatives) for item in items[1]]
    ids = tuple(passage.id for passage in good), tuple(passage.id for passage in bad)
    teacher = teacher_scores(record, ids[0], ids[1], [*items[0], *items[1]])
    return Example(query_id, query, ids[0], ids[1], record.texts("answers"), teacher), good + bad


def _triple(record: Record) -> tuple[Example, list[Passage]]:
    query = record.text(next(name for name in ANCHORS if name in record.fields))
    positives, negatives = (
        [
            Passage(hashed_id(text), "", text)
            for name in record.fields
            if is_numbered(name, names)
            for text in record.texts(name)
        ]
        for names in (POSITIVES, NEGATIVES)
    )
    if not negatives and (labels := labelled(record, len(positives))) is not None:
        order = sorted(range(len(labels)), key=lambda place: -labels[place])
        documents, scores = [positives[place] for place in order], record.items("scores")
        positives, negatives = documents[: sum(labels)], documents[sum(labels) :]
        ordered = [scores[place] for place in order] if len(scores) == len(order) else scores or None
        record = record._replace(fields={**record.fields, "labels": None, "scores": ordered})
    ids = tuple(passage.id for passage in positives), tuple(passage.id for passage in negatives)
    query_id = record.identifier("query_id") if "query_id" in record.fields else hashed_id(query)
    return Example(query_id, query, *ids, teacher=teacher_scores(record, *ids)), positives + negatives


def _embedded(value: object, record: Record, where: str) -> Passage:
    if not isinstance(value, dict):
        msg = f"'{where}' should hold passages (objects with docid, title and text)."
        raise record.error(msg)
    inner = record._replace(fields=value)
    held = (name for name, part in value.items() if part not in (None, "") or name in PASSAGE_TEXTS)
    name, titled, texted = roles_of(tuple(held))
    if not texted:
        msg = f"a passage in '{where}' has no text; it has these fields: {field_names(value)}."
        raise record.error(msg)
    title, text = inner.text(titled) if titled else "", inner.text(texted)
    return Passage(inner.identifier(name) if name else hashed_id(f"{title}\n{text}"), title, text)


def _require(record: Record, *names: str) -> None:
    if missing := [name for name in names if name not in record.fields]:
        problem = f"missing: {', '.join(missing)}; it has {field_names(record.fields)}"
        msg = f"{problem}. Known formats: {'; '.join(EXAMPLES.known)}."
        raise record.error(msg)


def _judged(source: str | Path, split: str) -> Examples:
    """Build examples from queries and judgements: documents judged above 0 are the positives."""
    queries = {query.id: query for query in read_queries(source)}
    positives: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    for record, query_id, document_id, grade in judgements(source, split):
        if query_id not in queries:
            msg = f"the judged query '{query_id}' is not among the {counted(len(queries), 'queries')} of '{source}'."
            raise record.error(msg)
        lines.setdefault(query_id, record.line)
        if grade > 0:
            positives.setdefault(query_id, []).append(document_id)
    rows = [
        Example(query.id, query.text, tuple(positives[query.id]), (), query.answers, fields=query.fields)
        for query in map(queries.__getitem__, positives)
    ]
    return Examples(rows, {}, str(source), len(lines) - len(rows), [lines[row.query_id] for row in rows])


def against_corpus(examples: Examples, corpus: Corpus) -> Examples:
    """Map the examples to ids of a corpus: a passage with an unknown id is matched by its text, if available."""
    check_texts(_texts_of(examples), corpus)
    wanted = {document for _, document in examples.documents()}
    missing = corpus.missing(wanted) if wanted else set()
    if not missing:
        return examples
    digests = {name: passage_digest(examples.passages[name]) for name in missing if name in examples.passages}
    wanted_digests = set(digests.values())
    candidates: Iterable[Passage] = corpus if digests else ()
    ids = {digest: passage.id for passage in candidates if (digest := passage_digest(passage)) in wanted_digests}
    new_ids = {document: ids[digest] for document, digest in digests.items() if digest in ids}
    _refuse(missing - new_ids.keys(), examples, corpus)
    lines = [line for line, _ in examples.located() if line is not None]
    passages = {name: examples.passages[name] for name in examples.passages if name not in new_ids}
    rows = [
        replace(
            row,
            positives=tuple(dict.fromkeys(new_ids.get(name, name) for name in row.positives)),
            negatives=tuple(dict.fromkeys(new_ids.get(name, name) for name in row.negatives)),
            teacher=row.teacher and {new_ids.get(name, name): score for name, score in row.teacher.items()},
        )
        for row in examples.rows
    ]
    return replace(examples, rows=rows, passages=passages, lines=lines, reread=None)
