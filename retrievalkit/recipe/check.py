"""Checks that the components a recipe's step names are installed and have the options that it sets.

All steps are checked before the first one runs: a misspelt option of the tenth training should not show a day later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from retrievalkit import registry
from retrievalkit.errors import InputError
from retrievalkit.recipe.settings import flatten
from retrievalkit.recipe.step import Step

_KINDS = ("encoder", "pooler", "loss", "indexer", "pretrainer")


def check_components(step: Step, command: click.Command, options: Mapping[str, Any]) -> None:
    """Refuse unknown components and settings.

    Args:
        step: The step, for the place in an error.
        command: Its command, which has the default components.
        options: The step's options, filled in.

    Raises:
        DataError: Names the component or option, with file and line.
    """
    settings = _nested(options.get("set") or {})
    defaults = {str(option.name): option.default for option in command.params if isinstance(option.default, str)}
    given = defaults | dict(options)
    if step.command == "train" and any(option.name == "pooler" for option in command.params):
        given["encoder"] = given.get("encoder") or "transformer"
        # The default is the model's own pooling (mean, max, last), which has the options and the loss of cls.
        given["pooler"] = given.get("pooler") or "cls"
        given["loss"] = given.get("loss") or _default_loss(str(given["pooler"]))
    # An option with a fixed choice of names does not name a component.
    fixed = {option.name for option in command.params if isinstance(option.type, click.Choice)}
    for kind in _KINDS:
        if kind in fixed:
            continue
        name, section = given.get(kind), settings.pop(kind, {})
        if name is not None:
            _named(step, kind, lambda name=name, kind=kind, section=section: _check(kind, str(name), section))
    declared = getattr(command, "declared", None)
    if declared is not None:
        _named(step, "set", lambda: declared.settings(settings))


def _named(step: Step, option: str, check: Any) -> None:
    """Run a check; its errors name the step."""
    try:
        check()
    except InputError as error:
        raise step.error(str(error), option if option in step.places else "set") from None


def _default_loss(pooler: str) -> str | None:
    """The loss that a pooler is trained with; None if its options decide, or if the pooler is unknown."""
    if pooler not in registry.names("pooler"):
        return None
    default = getattr(registry.get("pooler", pooler), "default_loss", None)
    return default if isinstance(default, str) else None


def _check(kind: str, name: str, options: Mapping[str, Any]) -> None:
    from retrievalkit.training.objective import options_by_loss

    parts = options_by_loss(name, options) if kind == "loss" else {name: options}
    for part, own in parts.items():
        registry.check_options(f"{kind} '{part}'", registry.get(kind, part), own)


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
