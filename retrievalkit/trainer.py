"""One training step and its surroundings, on the Hugging Face Trainer: the only trainer, for every method.

The Trainer brings the optimiser, the schedule, clipping, checkpoints, resuming and logging. What is ours: where the
texts of a step come from, how they are encoded (in batches of like length, or chunk by chunk with cached gradients),
that the loss sees representations, and that several processes share a step (`retrievalkit.processes`).
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from retrievalkit import processes
from retrievalkit.contracts import SIDES, Batch, LossValue, Progress, Representation, Side, Text
from retrievalkit.data.batches import prefetch, token_budget_batches
from retrievalkit.data.sampling import ExampleSampler, StepAssembler
from retrievalkit.gradcache import Chunk, cached_step, plain_step
from retrievalkit.objective import Objective, load_weights, save_weights
from retrievalkit.precision import Precision, autocast
from retrievalkit.retriever import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, Retriever

_UNLIMITED = 1 << 60
WEIGHTS = "model.safetensors"
_TERMS = "terms.json"


@dataclass(frozen=True)
class StepInputs:
    """A step that is ready for the model: tokenised, padded, in chunks.

    Attributes:
        chunks: The queries and documents that this process encodes, in batches of like length. Their rows are counted
            among these.
        hands: Which rows of the step's queries and documents each process encodes.
        positives: (Q,) long: the document row that answers each query.
        ignore: (Q, D) bool, or None.
        teacher: (Q, D) float, NaN where there is no score, or None.
    """

    chunks: list[Chunk]
    hands: Mapping[Side, list[list[int]]]
    positives: Tensor
    ignore: Tensor | None
    teacher: Tensor | None

    def to(self, device: torch.device) -> StepInputs:
        """The same step on another device."""
        chunks = [replace(chunk, batch=chunk.batch.to(device)) for chunk in self.chunks]
        ignore = None if self.ignore is None else self.ignore.to(device)
        teacher = None if self.teacher is None else self.teacher.to(device)
        return replace(self, chunks=chunks, positives=self.positives.to(device), ignore=ignore, teacher=teacher)


class StepCollator:
    """Makes StepInputs of the positions of a step's examples.

    Args:
        sampler: Draws positives and negatives.
        assembler: Puts texts and rows together.
        retriever: Tokenises.
        batch_tokens: Most tokens of a chunk, padding included.
        micro_batch_size: Most texts of a chunk, or None where the token budget decides.
    """

    def __init__(
        self,
        sampler: ExampleSampler,
        assembler: StepAssembler,
        retriever: Retriever,
        *,
        batch_tokens: int,
        micro_batch_size: int | None,
    ) -> None:
        self.sampler = sampler
        self.assembler = assembler
        self.retriever = retriever
        self.batch_tokens = batch_tokens
        self.micro_batch_size = micro_batch_size

    def __call__(self, keys: Sequence[tuple[int, int]]) -> StepInputs:
        """The inputs of a step, from its (epoch, position) pairs."""
        step = self.assembler.assemble([self.sampler.draw(position, epoch) for epoch, position in keys])
        texts: dict[Side, list[Text]] = {"query": step.queries, "document": step.documents}
        hands = {side: self._dealt(texts[side]) for side in SIDES}
        chunks = [chunk for side in SIDES for chunk in self._chunks(texts[side], side, hands[side][processes.rank()])]
        return StepInputs(chunks, hands, *step.tensors())

    def _dealt(self, texts: Sequence[Text]) -> list[list[int]]:
        # By characters: a process tokenises its own texts alone.
        return processes.deal([len(title) + len(body) for title, body in texts], processes.count())

    def _chunks(self, texts: Sequence[Text], side: Side, hand: Sequence[int]) -> Iterator[Chunk]:
        tower = self.retriever.tower(side)
        # A process without a text encodes one for its shape.
        texts = [texts[row] for row in hand] or texts[:1]
        token_ids = tower.tokenize(texts, side)
        lengths = [len(ids) for ids in token_ids]
        if self.micro_batch_size is None:
            groups = token_budget_batches(lengths, self.batch_tokens)
        else:
            groups = token_budget_batches(lengths, _UNLIMITED, most=self.micro_batch_size)
        for rows in groups:
            yield Chunk(side, rows, tower.collate([token_ids[row] for row in rows], side))


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


def _add_gradients(objective: Objective) -> None:
    # The gradient of the loss's own weights is whole in every process.
    for parameter in objective.loss.parameters():
        if parameter.grad is not None:
            parameter.grad /= processes.count()
    processes.add_gradients([parameter for parameter in objective.parameters() if parameter.requires_grad])


class _EpochOfSampler(transformers.TrainerCallback):
    """Tells the sampler which epoch begins, also after a resume in its middle."""

    def __init__(self, trainer: RetrieverTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        sampler = self.trainer.step_sampler
        sampler.epoch = state.global_step // len(sampler)


def last_checkpoint(folder: Path) -> Path | None:
    """The last state that the Trainer saved and finished saving."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    return next((path for path in found if _is_whole(path)), None)


def _is_whole(checkpoint: Path) -> bool:
    # The Trainer writes its own state last.
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def train_batch_tokens(device: torch.device) -> int:
    """The default token budget of a chunk in training."""
    return CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS
