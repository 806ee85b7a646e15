"""The training loop shared by retrievers, pre-training and re-rankers; a `Training` defines what differs.

A `Training` computes forward and backward of a step: whole, in parts, or with gradient caching. The loop does the rest:
AdamW, linear warm-up and decay, gradient clipping by global norm, logging, and saving states from which an interrupted
training resumes to byte-identical results. Several processes share each step (`retrievalkit.training.collective`).
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
from torch import Tensor, nn
from transformers.trainer_pt_utils import get_parameter_names

from retrievalkit.contracts import Progress
from retrievalkit.data.vectors.ranges import read_ahead
from retrievalkit.errors import MissingDependencyError, RetrievalkitError, check_choice
from retrievalkit.models.precision import Precision
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import say
from retrievalkit.training import checkpoints, selection
from retrievalkit.training.checkpoints import LOG, LOGS, PACE, STATES
from retrievalkit.training.collective import ALONE, Collective, GradientSum, OutOfMemoryElsewhere
from retrievalkit.training.dry_run import unchanged
from retrievalkit.training.options import LoopOptions
from retrievalkit.training.sharding import make_whole

try:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import ProjectConfiguration
except ImportError as error:
    raise MissingDependencyError("accelerate", "training") from error

Key = tuple[int, int]
"""A sample of an epoch: (epoch, position)."""

Backward = Callable[[Tensor], None]
Log = Callable[[dict[str, float]], None]

# Dev evaluations by nDCG@10 per training, which take as long as many steps.
_JUDGED = 5
_STATUS = Path("/proc/self/status")
_WITHOUT_DECAY = ["bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


class Inputs(Protocol):
    """Inputs of a step, built on the CPU."""

    @property
    def texts(self) -> int:
        """Number of texts in the whole step, over all processes."""

    def to(self, device: torch.device, /) -> Self:
        """Return the same inputs on another device."""


class Samples(Protocol):
    """Samples of an epoch; their order depends only on the seed and the epoch."""

    def __len__(self) -> int: ...

    def order(self, epoch: int) -> Sequence[int]:
        """Return the positions of all samples in the order of an epoch."""


class Training:
    """Base class of a kind of training: its data and model, its steps, and its output.

    Attributes:
        kind: Kind of the output folder, such as "checkpoint".
        command: Command that writes the folder, such as "train".
        title: Label of the progress bar.
        work: Name of a folder that `open` writes and a resumed training reuses; removed at the end.
        collective: The processes that share the training.
        sharded: The processes divide the weights of the module among themselves.
        module: All trained parts, on the training device.
        samples: Samples of an epoch; available after `open`.
        options: All options of the training.
        precision: Number format of matrix products, never "auto".
        dev: Dev set for selecting the best state, or None to keep the last.
        measured_before: The dev set is also evaluated before training, and within epochs if these are long.
        held_out: The dev set consists of held-out training examples.
        described: Everything the user chose, for the manifest.
        inputs: Fingerprints of model and data, for the manifest.
        entries: Additional entries of the manifest.
        counts: Counts for the manifest, such as {"examples": 1000}; available after `open`.
    """

    kind: ClassVar[str]
    command: ClassVar[str]
    title: ClassVar[str] = "training"
    work: ClassVar[str | None] = None
    collective: Collective = ALONE
    sharded: bool = False
    module: Any
    options: LoopOptions
    precision: Precision
    samples: Samples
    dev: object = None
    measured_before: bool = False
    held_out: bool = False
    described: Mapping[str, Any]
    inputs: Mapping[str, Any]
    entries: Mapping[str, Any] = {}
    counts: Mapping[str, int]

    def dry_run(self) -> None:
        """Check the first step before anything is written, and refuse a training that would fail."""
        raise NotImplementedError

    def open(self, folder: Path) -> None:
        """Prepare the data of the first step in the training's folder."""

    def shard(self) -> None:
        """Divide the weights among the processes. Called before the first step if `sharded`."""
        raise NotImplementedError

    def collate(self, keys: Sequence[Key]) -> Any:
        """Return this process's share of the `Inputs` of a step, on the CPU."""
        raise NotImplementedError

    def run(self, inputs: Any, progress: Progress, backward: Backward, gradients: GradientSum) -> dict[str, Tensor]:
        """Compute forward and backward of a step, the last backward pass within `gradients.last_backward()`.

        Args:
            inputs: From `collate`, on the device of the module.
            progress: Current step and epoch.
            backward: Back-propagates a loss, scaled if the precision requires it.
            gradients: The sum of the gradients over all processes.

        Returns:
            The values of the whole step to log, "loss" last, equal in all processes.
        """
        raise NotImplementedError

    def reduce(self, inputs: Any) -> Any:
        """Return inputs that need less memory, for another try and all later steps; None = none need less."""
        raise NotImplementedError

    def largest(self) -> Sequence[Key]:
        """Return the samples of a step that is about as large as any."""
        return [(0, int(position)) for position in self.samples.order(0)[: self.options.batch_size]]

    def measure(self, epoch: int) -> selection.Values:
        """Evaluate the model on the dev set in an epoch, in all processes. Called only if `dev` is set."""
        raise NotImplementedError

    def measured(self, share: float, value: float) -> None:
        """Hook of the main process, after the state at `share` of the steps was evaluated and, if due, saved."""

    def end_epoch(self, epoch: int, folder: Path, log: Log) -> None:
        """Hook of all processes after each epoch but the last, before the state is saved."""

    def restore(self, epochs: int, folder: Path) -> None:
        """Restore what `end_epoch` changed, when a training resumes after this number of whole epochs."""

    def save(self, folder: Path) -> None:
        """Write the trained model."""
        self.module.save(folder)

    def card(self, manifest: dict[str, Any]) -> str:
        """Return the model card of the output folder."""
        raise NotImplementedError


@dataclass
class Loop:
    """A training from the start or from a saved state; `run` prepares and runs its steps."""

    training: Training
    collective: Collective
    folder: Path
    state: Path | None = None
    name: str = "training"
    trackers: Sequence[str] = ()
    done: int = 0
    terms: dict[str, list[Tensor]] = field(default_factory=dict)
    shown: dict[str, float] = field(default_factory=dict)
    texts: int = 0
    since: float = 0.0

    def prepare(self) -> None:
        """Prepare data, weights, optimizer and schedule of the first step."""
        self.training.open(self.folder)
        self.options, self.module = self.training.options, self.training.module
        self.epoch_steps = steps_per_epoch(len(self.training.samples), self.options.batch_size)
        self.total = self.options.total_steps(self.epoch_steps)
        # Needed only if a component draws its initial weights without the seed.
        self.collective.share_weights(self.module)
        # Each process draws its own dropout.
        transformers.set_seed(self.options.seed + self.collective.rank)
        if self.state is not None:
            self.done = checkpoints.step_of(self.state)
            checkpoints.load_module(self.state, self.module)
        if self.training.sharded:
            self.training.shard()
        AcceleratorState._reset_state()  # of an earlier training in this process, possibly in another precision
        self.accelerator = Accelerator(
            mixed_precision="fp16" if self.training.precision == "fp16" else "no",
            cpu=not torch.cuda.is_available(),
            log_with=list(self.trackers) or None,
            project_config=ProjectConfiguration(str(self.folder), logging_dir=str(self.folder / LOGS)),
        )
        weights = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        # FSDP sums the gradients of sharded weights itself.
        summed = () if self.training.sharded else weights.values()
        dtype = torch.bfloat16 if self.options.gradient_precision == "bf16" else None
        self.gradients = self.collective.gradient_sum(summed, dtype)
        decayed = set(get_parameter_names(self.module, [nn.LayerNorm], _WITHOUT_DECAY))
        groups = [
            {"params": [weights[name] for name in weights if (name in decayed) == decays], "weight_decay": decay}
            for decays, decay in ((True, self.options.weight_decay), (False, 0.0))
        ]
        rate, epsilon = self.options.learning_rate, self.options.adam_epsilon
        adamw = torch.optim.AdamW(groups, lr=rate, eps=epsilon, fused=True)
        warmup = int(self.options.warmup_ratio * self.total)
        # A schedule of the plain optimizer: accelerate's wrapper would advance it once per process.
        self.schedule = transformers.get_linear_schedule_with_warmup(adamw, warmup, self.total)
        self.optimizer = self.accelerator.prepare_optimizer(adamw, device_placement=False)
        self.bar = ProgressBar(self.training.title, self.total, unit="steps", done=self.done)
        if self.accelerator.device.type != "cpu":
            self.try_largest_step()

    def run(self) -> int:
        """Train to the end; return the number of steps."""
        self.prepare()
        training, main, save_steps = self.training, self.collective.is_main, self.options.save_steps
        logging_steps = self.options.logging_steps or min(10, max(1, self.total // 20))
        self.accelerator.init_trackers(self.name)
        if main:
            self.bar.start()
        if self.done:
            training.restore(self.done // self.epoch_steps, self.folder)
            if main:
                say(f"resuming after step {self.done:,} of {self.total:,}", err=True)
        try:
            if training.measured_before and not self.done:
                selection.judge(training, self.folder, 0, self.log)
            while self.done < self.total:
                epoch, skipped = divmod(self.done, self.epoch_steps)
                self._restore()
                if not skipped:
                    # Not used: dropout depends on it, so figures would change without it.
                    torch.empty((), dtype=torch.int64).random_()
                steps = batches(training.samples, self.options.batch_size, epoch, skipped)
                for inputs in islice(read_ahead(map(training.collate, steps)), self.total - self.done):
                    norm, rate = self.compute_step(inputs.to(self.accelerator.device))
                    ends, ends_epoch = self.done == self.total, self.done % self.epoch_steps == 0
                    if ends_epoch and not ends:
                        training.end_epoch(epoch + 1, self.folder, self.log)
                    figure = None
                    if training.dev is not None and (ends or self.judges()):
                        figure = selection.judge(training, self.folder, self.done / self.epoch_steps, self.log)
                    if self.done % logging_steps == 0:
                        self.log_terms(norm, rate)
                    if ends or (ends_epoch if save_steps is None else self.done % save_steps == 0):
                        checkpoints.save(self, self.folder)
                    if main:
                        self.bar.update(self.done)
                    if main and figure is not None:
                        training.measured(self.done / self.total, figure)
            for tracker in self.accelerator.trackers:
                tracker.finish()
        except KeyboardInterrupt as error:
            kept = "no state was saved yet (--set save_steps=N saves a state every N steps)."
            if states := checkpoints.saved(self.folder / STATES):
                step = checkpoints.step_of(states[0])
                kept = f"the state after step {step:,} is kept: run the same command with --resume."
            error.add_note(f"Interrupted at step {self.done:,}; {kept}")
            raise
        finally:
            self.bar.stop()
        if training.sharded:
            make_whole(self.module, self.collective)
        return self.total

    def try_largest_step(self) -> None:
        """Compute a step of the largest samples and discard it, to meet a limit of memory before the training."""
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        with unchanged(self.module):
            states = [torch.empty_like(weight) for weight in trained * 2]  # as much memory as AdamW will take
            self.module.train()
            self._run(self.training.collate(self.training.largest()).to(states[0].device), torch.autograd.backward)
        self.module.zero_grad()

    def judges(self) -> bool:
        """True if the dev set is evaluated after this step: at equal parts of the training, or after an epoch."""
        if not self.training.measured_before:
            return self.done % self.epoch_steps == 0
        return self.done * _JUDGED // self.total > (self.done - 1) * _JUDGED // self.total

    def compute_step(self, inputs: Inputs) -> tuple[Tensor, float]:
        """Compute and apply a step; return the gradient norm before clipping and the learning rate."""
        self.module.train()
        self.since = self.since or time.monotonic()
        values = self._run(inputs, self.accelerator.backward)
        weights = [one for one in self.module.parameters() if one.requires_grad]
        # A tensor: reading it here would synchronise the GPU at each step.
        norm: Tensor = self.accelerator.clip_grad_norm_(weights, self.options.max_gradient_norm)
        rate = self.schedule.get_last_lr()[0]
        self.optimizer.step()
        if not self.accelerator.optimizer_step_was_skipped:  # by the fp16 gradient scaler, after an overflow
            self.schedule.step()
        self.module.zero_grad()
        self.done += 1
        for name, value in values.items():
            self.terms.setdefault(name, []).append(value.detach().float())
        self.texts += inputs.texts
        return norm, rate

    def _run(self, inputs: Any, backward: Backward) -> dict[str, Tensor]:
        """Compute forward and backward of a step, with less memory when a process has run out of it."""
        progress = Progress(self.done, self.done / self.epoch_steps, self.total)
        while True:
            try:
                return self.training.run(inputs, progress, backward, self.gradients)
            except torch.OutOfMemoryError as error:
                failure = error.with_traceback(None)  # which would keep the tensors of the step
            smaller = self.training.reduce(inputs)
            if smaller is None and not isinstance(failure, OutOfMemoryElsewhere):
                msg = (
                    "the device has too little memory for the smallest part of a step. Shorten the texts, use a "
                    "smaller model, or set encoder.checkpoint_activations=true."
                )
                raise RetrievalkitError(msg) from failure
            self.gradients.give_up()
            self.module.zero_grad()
            inputs = smaller or inputs

    def log_terms(self, norm: Tensor, rate: float) -> None:
        """Log the means of the loss and its terms since the last log line, and throughput and memory."""
        means = {name: float(torch.stack(values).mean()) for name, values in self.terms.items()}
        self.terms.clear()
        self.log({"loss": means.pop("loss"), "grad_norm": float(norm), "learning_rate": rate, **means})
        now = time.monotonic()
        pace = {"texts_per_second": self.texts / max(now - self.since, 1e-9)}
        self.texts, self.since = 0, now
        memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _held_memory()
        if memory is not None:
            pace["memory_gib"] = memory / (1 << 30)
        # Times differ between equal trainings, which write equal files except in `logs`.
        self._append(self.folder / PACE, pace)

    def log(self, values: dict[str, float]) -> None:
        """Log values, and show the loss and the dev metrics in the progress bar."""
        values = {**values, "epoch": self.done / self.epoch_steps}
        self._append(self.folder / LOG, values)
        self.shown |= {name: value for name, value in values.items() if name == "loss" or name.startswith("dev_")}
        if self.shown and self.collective.is_main:
            shown = [f"{name} {value:.4f}" for name, value in self.shown.items()]
            self.bar.update(self.done, label=", ".join([self.training.title, *shown]))

    def _append(self, path: Path, values: dict[str, float]) -> None:
        self.accelerator.log(values, step=self.done)
        if self.collective.is_main:
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": self.done, **values}) + "\n")

    def _restore(self) -> None:
        if self.state is not None:
            checkpoints.load(self.state, self)
            self.state = None


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Return the steps per epoch. A last step of a single sample is dropped: it has nothing to contrast with."""
    whole, rest = divmod(samples, batch_size)
    return max(1, whole + (rest > 1))


def batches(samples: Samples, batch_size: int, epoch: int, skipped: int = 0) -> Iterator[list[Key]]:
    """Yield the samples of each step of an epoch, over all processes, without the first `skipped` steps."""
    order = samples.order(epoch)
    for step in range(skipped, steps_per_epoch(len(samples), batch_size)):
        yield [(epoch, int(position)) for position in order[step * batch_size : (step + 1) * batch_size]]


def _held_memory() -> int | None:
    """Return the bytes of this process in memory, without mapped files; None if the system does not report them."""
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), None)


def trackers(names: str) -> tuple[str, ...]:
    """Return the trackers to log to: the named trackers, such as "wandb,mlflow", and TensorBoard if installed."""
    available = [str(tracker) for tracker in get_available_trackers()]
    wanted = [name for name in map(str.strip, names.split(",")) if name]
    for name in wanted:
        check_choice("tracker", name, sorted(LOGGER_TYPE_TO_CLASS))
        if name not in available:
            raise MissingDependencyError(name, f"report_to {name}")
    return tuple(dict.fromkeys([*wanted, *(["tensorboard"] if "tensorboard" in available else [])]))
