"""What is trained: a retriever and a loss, which may be a sum of several.

    rkit train --loss contrastive+flops --set loss.contrastive.temperature=0.05 --set loss.flops.flops_query=0.01

So a regulariser can be added to any loss. Each loss of a sum has options of its own, its weight among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import OptionError, nearest
from retrievalkit.model.retriever import Retriever
from retrievalkit.registry import describe


class Objective(nn.Module):
    """What is trained: a retriever, and a loss that may have parameters of its own."""

    def __init__(self, retriever: Retriever, loss: Loss) -> None:
        super().__init__()
        self.retriever = retriever
        self.loss = loss


class LossSum(Loss):
    """The sum of several losses of one batch.

    Args:
        losses: Name -> loss.
    """

    def __init__(self, losses: Mapping[str, Loss]) -> None:
        super().__init__()
        self.names = tuple(losses)
        self.losses = nn.ModuleList(losses.values())
        self.needs_teacher = any(loss.needs_teacher for loss in losses.values())

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> LossValue:
        """The sum, and the terms of all; a term that two losses have is named LOSS.TERM."""
        values = [loss(queries, documents, positives, progress, ignore, teacher) for loss in self.losses]
        seen = Counter(term for value in values for term in value.terms)
        terms = {
            term if seen[term] == 1 else f"{name}.{term}": number
            for name, value in zip(self.names, values, strict=True)
            for term, number in value.terms.items()
        }
        return LossValue(sum(value.total for value in values[1:]) + values[0].total, terms)


def create_loss(name: str, options: Mapping[str, Any]) -> Loss:
    """The loss of that name, or the sum of those that are named with plus signs.

    Raises:
        UnknownNameError: Nobody registered it.
        OptionError: An option that it has not, or of a loss that is not in the sum.
    """
    made = {one: registry.create("loss", one, **own) for one, own in options_by_loss(name, options).items()}
    return LossSum(made) if len(made) > 1 else next(iter(made.values()))


def describe_loss(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What `retriever.describe` says of the loss; of a sum, what it says of each, by name."""
    described = {one: describe("loss", one, own) for one, own in options_by_loss(name, options).items()}
    if len(described) == 1:
        return next(iter(described.values()))
    keys: Sequence[str] = ("options", "distribution", "version")
    return {"name": "+".join(described)} | {key: {one: value[key] for one, value in described.items()} for key in keys}


def options_by_loss(name: str, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each loss of a sum with its own options; of one loss alone, all that are given.

    Args:
        name: "contrastive", or "contrastive+flops".
        options: Of one loss {"temperature": 1}, of a sum {"contrastive": {"temperature": 1}}.
    """
    names = [part.strip() for part in name.split("+")]
    for one in names:
        registry.component("loss", one)
        if names.count(one) > 1:
            msg = f"--loss {name} names '{one}' twice. Name each loss once, and weigh it by its own options."
            raise OptionError(msg)
    if len(names) == 1:
        return {names[0]: dict(options)}
    for key, value in options.items():
        if problem := _problem(names, key, value):
            msg = f"--loss {name} is a sum, and {problem}"
            raise OptionError(msg)
    return {one: dict(options.get(one, {})) for one in names}


def _problem(names: Sequence[str], key: str, value: Any) -> str:
    """What is wrong with an option of a sum of losses; "" where nothing is."""
    if key in names and isinstance(value, Mapping):
        return ""
    if key in names:
        return f"loss.{key}={value} sets no option. Set one of '{key}': --set loss.{key}.OPTION=VALUE."
    if isinstance(value, Mapping):
        close = nearest(key, names)
        offer = f"; did you mean '{close}'?" if close else "."
        return f"'{key}' is none of its losses{offer} Leave out loss.{key}, or add the loss."
    owners = list(_owners(names, key)) or names
    settings = " or ".join(f"--set loss.{one}.{key}={value}" for one in owners)
    return f"loss.{key} does not say whose option it is. Write {settings}."


def _owners(names: Sequence[str], option: str) -> Iterator[str]:
    return (one for one in names if option in registry.options(registry.get("loss", one)))
