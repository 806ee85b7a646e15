"""The training loop, the only one: for retrievers, pre-training and re-rankers, whose differences are a `TrainingStep`.

The Hugging Face Trainer brings the optimiser, the schedule, clipping, states, resuming and logging. Ours: the samples
of a step come from the step object, which computes forward and backward on its own terms (whole, in parts, or with
cached gradients), and several processes share each step (`retrievalkit.train.processes`).
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from retrievalkit import artifacts
from retrievalkit.contracts import Progress
from retrievalkit.errors import ArtifactError, MissingDependencyError, RetrievalkitError, check_choice
from retrievalkit.model.allocation import Surplus
from retrievalkit.model.batches import prefetch
from retrievalkit.model.pretrained import load_weights, save_weights
from retrievalkit.train import processes, sharding, states
from retrievalkit.train.options import LoopOptions
from retrievalkit.train.progress import Bar, Pace
from retrievalkit.train.resume import PACE, WEIGHTS, beside
from retrievalkit.train.selection import BestState
from retrievalkit.train.step import Inputs, Key, Samples, TrainingStep

_TERMS, _OPTIMIZER, _SCHEDULER = "terms.json", "optimizer.pt", "scheduler.pt"


class StepSampler(Sampler[list[Key]]):
    """The keys of each step, shuffled anew in each epoch; a last step of a single sample is dropped.

    Its length is the number of steps per epoch.

    Args:
        samples: The samples and their order.
        batch_size: Samples per step, over all processes.
    """

    def __init__(self, samples: Samples, batch_size: int) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.epoch = 0

    def __len__(self) -> int:
        whole, rest = divmod(len(self.samples), self.batch_size)
        # A single example has nothing to be contrasted with; it is kept only if there is no other.
        return max(1, whole + (rest > 1))

    def __iter__(self) -> Iterator[list[Key]]:
        order = self.samples.order(self.epoch)
        for step in range(len(self)):
            positions = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield [(self.epoch, int(position)) for position in positions]


class _Keys(Dataset[Key]):
    """Passes keys through to the collator, which does the work for a whole step at once."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Key) -> Key:
        return key


class StepTrainer(transformers.Trainer):
    """The Hugging Face Trainer around a `TrainingStep`.

    Args:
        step: What is trained, and how.
        arguments: Training arguments of transformers.
        sampler: Which samples each step has.
        log_file: File to which a line of JSON is appended at each logging.
    """

    def __init__(
        self,
        step: TrainingStep[Any],
        arguments: transformers.TrainingArguments,
        *,
        sampler: StepSampler,
        log_file: Path,
    ) -> None:
        self.step = step
        self.sampler = sampler
        self.log_file = log_file
        self._terms: dict[str, list[Tensor]] = {}
        self._prefetched: tuple[Iterator[Inputs], Iterator[Inputs]] | None = None
        self._surplus = Surplus()
        self._pace = Pace()
        super().__init__(model=step.module, args=arguments, callbacks=[])
        # The progress display is ours.
        self.remove_callback(transformers.PrinterCallback)

    def create_accelerator_and_postprocess(self) -> None:
        """As the Trainer does, but the model is not wrapped when there are several processes."""
        super().create_accelerator_and_postprocess()
        # DistributedDataParallel would average the gradients, and take memory for that.
        self.accelerator.prepare_model = functools.partial(self.accelerator.prepare_model, evaluation_mode=True)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The steps of an epoch, the same in every process."""
        return DataLoader(
            _Keys(len(self.step.samples)), batch_sampler=self.sampler, collate_fn=lambda keys: self.step.collate(keys)
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Inputs], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Inputs]], None]:
        """The next steps, which a thread prepares while the model computes."""
        if self._prefetched is None or self._prefetched[0] is not epoch_iterator:
            self._prefetched = (epoch_iterator, prefetch(epoch_iterator))
        # The Trainer treats the inputs as a mapping.
        steps = [{"step": step.to(device)} for step in itertools.islice(self._prefetched[1], num_batches)]
        return steps, None

    def training_step(self, model: nn.Module, inputs: dict[str, Inputs], num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        """Forward and backward of one step; afterwards all processes have the gradient of the whole step."""
        self.model.train()
        self._pace.begin()
        progress = Progress(self.state.global_step, float(self.state.epoch or 0.0), self.state.max_steps)
        values = self.step.run(inputs["step"], progress, self.accelerator.backward)
        if processes.count() > 1 and not self.step.sharded:
            processes.add_gradients([one for one in self.model.parameters() if one.requires_grad])
        for name, value in values.items():
            self._terms.setdefault(name, []).append(value.detach().float())
        self._surplus.after_step()
        self._pace.add(inputs["step"].texts)
        return values["loss"].detach()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the means of the loss and of its terms since the last time, and append everything to the log file."""
        if "loss" in logs:
            # The Trainer's own mean forgets, when it resumes, the steps since the last time.
            logs |= {name: float(torch.stack(values).mean()) for name, values in self._terms.items()}
            self._terms.clear()
        measured = self._pace.measured() if "loss" in logs else {}
        everything = logs | measured
        super().log(everything, start_time)
        # The Trainer logs run times at the end, and equal trainings are to write equal files; so the pace has its own.
        if "train_runtime" not in logs and processes.is_main():
            logs = {name: value for name, value in everything.items() if name not in measured}
            self._append(self.log_file, logs)
            if measured:
                self._append(self.log_file.parent / PACE, measured)

    def _append(self, path: Path, values: dict[str, float]) -> None:
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": self.state.global_step, **values}) + "\n")

    def _get_output_dir(self, trial: Any) -> str:
        # Where a state is written; `states.complete` gives it its name.
        return str(Path(super()._get_output_dir(trial)) / states.WRITING)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if processes.is_main():
            folder = Path(self.args.output_dir)
            written = folder / states.WRITING / f"checkpoint-{self.state.global_step}"
            states.complete(written, folder, beside(folder.parent), processes=processes.count())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        if not processes.is_main():
            return
        # Not the Trainer's own way: T5 and tied heads share tensors, which safetensors' plain call refuses.
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.model, folder / WEIGHTS)
        terms = {name: torch.stack(values).tolist() for name, values in self._terms.items()}
        (folder / _TERMS).write_text(json.dumps(terms), encoding="utf-8")

    def _save_rng_state(self, output_dir: str) -> None:
        # What is written next completes the state, so the files of all processes must exist by then.
        with processes.together():
            super()._save_rng_state(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        with _loading(folder):
            if not self.step.sharded:  # then they were read before they were divided
                load_weights(model or self.model, folder / WEIGHTS)
            do = "Start the training anew, without --resume."
            terms = artifacts.read_document(folder / _TERMS, dict[str, list[float]], do=do, nan=True)
            self._terms = {name: list(torch.tensor(values, device=self.args.device)) for name, values in terms.items()}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights; if they are divided, after the main process has received them."""
        if not self.step.sharded:
            super().save_model(output_dir, _internal_call)
            return
        with sharding.whole(self.model):
            super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.step.sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        sharding.save_optimizer(self.model, self.optimizer, Path(output_dir) / _OPTIMIZER)
        if processes.is_main():
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / _SCHEDULER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _loading(checkpoint):
            if self.step.sharded and checkpoint is not None:
                folder = Path(checkpoint)
                sharding.load_optimizer(self.model, self.optimizer, folder / _OPTIMIZER)
                self.lr_scheduler.load_state_dict(torch.load(folder / _SCHEDULER, weights_only=True))
            else:
                super()._load_optimizer_and_scheduler(checkpoint)

    def _has_mixed_mesh_grads(self, model: nn.Module) -> bool:
        # The norm of divided gradients is computed as it is for gradients of several kinds.
        return self.step.sharded or super()._has_mixed_mesh_grads(model)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with _loading(checkpoint):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _loading(checkpoint):
            super()._load_rng_state(checkpoint)


@contextmanager
def _loading(state: str | Path | None) -> Iterator[None]:
    """Name the state whose files are whole, and do not fit."""
    try:
        yield
    except (RetrievalkitError, OSError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        msg = f"the state '{state}' does not fit this training ({reason}). Train without --resume."
        raise ArtifactError(msg) from error


class EpochEnds(transformers.TrainerCallback):
    """Tells sampler and step where an epoch begins or ends, and has the state judged on the dev questions.

    All of it happens before the Trainer saves, so that a training resumed from there has not missed an epoch.

    Args:
        trainer: The trainer it is added to.
        folder: The folder that is trained in.
        bar: Shows what the step says.
        best: Judges the state, in the process that does so.
    """

    def __init__(self, trainer: StepTrainer, folder: Path, bar: Bar, best: BestState | None) -> None:
        self.trainer = trainer
        self.folder = folder
        self.bar = bar
        self.best = best

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Set the epoch of the sampler, also after resuming in the middle of it."""
        self.trainer.sampler.epoch = state.global_step // len(self.trainer.sampler)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Do what is due if an epoch, or the training, ends with this step."""
        epochs, rest = divmod(state.global_step, len(self.trainer.sampler))
        last = state.global_step == state.max_steps
        if rest and not last:
            return
        # The Trainer takes any log line for that of this step.
        should_log = control.should_log
        if not last:
            self.trainer.step.end_epoch(epochs, self.folder, self.trainer.log, self.bar.say)
        if self.best is not None:
            self.best.judge((state.global_step - 1) // len(self.trainer.sampler), self.trainer.log)
        control.should_log = should_log


def trainer_arguments(options: LoopOptions, folder: Path, steps: int, run: str) -> transformers.TrainingArguments:
    """The arguments of Hugging Face's trainer: AdamW, linear warm-up and decay, when to log and to save.

    Args:
        options: Options of the training.
        folder: Folder for the states.
        steps: Steps of the whole training.
        run: What trackers call the training.
    """
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.batch_size,
        max_steps=steps,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        adam_epsilon=options.adam_epsilon,
        max_grad_norm=options.max_gradient_norm,
        lr_scheduler_type="linear",
        warmup_steps=int(options.warmup_ratio * steps),
        logging_steps=options.logging_steps or min(10, max(1, steps // 20)),
        save_strategy="epoch" if options.save_steps is None else "steps",
        save_steps=options.save_steps or 500,
        report_to=[],  # the callbacks are added where the training writes
        run_name=run,
        disable_tqdm=True,
        remove_unused_columns=False,
        fp16=options.precision == "fp16",
        use_cpu=not torch.cuda.is_available(),
        ddp_backend=processes.backend(),
        # Each process draws its own dropout.
        seed=options.seed + processes.rank(),
    )
    # The Trainer would split our steps over the threads of several GPUs, and wrongly.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def trackers(folder: Path, names: str) -> list[transformers.TrainerCallback]:
    """The callbacks that log for TensorBoard, if that is installed, and for other trackers.

    Args:
        folder: Where TensorBoard's files go.
        names: Names as `report_to` of the Trainer takes them, with commas: wandb,mlflow.

    Raises:
        InputError: A tracker is unknown, not installed or not set up.
    """
    known = transformers.integrations.integration_utils.INTEGRATION_TO_CALLBACK
    wanted = [name for name in map(str.strip, names.split(",")) if name]
    if "tensorboard" not in wanted and importlib.util.find_spec("tensorboard") is not None:
        wanted.append("tensorboard")
    found = []
    for name in wanted:
        check_choice("tracker", name, sorted(known))
        try:
            callback = known[name]()
        except (RuntimeError, ImportError) as error:
            raise MissingDependencyError(name, f"--report-to {name}") from error
        if name == "tensorboard":
            callback.logging_dir = str(folder)
        found.append(callback)
    return found
