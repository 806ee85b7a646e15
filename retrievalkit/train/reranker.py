"""The program behind `rkit rerank train`: examples and a pretrained encoder in, a re-ranker's folder out.

    rkit rerank train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output DIR [--dev DEV]

The examples are those of `rkit train`, with hard negatives. `--resume` continues a killed training; torchrun starts
several processes. The output is an ordinary Hugging Face folder.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import transformers

from retrievalkit import artifacts, oddities
from retrievalkit.data.examples import Example, Examples
from retrievalkit.errors import InputError
from retrievalkit.model.cross_encoder import KIND, CrossEncoder
from retrievalkit.model.precision import default_device
from retrievalkit.model.pretrained import model_fingerprint
from retrievalkit.train.card import ModelCard, how_trained
from retrievalkit.train.data import ExampleData
from retrievalkit.train.examples import chosen
from retrievalkit.train.options import RerankerOptions
from retrievalkit.train.reranker_step import DevLists, RerankerStep
from retrievalkit.train.sampling import StepAssembler, example_sampler
from retrievalkit.train.session import Manifest, Training, run_training


@dataclass(kw_only=True, frozen=True)
class RerankerSpec:
    """A re-ranker to be trained, and the data it is trained on.

    Attributes:
        model: Name or folder of the pretrained encoder to start from, or of a cross-encoder.
        examples: Training examples with negatives, in any known format.
        corpus: The passages that the examples name; None if the examples bring their own.
        dev: Held-out examples for selecting the best state; None keeps the last state.
    """

    model: str
    examples: str
    corpus: str | None = None
    dev: str | None = None


def train_reranker(
    spec: RerankerSpec,
    output: str | Path,
    options: RerankerOptions | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    report_to: str = "",
) -> Manifest:
    """Train a re-ranker and write its folder; see `retrievalkit.train.retriever.train`."""
    options = options or RerankerOptions()
    make = partial(_prepare, spec, options)
    return run_training(make, options, output, resume=resume, overwrite=overwrite, report_to=report_to)


def _prepare(spec: RerankerSpec, options: RerankerOptions) -> Training:
    data = ExampleData.read(spec.examples, spec.corpus, spec.dev)
    rows, dropped = _with_negatives(data.train)
    dev = None if data.dev is None else DevLists(_with_negatives(data.dev)[0], data.passage)
    samples = example_sampler(rows, options)
    assembler = StepAssembler(data.passage, data.train.rows, mask_false_negatives=options.false_negatives == "mask")
    transformers.set_seed(options.seed)
    reranker = CrossEncoder.create(spec.model, max_length=options.max_length, seed=options.seed).to(default_device())
    described = {
        "model": os.path.abspath(spec.model) if os.path.isdir(spec.model) else spec.model,
        "training": asdict(options),
    }
    inputs = {"model": artifacts.describe_input(spec.model, model_fingerprint(spec.model)), **data.inputs}
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
