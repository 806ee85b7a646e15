"""A retriever to train: its data, its parts and its loss, made ready for the training loop."""

from __future__ import annotations

import transformers

from retrievalkit import artifacts
from retrievalkit.data.examples import against_corpus
from retrievalkit.errors import InputError
from retrievalkit.training.card import ModelCard, how_trained
from retrievalkit.training.data import ExampleData
from retrievalkit.training.objective import Objective, create_loss, describe_loss
from retrievalkit.training.refresh import NegativeMiner, RefreshOptions, refresh_options
from retrievalkit.training.retriever_step import RetrieverStep
from retrievalkit.training.sampling import limited
from retrievalkit.training.session import Manifest, Training
from retrievalkit.training.start import start
from retrievalkit.training.train import TrainOptions


def prepare(options: TrainOptions) -> Training:
    """The training of a retriever, ready to start.

    Raises:
        InputError: The data, the model or a component's option does not fit.
    """
    refresh = refresh_options(options.refresh_negatives, options.refresh_options)
    if refresh is not None:
        refresh.check_for(epochs=options.epochs, negatives=options.negatives)
    data = ExampleData.read(options.examples, options.corpus, options.dev)
    miner = None if refresh is None else _miner(data, options, refresh)
    lengths = {"query_length": options.query_length, "document_length": options.document_length}
    retriever = start(
        options.model,
        encoder=options.encoder,
        pooler=options.pooler,
        encoder_options={**options.encoder_options, **{name: one for name, one in lengths.items() if one is not None}},
        pooler_options=options.pooler_options,
        separate_towers=options.separate_towers,
        seed=options.seed,
    )
    loss = options.loss or retriever.pooler.default_loss
    transformers.set_seed(options.seed)
    objective = Objective(retriever, create_loss(loss, options.loss_options))
    described = {
        **retriever.description,
        "loss": describe_loss(loss, options.loss_options),
        "training": options.training(),
        **({} if refresh is None else {"refresh": refresh.as_dict()}),
        **({} if options.sharding == "none" else {"sharding": options.sharding}),
    }
    inputs = {"model": artifacts.describe_input(options.model, retriever.fingerprint), **data.inputs}
    step = RetrieverStep(objective, data, options, described, miner, sharded=options.sharding == "full")
    return Training(step, "checkpoint", "train", described, inputs, _card)


def _miner(data: ExampleData, options: TrainOptions, refresh: RefreshOptions) -> NegativeMiner:
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
