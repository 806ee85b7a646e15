"""The program behind `rkit mine-negatives`: passages that a search ranks high although they do not answer the question.

    rkit mine-negatives --from bm25|CHECKPOINT|INDEX|RUN --corpus CORPUS --examples TRAIN --output FILE

The best hits of each question go through the filters of `mine.filters`; of the remaining hits, the first or a seeded
sample are kept. FILE.audit.json records the hits that each filter dropped, with examples, and FILE.audit.html shows
them. Memory use does not grow with questions times hits (except that sets to pool are read whole), and a killed
command resumes where it stopped when it is run again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retrievalkit import artifacts, oddities, registry
from retrievalkit.cluster import ClusterOptions
from retrievalkit.contracts import PairScores
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.examples import Example, Examples, against_corpus, note_dropped, read_examples, write_examples
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import DataError, InputError, OptionError
from retrievalkit.mine.audit import distribution
from retrievalkit.mine.audit_page import audit_page
from retrievalkit.mine.merge import merge_examples, mined_examples
from retrievalkit.mine.options import MiningOptions
from retrievalkit.mine.parts import MinedParts, Mining, part_size
from retrievalkit.mine.questions import group_questions
from retrievalkit.mine.sources import Sources
from retrievalkit.report.page import write_page
from retrievalkit.search.options import FusionOptions


@dataclass(frozen=True, kw_only=True)
class MiningFiles:
    """The input and output files of mining, besides the sources of hits.

    Attributes:
        corpus: The passages.
        examples: The questions and their positives. If positives are "retrieved", questions with answers suffice.
        output: The file to write: examples as JSON lines of ids. OUTPUT.audit.json and OUTPUT.audit.html are written
            beside it.
        split: The split of a folder or another source of examples with several; None = "train".
        merge_with: Another set of examples to put in front of the mined ones.
    """

    corpus: str | Path
    examples: str | Path
    output: str | Path
    merge_with: str | Path | None = None
    split: str | None = None


def mine(sources: Sources, files: MiningFiles, options: MiningOptions | None = None) -> dict[str, Any]:
    """Mine negatives and write training examples.

    Args:
        sources: The sources of hits.
        files: The input and output files.
        options: Which hits become negatives; None = the defaults.

    Returns:
        The audit: counts of what was read, dropped and written.

    Raises:
        InputError: The input is invalid; nothing was written.
        InputError: No question has a negative.
    """
    options = options or MiningOptions()
    options.check(merging=files.merge_with is not None)
    output = Path(files.output)
    artifacts.check_output_file(output)
    sources.check()
    if sources.precision is not None and options.reranker is None and {"bm25", "run"}.issuperset(sources.kinds):
        msg = (
            f"--precision {sources.precision} is for a checkpoint, an index or a re-ranker, but there is none. "
            "Leave it out."
        )
        raise OptionError(msg)
    corpus = open_corpus(files.corpus)
    examples = against_corpus(_read(files, options), corpus)
    other = None if files.merge_with is None else against_corpus(read_examples(files.merge_with), corpus)
    scores, scored_by = _scores(options, corpus, sources)
    questions = group_questions(examples.rows, corpus if options.drop_positives else None)
    mining = Mining(questions, corpus, options, sources.title, scores).applicable()
    inputs = [sources.fingerprint(), corpus.fingerprint(), fingerprint(files.examples)]
    identity = [*inputs, files.split, scored_by, mining.options.as_dict(), part_size(options.depth)]
    with _work_folder(output) as work:
        parts = work / f"parts-{artifacts.fingerprint_value(identity)[:12]}"
        _remove_other_parts(work, parts)
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
    with artifacts.write_file(output) as staging:
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
        oddities.check(*audit["warnings"])
        artifacts.write_json(audit_file(output), audit)
        write_page(page_file(output), audit_page(audit, title=output.name))
    return audit


def _counted(rows: Iterable[Example], sizes: Counter[int]) -> Iterator[Example]:
    """Pass the rows through, counting them by their number of negatives."""
    for row in rows:
        sizes[len(row.negatives)] += 1
        yield row


def _scores(options: MiningOptions, corpus: Corpus, sources: Sources) -> tuple[PairScores | None, str]:
    if options.reranker is None:
        return None, ""
    from retrievalkit.mine.reranker import open_scores

    return open_scores(options.reranker, corpus.get, precision=sources.precision or "fp32")


def parse_settings(
    names: Sequence[str | Path], settings: Mapping[str, Any], cluster: ClusterOptions | None = None
) -> tuple[Sources, MiningOptions]:
    """The sources and options that flags and `--set` describe.

    Args:
        names: The sources of hits, as for `Sources`.
        settings: Options of `MiningOptions`; `model`, `precision`, those of fusion, and `indexer`: options of BM25.
        cluster: The Ray cluster whose workers search; None = this process.

    Raises:
        OptionError: An option is unknown.
    """
    values = dict(settings)
    of_fusion = {name: values.pop(name) for name in registry.options(FusionOptions) if name in values}
    fusion = FusionOptions(**registry.check_options("rkit mine-negatives", FusionOptions, of_fusion))
    indexer = values.pop("indexer", {})
    if not isinstance(indexer, Mapping):
        msg = f"--set indexer={indexer} sets no option. Options of BM25 are set like indexer.k1=1.2."
        raise OptionError(msg)
    model = str(values.pop("model")) if "model" in values else None
    precision = values.pop("precision", None)
    sources = Sources([str(name) for name in names], model, indexer, fusion, precision, cluster)
    return sources, MiningOptions(**registry.check_options("rkit mine-negatives", MiningOptions, values))


def audit_file(output: str | Path) -> Path:
    """Where the audit of a mined file is written."""
    return Path(f"{output}.audit.json")


def page_file(output: str | Path) -> Path:
    """Where the page of the audit is written."""
    return Path(f"{output}.audit.html")


def _read(files: MiningFiles, options: MiningOptions) -> Examples:
    """The examples without their negatives; if positives are mined, also questions without a positive."""
    source, split = files.examples, files.split or "train"
    if files.split is not None and Path(source).is_file():
        msg = f"--split has no effect on the examples of a file, '{source}'. Leave it out."
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
        rows += [Example(query.id, query.text, (), (), query.answers) for query in others]
    return replace(examples, rows=rows, lines=[])


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """A folder beside the output for intermediate files; it stays only if mining is interrupted or the disk is full."""
    place = artifacts.place_of(output)
    with artifacts.held(output), artifacts.work_folder(place.with_name(f".{place.name}.mining")) as work:
        yield work


def _remove_other_parts(work: Path, parts: Path) -> None:
    """Remove the parts of an earlier run with other options."""
    for folder in work.glob("parts-*"):
        if folder != parts:
            shutil.rmtree(folder)
