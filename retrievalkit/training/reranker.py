"""A re-ranker to train: its data and its model, made ready for the training loop."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from functools import partial

import transformers

from retrievalkit import artifacts, oddities
from retrievalkit.data.examples import Example, Examples
from retrievalkit.errors import InputError
from retrievalkit.model.cross_encoder import KIND, CrossEncoder
from retrievalkit.model.precision import default_device
from retrievalkit.model.pretrained import model_fingerprint
from retrievalkit.training.card import ModelCard, how_trained
from retrievalkit.training.data import ExampleData
from retrievalkit.training.examples import chosen
from retrievalkit.training.reranker_step import DevLists, RerankerStep
from retrievalkit.training.sampling import StepAssembler, example_sampler
from retrievalkit.training.session import Manifest, Training
from retrievalkit.training.train_reranker import TrainRerankerOptions


def prepare(options: TrainRerankerOptions) -> Training:
    """The training of a re-ranker, ready to start.

    Raises:
        InputError: The data or the model does not fit, or no example has negatives.
    """
    data = ExampleData.read(options.examples, options.corpus, options.dev)
    rows, dropped = _with_negatives(data.train)
    dev = None if data.dev is None else DevLists(_with_negatives(data.dev)[0], data.passage)
    samples = example_sampler(rows, options)
    assembler = StepAssembler(data.passage, data.train.rows, mask_false_negatives=options.false_negatives == "mask")
    transformers.set_seed(options.seed)
    reranker = CrossEncoder.create(options.model, max_length=options.max_length, seed=options.seed).to(default_device())
    described = {
        "model": os.path.abspath(options.model) if os.path.isdir(options.model) else options.model,
        "training": options.training(),
    }
    inputs = {"model": artifacts.describe_input(options.model, model_fingerprint(options.model)), **data.inputs}
    step = RerankerStep(reranker, samples, assembler, options, dev=dev, dropped=dropped)
    return Training(step, KIND, "rerank train", described, inputs, partial(_card, reranker.max_length))


def _with_negatives(examples: Examples) -> tuple[Sequence[Example], int]:
    """The examples that have negatives to rank a positive against, and the number of those that lack them."""
    kept = array("I", (position for position, row in enumerate(examples.rows) if row.negatives))
    if not kept:
        msg = (
            f"none of the {len(examples)} examples of '{examples.source}' has negatives, and a re-ranker learns to "
            f"rank a positive before them. Mine some: rkit mine-negatives --from bm25"
        )
        raise InputError(msg)
    dropped = len(examples) - len(kept)
    if dropped:
        # The command's last line counts them.
        oddities.check(f"{dropped:,} of the {len(examples):,} examples of '{examples.source}' have no negatives.")
    return chosen(examples.rows, kept), dropped


def _card(max_length: int, manifest: Manifest) -> ModelCard:
    model, training = manifest["options"]["model"], manifest["options"]["training"]
    tags = ["retrieval", "reranking", "cross-encoder"]
    return ModelCard(
        metadata={"library_name": "transformers", "base_model": model, "pipeline_tag": "text-ranking", "tags": tags},
        title="A re-ranker",
        about="A cross-encoder that scores a query and a passage (title, space, text) together, trained with "
        f"retrievalkit {manifest['versions'].get('retrievalkit', '')}. Its one logit is the score.",
        facts={
            "started from": model,
            "longest pair": f"{max_length} tokens",
            "examples": f"{manifest['counts']['examples']} from {manifest['inputs']['examples']['path']}",
            "loss": f"{training['loss']}, {training['negatives']} negatives",
            **how_trained(training),
        },
        use="Re-rank a run, or score examples for `rkit train --loss distill_kl`",
        commands=(
            "rkit rerank apply FOLDER --run RUN --queries QUERIES --corpus CORPUS --output RERANKED",
            "rkit rerank apply FOLDER --examples EXAMPLES --corpus CORPUS --output SCORED",
        ),
    )
