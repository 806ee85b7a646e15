"""What only the person at the keyboard may allow: running the code of a model, and using credentials.

Recipes, checkpoints and manifests may come from strangers, so nothing that they contain can allow either. Code runs if
the environment says so; while something that a file names is opened, `anonymously` keeps the hub's token back, and
while a step of a recipe runs, `in_recipe` says that its options are not the user's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

TRUST = "RKIT_TRUST_REMOTE_CODE"
"""Environment variable: 1 lets models run the Python code that comes with them."""

_ANONYMOUS = ContextVar("anonymous", default=False)
_IN_RECIPE = ContextVar("in_recipe", default=False)


def code_allowed() -> bool:
    """Whether the user lets models run the Python code that comes with them."""
    return os.environ.get(TRUST) == "1"


def is_anonymous() -> bool:
    """Whether what is opened now was named by a file, so that no token may be sent for it."""
    return _ANONYMOUS.get()


def in_recipe() -> bool:
    """Whether a step of a recipe runs, so that its options come from a file."""
    return _IN_RECIPE.get()


@contextmanager
def anonymously(needed: bool = True) -> Iterator[None]:
    """Send no token for what is opened inside."""
    with _set(_ANONYMOUS, needed or _ANONYMOUS.get()):
        yield


@contextmanager
def recipe_step() -> Iterator[None]:
    """Run a command whose options come from a recipe."""
    with _set(_IN_RECIPE, True):
        yield


@contextmanager
def _set(variable: ContextVar[bool], value: bool) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
