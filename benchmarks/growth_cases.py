"""Unusual shapes, with the peak anonymous memory of their commands: `growth.py --cases`."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import growth

from retrievalkit.data.runs import write_run

Steps = Iterator[list[str]]


def _search(folder: Path, model: str) -> Steps:
    """100,000 queries x 100 hits."""
    inputs = growth.Inputs(folder, 100_000)
    yield from _with(inputs, ["search", "small", "--queries", "queries.jsonl", "--model", model, "--k", "100", *_OUT])


def _most_negatives(folder: Path, model: str) -> Steps:
    """64 questions with all 100,000 texts as negatives."""
    yield from _mined(folder, model, questions=64, texts=100_000, negatives=100_000)


def _many_negatives(folder: Path, model: str) -> Steps:
    """500 questions with 10,000 negatives each."""
    yield from _mined(folder, model, questions=500, texts=20_000, negatives=10_000)


def _mined(folder: Path, model: str, *, questions: int, texts: int, negatives: int) -> Steps:
    inputs = growth.Inputs(folder, texts)
    inputs.make(["train.jsonl"])
    lines = (folder / "train.jsonl").read_text().splitlines(keepends=True)[:questions]
    (folder / "few_examples.jsonl").write_text("".join(lines))
    depth = ["--depth", str(negatives), "--negatives", str(negatives)]
    files = ["--corpus", "corpus.jsonl", "--examples", "few_examples.jsonl", "--output", "mined.jsonl"]
    yield from _with(inputs, ["mine-negatives", "--from", "flat", "--set", f"model={model}", *depth, *files])


def _fused(folder: Path, _: str) -> Steps:
    """Two run files of 20,000 queries x 100 hits."""
    for number, name in enumerate(("one.trec", "two.trec")):
        rng = random.Random(number)
        hits = (
            (f"q{n}", [(f"d{d}", 1 / r) for r, d in enumerate(rng.sample(range(1_000_000), 100), 1)])
            for n in range(20_000)
        )
        write_run(folder / name, hits)
    yield ["search", "one.trec", "two.trec", *_OUT]


def _one_document(folder: Path, model: str) -> Steps:
    """A document of 1 MB, encoded and indexed; a query of 10,000 words; k larger than the corpus."""
    rng = random.Random(0)
    words = [f"word{rng.randrange(5_000)}" for _ in range(120_000)]
    (folder / "corpus.jsonl").write_text(json.dumps({"_id": "d0", "title": "", "text": " ".join(words)}) + "\n")
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q0", "text": " ".join(words[:10_000])}) + "\n")
    yield ["encode", model, "corpus.jsonl", "--output", "vectors"]
    yield ["index", "vectors", "--indexer", "flat", "--output", "flat"]
    yield ["search", "flat", "--queries", "queries.jsonl", "--k", "1000", *_OUT]
    yield ["index", "corpus.jsonl", "--indexer", "bm25", "--output", "bm25"]
    yield ["search", "bm25", "--queries", "queries.jsonl", "--k", "1000", *_OUT]


def _with(inputs: growth.Inputs, words: list[str]) -> Steps:
    inputs.make(words)
    yield words


_OUT = ("--output", "run.trec")
CASES: dict[str, Callable[[Path, str], Steps]] = {
    "search, 100,000 queries x 100 hits": _search,
    "fuse, 20,000 queries x 100 hits": _fused,
    "mine, 100,000 negatives": _most_negatives,
    "mine, 10,000 negatives": _many_negatives,
    "one document": _one_document,
}


def measure_cases(only: list[str], where: str | None) -> dict:
    """Measure the peaks of the steps of each case whose name contains a part of `only`."""
    peaks: dict = {}
    for name, steps in CASES.items():
        if only and not any(part.strip() in name for part in only):
            continue
        with tempfile.TemporaryDirectory(dir=where) as place:
            folder = Path(place) / "case"
            folder.mkdir()
            model = growth.checkpoint(Path(place))
            for words in steps(folder, model):
                peak, seconds = growth.peak_of(words, folder)
                step = " ".join(words[:2]) if name == "one document" else words[0]
                peaks.setdefault(name, {})[step] = {"MB": peak, "seconds": seconds}
                print(f"{name:36} {step:24} {peak:>8,.1f} MB {seconds:>7,.1f} s", file=sys.stderr, flush=True)
    return peaks
