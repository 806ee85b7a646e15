"""The program behind `rkit train`: examples and a pretrained model (or a checkpoint) in, a checkpoint folder out.

    rkit train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output DIR [--dev DEV] [--pooler NAME]

`--resume` continues a killed training. Several GPUs, or several processes on a CPU, share each step of `--batch-size`
queries, and train what one process would:

    torchrun --nproc-per-node 2 --no-python rkit train ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import transformers

from retrievalkit import artifacts
from retrievalkit.data.examples import against_corpus
from retrievalkit.errors import InputError
from retrievalkit.train.card import ModelCard, how_trained
from retrievalkit.train.data import ExampleData
from retrievalkit.train.objective import Objective, create_loss, describe_loss
from retrievalkit.train.options import TrainingOptions
from retrievalkit.train.refresh import NegativeMiner, RefreshOptions
from retrievalkit.train.retriever_step import RetrieverStep
from retrievalkit.train.sampling import limited
from retrievalkit.train.session import Manifest, Training, run_training
from retrievalkit.train.start import start


@dataclass(kw_only=True, frozen=True)
class RetrieverSpec:
    """A retriever to be trained: its parts, and the data it is trained on.

    Attributes:
        model: Name or folder of the pretrained model to start from, or a checkpoint to go on from (see `train.start`).
        examples: Training examples, in any known format.
        corpus: The passages that the examples name; None if the examples bring their own.
        dev: Held-out examples for selecting the best state; None keeps the last state.
        encoder: Registered name of the encoder; None = the checkpoint's, else "transformer".
        pooler: Registered name of the pooler; None = the model's own pooling, else "cls" (see `Retriever.create`).
        loss: Registered name of the loss, or several joined by plus signs for their sum; None = the pooler's default.
        encoder_options: Options of the encoder.
        pooler_options: Options of the pooler.
        loss_options: Options of the loss; of a sum, loss -> its options.
        separate_towers: Whether queries and documents get an encoder each; None = as the checkpoint, else no.
        refresh: When to mine new negatives with the model as it is then, and which; None = never.
        sharding: "full" divides weights, gradients and optimizer states among the processes (FSDP).
    """

    model: str
    examples: str
    corpus: str | None = None
    dev: str | None = None
    encoder: str | None = None
    pooler: str | None = None
    loss: str | None = None
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    pooler_options: Mapping[str, Any] = field(default_factory=dict)
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    separate_towers: bool | None = None
    refresh: RefreshOptions | None = None
    sharding: Literal["none", "full"] = "none"


def train(
    spec: RetrieverSpec,
    output: str | Path,
    options: TrainingOptions | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    report_to: str = "",
) -> Manifest:
    """Train a retriever and write a checkpoint folder.

    Args:
        spec: What is trained, and on which data.
        output: The checkpoint folder to write.
        options: How to train.
        resume: Go on with a training to the same output that was cut off; a finished one is left as it is.
        overwrite: Replace an existing output folder.
        report_to: Trackers beside TensorBoard that get what is logged, with commas, such as "wandb,mlflow".

    Returns:
        The manifest of the checkpoint.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    options = options or TrainingOptions()
    make = partial(_prepare, spec, options)
    return run_training(make, options, output, resume=resume, overwrite=overwrite, report_to=report_to)


def _prepare(spec: RetrieverSpec, options: TrainingOptions) -> Training:
    if spec.refresh is not None:
        spec.refresh.check_for(epochs=options.epochs, negatives=options.negatives)
    data = ExampleData.read(spec.examples, spec.corpus, spec.dev)
    miner = None if spec.refresh is None else _miner(data, options, spec.refresh)
    retriever = start(
        spec.model,
        encoder=spec.encoder,
        pooler=spec.pooler,
        encoder_options=spec.encoder_options,
        pooler_options=spec.pooler_options,
        separate_towers=spec.separate_towers,
        seed=options.seed,
    )
    loss = spec.loss or retriever.pooler.default_loss
    transformers.set_seed(options.seed)
    objective = Objective(retriever, create_loss(loss, spec.loss_options))
    described = {
        **retriever.description,
        "loss": describe_loss(loss, spec.loss_options),
        "training": asdict(options),
        **({} if spec.refresh is None else {"refresh": spec.refresh.as_dict()}),
        **({} if spec.sharding == "none" else {"sharding": spec.sharding}),
    }
    inputs = {"model": artifacts.describe_input(spec.model, retriever.fingerprint), **data.inputs}
    step = RetrieverStep(objective, data, options, described, miner, sharded=spec.sharding == "full")
    return Training(step, "checkpoint", "train", described, inputs, _card)


def _miner(data: ExampleData, options: TrainingOptions, refresh: RefreshOptions) -> NegativeMiner:
    if data.corpus is None:
        msg = "--refresh-negatives mines passages of the corpus, and none was given. Give it: --corpus CORPUS"
        raise InputError(msg)
    rows = limited(data.train.rows, options.limit, options.seed)
    known = limited(against_corpus(data.train, data.corpus).rows, options.limit, options.seed)
    return NegativeMiner(rows, known, data.corpus, refresh, options.precision)


def _card(manifest: Manifest) -> ModelCard:
    options = manifest["options"]
    pooler = options["pooler"]["name"]
    parts = {kind: f"{options[kind]['name']} {options[kind]['options']}" for kind in ("encoder", "pooler", "loss")}
    return ModelCard(
        metadata={"library_name": "retrievalkit", "base_model": options["model"], "tags": ["retrieval", pooler]},
        title=f"A {pooler} retriever",
        about=f"A text retriever trained with retrievalkit {manifest['versions'].get('retrievalkit', '')}.",
        facts={
            "started from": options["model"],
            "encoder": parts["encoder"],
            "towers": "separate" if options["separate_towers"] else "shared",
            "pooler": parts["pooler"],
            "loss": parts["loss"],
            "examples": f"{manifest['counts']['examples']} from {manifest['inputs']['examples']['path']}",
            **how_trained(options["training"]),
        },
        use="Encode a corpus and search it",
        commands=(
            "rkit encode CHECKPOINT CORPUS --side document --output vectors",
            "rkit index vectors --indexer flat --output index",
            'rkit search index --query "..."',
        ),
    )
