"""Options of `rkit train`, `rkit tune` and `rkit rerank train`, and of the loop that they share.

This module imports nothing heavy, so that recipes can check options before anything runs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Le

from retrievalkit.contracts.declarations import Flag, Named, Reads, WritingOptions
from retrievalkit.data import inputs
from retrievalkit.errors import InputError, OptionError

Count = Annotated[int, Ge(1)]
Amount = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]

# Number of examples below which batches are small, and minimum number of steps, within 10 epochs.
_FEW, _STEPS = 1_000, 100

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_Values = Annotated[Sequence[float] | None, Flag(metavar="NUMBER,...")]

LARGEST_SEED = 2**32 - 1
"""The largest seed that NumPy accepts."""


@dataclass(kw_only=True, frozen=True)
class LoopOptions:
    """Options of every training loop.

    Args:
        epochs: Passes over the data.
        batch_size: Samples per step, over all processes.
        micro_batch_size: Samples computed at a time, to bound memory, with the same loss and gradient of a step; None =
            the whole step.
        learning_rate: Peak learning rate, with linear warm-up and linear decay.
        warmup_ratio: Fraction of the steps spent warming up.
        weight_decay: Weight decay of all weights except biases and layer norms.
        adam_epsilon: Epsilon of AdamW.
        max_gradient_norm: Global norm to which gradients are clipped.
        precision: Number format of matrix products; "auto" is bf16 where the hardware supports it.
        logging_steps: Steps between log lines; None = 10, or fewer for at least 20 lines.
        save_steps: Steps between saved states to resume from; None = once per epoch.
        seed: Seed of initialisation, dropout, sample order and sampling.
        gradient_precision: Number format in which several processes sum gradients; None = that of the gradients.
    """

    heading: ClassVar = "Training loop"

    epochs: Annotated[float, Ge(0), Le(1_000_000)] = 3
    batch_size: Count = 32
    micro_batch_size: Count | None = None
    learning_rate: Amount = 2e-5
    warmup_ratio: Share = 0.05
    weight_decay: Amount = 0.0
    adam_epsilon: Amount = 1e-8
    max_gradient_norm: Amount = 2.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    logging_steps: Count | None = None
    save_steps: Count | None = None
    seed: Annotated[int, Ge(0), Le(LARGEST_SEED)] = 42
    gradient_precision: Literal["bf16"] | None = None

    def training(self) -> dict[str, Any]:
        """Return the options that determine the trained weights, for manifests."""
        declaring = next(base for base in type(self).__mro__ if not issubclass(base, RunOptions))
        assert issubclass(declaring, LoopOptions)
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(declaring)}

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimiser steps of the whole training."""
        return math.ceil(steps_per_epoch * self.epochs)


@dataclass(kw_only=True, frozen=True)
class ExampleOptions(LoopOptions):
    """Options of every training on examples (a query with its positives and hard negatives).

    Args:
        batch_size: Queries per step, over all processes.
        limit: Number of examples to train on, drawn with the seed; None = all.
        negatives: Hard negatives per query in a step, drawn again in each epoch.
        negative_pool: Number of an example's first negatives to draw from; None = all.
        positive: Use an example's "first" positive, or draw a "random" positive in each epoch.
        false_negatives: "mask" other known positives and passages with the text of a known positive, or "keep" them
            as negatives, as the papers' own code does.
        batch_tokens: Maximum number of tokens computed at a time, padding included; None = chosen by device.
        held_out: Share of the examples held out as a dev set, to measure the effect of training and select the best
            state: 50 to 500 questions, unless --dev is set or there are fewer than 100 examples; 0 = none.
    """

    heading: ClassVar = "Examples"

    limit: Count | None = None
    held_out: Share = 0.1
    negatives: Annotated[int, Ge(0)] = 1
    negative_pool: Count | None = None
    positive: Literal["first", "random"] = "first"
    false_negatives: Literal["mask", "keep"] = "mask"
    batch_tokens: Count | None = None


@dataclass(kw_only=True, frozen=True)
class TrainingOptions(ExampleOptions):
    """Options of training a retriever.

    Args:
        epochs: Passes over the data; None = enough for 100 steps, from 2 to 10.
        batch_size: Queries per step, over all processes; None = 32, or 16 with fewer than 1,000 examples.
        learning_rate: Peak learning rate, with linear warm-up and linear decay; None = 4e-5.
        warmup_ratio: Fraction of the steps spent warming up; None = 0.05.
        micro_batch_size: Texts encoded at a time, with gradient caching (GradCache): bounded memory, with the gradient
            of the whole batch. None = no caching, unless a GPU runs out of memory.
        max_gradient_norm: Global norm to which gradients of the whole batch are clipped. Papers that average over R
            processes clip, in effect, at R times their figure.
        sampling: Sampling of negatives: "random", or Tevatron's sliding "window".
        rank_from: Select the best state by DPR's rule: by the loss on the dev set, and from this epoch on, counted from
            0, by the average rank of the gold passage. None = by nDCG@10.
        batch_tokens: Maximum number of tokens encoded at a time, padding included, also within micro batches; None =
            chosen by device.
    """

    epochs: Annotated[float, Ge(0), Le(1_000_000)] | None = None  # type: ignore[assignment]
    batch_size: Count | None = None  # type: ignore[assignment]
    learning_rate: Amount | None = None  # type: ignore[assignment]
    warmup_ratio: Share | None = None  # type: ignore[assignment]
    sampling: Literal["random", "window"] = "random"
    rank_from: Annotated[int, Ge(0)] | None = None

    def __post_init__(self) -> None:
        if self.batch_size == 1 and self.negatives == 0:
            msg = "batch_size is 1 and negatives is 0, so no query has a negative. Raise either option."
            raise InputError(msg)

    def suited(self, examples: int) -> Self:
        """Return these options, with a schedule for this number of examples where they are None."""
        batch_size = self.batch_size or (16 if examples < _FEW else 32)
        epochs = min(10, max(2, math.ceil(_STEPS / max(1, examples // batch_size))))
        suited = {"epochs": epochs, "batch_size": batch_size, "learning_rate": 4e-5, "warmup_ratio": 0.05}
        unset: dict[str, Any] = {name: value for name, value in suited.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **unset)


@dataclass(kw_only=True, frozen=True)
class RerankerOptions(ExampleOptions):
    """Options of training a cross-encoder.

    Args:
        loss: "listwise" is the softmax cross entropy of the positive within its list, "pointwise" the binary cross
            entropy of each pair.
        micro_batch_size: Queries processed at a time, to bound memory, with the same gradient; None = the whole step.
        false_negatives: "mask" removes known positives and passages with the text of a known positive from the
            negatives, "keep" keeps them.
        max_length: Maximum number of tokens per pair, special tokens included; None = 256, or the model's limit if
            lower.
    """

    epochs: Annotated[float, Ge(0), Le(1_000_000)] = 2
    batch_size: Count = 16
    warmup_ratio: Share = 0.1
    negatives: Count = 7
    loss: Literal["listwise", "pointwise"] = "listwise"
    max_length: int | None = None


@dataclass(kw_only=True, frozen=True)
class RunOptions(LoopOptions, WritingOptions):
    """Options of running any training: output, resuming, uploading and trackers.

    Args:
        resume: Continue an interrupted training to the same output; a finished training is left unchanged.
        push: Upload the output to this repository on the Hugging Face hub, which is created as private; with
            `resume`, also the output of a finished training.
        report_to: Trackers in addition to TensorBoard, separated by commas: wandb, mlflow and others of transformers'
            report_to.
    """

    resume: bool = False
    push: Annotated[str | None, Flag(metavar="USER/NAME")] = None
    report_to: Annotated[str, Flag(metavar="NAMES")] = ""


@dataclass(frozen=True)
class TrainOptions(TrainingOptions, RunOptions):
    """Options of `train`.

    Args:
        model: Pretrained model to start from: a hub name, a folder, package:NAME/FOLDER; or a checkpoint, whose pooler
            and options are kept.
        examples: Training examples: a file, a folder of files, a BEIR folder, pydoc:PACKAGES; in Python also rows.
        corpus: Passages that the examples refer to by id; not needed if the examples contain the texts.
        dev: Held-out examples for selecting the best state.
        encoder: Encoder (rkit plugins list); by default the checkpoint's, else transformer.
        pooler: Pooler (rkit plugins list); by default the checkpoint's or the model's own (modules.json), else cls.
        loss: Loss, a sum (contrastive+flops), or a wrapper around another loss ('matryoshka(contrastive)'); by default
            the pooler's.
        query_length: Maximum number of tokens per query.
        document_length: Maximum number of tokens per passage.
        separate_towers: Separate or shared encoders for queries and passages; by default the checkpoint's, else shared.
        refresh_negatives: Mine new negatives with the current model every N epochs; --set refresh.OPTION=VALUE sets an
            option of mine-negatives.
        sharding: "full" divides weights, gradients and optimizer states among several processes (FSDP).
    """

    model: Annotated[Any, Flag(("--model",)), Reads(inputs.model)]
    examples: Annotated[Any, Flag(("--examples",)), Reads(inputs.examples)]
    _: KW_ONLY
    corpus: Annotated[Any, Reads(inputs.passages)] = None
    dev: Annotated[Any, Reads(inputs.examples)] = None
    encoder: Annotated[str | None, Named("encoder", "transformer")] = None
    pooler: Annotated[str | None, Named("pooler", "cls")] = None
    loss: Annotated[str | None, Named("loss")] = None
    query_length: int | None = None
    document_length: int | None = None
    separate_towers: Annotated[bool | None, Flag(("--separate-towers/--shared-tower",))] = None
    refresh_negatives: Annotated[str | None, Flag(metavar="every=N")] = None
    sharding: Literal["none", "full"] = "none"
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    pooler_options: Mapping[str, Any] = field(default_factory=dict)
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    refresh_options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, with the components of an `rk.Retriever` as model, and the corpus of `rk.Examples`."""
        named = getattr(values.get("model"), "named", {})
        return inputs.with_corpus({**named, **values})


@dataclass(frozen=True)
class TuneOptions(TrainOptions):
    """Options of `tune`.

    Args:
        budget: Time to search, such as 90s, 20m or 2h; afterwards no trial starts, and a running trial ends at its next
            evaluation.
        learning_rate: Learning rates to try, or a fixed rate; by default half to five times the rate of rkit train.
        temperature: Temperatures of the loss to try; by default around that of rkit train, unless --set fixes it.
        epochs: Numbers of epochs to try, or a fixed number; by default half to twice the number of rkit train.
    """

    _: KW_ONLY
    budget: Annotated[str, Flag(metavar="TIME")] = "20m"
    learning_rate: _Values = None  # type: ignore[assignment]
    temperature: _Values = None
    epochs: _Values = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[smh]", self.budget):
            msg = f"--budget is '{self.budget}', and should be a number with s, m or h, such as 90s, 20m or 2h."
            raise OptionError(msg)
        for name in ("learning_rate", "temperature", "epochs"):
            if wrong := [value for value in getattr(self, name) or () if value <= 0]:
                msg = f"{name} has the value {wrong[0]:g}. Set values above 0."
                raise OptionError(msg)

    @property
    def seconds(self) -> float:
        """Budget in seconds."""
        return float(self.budget[:-1]) * _SECONDS[self.budget[-1]]


@dataclass(frozen=True)
class TrainRerankerOptions(RerankerOptions, RunOptions):
    """Options of `train_reranker`.

    Args:
        model: Pretrained encoder to start from: a hub name, a folder, package:NAME/FOLDER; or a cross-encoder.
        examples: Training examples with negatives (rkit mine-negatives); in Python also rows.
        corpus: Passages that the examples refer to by id; not needed if the examples contain the texts.
        dev: Held-out examples for selecting the best state.
    """

    model: Annotated[Any, Flag(("--model",)), Reads(inputs.model)]
    examples: Annotated[Any, Flag(("--examples",)), Reads(inputs.examples)]
    _: KW_ONLY
    corpus: Annotated[Any, Reads(inputs.passages)] = None
    dev: Annotated[Any, Reads(inputs.examples)] = None

    adapted = staticmethod(inputs.with_corpus)
