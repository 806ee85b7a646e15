"""A side of a case, in its own process and environment, controlled by lines of JSON.

Both sides run this module: it imports only the standard library until a side imports more.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMED = (
    *("retrievalkit", "torch", "transformers", "sentence-transformers", "pylate", "fast-plaid", "pyserini", "bm25s"),
    *("openvino", "optimum-intel", "nncf", "onnxruntime", "fastembed", "tantivy", "usearch"),
    *("faiss-cpu", "scipy", "numpy", "numba", "ranx", "pytrec_eval-terrier"),
)
# Batch sizes tried before a peer is timed; on a GPU, eight times as large.
BATCHES = (8, 16, 32, 64)
# Passages scored per question.
PASSAGES = 32


@dataclass
class Side:
    """The work of a side in a round.

    Attributes:
        run: Runs a round; its result is the output, a function that computes it (not timed), or `Timed`.
        flops: Unavoidable floating-point operations of a round, if known.
        check: Runs the first round, whose output is compared; None = `run`.
        settings: Settings selected on this machine, for the table.
    """

    run: Callable[[], Any]
    flops: float | None = None
    check: Callable[[], Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Timed:
    """The output of a round that measures its own seconds."""

    seconds: float
    output: Any


def serve(sides: Mapping[str, Any]) -> None:
    """Answer requests until standard input ends. The output of libraries goes to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = _Worker(sides)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception:  # noqa: BLE001 - the other end reports any error
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=channel, flush=True)


class _Worker:
    def __init__(self, sides: Mapping[str, Any]) -> None:
        self.sides = sides

    def prepare(self, side: str, data: str, folder: str, options: dict) -> dict:
        self.side = self.sides[side](Path(data), Path(folder), **options)
        if not isinstance(self.side, Side):
            self.side = Side(self.side)
        return {"flops": self.side.flops, "versions": _versions(), "settings": self.side.settings}

    def round(self, check: bool = False) -> dict:
        run = self.side.check if check and self.side.check else self.side.run
        _forget_peak()
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        self.output = result.output if isinstance(result, Timed) else result
        return {"seconds": result.seconds if isinstance(result, Timed) else seconds, "peak MB": _peak()}

    def save(self, file: str) -> dict:
        output = self.output() if callable(self.output) else self.output
        if hasattr(output, "tolist") and output.ndim:
            import numpy as np

            np.save(file + ".npy", np.asarray(output))
        else:
            Path(file + ".json").write_text(json.dumps(output))
        return {"saved": True}


def _versions() -> dict[str, str]:
    versions = {}
    for name in _NAMED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _forget_peak() -> None:
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        sys.modules["torch"].cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):  # otherwise the peak covers the whole process
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """The peak resident memory of the round, of this process or a command it ran; on a GPU the peak GPU memory."""
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        return round(sys.modules["torch"].cuda.max_memory_allocated() / 2**20, 1)
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return round(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024, 1)


def command(*words: object) -> Callable[[], str]:
    """Return a function that runs a command and returns its output.

    Raises:
        RuntimeError: The command failed.
    """
    line = [str(word) for word in words]

    def run() -> str:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{' '.join(line)} failed:\n{done.stderr[-3000:]}"
            raise RuntimeError(msg)
        return done.stdout

    return run


def rows(path: Path, most: int | None = None) -> list[dict]:
    """Return the rows of a JSON lines file."""
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line, _ in zip(stream, range(most or 1 << 40), strict=False)]


def texts(path: Path, most: int | None = None) -> list[str]:
    """Return the texts of passages or questions."""
    return [row["text"] for row in rows(path, most)]


def pairs(data: Path, count: int) -> list[tuple[str, str]]:
    """Return the pairs to score: each question with the same PASSAGES passages."""
    triples = rows(data / "triples.jsonl", max(PASSAGES, count // PASSAGES))
    questions = [row["anchor"] for row in triples[: count // PASSAGES]]
    return [(question, row["positive"]) for question in questions for row in triples[:PASSAGES]]


def head(file: Path, folder: Path, count: int) -> Path:
    """Copy the first lines of a file to a folder."""
    with file.open(encoding="utf-8") as source, (folder / file.name).open("w", encoding="utf-8") as target:
        target.writelines(line for line, _ in zip(source, range(count), strict=False))
    return folder / file.name


def mined_from(data: Path, folder: Path, questions: int, count: int) -> tuple[Path, Path]:
    """Write the first passages, and the first examples with a positive among them, to files."""
    corpus, examples = head(data / "passages.jsonl", folder, count), folder / "examples.jsonl"
    known = {row["_id"] for row in rows(corpus)}
    answered = [row for row in rows(data / "examples.jsonl") if row["positives"][0] in known][:questions]
    if len(answered) < questions:
        msg = f"{count} passages answer only {len(answered)} questions, not {questions}"
        raise ValueError(msg)
    examples.write_text("".join(json.dumps({**row, "negatives": []}) + "\n" for row in answered), encoding="utf-8")
    return corpus, examples


def first_hits(run: Path, depth: int = 10) -> list[list[str]]:
    """Return the ids of each query's first hits in a run (TREC), in query order."""
    hits: dict[str, list[str]] = {}
    with run.open() as stream:
        for line in stream:
            query, _, document, _ = line.split(maxsplit=3)
            documents = hits.setdefault(query, [])
            if len(documents) < depth:
                documents.append(document)
    return [hits[query] for query in sorted(hits)]


def clock() -> Callable[[], float]:
    """Time the loops of transformers' Trainer in this process.

    Returns:
        A function that returns the seconds of the last training, from its start to the end of its last step, without
        loading the model or writing a checkpoint.
    """
    import transformers

    class Clock(transformers.TrainerCallback):
        begin = end = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            Clock.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            Clock.end = time.perf_counter()

    transformers.trainer.DEFAULT_CALLBACKS.append(Clock)
    return lambda: Clock.end - Clock.begin


def trained(run: Callable[[str, int], Timed], model: str, batch: int, steps: int, flops: float | None = None) -> Side:
    """The side of a training; `run` has the name of a model and the number of examples.

    The compared output is the loss of a single step without dropout over all examples, because each side forms other
    batches.
    """
    return Side(lambda: run(model, batch * steps), flops, lambda: run(f"{model}-still", batch))


def one_by_one(questions: list[Any], encode: Callable[[Any], Any], join: Callable[[list], Any]) -> Timed:
    """Encode questions one by one; the time is the median."""
    times, vectors = [], []
    for question in questions:
        start = time.perf_counter()
        vectors.append(encode(question))
        times.append(time.perf_counter() - start)
    return Timed(statistics.median(times) * len(times), join(vectors))


def multiplies_bf16() -> bool:
    """Return True if the hardware multiplies bf16; other processors emulate it, slower than fp32."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def fastest_batch(run: Callable[[int], Any]) -> int:
    """Return the fastest batch size of BATCHES for `run`, after a warm-up run."""
    import torch

    def seconds(size: int) -> float:
        run(size)
        start = time.perf_counter()
        run(size)
        return time.perf_counter() - start

    return min((size * (8 if torch.cuda.is_available() else 1) for size in BATCHES), key=seconds)


def int8_check(precision: str, scores: Callable[[], Any], exact: Path) -> Callable[[], dict[str, float]] | None:
    """Return the check of a side in int8, the overlap of its hits with fp32; None in other precisions.

    Args:
        precision: Precision of the side.
        scores: Computes scores (queries, texts).
        exact: A file with the scores in fp32.
    """
    import numpy as np

    def check() -> dict[str, float]:
        best, expected = (np.argsort(-values, axis=1, kind="stable")[:, :10] for values in (scores(), np.load(exact)))
        return {"best": float(np.mean([np.isin(*pair).mean() for pair in zip(best, expected, strict=True)]))}

    return check if precision == "int8" else None


def among_themselves(vectors: Any) -> Any:
    """Return the scores (texts, texts) of vectors with each other; -inf for a text with itself."""
    import numpy as np

    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return scores


def projection() -> Any:
    """Return the weights (128, 384) of the projection of token states on both sides."""
    import numpy as np

    return (np.random.default_rng(0).standard_normal((128, 384)) / 20).astype(np.float32)


def flops_of(lengths: Iterable[int], *, layers: int = 6, width: int = 384, passes: int = 1) -> float:
    """Return the operations of an encoder's matrix products for texts of these lengths; 3 passes: with backward."""
    return passes * sum(layers * (24 * width**2 * n + 4 * width * n**2) for n in lengths)
