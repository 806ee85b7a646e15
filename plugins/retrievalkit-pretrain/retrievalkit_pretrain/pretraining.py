"""Pre-training: objective, encoder and documents, and the steps of `rkit pretrain`.

The corpus is read, cut and tokenised once, to a hidden folder next to the output, from which samples are read in any
order: memory does not grow with the corpus.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from retrievalkit.contracts import Encoder, LossValue, Pretrainer, Progress
from retrievalkit.contracts.commands import (
    ProgressBar,
    create,
    describe,
    describe_input,
    get,
    model_fingerprint,
    refuse_if_strict,
    resolve_precision,
)
from retrievalkit.contracts.commands import (
    options as options_of,
)
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import InputError, LengthError, UnsupportedError
from retrievalkit.training.public import Collective, Part, PartedTraining, autocast, default_device, lead, model_card
from retrievalkit_pretrain.pretrain import PretrainOptions
from retrievalkit_pretrain.token_store import Cutter, TokenStore, read_corpus

TOKENS = "tokens"
_TRIED = 64


@dataclass(frozen=True)
class CorpusSamples:
    """Samples that the pretrainer draws from the documents of a corpus, in a different order in each epoch."""

    store: TokenStore
    pretrainer: Pretrainer
    seed: int

    def __len__(self) -> int:
        return self.store.counts["samples"]

    def order(self, epoch: int) -> Any:
        """Return the positions of all samples in the order of an epoch, as an array: four bytes each."""
        positions = np.arange(len(self), dtype=np.uint32 if len(self) < 1 << 32 else np.uint64)
        np.random.default_rng([self.seed, epoch]).shuffle(positions)
        return positions

    def draw(self, position: int, epoch: int) -> Any:
        """Return a sample, as drawn in this epoch."""
        document, number = self.store.find(position)
        source = random.Random(f"sample {self.seed} {epoch} {position}")
        return self.pretrainer.sample(self.store.document(document), number, source)


def part_of(pretrainer: Pretrainer, samples: Sequence[Any], source: random.Random) -> Part:
    """Collate samples into a part of a step."""
    batch = pretrainer.collate(samples, source)
    return Part(batch, len(samples), pretrainer.counts(batch))


class HeldOut:
    """Held-out documents: one sample of each, with the same masks in every evaluation."""

    def __init__(self, pretrainer: Pretrainer, documents: Sequence[Any], size: int, seed: int) -> None:
        self._pretrainer, self._size, self._seed = pretrainer, size, seed
        source = random.Random(f"held out {seed}")
        self._samples = [pretrainer.sample(text, 0, source) for text in documents if pretrainer.samples(text)]

    def __len__(self) -> int:
        return len(self._samples)

    def parts(self) -> list[Part]:
        """Return all samples, masked, in parts of `size`."""
        source, starts = random.Random(f"held out masks {self._seed}"), range(0, len(self._samples), self._size)
        return [part_of(self._pretrainer, self._samples[start : start + self._size], source) for start in starts]


class Pretraining(PartedTraining):
    """Pre-trains a model on a corpus by the objective of a `Pretrainer`."""

    kind, command, title = "model", "pretrain", "pre-training"
    work = TOKENS
    module: Pretrainer
    options: PretrainOptions
    samples: CorpusSamples
    dev: HeldOut | None = None

    def __init__(self, options: PretrainOptions, collective: Collective) -> None:
        self.collective = collective
        self.options, self.size = options, options.micro_batch_size
        self.corpus = open_corpus(options.corpus)
        dev = None if options.dev is None else open_corpus(options.dev)
        for corpus in (self.corpus, dev):
            if corpus is not None:
                next(iter(corpus))  # an empty or missing corpus fails before a model is loaded
        # Options that pre-training implies, if the encoder has them, and options that the user set.
        known = options_of(get("encoder", options.encoder))
        implied = {"document_length": options.max_length, "new_vocabulary_head": True}
        encoder_options = {name: value for name, value in implied.items() if name in known}
        encoder_options |= options.encoder_options
        self.device = default_device()
        self.precision = resolve_precision(options.precision)
        transformers.set_seed(options.seed)
        component: type[Pretrainer] = get("pretrainer", options.pretrainer)
        try:
            encoder: Encoder = create("encoder", options.encoder, options.model, **encoder_options)
        except LengthError as error:
            # The encoder's document length is set by `max_length` here.
            raise error.of_option("max_length") from error
        encoder.prepare(component.needs)
        if not all(parameter.requires_grad for parameter in encoder.parameters()):
            msg = "pre-training trains all weights of a model, and some are frozen. Leave out encoder.lora_rank."
            raise UnsupportedError(msg)
        pretrainer: Pretrainer = create(
            "pretrainer", options.pretrainer, encoder, options.max_length, **options.pretrainer_options
        )
        self.module = pretrainer.to(self.device)
        self.entries = {"wants": pretrainer.wants}
        self.described = {
            "model": os.path.abspath(options.model) if os.path.isdir(options.model) else options.model,
            "encoder": describe("encoder", options.encoder, encoder_options),
            "pretrainer": describe("pretrainer", options.pretrainer, options.pretrainer_options),
            "pretraining": options.training(),
        }
        fingerprints = {"model": model_fingerprint(options.model), "corpus": self.corpus.fingerprint()}
        if dev is not None:
            fingerprints["dev"] = dev.fingerprint()
        paths = {"model": options.model, "corpus": options.corpus, "dev": options.dev}
        self.inputs = {name: describe_input(paths[name], digest) for name, digest in fingerprints.items()}
        self.cutter = Cutter(
            pretrainer.vocabulary,
            options.max_length,
            short_spans=options.short_spans,
            titles=options.titles,
            language=options.language,
            seed=options.seed,
        )
        if dev is not None:
            size = options.micro_batch_size or options.batch_size
            self.dev = HeldOut(pretrainer, list(self.cutter.cut(0, list(dev))), size, options.seed)
            if not len(self.dev):
                msg = f"none of the held-out documents of '{dev.source}' has {pretrainer.wants}. Use whole documents."
                raise InputError(msg)

    def dry_run(self) -> None:
        """Compute the loss of a few samples once: a wrong setup fails before anything is written."""
        source, pretrainer = random.Random(0), self.module
        documents = self.cutter.cut(0, list(islice(self.corpus, _TRIED)))
        samples = [pretrainer.sample(document, 0, source) for document in documents if pretrainer.samples(document)][:2]
        if samples:
            with torch.no_grad():
                self.loss(part_of(pretrainer, samples, source).to(self.device), Progress(0, 0.0, 1))

    def open(self, folder: Path) -> None:
        """Read, cut and tokenise the corpus, unless an earlier, interrupted run has done so."""

        def read() -> None:
            with ProgressBar("reading", unit="documents") as bar:
                try:
                    read_corpus(folder / TOKENS, self.corpus, self.cutter, self.module.samples, bar.advance)
                except KeyboardInterrupt as error:
                    error.add_note(f"Interrupted after {bar.done:,} documents: run the same command with --resume.")
                    raise

        lead(self.collective, read)
        store = TokenStore(folder / TOKENS, self.options.max_length)
        if not store.counts["samples"]:
            problem = f"none of the {len(store):,} documents of '{self.corpus.source}' has {self.module.wants}"
            length = f"at max_length {self.options.max_length}"
            msg = f"{problem} {length}. Use whole documents, or a smaller --max-length."
            raise InputError(msg)
        if dropped := store.counts["dropped"]:
            # The command's last line reports their number.
            refuse_if_strict(f"{dropped:,} of the {len(store):,} documents have no {self.module.wants}.")
        self.samples = CorpusSamples(store, self.module, self.options.seed)
        self.counts = store.counts

    def collate(self, keys: Sequence[tuple[int, int]]) -> Any:
        """Return this process's parts of a step, collated in order with one generator."""
        drawn, (epoch, first) = [self.samples.draw(position, epoch) for epoch, position in keys], keys[0]
        source = random.Random(f"batch {self.options.seed} {epoch} {first}")
        return self.divided(keys, lambda part: part_of(self.module, drawn[part], source))

    def loss(self, part: Part, progress: Progress) -> LossValue:
        """Return the loss of a part: each term is the mean over its labelled tokens."""
        with autocast(self.precision, self.device):
            value: LossValue = self.module(part.batch, progress)
        return value

    def measure(self, epoch: int) -> Mapping[str, Sequence[float]]:  # noqa: ARG002 - the same in every epoch
        """Return the loss of the held-out documents."""
        assert self.dev is not None
        return {"loss": [float(self.evaluate(self.dev.parts())["loss"])]}

    def card(self, manifest: dict[str, Any]) -> str:
        """Return the model card of a pre-trained model."""
        options, counts = self.described, manifest["counts"]
        name, training = options["pretrainer"]["name"], options["pretraining"]
        schedule = counts["steps"], training["batch_size"], training["learning_rate"]
        return model_card(
            manifest,
            library_name="transformers",
            pipeline_tag="fill-mask",
            tags=["retrieval", name],
            title=f"Pre-trained with {name}",
            about="A model with its vocabulary head.",
            facts={
                "pretrainer": f"{name} {options['pretrainer']['options']}",
                "corpus": manifest["inputs"]["corpus"]["path"],
                "documents": f"{counts['documents']}; {counts['dropped']} without {self.module.wants} dropped",
                "samples, tokens": f"{counts['samples']}, {counts['tokens']}",
                "steps, batch size, learning rate": ", ".join(map(str, schedule)),
                "longest text": f"{training['max_length']} tokens",
            },
            use=(
                "Train a retriever from it",
                "rkit train --model FOLDER --corpus CORPUS --examples EXAMPLES --output CHECKPOINT",
            ),
        )
