"""The program behind `rkit train`: examples and a pretrained model in, a checkpoint folder out.

    rkit train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output DIR [--dev DEV] [--pooler NAME]

A killed training goes on with `--resume`: its state lies beside the output, in a hidden folder, until it is whole.
The folder holds `training.jsonl` too, the log, and `logs/` for TensorBoard where that is installed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from retrievalkit import artifacts, registry
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import Example, Examples, check_examples, check_teacher, read_examples
from retrievalkit.data.sampling import ExampleSampler, StepAssembler
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import ArtifactError, InputError, UnsupportedError
from retrievalkit.precision import default_device, resolve_precision
from retrievalkit.quiet import quiet
from retrievalkit.retriever import NOT_WEIGHTS, Retriever, describe
from retrievalkit.selection import Best, DevSet
from retrievalkit.trainer import (
    Objective,
    RetrieverTrainer,
    StepCollator,
    last_checkpoint,
    load_weights,
    save_weights,
    train_batch_tokens,
)

LOG = "training.jsonl"
LOGS = "logs"
_TRAINER, _BEST, _SELECTION, _OPTIONS = "trainer", "best.safetensors", "selection.json", "options.json"


@dataclass(kw_only=True, frozen=True)
class TrainingOptions:
    """How a retriever is trained.

    Args:
        epochs: Passes over the examples.
        limit: Train on so many of the examples, drawn with the seed; None = on all.
        batch_size: Queries of a step.
        micro_batch_size: Texts that are encoded at once with gradient caching, which bounds memory; None = no caching.
        negatives: Hard negatives of each query in a step, drawn anew each epoch.
        negative_pool: Only the first so many negatives of an example are drawn from; None = all.
        positive: The "first" of an example's positives, or a "random" one each epoch.
        sampling: How negatives are drawn: "random", or Tevatron's sliding "window".
        false_negatives: "mask" other known positives and duplicate texts of the positive, or "keep" them as negatives,
            as the papers' own code does.
        learning_rate: Highest learning rate; linear warm-up and decay.
        warmup_ratio: Share of the steps that warm up.
        weight_decay: Of all weights but biases and layer norms.
        adam_epsilon: Of the optimiser.
        max_gradient_norm: Gradients are clipped to this global norm. The gradient is that of the whole batch: the
            papers that train on R processes with an average over them clip, in effect, at R times their figure.
        rank_from: First epoch, counted from 0, at whose end dev questions are judged by the average rank of the gold
            passage and not by the loss.
        batch_tokens: Most tokens that are encoded at once where there is no micro batch size; None = by the device.
        precision: What to compute in; "auto" is bf16 where the hardware multiplies in it.
        logging_steps: Steps between two lines of the log.
        save_steps: Steps between two states to resume from; None = once an epoch.
        seed: Of initialisation, dropout, order and draws.
    """

    epochs: float = 3
    limit: int | None = None
    batch_size: int = 32
    micro_batch_size: int | None = None
    negatives: int = 1
    negative_pool: int | None = None
    positive: Literal["first", "random"] = "first"
    sampling: Literal["random", "window"] = "random"
    false_negatives: Literal["mask", "keep"] = "mask"
    learning_rate: float = 2e-5
    warmup_ratio: float = 0.05
    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8
    max_gradient_norm: float = 2.0
    rank_from: int = 30
    batch_tokens: int | None = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    logging_steps: int = 10
    save_steps: int | None = None
    seed: int = 42

    def check(self) -> None:
        """Refuse values that no training can have.

        Raises:
            InputError: Names the value.
        """
        for low, names in _LEAST.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and not low <= value < math.inf:
                    msg = f"{name} is {value}, and must be at least {low}."
                    raise InputError(msg)
        if self.warmup_ratio > 1:
            msg = f"warmup_ratio is {self.warmup_ratio}, and must be at most 1: it is a share of all steps."
            raise InputError(msg)
        if self.micro_batch_size is not None and self.batch_tokens is not None:
            msg = "batch_tokens has no effect where micro_batch_size is set. Leave one of them out."
            raise InputError(msg)
        if self.batch_size == 1 and self.negatives == 0:
            msg = "batch_size 1 with negatives 0 has nothing to contrast a positive with. Raise one of them."
            raise InputError(msg)


_LEAST = {
    0: (
        *("epochs", "negatives", "learning_rate", "warmup_ratio", "weight_decay", "adam_epsilon"),
        *("max_gradient_norm", "rank_from", "seed"),
    ),
    1: ("batch_size", "micro_batch_size", "negative_pool", "batch_tokens", "limit", "logging_steps", "save_steps"),
}


def train(
    *,
    model: str,
    examples: str,
    output: str | Path,
    corpus: str | None = None,
    dev: str | None = None,
    encoder: str = "transformer",
    pooler: str = "cls",
    loss: str | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    pooler_options: Mapping[str, Any] | None = None,
    loss_options: Mapping[str, Any] | None = None,
    separate_towers: bool = False,
    options: TrainingOptions | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train a retriever and write a checkpoint folder.

    Args:
        model: Name or folder of the pretrained model to start from.
        examples: Training examples, in any known format.
        output: The checkpoint folder to write.
        corpus: The passages that the examples name; None where the examples bring them along.
        dev: Held-out examples, by which the best state is chosen; None keeps the last state.
        encoder: Registered name of the encoder.
        pooler: Registered name of the pooler.
        loss: Registered name of the loss; None = the pooler's default.
        encoder_options: Options of the encoder.
        pooler_options: Options of the pooler.
        loss_options: Options of the loss.
        separate_towers: Whether queries and documents get an encoder each.
        options: How to train.
        resume: Go on with a training to the same output that was cut off; one that was not is left as it is.
        overwrite: Replace an output folder that is there already.

    Returns:
        The manifest of the checkpoint.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    options = options or TrainingOptions()
    options.check()
    if not resume:
        artifacts.check_output(output, overwrite=overwrite)
    data = _Data.read(examples, corpus, dev)
    retriever = Retriever.create(
        model,
        encoder=encoder,
        pooler=pooler,
        encoder_options=encoder_options,
        pooler_options=pooler_options,
        separate_towers=separate_towers,
        seed=options.seed,
    )
    loss = loss or retriever.pooler.default_loss
    transformers.set_seed(options.seed)
    objective = Objective(retriever, registry.create("loss", loss, **(loss_options or {})))
    if objective.loss.needs_teacher:
        check_teacher(data.examples)
    described = {
        **retriever.description,
        "loss": describe("loss", loss, loss_options or {}),
        "training": asdict(options),
    }
    inputs = {"model": artifacts.describe_input(model, retriever.fingerprint), **data.inputs}
    identity = {"options": described, "inputs": inputs}
    if resume and (finished := _finished(output, identity)):
        return finished
    artifacts.check_output(output, overwrite=overwrite)
    _prepare_partial(output, identity, resume=resume)
    with artifacts.write_folder(output, overwrite=overwrite, keep_partial=True) as staging:
        steps = _run(objective, data, options, staging)
        retriever.save(staging)
        shutil.rmtree(staging / _TRAINER, ignore_errors=True)
        for name in (_BEST, _OPTIONS):
            (staging / name).unlink(missing_ok=True)
        manifest = artifacts.write_manifest(
            staging,
            "checkpoint",
            command="train",
            options=described,
            inputs=inputs,
            counts={"examples": len(_limited(data.examples.rows, options)), "steps": steps},
            fingerprint=artifacts.fingerprint_folder(staging, skip=NOT_WEIGHTS),
        )
        (staging / "README.md").write_text(_model_card(manifest), encoding="utf-8")
    return manifest


@dataclass
class _Data:
    """What is trained on: examples, held-out examples, and where the texts are."""

    examples: Examples
    dev: Examples | None
    passage: Callable[[str], Passage]
    inputs: dict[str, dict[str, str]]

    @classmethod
    def read(cls, examples: str, corpus: str | None, dev: str | None) -> _Data:
        opened = open_corpus(corpus) if corpus else None
        read = [_read(source, opened, split) for source, split in ((examples, "train"), (dev, "dev")) if source]
        passages = {one: passage for part in read for one, passage in part.passages.items()}
        inputs = {
            name: artifacts.describe_input(source, fingerprint(source))
            for name, source in (("examples", examples), ("corpus", corpus), ("dev", dev))
            if source
        }

        def passage(one: str) -> Passage:
            # The corpus comes first: it is what will be indexed.
            return opened.get(one) if opened is not None and one in opened else passages[one]

        return cls(read[0], read[1] if len(read) > 1 else None, passage, inputs)


def _read(source: str, corpus: Corpus | None, split: str) -> Examples:
    examples = read_examples(source, corpus=corpus, split=split)
    check_examples(examples, corpus)
    if not examples.rows:
        msg = f"'{source}' has no example with a positive passage, so there is nothing to train on."
        raise InputError(msg)
    return examples


def _run(objective: Objective, data: _Data, options: TrainingOptions, staging: Path) -> int:
    """Train and return the number of steps. Where this fails, only what can be resumed is kept."""
    try:
        with quiet(), artifacts.full_disk_named(staging):
            return _Run(objective, data, options, staging).train()
    except BaseException:
        resumable = last_checkpoint(staging / _TRAINER)
        if resumable is None:
            shutil.rmtree(staging, ignore_errors=True)
        else:
            for folder in set(resumable.parent.iterdir()) - {resumable}:
                shutil.rmtree(folder, ignore_errors=True)
        raise


def _limited(rows: Sequence[Example], options: TrainingOptions) -> Sequence[Example]:
    if options.limit is None or options.limit >= len(rows):
        return rows
    kept = random.Random(f"limit {options.seed}").sample(range(len(rows)), options.limit)
    return [rows[position] for position in sorted(kept)]


class _Run:
    """One training: builds the Trainer, runs it, and leaves the chosen state in the objective."""

    def __init__(self, objective: Objective, data: _Data, options: TrainingOptions, staging: Path) -> None:
        self.objective = objective
        self.options = options
        self.staging = staging
        rows = _limited(data.examples.rows, options)
        device = default_device()
        sampler = ExampleSampler(
            rows,
            negatives=options.negatives,
            pool=options.negative_pool,
            positive=options.positive,
            sampling=options.sampling,
            seed=options.seed,
        )
        mask = options.false_negatives == "mask"
        assembler = StepAssembler(data.passage, rows, mask_false_negatives=mask)
        collator = StepCollator(
            sampler,
            assembler,
            objective.retriever,
            batch_tokens=options.batch_tokens or train_batch_tokens(device),
            micro_batch_size=options.micro_batch_size,
        )
        self.bar = _Bar()
        callbacks: list[transformers.TrainerCallback] = [self.bar, *_tensorboard(staging / LOGS)]
        if data.dev is not None:
            dev = DevSet(
                data.dev.rows,
                data.passage,
                batch_size=options.batch_size,
                rank_from=options.rank_from,
                mask_false_negatives=mask,
            )
            callbacks.append(_KeepBest(self, dev))
        self.trainer = RetrieverTrainer(
            objective,
            _arguments(options, staging / _TRAINER, len(rows)),
            collator=collator,
            batch_size=options.batch_size,
            precision=resolve_precision(options.precision, device),
            cache_gradients=options.micro_batch_size is not None,
            log_file=staging / LOG,
            callbacks=callbacks,
        )

    def train(self) -> int:
        """Train (on from the last saved state, where there is one); returns the number of steps."""
        if self.options.epochs == 0:
            return 0
        last = last_checkpoint(self.staging / _TRAINER)
        _cut_log(self.staging / LOG, last)
        try:
            self.trainer.train(resume_from_checkpoint=str(last) if last else None)
        finally:
            self.bar.progress.stop()
        if (self.staging / _BEST).exists():
            load_weights(self.objective, self.staging / _BEST)
        return int(self.trainer.state.global_step)


class _KeepBest(transformers.TrainerCallback):
    """Judges the state after each epoch on the dev questions, and stores the best one.

    It does so before the Trainer saves, so that a training which is resumed from there has not missed an epoch.
    """

    def __init__(self, run: _Run, dev: DevSet) -> None:
        self.run = run
        self.dev = dev

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        steps_an_epoch = len(self.run.trainer.step_sampler)
        if state.global_step % steps_an_epoch == 0 or state.global_step == state.max_steps:
            should_log = control.should_log
            self._judge(epoch=(state.global_step - 1) // steps_an_epoch)
            # Logging what was judged counts, for the Trainer, as the logging of this step.
            control.should_log = should_log

    def _judge(self, epoch: int) -> None:
        run, folder = self.run, self.run.staging
        objective = run.objective
        measure, value = self.dev.measure(objective.retriever, objective.loss, epoch, run.trainer.precision)
        run.trainer.log({f"dev_{measure}": value})
        path = folder / _SELECTION
        best = Best(**json.loads(path.read_text())) if path.exists() else Best()
        if best.improve(epoch, measure, value):
            with artifacts.write_file(folder / _BEST) as staging:
                save_weights(objective, staging)
            with artifacts.write_file(path) as staging:
                staging.write_text(json.dumps(best.as_dict()) + "\n", encoding="utf-8")


class _Bar(transformers.TrainerCallback):
    """A progress bar on standard error."""

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(stderr=True),
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.task = self.progress.add_task("training", total=state.max_steps, completed=state.global_step, status="")
        self.progress.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.progress.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        shown = {name: value for name, value in (logs or {}).items() if name == "loss" or name.startswith("dev_")}
        if shown:
            self.progress.update(self.task, status=" ".join(f"{name} {value:.4f}" for name, value in shown.items()))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.progress.stop()


def _arguments(options: TrainingOptions, folder: Path, examples: int) -> transformers.TrainingArguments:
    steps_an_epoch = max(1, examples // options.batch_size + (examples % options.batch_size > 1))
    total = math.ceil(steps_an_epoch * options.epochs)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.batch_size,
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        adam_epsilon=options.adam_epsilon,
        max_grad_norm=options.max_gradient_norm,
        lr_scheduler_type="linear",
        warmup_steps=int(options.warmup_ratio * total),
        logging_steps=options.logging_steps,
        save_strategy="epoch" if options.save_steps is None else "steps",
        save_steps=options.save_steps or 500,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        fp16=options.precision == "fp16",
        use_cpu=not torch.cuda.is_available(),
        seed=options.seed,
    )
    if arguments.world_size > 1:
        # Every process would train on the same steps, and their weights would drift apart.
        msg = f"training runs in one process, and was started in {arguments.world_size}. Start it without torchrun."
        raise UnsupportedError(msg)
    # The Trainer would split our steps over the threads of several GPUs, and wrongly.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _tensorboard(folder: Path) -> list[transformers.TrainerCallback]:
    """The callback that logs for TensorBoard, where that is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return []
    callback = transformers.integrations.TensorBoardCallback()
    callback.logging_dir = str(folder)
    return [callback]


def _finished(output: str | Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of the very same training, where that has come to its end."""
    if artifacts.kind_of(output) != "checkpoint":
        return None
    manifest = artifacts.read_manifest(output)
    same = json.loads(json.dumps(identity, default=str)) == {name: manifest.get(name) for name in identity}
    return manifest if same else None


def _prepare_partial(output: str | Path, identity: dict[str, Any], *, resume: bool) -> None:
    """Keep what a cut-off training left only if it was the same training and is to be resumed."""
    partial = artifacts.partial_folder(output)
    text = json.dumps(identity, sort_keys=True, default=str)
    if resume and (partial / _OPTIONS).exists():
        if (partial / _OPTIONS).read_text(encoding="utf-8") != text:
            msg = (
                f"the training to '{output}' that was cut off had other options or other data, so it cannot be "
                f"resumed. Repeat its command with --resume, or start anew without."
            )
            raise ArtifactError(msg)
        return
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / _OPTIONS).write_text(text, encoding="utf-8")


def _cut_log(path: Path, checkpoint: Path | None) -> None:
    """Drop the lines of the log that a resumed training will write again."""
    if not path.exists():
        return
    step = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
    # The last line may have been cut off.
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(line for line in whole if json.loads(line)["step"] <= step), encoding="utf-8")


def _model_card(manifest: Mapping[str, Any]) -> str:
    options = manifest["options"]
    training = options["training"]
    return f"""---
library_name: retrievalkit
base_model: {options["model"]}
tags: [retrieval, {options["pooler"]["name"]}]
---
# A {options["pooler"]["name"]} retriever

A text retriever trained with retrievalkit {manifest["versions"].get("retrievalkit", "")}.

| | |
|---|---|
| started from | {options["model"]} |
| encoder | {options["encoder"]["name"]} {options["encoder"]["options"]} |
| towers | {"separate" if options["separate_towers"] else "shared"} |
| pooler | {options["pooler"]["name"]} {options["pooler"]["options"]} |
| loss | {options["loss"]["name"]} {options["loss"]["options"]} |
| examples | {manifest["counts"]["examples"]} from {manifest["inputs"]["examples"]["path"]} |
| epochs, batch size, learning rate | {training["epochs"]}, {training["batch_size"]}, {training["learning_rate"]} |

Encode a corpus and search it:

    rkit encode CHECKPOINT CORPUS --side document --output vectors
    rkit index vectors --indexer flat --output index
    rkit search index --query "..."
"""
