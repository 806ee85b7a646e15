"""The program behind `rkit mine-negatives`: passages that a search finds and that do not answer, for each example.

    rkit mine-negatives --from bm25|CHECKPOINT|INDEX|RUN --corpus CORPUS --examples TRAIN --output FILE

The best hits of each question go through the filters of `data.negatives`; of what is left the first are kept, or a
seeded sample. FILE.audit.json says what each filter dropped, with examples.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from retrievalkit import artifacts, registry
from retrievalkit.data.answers import answer_hits
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import Example, Examples, read_examples, write_examples
from retrievalkit.data.merging import against_corpus, merge_examples, mined_examples
from retrievalkit.data.negatives import (
    Found,
    Hit,
    Mined,
    MiningOptions,
    Question,
    group_questions,
    make_filters,
    mine_question,
)
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import Run, read_run
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError, RetrievalkitError, nearest

QUESTIONS_AT_ONCE = 10_000
SHOWN = 3
SNIPPET = 160


def mine(
    source: str | Path,
    *,
    corpus: str | Path,
    examples: str | Path,
    output: str | Path,
    merge_with: str | Path | None = None,
    model: str | Path | None = None,
    indexer_options: Mapping[str, Any] | None = None,
    **choices: Any,
) -> dict[str, Any]:
    """Mine negatives and write training examples.

    Args:
        source: What finds the passages: "bm25" (Lucene, over the corpus; a folder of that name is written "./bm25"), a
            checkpoint, an index, or a run file.
        corpus: The passages.
        examples: The questions and their positives. Where positives are "retrieved", questions with answers will do.
        output: The file to write: examples as JSON lines of ids. OUTPUT.audit.json is written beside it.
        merge_with: Another set of examples to put in front of the mined ones.
        model: For an index whose checkpoint has been moved: where it is.
        indexer_options: Options of the indexer `bm25` that is built for "bm25".
        **choices: Which hits become negatives: the options of `MiningOptions`.

    Returns:
        The audit: what was read, dropped and written.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
        RetrievalkitError: No question has a negative.
    """
    options = MiningOptions(**registry.check_options("rkit mine-negatives", MiningOptions, choices))
    options.check(merging=merge_with is not None)
    if Path(output).is_dir():
        msg = f"output '{output}' is a folder, and a file is to be written there. Choose another --output."
        raise ArtifactError(msg)
    kind = source_kind(source)
    _check_effect(source, kind, model, indexer_options)
    opened = open_corpus(corpus)
    read = against_corpus(_read(examples, options), opened)
    other = None if merge_with is None else against_corpus(read_examples(merge_with), opened)
    questions = group_questions(read.rows, opened if options.drop_positives else None)
    _check_answers(questions, options)
    filters = make_filters(options)
    audit = Audit([one.name for one in filters])
    mined: dict[str, Mined] = {}
    identity = {"source": _fingerprint(source, kind), "corpus": opened.fingerprint()}
    with _work_folder(Path(output), identity) as work:
        search = _SEARCHERS[kind](Sources(source, opened, work, model, indexer_options or {}))
        for found in _found(search, source, questions, opened, options):
            audit.count(found)
            mined[found.question.query.text] = mine_question(found, options, filters, audit.drop)
        rows = list(mined_examples(read.rows, mined))
        if not any(row.negatives for row in rows):
            raise RetrievalkitError(audit.complaint(source))
    merged = rows if other is None else list(merge_examples(other.rows, rows, keep=options.keep, merge=options.merge))
    result = {
        "source": {"source": str(source), "kind": kind},
        "options": asdict(options),
        "counts": {"examples": len(read.rows), "questions": len(questions), "mined": len(rows), "written": len(merged)},
        **audit.report(opened.get),
        "negatives": distribution([len(row.negatives) for row in rows]),
    }
    _write(Path(output), merged, result)
    return result


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `--set` gives to `mine`: options of `MiningOptions`, `model`, and `indexer.OPTION` for BM25.

    Raises:
        OptionError: There is no such option.
    """
    values = dict(settings)
    found = {"model": values.pop("model")} if "model" in values else {}
    indexer = values.pop("indexer", {})
    if not isinstance(indexer, Mapping):
        msg = f"--set indexer={indexer} sets no option. Options of BM25 are set as indexer.k1=1.2."
        raise OptionError(msg)
    return {
        **registry.check_options("rkit mine-negatives", MiningOptions, values),
        **found,
        **({"indexer_options": indexer} if indexer else {}),
    }


def audit_file(output: str | Path) -> Path:
    """Where the audit of a mined file is written."""
    return Path(f"{output}.audit.json")


def _write(output: Path, rows: Sequence[Example], audit: Mapping[str, Any]) -> None:
    write_examples(output, rows)
    with artifacts.write_file(audit_file(output)) as staging:
        staging.write_text(json.dumps(audit, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(source: str | Path, options: MiningOptions) -> Examples:
    """The examples without their negatives; where positives are mined, questions without a positive too."""
    if options.positives == "keep":
        found = read_examples(source)
        return replace(found, rows=[replace(row, negatives=()) for row in found.rows])
    try:
        found = read_examples(source)
    except DataError:
        found = Examples([], source=str(source), dropped=1)
    rows = [replace(row, negatives=()) for row in found.rows]
    # A folder's or a package's other questions are not for training.
    if found.dropped and (not rows or Path(source).is_file()):
        known = {row.query_id for row in rows}
        others = [one for one in read_queries(source) if one.id not in known]
        rows += [Example(one.id, one.text, (), (), one.answers) for one in others]
    return replace(found, rows=rows, lines=[])


def _check_answers(questions: Sequence[Question], options: MiningOptions) -> None:
    if options.needs_answers and not any(question.query.answers for question in questions):
        what = "drop_answers" if options.drop_answers else "positives 'retrieved'"
        msg = f"{what} looks for the answers of the questions, and the examples have none ('answers' is empty)."
        raise InputError(msg)


Search = Callable[[Sequence[Question], int], Run]
"""Gives the best hits of questions, so many of each, by the id of the question's query."""


def _found(
    search: Search, source: str | Path, questions: Sequence[Question], corpus: Corpus, options: MiningOptions
) -> Iterator[Found]:
    """The hits of every question; so many questions at a time that memory does not grow with them."""
    for start in range(0, len(questions), QUESTIONS_AT_ONCE):
        some = questions[start : start + QUESTIONS_AT_ONCE]
        run = search(some, options.depth)
        if unknown := corpus.missing({one for hits in run.values() for one, _ in hits}):
            raise corpus.unknown(min(unknown), file=source)
        answers = {one.query.id: one.query.answers for one in some if options.needs_answers and one.query.answers}
        holds = answer_hits(run, answers, corpus, depth=options.depth) if answers else {}
        for question in some:
            yield Found.of(question, run.get(question.query.id, []), holds.get(question.query.id))


@dataclass(frozen=True)
class Sources:
    """What a search is made of: the source, the corpus, a folder for what is built on the way, and options."""

    source: str | Path
    corpus: Corpus
    work: Path
    model: str | Path | None
    indexer_options: Mapping[str, Any]


def source_kind(source: str | Path) -> str:
    """What finds the passages: "bm25", "checkpoint", "index" or "run".

    Raises:
        InputError: The source is none of these.
    """
    path = Path(source)
    if str(source) == "bm25":
        return "bm25"
    if path.is_file():
        return "run"
    kind = artifacts.kind_of(path)
    if kind in ("checkpoint", "index"):
        return str(kind)
    known = "--from takes bm25, a checkpoint (rkit train), an index (rkit index) or a run file (rkit search)."
    if path.is_dir():
        what = f"a {kind} folder, which is indexed first (rkit index)" if kind else "a folder that rkit did not write"
        msg = f"'{source}' is {what}. {known}"
        raise ArtifactError(msg)
    near = [str(one) for one in path.parent.iterdir()] if path.parent.is_dir() else []
    close = nearest(str(path), [*near, "bm25"])
    msg = f"'{source}' does not exist{f'; did you mean {close!r}?' if close else '.'} {known}"
    raise InputError(msg)


def _check_effect(source: str | Path, kind: str, model: object, indexer_options: object) -> None:
    if indexer_options and kind != "bm25":
        msg = f"indexer options are for --from bm25, and '{source}' is of the kind {kind}. Leave them out."
        raise OptionError(msg)
    if model is not None and kind != "index":
        msg = f"model is for an index, and '{source}' is of the kind {kind}. Leave it out."
        raise OptionError(msg)


def _run_search(sources: Sources) -> Search:
    run = read_run(sources.source)

    def search(questions: Sequence[Question], depth: int) -> Run:
        found = {one.query.id: next((run[name] for name in one.ids if name in run), []) for one in questions}
        if not any(found.values()):
            msg = (
                f"none of {len(questions)} questions is in the run '{sources.source}': the examples have query ids "
                f"like '{questions[0].query.id}', the run like '{next(iter(run))}'. Is it a run of these examples?"
            )
            raise InputError(msg)
        return {query_id: hits[:depth] for query_id, hits in found.items()}

    return search


def _index_search(sources: Sources) -> Search:
    from retrievalkit import search as program

    folder, model = str(sources.source), sources.model

    def search(questions: Sequence[Question], depth: int) -> Run:
        queries = [one.query for one in questions]
        found: Run = program.search([folder], queries=queries, k=depth, model=None if model is None else str(model))
        return found

    return search


def _checkpoint_search(sources: Sources) -> Search:
    """Encode the corpus and index it; vectors that an interrupted mining left are used."""
    from retrievalkit.encode import encode
    from retrievalkit.index import build_index

    vectors, index = sources.work / "vectors", sources.work / "index"
    if artifacts.kind_of(vectors) is None:
        encode(sources.source, sources.corpus.source, side="document", output=vectors)
    build_index(str(vectors), indexer="flat", output=index, options={}, overwrite=True)
    return _index_search(replace(sources, source=index, model=sources.source))


def _bm25_search(sources: Sources) -> Search:
    from retrievalkit.index import build_index

    index, options = sources.work / "bm25", dict(sources.indexer_options)
    build_index(sources.corpus.source, indexer="bm25", output=index, options=options, overwrite=True)
    return _index_search(replace(sources, source=index))


_SEARCHERS: dict[str, Callable[[Sources], Search]] = {
    "bm25": _bm25_search,
    "checkpoint": _checkpoint_search,
    "index": _index_search,
    "run": _run_search,
}


def _fingerprint(source: str | Path, kind: str) -> str:
    if kind != "checkpoint":
        return str(source)
    return str(artifacts.read_manifest(source, kind).get("fingerprint", source))


@contextmanager
def _work_folder(output: Path, identity: Mapping[str, str]) -> Iterator[Path]:
    """A folder beside the output for what is built on the way; it stays only where the mining is interrupted."""
    work = output.with_name(f".{output.name}.mining")
    note, text = work / "identity.json", json.dumps(identity)
    if work.is_dir() and (not note.is_file() or note.read_text(encoding="utf-8") != text):
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    try:
        note.write_text(text, encoding="utf-8")
        yield work
    except Exception:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


class Audit:
    """Counts what each filter drops, and keeps the first hits that it dropped, of different questions.

    Args:
        filters: Their names, in order.
    """

    def __init__(self, filters: Sequence[str]) -> None:
        self.dropped = dict.fromkeys(filters, 0)
        self.shown: dict[str, list[tuple[Question, Hit]]] = {name: [] for name in filters}
        self.hits = 0
        self.without_hits = 0
        self.positives_found = 0

    def count(self, found: Found) -> None:
        """Count a question and its hits."""
        self.hits += len(found.hits)
        self.without_hits += not found.hits
        self.positives_found += any(hit.document_id in found.positives for hit in found.hits)

    def drop(self, name: str, found: Found, hits: Sequence[Hit]) -> None:
        """Count what a filter dropped."""
        self.dropped[name] += len(hits)
        if hits and len(self.shown[name]) < SHOWN:
            self.shown[name].append((found.question, hits[0]))

    def report(self, passage: Callable[[str], Passage]) -> dict[str, Any]:
        """The counts and examples, JSON-able."""
        return {
            "hits": self.hits,
            "left": self.hits - sum(self.dropped.values()),
            "questions_without_hits": self.without_hits,
            "questions_whose_positive_was_found": self.positives_found,
            "filters": [
                {
                    "name": name,
                    "dropped": count,
                    "examples": [_shown(question, hit, passage(hit.document_id)) for question, hit in self.shown[name]],
                }
                for name, count in self.dropped.items()
            ],
        }

    def complaint(self, source: str | Path) -> str:
        """Why there is no negative at all."""
        if not self.hits:
            return f"'{source}' found nothing for any question. Is it for this corpus and these questions?"
        counts = ", ".join(f"{name} {count}" for name, count in self.dropped.items() if count)
        return f"the filters dropped all {self.hits} hits ({counts}). Raise --depth, or filter less."


def _shown(question: Question, hit: Hit, passage: Passage) -> dict[str, Any]:
    text = " ".join(passage.text.split())
    return {
        "query_id": question.query.id,
        "query": question.query.text,
        "document_id": hit.document_id,
        "rank": hit.rank,
        "score": hit.score,
        "title": passage.title,
        "text": text if len(text) <= SNIPPET else f"{text[: SNIPPET - 3]}...",
    }


def distribution(counts: Sequence[int]) -> dict[str, float]:
    """How many negatives the examples have: least, quartiles, most, mean, and how many have none."""
    quartiles = statistics.quantiles(counts, n=4, method="inclusive") if len(counts) > 1 else [float(counts[0])] * 3
    return {
        "least": min(counts),
        **dict(zip(("lower_quartile", "median", "upper_quartile"), quartiles, strict=True)),
        "most": max(counts),
        "mean": statistics.fmean(counts),
        "examples_without": sum(count == 0 for count in counts),
    }


def audit_table(audit: Mapping[str, Any]) -> str:
    """The audit as a person reads it."""
    counts, spread, source = audit["counts"], audit["negatives"], audit["source"]
    lines = [
        f"{counts['questions']:,} questions, {audit['hits']:,} hits from {source['kind']} {source['source']}",
        f"  {audit['questions_whose_positive_was_found']:,} questions found their positive, "
        f"{audit['questions_without_hits']:,} found nothing",
    ]
    for one in audit["filters"]:
        lines.append(f"{one['dropped']:>11,} dropped: {one['name']}")
        lines += [f"{'':13}{_line(shown)}" for shown in one["examples"]]
    lines.append(f"{audit['left']:>11,} left")
    lines.append(
        f"{counts['written']:,} examples written, {counts['mined']:,} of them mined, with {spread['least']} to "
        f"{spread['most']} negatives (mean {spread['mean']:.1f}); {spread['examples_without']:,} have none"
    )
    return "\n".join(lines)


def _line(shown: Mapping[str, Any]) -> str:
    title = shown["title"] or shown["document_id"]
    return f"{shown['query'][:60]!r} found at rank {shown['rank']}: {title[:40]}: {shown['text'][:50]!r}"
