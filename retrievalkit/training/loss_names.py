"""The names of losses as they are written: `contrastive`, `contrastive+flops`, `matryoshka(contrastive+flops)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from retrievalkit import registry
from retrievalkit.errors import OptionError

_TOKEN = re.compile(r"\s*([+()]|[^+()]+)")


@dataclass(frozen=True)
class Term:
    """A loss by its name, and the sum that it is made of; [] for one that is made of none."""

    name: str
    inner: list[Term] = field(default_factory=list)

    def names(self) -> Iterator[str]:
        """Its name, and those within."""
        yield self.name
        for term in self.inner:
            yield from term.names()

    def __str__(self) -> str:
        return f"{self.name}({'+'.join(map(str, self.inner))})" if self.inner else self.name


def parse_loss(text: str) -> list[Term]:
    """The terms of the sum that a text names, one or more.

    Raises:
        UnknownNameError: There is no loss of such a name.
        OptionError: A parenthesis or a plus sign is at the wrong place; a loss is made of no other, or must be.
    """
    tokens = [one.strip() for one in _TOKEN.findall(text)]
    terms = _sum(tokens, text)
    if tokens:
        raise _wrong(text, f"'{tokens[0]}' follows where it should end")
    for term in terms:
        _check(term, text)
    return terms


def _sum(tokens: list[str], text: str) -> list[Term]:
    """Take a sum from the front of the tokens."""
    terms = [_term(tokens, text)]
    while tokens and tokens[0] == "+":
        tokens.pop(0)
        terms.append(_term(tokens, text))
    return terms


def _term(tokens: list[str], text: str) -> Term:
    name = tokens.pop(0) if tokens else ""
    if not name or name in "+()":
        # As the registry says it, where the name alone is empty.
        registry.component("loss", "" if not text.strip("+() ") else name)
    if not tokens or tokens[0] != "(":
        return Term(name)
    tokens.pop(0)
    inner = _sum(tokens, text)
    if not tokens or tokens.pop(0) != ")":
        raise _wrong(text, "a parenthesis is not closed")
    return Term(name, inner)


def _check(term: Term, text: str) -> None:
    wraps = getattr(registry.get("loss", term.name), "wraps", False)
    if term.inner and not wraps:
        raise _wrong(text, f"'{term.name}' is made of no other loss")
    if wraps and not term.inner:
        raise _wrong(text, f"'{term.name}' is made of another loss, such as '{term.name}(contrastive)'")
    for one in term.inner:
        _check(one, text)


def _wrong(text: str, problem: str) -> OptionError:
    msg = f"--loss '{text}': {problem}. Write NAME, NAME+NAME, or 'matryoshka(NAME)' in quotes."
    return OptionError(msg)
