"""Training options: of the loop, of trainings on examples, and of each kind of training.

This module imports nothing heavy, so that recipes can check options before anything runs.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Le

from retrievalkit.contracts.declarations import Flag, WritingOptions
from retrievalkit.errors import InputError

Count = Annotated[int, Ge(1)]
Amount = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]

# Number of examples below which batches are small, and minimum number of steps, within 10 epochs.
_FEW, _STEPS = 1_000, 100

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
