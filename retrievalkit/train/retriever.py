"""The program behind `rkit train`: examples and a pretrained model in, a checkpoint folder out.

    rkit train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output DIR [--dev DEV] [--pooler NAME]

A killed training goes on with `--resume`: its state lies beside the output, in a hidden folder, until it is whole.
The folder holds `training.jsonl` too, the log, and `logs/` for TensorBoard where that is installed.

Several GPUs, or several processes of a CPU, share each step of `--batch-size` queries, and train what one would:

    torchrun --nproc-per-node 2 --no-python rkit train ...
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import transformers

from retrievalkit import artifacts
from retrievalkit.artifacts import NOT_WEIGHTS
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import Example, Examples, against_corpus, check_examples, check_teacher, read_examples
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import InputError, OptionError
from retrievalkit.model.precision import default_device, resolve_precision
from retrievalkit.model.pretrained import load_weights, quiet
from retrievalkit.model.retriever import Retriever
from retrievalkit.train import processes
from retrievalkit.train.card import model_card
from retrievalkit.train.objective import Objective, create_loss, describe_loss
from retrievalkit.train.refresh import Negatives, RefreshNegatives, RefreshOptions
from retrievalkit.train.rehearsal import first_draws, rehearse
from retrievalkit.train.resume import (
    LOG,
    LOGS,
    OPTIONS,
    STATES,
    Bar,
    cut_log,
    finished,
    keep_resumable,
    last_checkpoint,
    prepare_partial,
    step_of,
)
from retrievalkit.train.retriever_step import StepCollator, train_batch_tokens
from retrievalkit.train.sampling import ExampleSampler, StepAssembler, limited
from retrievalkit.train.selection import BEST, DevSet, KeepBest
from retrievalkit.train.trainer import WEIGHTS, RetrieverTrainer, StepSampler, tensorboard, trainer_arguments


@dataclass(kw_only=True, frozen=True)
class TrainingOptions:
    """How a retriever is trained.

    Args:
        epochs: Passes over the examples.
        limit: Train on so many of the examples, drawn with the seed; None = on all.
        batch_size: Queries of a step, of all processes together.
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
    refresh: RefreshOptions | None = None,
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
        loss: Registered name of the loss, or several with plus signs, whose sum it is; None = the pooler's default.
        encoder_options: Options of the encoder.
        pooler_options: Options of the pooler.
        loss_options: Options of the loss; of a sum, loss -> its options.
        separate_towers: Whether queries and documents get an encoder each.
        options: How to train.
        refresh: When the model as it is then mines new negatives, and which; None = never.
        resume: Go on with a training to the same output that was cut off; one that was not is left as it is.
        overwrite: Replace an output folder that is there already.

    Returns:
        The manifest of the checkpoint.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    options = options or TrainingOptions()
    processes.join()
    with processes.together():
        options.check()
        if refresh is not None:
            refresh.check_for(epochs=options.epochs, negatives=options.negatives)
        if not resume:
            artifacts.check_output(output, overwrite=overwrite)
        data = _Data.read(examples, corpus, dev, options, refresh)
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
        objective = Objective(retriever, create_loss(loss, loss_options or {}))
        described = {
            **retriever.description,
            "loss": describe_loss(loss, loss_options or {}),
            "training": asdict(options),
            **({} if refresh is None else {"refresh": asdict(refresh)}),
        }
        inputs = {"model": artifacts.describe_input(model, retriever.fingerprint), **data.inputs}
        identity = {"options": described, "inputs": inputs}
        whole = finished(output, "checkpoint", identity) if resume else None
        if whole is None:
            artifacts.check_output(output, overwrite=overwrite)
            _rehearse(objective, data, options, described)
    # As the main process saw it: it alone writes, and the others may have looked a moment later.
    if whole := processes.from_main(whole):
        return whole
    with processes.together():
        if processes.is_main():
            prepare_partial(output, identity, resume=resume)
    with _staging(output, overwrite=overwrite) as staging:
        steps = _run(objective, data, options, staging)
        manifest: dict[str, Any] = {}
        if processes.is_main():
            retriever.save(staging)
            shutil.rmtree(staging / STATES, ignore_errors=True)
            for name in (BEST, OPTIONS):
                (staging / name).unlink(missing_ok=True)
            manifest = artifacts.write_manifest(
                staging,
                "checkpoint",
                command="train",
                options=described,
                inputs=inputs,
                counts={"examples": len(data.sampler), "steps": steps},
                fingerprint=artifacts.fingerprint_folder(staging, skip=NOT_WEIGHTS),
                **({"processes": processes.count()} if processes.count() > 1 else {}),
            )
            (staging / "README.md").write_text(model_card(manifest), encoding="utf-8")
    return processes.from_main(manifest)


@dataclass
class _Data:
    """What is trained on: examples, held-out examples, where the texts are, and what is mined anew."""

    examples: Examples
    sampler: ExampleSampler
    assembler: StepAssembler
    dev: DevSet | None
    inputs: dict[str, dict[str, str]]
    negatives: Negatives | None = None

    @classmethod
    def read(
        cls,
        examples: str,
        corpus: str | None,
        dev: str | None,
        options: TrainingOptions,
        refresh: RefreshOptions | None = None,
    ) -> _Data:
        opened = open_corpus(corpus) if corpus else None
        read = {split: _read(source, opened, split) for split, source in (("train", examples), ("dev", dev)) if source}
        passages = {one: passage for part in read.values() for one, passage in part.passages.items()}
        inputs = {
            name: artifacts.describe_input(source, fingerprint(source))
            for name, source in (("examples", examples), ("corpus", corpus), ("dev", dev))
            if source
        }

        def passage(one: str) -> Passage:
            # The corpus comes first: it is what will be indexed.
            return opened.get(one) if opened is not None and one in opened else passages[one]

        rows = limited(read["train"].rows, options.limit, options.seed)
        sampler = ExampleSampler(
            rows,
            negatives=options.negatives,
            pool=options.negative_pool,
            positive=options.positive,
            sampling=options.sampling,
            seed=options.seed,
        )
        mask = options.false_negatives == "mask"
        held_out = None
        if "dev" in read:
            held_out = DevSet(
                read["dev"].rows,
                passage,
                batch_size=options.batch_size,
                rank_from=options.rank_from,
                mask_false_negatives=mask,
            )
        assembler = StepAssembler(passage, rows, mask_false_negatives=mask)
        negatives = None if refresh is None else _negatives(read["train"], rows, opened, options, refresh)
        return cls(read["train"], sampler, assembler, held_out, inputs, negatives)


def _negatives(
    examples: Examples,
    rows: Sequence[Example],
    corpus: Corpus | None,
    options: TrainingOptions,
    refresh: RefreshOptions,
) -> Negatives:
    if corpus is None:
        msg = "--refresh-negatives mines passages of the corpus, and none was given. Give it: --corpus CORPUS"
        raise InputError(msg)
    known = limited(against_corpus(examples, corpus).rows, options.limit, options.seed)
    return Negatives(rows, known, corpus, refresh, options.precision)


def _read(source: str, corpus: Corpus | None, split: str) -> Examples:
    examples = read_examples(source, corpus=corpus, split=split)
    check_examples(examples, corpus)
    if not examples.rows:
        msg = f"'{source}' has no example with a positive passage, so there is nothing to train on."
        raise InputError(msg)
    return examples


def _rehearse(objective: Objective, data: _Data, options: TrainingOptions, described: Mapping[str, Any]) -> None:
    """Refuse, before anything is written, what would fail in the first step or when dev questions are judged."""
    device = default_device()
    precision = resolve_precision(options.precision, device)
    if data.negatives is not None:
        if objective.loss.needs_teacher:
            msg = (
                "the loss learns from a teacher's scores, which negatives that are mined during training do not have. "
                "Leave --refresh-negatives out, or choose another --loss."
            )
            raise OptionError(msg)
        data.negatives.check()
    if objective.loss.needs_teacher:
        check_teacher(data.examples, negatives=options.negatives)
    objective.to(device)
    step = data.assembler.assemble(first_draws(data.sampler))
    rehearse(objective, step, described, precision=precision, dev=data.dev)


def _staging(output: str | Path, *, overwrite: bool) -> AbstractContextManager[Path]:
    """The folder to train in, which the main process gives its name at the end."""
    if processes.is_main():
        return artifacts.write_folder(output, overwrite=overwrite, keep_partial=True)
    return nullcontext(artifacts.partial_folder(output))


def _run(objective: Objective, data: _Data, options: TrainingOptions, staging: Path) -> int:
    """Train and return the number of steps. Where this fails, only what can be resumed is kept."""
    try:
        with quiet(), artifacts.full_disk_named(staging):
            return _Run(objective, data, options, staging).train()
    except BaseException:
        if processes.is_main() and not keep_resumable(staging):
            shutil.rmtree(staging, ignore_errors=True)
        raise


class _Run:
    """One training: builds the Trainer, runs it, and leaves the chosen state in the objective."""

    def __init__(self, objective: Objective, data: _Data, options: TrainingOptions, staging: Path) -> None:
        self.objective = objective
        self.options = options
        self.staging = staging
        # The same already, unless a component drew its first weights in a way of its own.
        processes.share_weights(objective)
        device = default_device()
        precision = resolve_precision(options.precision, device)
        collator = StepCollator(
            data.sampler,
            data.assembler,
            objective.retriever,
            batch_tokens=options.batch_tokens or train_batch_tokens(device),
            micro_batch_size=options.micro_batch_size,
        )
        steps = StepSampler(data.sampler, options.batch_size)
        self.steps = math.ceil(len(steps) * options.epochs)
        self.bar = Bar("training")
        self.trainer = RetrieverTrainer(
            objective,
            trainer_arguments(
                options,
                staging / STATES,
                self.steps,
                num_train_epochs=options.epochs,
                ddp_backend=processes.backend(),
                seed=options.seed + processes.rank(),  # each process draws dropout of its own
            ),
            collator=collator,
            step_sampler=steps,
            precision=precision,
            cache_gradients=options.micro_batch_size is not None,
            log_file=staging / LOG,
        )
        self.refresh: RefreshNegatives | None = None
        if data.negatives is not None:
            self.refresh = RefreshNegatives(
                data.negatives, objective.retriever, data.sampler, staging, len(steps), self.trainer.log, self.bar.say
            )
            self.trainer.add_callback(self.refresh)
        if processes.is_main():
            for callback in (self.bar, *tensorboard(staging / LOGS)):
                self.trainer.add_callback(callback)
            if data.dev is not None:
                keep = KeepBest(data.dev, objective, staging, len(steps), precision, self.trainer.log)
                self.trainer.add_callback(keep)

    def train(self) -> int:
        """Train (on from the last saved state, where there is one); returns the number of steps."""
        if self.options.epochs == 0:
            return 0
        last = processes.from_main(last_checkpoint(self.staging / STATES))
        if processes.is_main():
            cut_log(self.staging / LOG, last)
        if last and step_of(last) == self.steps:
            # In the middle of an epoch, the Trainer would do one step more.
            load_weights(self.objective, last / WEIGHTS)
        else:
            if last and self.refresh is not None:
                self.refresh.resume(step_of(last))
            self._train(last)
        if processes.is_main() and (self.staging / BEST).exists():
            load_weights(self.objective, self.staging / BEST)
        return self.steps

    def _train(self, last: Path | None) -> None:
        try:
            self.trainer.train(resume_from_checkpoint=str(last) if last else None)
        finally:
            self.bar.progress.stop()
