"""The training objective: a retriever and a loss, which may be a sum of several, or made of another.

    rkit train --loss contrastive+flops --set loss.contrastive.temperature=0.05 --set loss.flops.flops_query=0.01
    rkit train --loss "matryoshka(contrastive)" --set loss.matryoshka.dimensions=128,64

So a regulariser can be added to any loss. Each loss has its own options, including its weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import OptionError, nearest
from retrievalkit.model.retriever import Retriever
from retrievalkit.registry import describe
from retrievalkit.training.loss_names import Term, parse_loss


class Objective(nn.Module):
    """A retriever, and a loss that may have parameters of its own."""

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
        """The sum, and all terms; a term name shared by two losses becomes LOSS.TERM."""
        values = [loss(queries, documents, positives, progress, ignore, teacher) for loss in self.losses]
        seen = Counter(term for value in values for term in value.terms)
        terms = {
            term if seen[term] == 1 else f"{name}.{term}": number
            for name, value in zip(self.names, values, strict=True)
            for term, number in value.terms.items()
        }
        return LossValue(sum(value.total for value in values[1:]) + values[0].total, terms)


def create_loss(name: str, options: Mapping[str, Any]) -> Loss:
    """The loss of that name, made of the one in parentheses, or the sum of the losses joined by plus signs.

    Raises:
        UnknownNameError: There is no loss of that name.
        OptionError: An unknown option, an option of a loss that is not named, or parentheses at the wrong place.
    """
    return _made(parse_loss(name), options_by_loss(name, options))


def _made(terms: Sequence[Term], options: Mapping[str, Mapping[str, Any]]) -> Loss:
    losses: dict[str, Loss] = {}
    for term in terms:
        inner = [_made(term.inner, options)] if term.inner else []
        losses[term.name] = registry.create("loss", term.name, *inner, **options[term.name])
    return LossSum(losses) if len(losses) > 1 else next(iter(losses.values()))


def describe_loss(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The registry's description of the loss; of a sum, of each loss by name."""
    described = {part: describe("loss", part, own) for part, own in options_by_loss(name, options).items()}
    if len(described) == 1:
        return next(iter(described.values()))
    keys: Sequence[str] = ("options", "distribution", "version")
    return {"name": "+".join(map(str, parse_loss(name)))} | {
        key: {part: value[key] for part, value in described.items()} for key in keys
    }


def options_by_loss(name: str, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each loss of a sum, and each that is made of another, with its own options; a single loss gets all of them.

    Args:
        name: "contrastive", "contrastive+flops", or "matryoshka(contrastive)".
        options: Of one loss {"temperature": 1}, of several {"contrastive": {"temperature": 1}}.
    """
    names = [part for term in parse_loss(name) for part in term.names()]
    for part in names:
        if names.count(part) > 1:
            msg = f"--loss {name} names '{part}' twice. Name each loss once, and weigh it by its own options."
            raise OptionError(msg)
    if len(names) == 1:
        return {names[0]: dict(options)}
    for key, value in options.items():
        if problem := _problem(names, key, value):
            msg = f"--loss {name} names several, and {problem}"
            raise OptionError(msg)
    return {part: dict(options.get(part, {})) for part in names}


def _problem(names: Sequence[str], key: str, value: Any) -> str:
    """The problem with an option of a sum of losses; "" if there is none."""
    if key in names and isinstance(value, Mapping):
        return ""
    if key in names:
        return f"loss.{key}={value} sets no option. Set one of '{key}': --set loss.{key}.OPTION=VALUE."
    if isinstance(value, Mapping):
        close = nearest(key, names)
        offer = f"; did you mean '{close}'?" if close else "."
        return f"'{key}' is not one of its losses{offer} Leave out loss.{key}, or add the loss."
    owners = [name for name in names if key in registry.options(registry.get("loss", name))] or names
    settings = " or ".join(f"--set loss.{owner}.{key}={value}" for owner in owners)
    return f"loss.{key} does not say whose option it is. Write {settings}."
