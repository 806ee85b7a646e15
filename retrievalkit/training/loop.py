"""The training loop, the only one: for retrievers, pre-training and re-rankers, whose differences are a `Training`.

A step computes forward and backward on its own terms: whole, in parts, or with cached gradients. The rest is here:
AdamW, linear warm-up and decay, clipping by the global norm, logging, and saving states from which a training that was
cut off ends with the same bytes. Several processes share each step (`retrievalkit.training.processes`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

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
from retrievalkit.models.allocation import Surplus, held_memory
from retrievalkit.models.batches import prefetch
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import say
from retrievalkit.training import checkpoints, processes, selection
from retrievalkit.training.checkpoints import LOG, LOGS, PACE, STATES
from retrievalkit.training.options import LoopOptions

Key = tuple[int, int]
"""A sample of an epoch: (epoch, position)."""

Backward = Callable[[Tensor], None]
Log = Callable[[dict[str, float]], None]

# Measurements of the dev questions in a training by nDCG@10, which take as long as many steps.
_JUDGED = 5
_WITHOUT_DECAY = ["bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


class Inputs(Protocol):
    """What a step computes on, made on the CPU."""

    @property
    def texts(self) -> int:
        """How many texts the whole step has, of all processes."""

    def to(self, device: torch.device, /) -> Self:
        """The same inputs on another device."""


class Samples(Protocol):
    """The samples of an epoch and their order, which depends on the seed and the epoch alone."""

    def __len__(self) -> int: ...

    def order(self, epoch: int) -> Sequence[int]:
        """The positions of all samples in the order of an epoch."""


class Training:
    """One kind of training, made from its options: what is trained on what, its steps, and what comes out.

    Attributes:
        kind: Kind of the folder that it writes, such as "checkpoint".
        command: The command that writes it, such as "train".
        title: Shown in front of the progress bar.
        work: Name of a folder that `open` writes and a resumed training reuses; removed at the end.
        sharded: The processes divide the weights of the module among them.
        module: Everything that is trained, on the device that trains it.
        samples: What an epoch consists of; available once `open` was called.
        options: Its options, complete.
        dev: The dev questions by which the best state is selected, or None to keep the last.
        measured_before: The dev questions are measured before training too, and within epochs if these are long.
        held_out: The dev questions are examples that were held out.
        described: Everything the user chose, for the manifest.
        inputs: Fingerprints of model and data, for the manifest.
        entries: More entries of the manifest.
        counts: Counts for the manifest, such as {"examples": 1000}; available once `open` was called.
    """

    kind: ClassVar[str]
    command: ClassVar[str]
    title: ClassVar[str] = "training"
    work: ClassVar[str | None] = None
    sharded: bool = False
    module: Any
    options: LoopOptions
    samples: Samples
    dev: object = None
    measured_before: bool = False
    held_out: bool = False
    described: Mapping[str, Any]
    inputs: Mapping[str, Any]
    entries: Mapping[str, Any] = {}
    counts: Mapping[str, int]

    def dry_run(self) -> None:
        """Refuse, before anything is written, what would fail in the first step."""
        raise NotImplementedError

    def open(self, folder: Path) -> None:
        """Prepare what the first step needs in the folder that is trained in."""

    def shard(self) -> None:
        """Divide the weights among the processes. Called if `sharded`, before the first step."""
        raise NotImplementedError

    def collate(self, keys: Sequence[Key]) -> Any:
        """The `Inputs` of a step, on the CPU; of several processes, each gets its share."""
        raise NotImplementedError

    def run(self, inputs: Any, progress: Progress, backward: Backward) -> dict[str, Tensor]:
        """Forward and backward of one step.

        Args:
            inputs: From `collate`, on the device of the module.
            progress: Where training is.
            backward: Back-propagates a loss, scaled if the precision requires it.

        Returns:
            What is logged, "loss" last: the values of the whole step, equal in all processes. The gradients of the
            processes add up to that of the whole step.
        """
        raise NotImplementedError

    def measure(self, epoch: int) -> selection.Values:
        """The values of the dev questions in an epoch. Called only if `dev` is given."""
        raise NotImplementedError

    def measured(self, share: float, value: float) -> None:
        """Called in the main process when the state after a share of the steps was measured and may be resumed."""

    def end_epoch(self, epoch: int, folder: Path, log: Log) -> None:
        """Called in all processes when an epoch is done and another step follows, before the state is saved."""

    def restore(self, epochs: int, folder: Path) -> None:
        """Bring back what `end_epoch` changed in a training that is resumed after so many whole epochs."""

    def save(self, folder: Path) -> None:
        """Write what was trained."""
        self.module.save(folder)

    def card(self, manifest: dict[str, Any]) -> str:
        """The model card of the folder with that manifest."""
        raise NotImplementedError


@dataclass
class Loop:
    """A training under way, from its beginning or from a saved state; `trackers` are accelerate's."""

    training: Training
    options: LoopOptions
    folder: Path
    state: Path | None = None
    name: str = "training"
    trackers: Sequence[str] = ()
    done: int = 0
    terms: dict[str, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.training.open(self.folder)
        self.epoch_steps = steps_per_epoch(len(self.training.samples), self.options.batch_size)
        self.total = self.options.total_steps(self.epoch_steps)
        self.module: nn.Module = self.training.module
        # Equal already, unless a component draws its initial weights in a way of its own.
        processes.share_weights(self.module)
        # Each process draws its own dropout.
        transformers.set_seed(self.options.seed + processes.rank())
        if self.state is not None:
            self.done = checkpoints.step_of(self.state)
            checkpoints.load_module(self.state, self.module)
        if self.training.sharded:
            self.training.shard()
        AcceleratorState._reset_state()  # of an earlier training of this process, perhaps in another precision
        self.accelerator = Accelerator(
            mixed_precision="fp16" if self.options.precision == "fp16" else "no",
            cpu=not torch.cuda.is_available(),
            log_with=list(self.trackers) or None,
            project_config=ProjectConfiguration(str(self.folder), logging_dir=str(self.folder / LOGS)),
        )
        decayed = set(get_parameter_names(self.module, [nn.LayerNorm], _WITHOUT_DECAY))
        named = [(name, one) for name, one in self.module.named_parameters() if one.requires_grad]
        groups = [
            {"params": [one for name, one in named if name in decayed], "weight_decay": self.options.weight_decay},
            {"params": [one for name, one in named if name not in decayed], "weight_decay": 0.0},
        ]
        rate, epsilon = self.options.learning_rate, self.options.adam_epsilon
        adamw = torch.optim.AdamW(groups, lr=rate, eps=epsilon, fused=True)
        self.optimizer = self.accelerator.prepare_optimizer(adamw, device_placement=False)
        warmup = int(self.options.warmup_ratio * self.total)
        # The schedule of the optimizer itself: accelerate's wrapper would skip a step for each process.
        self.schedule = transformers.get_linear_schedule_with_warmup(self.optimizer.optimizer, warmup, self.total)
        self.bar = ProgressBar(self.training.title, self.total, unit="steps", done=self.done)
        self.surplus = Surplus()
        self.texts, self.since = 0, 0.0
        self.shown: dict[str, float] = {}

    def run(self) -> int:
        """Train to the end, and return the number of steps."""
        training, main, save_steps = self.training, processes.is_main(), self.options.save_steps
        logging_steps = self.options.logging_steps or min(10, max(1, self.total // 20))
        self.accelerator.init_trackers(self.name)
        if main:
            self.bar.start()
        if self.done:
            training.restore(self.done // self.epoch_steps, self.folder)
            if main:
                say(f"resuming after step {self.done:,} of {self.total:,}", err=True)
        try:
            if training.measured_before and main and not self.done:
                selection.judge(training, self.folder, 0, self.log)
            while self.done < self.total:
                epoch, skipped = divmod(self.done, self.epoch_steps)
                # A loader draws a random number, which a state in the middle of its epoch has behind it.
                if not skipped:
                    self._restore()
                keys = batches(training.samples, self.options.batch_size, epoch, skipped)
                loader = iter(DataLoader(_Keys(), batch_sampler=keys, collate_fn=training.collate))
                self._restore()
                for inputs in islice(prefetch(loader), self.total - self.done):
                    norm, rate = self.compute_step(inputs.to(self.accelerator.device))
                    ends, ends_epoch = self.done == self.total, self.done % self.epoch_steps == 0
                    if ends_epoch and not ends:
                        training.end_epoch(epoch + 1, self.folder, self.log)
                    figure = None
                    if training.dev is not None and main and (ends or self.judges()):
                        figure = selection.judge(training, self.folder, self.done / self.epoch_steps, self.log)
                    if self.done % logging_steps == 0:
                        self.log_terms(norm, rate)
                    if ends or (ends_epoch if save_steps is None else self.done % save_steps == 0):
                        self.save()
                    if main:
                        self.bar.update(self.done)
                    if figure is not None:
                        training.measured(self.done / self.total, figure)
            for tracker in self.accelerator.trackers:
                tracker.finish()
        except KeyboardInterrupt as error:
            kept = "no state was saved before it (--set save_steps=N saves one every N steps)."
            if states := checkpoints.saved(self.folder / STATES):
                step = checkpoints.step_of(states[0])
                kept = f"the state after step {step:,} is kept: run the same command with --resume."
            error.add_note(f"Interrupted at step {self.done:,}; {kept}")
            raise
        finally:
            self.bar.stop()
        if training.sharded:
            processes.make_whole(self.module)
        return self.total

    def judges(self) -> bool:
        """Whether the dev questions are measured after this step: at equal parts of the training, or after an epoch."""
        if not self.training.measured_before:
            return self.done % self.epoch_steps == 0
        return self.done * _JUDGED // self.total > (self.done - 1) * _JUDGED // self.total

    def compute_step(self, inputs: Inputs) -> tuple[Tensor, float]:
        """Forward, backward and update of one step; returns the norm before clipping and the learning rate."""
        self.module.train()
        self.since = self.since or time.monotonic()
        progress = Progress(self.done, self.done / self.epoch_steps, self.total)
        values = self.training.run(inputs, progress, self.accelerator.backward)
        weights = [one for one in self.module.parameters() if one.requires_grad]
        if processes.count() > 1 and not self.training.sharded:
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
        self.texts += inputs.texts
        return norm, rate

    def log_terms(self, norm: Tensor, rate: float) -> None:
        """Log the means of the loss and of its terms since the last time, and the pace."""
        means = {name: float(torch.stack(values).mean()) for name, values in self.terms.items()}
        self.terms.clear()
        self.log({"loss": means.pop("loss"), "grad_norm": float(norm), "learning_rate": rate, **means})
        now = time.monotonic()
        pace = {"texts_per_second": self.texts / max(now - self.since, 1e-9)}
        self.texts, self.since = 0, now
        memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else held_memory()
        if memory is not None:
            pace["memory_gib"] = memory / (1 << 30)
        # Times differ between equal trainings, which write equal files but for `logs`.
        self._append(self.folder / PACE, pace)

    def log(self, values: dict[str, float]) -> None:
        """Log values, and show the loss and the dev measures."""
        values = {**values, "epoch": self.done / self.epoch_steps}
        self._append(self.folder / LOG, values)
        self.shown |= {name: one for name, one in values.items() if name == "loss" or name.startswith("dev_")}
        if self.shown and processes.is_main():
            shown = [f"{name} {value:.4f}" for name, value in self.shown.items()]
            self.bar.update(self.done, label=", ".join([self.training.title, *shown]))

    def _append(self, path: Path, values: dict[str, float]) -> None:
        self.accelerator.log(values, step=self.done)
        if processes.is_main():
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": self.done, **values}) + "\n")

    def _restore(self) -> None:
        if self.state is not None:
            checkpoints.load(self.state, self)
            self.state = None

    def save(self) -> None:
        """Save a state to continue from; older ones are removed."""
        checkpoints.save(self, self.folder)


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


def trackers(names: str) -> tuple[str, ...]:
    """The trackers to log to: TensorBoard, if it is installed, and those that are named, such as "wandb,mlflow"."""
    available = [str(one) for one in get_available_trackers()]
    wanted = [name for name in map(str.strip, names.split(",")) if name]
    for name in wanted:
        check_choice("tracker", name, sorted(LOGGER_TYPE_TO_CLASS))
        if name not in available:
            raise MissingDependencyError(name, f"report_to {name}")
    return tuple(dict.fromkeys([*wanted, *(["tensorboard"] if "tensorboard" in available else [])]))
