"""Implementation of `rkit mine-negatives`; see `mining.mine`."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, Examples, against_corpus, note_dropped, read_examples, write_examples
from retrievalkit.data.passage_parts import in_passages
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import DataError, InputError, OptionError
from retrievalkit.mining.audit import audit_page, distribution
from retrievalkit.mining.examples import group_questions, merge_examples, mined_examples
from retrievalkit.mining.mine import MineOptions
from retrievalkit.mining.options import RECORDED
from retrievalkit.mining.parts import MinedParts, Mining, part_size
from retrievalkit.mining.sources import Sources
from retrievalkit.reporting import notices
from retrievalkit.reporting.page import write_page


def mine(options: MineOptions) -> dict[str, Any]:
    """Mine negatives, write training examples and their audit, and return the audit."""
    options.check(merging=options.merge_with is not None)
    output = Path(options.output or "")
    storage.check_output_file(output)
    precision = options.precision
    encoding = options, precision, options.cluster, options.backend
    sources = Sources(options.source, options.model, options.indexer_options, *encoding)
    sources.check()
    if precision is not None and options.reranker is None and {"bm25", "run"}.issuperset(sources.kinds):
        msg = f"precision {precision} only applies to a checkpoint, an index or a re-ranker. Leave it out."
        raise OptionError(msg)
    corpus = open_corpus(options.corpus)
    if options.same_document == RECORDED and all(passage.cut is None for passage in corpus):
        msg = f"'{corpus.source}' does not record documents: rkit convert --passages and rkit sync do. Give a title or "
        msg += "a regular expression as same_document."
        raise InputError(msg)
    examples, other = (
        None if read is None else against_corpus(in_passages(read, corpus), corpus)
        for read in (_read(options), None if options.merge_with is None else read_examples(options.merge_with))
    )
    assert examples is not None
    scores, scored_by = None, ""
    if options.reranker is not None:
        from retrievalkit.mining.reranker import open_scores

        scores, scored_by = open_scores(
            options.reranker, corpus.get, precision=precision or "fp32", backend=options.backend
        )
    questions = group_questions(examples.rows, corpus if options.drop_positives else None)
    mining = Mining(questions, corpus, options, sources.title, scores).applicable()
    inputs = [sources.fingerprint(), corpus.fingerprint(), fingerprint(options.examples)]
    grouped = storage.fingerprint_value([question.ids for question in questions])
    identity = [*inputs, options.split, grouped, scored_by, mining.options.as_dict(), part_size(options.depth)]
    place = storage.place_of(output)
    # A folder next to the output; it remains only if mining is interrupted or the disk is full.
    with storage.held(output), storage.work_folder(place.with_name(f".{place.name}.mining")) as work:
        parts = work / f"parts-{storage.fingerprint_value(identity)[:12]}"
        for folder in work.glob("parts-*"):
            if folder != parts:
                shutil.rmtree(folder)
        mined = mining.run(sources.open(corpus, work, questions), parts)
        return _write(output, examples, mined, other, mining, sources)


def _write(
    output: Path, examples: Examples, mined: MinedParts, other: Examples | None, mining: Mining, sources: Sources
) -> dict[str, Any]:
    """Write the examples and the audit, and return the audit."""
    options = mining.options
    sizes: Counter[int] = Counter()
    written: Counter[int] = Counter()
    rows: Iterable[Example] = _counted(mined_examples(examples.rows, mined), sizes)
    if other is not None:
        rows = merge_examples(other.rows, rows, keep=options.keep, merge=options.merge)
    with storage.write_file(output) as staging:
        write_examples(staging, _counted(rows, written))
        if not any(sizes):
            raise InputError(mined.audit.complaint(sources.title))
        audit = {
            "source": {"source": sources.title, "kind": sources.kind},
            "options": options.as_dict(),
            "counts": {
                "examples": len(examples.rows),
                "questions": len(mining.questions),
                "mined": sum(sizes.values()),
                "written": sum(written.values()),
            },
            **mined.audit.report(mining.corpus, without=sizes[0], examples=sum(sizes.values())),
            "negatives": distribution(sizes),
        }
        notices.check(*audit["warnings"])
        storage.write_json(f"{output}.audit.json", audit)
        write_page(Path(f"{output}.audit.html"), audit_page(audit, title=output.name))
    return audit


def _counted(rows: Iterable[Example], sizes: Counter[int]) -> Iterator[Example]:
    """Pass the rows through, counting them by their number of negatives."""
    for row in rows:
        sizes[len(row.negatives)] += 1
        yield row


def _read(options: MineOptions) -> Examples:
    """Read the examples without their negatives; if positives are mined, also questions without a positive."""
    source, split = options.examples, options.split or "train"
    if options.split is not None and Path(source).is_file():
        msg = f"split has no effect on the examples of a file, '{source}'. Leave it out."
        raise OptionError(msg)
    if options.positives == "keep":
        examples = read_examples(source, split=split)
        note_dropped(examples)
        return replace(examples, rows=[replace(row, negatives=()) for row in examples.rows])
    try:
        examples = read_examples(source, split=split)
    except DataError:
        examples = Examples([], source=str(source), dropped=1)
    rows = [replace(row, negatives=()) for row in examples.rows]
    # The other questions of a folder or a package belong to its other splits.
    if examples.dropped and (not rows or Path(source).is_file()):
        known = {row.query_id for row in rows}
        others = [query for query in read_queries(source) if query.id not in known]
        rows += [Example(query.id, query.text, (), (), query.answers, fields=query.fields) for query in others]
    return replace(examples, rows=rows, lines=[])
