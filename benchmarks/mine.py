"""Mining from BM25: questions a second against Pyserini's batch_search, start-up included.

    python benchmarks/mine.py [--texts 100000] [--queries 10000] [--depth 200] [--rounds 3]
    python benchmarks/mine.py --data BEIR_FOLDER     # its corpus, and the questions of its training set

Both are whole processes, on the same Lucene index, Java and number of threads. The peer imports Pyserini, searches all
questions in one batch and reads the id and score of every hit, and no more. Ours is `rkit mine-negatives`, which on top
of that filters, samples, writes the examples and an audit. Without --data, texts are drawn at random, with words as
frequent as Zipf has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from pairs import compare

from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.data.queries import Query, write_queries

VOCABULARY, TEXT_WORDS, QUERY_WORDS = 50_000, 60, 8

PEER = """
import json, sys
from retrievalkit_pyserini.java import pyserini_module

index, file, depth, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with open(file, encoding="utf-8") as stream:
    rows = [json.loads(line) for line in stream]
searcher = pyserini_module("pyserini.search.lucene").LuceneSearcher(index)
found = searcher.batch_search([row["text"] for row in rows], [row["_id"] for row in rows], k=depth, threads=threads)
hits = {query: [(hit.docid, hit.score) for hit in some] for query, some in found.items()}
print(sum(map(len, hits.values())))
"""


def draw(folder: Path, texts: int, queries: int) -> None:
    """Write a corpus and examples: questions are words of the passage that answers them."""
    generator = np.random.default_rng(0)
    words = np.array([f"w{number}x" for number in range(VOCABULARY)])
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    drawn = generator.choice(VOCABULARY, (texts, TEXT_WORDS), p=frequency / frequency.sum())
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for row, some in enumerate(drawn):
            stream.write(json.dumps({"_id": f"d{row}", "title": "", "text": " ".join(words[some])}) + "\n")
    rows = []
    for number in range(queries):
        answer = int(generator.integers(texts))
        asked = generator.choice(drawn[answer], QUERY_WORDS, replace=False)
        rows.append(Example(f"q{number}", " ".join(words[asked]), (f"d{answer}",)))
    write_examples(folder / "examples.jsonl", rows)


def prepare(folder: Path, data: str | None, texts: int, queries: int) -> str:
    """Write examples.jsonl and queries.jsonl, at most so many; returns where the corpus is."""
    corpus = data or str(folder / "corpus.jsonl")
    if data is None:
        draw(folder, texts, queries)
    else:
        found = read_examples(data, corpus=open_corpus(data), split="train").rows
        unique = list({row.query: row for row in found}.values())
        write_examples(folder / "examples.jsonl", unique[:queries])
    rows = read_examples(folder / "examples.jsonl").rows
    write_queries(folder / "queries.jsonl", [Query(row.query_id, row.query) for row in rows])
    return corpus


def run(command: list[str]) -> None:
    """Run a process, quietly."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)


def rkit(*arguments: object) -> list[str]:
    """The command that runs rkit."""
    return [sys.executable, "-c", "from retrievalkit.cli import main; main()", *map(str, arguments)]


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Index, and compare."""
    corpus = prepare(folder, arguments.data, arguments.texts, arguments.queries)
    index, examples, output = folder / "index", folder / "examples.jsonl", folder / "mined.jsonl"
    run(rkit("index", corpus, "--indexer", "bm25", "--output", index))
    depth = ["--depth", arguments.depth]
    ours = rkit(
        "mine-negatives", "--from", index, "--corpus", corpus, "--examples", examples, "--output", output, *depth
    )
    threads = len(os.sched_getaffinity(0))
    queries = folder / "queries.jsonl"
    peer = [sys.executable, "-c", PEER, *map(str, (index / "lucene", queries, arguments.depth, threads))]

    def mine() -> None:
        output.unlink(missing_ok=True)
        run(ours)

    amount = sum(1 for _ in queries.open(encoding="utf-8"))
    return compare(mine, lambda: run(peer), amount=amount, unit="questions", rounds=arguments.rounds)


def main() -> None:
    """Parse the command line and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="A BEIR folder with a training set.")
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--depth", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
