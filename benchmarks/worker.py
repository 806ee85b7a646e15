"""One side of a case, in a process and an environment of its own: lines of JSON say what to do, and are answered.

Both sides run this: it imports nothing but the standard library until a side does.
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
# Batches that are tried before a peer is timed; on a GPU, eight times as many.
BATCHES = (8, 16, 32, 64)
# Passages that are scored for a question.
PASSAGES = 32


@dataclass
class Side:
    """What a side does in a round.

    Attributes:
        run: A round; its result is the output, a function that makes it (not timed), or `Timed`.
        flops: Floating-point operations of a round that no way to do it could leave out, if known.
        check: What the first round does instead, whose output is compared; None = the same.
        settings: Settings that were chosen on this machine, for the table.
    """

    run: Callable[[], Any]
    flops: float | None = None
    check: Callable[[], Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Timed:
    """The output of a round that measured its seconds itself."""

    seconds: float
    output: Any


def serve(sides: Mapping[str, Any]) -> None:
    """Answer requests until standard input ends. What libraries print goes to standard error."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = _Worker(sides)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception:  # noqa: BLE001 - whatever it was, the other end reports it
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
        found = run()
        seconds = time.perf_counter() - start
        self.output = found.output if isinstance(found, Timed) else found
        return {"seconds": found.seconds if isinstance(found, Timed) else seconds, "peak MB": _peak()}

    def save(self, file: str) -> dict:
        output = self.output() if callable(self.output) else self.output
        if hasattr(output, "tolist") and output.ndim:
            import numpy as np

            np.save(file + ".npy", np.asarray(output))
        else:
            Path(file + ".json").write_text(json.dumps(output))
        return {"saved": True}


def _versions() -> dict[str, str]:
    found = {}
    for name in _NAMED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _forget_peak() -> None:
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        sys.modules["torch"].cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):  # then the peak is that since the process began
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """The most memory resident in the round, of this process or of a command it ran; on a GPU the most of its own."""
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        return round(sys.modules["torch"].cuda.max_memory_allocated() / 2**20, 1)
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return round(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024, 1)


def command(*words: object) -> Callable[[], str]:
    """A function that runs a command and returns what it prints.

    Raises:
        RuntimeError: It failed.
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
    """The rows of a JSON lines file."""
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line, _ in zip(stream, range(most or 1 << 40), strict=False)]


def texts(path: Path, most: int | None = None) -> list[str]:
    """The texts of passages or questions."""
    return [row["text"] for row in rows(path, most)]


def pairs(data: Path, count: int) -> list[tuple[str, str]]:
    """Pairs to score: each question with the same PASSAGES passages."""
    found = rows(data / "triples.jsonl", max(PASSAGES, count // PASSAGES))
    asked = [row["anchor"] for row in found[: count // PASSAGES]]
    return [(question, row["positive"]) for question in asked for row in found[:PASSAGES]]


def head(file: Path, folder: Path, count: int) -> Path:
    """The first lines of a file, as a file."""
    with file.open(encoding="utf-8") as source, (folder / file.name).open("w", encoding="utf-8") as target:
        target.writelines(line for line, _ in zip(source, range(count), strict=False))
    return folder / file.name


def mined_from(data: Path, folder: Path, questions: int, count: int) -> tuple[Path, Path]:
    """The first passages, and the first examples that one of them answers, as files."""
    corpus, examples = head(data / "passages.jsonl", folder, count), folder / "examples.jsonl"
    known = {row["_id"] for row in rows(corpus)}
    answered = [row for row in rows(data / "examples.jsonl") if row["positives"][0] in known][:questions]
    if len(answered) < questions:
        msg = f"{count} passages answer {len(answered)} questions, and {questions} were asked for"
        raise ValueError(msg)
    examples.write_text("".join(json.dumps({**row, "negatives": []}) + "\n" for row in answered), encoding="utf-8")
    return corpus, examples


def first_hits(run: Path, depth: int = 10) -> list[list[str]]:
    """The ids of each query's first hits in a run (TREC), by query."""
    hits: dict[str, list[str]] = {}
    with run.open() as stream:
        for line in stream:
            query, _, document, _ = line.split(maxsplit=3)
            found = hits.setdefault(query, [])
            if len(found) < depth:
                found.append(document)
    return [hits[query] for query in sorted(hits)]


def clock() -> Callable[[], float]:
    """Watch the loops of transformers' Trainer in this process.

    Returns:
        A function that gives the seconds of the last training: from its begin to the end of its last step, without
        what comes before and after (loading the model, writing a checkpoint).
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
    """Training: `run` has the name of a model and a number of examples.

    What is compared is the loss of a step without dropout over all examples: with several steps each side would put
    other questions together.
    """
    return Side(lambda: run(model, batch * steps), flops, lambda: run(f"{model}-still", batch))


def one_by_one(asked: list[str], encode: Callable[[str], Any], join: Callable[[list], Any]) -> Timed:
    """Encode questions one by one, and take the median time."""
    times, found = [], []
    for one in asked:
        start = time.perf_counter()
        found.append(encode(one))
        times.append(time.perf_counter() - start)
    return Timed(statistics.median(times) * len(times), join(found))


def multiplies_bf16() -> bool:
    """Whether the hardware multiplies in bf16; a processor without it emulates it, slower than fp32."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def fastest_batch(run: Callable[[int], Any]) -> int:
    """The batch size of BATCHES with which `run` takes the fewest seconds, after a run to warm up."""
    import torch

    def seconds(size: int) -> float:
        run(size)
        start = time.perf_counter()
        run(size)
        return time.perf_counter() - start

    return min((size * (8 if torch.cuda.is_available() else 1) for size in BATCHES), key=seconds)


def int8_check(precision: str, scores: Callable[[], Any], exact: Path) -> Callable[[], dict[str, float]] | None:
    """The check of a side that computes in int8: how many hits are those in fp32; in other precisions None.

    Args:
        precision: That of the side.
        scores: Computes scores (queries, texts).
        exact: A file with the scores in fp32.
    """
    import numpy as np

    def check() -> dict[str, float]:
        best, expected = (np.argsort(-some, axis=1, kind="stable")[:, :10] for some in (scores(), np.load(exact)))
        return {"best": float(np.mean([np.isin(*pair).mean() for pair in zip(best, expected, strict=True)]))}

    return check if precision == "int8" else None


def among_themselves(vectors: Any) -> Any:
    """Scores (texts, texts) of vectors with each other; a text is no hit for itself."""
    import numpy as np

    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return scores


def projection() -> Any:
    """The weights (128, 384) that both sides project the states of tokens with."""
    import numpy as np

    return (np.random.default_rng(0).standard_normal((128, 384)) / 20).astype(np.float32)


def flops_of(lengths: Iterable[int], *, layers: int = 6, width: int = 384, passes: int = 1) -> float:
    """Operations of an encoder's matrix products over texts of so many real tokens; 3 passes = forward and backward."""
    return passes * sum(layers * (24 * width**2 * n + 4 * width * n**2) for n in lengths)
