"""Initialisation of a training: from a pretrained model with new parts, or from a retrievalkit checkpoint.

A checkpoint contributes the weights of both towers, the vocabulary head, extra tokens, adapters, the tokenizer, the
pooler's weights, and every option. Options that the user sets in addition:

    another encoder or pooler     refused: the weights belong to the checkpoint's
    an option of the pooler       refused if it differs from the checkpoint's
    an option of the encoder      applied if it is `adjustable` (lengths, dropout ...), else as above
    --separate-towers             both towers start from the checkpoint's; --shared-tower cannot merge two
    loss and training options     applied: they do not come from the checkpoint
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from retrievalkit import registry
from retrievalkit.errors import OptionError
from retrievalkit.models.checkpoint import checkpoint_folder, is_checkpoint, missing_plugins_explained, read_checkpoint
from retrievalkit.models.published import note_left_out
from retrievalkit.models.retriever import Retriever
from retrievalkit.training.options import TrainOptions


def initialize(options: TrainOptions) -> Retriever:
    """Return the retriever to train, on the CPU and in training mode."""
    model = checkpoint_folder(options.model)
    lengths = {"query_length": options.query_length, "document_length": options.document_length}
    set_lengths = {name: length for name, length in lengths.items() if length is not None}
    encoder_options = {**options.encoder_options, **set_lengths}
    if not is_checkpoint(model):
        note_left_out(model, options.encoder, options.pooler, encoder_options, options.pooler_options)
        return Retriever.create(
            model,
            encoder=options.encoder or "transformer",
            pooler=options.pooler,
            encoder_options=encoder_options,
            pooler_options=options.pooler_options,
            separate_towers=bool(options.separate_towers),
            seed=options.seed,
        )
    description, _ = read_checkpoint(model)
    inner = Path(model) / ("query" if description["separate_towers"] else "encoder")
    parts = (("encoder", options.encoder, encoder_options), ("pooler", options.pooler, options.pooler_options))
    for kind, name, values in parts:
        own = description[kind]
        if name is not None and name != own["name"]:
            remedy = f"Leave --{kind} out, or start from its encoder alone: --model {inner}"
            msg = f"'{model}' is a checkpoint that was trained with {kind} '{own['name']}', not '{name}'. {remedy}"
            raise OptionError(msg)
        with missing_plugins_explained(description, model):
            component = registry.get(kind, own["name"])
        adjustable: frozenset[str] = getattr(component, "adjustable", frozenset())
        for option, value in registry.check_options(f"{kind} '{own['name']}'", component, values).items():
            stored = own["options"].get(option, registry.options(component)[option].default)
            # Compared as JSON, as the checkpoint stores them: a tuple becomes a list.
            same = json.dumps(value, sort_keys=True, default=str) == json.dumps(stored, sort_keys=True, default=str)
            if option not in adjustable and not same:
                free = f" Options that may change: {', '.join(sorted(adjustable))}." if adjustable else ""
                problem = f"'{model}' is a checkpoint that was trained with {kind}.{option}={stored}, not {value}"
                msg = f"{problem}. Leave it out, or start from another model.{free}"
                raise OptionError(msg)
    if description["separate_towers"] and options.separate_towers is False:
        msg = f"'{model}' is a checkpoint with an encoder for each side. Leave --shared-tower out."
        raise OptionError(msg)
    separate, seed = bool(options.separate_towers), options.seed
    retriever = Retriever.load(model, "cpu", encoder_options=encoder_options, separate_towers=separate, seed=seed)
    for kind in ("encoder", "pooler"):
        part = retriever.description[kind]
        retriever.description[kind] = registry.describe(kind, part["name"], part["options"])
    retriever.description["model"] = os.path.abspath(model) if model == str(options.model) else str(options.model)
    return retriever.train()
