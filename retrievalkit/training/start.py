"""Where a training starts: a pretrained model with new parts, or a checkpoint of ours with all that it has learnt.

From a checkpoint go on the weights of both towers, the vocabulary head, extra tokens, adapters, the tokenizer, the
pooler's weights, and every option. What the user gives beside it:

    another encoder, another pooler          refused: the weights belong to theirs
    an option of the pooler                  refused if it differs from the checkpoint's
    an option of the encoder                 wins if it is `adjustable` (lengths, dropout ...), else refused likewise
    --separate-towers                        both start from the checkpoint's; two are not made one (--shared-tower)
    loss and options of the training         free: a checkpoint has none of its own
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrievalkit import registry
from retrievalkit.errors import OptionError
from retrievalkit.model.checkpoint import is_checkpoint, missing_plugins_explained, read_checkpoint
from retrievalkit.model.retriever import Retriever, note_left_out


def start(
    model: str,
    *,
    encoder: str | None,
    pooler: str | None,
    encoder_options: Mapping[str, Any],
    pooler_options: Mapping[str, Any],
    separate_towers: bool | None,
    seed: int,
) -> Retriever:
    """The retriever to train, on the CPU and in training mode.

    Args:
        model: Name or folder of a pretrained model, or a checkpoint folder.
        encoder: Registered name of the encoder; None = the checkpoint's, else "transformer".
        pooler: Registered name of the pooler; None = the checkpoint's, else see `Retriever.create`.
        encoder_options: Options of the encoder.
        pooler_options: Options of the pooler.
        separate_towers: Whether queries and documents get an encoder each; None = as the checkpoint, else no.
        seed: Seed of weights that are drawn.

    Raises:
        OptionError: Something contradicts the checkpoint.
    """
    if not is_checkpoint(model):
        note_left_out(model, encoder, pooler, encoder_options, pooler_options)
        return Retriever.create(
            model,
            encoder=encoder or "transformer",
            pooler=pooler,
            encoder_options=encoder_options,
            pooler_options=pooler_options,
            separate_towers=bool(separate_towers),
            seed=seed,
        )
    description, _ = read_checkpoint(model)
    with missing_plugins_explained(description, model):
        _check_part(model, description, "encoder", encoder, encoder_options)
        _check_part(model, description, "pooler", pooler, pooler_options)
    if description["separate_towers"] and separate_towers is False:
        msg = f"'{model}' is a checkpoint with an encoder for each side, and --shared-tower wants one. Leave it out."
        raise OptionError(msg)
    retriever = Retriever.load(
        model, "cpu", encoder_options=encoder_options, separate_towers=bool(separate_towers), seed=seed
    )
    for kind in ("encoder", "pooler"):
        part = retriever.description[kind]
        retriever.description[kind] = registry.describe(kind, part["name"], part["options"])
    retriever.description["model"] = os.path.abspath(model)
    return retriever.train()


def _check_part(
    model: str, description: Mapping[str, Any], kind: str, name: str | None, options: Mapping[str, Any]
) -> None:
    """Refuse a part other than the checkpoint's, and an option that its weights were not trained with."""
    own = description[kind]
    if name is not None and name != own["name"]:
        inner = Path(model) / ("query" if description["separate_towers"] else "encoder")
        msg = (
            f"'{model}' is a checkpoint whose {kind} is '{own['name']}', and --{kind} {name} names another, with which "
            f"its weights were not trained. Leave --{kind} out, or start from its encoder alone: --model {inner}"
        )
        raise OptionError(msg)
    made_of = registry.get(kind, own["name"])
    known = registry.options(made_of)
    adjustable: frozenset[str] = getattr(made_of, "adjustable", frozenset())
    for option, value in registry.check_options(f"{kind} '{own['name']}'", made_of, options).items():
        stored = own["options"].get(option, known[option].default)
        if option in adjustable or _as_json(value) == _as_json(stored):
            continue
        free = f" Options that may change: {', '.join(sorted(adjustable))}." if adjustable else ""
        msg = (
            f"'{model}' is a checkpoint that was trained with {kind}.{option}={stored}, and {kind}.{option}={value} "
            f"contradicts that. Leave it out, or start from another model.{free}"
        )
        raise OptionError(msg)


def _as_json(value: Any) -> str:
    """A value as the checkpoint stores it: a tuple is a list there."""
    return json.dumps(value, sort_keys=True, default=str)
