"""Options of every training: those of the loop, of trainings on examples, and of each kind of training.

Nothing heavy is imported here, so that recipes can check options before anything runs.
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

# Examples below which a batch is small, and the steps that a training has at least, if 10 epochs have as many.
_FEW, _STEPS = 1_000, 100

LARGEST_SEED = 2**32 - 1
"""NumPy takes no larger one."""


@dataclass(kw_only=True, frozen=True)
class LoopOptions:
    """Options of every training loop.

    Args:
        epochs: Passes over the data.
        batch_size: Samples per step, over all processes.
        micro_batch_size: Samples computed at once, which bounds memory; the loss and the gradient of a step do not
            depend on it. None = the whole step.
        learning_rate: Peak learning rate, with linear warm-up and linear decay.
        warmup_ratio: Fraction of the steps spent warming up.
        weight_decay: Weight decay, for all weights but biases and layer norms.
        adam_epsilon: Epsilon of AdamW.
        max_gradient_norm: Global norm to which gradients are clipped.
        precision: Number format of matrix products; "auto" is bf16 where the hardware supports it.
        logging_steps: Steps between two lines of the log; None = 10, or fewer where the log would have less than 20.
        save_steps: Steps between two states to resume from; None = once per epoch.
        seed: Seed of initialisation, dropout, order and sampling.
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

    def training(self) -> dict[str, Any]:
        """The options that determine the trained weights, for manifests."""
        declaring = next(one for one in type(self).__mro__ if not issubclass(one, RunOptions))
        assert issubclass(declaring, LoopOptions)
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(declaring)}

    def total_steps(self, steps_per_epoch: int) -> int:
        """The number of optimiser steps of the whole training."""
        return math.ceil(steps_per_epoch * self.epochs)


@dataclass(kw_only=True, frozen=True)
class ExampleOptions(LoopOptions):
    """Options of every training on examples (a query, its positives and negatives).

    Args:
        batch_size: Queries per step, over all processes.
        limit: Train on this many of the examples, drawn with the seed; None = all.
        negatives: Hard negatives per query in a step, drawn anew in each epoch.
        negative_pool: Draw only from the first so many negatives of an example; None = from all.
        positive: Use the "first" of an example's positives, or a "random" one in each epoch.
        false_negatives: "mask" other known positives and passages with the text of a known positive, or "keep" them
            as negatives, as the papers' own code does.
        batch_tokens: Maximum number of tokens computed at once, padding included; None = chosen by device.
        held_out: Share of the examples that are held out to measure what training changes and to select the best
            state, 50 to 500 questions, unless dev examples are given or there are fewer than 100; 0 = none.
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
    """How a retriever is trained.

    Args:
        epochs: Passes over the data; None = as many as have 100 steps, from 2 to 10.
        batch_size: Queries per step, over all processes; None = 32, or 16 with fewer than 1,000 examples.
        learning_rate: Peak learning rate, with linear warm-up and linear decay; None = 4e-5.
        warmup_ratio: Fraction of the steps spent warming up; None = 0.05.
        micro_batch_size: Texts encoded at once, with gradient caching: memory stays bounded, the gradient stays that of
            the whole batch. None = no caching.
        max_gradient_norm: Global norm to which gradients are clipped. The gradient is that of the whole batch: papers
            that average over R processes clip, in effect, at R times their figure.
        sampling: How negatives are drawn: "random", or by Tevatron's sliding "window".
        rank_from: Select the best state by DPR's rule: by the loss on the dev questions, and from this epoch on,
            counted from 0, by the average rank of the gold passage. None = by nDCG@10.
        batch_tokens: Maximum number of tokens encoded at once without a micro batch size; None = chosen by device.
    """

    epochs: Annotated[float, Ge(0), Le(1_000_000)] | None = None  # type: ignore[assignment]
    batch_size: Count | None = None  # type: ignore[assignment]
    learning_rate: Amount | None = None  # type: ignore[assignment]
    warmup_ratio: Share | None = None  # type: ignore[assignment]
    sampling: Literal["random", "window"] = "random"
    rank_from: Annotated[int, Ge(0)] | None = None

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None and self.batch_tokens is not None:
            msg = "batch_tokens has no effect when micro_batch_size is set. Leave one of them out."
            raise InputError(msg)
        if self.batch_size == 1 and self.negatives == 0:
            msg = "batch_size 1 with negatives 0 leaves nothing to contrast a positive with. Raise one of them."
            raise InputError(msg)

    def suited(self, examples: int) -> Self:
        """These options, with a schedule for so many examples in place of what is None."""
        batch_size = self.batch_size or (16 if examples < _FEW else 32)
        epochs = min(10, max(2, math.ceil(_STEPS / max(1, examples // batch_size))))
        chosen: dict[str, Any] = {
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": 4e-5,
            "warmup_ratio": 0.05,
        }
        return dataclasses.replace(self, **{name: one for name, one in chosen.items() if getattr(self, name) is None})


@dataclass(kw_only=True, frozen=True)
class PretrainingOptions(LoopOptions):
    """How a model is pre-trained on text.

    Args:
        steps: Optimiser steps; None = as many as the epochs have.
        epochs: Passes over the samples, unless `steps` is given.
        max_length: Maximum number of tokens per text, special tokens included, and the target length of a span.
        short_spans: Fraction of the spans whose target length is drawn from 2 ... max_length.
        titles: Whether a title counts as the first sentence of its document.
        language: Language of the texts, for splitting them into sentences.
        seed: Seed of initialisation, dropout, spans, order and masks.
    """

    epochs: Annotated[float, Ge(0), Le(1_000_000)] = 1
    batch_size: Count = 256
    learning_rate: Amount = 1e-4
    warmup_ratio: Share = 0.1
    weight_decay: Amount = 0.01
    max_gradient_norm: Amount = 1.0
    save_steps: Count | None = 500
    steps: Count | None = None
    max_length: Annotated[int, Ge(3)] = 128
    short_spans: Share = 0.15
    titles: bool = True
    language: str = "en"

    def total_steps(self, steps_per_epoch: int) -> int:
        """The number of optimiser steps of the whole training."""
        return self.steps or super().total_steps(steps_per_epoch)


@dataclass(kw_only=True, frozen=True)
class RerankerOptions(ExampleOptions):
    """How a cross-encoder is trained.

    Args:
        loss: "listwise" is the softmax cross entropy of the positive within its list, "pointwise" the binary cross
            entropy of each pair.
        micro_batch_size: Queries whose pairs are in memory at once; the gradient is the same. None = the whole step.
        false_negatives: "mask" drops known positives and passages with the text of a known positive from the
            negatives, "keep" keeps them.
        max_length: Maximum number of tokens per pair, special tokens included; None = 256, or the model's limit if
            that is smaller.
    """

    epochs: Annotated[float, Ge(0), Le(1_000_000)] = 2
    batch_size: Count = 16
    warmup_ratio: Share = 0.1
    negatives: Count = 7
    loss: Literal["listwise", "pointwise"] = "listwise"
    max_length: int | None = None


@dataclass(kw_only=True, frozen=True)
class RunOptions(LoopOptions, WritingOptions):
    """A training of any kind: where it writes, and how it continues.

    Args:
        resume: Continue a training to the same output that was cut off; a finished one is left as it is.
        report_to: Trackers that get what is logged, as TensorBoard always does: wandb, mlflow and others of
            transformers' report_to, with commas.
    """

    resume: bool = False
    report_to: Annotated[str, Flag(metavar="NAMES")] = ""
