"""Training of a retriever: data, model and loss, and the steps of `rkit train`.

A step draws examples, encodes their texts in chunks (each process its share), and computes the loss over the
representations of the whole step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import transformers
from torch import Tensor

from retrievalkit import registry, storage
from retrievalkit.contracts import SIDES, Batch, LossValue, Progress, Representation, Side, Text
from retrievalkit.contracts.models import to_device
from retrievalkit.data.examples import Example, against_corpus, check_teacher
from retrievalkit.errors import InputError, OptionError, UnsupportedError
from retrievalkit.models.batches import MOST_TEXTS, TokenLimit, token_budget_batches
from retrievalkit.models.precision import autocast, default_device, resolve_precision
from retrievalkit.models.retriever import CPU_BATCH_TOKENS, tokenize
from retrievalkit.reporting import notices
from retrievalkit.reporting.terminal import counted, say
from retrievalkit.training import selection
from retrievalkit.training.collective import ALONE, Collective, GradientSum, divide
from retrievalkit.training.dry_run import dry_run, first_draws
from retrievalkit.training.examples import ExampleData
from retrievalkit.training.gradcache import Chunk, cached_step, plain_step
from retrievalkit.training.initialize import initialize
from retrievalkit.training.loop import Backward, Key, Log, Training
from retrievalkit.training.objective import Objective, create_loss, describe_loss, options_by_loss
from retrievalkit.training.options import TrainOptions
from retrievalkit.training.pages import Manifest, model_card
from retrievalkit.training.refresh import NegativeRefresh, RefreshOptions, refresh_options
from retrievalkit.training.sampling import ExampleSampler, StepAssembler, hold_out, limited
from retrievalkit.training.selection import MOST_MEASURED, DevSet, Values
from retrievalkit.training.sharding import shard

_UNLIMITED = 1 << 60
_SMALL_BATCH = 8
_COMPARED = 1_000


@dataclass(frozen=True)
class Plan:
    """A training before its model is loaded: its examples, and options with a schedule that suits them.

    `dev` are the examples to measure on, if any; they may be held out of the training examples.
    """

    options: TrainOptions
    data: ExampleData
    samples: ExampleSampler
    dev: Sequence[Example]
    held_out: bool
    refresh: RefreshOptions | None


def plan(options: TrainOptions) -> Plan:
    """Read the examples, hold some out, and complete the options; cheap, since no model is loaded."""
    data = ExampleData.read(options.examples, options.corpus, options.dev)
    rows, dev = data.train.rows, data.dev.rows if data.dev is not None else ()
    if data.dev is None and options.sharding != "full":
        rows, dev = hold_out(rows, options)
    samples = ExampleSampler.of(rows, options, sampling=options.sampling)
    options = options.suited(len(samples))
    refresh = refresh_options(options)
    if refresh is not None and data.corpus is None:
        msg = "--refresh-negatives mines passages of a corpus. Name it: --corpus CORPUS"
        raise InputError(msg)
    return Plan(options, data, samples, dev, data.dev is None and bool(dev), refresh)


@dataclass(frozen=True)
class StepInputs:
    """Inputs of a step: tokenised, padded, in chunks.

    Attributes:
        chunks: Queries and documents that this process encodes, in batches of similar length. Their rows are
            positions within this process's share.
        shares: Rows of the step's queries and documents that each process encodes.
        positives: (Q,) long: row of the document that answers each query.
        ignore: (Q, D) bool, or None.
        teacher: (Q, D) float, NaN for a missing score, or None.
    """

    chunks: list[Chunk]
    shares: Mapping[Side, list[list[int]]]
    positives: Tensor
    ignore: Tensor | None
    teacher: Tensor | None

    @property
    def texts(self) -> int:
        """Number of queries and documents in the whole step."""
        return sum(len(share) for side in SIDES for share in self.shares[side])

    def parts(self, most: int | None) -> list[Chunk]:
        """Return the chunks, in parts of at most `most` tokens; None = no limit."""
        return [part for chunk in self.chunks for part in chunk.parts(most)]

    def to(self, device: torch.device) -> StepInputs:
        """Return the same step on another device."""
        chunks = [replace(chunk, batch=chunk.batch.to(device)) for chunk in self.chunks]
        ignore = None if self.ignore is None else to_device(self.ignore, device)
        teacher = None if self.teacher is None else to_device(self.teacher, device)
        return replace(self, chunks=chunks, positives=to_device(self.positives, device), ignore=ignore, teacher=teacher)


class RetrieverTraining(Training):
    """Trains a retriever with a loss over the representations of the whole step (in-batch negatives)."""

    kind, command = "checkpoint", "train"
    module: Objective
    options: TrainOptions
    samples: ExampleSampler
    dev: DevSet | None = None
    refresh: NegativeRefresh | None = None

    def __init__(self, options: TrainOptions, collective: Collective = ALONE) -> None:
        self.collective, self.plan = collective, plan(options)
        options, data, dev, refresh = self.plan.options, self.plan.data, self.plan.dev, self.plan.refresh
        self.options, self.samples, self.held_out = options, self.plan.samples, self.plan.held_out
        self.sharded = options.sharding == "full"
        self.counts = {"examples": len(self.samples), **({"held_out": len(dev)} if self.held_out else {})}
        self.retriever = initialize(options)
        loss = options.loss or self.retriever.pooler.default_loss
        transformers.set_seed(options.seed)
        cosine = self.retriever.pooler.cosine
        self.module = Objective(self.retriever, create_loss(loss, options.loss_options, cosine=cosine))
        self.described = {
            **self.retriever.description,
            "loss": describe_loss(loss, options.loss_options, cosine=cosine),
            "training": options.training(),
            **({} if refresh is None else {"refresh": refresh.as_dict()}),
            **({} if options.sharding == "none" else {"sharding": options.sharding}),
        }
        self.inputs = {"model": storage.describe_input(options.model, self.retriever.fingerprint), **data.inputs}
        self._bound_memory()
        mask = options.false_negatives == "mask"
        self.assembler = StepAssembler(data.passage, self.samples.examples, mask_false_negatives=mask)
        if dev:
            assert options.batch_size is not None
            self.measured_before = options.rank_from is None
            self.dev = DevSet(
                examples=limited(dev, MOST_MEASURED, options.seed) if self.measured_before else dev,
                passage=data.passage,
                batch_size=options.batch_size,
                rank_from=options.rank_from,
                mask_false_negatives=mask,
                corpus=data.corpus,
                seed=options.seed,
                collective=collective,
            )
        if refresh is not None and data.corpus is not None:
            known = against_corpus(data.train, data.corpus).rows
            known = limited(hold_out(known, options)[0] if self.held_out else known, options.limit, options.seed)
            own = self.samples, known, data.corpus, refresh, options.precision, self.retriever, collective
            self.refresh = NegativeRefresh(*own)

    def _bound_memory(self) -> None:
        """Choose the precision, and the number of tokens that are encoded at a time."""
        options, device, encoder = self.options, default_device(), self.retriever.tower("document")
        self.precision = resolve_precision(options.precision, device, half=encoder.half_only)
        self.cached = options.micro_batch_size is not None
        self.limit = TokenLimit(encoder.info.width, encoder.info.layers)
        # A trained weight has a gradient and two states of AdamW.
        reserved = sum(weight.nbytes * (4 if weight.requires_grad else 1) for weight in self.module.parameters())
        on_cpu = _UNLIMITED if self.cached else CPU_BATCH_TOKENS
        self.batch_tokens = options.batch_tokens or self.limit.budget(device, on_cpu, reserved=reserved)

    def dry_run(self) -> None:
        """Check the first step, dev evaluation and mining of negatives before training, and refuse conflicts."""
        loss = self.module.loss
        if not any(weight.requires_grad for weight in self.module.parameters()):
            parts = ", ".join(f"{kind} '{self.described[kind]['name']}'" for kind in ("encoder", "pooler", "loss"))
            msg = f"there is nothing to train: {parts} have no trainable weights. Choose a pooler that has some."
            raise UnsupportedError(msg)
        if self.sharded:
            conflicts = {
                "--dev": self.dev is not None,
                "--refresh-negatives": self.refresh is not None,
                "a single process": self.collective.size == 1,
                "--separate-towers": len(self.retriever.towers) > 1,
                "frozen weights (LoRA)": not all(weight.requires_grad for weight in self.module.parameters()),
            }
            if names := [name for name, conflict in conflicts.items() if conflict]:
                msg = f"--sharding full does not support {' and '.join(names)}. Leave it out, or use torchrun."
                raise OptionError(msg)
        if self.refresh is not None:
            if loss.needs_teacher:
                problem = "the loss needs a teacher's scores, which negatives mined during training lack"
                msg = f"{problem}. Leave --refresh-negatives out, or choose another --loss."
                raise OptionError(msg)
            self.refresh.check()
        if loss.needs_teacher:
            check_teacher(self.plan.data.train, negatives=self.options.negatives)
        self._note_settings()
        self.module.to(default_device())
        texts = self.assembler.assemble(first_draws(self.samples))
        dry_run(self.module, texts, self.described, precision=self.precision, dev=self.dev)

    def largest(self) -> Sequence[Key]:
        """Return the examples with the longest texts, among the first of an epoch."""

        def size(position: int) -> int:
            texts = self.assembler.assemble([self.samples.draw(position, 0)])
            return sum(len(text.title) + len(text.body) for text in (*texts.queries, *texts.documents))

        assert self.options.batch_size is not None
        order = sorted(self.samples.order(0)[:_COMPARED], key=size)
        return [(0, position) for position in order[-self.options.batch_size :]]

    def open(self, folder: Path) -> None:
        """Print the number of examples and the schedule."""
        del folder
        options = self.options
        selection.report_held_out(self)
        if self.collective.is_main:
            examples = counted(len(self.samples), "examples")
            rate = f"learning rate {options.learning_rate:g}, warm-up {options.warmup_ratio:g}"
            say(f"{examples}: epochs {options.epochs:g}, batch size {options.batch_size}, {rate}", err=True)

    def _note_settings(self) -> None:
        """Warn about settings that are known to fail."""
        selection.note_few(self)
        options, pooler = self.options, self.retriever.pooler
        size = options.batch_size
        assert size is not None
        if size < _SMALL_BATCH and not any(draw.negatives for draw in first_draws(self.samples)):
            notices.note(
                f"Without hard negatives, a batch of {size} contrasts each positive with "
                f"{counted(size - 1, 'passages')}. Raise --batch-size (--micro-batch-size bounds memory), or mine "
                "negatives: rkit mine-negatives"
            )
        losses = options_by_loss(options.loss or pooler.default_loss, options.loss_options, cosine=pooler.cosine)
        if pooler.cosine and any(own.get("temperature") == 1 for own in losses.values()):
            notices.note(
                "The temperature is 1, and scores are cosines, from whose small differences little is learnt then. "
                "Leave loss.temperature out: it is 0.05 for cosines."
            )

    def shard(self) -> None:
        """Shard the weights of retriever and loss."""
        shard(self.retriever, self.module.loss, self.collective)

    def collate(self, keys: Sequence[Key]) -> StepInputs:
        """Return the step with the texts that this process encodes."""
        step = self.assembler.assemble([self.samples.draw(position, epoch) for epoch, position in keys])
        most, budget = self.options.micro_batch_size or MOST_TEXTS, self.limit.reduced or self.batch_tokens
        chunks: list[Chunk] = []
        shares: dict[Side, list[list[int]]] = {}
        sides: tuple[tuple[Side, list[Text]], ...] = (("query", step.queries), ("document", step.documents))
        for side, texts in sides:
            # By characters: each process tokenises only its own texts.
            shares[side] = divide([len(text.title) + len(text.body) for text in texts], self.collective.size)
            # A process without texts encodes another's text, for the shape of its representation.
            own = [texts[row] for row in shares[side][self.collective.rank]] or texts[:1]
            tower = self.retriever.tower(side)
            token_ids = tokenize(self.retriever, own, side)
            lengths = [len(ids) for ids in token_ids]
            for rows in token_budget_batches(lengths, budget, most=most):
                chunks.append(Chunk(side, rows, tower.collate([token_ids[row] for row in rows], side)))
        return StepInputs(chunks, shares, *step.tensors())

    def run(
        self, inputs: StepInputs, progress: Progress, backward: Backward, gradients: GradientSum
    ) -> dict[str, Tensor]:
        """Encode, gather the representations of all processes, and compute the loss of the whole step."""
        loss, collective = self.module.loss, self.collective

        def encode(batch: Batch, side: Side) -> Representation:
            with autocast(self.precision, batch.input_ids.device):
                representation: Representation = self.retriever(batch, side)
            return representation

        def compare(queries: Representation, documents: Representation) -> LossValue:
            if collective.size > 1:
                queries = collective.gather(queries, inputs.shares["query"])
                documents = collective.gather(documents, inputs.shares["document"])
            targets = (inputs.positives, progress, inputs.ignore, inputs.teacher)
            with collective.same_draws(progress.step, queries.device):
                value: LossValue = loss(queries, documents, *targets)
            if not value.total.requires_grad:
                problem = "its total does not depend on the representations of a step, so nothing would be trained"
                raise registry.wrong_result("loss", loss, problem)
            return value

        chunks = inputs.parts(self.limit.reduced)
        if self.sharded:
            idle = max(collective.everywhere(len(chunks))) - len(chunks)
            value = cached_step(encode, chunks, compare, backward, gradients, idle)
        else:
            value = (cached_step if self.cached else plain_step)(encode, chunks, compare, backward, gradients)
        # The loss's own weights have the gradient of the whole step in every process, and gradients are summed.
        for parameter in loss.parameters():
            if parameter.grad is not None and collective.size > 1:
                parameter.grad /= collective.size
        return {**value.terms, "loss": value.total}

    def reduce(self, inputs: StepInputs) -> StepInputs | None:
        """Cache gradients, then encode fewer texts at a time; None if it is a single text already."""
        largest = max((chunk.tokens for chunk in inputs.parts(self.limit.reduced) if len(chunk.rows) > 1), default=0)
        # Shards of weights are exchanged in every chunk, so no process can compute its step again alone.
        if self.sharded or (self.cached and not largest):
            return None
        if self.cached:
            self.limit.reduce(largest)
        else:
            change = "The device ran out of memory, so gradients are cached from now on: equal gradients in more time"
            notices.note(f"{change}. Set micro_batch_size to cache them from the start, or a smaller batch_size.")
        self.cached = True
        self.entries = {"gradient_caching": True, **self.limit.entries()}
        return inputs

    def measure(self, epoch: int) -> Values:
        """Return nDCG@10 and RR@10 of the dev questions, or the measure of DPR's rule."""
        assert self.dev is not None
        return self.dev.measure(self.retriever, self.module.loss, epoch, self.precision)

    def end_epoch(self, epoch: int, folder: Path, log: Log) -> None:
        """Mine new negatives if they are due."""
        if self.refresh is not None:
            self.refresh.end_epoch(epoch, folder, log)

    def restore(self, epochs: int, folder: Path) -> None:
        """Use the negatives of the last mining."""
        if self.refresh is not None:
            self.refresh.restore(epochs, folder)

    def save(self, folder: Path) -> None:
        """Write the retriever."""
        self.retriever.save(folder)

    def card(self, manifest: Manifest) -> str:
        """Return the model card of a retriever."""
        options = manifest["options"]
        pooler = options["pooler"]["name"]
        parts = {part: f"{options[part]['name']} {options[part]['options']}" for part in ("encoder", "pooler", "loss")}
        return model_card(
            manifest,
            library_name="retrievalkit",
            tags=["retrieval", pooler],
            title=f"A {pooler} retriever",
            about="A text retriever.",
            facts={
                **parts,
                "towers": "separate" if options["separate_towers"] else "shared",
                "examples": f"{manifest['counts']['examples']} from {manifest['inputs']['examples']['path']}",
            },
            use=(
                "Encode a corpus and search it",
                "rkit encode CHECKPOINT CORPUS --side document --output vectors",
                "rkit index vectors --indexer flat --output index",
                'rkit search index --query "..."',
            ),
        )
