"""A pre-training: its objective, its encoder and its documents, made ready for the training loop.

The corpus is read, cut and tokenised once, to a hidden folder next to the output, from which samples are taken in any
order: so memory does not grow with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import transformers

from retrievalkit import artifacts, registry
from retrievalkit.contracts import Encoder, Pretrainer
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import LengthError, UnsupportedError
from retrievalkit.model.precision import default_device, resolve_precision
from retrievalkit.model.pretrained import model_fingerprint
from retrievalkit.registry import describe
from retrievalkit.training.card import ModelCard
from retrievalkit.training.pretrain import PretrainOptions
from retrievalkit.training.pretraining_step import PretrainingStep
from retrievalkit.training.session import Manifest, Training


def prepare(options: PretrainOptions) -> Training:
    """The pre-training of a model, ready to start.

    Raises:
        InputError: The documents, the model or a component's option does not fit.
    """
    documents = open_corpus(options.corpus)
    dev = None if options.dev is None else open_corpus(options.dev)
    for some in (documents, dev):
        if some is not None:
            next(iter(some))  # An empty or missing corpus fails before a model is loaded.
    encoder_options = _encoder_options(options)
    made = _create(options, encoder_options)
    described = {
        "model": os.path.abspath(options.model) if os.path.isdir(options.model) else options.model,
        "encoder": describe("encoder", options.encoder, encoder_options),
        "pretrainer": describe("pretrainer", options.pretrainer, options.pretrainer_options),
        "pretraining": options.training(),
    }
    inputs = {
        "model": artifacts.describe_input(options.model, model_fingerprint(options.model)),
        "corpus": artifacts.describe_input(options.corpus, documents.fingerprint()),
    }
    if options.dev is not None and dev is not None:
        inputs["dev"] = artifacts.describe_input(options.dev, dev.fingerprint())
    step = PretrainingStep(made, documents, options, dev)
    return Training(step, "model", "pretrain", described, inputs, _card, {"wants": made.wants})


def _encoder_options(options: PretrainOptions) -> dict[str, Any]:
    """The options given, and those that follow from the pre-training, as far as the encoder has them."""
    known = registry.options(registry.get("encoder", options.encoder))
    follow = {"document_length": options.max_length, "new_vocabulary_head": True}
    return {name: value for name, value in follow.items() if name in known} | dict(options.encoder_options)


def _create(options: PretrainOptions, encoder_options: Mapping[str, Any]) -> Pretrainer:
    """The pretrainer with its encoder, on the device that trains it; new weights start from the seed."""
    component: type[Pretrainer] = registry.get("pretrainer", options.pretrainer)
    device = default_device()
    resolve_precision(options.precision, device)
    transformers.set_seed(options.seed)
    try:
        encoder: Encoder = registry.create("encoder", options.encoder, options.model, **encoder_options)
    except LengthError as error:
        # The encoder's limit on documents is an option of the pre-training here.
        raise error.of_option("max_length") from error
    encoder.prepare(component.needs)
    if not all(parameter.requires_grad for parameter in encoder.parameters()):
        msg = "pre-training trains all weights of a model, and some are frozen. Leave out encoder.lora_rank."
        raise UnsupportedError(msg)
    made: Pretrainer = registry.create(
        "pretrainer", options.pretrainer, encoder, options.max_length, **options.pretrainer_options
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
