"""Permissions that only the user can grant: running a model's code, and using credentials.

Recipes, checkpoints and manifests may come from strangers, so they can grant neither. Code runs only if the environment
allows it; `anonymously` withholds the hub's token from objects that a file names, and `in_recipe` is True while the
options of a command come from a recipe instead of the user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

TRUST = "RKIT_TRUST_REMOTE_CODE"
"""Environment variable: 1 allows models to run their own Python code."""

_ANONYMOUS = ContextVar("anonymous", default=False)
_IN_RECIPE = ContextVar("in_recipe", default=False)


def code_allowed() -> bool:
    """True if the user allows models to run their own Python code."""
    return os.environ.get(TRUST) == "1"


def is_anonymous() -> bool:
    """True if a file named the object being opened, so that no token may be sent."""
    return _ANONYMOUS.get()


def in_recipe() -> bool:
    """True while a step of a recipe runs, with options from a file."""
    return _IN_RECIPE.get()


@contextmanager
def anonymously(needed: bool = True) -> Iterator[None]:
    """Send no token for anything opened inside."""
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
