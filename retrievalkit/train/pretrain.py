"""The program behind `rkit pretrain`: documents and a model in, the model trained on them out.

    rkit pretrain --pretrainer retromae --model bert-base-uncased --corpus DOCUMENTS --output DIR [--steps 50000]

The corpus is read, cut and tokenised once, to a hidden folder beside the output, from which the samples are taken in
any order: so memory does not grow with it. A killed pre-training goes on with `--resume`. The output is an ordinary
Hugging Face folder, vocabulary head included, that `rkit train --model` takes.
"""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from retrievalkit import artifacts, contracts, registry
from retrievalkit.artifacts import NOT_WEIGHTS
from retrievalkit.contracts import Encoder, Pretrainer
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.model.precision import autocast, default_device, resolve_precision
from retrievalkit.model.pretrained import load_weights, model_fingerprint, quiet
from retrievalkit.registry import describe
from retrievalkit.train.pretrain_step import Collator, PretrainingTrainer, Samples
from retrievalkit.train.pretrain_tokens import Cutter, TokenStore, read_corpus
from retrievalkit.train.resume import (
    LOG,
    LOGS,
    OPTIONS,
    STATES,
    Bar,
    cut_log,
    finished,
    keep_resumable,
    last_checkpoint,
    prepare_partial,
    step_of,
)
from retrievalkit.train.trainer import WEIGHTS, StepSampler, tensorboard, trainer_arguments

KIND = "model"
_TOKENS = "tokens"
_REHEARSED = 64


@dataclass(kw_only=True, frozen=True)
class PretrainingOptions:
    """How a model is pre-trained.

    Args:
        steps: Optimiser steps; None = as many as the epochs have.
        epochs: Passes over the samples, where there is no number of steps.
        batch_size: Samples of a step.
        micro_batch_size: Samples that are computed at once, which bounds memory: the gradient is the mean of theirs;
            None = all.
        max_length: Most tokens of a text, special tokens included, and the target length of a span.
        short_spans: Share of the spans whose target length is drawn from 2 ... max_length.
        titles: Whether a title is the first sentence of its document.
        language: Of the texts, for finding their sentences.
        learning_rate: Highest learning rate; linear warm-up and decay.
        warmup_ratio: Share of the steps that warm up.
        weight_decay: Of all weights but biases and layer norms.
        adam_epsilon: Of the optimiser.
        max_gradient_norm: Gradients are clipped to this global norm.
        precision: What to compute in; "auto" is bf16 where the hardware multiplies in it.
        logging_steps: Steps between two lines of the log.
        save_steps: Steps between two states to resume from.
        seed: Of initialisation, dropout, spans, order and draws.
    """

    steps: int | None = None
    epochs: float = 1
    batch_size: int = 256
    micro_batch_size: int | None = None
    max_length: int = 128
    short_spans: float = 0.15
    titles: bool = True
    language: str = "en"
    learning_rate: float = 1e-4
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    adam_epsilon: float = 1e-8
    max_gradient_norm: float = 1.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    logging_steps: int = 10
    save_steps: int = 500
    seed: int = 42

    def check(self) -> None:
        """Refuse values that no pre-training can have.

        Raises:
            InputError: Names the value.
        """
        for names, low, high in _BOUNDS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not low <= value <= high:
                    at_most = f" and at most {high:g}" if high < math.inf else ""
                    msg = f"{name} is {value}, and must be at least {low}{at_most}."
                    raise InputError(msg)


_MOST = 1e300
_BOUNDS: tuple[tuple[tuple[str, ...], float, float], ...] = (
    (("epochs", "learning_rate", "weight_decay", "adam_epsilon", "max_gradient_norm", "seed"), 0, _MOST),
    (("warmup_ratio", "short_spans"), 0, 1),
    (("steps", "batch_size", "micro_batch_size", "logging_steps", "save_steps"), 1, _MOST),
    (("max_length",), 3, _MOST),
)


def pretrain(
    *,
    pretrainer: str,
    model: str,
    corpus: str,
    output: str | Path,
    pretrainer_options: Mapping[str, Any] | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    options: PretrainingOptions | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Pre-train a model on documents, and write it as a Hugging Face folder.

    Args:
        pretrainer: Registered name of the objective.
        model: Name or folder of the model to start from; a vocabulary head that its weights lack starts at random.
        corpus: The documents, in any known format.
        output: The folder to write.
        pretrainer_options: Options of the objective.
        encoder_options: Options of the encoder, such as its dropout.
        options: How to train.
        resume: Go on with a pre-training to the same output that was cut off.
        overwrite: Replace an output folder that is there already.

    Returns:
        The manifest of the folder.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    options = options or PretrainingOptions()
    options.check()
    if not resume:
        artifacts.check_output(output, overwrite=overwrite)
    documents = open_corpus(corpus)
    next(iter(documents))  # An empty corpus, or none, before a model is loaded.
    made = _make(pretrainer, model, pretrainer_options or {}, encoder_options or {}, options)
    _rehearse(made, documents, options)
    identity: dict[str, dict[str, Any]] = {
        "options": {
            "model": os.path.abspath(model) if os.path.isdir(model) else model,
            "encoder": describe("encoder", "transformer", _of_encoder(encoder_options, options)),
            "pretrainer": describe("pretrainer", pretrainer, pretrainer_options or {}),
            "pretraining": asdict(options),
        },
        "inputs": {
            "model": artifacts.describe_input(model, model_fingerprint(model)),
            "corpus": artifacts.describe_input(corpus, documents.fingerprint()),
        },
    }
    if resume and (manifest := finished(output, KIND, identity)):
        return manifest
    artifacts.check_output(output, overwrite=overwrite)
    prepare_partial(output, identity, resume=resume)
    with artifacts.write_folder(output, overwrite=overwrite, keep_partial=True) as staging:
        with _resumable(staging), artifacts.full_disk_named(staging):
            store = _read(documents, made, options, staging)
            steps = _train(made, store, options, staging)
        made.save(staging)
        for folder in (STATES, _TOKENS):
            shutil.rmtree(staging / folder, ignore_errors=True)
        (staging / OPTIONS).unlink(missing_ok=True)
        manifest = artifacts.write_manifest(
            staging,
            KIND,
            command="pretrain",
            options=identity["options"],
            inputs=identity["inputs"],
            counts={**store.counts, "steps": steps},
            wants=made.wants,
            fingerprint=artifacts.fingerprint_folder(staging, skip=NOT_WEIGHTS),
        )
        (staging / "README.md").write_text(_model_card(manifest), encoding="utf-8")
    return manifest


def _make(
    name: str,
    model: str,
    pretrainer_options: Mapping[str, Any],
    encoder_options: Mapping[str, Any],
    options: PretrainingOptions,
) -> Pretrainer:
    """The pretrainer with its encoder, on the device that trains it; what is new in either starts from the seed."""
    component = registry.get("pretrainer", name)
    device = default_device()
    resolve_precision(options.precision, device)
    transformers.set_seed(options.seed)
    with _in_words_of_pretraining():
        encoder: Encoder = registry.create(
            "encoder",
            "transformer",
            model,
            **_of_encoder(encoder_options, options),
        )
    encoder.prepare(component.needs)  # type: ignore[attr-defined]
    if not all(parameter.requires_grad for parameter in encoder.parameters()):
        msg = "pre-training trains all weights of a model, and some are frozen. Leave out encoder.lora_rank."
        raise UnsupportedError(msg)
    made: Pretrainer = registry.create("pretrainer", name, encoder, options.max_length, **pretrainer_options)
    return made.to(device)


def _of_encoder(given: Mapping[str, Any] | None, options: PretrainingOptions) -> dict[str, Any]:
    return {"document_length": options.max_length, "new_vocabulary_head": True, **(given or {})}


@contextmanager
def _in_words_of_pretraining() -> Iterator[None]:
    """The encoder's limit of a document's length is called otherwise here."""
    try:
        yield
    except UnsupportedError as error:
        msg = str(error).replace("document_length", "max_length").replace("--document-length", "--max-length")
        raise UnsupportedError(msg) from error


def _cutter(made: Pretrainer, options: PretrainingOptions) -> Cutter:
    return Cutter(
        made.vocabulary,
        options.max_length,
        short_spans=options.short_spans,
        titles=options.titles,
        language=options.language,
        seed=options.seed,
    )


def _rehearse(made: Pretrainer, corpus: Corpus, options: PretrainingOptions) -> None:
    """Take the loss of a few samples once, so that parts which do not fit are found before anything is written."""
    source = random.Random(0)
    documents = _cutter(made, options).cut(0, list(islice(corpus, _REHEARSED)))
    samples = [made.sample(document, 0, source) for document in documents if made.samples(document)][:2]
    if not samples:
        return
    device = default_device()
    batch = {name: value.to(device) for name, value in made.collate(samples, source).items()}
    with torch.no_grad(), autocast(options.precision, device):
        made(batch, contracts.Progress(0, 0.0, 1))


def _read(corpus: Corpus, made: Pretrainer, options: PretrainingOptions, staging: Path) -> TokenStore:
    """The corpus as tokens; what an earlier, killed run has read is not read again."""
    with Progress(
        SpinnerColumn(),
        TextColumn("[bold]reading {task.completed:,.0f} documents"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as progress:
        task = progress.add_task("", total=None)
        read_corpus(
            staging / _TOKENS,
            corpus,
            _cutter(made, options),
            made.samples,
            advance=lambda count: progress.advance(task, count),
        )
    store = TokenStore(staging / _TOKENS, options.max_length)
    if not store.counts["samples"]:
        msg = (
            f"none of the {len(store):,} documents of '{corpus.source}' has {made.wants} at max_length "
            f"{options.max_length}, so there is nothing to train on. Give whole documents, or a smaller --max-length."
        )
        raise InputError(msg)
    return store


@contextmanager
def _resumable(staging: Path) -> Iterator[None]:
    """Where this fails, only what a resumed pre-training goes on with is kept."""
    try:
        yield
    except BaseException as error:
        # What was read may be what filled the disk.
        if not keep_resumable(staging) and isinstance(error, OSError):
            shutil.rmtree(staging, ignore_errors=True)
        raise


def _train(made: Pretrainer, store: TokenStore, options: PretrainingOptions, staging: Path) -> int:
    """Train (on from the last saved state, where there is one); returns the number of steps."""
    if options.steps is None and options.epochs == 0:
        return 0
    samples = Samples(store, made, options.seed)
    steps = StepSampler(samples, options.batch_size)  # type: ignore[arg-type]
    total = options.steps or math.ceil(len(steps) * options.epochs)
    trainer = PretrainingTrainer(
        made,  # type: ignore[arg-type]
        trainer_arguments(options, staging / STATES, total, max_steps=total),
        collator=Collator(samples, made, options.micro_batch_size),  # type: ignore[arg-type]
        step_sampler=steps,
        precision=resolve_precision(options.precision, default_device()),
        cache_gradients=False,
        log_file=staging / LOG,
    )
    bar = Bar("pre-training")
    for callback in (bar, *tensorboard(staging / LOGS)):
        trainer.add_callback(callback)
    last = last_checkpoint(staging / STATES)
    cut_log(staging / LOG, last)
    if last and step_of(last) == trainer.args.max_steps:
        # The Trainer would do one step more.
        load_weights(made, last / WEIGHTS)
        return step_of(last)
    try:
        with quiet():
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    finally:
        bar.progress.stop()
    return int(trainer.state.global_step)


def _model_card(manifest: Mapping[str, Any]) -> str:
    options, counts = manifest["options"], manifest["counts"]
    name, training = options["pretrainer"]["name"], options["pretraining"]
    return f"""---
library_name: transformers
base_model: {options["model"]}
pipeline_tag: fill-mask
tags: [retrieval, {name}]
---
# Pre-trained with {name}

A model with its vocabulary head, pre-trained on text with retrievalkit {manifest["versions"].get("retrievalkit", "")}.

| | |
|---|---|
| started from | {options["model"]} |
| pretrainer | {name} {options["pretrainer"]["options"]} |
| corpus | {manifest["inputs"]["corpus"]["path"]} |
| documents | {counts["documents"]}, of which {counts["dropped"]} without {manifest["wants"]} were dropped |
| samples, tokens | {counts["samples"]}, {counts["tokens"]} |
| steps, batch size, learning rate | {counts["steps"]}, {training["batch_size"]}, {training["learning_rate"]} |
| longest text | {training["max_length"]} tokens |

Train a retriever from it:

    rkit train --model FOLDER --corpus CORPUS --examples EXAMPLES --output CHECKPOINT
"""
