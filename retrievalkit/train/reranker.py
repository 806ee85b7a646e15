"""The program behind `rkit rerank train`: examples and a pretrained encoder in, a re-ranker's folder out.

    rkit rerank train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output DIR [--dev DEV]

The examples are those of `rkit train`, with hard negatives. A killed training goes on with `--resume`. The folder is an
ordinary Hugging Face folder with `training.jsonl`, the log, beside the weights.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from retrievalkit import artifacts
from retrievalkit.artifacts import NOT_WEIGHTS
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import Example, Examples, check_examples, read_examples
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import InputError
from retrievalkit.model.cross_encoder import KIND, CrossEncoder, default_batch_tokens
from retrievalkit.model.precision import Precision, default_device, resolve_precision
from retrievalkit.model.pretrained import load_weights, model_fingerprint, quiet
from retrievalkit.train.reranker_step import Collator, DevLists, KeepBestReranker, RerankerTrainer, group_loss
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
)
from retrievalkit.train.sampling import ExampleSampler, StepAssembler, limited
from retrievalkit.train.selection import BEST
from retrievalkit.train.trainer import StepSampler, tensorboard, trainer_arguments


@dataclass(kw_only=True, frozen=True)
class RerankerOptions:
    """How a re-ranker is trained.

    Args:
        loss: "listwise" is the softmax cross entropy of the positive in its list, "pointwise" the binary cross entropy
            of each pair.
        epochs: Passes over the examples.
        limit: Train on so many of the examples, drawn with the seed; None = on all.
        batch_size: Queries of a step.
        micro_batch_size: Queries whose pairs are in memory at once; the gradient is the same. None = all of a step.
        negatives: Hard negatives of each query in a step, drawn anew each epoch.
        negative_pool: Only the first so many negatives of an example are drawn from; None = all.
        positive: The "first" of an example's positives, or a "random" one each epoch.
        false_negatives: "mask" leaves out known positives and duplicate texts of the positive, "keep" takes them as
            negatives.
        max_length: Most tokens of a pair, special tokens included; None = 256, or the model's limit if that is less.
        learning_rate: Highest learning rate; linear warm-up and decay.
        warmup_ratio: Share of the steps that warm up.
        weight_decay: Of all weights but biases and layer norms.
        adam_epsilon: Of the optimiser.
        max_gradient_norm: Gradients are clipped to this global norm.
        batch_tokens: Most tokens that go through the model at once; None = by the device.
        precision: What to compute in; "auto" is bf16 where the hardware multiplies in it.
        logging_steps: Steps between two lines of the log.
        save_steps: Steps between two states to resume from; None = once an epoch.
        seed: Of the new head, dropout, order and draws.
    """

    loss: Literal["listwise", "pointwise"] = "listwise"
    epochs: float = 2
    limit: int | None = None
    batch_size: int = 16
    micro_batch_size: int | None = None
    negatives: int = 7
    negative_pool: int | None = None
    positive: Literal["first", "random"] = "first"
    false_negatives: Literal["mask", "keep"] = "mask"
    max_length: int | None = None
    learning_rate: float = 2e-5
    warmup_ratio: float = 0.1
    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8
    max_gradient_norm: float = 2.0
    batch_tokens: int | None = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    logging_steps: int = 10
    save_steps: int | None = None
    seed: int = 42

    def check(self) -> None:
        """Refuse values that no training can have.

        Raises:
            InputError: Names the value.
        """
        for low, names in _LEAST.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and not low <= value < math.inf:
                    msg = f"{name} is {value}, and must be at least {low}."
                    raise InputError(msg)
        if self.warmup_ratio > 1:
            msg = f"warmup_ratio is {self.warmup_ratio}, and must be at most 1: it is a share of all steps."
            raise InputError(msg)


_LEAST = {
    0: ("epochs", "learning_rate", "warmup_ratio", "weight_decay", "adam_epsilon", "max_gradient_norm", "seed"),
    1: (
        *("batch_size", "micro_batch_size", "negatives", "negative_pool", "batch_tokens", "limit"),
        *("logging_steps", "save_steps"),
    ),
}


def train_reranker(
    *,
    model: str,
    examples: str,
    output: str | Path,
    corpus: str | None = None,
    dev: str | None = None,
    options: RerankerOptions | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train a re-ranker and write its folder.

    Args:
        model: Name or folder of the pretrained encoder to start from, or of a cross-encoder.
        examples: Training examples with negatives, in any known format.
        output: The folder to write.
        corpus: The passages that the examples name; None where the examples bring them along.
        dev: Held-out examples, by which the best state is chosen; None keeps the last state.
        options: How to train.
        resume: Go on with a training to the same output that was cut off; one that was not is left as it is.
        overwrite: Replace an output folder that is there already.

    Returns:
        The manifest of the folder.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    options = options or RerankerOptions()
    options.check()
    if not resume:
        artifacts.check_output(output, overwrite=overwrite)
    data = _Data.read(examples, corpus, dev, options)
    transformers.set_seed(options.seed)
    reranker = CrossEncoder.create(model, max_length=options.max_length, seed=options.seed).to(default_device())
    identity: dict[str, Any] = {
        "options": {"model": os.path.abspath(model) if os.path.isdir(model) else model, "training": asdict(options)},
        "inputs": {"model": artifacts.describe_input(model, model_fingerprint(model)), **data.inputs},
    }
    if resume and (manifest := finished(output, KIND, identity)):
        return manifest
    artifacts.check_output(output, overwrite=overwrite)
    _rehearse(reranker, data, options)
    prepare_partial(output, identity, resume=resume)
    with artifacts.write_folder(output, overwrite=overwrite, keep_partial=True) as staging:
        with _resumable(staging), artifacts.full_disk_named(staging), quiet():
            steps = _train(reranker, data, options, staging)
        reranker.save(staging)
        shutil.rmtree(staging / STATES, ignore_errors=True)
        for name in (BEST, OPTIONS):
            (staging / name).unlink(missing_ok=True)
        manifest = artifacts.write_manifest(
            staging,
            KIND,
            command="rerank train",
            **identity,
            counts={"examples": len(data.sampler), "without_negatives": data.dropped, "steps": steps},
            fingerprint=artifacts.fingerprint_folder(staging, skip=NOT_WEIGHTS),
        )
        (staging / "README.md").write_text(_model_card(manifest, reranker), encoding="utf-8")
    return manifest


@dataclass
class _Data:
    """What is trained on: examples, held-out examples, and where the texts are."""

    sampler: ExampleSampler
    assembler: StepAssembler
    dev: DevLists | None
    dropped: int
    inputs: dict[str, dict[str, str]]

    @classmethod
    def read(cls, examples: str, corpus: str | None, dev: str | None, options: RerankerOptions) -> _Data:
        opened = open_corpus(corpus) if corpus else None
        read = {split: _read(source, opened, split) for split, source in (("train", examples), ("dev", dev)) if source}
        passages = {one: passage for part in read.values() for one, passage in part.passages.items()}
        inputs = {
            name: artifacts.describe_input(source, fingerprint(source))
            for name, source in (("examples", examples), ("corpus", corpus), ("dev", dev))
            if source
        }

        def passage(one: str) -> Passage:
            # The corpus comes first: it is what will be searched.
            return opened.get(one) if opened is not None and one in opened else passages[one]

        rows, dropped = _with_negatives(read["train"])
        held_out = DevLists(_with_negatives(read["dev"])[0], passage) if "dev" in read else None
        sampler = ExampleSampler(
            limited(rows, options.limit, options.seed),
            negatives=options.negatives,
            pool=options.negative_pool,
            positive=options.positive,
            seed=options.seed,
        )
        mask = options.false_negatives == "mask"
        assembler = StepAssembler(passage, read["train"].rows, mask_false_negatives=mask)
        return cls(sampler, assembler, held_out, dropped, inputs)


def _read(source: str, corpus: Corpus | None, split: str) -> Examples:
    examples = read_examples(source, corpus=corpus, split=split)
    check_examples(examples, corpus)
    return examples


def _with_negatives(examples: Examples) -> tuple[list[Example], int]:
    """The examples that have something to compare a positive with, and how many have not."""
    kept = [row for row in examples.rows if row.negatives]
    if not kept:
        msg = (
            f"none of the {len(examples)} examples of '{examples.source}' has negatives, and a re-ranker learns to "
            f"rank a positive before them. Find some: rkit mine-negatives --from bm25"
        )
        raise InputError(msg)
    return kept, len(examples) - len(kept)


def _collator(reranker: CrossEncoder, data: _Data, options: RerankerOptions) -> Collator:
    return Collator(
        data.sampler,
        data.assembler,
        reranker,
        batch_tokens=options.batch_tokens or default_batch_tokens(reranker.device),
        micro_batch_size=options.micro_batch_size,
    )


def _rehearse(reranker: CrossEncoder, data: _Data, options: RerankerOptions) -> None:
    """Take the loss of an example once, so that what cannot be trained is found before anything is written."""
    precision = resolve_precision(options.precision, reranker.device)
    step = _collator(reranker, data, options).step([data.sampler.draw(0, 0)]).to(reranker.device)
    with torch.no_grad():
        group_loss(reranker.eval(), step.groups[0], options.loss, precision)


@contextmanager
def _resumable(staging: Path) -> Iterator[None]:
    """Where this fails, only what a resumed training goes on with is kept."""
    try:
        yield
    except BaseException:
        if not keep_resumable(staging):
            shutil.rmtree(staging, ignore_errors=True)
        raise


def _train(reranker: CrossEncoder, data: _Data, options: RerankerOptions, staging: Path) -> int:
    """Train (on from the last saved state, where there is one); returns the number of steps."""
    if options.epochs == 0:
        return 0
    steps = StepSampler(data.sampler, options.batch_size)
    precision = resolve_precision(options.precision, reranker.device)
    trainer = RerankerTrainer(
        reranker,
        trainer_arguments(
            options,
            staging / STATES,
            math.ceil(len(steps) * options.epochs),
            num_train_epochs=options.epochs,
        ),
        collator=_collator(reranker, data, options),
        step_sampler=steps,
        precision=precision,
        log_file=staging / LOG,
        loss=options.loss,
    )
    bar = Bar("training")
    for callback in (
        bar,
        *tensorboard(staging / LOGS),
        *_selection(reranker, data, staging, steps, precision, trainer),
    ):
        trainer.add_callback(callback)
    last = last_checkpoint(staging / STATES)
    cut_log(staging / LOG, last)
    try:
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    finally:
        bar.progress.stop()
    if (staging / BEST).exists():
        load_weights(reranker, staging / BEST)
    return int(trainer.state.global_step)


def _selection(
    reranker: CrossEncoder,
    data: _Data,
    staging: Path,
    steps: StepSampler,
    precision: Precision,
    trainer: RerankerTrainer,
) -> list[transformers.TrainerCallback]:
    if data.dev is None:
        return []
    log: Callable[[dict[str, float]], None] = trainer.log
    return [KeepBestReranker(data.dev, reranker, staging, len(steps), precision, log)]  # type: ignore[arg-type]


def _model_card(manifest: Mapping[str, Any], reranker: CrossEncoder) -> str:
    model, counts = manifest["options"]["model"], manifest["counts"]
    training = manifest["options"]["training"]
    return f"""---
library_name: transformers
base_model: {model}
pipeline_tag: text-ranking
tags: [retrieval, reranking, cross-encoder]
---
# A re-ranker

A cross-encoder that scores a query and a passage (title, space, text) together, trained with retrievalkit
{manifest["versions"].get("retrievalkit", "")}. Its one logit is the score.

| | |
|---|---|
| started from | {model} |
| longest pair | {reranker.max_length} tokens |
| examples | {counts["examples"]} from {manifest["inputs"]["examples"]["path"]} |
| loss | {training["loss"]}, {training["negatives"]} negatives |
| epochs, batch size, learning rate | {training["epochs"]}, {training["batch_size"]}, {training["learning_rate"]} |

Rank a run anew, or score examples for `rkit train --loss distill_kl`:

    rkit rerank apply FOLDER --run RUN --queries QUERIES --corpus CORPUS --output RERANKED
    rkit rerank apply FOLDER --examples EXAMPLES --corpus CORPUS --output SCORED
"""
