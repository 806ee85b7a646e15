"""sentence-transformers' side of the cases, with the defaults of its classes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import Timed, clock, command, one_by_one, rows, serve, texts

# From the folder of passages to a saved array, as the documentation of sentence-transformers encodes.
_ENCODE = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer

model, corpus, output = sys.argv[1:]
with open(corpus, encoding="utf-8") as stream:
    texts = [json.loads(line)["text"] for line in stream]
np.save(output, SentenceTransformer(model).encode(texts))
"""


def encode(data: Path, folder: Path, *, count: int, length: int | None = None) -> Callable[[], Any]:
    """Vectors of passages; in fp32, which is its default."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(data / "model"))
    found = texts(data / "passages.jsonl", count)
    if length is not None:
        found = [" ".join((text.split() * length)[:length]) for text in found]
    return lambda: encoder.encode(found, show_progress_bar=False)


def encode_command(data: Path, folder: Path, *, count: int) -> Callable[[], Any]:
    """A script that saves .npy."""
    corpus, output = folder / "passages.jsonl", folder / "vectors.npy"
    with (data / "passages.jsonl").open(encoding="utf-8") as source, corpus.open("w", encoding="utf-8") as target:
        target.writelines(line for line, _ in zip(source, range(count), strict=False))
    run = command(sys.executable, "-c", _ENCODE, data / "model", corpus, output)

    def encoded() -> Any:
        import numpy as np

        return np.load(output)[:1000]

    def round_() -> Callable[[], Any]:
        run()
        return encoded

    return round_


def query(data: Path, folder: Path, *, count: int) -> Callable[[], Timed]:
    """Vectors of questions, one by one."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(data / "model"))
    asked = texts(data / "questions.jsonl", count)
    return lambda: one_by_one(asked, lambda one: encoder.encode(one, show_progress_bar=False)[None], np.concatenate)


def train(
    data: Path,
    folder: Path,
    *,
    batch: int,
    steps: int,
    length: int,
    negatives: int = 1,
    micro: int | None = None,
) -> Callable[[], Timed]:
    """The trainer's loop with MultipleNegativesRankingLoss, or with its cached form where memory is bounded."""
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )

    elapsed = clock()
    found = rows(data / "triples.jsonl", batch * steps)
    names = ("anchor", "positive", "negative")[: 2 + negatives]
    columns = datasets.Dataset.from_dict({name: [row[name] for row in found] for name in names})

    def run() -> Timed:
        encoder = SentenceTransformer(str(data / "model"))
        encoder.max_seq_length = length
        if micro is None:
            loss = losses.MultipleNegativesRankingLoss(encoder)
        else:
            loss = losses.CachedMultipleNegativesRankingLoss(encoder, mini_batch_size=micro)
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(folder / "trained"),
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=2e-5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(model=encoder, args=arguments, train_dataset=columns, loss=loss)
        done = trainer.train()
        return Timed(elapsed(), {"loss": done.training_loss})

    return run


if __name__ == "__main__":
    serve(globals())
