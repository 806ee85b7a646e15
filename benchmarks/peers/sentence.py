"""sentence-transformers' side of the cases, with the defaults of its classes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import Side, Timed, clock, command, head, mined_from, one_by_one, rows, serve, texts, trained

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
    corpus, output = head(data / "passages.jsonl", folder, count), folder / "vectors.npy"
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
) -> Side:
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

    def run(name: str, count: int) -> Timed:
        encoder = SentenceTransformer(str(data / name))
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
        trainer = SentenceTransformerTrainer(
            model=encoder, args=arguments, train_dataset=columns.select(range(count)), loss=loss
        )
        done = trainer.train()
        return Timed(elapsed(), {"loss": done.training_loss})

    return trained(run, "model", batch, steps)


def splade_encode(data: Path, folder: Path, *, count: int) -> Callable[[], Any]:
    """Weights of passages over the vocabulary, as it returns them: a sparse tensor."""
    from sentence_transformers import SparseEncoder

    encoder = SparseEncoder(str(data / "splade"))
    encoder.max_seq_length = 256
    found = texts(data / "passages.jsonl", count)

    def run() -> Callable[[], Any]:
        weights = encoder.encode(found, show_progress_bar=False)
        return lambda: weights.to_dense().cpu().numpy()

    return run


def splade_train(data: Path, folder: Path, *, batch: int, steps: int, length: int, negatives: int = 1) -> Side:
    """The sparse trainer's loop with SpladeLoss."""
    import datasets
    from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
    from sentence_transformers.sparse_encoder import losses

    elapsed = clock()
    found = rows(data / "triples.jsonl", batch * steps)
    columns = datasets.Dataset.from_dict(
        {name: [row[name] for row in found] for name in ("anchor", "positive", "negative")}
    )

    def run(name: str, count: int) -> Timed:
        encoder = SparseEncoder(str(data / name))
        encoder.max_seq_length = length
        loss = losses.SpladeLoss(
            model=encoder,
            loss=losses.SparseMultipleNegativesRankingLoss(model=encoder),
            query_regularizer_weight=5e-5,
            document_regularizer_weight=3e-5,
        )
        arguments = SparseEncoderTrainingArguments(
            output_dir=str(folder / "trained"),
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=2e-5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        done = SparseEncoderTrainer(
            model=encoder, args=arguments, train_dataset=columns.select(range(count)), loss=loss
        ).train()
        return Timed(elapsed(), {"loss": done.training_loss})

    return trained(run, "splade", batch, steps)


def rerank(data: Path, folder: Path, *, count: int) -> Callable[[], dict[str, float]]:
    """Scores of pairs by CrossEncoder.predict."""
    import torch
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(data / "reranker"))
    pairs = [(row["anchor"], row["positive"]) for row in rows(data / "triples.jsonl", count)]

    def run() -> dict[str, float]:
        scores = model.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        return {str(row): float(one) for row, one in enumerate(scores)}

    return run


# A script that mines: a model, passages, examples and where to write.
_MINE = """
import json, sys
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

model, corpus, examples, depth, output = sys.argv[1:]
with open(corpus, encoding="utf-8") as stream:
    passages = {row["_id"]: row["text"] for row in map(json.loads, stream)}
with open(examples, encoding="utf-8") as stream:
    asked = list(map(json.loads, stream))
pairs = Dataset.from_dict(
    {"anchor": [row["query"] for row in asked], "positive": [passages[row["positives"][0]] for row in asked]}
)
encoder = SentenceTransformer(model)
encoder.max_seq_length = 256
mined = mine_hard_negatives(
    pairs, encoder, corpus=list(passages.values()), range_min=1, range_max=int(depth),
    relative_margin=0.05, num_negatives=10, output_format="n-tuple", verbose=False,
)
mined.to_json(output)
"""


def mine(data: Path, folder: Path, *, questions: int, depth: int, count: int) -> Callable[[], None]:
    """A script around mine_hard_negatives: the corpus is encoded, and searched."""
    corpus, examples = mined_from(data, folder, questions, count)
    run = command(sys.executable, "-c", _MINE, data / "splade", corpus, examples, depth, folder / "mined.jsonl")

    def round_() -> None:
        run()

    return round_


if __name__ == "__main__":
    serve(globals())
