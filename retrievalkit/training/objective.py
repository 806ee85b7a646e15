"""The training objective: a retriever and a loss, which may be a sum of losses or a wrapper around another loss.

    rkit train --loss contrastive+flops --set loss.contrastive.temperature=0.05 --set loss.flops.flops_query=0.01
    rkit train --loss "matryoshka(contrastive)" --set loss.matryoshka.dimensions=128,64

A sum adds a regulariser to any loss. Each loss has its own options, including its weight.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue
from retrievalkit.errors import OptionError, nearest
from retrievalkit.models.retriever import Retriever

Terms = list[tuple[str, "Terms"]]

COSINE_TEMPERATURE = 0.05
"""Default temperature for cosine scores: they differ by at most 2, too little for a softmax without scaling."""


class Objective(nn.Module):
    """A retriever, and a loss that may have its own parameters."""

    def __init__(self, retriever: Retriever, loss: Loss) -> None:
        super().__init__()
        # First: gradients are summed from the last weight on, and gradient caching ends with those of an encoding.
        self.loss = loss
        self.retriever = retriever


class LossSum(Loss):
    """Sum of several losses of the same batch."""

    def __init__(self, losses: Mapping[str, Loss]) -> None:
        super().__init__()
        self.names = tuple(losses)
        self.losses = nn.ModuleList(losses.values())
        self.needs_teacher = any(loss.needs_teacher for loss in losses.values())

    def forward(self, *batch: Any, **optional: Any) -> LossValue:
        """Return the sum and all terms; a term name shared by two losses becomes LOSS.TERM."""
        values = [loss(*batch, **optional) for loss in self.losses]
        seen = Counter(term for value in values for term in value.terms)
        terms = {
            term if seen[term] == 1 else f"{name}.{term}": number
            for name, value in zip(self.names, values, strict=True)
            for term, number in value.terms.items()
        }
        return LossValue(sum(value.total for value in values[1:]) + values[0].total, terms)


def create_loss(name: str, options: Mapping[str, Any], *, cosine: bool = False) -> Loss:
    """Create the loss with this name: a loss, a wrapper with another loss in parentheses, or a sum with plus signs."""
    own = options_by_loss(name, options, cosine=cosine)

    def create(terms: Terms) -> Loss:
        losses: dict[str, Loss] = {}
        for part, inner in terms:
            losses[part] = registry.create("loss", part, *([create(inner)] if inner else []), **own[part])
        return LossSum(losses) if len(losses) > 1 else next(iter(losses.values()))

    return create(_parse(name))


def describe_loss(name: str, options: Mapping[str, Any], *, cosine: bool = False) -> dict[str, Any]:
    """Return the registry's description of the loss; for a sum, of each loss by name."""
    own = options_by_loss(name, options, cosine=cosine)
    described = {part: registry.describe("loss", part, own) for part, own in own.items()}
    if len(described) == 1:
        return next(iter(described.values()))
    return {"name": "".join(name.split())} | {
        key: {part: value[key] for part, value in described.items()} for key in ("options", "distribution", "version")
    }


def options_by_loss(name: str, options: Mapping[str, Any], *, cosine: bool = False) -> dict[str, dict[str, Any]]:
    """Return the options of each loss in an expression; a single loss gets all options.

    Args:
        name: "contrastive", "contrastive+flops", or "matryoshka(contrastive)".
        options: {"temperature": 1} of a single loss, {"contrastive": {"temperature": 1}} of several.
        cosine: True if scores are cosines; this sets the default temperature.
    """

    def complete(part: str, own: Mapping[str, Any]) -> dict[str, Any]:
        temperature = registry.options(registry.get("loss", part)).get("temperature")
        if temperature is None or temperature.default is not None or own.get("temperature") is not None:
            return dict(own)
        return {**own, "temperature": COSINE_TEMPERATURE if cosine else 1.0}

    def names_of(terms: Terms) -> list[str]:
        return [name for part, inner in terms for name in (part, *names_of(inner))]

    names = names_of(_parse(name))
    if repeated := [part for part in names if names.count(part) > 1]:
        msg = f"--loss {name} names '{repeated[0]}' twice. Name each loss once, and weigh it by its own options."
        raise OptionError(msg)
    if len(names) == 1:
        return {names[0]: complete(names[0], options)}
    for key, value in options.items():
        if key not in names or not isinstance(value, Mapping):
            owners = [part for part in names if key in registry.options(registry.get("loss", part))]
            setting = f"{key}.OPTION" if key in names else f"{owners[0]}.{key}" if owners else f"{names[0]}.OPTION"
            close = nearest(key, names)
            hint = f"; did you mean '{close}'?" if close and close != key else "."
            problem = f"--loss {name} names several losses, and loss.{key} does not name a loss and its option"
            msg = f"{problem}{hint} Write --set loss.{setting}=VALUE."
            raise OptionError(msg)
    return {part: complete(part, options.get(part, {})) for part in names}


def _parse(text: str) -> Terms:
    """Parse a loss expression (Python syntax) into the losses of its sum, each with the sum that it wraps, or []."""
    form = "Write NAME, NAME+NAME, or 'matryoshka(NAME)' in quotes."

    def terms(node: ast.expr) -> Terms:
        match node:
            case ast.BinOp(left, ast.Add(), right):
                return terms(left) + terms(right)
            case ast.Name(name):
                inner: Terms = []
            case ast.Call(ast.Name(name), [argument], []):
                inner = terms(argument)
            case _:
                msg = f"--loss '{text}': '{ast.unparse(node)}' is not the name of a loss. {form}"
                raise OptionError(msg)
        if getattr(registry.get("loss", name), "wraps", False) != bool(inner):
            need = "does not wrap another loss" if inner else f"wraps another loss, such as '{name}(contrastive)'"
            msg = f"--loss '{text}': '{name}' {need}. {form}"
            raise OptionError(msg)
        return [(name, inner)]

    if not set("+()") & set(text):
        registry.component("loss", text.strip())
    try:
        return terms(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        msg = f"--loss '{text}': a name or a parenthesis is missing. {form}"
        raise OptionError(msg) from None
