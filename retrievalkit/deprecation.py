"""How a promised name goes away: it works for a while and warns, naming its replacement and the contract that drops it.

@deprecated(use="retrievalkit.score.scores", dropped_in="2.0")
def old_scores(queries, documents): ...
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["deprecated", "warn_deprecated"]

Named = TypeVar("Named", bound=Callable[..., Any])

_told: set[str] = set()


def deprecated(*, use: str, dropped_in: str) -> Callable[[Named], Named]:
    """Make a function or a class warn when it is first called; see `warn_deprecated`.

    Args:
        use: What replaces it.
        dropped_in: The version of the contract that drops it.
    """

    def mark(named: Named) -> Named:
        target: Any = named.__init__ if isinstance(named, type) else named  # type: ignore[misc]

        @functools.wraps(target)
        def warning(*args: Any, **options: Any) -> Any:
            warn_deprecated(f"{named.__module__}.{named.__qualname__}", use=use, dropped_in=dropped_in)
            return target(*args, **options)

        if not isinstance(named, type):
            return warning  # type: ignore[return-value]
        named.__init__ = warning  # type: ignore[misc]
        return named

    return mark


def warn_deprecated(name: str, *, use: str, dropped_in: str) -> None:
    """Warn of a name, once in a process; for what is no function: options, attributes, names of modules.

    Args:
        name: What is used.
        use: What replaces it.
        dropped_in: The version of the contract that drops it.
    """
    if name in _told:
        return
    _told.add(name)
    # FutureWarning is shown by default, unlike DeprecationWarning: a plugin's users tell its author.
    text = f"{name} is deprecated: use {use}. Contract {dropped_in} drops it."
    warnings.warn(text, FutureWarning, stacklevel=3)
