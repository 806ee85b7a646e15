"""The plugin contract on one page: hooks, each called once with a function that takes a name and an import string.

    from retrievalkit import hookimpl

    @hookimpl
    def register_poolers(register):
        register("first_token", "my_package.poolers:FirstToken")

Nothing is imported before the name is used, so a plugin's top module must stay free of torch and transformers. Names
are snake_case: they, and never import paths, are what recipes and checkpoints store. What each component must be is
written in `retrievalkit.contracts`; what a command may use besides, in `retrievalkit.contracts.commands`.

A plugin's top module says which contract it was written for: `retrievalkit_contract = "1"`, or "1.2" if it needs what
1.2 added. A plugin of another contract is not loaded; `rkit plugins list` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pluggy import HookspecMarker

hookspec = HookspecMarker("retrievalkit")

VERSION = "1.0.0"
"""The version of the contract, semantic: of what plugins may rely on, which tests/contracts lists. A plugin of the same
first number keeps working; the second number grows with what is added."""

COMMAND_GROUPS = {
    "recipes": "Whole experiments",
    "data": "Data",
    "train": "Train",
    "search": "Encode, index and search",
    "judge": "Judge",
    "plugins": "Plugins and this machine",
}
"""Groups of commands in `rkit --help`, in its order: what `register` takes -> the heading."""

BUILT_IN_COMMANDS = frozenset((
    "compare", "convert", "doctor", "encode", "evaluate", "index", "mine-negatives", "plugins", "pretrain",
    "quickstart", "rerank", "run", "search", "train", "tune",
))  # fmt: skip
"""Commands of retrievalkit itself: no plugin may register these names."""


class Register(Protocol):
    """The argument of a hook: call it once for each component.

    Later versions may add optional arguments, never required ones.
    """

    def __call__(self, name: str, target: str, *, help: str = "", group: str = "plugins") -> None:  # noqa: A002 - click's name
        """Register a component.

        Args:
            name: The name that users type and files store, in snake_case. With dashes for a command (mine-negatives)
                and for recipes (the distribution's: retrievalkit-mine); a metric's may have capitals (nDCG).
            target: Where the class or function is, as "module:Name".
            help: One sentence, shown by `rkit --help` and `rkit plugins list`. A command needs it; for other
                components the default is the first sentence of the docstring.
            group: For a command, the group of `rkit --help` to list it in: a key of `COMMAND_GROUPS`.
        """


@dataclass(frozen=True)
class Finding:
    """One line of `rkit doctor`.

    Attributes:
        name: What was examined, such as "Lucene".
        value: What was found, such as "Anserini 1.2 on Java 21.0.8".
        ok: Whether it works. `rkit doctor` exits with code 1 if any finding is not ok.
        hint: What to do about it.
    """

    name: str
    value: str
    ok: bool = True
    hint: str = ""


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
def register_commands(register: Register) -> None:
    """Register commands of `rkit`: each is a declared or a click command, imported when used."""


@hookspec
def register_checks(register: Register) -> None:
    """Register checks for `rkit doctor`: each target is a function without arguments that returns Findings."""


@hookspec
def register_sources(register: Register) -> None:
    """Register sources and file formats: `NAME:...`, or a file.NAME, is then read as data (`data.sources.Source`)."""


@hookspec
def register_filters(register: Register) -> None:
    """Register filters of `rkit mine-negatives --filter`: drop hits that are no negatives (`contracts.Filter`)."""


@hookspec
def register_fusions(register: Register) -> None:
    """Register fusion methods of `rkit search --fusion`: what each run adds to a score (`contracts.FusionMethod`)."""


@hookspec
def register_metrics(register: Register) -> None:
    """Register metrics, named like those of ir-measures from then on: `NAME(option=value)@10` (`contracts.Metric`)."""


@hookspec
def register_rerankers(register: Register) -> None:
    """Register re-rankers: `NAME:MODEL` is then taken wherever a cross-encoder is (`contracts.Reranker`)."""


@hookspec
def register_recipes(register: Register) -> None:
    """Register folders of recipes: each target is a Path, and `rkit run NAME/RECIPE` finds the YAML files below it."""


@hookspec
def register_workers(register: Register) -> None:
    """Register workers of a cluster; those named `ray` do what `--ray` spreads (`contracts.Workers`)."""
