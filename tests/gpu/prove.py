"""Checks that a CUDA device computes what the CPU computes, and measures it: `make prove-gpu`.

    python tests/gpu/prove.py [WORD]        the checks whose names contain WORD; all by default

Prints a JSON line per case of a check, and exits with 1 if one failed. Needs no network: models and texts are
generated, and bundle.py carries the packages that are not installed. Takes less than ten minutes on an H100. Without
CUDA it runs on a simulated device, if the module `simcuda` can be imported (test_prove.py), and skips what needs a real
one.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *map(str, ROOT.glob("plugins/*"))]
sys.path.append(str(ROOT / "build" / "gpu" / "site"))  # last: installed packages come first
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RKIT_BACKEND": "torch"}

import numpy as np
import torch
import transformers
from retrievalkit_testing import tiny_collection, tiny_model
from retrievalkit_testing.samples import tiny_tokenizer
from torch import Tensor, distributed

import retrievalkit as rk
from retrievalkit import registry
from retrievalkit.contracts import SIDES, Needs, Progress, Representation
from retrievalkit.data.spans import Document
from retrievalkit.data.tokenized_text import Pieces
from retrievalkit.data.vectors import VectorBlock
from retrievalkit.models.precision import autocast
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import top_k
from retrievalkit.training import processes
from retrievalkit.training.loop import Loop
from retrievalkit.training.pretraining import part_of
from retrievalkit.training.retriever import RetrieverTraining
from retrievalkit.training.train import TrainOptions

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
START = Progress(0, 0.0, 100)
PRECISIONS = ("fp32", "bf16", "fp16")
# Relative differences from the CPU's fp32.
LIMITS = {"fp32": 1e-4, "bf16": 0.1, "fp16": 0.03}
# Losses that need a pooler, another loss or options; the others are tried with `mean`.
LOSSES: dict[str, dict[str, Any]] = {
    "aggretriever": {"pooler": "aggretriever"},
    "dense_sparse": {"pooler": "dense_sparse"},
    "flops": {"pooler": "dense_sparse", "loss": "contrastive+flops"},
    "global_local": {"pooler": "viewers"},
    "matryoshka": {"loss": "matryoshka(contrastive)", "loss_options": {"matryoshka": {"dimensions": (16, 8)}}},
    "self_contrastive": {"pooler": "self_contrastive"},
}
STEPS: dict[str, dict[str, int]] = {"plain": {}, "cached": {"micro_batch_size": 8}}
Figures = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A folder with a tiny model, passages, and examples with a teacher's scores."""

    folder: Path
    model: str
    corpus: str
    examples: str

    @classmethod
    def create(cls, folder: Path) -> Setting:
        collection = tiny_collection(folder / "countries")
        rows = []
        for number in range(120):
            positive, negatives = f"c{number % 42}", [f"c{(number + step) % 42}" for step in (1, 2, 3)]
            teacher = {one: 5.0 - place for place, one in enumerate([positive, *negatives])}
            query = f"what is the capital of number {number}"
            rows.append({"query_id": str(number), "query": query, "positives": [positive], "negatives": negatives})
            rows[-1]["teacher"] = teacher
        examples = folder / "examples.jsonl"
        examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
        model = tiny_model(folder / "model", vocabulary=1409)
        return cls(folder, model, str(collection.corpus), str(examples))

    def retriever(self, pooler: str, **options: Any) -> Retriever:
        return Retriever.create(self.model, pooler=pooler, seed=1, **options).eval()

    def training(self, **options: Any) -> RetrieverTraining:
        """A training of which single steps are computed, without dropout unless `encoder_options` set it."""
        chosen = {"encoder_options": {"dropout": 0.0}, "negatives": 2, "held_out": 0.0, "batch_size": 8} | options
        places = {"model": self.model, "corpus": self.corpus, "examples": self.examples, "output": self.folder / "out"}
        return RetrieverTraining(TrainOptions(**places | chosen))

    def base_model(self) -> str:
        """A random model of the shape of BERT-base."""
        folder = self.folder / "base"
        if not folder.exists():
            tokenizer = tiny_tokenizer("bert", 30_522)
            transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer))).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return str(folder)


TEXTS = [("Peru", "lima " * length) for length in (3, 1, 40, 7)] + [("", "the city of rome"), ("", "")]


# --- the same results as on the CPU ---------------------------------------------------------------------------------


def encoding_equals_cpu(setting: Setting, pooler: str, precision: str) -> Figures:
    retriever = setting.retriever(pooler)
    # In three batches, one of them without padding.
    expected = {side: retriever.to(CPU).encode(TEXTS, side, batch_tokens=48) for side in SIDES}
    found = {side: retriever.to(CUDA).encode(TEXTS, side, batch_tokens=48, precision=precision) for side in SIDES}
    return {"difference": at_most(LIMITS[precision], *(difference(found[side], expected[side]) for side in SIDES))}


def loss_equals_cpu(setting: Setting, loss: str, precision: str) -> Figures:
    training = setting.training(**{"pooler": "mean", "loss": loss, "precision": precision} | LOSSES.get(loss, {}))
    training.precision = "fp32"
    expected, wanted = step_on(CPU, training)
    training.precision = precision
    found, gradient = step_on(CUDA, training)
    return compared(found, gradient, expected, wanted, precision)


def pretraining_equals_cpu(setting: Setting, name: str, precision: str) -> Figures:
    # RetroMAE draws what the decoder sees on the device.
    made = pretrainer(setting.model, name, **({"decoder_mask_ratio": 0.0} if name == "retromae" else {}))
    part = part_of(made, [sample(made, number) for number in range(6)], random.Random(1))
    values = []
    for device, kind in ((CPU, "fp32"), (CUDA, precision)):
        made.to(device).zero_grad()
        with autocast(kind, device):
            total = made(part.to(device).batch, START).total
        total.backward()
        values.append((total.detach().cpu(), gradient_of(made)))
    (expected, wanted), (found, gradient) = values
    return compared(found, gradient, expected, wanted, precision)


def search_equals_cpu(setting: Setting, kind: str) -> Figures:
    documents = setting.retriever(kind).encode([("", f"number {row} of {row % 7}") for row in range(200)], "document")
    queries = setting.retriever(kind).encode([("", f"number {row}") for row in range(0, 200, 9)], "query")
    expected, rows = top_k(queries, documents, 10)
    found, rows_found = top_k(queries.to(CUDA), documents.to(CUDA), 10)
    same = float((rows_found.cpu() == rows).float().mean())
    return {"difference": at_most(LIMITS["fp32"], relative(found.cpu(), expected)), "same_rows": same}


# --- training and its states ----------------------------------------------------------------------------------------


def caching_equals_plain_step(setting: Setting, pooler: str, precision: str) -> Figures:
    """With dropout, whose masks are drawn again."""
    options = {"pooler": pooler, "precision": precision, "micro_batch_size": 4, "encoder_options": {"dropout": 0.1}}
    training = setting.training(**options)
    inputs = training.collate([(0, row) for row in range(8)])
    values = []
    for size in (4, None):
        training.options = replace(training.options, micro_batch_size=size)
        values.append(step_on(CUDA, training, inputs))
    (found, gradient), (expected, wanted) = values
    return compared(found, gradient, expected, wanted, precision)


def loaded_equals_saved(setting: Setting, pooler: str) -> Figures:
    retriever, folder = setting.retriever(pooler).to(CUDA), setting.folder / f"saved-{pooler}"
    folder.mkdir()
    retriever.save(folder)
    loaded = Retriever.load(folder)
    found, expected = (one.encode(TEXTS, "document") for one in (loaded, retriever))
    return {"difference": at_most(0.0, difference(found, expected))}


def training_resumes(setting: Setting, precision: str) -> Figures:
    """Interrupted after two of four steps; atomic additions on a GPU may differ in the last digit."""
    run = {"model": setting.model, "examples": setting.examples, "corpus": setting.corpus, "precision": precision}
    run |= {"limit": 16, "batch_size": 4, "epochs": 1, "held_out": 0.0, "save_steps": 1, "micro_batch_size": 4}
    outputs = [setting.folder / f"{name}-{precision}" for name in ("whole", "resumed")]
    rk.train(**run, output=outputs[0])
    calls = iter(range(3))

    def interrupted(loop: Loop, inputs: Any, compute: Callable[..., Any] = Loop.compute_step) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return compute(loop, inputs)

    with mock.patch.object(Loop, "compute_step", interrupted), suppress(KeyboardInterrupt):
        rk.train(**run, output=outputs[1])
    rk.train(**run, output=outputs[1], resume=True)
    start, whole, resumed = (
        torch.cat([weight.detach().cpu().flatten() for weight in one.parameters()])
        for one in (Retriever.create(setting.model, pooler="cls"), *map(Retriever.load, outputs))
    )
    changed = at_most(0.02, relative(resumed - start, whole - start))
    return {
        "difference": changed,
        "identical": bool((whole == resumed).all()),
        "trained": float((whole - start).norm()),
    }


# --- several processes ----------------------------------------------------------------------------------------------


def nccl_collectives(setting: Setting) -> Figures:
    with one_rank():
        own = setting.retriever("colbert").to(CUDA).encode(TEXTS, "document").to(CUDA)
        own.vectors.requires_grad_()  # type: ignore[union-attr]
        gathered = processes.gather(own, [list(range(len(TEXTS)))])
        gathered.vectors.sum().backward()  # type: ignore[union-attr]
        unequal = difference(gathered.detach().to(CPU), own.detach().to(CPU))
        weight = torch.nn.Parameter(torch.ones(3, device=CUDA))
        weight.grad = torch.full((3,), 2.0, device=CUDA)
        processes.add_gradients([weight])
        wrong = float((own.vectors.grad - 1).abs().max()) + float((weight.grad - 2).abs().max())  # type: ignore[union-attr]
        return {"difference": at_most(0.0, unequal, wrong), "objects": processes.from_main("main")}


def sharded_step_equals_plain(setting: Setting) -> Figures:
    """Weights divided by FSDP2 among one rank."""
    training = setting.training(pooler="mean", micro_batch_size=4)
    expected, wanted = step_on(CUDA, training)
    with one_rank():
        training.shard()
        training.sharded = True
        return compared(*step_on(CUDA, training), expected, wanted, "fp32")


@contextmanager
def one_rank() -> Iterator[None]:
    distributed.init_process_group("cpu:gloo,cuda:nccl", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


# --- synchronisations of CPU and device -----------------------------------------------------------------------------


def encoding_synchronises(setting: Setting, pooler: str) -> Figures:
    retriever = setting.retriever(pooler).to(CUDA)

    def encode(batches: int) -> None:
        ids = retriever.tower("document").tokenize([("", "the city of paris")] * (16 * batches), "document")
        for _ in retriever.encode_tokens(ids, "document", batch_tokens=16 * len(ids[0])):
            pass

    return synchronisations_per_batch(encode)


def training_synchronises(setting: Setting, step: str, pooler: str) -> Figures:
    def train(steps: int) -> None:
        options = {"limit": 8 * steps, "batch_size": 8, "epochs": 1, "held_out": 0.0, "logging_steps": 1000}
        places = {"model": setting.model, "examples": setting.examples, "corpus": setting.corpus}
        rk.train(**places, **options, **STEPS[step], pooler=pooler, output=setting.folder / "counted", overwrite=True)

    # Of the cached step, a micro batch counts as a batch: two of documents and one of queries.
    return synchronisations_per_batch(train, micro_batches=3 if step == "cached" else 1)


def pretraining_synchronises(setting: Setting, name: str) -> Figures:
    def pretrain(steps: int) -> None:
        options = {"steps": steps, "batch_size": 4, "max_length": 16, "epochs": 3, "logging_steps": 1000}
        output = setting.folder / "counted"
        rk.pretrain(setting.model, setting.corpus, pretrainer=name, **options, output=output, overwrite=True)

    return synchronisations_per_batch(pretrain)


def synchronisations_per_batch(compute: Callable[[int], None], micro_batches: int = 1) -> Figures:
    """Count those of 2 and of 6 batches: the difference is without what happens once."""
    few, many = (counted_synchronisations(lambda batches=batches: compute(batches)) for batches in (2, 6))
    batches = 4 * micro_batches
    lines = {line: count / batches for line, count in (many - few).most_common(5)}
    return {"per_batch": at_most(1.0, (many.total() - few.total()) / batches), "lines": lines}


def counted_synchronisations(compute: Callable[[], None]) -> Counter[str]:
    """Count synchronisations by line of our code."""
    if simulated is not None:
        before = simulated.SYNC.copy()
        compute()
        return Counter({f"{line} {kind}": count for (line, kind), count in (simulated.SYNC - before).items()})
    lines: Counter[str] = Counter()

    def count(message: Any, *_: Any) -> None:
        if "synchronizing" in str(message):
            ours = [frame for frame in traceback.extract_stack() if "/retrievalkit" in frame.filename]
            lines[f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "elsewhere"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = count
        torch.cuda.set_sync_debug_mode("warn")
        try:
            compute()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return lines


# --- rates and memory, with a random BERT-base ----------------------------------------------------------------------


def encoding_rate(setting: Setting, pooler: str) -> Figures:
    retriever = Retriever.create(setting.base_model(), pooler=pooler).to(CUDA).eval()
    draw = random.Random(1)
    ids = [
        np.array([2, *draw.choices(range(100, 30_000), k=draw.randint(30, 250)), 3], np.int32) for _ in range(20_000)
    ]

    def encode(count: int) -> None:
        for _ in retriever.encode_tokens(ids[:count], "document", precision="bf16"):
            pass

    encode(2_000)
    seconds, busy = timed(lambda: encode(len(ids)))
    tokens = sum(map(len, ids)) / seconds
    return {"texts_per_second": len(ids) / seconds, "tokens_per_second": tokens, "busy": busy, "memory_gib": peak()}


def cached_batch_rate(setting: Setting) -> Figures:
    rows = ({"query": f"capital {row}", "positives": [f"c{row % 42}"]} for row in range(8_192))
    examples = setting.folder / "many.jsonl"
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"batch_size": 8_192, "micro_batch_size": 512, "negatives": 0, "precision": "bf16", "pooler": "mean"}
    training = setting.training(model=setting.base_model(), examples=str(examples), **options)
    inputs = training.collate([(0, row) for row in range(8_192)])
    step_on(CUDA, training, inputs)
    seconds, busy = timed(lambda: step_on(CUDA, training, inputs))
    return {"queries_per_second": 8_192 / seconds, "busy": busy, "memory_gib": peak()}


def pretraining_rate(setting: Setting, name: str) -> Figures:
    made = pretrainer(setting.base_model(), name, length=128).to(CUDA).train()
    parts = [
        part_of(made, [sample(made, row, length=126) for row in range(128)], random.Random(step)) for step in range(6)
    ]

    def steps(some: Sequence[Any]) -> None:
        for part in some:
            with autocast("bf16", CUDA):
                total = made(part.to(CUDA).batch, START).total
            total.backward()
            made.zero_grad()

    steps(parts[:1])
    seconds, busy = timed(lambda: steps(parts[1:]))
    return {"samples_per_second": 5 * 128 / seconds, "busy": busy, "memory_gib": peak()}


def search_rate(setting: Setting) -> Figures:
    """1,000 queries in 1M vectors of 768 numbers, against a matrix product and topk over vectors on the device."""
    rows = torch.randn(1_000_000, 768, device=CUDA)
    queries = torch.randn(1_000, 768, device=CUDA)
    vectors = rows.cpu().numpy()
    blocks = [VectorBlock(at, 50_000, vectors[at : at + 50_000], None, None) for at in range(0, len(vectors), 50_000)]
    results: list[Tensor] = []
    ours, busy = timed(lambda: results.append(top_k(Representation(queries[:, None]), blocks, 100)[1]))
    plain, _ = timed(lambda: results.append((queries @ rows.T).topk(100).indices))
    same = float((results[0].cpu() == results[1].cpu()).float().mean())
    return {"seconds_ours": ours, "seconds_mm_topk": plain, "busy": busy, "same_rows": 1 - at_most(0.001, 1 - same)}


def out_of_memory(setting: Setting) -> Figures:
    """Encoding with a twentieth of the memory, in batches of far too many tokens."""
    retriever = Retriever.create(setting.base_model(), pooler="mean").to(CUDA).eval()
    texts = [("", "the city of paris " * 60)] * 8_192
    expected = retriever.encode(texts[:1], "document")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        found = retriever.encode(texts, "document", batch_tokens=1 << 21)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"difference": at_most(1e-4, difference(found.rows(slice(0, 1)), expected)), "memory_gib": peak()}


# --- shared by the checks -------------------------------------------------------------------------------------------


def pretrainer(model: str, name: str, *, length: int = 32, **options: Any) -> Any:
    kind = registry.get("pretrainer", name)
    encoder = registry.create("encoder", "transformer", model, document_length=length, dropout=0.0)
    encoder.prepare(kind.needs if isinstance(kind.needs, Needs) else Needs(vocabulary_head=True))
    torch.manual_seed(1)
    return registry.create("pretrainer", name, encoder, length, **options)


def sample(made: Any, number: int, length: int = 20) -> Any:
    """A sample of a document of four random sentences in two spans."""
    draw = random.Random(number)
    pieces = Pieces(draw.choices(made.vocabulary.ordinary, k=2 * length), [True] * (2 * length))
    document = Document(pieces, [length // 2, length, 3 * length // 2, 2 * length], [range(2), range(2, 4)], length)
    return made.sample(document, 0, draw)


def compared(found: Tensor, gradient: Tensor, expected: Tensor, wanted: Tensor, precision: str) -> Figures:
    """Compare a loss and its gradient; in half precision other tokens win a maximum, and the gradient is theirs."""
    of_gradient = relative(gradient, wanted)
    if precision == "fp32":
        at_most(1e-3, of_gradient)
    return {"difference": at_most(LIMITS[precision], relative(found, expected)), "gradient_difference": of_gradient}


def step_on(device: torch.device, training: RetrieverTraining, inputs: Any = None) -> tuple[Tensor, Tensor]:
    """Compute a step; return its loss and the gradient of all weights."""
    inputs = inputs or training.collate([(0, row) for row in range(8)])
    training.module.to(device).train().zero_grad()
    torch.manual_seed(1)
    values = training.run(inputs.to(device), START, Tensor.backward)
    return values["loss"].detach().cpu(), gradient_of(training.module)


def gradient_of(module: torch.nn.Module) -> Tensor:
    gradients = (one.grad for one in module.parameters() if one.grad is not None)
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in gradients]
    return torch.cat([one.detach().cpu().flatten() for one in whole])


def difference(found: Representation, expected: Representation) -> float:
    pairs = zip((found.vectors, found.weights), (expected.vectors, expected.weights), strict=True)
    return max(relative(one, other) for one, other in pairs if one is not None and other is not None)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def at_most(limit: float, *values: float) -> float:
    """Return the largest value; NaN fails."""
    if not all(value <= limit for value in values):
        msg = f"{max(values):.3g} is more than {limit:g}"
        raise AssertionError(msg)
    return max(values)


def timed(compute: Callable[[], object]) -> tuple[float, float]:
    """Return seconds, and the share of them in which the device computed."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    compute()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        start = time.perf_counter()
        compute()
        torch.cuda.synchronize()
        profiled = time.perf_counter() - start
    return seconds, sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / profiled


def peak() -> float:
    return torch.cuda.max_memory_allocated() / (1 << 30)


POOLERS, PRETRAINERS = registry.names("pooler"), registry.names("pretrainer")
# A check, its cases, and whether it needs a real device.
CHECKS: list[tuple[Callable[..., Figures], Sequence[tuple[str, ...]], bool]] = [
    (encoding_equals_cpu, [*product(POOLERS, PRECISIONS)], False),
    (loss_equals_cpu, [*product(registry.names("loss"), PRECISIONS)], False),
    (pretraining_equals_cpu, [*product(PRETRAINERS, PRECISIONS)], False),
    (search_equals_cpu, [("mean",), ("colbert",), ("dense_sparse",)], False),
    (caching_equals_plain_step, [*product(POOLERS, PRECISIONS)], False),
    (loaded_equals_saved, [*product(POOLERS)], False),
    (training_resumes, [*product(PRECISIONS)], False),
    (nccl_collectives, [()], True),
    (sharded_step_equals_plain, [()], True),
    (encoding_synchronises, [*product(POOLERS)], False),
    (training_synchronises, [*product(STEPS, ("mean", "dense_sparse"))], False),
    (pretraining_synchronises, [*product(PRETRAINERS)], False),
    (encoding_rate, [("mean",), ("dense_sparse",), ("aggretriever",)], True),
    (cached_batch_rate, [()], True),
    (pretraining_rate, [*product(PRETRAINERS)], True),
    (search_rate, [()], True),
    (out_of_memory, [()], True),
]


def main(word: str = "") -> int:
    """Run the checks; return the exit status."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting.create(Path(folder))
        for check, cases, needs_device in CHECKS:
            for case in cases:
                name, start = " ".join((check.__name__, *case)), time.perf_counter()
                if word not in name:
                    continue
                line: Figures = {"check": name, "passed": True}
                if needs_device and simulated is not None:
                    line = {"check": name, "passed": None, "skipped": "needs a real device"}
                else:
                    try:
                        line |= check(setting, *case)
                    except Exception as error:  # noqa: BLE001 - the others are to run
                        place = traceback.extract_tb(error.__traceback__)[-1]
                        at = f"{Path(place.filename).name}:{place.lineno}"
                        line |= {"passed": False, "error": f"{type(error).__name__}: {error} ({at})"}
                        failed += 1
                print(json.dumps(line | {"seconds": round(time.perf_counter() - start, 2)}), flush=True)
    return int(failed > 0)


simulated = None
if not torch.cuda.is_available():
    import simcuda as simulated

    simulated.install()
    # Files are written from the data.
    for method in ("untyped_storage", "data_ptr", "__reduce_ex__"):
        setattr(simulated.Sim, method, lambda tensor, *rest, method=method: getattr(tensor._real, method)(*rest))

if __name__ == "__main__":
    device = {
        "name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps({"check": "device", "passed": True, **device, "seconds": 0.0}), flush=True)
    sys.exit(main(*sys.argv[1:]))
