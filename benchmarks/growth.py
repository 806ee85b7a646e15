"""Peak memory of each command at growing sizes: texts, queries, judgements and runs of so many rows.

    python benchmarks/growth.py [--sizes 10000,100000] [--only search,evaluate] [--folder DIR] [--output growth.json]

Each command is a process of its own, watched from outside: the most anonymous memory it has at any time, which leaves
out files that are mapped (an index, vectors), as the system takes those back when it needs room. Texts have about ten
words, vectors 32 numbers; a run has 10 hits a query, and there are as many queries as texts. `HOLDS` states what a
command keeps for each text or query; what grows beyond it, relative to the smallest size, should be under 10 %.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse
from bench import machine

from retrievalkit import testing
from retrievalkit.data.runs import write_run
from retrievalkit.data.vectors import VectorWriter

HITS, DIM, TERMS = 10, 32, 40
SHARD = 8_192

HOLDS = {
    "encode": (24, "a hash of each id, its position and length"),
    "index flat": (24, "a hash of each id and its position"),
    "index faiss": (24 + 5 * DIM, "the vectors, as faiss has the index in memory, and a hash of each id"),
    "index sparse": (1_400, "the postings of a part, which has at most 131,072 texts"),
    "index dense_sparse": (1_400, "the postings of a part, which has at most 131,072 texts"),
    "search": (500, "the queries: ids and texts"),
    "mine-negatives": (1_800, "the examples and questions"),
    "evaluate": (2_500, "the judgements, the run's ids, a value for each metric"),
    "compare": (5_000, "the judgements; of each run its values and first hits, for the page"),
    "convert": (200, "the run's ids"),
    "fuse": (500, "the runs' ids and the queries"),
}
"""Command -> bytes for each text or query that it may keep, and what they are."""

_RUN = "import sys; from retrievalkit.cli import main; sys.argv = ['rkit', *sys.argv[1:]]; main()"


def draw(folder: Path, size: int) -> None:
    """A corpus, queries, examples, judgements, two runs and vectors with weights."""
    rng = random.Random(size)
    words = [f"word{number}" for number in range(5_000)]

    def text() -> str:
        return " ".join(rng.choices(words, k=10))

    def lines(name: str, rows) -> None:
        with (folder / name).open("w") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)

    lines("corpus.jsonl", ({"_id": f"d{n}", "title": "", "text": text()} for n in range(size)))
    lines("queries.jsonl", ({"_id": f"q{n}", "text": text()} for n in range(size)))
    lines(
        "train.jsonl",
        ({"query_id": f"q{n}", "query": f"{n} {text()}", "positives": [f"d{n}"], "negatives": []} for n in range(size)),
    )
    with (folder / "qrels").open("w") as stream:
        stream.writelines(f"q{n} 0 d{n} 1\n" for n in range(size))
    for name in ("one.trec", "two.trec"):
        write_run(folder / name, ((f"q{n}", hits(rng, n, size)) for n in range(size)))
    _draw_vectors(folder / "drawn", size)


def hits(rng: random.Random, query: int, size: int) -> list[tuple[str, float]]:
    """Different documents, one of them often the right one."""
    found = dict.fromkeys([f"d{query}"] * (query % 3 > 0) + [f"d{rng.randrange(size)}" for _ in range(2 * HITS)])
    return [(document, 1 - place / 100) for place, document in enumerate(list(found)[:HITS])]


def _draw_vectors(folder: Path, size: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    writer = VectorWriter(folder, identity={"drawn": size})
    for number, start in enumerate(range(0, size, SHARD)):
        rows = min(SHARD, size - start)
        columns = rng.integers(0, 30_522, (rows, TERMS))
        columns.sort(axis=1)
        values = rng.random(rows * TERMS, dtype=np.float32) + 0.1
        weights = scipy.sparse.csr_matrix(
            (values, columns.ravel(), np.arange(0, rows * TERMS + 1, TERMS)), shape=(rows, 30_522)
        )
        weights.sum_duplicates()
        vectors = rng.standard_normal((rows, 1, DIM), dtype=np.float32)
        writer.write_shard(number, [f"d{n}" for n in range(start, start + rows)], vectors, weights=weights)
    from retrievalkit import artifacts

    artifacts.write_manifest(
        folder, "vectors", command="encode", options={}, inputs={}, counts=writer.finish(), files=writer.checksums()
    )


def commands(model: Path) -> dict[str, list[str]]:
    """The command lines, run in the folder of one size; later ones need what earlier ones wrote."""
    index = ["--output"]
    return {
        "encode": ["encode", str(model), "corpus.jsonl", "--output", "vectors"],
        "index flat": ["index", "vectors", "--indexer", "flat", *index, "flat"],
        "index faiss": ["index", "vectors", "--indexer", "faiss", *index, "faiss"],
        "index sparse": ["index", "drawn", "--indexer", "sparse", *index, "sparse"],
        "index dense_sparse": ["index", "drawn", "--indexer", "dense_sparse", *index, "dense_sparse"],
        "search": ["search", "flat", "--queries", "queries.jsonl", "--k", str(HITS), "--output", "found.trec"],
        "mine-negatives": [
            *("mine-negatives", "--from", "one.trec", "--corpus", "corpus.jsonl", "--examples", "train.jsonl"),
            *("--output", "mined.jsonl"),
        ],
        "evaluate": ["evaluate", "one.trec", "--qrels", "qrels"],
        "compare": ["compare", "one.trec", "two.trec", "--qrels", "qrels", "--output", "page.html", "--no-plot"],
        "convert": ["convert", "one.trec", "converted.trec"],
        "fuse": ["search", "one.trec", "two.trec", "--output", "fused.trec"],
    }


def peak_of(words: list[str], folder: Path) -> tuple[float, float]:
    """The most anonymous memory of a command in MB, and its seconds.

    Raises:
        RuntimeError: It failed.
    """
    started = time.perf_counter()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", _RUN, *words], cwd=folder, stdout=log, stderr=log)
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


def measure(sizes: list[int], only: list[str], where: str | None) -> dict:
    """Peaks of all commands at all sizes."""
    found: dict = {}
    with tempfile.TemporaryDirectory(dir=where) as name:
        model = testing.tiny_model(Path(name) / "model")
        for size in sizes:
            folder = Path(name) / str(size)
            folder.mkdir()
            draw(folder, size)
            for command, words in commands(Path(model)).items():
                if only and command not in only:
                    continue
                peak, seconds = peak_of(words, folder)
                found.setdefault(command, {})[str(size)] = {"MB": peak, "seconds": seconds}
                print(f"{command:20} {size:>9,} {peak:>8,.1f} MB {seconds:>7,.1f} s", file=sys.stderr, flush=True)
    for command, peaks in found.items():
        (first, small), *_, (last, large) = [*peaks.items()] if len(peaks) > 1 else [*peaks.items()] * 2
        held = HOLDS[command][0] * (int(last) - int(first)) / 1e6
        beyond = (large["MB"] - small["MB"] - held) / small["MB"]
        peaks["holds"] = {"bytes": HOLDS[command][0], "what": HOLDS[command][1]}
        peaks["growth beyond it"] = round(max(0.0, beyond), 3)
    return found


def table(found: dict) -> str:
    """The peaks as Markdown."""
    sizes = list(dict.fromkeys(size for peaks in found.values() for size in peaks if size.isdigit()))
    rows = [
        ["command", *(f"{int(size):,}" for size in sizes), "may hold a row", "growth beyond it"],
        ["---"] * (len(sizes) + 3),
    ]
    for command, peaks in found.items():
        values = [f"{peaks[size]['MB']:,.0f} MB" for size in sizes]
        rows.append([f"`{command}`", *values, f"{peaks['holds']['bytes']:,} B", f"{peaks['growth beyond it']:.1%}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure, print the table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--only", default="", help="commands, between commas")
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--output", help="a JSON file")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    found = measure(sizes, [name for name in given.only.split(",") if name], given.folder)
    print(table(found))
    if given.output:
        Path(given.output).write_text(json.dumps({"commands": found, "machine": machine()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
