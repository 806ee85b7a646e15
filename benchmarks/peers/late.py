"""PyLate's side of the late interaction cases, in bf16 if the hardware multiplies bf16, and its own index."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import Side, Timed, clock, fastest_batch, multiplies_bf16, projection, rows, serve, texts, trained


def _model(folder: Path, length: int, dtype: str = "float32") -> Any:
    import torch
    from pylate import models

    model = models.ColBERT(
        str(folder),
        embedding_size=128,
        query_prefix="[unused0]",
        document_prefix="[unused1]",
        query_length=32,
        document_length=length,
        model_kwargs={"dtype": dtype},
    )
    with torch.no_grad():
        model[1].linear.weight.copy_(torch.from_numpy(projection()))
    return model


def encode(data: Path, folder: Path, *, count: int, length: int) -> Side:
    """A vector of 128 dimensions for every token of passages, in order."""
    import numpy as np

    dtype = "bfloat16" if multiplies_bf16() else "float32"
    model = _model(data / "model", length, dtype)
    passages = texts(data / "passages.jsonl", count)
    batch = fastest_batch(lambda size: model.encode(passages[:64], batch_size=size, is_query=False))

    def run() -> Callable[[], Any]:
        vectors = model.encode(passages, batch_size=batch, is_query=False, show_progress_bar=False)
        return lambda: np.concatenate(vectors)

    return Side(run, settings={"precision": dtype, "batch": batch})


def train(data: Path, folder: Path, *, batch: int, steps: int, length: int, negatives: int = 1) -> Side:
    """The trainer's loop with the contrastive loss of late interaction."""
    import datasets
    import torch
    from pylate import losses, utils
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    elapsed = clock()
    triples = rows(data / "triples.jsonl", batch * steps)
    columns = datasets.Dataset.from_dict(
        {name: [row[name] for row in triples] for name in ("anchor", "positive", "negative")}
    )

    def run(name: str, count: int) -> Timed:
        model = _model(data / name, length)
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(folder / "trained"),
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            learning_rate=2e-5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            bf16=multiplies_bf16(),
            use_cpu=not torch.cuda.is_available(),  # else bf16 is refused
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=columns.select(range(count)),
            loss=losses.Contrastive(model=model),
            data_collator=utils.ColBERTCollator(model.tokenize),
        )
        done = trainer.train()
        return Timed(elapsed(), {"loss": done.training_loss})

    return trained(run, "model", batch, steps)


def search(data: Path, folder: Path, *, count: int, queries: int, k: int) -> Callable[[], list[list[str]]]:
    """Search with PLAID, which searches the nearest clusters."""
    import numpy as np
    from pylate import indexes, retrieve

    encoded = data / f"tokens-{count}-{queries}"
    where = encoded / "plaid"
    exists = (where / "done").exists()
    if not exists:
        shutil.rmtree(where, ignore_errors=True)
    index = indexes.PLAID(index_folder=str(where), index_name="texts", override=not exists, show_progress=False)
    if not exists:
        vectors, counts = np.load(encoded / "vectors.npy"), np.load(encoded / "counts.npy")
        split = np.split(vectors.astype(np.float32), np.cumsum(counts)[:-1])
        index.add_documents(documents_ids=[f"c{row}" for row in range(len(split))], documents_embeddings=split)
        (where / "done").touch()
    retriever = retrieve.ColBERT(index=index)
    vectors = list(np.load(encoded / "queries.npy"))
    return lambda: [[hit["id"] for hit in hits] for hits in retriever.retrieve(queries_embeddings=vectors, k=k)]


if __name__ == "__main__":
    serve(globals())
