"""Checks that a CUDA device has the results of the CPU, and measures rates and memory: `make prove-gpu`.

    python tests/gpu/prove.py [WORD]        the checks whose names contain WORD; all by default

Prints a JSON line per case of a check, and exits with 1 if one failed. Needs no network: models and texts are
generated, and bundle.py carries the packages that are not installed. Takes less than ten minutes on an H100. Without
CUDA it runs on a simulated device, if the module `simcuda` can be imported (test_prove.py), and skips checks that need
a real device.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), *map(str, ROOT.glob("plugins/*"))]
sys.path.append(str(ROOT / "build" / "gpu" / "site"))  # last: installed packages come first
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RKIT_BACKEND": "torch"}

import numpy as np
import torch
import transformers
from retrievalkit_pretrain.pretraining import part_of
from retrievalkit_testing import tiny_collection, tiny_model
from retrievalkit_testing.samples import tiny_tokenizer
from torch import Tensor, distributed

import retrievalkit as rk
import vector_folders
from retrievalkit import registry
from retrievalkit.contracts import SIDES, Allowed, Progress, Representation
from retrievalkit.data.tokenized_text import Document, Pieces
from retrievalkit.data.vectors import VectorBlock, VectorStore
from retrievalkit.models.precision import autocast
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import top_k
from retrievalkit.scoring.device_blocks import DeviceBlocks
from retrievalkit.training.collective import Collective, GradientSum
from retrievalkit.training.loop import Loop
from retrievalkit.training.options import TrainOptions
from retrievalkit.training.retriever import RetrieverTraining

Figures = dict[str, Any]

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
START = Progress(0, 0.0, 100)
PRECISIONS = ("fp32", "bf16", "fp16")
# Relative differences from the CPU's fp32.
LIMITS = {"fp32": 1e-4, "bf16": 0.1, "fp16": 0.03}
# What a loss needs to be tried with; by default the pooler `mean`.
LOSSES: dict[str, dict[str, Any]] = {
    "aggretriever": {"pooler": "aggretriever"},
    "dense_sparse": {"pooler": "dense_sparse"},
    "flops": {"pooler": "dense_sparse", "loss": "contrastive+flops"},
    "global_local": {"pooler": "viewers"},
    "matryoshka": {"loss": "matryoshka(contrastive)", "loss_options": {"matryoshka": {"dimensions": (16, 8)}}},
    "self_contrastive": {"pooler": "self_contrastive"},
}
TEXTS = [("Peru", "lima " * length) for length in (3, 1, 40, 7)] + [("", "the city of rome"), ("", "")]

simulated = None
if not torch.cuda.is_available():
    import simcuda as simulated

    simulated.install()
    torch.cuda.mem_get_info = lambda device=None: (80 << 30, 80 << 30)
    for method in ("untyped_storage", "data_ptr", "__reduce_ex__"):  # files are written from the data
        setattr(simulated.Sim, method, lambda self, *rest, method=method: getattr(self._real, method)(*rest))

    class Stream:
        """A stream whose copies are zero until another stream waits for them."""

        def __init__(self) -> None:
            self.pending: list[tuple[Tensor, Tensor]] = []

        def wait_stream(self, other: Stream) -> None: ...

        def record_event(self) -> list[tuple[Tensor, Tensor]]:
            pending, self.pending = self.pending, []
            return pending

        def wait_event(self, pending: list[tuple[Tensor, Tensor]]) -> None:
            # `late` may be called within itself, and then sees zeros.
            for copied, values in reversed(pending):
                copied._real.copy_(values)

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        to = Tensor.to

        def late(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
            copied = to(tensor, *arguments, **options)
            stream.pending.append((copied, copied._real.clone()))
            copied._real.zero_()
            return copied

        with mock.patch.object(Tensor, "to", late):
            yield

    torch.cuda.Stream, torch.cuda.stream, torch.cuda.current_stream = Stream, entered, Stream


class Setting:
    """Models, and training data with a teacher's scores, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = tiny_model(folder / "model", vocabulary=1409)
        corpus = str(tiny_collection(folder / "countries").corpus)
        self.places = {"model": self.model, "corpus": corpus, "examples": self.examples(120, negatives=3)}

    def examples(self, count: int, negatives: int = 0) -> str:
        path, rows = self.folder / f"examples-{count}.jsonl", []
        for number in range(count):
            own = [f"c{(number + step) % 42}" for step in range(1 + negatives)]
            row = {"query": f"what is the capital of number {number}", "positives": own[:1], "negatives": own[1:]}
            rows.append(row | {"teacher": {one: 5.0 - place for place, one in enumerate(own)}})
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def retriever(self, pooler: str) -> Retriever:
        return Retriever.create(self.model, pooler=pooler, seed=1).eval()

    def training(self, **options: Any) -> RetrieverTraining:
        """A training whose single steps are computed, without dropout unless `encoder_options` set it."""
        chosen = {"encoder_options": {"dropout": 0.0}, "negatives": 2, "held_out": 0.0, "batch_size": 8}
        return RetrieverTraining(TrainOptions(**self.places | chosen | options, output=self.folder / "unused"))

    def shaped(self, architecture: str, width: int, layers: int) -> str:
        """A random model of this shape, otherwise in the proportions of BERT-base or Llama 7B."""
        folder, tokenizer = self.folder / f"{architecture}-{width}-{layers}", tiny_tokenizer(architecture, 1_000)
        sizes = {"vocab_size": len(tokenizer), "hidden_size": width, "num_hidden_layers": layers}
        if architecture == "bert":
            config = transformers.BertConfig(**sizes, num_attention_heads=4, intermediate_size=4 * width)
        else:
            config = transformers.LlamaConfig(**sizes, num_attention_heads=4, intermediate_size=43 * width // 16)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    @cached_property
    def base(self) -> str:
        """A random model of the shape of BERT-base."""
        folder, tokenizer = self.folder / "base", tiny_tokenizer("bert", 30_522)
        transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer))).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)


# --- the same results as on the CPU ---------------------------------------------------------------------------------


def encoding_equals_cpu(setting: Setting, pooler: str, precision: str) -> Figures:
    """In three batches, one of them without padding."""
    retriever, differences = setting.retriever(pooler), []
    expected = [retriever.to(CPU).encode(TEXTS, side, batch_tokens=48) for side in SIDES]
    for side, own in zip(SIDES, expected, strict=True):
        found = retriever.to(CUDA).encode(TEXTS, side, batch_tokens=48, precision=precision)
        differences.append(difference(found, own))
    return {"difference": at_most(LIMITS[precision], *differences)}


def loss_equals_cpu(setting: Setting, loss: str, precision: str) -> Figures:
    training = setting.training(**{"pooler": "mean", "loss": loss} | LOSSES.get(loss, {}))
    training.precision = "fp32"
    expected = step_on(CPU, training)
    training.precision = precision
    return compared(step_on(CUDA, training), expected, precision)


def pretraining_equals_cpu(setting: Setting, name: str, precision: str) -> Figures:
    # RetroMAE draws what its decoder sees on the device.
    made = pretrainer(setting.model, name, **({"decoder_mask_ratio": 0.0} if name == "retromae" else {}))
    part = part_of(made, [sample(made, number) for number in range(6)], random.Random(1))
    expected = pretraining_step(CPU, made, part, "fp32")
    return compared(pretraining_step(CUDA, made, part, precision), expected, precision)


def search_equals_cpu(setting: Setting, pooler: str) -> Figures:
    retriever = setting.retriever(pooler)
    documents = retriever.encode([("", f"number {row} of {row % 7}") for row in range(200)], "document")
    queries = retriever.encode([("", f"number {row}") for row in range(0, 200, 9)], "query")
    expected, rows = top_k(queries, documents, 10)
    found, rows_found = top_k(queries.to(CUDA), documents.to(CUDA), 10)
    return {"difference": at_most(LIMITS["fp32"], relative(found.cpu(), expected)), "same": same(rows_found, rows)}


def index_equals_cpu(setting: Setting, kind: str) -> Figures:
    """With copied blocks, with blocks that stay on the device, and among half of the texts."""
    folder, asked = setting.folder / kind, queries_of(kind)
    store = stored(folder, kind, blocks=3)
    cpu, gpu = (vector_folders.opened("flat", store, folder / device, device=device) for device in ("cpu", "cuda"))
    half = Allowed([f"t{row}" for row in range(0, len(store), 2)], len(store))
    with mock.patch.object(torch.cuda, "mem_get_info", return_value=(0, 1)):
        hits = [(gpu.search(asked, 10), cpu.search(asked, 10))]
    copies = [copies_to_device(lambda: hits.append((gpu.search(asked, 10), hits[0][1]))) for _ in range(2)]
    hits.append((gpu.search_among(asked, 10, half), cpu.search_among(asked, 10, half)))
    assert all(ids == expected for (ids, _), (expected, _) in hits)
    assert simulated is None or copies[1] < copies[0]
    pairs = [(torch.from_numpy(np.concatenate(one)) for one in (found[1], best[1])) for found, best in hits]
    return {"difference": at_most(1e-5, *(relative(*pair) for pair in pairs)), "copies": copies}


def stored(folder: Path, kind: str, blocks: int) -> VectorStore:
    """Blocks of 200 texts with one to three vectors, keys, weights, or both a vector and weights."""
    draw, texts = np.random.default_rng(1), 200 * blocks
    counts = draw.integers(1, 4, texts) if kind in ("vectors", "keys") else np.ones(texts, int)
    vectors = None if kind == "weights" else vector_folders.drawn(counts.sum())
    weights = vector_folders.drawn_weights(draw, texts) if kind in ("weights", "both") else None
    keys = draw.integers(0, 9, counts.sum()) if kind == "keys" else None
    return vector_folders.write(folder, vectors=vectors, counts=counts, weights=weights, keys=keys, shard=200)


def queries_of(kind: str) -> Representation:
    """60 queries with one vector, four with keys, weights, or both."""
    draw, m = np.random.default_rng(2), 4 if kind == "keys" else 1
    return Representation(
        None if kind == "weights" else torch.from_numpy(vector_folders.drawn(60 * m, seed=2)).view(60, m, -1),
        weights=torch.from_numpy(vector_folders.drawn_weights(draw, 60)) if kind in ("weights", "both") else None,
        keys=torch.from_numpy(draw.integers(0, 12, (60, m))) if kind == "keys" else None,
    )


def copies_to_device(compute: Callable[[], object]) -> int:
    before = simulated.H2D.total() if simulated else 0
    compute()
    return simulated.H2D.total() - before if simulated else 0


# --- training and its states ----------------------------------------------------------------------------------------


def caching_equals_plain_step(setting: Setting, pooler: str, precision: str) -> Figures:
    """With dropout, whose masks are drawn again."""
    options = {"micro_batch_size": 4, "encoder_options": {"dropout": 0.1}}
    training = setting.training(pooler=pooler, precision=precision, **options)
    inputs = training.collate([(0, row) for row in range(8)])
    found = step_on(CUDA, training, inputs)
    training.cached = False
    return compared(found, step_on(CUDA, training, inputs), precision)


def loaded_equals_saved(setting: Setting, pooler: str) -> Figures:
    retriever, folder = setting.retriever(pooler).to(CUDA), Path(tempfile.mkdtemp(dir=setting.folder))
    retriever.save(folder)
    found, expected = (one.encode(TEXTS, "document") for one in (Retriever.load(folder), retriever))
    return {"difference": at_most(0.0, difference(found, expected))}


def training_resumes(setting: Setting, precision: str) -> Figures:
    """Interrupted after two of four steps; atomic additions on a GPU may differ in the last digit."""
    run = {"precision": precision, "limit": 16, "batch_size": 4, "epochs": 1, "held_out": 0.0, "micro_batch_size": 4}
    run |= setting.places | {"save_steps": 1}
    outputs = [setting.folder / f"{name}-{precision}" for name in ("whole", "resumed")]
    rk.train(**run, output=outputs[0])
    steps = iter((1, 2))

    def interrupted(*loop_and_inputs: Any, compute: Callable[..., Any] = Loop.compute_step) -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return compute(*loop_and_inputs)

    with mock.patch.object(Loop, "compute_step", interrupted), suppress(KeyboardInterrupt):
        rk.train(**run, output=outputs[1])
    rk.train(**run, output=outputs[1], resume=True)
    retrievers = Retriever.create(setting.model, pooler="cls"), *map(Retriever.load, outputs)
    start, whole, resumed = (
        torch.cat([one.detach().cpu().flatten() for one in own.parameters()]) for own in retrievers
    )
    return {"difference": at_most(0.02, relative(resumed - start, whole - start)), "same": same(resumed, whole)}


# --- collectives and sharded weights --------------------------------------------------------------------------------


def nccl_collectives(setting: Setting) -> Figures:
    own = setting.retriever("colbert").to(CUDA).encode(TEXTS, "document").to(CUDA)
    weight, vectors = torch.nn.Parameter(torch.ones(3, device=CUDA)), own.vectors
    assert vectors is not None
    weight.grad = torch.full((3,), 2.0, device=CUDA)
    with one_rank():
        gathered = Collective().gather(replace(own, vectors=vectors.requires_grad_()), [list(range(len(TEXTS)))])
        gathered.vectors.sum().backward()  # type: ignore[union-attr]
        with GradientSum([weight]).last_backward():
            pass
        unequal = difference(gathered.detach(), own.detach())
        wrong = relative(weight.grad, torch.full_like(weight, 2.0)), relative(vectors.grad, torch.ones_like(vectors))
        return {"difference": at_most(0.0, unequal, *wrong), "object": Collective().from_main("arrived")}


def sharded_step_equals_plain(setting: Setting) -> Figures:
    """FSDP2."""
    training = setting.training(pooler="mean", micro_batch_size=4)
    expected = step_on(CUDA, training)
    with one_rank():
        training.shard()
        training.sharded = True
        return compared(step_on(CUDA, training), expected, "fp32")


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
        list(retriever.encode_tokens(ids, "document", batch_tokens=16 * len(ids[0])))

    return synchronisations_per_batch(encode)


def training_synchronises(setting: Setting, step: str, pooler: str) -> Figures:
    """A micro batch of the cached step counts as a batch: one of queries and two of documents."""
    caching = {"micro_batch_size": 8} if step == "cached" else {}
    run = {"batch_size": 8, "epochs": 1, "held_out": 0.0, "logging_steps": 1000, "pooler": pooler} | caching
    run |= setting.places | {"output": setting.folder / "counted", "overwrite": True}
    return synchronisations_per_batch(lambda steps: rk.train(**run, limit=8 * steps), 3 if caching else 1)


def pretraining_synchronises(setting: Setting, name: str) -> Figures:
    run = {"model": setting.model, "corpus": setting.places["corpus"], "pretrainer": name, "max_length": 16}
    run |= {"batch_size": 4, "epochs": 3, "logging_steps": 1000, "output": setting.folder / "counted"}
    return synchronisations_per_batch(lambda steps: rk.pretrain(**run, steps=steps, overwrite=True))


def search_synchronises(setting: Setting, kind: str) -> Figures:
    """Once per block for the hits, with keys also for the number of pairs; the first blocks also merge their hits."""
    folder, asked = setting.folder / f"counted-{kind}", queries_of(kind)

    def search(blocks: int) -> None:
        blocks_on_device = DeviceBlocks(stores[blocks], torch.float32)
        top_k(asked.to(CUDA), blocks_on_device, 10, width=blocks_on_device.width)

    stores = {blocks: stored(folder / str(blocks), kind, blocks) for blocks in (2, 6)}
    return synchronisations_per_batch(search, limit=3.0 if kind == "keys" else 2.0)


def synchronisations_per_batch(compute: Callable[[int], object], micro_batches: int = 1, limit: float = 1.0) -> Figures:
    """Count those of 2 and of 6 batches; their difference excludes the start."""
    few, many = (counted_synchronisations(lambda batches=batches: compute(batches)) for batches in (2, 6))
    batches, more = 4 * micro_batches, many - few
    lines = {line: count / batches for line, count in more.most_common(5)}
    return {"per_batch": at_most(limit, more.total() / batches), "lines": lines}


def counted_synchronisations(compute: Callable[[], object]) -> Counter[str]:
    """Count synchronisations by line of our code."""
    lines: Counter[str] = Counter()
    if simulated is not None:
        before = simulated.SYNC.copy()
        compute()
        return Counter({f"{line} {kind}": count for (line, kind), count in (simulated.SYNC - before).items()})

    def count(message: object, *_: object) -> None:
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


# --- memory by calculation, as in docs/how-to/gpu.md ----------------------------------------------------------------


def memory_is_as_calculated(setting: Setting, kind: str) -> Figures:
    """Bytes of training per weight; and of the values kept for a gradient, per token, layer and column of its state."""
    page = (ROOT / "docs" / "how-to" / "gpu.md").read_text()
    per_weight, per_value = re.search(rf"\| {kind} \| (\S+) \| (\S+) \|", page).groups()  # type: ignore[union-attr]
    width, lora = 256, {"lora_rank": 4} if "LoRA" in kind else {}

    def kept(layers: int, tokens: int) -> tuple[int, float]:
        retriever = Retriever.create(
            setting.shaped("llama" if lora else "bert", width, layers),
            pooler="last" if lora else "mean",
            encoder_options={**lora, "checkpoint_activations": "checkpoint" in kind},
        ).to(CUDA)
        parameters = {storage_of(one) for one in retriever.parameters()}
        values: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if storage_of(tensor) not in parameters:
                values[storage_of(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        tower = retriever.tower("document")
        batch = tower.collate([[5] * tokens] * 8, "document").to(CUDA)
        precision = "fp32" if "fp32" in kind else "bf16"
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast(precision, CUDA):
            vectors = retriever.train()(batch, "document").vectors
        vectors.sum().backward()  # type: ignore[union-attr]
        trained = [one for one in retriever.parameters() if one.grad is not None]
        optimizer = torch.optim.AdamW(trained, foreach=False)
        optimizer.step()
        states = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
        bytes_of_training = sum(one.nbytes for one in (*trained, *(one.grad for one in trained), *states))
        return sum(values.values()), bytes_of_training / sum(one.numel() for one in trained)

    # Two layers: c of copies of weights, a per token, and b per pair of tokens, which attention kernels do not keep.
    short, middle, long = (kept(4, tokens)[0] - kept(2, tokens)[0] for tokens in (32, 64, 96))
    of_pairs = (long - 2 * middle + short) / 2
    of_tokens = middle - short - 3 * of_pairs
    copies = (short - of_tokens - of_pairs) / (2 * 12 * width**2)
    values, weights = of_tokens / (8 * 32 * 2 * width), kept(2, 8)[1] + copies * (not lora)
    at_most(0.05, abs(values / float(per_value) - 1), abs(weights / float(per_weight) - 1))
    return {"bytes_per_value": values, "bytes_per_weight": weights}


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# --- rates and memory, with a random BERT-base ----------------------------------------------------------------------


def encoding_rate(setting: Setting, pooler: str) -> Figures:
    retriever, draw = Retriever.create(setting.base, pooler=pooler).to(CUDA).eval(), random.Random(1)
    texts = [np.array(draw.choices(range(200, 30_000), k=draw.randint(32, 252)), np.int32) for _ in range(20_000)]

    def encode(some: Sequence[np.ndarray]) -> None:
        for _ in retriever.encode_tokens(some, "document", precision="bf16"):
            pass

    encode(texts[:2_000])
    figures = timed(lambda: encode(texts))
    rates = {"texts_per_second": len(texts), "tokens_per_second": sum(map(len, texts))}
    return figures | {name: count / figures["seconds_taken"] for name, count in rates.items()}


def cached_batch_rate(setting: Setting) -> Figures:
    places = {"model": setting.base, "examples": setting.examples(8_192)}
    options = {"batch_size": 8_192, "micro_batch_size": 512, "negatives": 0, "precision": "bf16", "pooler": "mean"}
    training = setting.training(**places, **options)
    inputs = training.collate([(0, row) for row in range(8_192)])
    step_on(CUDA, training, inputs)
    figures = timed(lambda: step_on(CUDA, training, inputs))
    return figures | {"queries_per_second": 8_192 / figures["seconds_taken"]}


def pretraining_rate(setting: Setting, name: str) -> Figures:
    made = pretrainer(setting.base, name, length=128)
    parts = [part_of(made, [sample(made, row, 126) for row in range(128)], random.Random(step)) for step in range(5)]
    pretraining_step(CUDA, made, parts[0], "bf16")
    figures = timed(lambda: [pretraining_step(CUDA, made, part, "bf16") for part in parts])
    return figures | {"samples_per_second": 5 * 128 / figures["seconds_taken"]}


def search_rate(setting: Setting) -> Figures:
    """1,000 queries in 1M vectors of 768 dimensions in memory, against a matrix product and topk on the device."""
    rows, queries = torch.randn(1_000_000, 768, device=CUDA), torch.randn(1_000, 768, device=CUDA)
    vectors = rows.cpu().numpy()
    blocks = [VectorBlock(at, 50_000, vectors[at : at + 50_000], None, None) for at in range(0, len(vectors), 50_000)]
    ours = timed(lambda: top_k(Representation(queries[:, None]), blocks, 100))
    plain = timed(lambda: (queries @ rows.T).topk(100))
    found, expected = top_k(Representation(queries[:, None]), blocks, 100)[1], (queries @ rows.T).topk(100).indices
    at_most(0.001, 1 - same(found, expected))
    return ours | {"seconds_mm_topk": plain["seconds_taken"]}


def out_of_memory(setting: Setting) -> Figures:
    """Encoding with a twentieth of the memory, in batches of far too many tokens."""
    retriever = Retriever.create(setting.base, pooler="mean").to(CUDA).eval()
    texts = [("", "the city of paris " * 60)] * 8_192
    expected = retriever.encode(texts[:1], "document")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        found = retriever.encode(texts, "document", batch_tokens=1 << 21)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"difference": at_most(1e-4, difference(found.rows(slice(0, 1)), expected))}


def timed(compute: Callable[[], object]) -> Figures:
    """Return the seconds, the peak of memory, and, from a second run, the share of time in kernels."""
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    start = time.perf_counter()
    compute()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        start = time.perf_counter()
        compute()
        torch.cuda.synchronize()
        profiled = time.perf_counter() - start
    busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / profiled
    return {"seconds_taken": seconds, "busy": busy, "memory_gib": torch.cuda.max_memory_allocated() / (1 << 30)}


# --- steps, and how they are compared -------------------------------------------------------------------------------


def step_on(device: torch.device, training: RetrieverTraining, inputs: Any = None) -> tuple[Tensor, Tensor]:
    """Compute a step of a training; return its loss and the gradient of all weights."""
    inputs = inputs or training.collate([(0, row) for row in range(8)])
    training.module.to(device).train().zero_grad()
    torch.manual_seed(1)
    values = training.run(inputs.to(device), START, Tensor.backward, GradientSum([]))
    return values["loss"].detach().cpu(), gradient_of(training.module)


def pretrainer(model: str, name: str, *, length: int = 32, **options: Any) -> Any:
    encoder = registry.create("encoder", "transformer", model, document_length=length, dropout=0.0)
    encoder.prepare(registry.get("pretrainer", name).needs)
    torch.manual_seed(1)
    return registry.create("pretrainer", name, encoder, length, **options)


def sample(made: Any, number: int, length: int = 20) -> Any:
    """A sample of a document of four random sentences in two spans."""
    draw = random.Random(number)
    pieces = Pieces(draw.choices(made.vocabulary.ordinary, k=2 * length), [True] * (2 * length))
    document = Document(pieces, [length // 2, length, 3 * length // 2, 2 * length], [range(2), range(2, 4)], length)
    return made.sample(document, 0, draw)


def pretraining_step(device: torch.device, made: Any, part: Any, precision: str) -> tuple[Tensor, Tensor]:
    made.to(device).train().zero_grad()
    with autocast(precision, device):  # type: ignore[arg-type]
        total = made(part.to(device).batch, START).total
    total.backward()
    return total.detach().cpu(), gradient_of(made)


def gradient_of(module: torch.nn.Module) -> Tensor:
    gradients: list[Any] = [one.grad for one in module.parameters() if one.grad is not None]
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in gradients]
    return torch.cat([one.flatten() for one in whole]).cpu()


def compared(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], precision: str) -> Figures:
    """Compare losses and gradients; in half precision, the gradient of a maximum may belong to another token."""
    of_loss, of_gradient = (relative(*pair) for pair in zip(found, expected, strict=True))
    if precision == "fp32":
        at_most(0.01, of_gradient)
    return {"difference": at_most(LIMITS[precision], of_loss), "gradient_difference": of_gradient}


def difference(found: Representation, expected: Representation) -> float:
    pairs = zip((found.vectors, found.weights), (expected.vectors, expected.weights), strict=True)
    return max(relative(one, other) for one, other in pairs if one is not None and other is not None)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def same(found: Tensor, expected: Tensor) -> float:
    return float((found.cpu() == expected.cpu()).float().mean())


def at_most(limit: float, *values: float) -> float:
    """Return the largest value; NaN fails."""
    if not all(value <= limit for value in values):
        msg = f"{max(values):.3g} is more than {limit:g}"
        raise AssertionError(msg)
    return max(values)


KINDS = ("vectors", "keys", "weights", "both")
TRAININGS = ("encoder, bf16", "encoder, fp32", "decoder with LoRA, bf16", "decoder with LoRA, checkpoint_activations")
POOLERS, PRETRAINERS = registry.names("pooler"), registry.names("pretrainer")
# A check, its cases, and whether it needs a real device.
CHECKS: list[tuple[Callable[..., Figures], Sequence[tuple[str, ...]], bool]] = [
    (encoding_equals_cpu, [*product(POOLERS, PRECISIONS)], False),
    (loss_equals_cpu, [*product(registry.names("loss"), PRECISIONS)], False),
    (pretraining_equals_cpu, [*product(PRETRAINERS, PRECISIONS)], False),
    (search_equals_cpu, [("mean",), ("colbert",), ("dense_sparse",)], False),
    (index_equals_cpu, [*product(KINDS)], False),
    (caching_equals_plain_step, [*product(POOLERS, PRECISIONS)], False),
    (loaded_equals_saved, [*product(POOLERS)], False),
    (training_resumes, [*product(PRECISIONS)], False),
    (nccl_collectives, [()], True),
    (sharded_step_equals_plain, [()], True),
    (search_synchronises, [*product(KINDS)], False),
    (encoding_synchronises, [*product(POOLERS)], False),
    (training_synchronises, [*product(("plain", "cached"), ("mean", "dense_sparse"))], False),
    (pretraining_synchronises, [*product(PRETRAINERS)], False),
    (memory_is_as_calculated, [*product(TRAININGS)], False),
    (encoding_rate, [("mean",), ("dense_sparse",), ("aggretriever",)], True),
    (cached_batch_rate, [()], True),
    (pretraining_rate, [*product(PRETRAINERS)], True),
    (search_rate, [()], True),
    (out_of_memory, [()], True),
]


def main(word: str = "") -> int:
    """Run the checks; return the exit status."""
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(Path(folder))
        for check, cases, needs_device in CHECKS:
            for case in cases:
                name, start = " ".join((check.__name__, *case)), time.perf_counter()
                if word not in name:
                    continue
                try:
                    skipped = needs_device and simulated is not None
                    figures = {"passed": None, "skipped": "needs a real device"} if skipped else check(setting, *case)
                except Exception as error:  # noqa: BLE001 - the others are to run
                    place = traceback.extract_tb(error.__traceback__)[-1]
                    at = f"{Path(place.filename).name}:{place.lineno}"
                    figures, failed = {"passed": False, "error": f"{type(error).__name__}: {error} ({at})"}, True
                line = {"check": name, "passed": True, **figures, "seconds": round(time.perf_counter() - start, 2)}
                print(json.dumps(line), flush=True)
    return int(failed)


if __name__ == "__main__":
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"check": "device", "passed": True, "name": torch.cuda.get_device_name(), **versions}), flush=True)
    sys.exit(main(*sys.argv[1:]))
