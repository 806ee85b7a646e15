"""Training API for plugins: the loop of `rkit train`, for other kinds of training.

    class Distillation(PartedTraining): ...

    manifest = run_training(partial(Distillation, options), options)

As stable for plugins as `retrievalkit.contracts`; `retrievalkit_pretrain` is an example. Heavy to import. The options
are in `retrievalkit.contracts.commands`.
"""

from __future__ import annotations

from retrievalkit.models.precision import autocast, default_device
from retrievalkit.training.collective import Collective
from retrievalkit.training.microbatch import Part, PartedTraining
from retrievalkit.training.pages import model_card
from retrievalkit.training.ranks import lead
from retrievalkit.training.session import run_training

__all__ = ["Collective", "Part", "PartedTraining", "autocast", "default_device", "lead", "model_card", "run_training"]
