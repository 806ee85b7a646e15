"""Peak memory of each command at growing sizes: the number of texts, queries, judgements and rows of runs.

    python benchmarks/growth.py [--sizes 10000,30000,100000] [--only search,evaluate] [--folder DIR] [--output FILE]
    python benchmarks/growth.py --cases [--only "one document"]     # unusual shapes instead

Each command runs in its own process, whose peak anonymous memory is observed from outside. This excludes mapped files
(indexes, vectors), which the system can reclaim. Texts have about ten words, vectors 32 dimensions; a run has 10 hits
per query, and there are as many queries as texts. `growth_holds.HOLDS` has the memory that a command may hold per row;
growth beyond it, relative to the smallest size, should be below 10 %. Java has 512 MB, allocated at the start. The
slope of log seconds over log size is 1 for linear time, and lower because of the constant start-up time. Measurements
are added to the output file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import retrievalkit_testing as testing
import scipy.sparse
from bench import machine
from growth_holds import DIM, HITS, HOLDS, TERMS

from retrievalkit import storage
from retrievalkit.data.runs import write_run
from retrievalkit.data.vectors import VectorWriter
from retrievalkit.models.retriever import Retriever

SHARD = 8_192
FEW_QUERIES, FEW_TEXTS = 100, 1_000

_RUN = "import sys; from retrievalkit.cli import main; sys.argv = ['rkit', *sys.argv[1:]]; main()"
_JAVA = {"RKIT_JAVA_MEMORY": "512m", "JAVA_TOOL_OPTIONS": "-Xms512m -XX:+AlwaysPreTouch"}


class Inputs:
    """Input files and folders of a size, each generated when a command first names it."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.words = [f"word{number}" for number in range(5_000)]
        self._draw: dict[str, Callable[[Path], None]] = {
            "corpus.jsonl": lambda path: self._texts(path, "d", size),
            "queries.jsonl": lambda path: self._texts(path, "q", size),
            "few.jsonl": lambda path: self._texts(path, "q", FEW_QUERIES),
            "train.jsonl": self._examples,
            "qrels": lambda path: self._lines(path, (f"q{n} 0 d{n} 1\n" for n in range(size))),
            "one.trec": self._run,
            "two.trec": self._run,
            "dense": lambda path: _draw_vectors(path, size, weights=False),
            "drawn": lambda path: _draw_vectors(path, size, weights=True),
            "thousand": lambda path: _draw_vectors(path, FEW_TEXTS, weights=False),
            "flat": lambda path: peak_of(["index", "dense", "--indexer", "flat", "--output", "flat"], path.parent),
            "small": lambda path: peak_of(["index", "thousand", "--indexer", "flat", "--output", "small"], path.parent),
        }
        self._needs = {"flat": "dense", "small": "thousand"}

    def make(self, words: Iterable[str]) -> None:
        """Generate the inputs that a command line names, unless they exist."""
        for name in words:
            if name in self._draw and not (self.folder / name).exists():
                self.make([self._needs.get(name, "")])
                self._draw[name](self.folder / name)

    def _texts(self, path: Path, letter: str, count: int) -> None:
        rng = random.Random(path.name)
        rows = ({"_id": f"{letter}{n}", "title": "", "text": self._text(rng)} for n in range(count))
        self._lines(path, (json.dumps(row) + "\n" for row in rows))

    def _examples(self, path: Path) -> None:
        rng = random.Random(path.name)
        rows = (
            {"query_id": f"q{n}", "query": f"{n} {self._text(rng)}", "positives": [f"d{n}"], "negatives": []}
            for n in range(self.size)
        )
        self._lines(path, (json.dumps(row) + "\n" for row in rows))

    def _run(self, path: Path) -> None:
        rng = random.Random(path.name)
        write_run(path, ((f"q{n}", hits(rng, n, self.size)) for n in range(self.size)))

    def _text(self, rng: random.Random) -> str:
        return " ".join(rng.choices(self.words, k=10))

    @staticmethod
    def _lines(path: Path, lines: Iterable[str]) -> None:
        with path.open("w") as stream:
            stream.writelines(lines)


def hits(rng: random.Random, query: int, size: int) -> list[tuple[str, float]]:
    """Draw distinct documents, which often include the relevant document."""
    documents = dict.fromkeys([f"d{query}"] * (query % 3 > 0) + [f"d{rng.randrange(size)}" for _ in range(2 * HITS)])
    return [(document, 1 - place / 100) for place, document in enumerate(list(documents)[:HITS])]


def _draw_vectors(folder: Path, size: int, *, weights: bool) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    writer = VectorWriter(folder, identity={"drawn": size})
    for number, start in enumerate(range(0, size, SHARD)):
        rows = min(SHARD, size - start)
        vectors = rng.standard_normal((rows, 1, DIM), dtype=np.float32)
        ids = [f"d{n}" for n in range(start, start + rows)]
        writer.write_shard(number, ids, vectors, weights=_weights(rng, rows) if weights else None)
    storage.write_manifest(
        folder, "vectors", command="encode", options={}, inputs={}, counts=writer.finish(), files=writer.checksums()
    )


def _weights(rng: np.random.Generator, rows: int) -> scipy.sparse.csr_matrix:
    columns = rng.integers(0, 30_522, (rows, TERMS))
    columns.sort(axis=1)
    values = rng.random(rows * TERMS, dtype=np.float32) + 0.1
    starts = np.arange(0, rows * TERMS + 1, TERMS)
    weights = scipy.sparse.csr_matrix((values, columns.ravel(), starts), shape=(rows, 30_522))
    weights.sum_duplicates()
    return weights


def commands(model: str) -> dict[str, list[str]]:
    """The command lines, run in the folder of a size."""

    def index(source: str, indexer: str) -> list[str]:
        return ["index", source, "--indexer", indexer, "--output", f"index-{indexer}"]

    searched = ["--model", model, "--k", str(HITS), "--output", "run.trec"]
    return {
        "encode": ["encode", model, "corpus.jsonl", "--output", "vectors"],
        "index flat": index("dense", "flat"),
        "index faiss": index("dense", "faiss"),
        "index sparse": index("drawn", "sparse"),
        "index dense_sparse": index("drawn", "dense_sparse"),
        "index bm25": index("corpus.jsonl", "bm25"),
        "index impact": index("drawn", "impact"),
        "index lucene_hnsw": index("dense", "lucene_hnsw"),
        "search": ["search", "flat", "--queries", "few.jsonl", *searched],
        "search queries": ["search", "small", "--queries", "queries.jsonl", *searched],
        "mine-negatives": [
            *("mine-negatives", "--from", "one.trec", "--corpus", "corpus.jsonl", "--examples", "train.jsonl"),
            *("--output", "mined.jsonl"),
        ],
        "train": [
            *(
                "train",
                "--model",
                model,
                "--examples",
                "train.jsonl",
                "--corpus",
                "corpus.jsonl",
                "--output",
                "trained",
            ),
            *("--epochs", "1", "--batch-size", "64", "--held-out", "0"),
        ],
        "rerank": [
            *("rerank", "apply", str(Path(model).parent / "reranker"), "--run", "one.trec", "--k", "1"),
            *("--queries", "queries.jsonl", "--corpus", "corpus.jsonl", "--output", "reranked.trec"),
        ],
        "evaluate": ["evaluate", "one.trec", "--qrels", "qrels"],
        "compare": ["compare", "one.trec", "two.trec", "--qrels", "qrels", "--output", "page.html", "--no-plot"],
        "convert": ["convert", "one.trec", "converted.trec"],
        "fuse": ["search", "one.trec", "two.trec", "--output", "fused.trec"],
    }


def peak_of(words: list[str], folder: Path) -> tuple[float, float]:
    """Return the peak anonymous memory of a command in MB, and its seconds.

    Raises:
        RuntimeError: The command failed.
    """
    started = time.perf_counter()
    with (folder / "log").open("w") as log:
        start = [sys.executable, "-c", _RUN, *words]
        process = subprocess.Popen(start, cwd=folder, stdout=log, stderr=log, env={**os.environ, **_JAVA})
        peak = 0
        while process.poll() is None:
            peak = max(peak, _anonymous(process.pid))
            time.sleep(0.005)
    if process.returncode:
        msg = f"rkit {' '.join(words)} failed: {(folder / 'log').read_text()[-2000:]}"
        raise RuntimeError(msg)
    return round(peak / 1024, 1), round(time.perf_counter() - started, 1)


def _anonymous(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def checkpoint(folder: Path) -> str:
    """Write the checkpoint of a tiny, untrained model, and a re-ranker next to it."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    model, path = testing.tiny_model(folder / "model"), folder / "checkpoint"
    path.mkdir()
    Retriever.create(model, pooler="mean").save(path)
    config = AutoConfig.from_pretrained(model, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "reranker")
    AutoTokenizer.from_pretrained(model).save_pretrained(folder / "reranker")
    return str(path)


def measure(sizes: list[int], only: list[str], where: str | None) -> dict:
    """Measure the peaks of all commands at all sizes."""
    peaks: dict = {}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(dir=where) as name:
        model = checkpoint(Path(name))
        for size in sizes:
            folder = Path(name) / str(size)
            folder.mkdir()
            inputs = Inputs(folder, size)
            for command, words in commands(model).items():
                if only and command not in only:
                    continue
                inputs.make(words)
                peak, seconds = peak_of(words, folder)
                peaks.setdefault(command, {"commit": commit})[str(size)] = {"MB": peak, "seconds": seconds}
                print(f"{command:20} {size:>9,} {peak:>8,.1f} MB {seconds:>7,.1f} s", file=sys.stderr, flush=True)
    return peaks


def judged(command: str, peaks: dict) -> dict:
    """Add the memory that a command may hold, and its largest growth beyond that, to its peaks."""
    held = HOLDS[command]
    (first, small), *others = sorted(((int(size), peak["MB"]) for size, peak in peaks.items() if size.isdigit()))
    beyond = [(large - small - (held.at(size) - held.at(first)) / 1e6) / small for size, large in others]
    grown = [(large - small) * 1e6 / (size - first) for size, large in others]
    sizes = {str(size): peaks[str(size)] for size in sorted(int(name) for name in peaks if name.isdigit())}
    logs = [(math.log(int(size)), math.log(peak["seconds"])) for size, peak in sizes.items()]
    return {
        **sizes,
        "commit": peaks["commit"],
        "slope of seconds": round(statistics.linear_regression(*zip(*logs, strict=True)).slope, 2) if others else None,
        "holds": asdict(held),
        "grown a row": round(grown[-1]) if grown else None,
        "growth beyond it": round(max(0.0, *beyond), 3) if beyond else None,
    }


def table(commands: dict) -> str:
    """The peaks as Markdown."""
    sizes = sorted({int(size) for peaks in commands.values() for size in peaks if size.isdigit()})
    rows = [["command", *(f"{size:,}" for size in sizes), "may hold per row", "growth per row", "growth beyond it"]]
    rows[0].append("slope of seconds")
    rows.append(["---"] * len(rows[0]))
    for command in [name for name in HOLDS if name in commands]:
        peaks = commands[command]
        values = [f"{peaks[str(size)]['MB']:,.0f} MB" if str(size) in peaks else "" for size in sizes]
        held, beyond = peaks["holds"], peaks["growth beyond it"]
        first = f", {held['part']:,} B of the first {held['rows']:,}" if held["part"] else ""
        grown = "" if beyond is None else f"{peaks['grown a row']:,} B"
        row = [f"`{command}`", *values, f"{held['row']:,} B{first}", grown, "" if beyond is None else f"{beyond:.1%}"]
        rows.append([*row, str(peaks.get("slope of seconds") or "")])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure, print the table, and add to the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10000,30000,100000")
    parser.add_argument("--only", default="", help="comma-separated commands or cases")
    parser.add_argument("--cases", action="store_true", help="measure unusual shapes instead")
    parser.add_argument("--folder", help="parent of the temporary folder")
    parser.add_argument("--output", help="a JSON file")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    known = json.loads(Path(options.output).read_text()) if options.output and Path(options.output).exists() else {}
    if options.cases:
        from growth_cases import measure_cases

        known["cases"] = {**known.get("cases", {}), **measure_cases(only, options.folder)}
    else:
        commands_known = known.setdefault("commands", {})
        for command, peaks in measure([int(size) for size in options.sizes.split(",")], only, options.folder).items():
            commands_known[command] = judged(command, {**commands_known.get(command, {}), **peaks})
        print(table(commands_known))
    if options.output:
        Path(options.output).write_text(json.dumps({**known, "machine": machine()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
