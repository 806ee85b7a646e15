"""Evaluation: results a second, from the file to the means, against ir-measures' own reading and computing.

    python benchmarks/evaluate.py [--queries 1000] [--depth 1000] [--rounds 3]
    python benchmarks/evaluate.py --queries 6980 --rounds 1        # of the size of MS MARCO's development set

The run is drawn at random: documents and scores, one judged document a query. Both read the same file from disk,
compute nDCG@10, RR@10 and R@1000, and must agree.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import ir_measures
import numpy as np
from pairs import compare

from retrievalkit.evaluate.program import evaluate

METRICS = "nDCG@10 RR@10 R@1000"
PASSAGES = 8_841_823  # as many as MS MARCO has


def write(folder: Path, queries: int, depth: int) -> tuple[Path, Path]:
    """A run and its judgements, as files."""
    generator = np.random.default_rng(0)
    with (folder / "run.trec").open("w") as run, (folder / "qrels").open("w") as qrels:
        for query in range(queries):
            documents = generator.choice(PASSAGES, depth, replace=False).tolist()
            scores = np.sort(generator.normal(80, 5, depth).astype(np.float32))[::-1].astype(str).tolist()
            run.writelines(
                f"{query} Q0 {one} {rank} {score} t\n"
                for rank, (one, score) in enumerate(zip(documents, scores, strict=True), 1)
            )
            qrels.write(f"{query} 0 {documents[int(generator.integers(depth))]} 1\n")
    return folder / "run.trec", folder / "qrels"


def speed(queries: int, depth: int, rounds: int) -> dict:
    """The ratio of both, once they have been found to agree."""
    measures = [ir_measures.parse_measure(name) for name in METRICS.split()]
    with tempfile.TemporaryDirectory() as folder:
        run, qrels = write(Path(folder), queries, depth)

        def ours() -> dict[str, float]:
            return dict(evaluate(run, qrels=qrels, metrics=METRICS))

        def peer() -> dict[str, float]:
            read = ir_measures.read_trec_qrels(str(qrels)), ir_measures.read_trec_run(str(run))
            return {str(name): value for name, value in ir_measures.calc_aggregate(measures, *read).items()}

        expected, found = peer(), ours()
        assert all(abs(found[name] - expected[name]) < 1e-6 for name in expected), (found, expected)
        return compare(ours, peer, amount=queries * depth, unit="results", rounds=rounds) | {"values": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(json.dumps(speed(arguments.queries, arguments.depth, arguments.rounds), indent=2))
