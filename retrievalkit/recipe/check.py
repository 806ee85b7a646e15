"""Whether the components that a recipe's step names are installed and have the options that it sets.

Asked of all steps before the first one runs: a misspelt option of the tenth training should not show a day later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from retrievalkit import registry
from retrievalkit.errors import InputError
from retrievalkit.recipe.recipe import Step, flatten

_KINDS = ("encoder", "pooler", "loss", "indexer", "pretrainer")


def check_components(step: Step, command: click.Command, options: Mapping[str, Any]) -> None:
    """Refuse components and settings that there are not.

    Args:
        step: For the complaint.
        command: Its command, which has the default components.
        options: The step's, filled in.

    Raises:
        DataError: Says which component or option, with file and line.
    """
    settings = _nested(options.get("set") or {})
    given = {str(one.name): one.default for one in command.params if isinstance(one.default, str)} | dict(options)
    if step.command == "train" and given.get("loss") is None:
        given["loss"] = _default_loss(str(given.get("pooler")))
    # Where a command takes a few fixed names, these are no components.
    fixed = {one.name for one in command.params if isinstance(one.type, click.Choice)}
    for kind in (one for one in _KINDS if one not in fixed):
        name, section = given.get(kind), settings.pop(kind, {})
        if name is not None:
            _named(step, kind, lambda name=name, kind=kind, section=section: _check(kind, str(name), section))
    checks = {"train": _check_training, "rerank train": _check_reranking, "mine-negatives": _check_mining}
    if settings and step.command in checks:
        _named(step, "set", lambda: checks[step.command](settings))


def _named(step: Step, option: str, check: Any) -> None:
    """Run a check; what it complains about is the step's."""
    try:
        check()
    except InputError as error:
        raise step.error(str(error), option if option in step.places else "set") from None


def _default_loss(pooler: str) -> str | None:
    """The loss that a pooler is trained with; None where that depends on its options, or there is no such pooler."""
    if pooler not in registry.names("pooler"):
        return None
    default = getattr(registry.get("pooler", pooler), "default_loss", None)
    return default if isinstance(default, str) else None


def _check(kind: str, name: str, options: Mapping[str, Any]) -> None:
    from retrievalkit.train.objective import options_by_loss

    parts = options_by_loss(name, options) if kind == "loss" else {name: options}
    for part, own in parts.items():
        registry.check_options(f"{kind} '{part}'", registry.get(kind, part), own)


def _check_training(settings: Mapping[str, Any]) -> None:
    from retrievalkit.train.options import TrainingOptions

    registry.check_options("rkit train", TrainingOptions, settings)


def _check_reranking(settings: Mapping[str, Any]) -> None:
    from retrievalkit.train.options import RerankerOptions

    registry.check_options("rkit rerank train", RerankerOptions, settings)


def _check_mining(settings: Mapping[str, Any]) -> None:
    from retrievalkit.mine.program import check_settings

    check_settings(settings)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Options by sections: {"pooler.layers": [4]} -> {"pooler": {"layers": [4]}}."""
    nested: dict[str, Any] = {}
    for key, value in flatten(settings).items():
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return nested
