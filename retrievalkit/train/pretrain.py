"""The program behind `rkit pretrain`: documents and a model in, the model trained on them out.

    rkit pretrain --pretrainer retromae --model bert-base-uncased --corpus DOCUMENTS --output DIR [--steps 50000]

The corpus is read, cut and tokenised once, to a hidden folder beside the output, from which samples are taken in any
order: so memory does not grow with it. `--resume` continues a killed pre-training; torchrun starts several processes.
The output is an ordinary Hugging Face folder with its vocabulary head, which `rkit train --model` takes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import transformers

from retrievalkit import artifacts, registry
from retrievalkit.contracts import Encoder, Pretrainer
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import LengthError, UnsupportedError
from retrievalkit.model.precision import default_device, resolve_precision
from retrievalkit.model.pretrained import model_fingerprint
from retrievalkit.registry import describe
from retrievalkit.train.card import ModelCard
from retrievalkit.train.options import PretrainingOptions
from retrievalkit.train.pretraining_step import PretrainingStep
from retrievalkit.train.session import Manifest, Training, run_training


@dataclass(kw_only=True, frozen=True)
class PretrainingSpec:
    """A model to be pre-trained, the objective, and the documents.

    Attributes:
        pretrainer: Registered name of the objective.
        model: Name or folder of the model to start from; a vocabulary head that its weights lack starts at random.
        corpus: The documents, in any known format.
        encoder: Registered name of the encoder.
        pretrainer_options: Options of the objective.
        encoder_options: Options of the encoder, such as its dropout.
        dev: Documents that are held out, in any known format: their loss is measured after each epoch and at the end,
            and the state with the lowest is kept. None keeps the last.
    """

    pretrainer: str
    model: str
    corpus: str
    encoder: str = "transformer"
    pretrainer_options: Mapping[str, Any] = field(default_factory=dict)
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    dev: str | None = None


def pretrain(
    spec: PretrainingSpec,
    output: str | Path,
    options: PretrainingOptions | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    report_to: str = "",
) -> Manifest:
    """Pre-train a model on documents, and write a Hugging Face folder; see `retrievalkit.train.retriever.train`."""
    options = options or PretrainingOptions()
    make = partial(_prepare, spec, options)
    return run_training(make, options, output, resume=resume, overwrite=overwrite, report_to=report_to)


def _prepare(spec: PretrainingSpec, options: PretrainingOptions) -> Training:
    documents = open_corpus(spec.corpus)
    dev = None if spec.dev is None else open_corpus(spec.dev)
    for some in (documents, dev):
        if some is not None:
            next(iter(some))  # An empty or missing corpus fails before a model is loaded.
    encoder_options = _encoder_options(spec, options)
    made = _create(spec, encoder_options, options)
    described = {
        "model": os.path.abspath(spec.model) if os.path.isdir(spec.model) else spec.model,
        "encoder": describe("encoder", spec.encoder, encoder_options),
        "pretrainer": describe("pretrainer", spec.pretrainer, spec.pretrainer_options),
        "pretraining": asdict(options),
    }
    inputs = {
        "model": artifacts.describe_input(spec.model, model_fingerprint(spec.model)),
        "corpus": artifacts.describe_input(spec.corpus, documents.fingerprint()),
    }
    if spec.dev is not None and dev is not None:
        inputs["dev"] = artifacts.describe_input(spec.dev, dev.fingerprint())
    step = PretrainingStep(made, documents, options, dev)
    return Training(step, "model", "pretrain", described, inputs, _card, {"wants": made.wants})


def _encoder_options(spec: PretrainingSpec, options: PretrainingOptions) -> dict[str, Any]:
    """The options given, and those that follow from the pre-training, as far as the encoder has them."""
    known = registry.options(registry.get("encoder", spec.encoder))
    follow = {"document_length": options.max_length, "new_vocabulary_head": True}
    return {name: value for name, value in follow.items() if name in known} | dict(spec.encoder_options)


def _create(spec: PretrainingSpec, encoder_options: Mapping[str, Any], options: PretrainingOptions) -> Pretrainer:
    """The pretrainer with its encoder, on the device that trains it; new weights start from the seed."""
    component: type[Pretrainer] = registry.get("pretrainer", spec.pretrainer)
    device = default_device()
    resolve_precision(options.precision, device)
    transformers.set_seed(options.seed)
    try:
        encoder: Encoder = registry.create("encoder", spec.encoder, spec.model, **encoder_options)
    except LengthError as error:
        # The encoder's limit on documents is an option of the pre-training here.
        raise error.of_option("max_length") from error
    encoder.prepare(component.needs)
    if not all(parameter.requires_grad for parameter in encoder.parameters()):
        msg = "pre-training trains all weights of a model, and some are frozen. Leave out encoder.lora_rank."
        raise UnsupportedError(msg)
    made: Pretrainer = registry.create(
        "pretrainer", spec.pretrainer, encoder, options.max_length, **spec.pretrainer_options
    )
    return made.to(device)


def _card(manifest: Manifest) -> ModelCard:
    options, counts = manifest["options"], manifest["counts"]
    name, training = options["pretrainer"]["name"], options["pretraining"]
    tags = ["retrieval", name]
    dropped = f"{counts['dropped']} without {manifest['wants']} were dropped"
    steps = f"{counts['steps']}, {training['batch_size']}, {training['learning_rate']}"
    return ModelCard(
        metadata={
            "library_name": "transformers",
            "base_model": options["model"],
            "pipeline_tag": "fill-mask",
            "tags": tags,
        },
        title=f"Pre-trained with {name}",
        about="A model with its vocabulary head, pre-trained on text with retrievalkit "
        f"{manifest['versions'].get('retrievalkit', '')}.",
        facts={
            "started from": options["model"],
            "pretrainer": f"{name} {options['pretrainer']['options']}",
            "corpus": manifest["inputs"]["corpus"]["path"],
            "documents": f"{counts['documents']}, of which {dropped}",
            "samples, tokens": f"{counts['samples']}, {counts['tokens']}",
            "steps, batch size, learning rate": steps,
            "longest text": f"{training['max_length']} tokens",
        },
        use="Train a retriever from it",
        commands=("rkit train --model FOLDER --corpus CORPUS --examples EXAMPLES --output CHECKPOINT",),
    )
