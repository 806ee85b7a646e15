"""The training loop, the only one: for retrievers, pre-training and re-rankers, whose differences are a `TrainingStep`.

A step computes forward and backward on its own terms: whole, in parts, or with cached gradients. The rest is here:
AdamW, linear warm-up and decay, clipping by the global norm, logging, and saving states from which a training that was
cut off ends with the same bytes. Several processes share each step (`retrievalkit.training.processes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import ProjectConfiguration
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import get_parameter_names

from retrievalkit.contracts import Progress
from retrievalkit.errors import MissingDependencyError, check_choice
from retrievalkit.model.allocation import Surplus
from retrievalkit.model.batches import prefetch
from retrievalkit.training import processes, states
from retrievalkit.training.options import LoopOptions
from retrievalkit.training.progress import Bar, Pace
from retrievalkit.training.resume import LOG, LOGS, PACE, STATES, beside, interruption
from retrievalkit.training.selection import BestState
from retrievalkit.training.step import Inputs, Key, Samples, TrainingStep

_WITHOUT_DECAY = ["bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


@dataclass
class Loop:
    """A training under way.

    Args:
        step: What is trained, and how.
        options: Batch size, schedule, when to log and to save.
        folder: The folder that is trained in.
        total: Steps of the whole training.
        bar: Shows progress.
        state: The state to continue from; None = from the beginning.
        name: What trackers call the training.
        trackers: Trackers that get what is logged.
    """

    step: TrainingStep[Any]
    options: LoopOptions
    folder: Path
    total: int
    bar: Bar
    state: Path | None = None
    name: str = "training"
    trackers: tuple[str, ...] = ()
    done: int = 0
    terms: dict[str, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.epoch_steps = steps_per_epoch(len(self.step.samples), self.options.batch_size)
        # Each process draws its own dropout.
        transformers.set_seed(self.options.seed + processes.rank())
        self.module: nn.Module = self.step.module
        if self.state is not None:
            self.done = states.step_of(self.state)
            states.load_module(self.state, self.module)
        if self.step.sharded:
            self.step.shard()
        AcceleratorState._reset_state()  # of an earlier training of this process, perhaps in another precision
        self.accelerator = Accelerator(
            mixed_precision="fp16" if self.options.precision == "fp16" else "no",
            cpu=not torch.cuda.is_available(),
            log_with=list(self.trackers) or None,
            project_config=ProjectConfiguration(str(self.folder), logging_dir=str(self.folder / LOGS)),
        )
        self.optimizer = self.accelerator.prepare_optimizer(_adamw(self.module, self.options), device_placement=False)
        self.logging_steps = self.options.logging_steps or min(10, max(1, self.total // 20))
        warmup = int(self.options.warmup_ratio * self.total)
        # The schedule of the optimizer itself: accelerate's wrapper would skip a step for each process.
        self.schedule = transformers.get_linear_schedule_with_warmup(self.optimizer.optimizer, warmup, self.total)
        self.best = BestState(self.step, self.folder) if self.step.dev is not None and processes.is_main() else None
        self.surplus, self.pace = Surplus(), Pace()

    def run(self) -> None:
        """Train to the end."""
        self.accelerator.init_trackers(self.name)
        self.bar.start(self.total, self.done)
        if self.done:
            self.step.restore(self.done // self.epoch_steps, self.folder)
            self.bar.say(f"resuming after step {self.done:,} of {self.total:,}")
        try:
            while self.done < self.total:
                epoch, skipped = divmod(self.done, self.epoch_steps)
                # A loader draws a random number, which a state in the middle of its epoch has behind it.
                if not skipped:
                    self._restore()
                loader = iter(self._loader(epoch, skipped))
                self._restore()
                for inputs in islice(prefetch(loader), self.total - self.done):
                    norm, rate = self.compute_step(inputs.to(self.accelerator.device))
                    ends_epoch = self.done % self.epoch_steps == 0
                    ends = self.done == self.total
                    if ends_epoch and not ends:
                        self.step.end_epoch(epoch + 1, self.folder, self.log, self.bar.say)
                    if self.best is not None and (ends_epoch or ends):
                        self.best.judge(epoch, self.log)
                    if self.done % self.logging_steps == 0:
                        self.log_terms(norm, rate)
                    save_steps = self.options.save_steps
                    if ends or (ends_epoch if save_steps is None else self.done % save_steps == 0):
                        self.save()
                    self.bar.update(self.done)
            for tracker in self.accelerator.trackers:
                tracker.finish()
        except KeyboardInterrupt as error:
            error.add_note(interruption(self.done, self.folder / STATES))
            raise
        finally:
            self.bar.stop()

    def compute_step(self, inputs: Inputs) -> tuple[Tensor, float]:
        """Forward, backward and update of one step.

        Returns:
            The norm of the gradient before clipping, and the learning rate.
        """
        self.module.train()
        self.pace.begin()
        progress = Progress(self.done, self.done / self.epoch_steps, self.total)
        values = self.step.run(inputs, progress, self.accelerator.backward)
        weights = [one for one in self.module.parameters() if one.requires_grad]
        if processes.count() > 1 and not self.step.sharded:
            processes.add_gradients(weights)
        # A tensor: to read it here would make a GPU wait for each step.
        norm: Tensor = self.accelerator.clip_grad_norm_(weights, self.options.max_gradient_norm)
        rate = self.schedule.get_last_lr()[0]
        self.optimizer.step()
        if not self.accelerator.optimizer_step_was_skipped:  # by the scaler of fp16, after an overflow
            self.schedule.step()
        self.module.zero_grad()
        self.done += 1
        for name, value in values.items():
            self.terms.setdefault(name, []).append(value.detach().float())
        self.surplus.after_step()
        self.pace.add(inputs.texts)
        return norm, rate

    def log_terms(self, norm: Tensor, rate: float) -> None:
        """Log the means of the loss and of its terms since the last time."""
        means = {name: float(torch.stack(values).mean()) for name, values in self.terms.items()}
        self.terms.clear()
        self.log({"loss": means.pop("loss"), "grad_norm": float(norm), "learning_rate": rate, **means})
        measured = self.pace.measured()
        self.accelerator.log(measured, step=self.done)
        # Times differ between equal trainings, which write equal files but for `logs`.
        self._append(self.folder / PACE, measured)

    def log(self, values: dict[str, float]) -> None:
        """Append values to the log, hand them to the trackers, and show the loss and the dev measure."""
        values = {**values, "epoch": self.done / self.epoch_steps}
        self.accelerator.log(values, step=self.done)
        self._append(self.folder / LOG, values)
        shown = [f"{name} {value:.4f}" for name, value in values.items() if name == "loss" or name.startswith("dev_")]
        if shown:
            self.bar.update(self.done, ", ".join(shown))

    def _append(self, path: Path, values: dict[str, float]) -> None:
        if values and processes.is_main():
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": self.done, **values}) + "\n")

    def _restore(self) -> None:
        if self.state is not None:
            states.load(self.state, self)
            self.state = None

    def save(self) -> None:
        """Save a state to continue from; older ones are removed."""
        states.save(self, self.folder / STATES, beside(self.folder))

    def _loader(self, epoch: int, skipped: int) -> DataLoader[Any]:
        keys = batches(self.step.samples, self.options.batch_size, epoch, skipped)
        return DataLoader(_Keys(), batch_sampler=keys, collate_fn=self.step.collate)


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Whole steps, and a last one of two samples or more: a single one has nothing to be contrasted with."""
    whole, rest = divmod(samples, batch_size)
    return max(1, whole + (rest > 1))


def batches(samples: Samples, batch_size: int, epoch: int, skipped: int = 0) -> Iterator[list[Key]]:
    """The samples of each step of an epoch, over all processes, without the first `skipped` steps."""
    order = samples.order(epoch)
    for step in range(skipped, steps_per_epoch(len(samples), batch_size)):
        yield [(epoch, int(position)) for position in order[step * batch_size : (step + 1) * batch_size]]


class _Keys(torch.utils.data.Dataset[Key]):
    """Passes keys through to the collation, which does the work for a whole step at once."""

    def __getitem__(self, key: Key) -> Key:
        return key


def _adamw(module: nn.Module, options: LoopOptions) -> torch.optim.AdamW:
    decayed = set(get_parameter_names(module, [nn.LayerNorm], _WITHOUT_DECAY))
    named = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    groups = [
        {"params": [one for name, one in named if name in decayed], "weight_decay": options.weight_decay},
        {"params": [one for name, one in named if name not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.learning_rate, eps=options.adam_epsilon, fused=True)


def trackers(names: str) -> tuple[str, ...]:
    """The trackers to log to: TensorBoard, if it is installed, and those that are named.

    Args:
        names: Names as accelerate has them, with commas: wandb,mlflow.

    Raises:
        InputError: A tracker is unknown or not installed.
    """
    available = [str(one) for one in get_available_trackers()]
    wanted = [name for name in map(str.strip, names.split(",")) if name]
    for name in wanted:
        check_choice("tracker", name, sorted(LOGGER_TYPE_TO_CLASS))
        if name not in available:
            raise MissingDependencyError(name, f"report_to {name}")
    return tuple(dict.fromkeys([*wanted, *(["tensorboard"] if "tensorboard" in available else [])]))
