"""The plugin contract on one page: six hooks, each called once with a function that takes a name and an import string.

    from retrievalkit import hookimpl

    @hookimpl
    def register_poolers(register):
        register("first_token", "my_package.poolers:FirstToken")

Nothing is imported before the name is used, so a plugin's top module must stay free of torch and transformers. Names
are snake_case: they, and never import paths, are what recipes and checkpoints store. What each component must be is
written in `retrievalkit.contracts`.
"""

from __future__ import annotations

from typing import Protocol

from pluggy import HookspecMarker

hookspec = HookspecMarker("retrievalkit")


class Register(Protocol):
    """What a hook is given: call it once for each component."""

    def __call__(self, name: str, target: str) -> None:
        """Register a component.

        Args:
            name: What users type and files store, snake_case.
            target: Where the class is, as "module:Class".
        """


@hookspec
def register_encoders(register: Register) -> None:
    """Register encoders: tokenise texts and turn a Batch into TokenStates (`contracts.Encoder`)."""


@hookspec
def register_poolers(register: Register) -> None:
    """Register poolers: turn TokenStates into a Representation (`contracts.Pooler`)."""


@hookspec
def register_losses(register: Register) -> None:
    """Register losses: turn the Representations of a batch into a number to minimise (`contracts.Loss`)."""


@hookspec
def register_indexers(register: Register) -> None:
    """Register indexers: build, open and search an index folder (`contracts.Indexer`)."""


@hookspec
def register_pretrainers(register: Register) -> None:
    """Register pretrainers: objectives that train an encoder on plain text (`contracts.Pretrainer`)."""


@hookspec
def register_sources(register: Register) -> None:
    """Register sources: `NAME:...` is then read wherever a file of data is (`data.sources.Source`)."""
