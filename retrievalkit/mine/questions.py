"""Examples grouped by question, and copies of the positives' texts elsewhere in the corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrievalkit.contracts import Question
from retrievalkit.data.corpus import Corpus, text_digest
from retrievalkit.data.examples import Example
from retrievalkit.data.queries import Query

_NONE: frozenset[str] = frozenset()


def group_questions(rows: Sequence[Example], corpus: Corpus | None = None) -> list[Question]:
    """The distinct questions of the examples; with a corpus, including copies of their positives in it."""
    grouped: dict[str, list[Example]] = {}
    for row in rows:
        grouped.setdefault(row.query, []).append(row)
    copies = find_copies({positive for row in rows for positive in row.positives}, corpus) if corpus is not None else {}
    return [_question(examples, copies) for examples in grouped.values()]


def _question(examples: Sequence[Example], copies: Mapping[str, frozenset[str]]) -> Question:
    positives = frozenset(positive for example in examples for positive in example.positives)
    answers = tuple(dict.fromkeys(answer for example in examples for answer in example.answers))
    ids = tuple(dict.fromkeys(example.query_id for example in examples))
    return Question(
        # Not the first id: random samples depend on the id, and must not depend on the order of the examples.
        query=Query(min(ids), examples[0].query, answers),
        ids=ids,
        positives=positives,
        # Usually none, and another empty set for each question would take 200 bytes.
        copies=frozenset().union(*found) - positives
        if (found := [copies[one] for one in positives & copies.keys()])
        else _NONE,
    )


def find_copies(document_ids: set[str], corpus: Corpus) -> dict[str, frozenset[str]]:
    """Document id -> all ids with the same text, for those with copies. Memory does not depend on the corpus's size."""
    digests = {document: text_digest(corpus.get(document)) for document in sorted(document_ids)}
    same_text: dict[bytes, list[str]] = {digest: [] for digest in digests.values()}
    if same_text:
        for passage in corpus:
            if (digest := text_digest(passage)) in same_text:
                same_text[digest].append(passage.id)
    return {
        document: frozenset(same_text[digest]) for document, digest in digests.items() if len(same_text[digest]) > 1
    }
