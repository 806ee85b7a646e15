"""The options of every training: one base for the loop, one for trainings on examples, and those of each command.

`rkit plugins show trainer`, `... pretraining`, `... reranker_training` and `--help-all` list them. Nothing heavy is
imported here, so that recipes can check options before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from retrievalkit import registry
from retrievalkit.errors import InputError, UnknownNameError

Bounds = Mapping[str, tuple[float, float]]

LARGEST_SEED = 2**32 - 1
"""NumPy takes no larger one."""


@dataclass(kw_only=True, frozen=True)
class LoopOptions:
    """What every training loop has.

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

    epochs: float = 3
    batch_size: int = 32
    micro_batch_size: int | None = None
    learning_rate: float = 2e-5
    warmup_ratio: float = 0.05
    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8
    max_gradient_norm: float = 2.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    logging_steps: int | None = None
    save_steps: int | None = None
    seed: int = 42

    bounds: ClassVar[Bounds] = {
        **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon"), (0, math.inf)),
        "epochs": (0, 1_000_000),
        "seed": (0, LARGEST_SEED),
        **dict.fromkeys(("batch_size", "micro_batch_size", "logging_steps", "save_steps"), (1, math.inf)),
        "max_gradient_norm": (0, math.inf),
        "warmup_ratio": (0, 1),
    }

    def check(self) -> None:
        """Refuse values with which no training is possible.

        Raises:
            InputError: Names the option and its value.
        """
        for name, (least, most) in self.bounds.items():
            value = getattr(self, name)
            if value is not None and not (least <= value <= most and value < math.inf):
                upper = "" if most == math.inf else f" and at most {most:,}"
                number = "a number, " if isinstance(value, float) and not math.isfinite(value) else ""
                msg = f"{name} is {value}, and must be {number}at least {least}{upper}."
                raise InputError(msg)

    def total_steps(self, steps_per_epoch: int) -> int:
        """The number of optimiser steps of the whole training."""
        return math.ceil(steps_per_epoch * self.epochs)


@dataclass(kw_only=True, frozen=True)
class ExampleOptions(LoopOptions):
    """What every training on examples (a query, its positives and negatives) has.

    Args:
        batch_size: Queries per step, over all processes.
        limit: Train on this many of the examples, drawn with the seed; None = all.
        negatives: Hard negatives per query in a step, drawn anew in each epoch.
        negative_pool: Draw only from the first so many negatives of an example; None = from all.
        positive: Use the "first" of an example's positives, or a "random" one in each epoch.
        false_negatives: "mask" other known positives and passages with the text of a known positive, or "keep" them
            as negatives, as the papers' own code does.
        batch_tokens: Maximum number of tokens computed at once, padding included; None = chosen by device.
    """

    limit: int | None = None
    negatives: int = 1
    negative_pool: int | None = None
    positive: Literal["first", "random"] = "first"
    false_negatives: Literal["mask", "keep"] = "mask"
    batch_tokens: int | None = None

    bounds: ClassVar[Bounds] = {
        **LoopOptions.bounds,
        **dict.fromkeys(("limit", "negative_pool", "batch_tokens"), (1, math.inf)),
        "negatives": (0, math.inf),
    }


@dataclass(kw_only=True, frozen=True)
class TrainingOptions(ExampleOptions):
    """How `rkit train` trains a retriever.

    Args:
        micro_batch_size: Texts encoded at once, with gradient caching: memory stays bounded, the gradient stays that of
            the whole batch. None = no caching.
        max_gradient_norm: Global norm to which gradients are clipped. The gradient is that of the whole batch: papers
            that average over R processes clip, in effect, at R times their figure.
        sampling: How negatives are drawn: "random", or by Tevatron's sliding "window".
        rank_from: First epoch, counted from 0, after which dev questions are judged by the average rank of the gold
            passage instead of the loss.
        batch_tokens: Maximum number of tokens encoded at once without a micro batch size; None = chosen by device.
    """

    sampling: Literal["random", "window"] = "random"
    rank_from: int = 30

    bounds: ClassVar[Bounds] = {**ExampleOptions.bounds, "rank_from": (0, math.inf)}

    def check(self) -> None:
        """Refuse values with which no training is possible.

        Raises:
            InputError: Names the option and its value.
        """
        super().check()
        if self.micro_batch_size is not None and self.batch_tokens is not None:
            msg = "batch_tokens has no effect when micro_batch_size is set. Leave one of them out."
            raise InputError(msg)
        if self.batch_size == 1 and self.negatives == 0:
            msg = "batch_size 1 with negatives 0 leaves nothing to contrast a positive with. Raise one of them."
            raise InputError(msg)


@dataclass(kw_only=True, frozen=True)
class PretrainingOptions(LoopOptions):
    """How `rkit pretrain` trains a model on text.

    Args:
        steps: Optimiser steps; None = as many as the epochs have.
        epochs: Passes over the samples, unless `steps` is given.
        max_length: Maximum number of tokens per text, special tokens included, and the target length of a span.
        short_spans: Fraction of the spans whose target length is drawn from 2 ... max_length.
        titles: Whether a title counts as the first sentence of its document.
        language: Language of the texts, for splitting them into sentences.
        seed: Seed of initialisation, dropout, spans, order and masks.
    """

    epochs: float = 1
    batch_size: int = 256
    learning_rate: float = 1e-4
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    save_steps: int | None = 500
    steps: int | None = None
    max_length: int = 128
    short_spans: float = 0.15
    titles: bool = True
    language: str = "en"

    bounds: ClassVar[Bounds] = {
        **LoopOptions.bounds,
        "steps": (1, math.inf),
        "max_length": (3, math.inf),
        "short_spans": (0, 1),
    }

    def total_steps(self, steps_per_epoch: int) -> int:
        """The number of optimiser steps of the whole training."""
        return self.steps or super().total_steps(steps_per_epoch)


@dataclass(kw_only=True, frozen=True)
class RerankerOptions(ExampleOptions):
    """How `rkit rerank train` trains a cross-encoder.

    Args:
        loss: "listwise" is the softmax cross entropy of the positive within its list, "pointwise" the binary cross
            entropy of each pair.
        micro_batch_size: Queries whose pairs are in memory at once; the gradient is the same. None = the whole step.
        false_negatives: "mask" drops known positives and passages with the text of a known positive from the
            negatives, "keep" keeps them.
        max_length: Maximum number of tokens per pair, special tokens included; None = 256, or the model's limit if
            that is smaller.
    """

    epochs: float = 2
    batch_size: int = 16
    warmup_ratio: float = 0.1
    negatives: int = 7
    loss: Literal["listwise", "pointwise"] = "listwise"
    max_length: int | None = None

    bounds: ClassVar[Bounds] = {**ExampleOptions.bounds, "negatives": (1, math.inf)}


LISTED: Mapping[str, type[LoopOptions]] = {
    "trainer": TrainingOptions,
    "pretraining": PretrainingOptions,
    "reranker_training": RerankerOptions,
}
"""Name in `rkit plugins show` -> the options."""


def list_options(name: str) -> str:
    """Every option of a training with its type, default and description, as text.

    Args:
        name: "trainer", "pretraining" or "reranker_training".

    Raises:
        UnknownNameError: There are no options of that name.
    """
    if name not in LISTED:
        raise UnknownNameError("training", name, LISTED)
    lines = [f"{name}: {(LISTED[name].__doc__ or '').partition(chr(10))[0]}", "", "options (--set NAME=VALUE)"]
    for option in registry.options(LISTED[name]).values():
        lines += [f"  {option.name}: {option.type_name}, default {option.default!r}", f"      {option.description}"]
    return "\n".join(lines)
