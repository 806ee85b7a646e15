"""One training step and its surroundings, on the Hugging Face Trainer: the only trainer, for every method.

The Trainer brings the optimiser, the schedule, clipping, checkpoints, resuming and logging. What is ours: where the
texts of a step come from, how they are encoded (in batches of like length, or chunk by chunk with cached gradients),
that the loss sees representations, and that several processes share a step (`retrievalkit.train.processes`).
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from retrievalkit.contracts import Batch, LossValue, Progress, Representation, Side
from retrievalkit.model.batches import prefetch
from retrievalkit.model.precision import Precision, autocast
from retrievalkit.model.pretrained import load_weights, save_weights
from retrievalkit.train import processes
from retrievalkit.train.gradcache import cached_step, plain_step
from retrievalkit.train.objective import Objective
from retrievalkit.train.retriever_step import StepCollator, StepInputs, _add_gradients
from retrievalkit.train.sampling import ExampleSampler

WEIGHTS = "model.safetensors"

_TERMS = "terms.json"


class StepSampler(Sampler[list[tuple[int, int]]]):
    """The (epoch, position) pairs of each step, shuffled anew in each epoch; a last step of one example is dropped.

    Its length is the number of steps of an epoch.

    Args:
        sampler: Has the examples and their order.
        batch_size: Queries of a step, of all processes together.
    """

    def __init__(self, sampler: ExampleSampler, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.epoch = 0

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size)
        # One example alone has nothing to be contrasted with, unless that is all there is.
        return max(1, whole + (rest > 1))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order = self.sampler.order(self.epoch)
        for step in range(len(self)):
            positions = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield [(self.epoch, position) for position in positions]


class _Keys(Dataset[tuple[int, int]]):
    """Hands the sampler's keys through to the collator, which does the work for a whole step."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> tuple[int, int]:
        return key  # type: ignore[no-any-return]


class RetrieverTrainer(transformers.Trainer):
    """The Hugging Face Trainer with our step.

    Args:
        objective: Retriever and loss.
        arguments: Training arguments of transformers.
        collator: Makes the inputs of a step.
        step_sampler: Says which examples a step has.
        precision: What to compute in.
        cache_gradients: Whether to encode chunk by chunk with cached gradients.
        log_file: Where to append a line of JSON at each logging.
    """

    def __init__(
        self,
        objective: Objective,
        arguments: transformers.TrainingArguments,
        *,
        collator: StepCollator,
        step_sampler: StepSampler,
        precision: Precision,
        cache_gradients: bool,
        log_file: Path,
    ) -> None:
        self.collator = collator
        self.step_sampler = step_sampler
        self.precision = precision
        self.run_step = cached_step if cache_gradients else plain_step
        self.log_file = log_file
        self._terms: dict[str, list[Tensor]] = {}
        self._prefetched: tuple[Iterator[StepInputs], Iterator[StepInputs]] | None = None
        super().__init__(model=objective, args=arguments, callbacks=[_EpochOfSampler(self)])
        # The progress display is ours.
        self.remove_callback(transformers.PrinterCallback)

    def create_accelerator_and_postprocess(self) -> None:
        """As the Trainer does, but the model is not wrapped where there are several processes."""
        super().create_accelerator_and_postprocess()
        # DistributedDataParallel would take the mean of the gradients, and memory for that.
        self.accelerator.prepare_model = functools.partial(self.accelerator.prepare_model, evaluation_mode=True)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The steps of an epoch, which every process draws alike."""
        keys = _Keys(len(self.collator.sampler))
        return DataLoader(keys, batch_sampler=self.step_sampler, collate_fn=self.collator)

    def get_batch_samples(
        self, epoch_iterator: Iterator[StepInputs], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, StepInputs]], None]:
        """The next steps, which a thread prepares while the model computes."""
        if self._prefetched is None or self._prefetched[0] is not epoch_iterator:
            self._prefetched = (epoch_iterator, prefetch(epoch_iterator))
        # The Trainer looks into the inputs as into a mapping.
        steps = [{"step": step.to(device)} for step in itertools.islice(self._prefetched[1], num_batches)]
        return steps, None

    def training_step(self, model: nn.Module, inputs: dict[str, StepInputs], num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        """Forward and backward of one step; afterwards all processes have the gradient of the whole step."""
        objective: Objective = self.model  # type: ignore[assignment]
        objective.train()
        step = inputs["step"]

        def encode(batch: Batch, side: Side) -> Representation:
            with autocast(self.precision, batch.input_ids.device):
                representation: Representation = objective.retriever(batch, side)
            return representation

        def compare(queries: Representation, documents: Representation) -> LossValue:
            progress = Progress(self.state.global_step, float(self.state.epoch or 0.0), self.state.max_steps)
            if processes.count() > 1:
                queries = processes.gather(queries, step.hands["query"])
                documents = processes.gather(documents, step.hands["document"])
            with processes.same_draws(progress.step, queries.device):
                value: LossValue = objective.loss(
                    queries, documents, step.positives, progress, step.ignore, step.teacher
                )
            return value

        loss = self.run_step(encode, step.chunks, compare, self.accelerator.backward)
        if processes.count() > 1:
            _add_gradients(objective)
        for name, term in (*loss.terms.items(), ("loss", loss.total)):
            self._terms.setdefault(name, []).append(term.detach().float())
        return loss.total.detach()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the means of the loss and of its terms since the last time, and append everything to the log file."""
        if "loss" in logs:
            # The Trainer's own mean forgets, when it resumes, the steps since the last time.
            logs |= {name: float(torch.stack(values).mean()) for name, values in self._terms.items()}
            self._terms.clear()
        super().log(logs, start_time)
        # The Trainer's last words are times, and the file is to be the same whenever the training is.
        if "train_runtime" not in logs and processes.is_main():
            with self.log_file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": self.state.global_step, **logs}) + "\n")

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        # Not the Trainer's own way: T5 and tied heads share tensors, which safetensors' plain call refuses.
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.model, folder / WEIGHTS)
        terms = {name: torch.stack(values).tolist() for name, values in self._terms.items()}
        (folder / _TERMS).write_text(json.dumps(terms), encoding="utf-8")

    def _save_rng_state(self, output_dir: str) -> None:
        # What is written next makes the state a whole one, so the files of all processes have to be there.
        with processes.together():
            super()._save_rng_state(output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        load_weights(model or self.model, folder / WEIGHTS)
        terms = json.loads((folder / _TERMS).read_text(encoding="utf-8"))
        self._terms = {name: list(torch.tensor(values, device=self.args.device)) for name, values in terms.items()}


class _EpochOfSampler(transformers.TrainerCallback):
    """Tells the sampler which epoch begins, also after a resume in its middle."""

    def __init__(self, trainer: RetrieverTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        sampler = self.trainer.step_sampler
        sampler.epoch = state.global_step // len(sampler)


def trainer_arguments(options: Any, folder: Path, steps: int, **own: Any) -> transformers.TrainingArguments:
    """What Hugging Face's trainer is told: AdamW, linear warm-up and decay, a state once an epoch or so many steps.

    Args:
        options: Of any training: batch_size, learning_rate, weight_decay, adam_epsilon, max_gradient_norm,
            warmup_ratio, logging_steps, save_steps, precision, seed.
        folder: For the states.
        steps: How many there are, all epochs together.
        own: Arguments of one kind of training, such as how long it is.
    """
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        adam_epsilon=options.adam_epsilon,
        max_grad_norm=options.max_gradient_norm,
        lr_scheduler_type="linear",
        warmup_steps=int(options.warmup_ratio * steps),
        logging_steps=options.logging_steps,
        save_strategy="epoch" if options.save_steps is None else "steps",
        save_steps=options.save_steps or 500,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        fp16=options.precision == "fp16",
        use_cpu=not torch.cuda.is_available(),
        **({"seed": options.seed} | own),
    )
    # The Trainer would split our steps over the threads of several GPUs, and wrongly.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def tensorboard(folder: Path) -> list[transformers.TrainerCallback]:
    """The callback that logs for TensorBoard, where that is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return []
    callback = transformers.integrations.TensorBoardCallback()
    callback.logging_dir = str(folder)
    return [callback]
