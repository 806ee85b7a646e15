"""The program behind `rkit mine-negatives`: passages that a search finds and that do not answer, for each example.

    rkit mine-negatives --from bm25|CHECKPOINT|INDEX|RUN --corpus CORPUS --examples TRAIN --output FILE

The best hits of each question go through the filters of `data.filters`; of what is left the first are kept, or a
seeded sample. FILE.audit.json says what each filter dropped, with examples, and FILE.audit.html shows it. Memory does
not grow with the number of questions times that of hits (but a run that is mined is read whole, as are sets that are
merged), and a killed command, run again, goes on where it was.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit import artifacts, registry
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.examples import Example, Examples, against_corpus, read_examples, write_examples
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import ArtifactError, DataError, OptionError, RetrievalkitError
from retrievalkit.mine.audit import distribution
from retrievalkit.mine.audit_page import audit_page
from retrievalkit.mine.filters import PairScores
from retrievalkit.mine.merge import merge_examples, mined_examples
from retrievalkit.mine.options import MiningOptions
from retrievalkit.mine.parts import PART, MinedParts, Mining
from retrievalkit.mine.questions import group_questions
from retrievalkit.mine.sources import Sources

if TYPE_CHECKING:
    from retrievalkit.model.precision import Precision

# Of several sources: what `mine` and `--set` call it, and what fusion does.
_FUSION = {
    "fusion": "method",
    "weights": "weights",
    "normalization": "normalization",
    "missing": "missing",
    "rrf_k": "rrf_k",
}


def mine(
    source: str | Path | Sequence[str | Path],
    *,
    corpus: str | Path,
    examples: str | Path,
    output: str | Path,
    merge_with: str | Path | None = None,
    model: str | Path | None = None,
    indexer_options: Mapping[str, Any] | None = None,
    fusion: Mapping[str, Any] | None = None,
    precision: Precision = "auto",
    **choices: Any,
) -> dict[str, Any]:
    """Mine negatives and write training examples.

    Args:
        source: What finds the passages: "bm25" (Lucene, over the corpus; a folder of that name is written "./bm25"), a
            checkpoint, an index, or a run file; or several of these, whose hits are fused.
        corpus: The passages.
        examples: The questions and their positives. Where positives are "retrieved", questions with answers will do.
        output: The file to write: examples as JSON lines of ids. OUTPUT.audit.json and OUTPUT.audit.html are written
            beside it.
        merge_with: Another set of examples to put in front of the mined ones.
        model: For an index whose checkpoint has been moved: where it is.
        indexer_options: Options of the indexer `bm25` that is built for "bm25".
        fusion: For several sources: how their hits are fused, see `Sources`.
        precision: What a checkpoint or a re-ranker computes in.
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
    names = [source] if isinstance(source, str | Path) else source
    where = None if model is None else str(model)
    sources = Sources([str(one) for one in names], where, indexer_options or {}, fusion or {}, precision)
    sources.check()
    opened = open_corpus(corpus)
    read = against_corpus(_read(examples, options), opened)
    other = None if merge_with is None else against_corpus(read_examples(merge_with), opened)
    scores, scored_by = _scores(options, opened, precision)
    questions = group_questions(read.rows, opened if options.drop_positives else None)
    mining = Mining(questions, opened, options, sources.title, scores)
    mining.check()
    identity = [sources.fingerprint(), opened.fingerprint(), fingerprint(examples), scored_by, asdict(options), PART]
    with _work_folder(Path(output)) as work:
        parts = work / f"parts-{artifacts.fingerprint_value(identity)[:12]}"
        _drop_others(work, parts)
        mined = mining.run(sources.open(opened, work, questions), parts)
        return _write(Path(output), read, mined, other, mining, sources)


def _write(
    output: Path, read: Examples, mined: MinedParts, other: Examples | None, mining: Mining, sources: Sources
) -> dict[str, Any]:
    """Write the examples and the audit, and return this."""
    options = mining.options
    sizes: Counter[int] = Counter()
    written: Counter[int] = Counter()
    rows: Iterable[Example] = _counted(mined_examples(read.rows, mined), sizes)
    if other is not None:
        rows = merge_examples(other.rows, list(rows), keep=options.keep, merge=options.merge)
    with artifacts.write_file(output) as staging:
        write_examples(staging, _counted(rows, written))
        if not any(sizes):
            raise RetrievalkitError(mined.audit.complaint(sources.title))
        audit = {
            "source": {"source": sources.title, "kind": sources.kind},
            "options": asdict(options),
            "counts": {
                "examples": len(read.rows),
                "questions": len(mining.questions),
                "mined": sum(sizes.values()),
                "written": sum(written.values()),
            },
            **mined.audit.report(mining.corpus, without=sizes[0], examples=sum(sizes.values())),
            "negatives": distribution(sizes),
        }
        artifacts.write_json(audit_file(output), audit)
        audit_page(audit, title=output.name).write(page_file(output))
    return audit


def _counted(rows: Iterable[Example], sizes: Counter[int]) -> Iterator[Example]:
    """The same rows; how many have how many negatives is counted as they go by."""
    for row in rows:
        sizes[len(row.negatives)] += 1
        yield row


def _scores(options: MiningOptions, corpus: Corpus, precision: Precision) -> tuple[PairScores | None, str]:
    if options.reranker is None:
        return None, ""
    from retrievalkit.mine.reranker import open_scores

    return open_scores(options.reranker, corpus.get, precision=precision)


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What flags and `--set` give to `mine`: options of `MiningOptions`, `model`, of fusion, `indexer.OPTION` for BM25.

    Raises:
        OptionError: There is no such option.
    """
    values = dict(settings)
    found: dict[str, Any] = {"model": str(values.pop("model"))} if "model" in values else {}
    if fusion := {made: values.pop(name) for name, made in _FUSION.items() if name in values}:
        found["fusion"] = {**fusion, **({"weights": _weights(fusion["weights"])} if "weights" in fusion else {})}
    indexer = values.pop("indexer", {})
    if not isinstance(indexer, Mapping):
        msg = f"--set indexer={indexer} sets no option. Options of BM25 are set as indexer.k1=1.2."
        raise OptionError(msg)
    return {
        **registry.check_options("rkit mine-negatives", MiningOptions, values),
        **found,
        **({"indexer_options": indexer} if indexer else {}),
    }


def _weights(given: Any) -> str | list[float]:
    """Numbers, or the name of a file with a choice of them."""
    if isinstance(given, str) and Path(given).is_file():
        return given
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
    try:
        return [float(one) for one in parts]
    except (TypeError, ValueError):
        msg = f"--weights '{given}' is neither a list of numbers, such as 0.3,0.7, nor a file that --tune wrote."
        raise OptionError(msg) from None


def audit_file(output: str | Path) -> Path:
    """Where the audit of a mined file is written."""
    return Path(f"{output}.audit.json")


def page_file(output: str | Path) -> Path:
    """Where the page of the audit is written."""
    return Path(f"{output}.audit.html")


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


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """A folder beside the output for what is built on the way; it stays only where the mining is interrupted."""
    work = output.with_name(f".{output.name}.mining")
    work.mkdir(parents=True, exist_ok=True)
    try:
        yield work
    except RetrievalkitError:
        # The same command would fail again.
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


def _drop_others(work: Path, parts: Path) -> None:
    """Remove the parts of an earlier mining that had other options."""
    for folder in work.glob("parts-*"):
        if folder != parts:
            shutil.rmtree(folder)
