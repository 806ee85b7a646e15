"""`rkit mine-negatives`: adds hard negatives from hits to training examples, and writes an audit.

    rkit mine-negatives --from bm25|CHECKPOINT|INDEX|RUN --corpus CORPUS --examples TRAIN --output FILE

The best hits of each question pass through the filters of `mining.filters`; the first of the remaining hits, or a
seeded sample of them, are kept. FILE.audit.json records the hits that each filter dropped, with examples, and
FILE.audit.html shows them. Memory use does not grow with questions times hits (except that sets to pool are read
whole), and a killed command resumes where it stopped when it is run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any, Literal

from retrievalkit import storage
from retrievalkit.contracts.cluster import RayOptions
from retrievalkit.contracts.declarations import Flag, Place, ReadingOptions, Reads, command
from retrievalkit.data import inputs
from retrievalkit.data.example_table import Examples
from retrievalkit.errors import InputError
from retrievalkit.indexing.options import Backend
from retrievalkit.mining.options import MiningOptions
from retrievalkit.search.options import FusionOptions


def hit_sources(several: Any) -> tuple[str, ...]:
    """Return the addresses of hit sources: paths, open indexes, and in-memory runs."""
    places = [getattr(source, "folder", None) or getattr(source, "source", None) or source for source in several]
    return inputs.runs(storage.indexes_of(places))


@dataclass(frozen=True)
class MineOptions(MiningOptions, FusionOptions, RayOptions, ReadingOptions):
    """Options of `mine-negatives`.

    Args:
        source: "bm25", a checkpoint, an index or a TREC run; in Python also an open index, a `Run` or a hybrid; several
            are fused.
        examples: The examples to mine negatives for; in Python also rows.
        corpus: The passages to mine; in Python by default the corpus of the examples, or the indexed corpus.
        output: The file to write, with its audit next to it (.audit.json and .audit.html).
        split: The split of the examples, if they are a folder or another source with several splits; train by default.
        merge_with: Examples to place before the mined examples.
        model: The new path of an index's checkpoint, if it was moved.
        precision: Number format for encoding questions and scoring pairs, fp32 by default; if set, also for encoding
            passages (else auto). auto is bf16 if the hardware computes in it, else fp32.
        backend: Library that runs models: "auto" (the default) is OpenVINO on a CPU if installed,
            else "torch"; "openvino" or "onnx".
        indexer_options: Options of the index that is built for bm25.
    """

    source: Annotated[Any | Sequence[Any], Flag(("--from",)), Reads(hit_sources, ("model", "index", "run"))]
    examples: Annotated[Any, Reads(inputs.examples)]
    _: KW_ONLY
    corpus: Annotated[Any, Flag(required=True), Reads(inputs.passages)] = None
    output: Annotated[Place | None, Flag(("--output", "-o"), required=True)] = None
    split: str | None = None
    merge_with: Annotated[Any, Reads(inputs.examples)] = None
    model: Annotated[Any, Reads(inputs.model)] = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None
    backend: Backend = "auto"
    indexer_options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, with the parts, options and passages of open indexes and hybrids."""
        arguments = inputs.with_corpus({name: value for name, value in values.items() if value is not None})
        if (source := arguments.get("source")) is None:
            return arguments
        several = source if isinstance(source, list | tuple) else [source]
        opened: dict[str, Any] = {}
        for part in several:
            opened |= part.mining_options() if hasattr(part, "mining_options") else {}
        if len(several) == 1:
            several = opened.get("source", several)
        known = (address for part in several if (address := getattr(part, "texts_address", None)) is not None)
        return opened | {"corpus": arguments.get("corpus") or next(known, None)} | arguments | {"source": several}


@command("mine-negatives", MineOptions)
def mine_negatives(options: MineOptions) -> Examples:
    """Mine hard negatives: passages that rank high but do not answer the question.

    Hits are dropped in this order: known positives and copies of their text, passages of a positive's document, its
    near duplicates, passages with an answer, the first ranks, scores too close to the positive's, hits that plugins'
    filters drop, near duplicates of a better hit, and hits that a re-ranker considers relevant.

    OUTPUT.audit.html (and .json) shows dropped and kept hits. A killed command resumes when it is run again.
    """
    from retrievalkit.mining.audit import audit_table
    from retrievalkit.mining.pipeline import mine

    if options.corpus is None:
        msg = "there is no corpus to mine. Give the passages: corpus=..."
        raise InputError(msg)
    with storage.scratch() as folder:
        output = folder / "mined.jsonl" if options.output is None else options.output
        audit, stays = mine(replace(options, output=output)), options.output is not None
        return Examples.written(output, options.corpus, audit, audit_table(audit), stays=stays)
