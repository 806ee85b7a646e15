"""The plugin contract on one page: hooks, each called once with a function that registers components.

    from retrievalkit import hookimpl

    @hookimpl
    def register_poolers(register):
        register("first_token", "my_package.poolers:FirstToken")

A component is imported when its name is used, and a plugin's top module must not import torch or transformers. Recipes
and checkpoints store names (snake_case), never import paths. `retrievalkit.contracts` has the contract of each
component, `retrievalkit.contracts.commands` the additional API for commands.

A plugin's top module declares the contract version it was written for: `retrievalkit_contract = "0.1"`. A plugin for
another contract is not loaded; `rkit plugins list` shows the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pluggy import HookspecMarker

hookspec = HookspecMarker("retrievalkit")

VERSION = "0.1.0"
"""The semantic version of the contract with plugins, which tests/contracts lists. Below 1.0, each minor version may
change anything, so a plugin must declare the same minor version. From 1.0 on, plugins for the same major version keep
working, and additions raise the minor version."""

COMMAND_GROUPS = {
    "recipes": "Experiments",
    "data": "Data",
    "train": "Train",
    "search": "Encode, index and search",
    "judge": "Evaluate",
    "plugins": "Plugins and this machine",
}
"""Groups of commands in `rkit --help`, in its order: argument of `register` -> heading."""

BUILT_IN_COMMANDS = frozenset((
    "compare", "convert", "doctor", "encode", "evaluate", "index", "mine-negatives", "plugins", "quickstart",
    "rerank", "run", "search", "train", "tune",
))  # fmt: skip
"""Commands of retrievalkit itself; plugins may not register these names."""


class Register(Protocol):
    """The argument of a hook: call it once for each component. Later versions may only add optional arguments."""

    def __call__(self, name: str, target: str, *, help: str = "", group: str = "plugins") -> None:  # noqa: A002 - click's name
        """Register a component.

        Args:
            name: The name that users type and files store, in snake_case. Commands (mine-negatives) and recipes (named
                after the distribution: retrievalkit-mine) have dashes; metrics may have capitals (nDCG).
            target: Import string of the class or function, "module:Name".
            help: A sentence, shown by `rkit --help` and `rkit plugins list`. Required for a command; for other
                components the default is the first sentence of the docstring.
            group: For a command, its group in `rkit --help`: a key of `COMMAND_GROUPS`.
        """


@dataclass(frozen=True)
class Finding:
    """A line of `rkit doctor`.

    Attributes:
        name: The subject of the check, such as "Lucene".
        value: The result, such as "Anserini 1.2 on Java 21.0.8".
        ok: True if it works. `rkit doctor` exits with code 1 if any finding is not ok.
        hint: Advice on the problem.
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
def register_compressors(register: Register) -> None:
    """Register compressors of `rkit encode --compressor`: reduce encoded documents (`contracts.Compressor`)."""


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
    """Register commands of `rkit`: declared or click commands, imported on use."""


@hookspec
def register_checks(register: Register) -> None:
    """Register checks for `rkit doctor`: each target is a function without arguments that returns Findings."""


@hookspec
def register_sources(register: Register) -> None:
    """Register sources and file formats: data of the form `NAME:...` or file.NAME (`data.sources.Source`)."""


@hookspec
def register_filters(register: Register) -> None:
    """Register filters of `rkit mine-negatives --filter`: drop hits that are not negatives (`contracts.Filter`)."""


@hookspec
def register_fusions(register: Register) -> None:
    """Register fusion methods of `rkit search --fusion`: combine several runs (`contracts.FusionMethod`)."""


@hookspec
def register_metrics(register: Register) -> None:
    """Register metrics, named like the metrics of ir-measures: `NAME(option=value)@10` (`contracts.Metric`)."""


@hookspec
def register_rerankers(register: Register) -> None:
    """Register re-rankers: models named `NAME:MODEL` instead of a cross-encoder (`contracts.Reranker`)."""


@hookspec
def register_recipes(register: Register) -> None:
    """Register folders of recipes: each target is a Path, with YAML files for `rkit run NAME/RECIPE`."""


@hookspec
def register_workers(register: Register) -> None:
    """Register workers of a cluster: `--ray` uses the workers named `ray` (`contracts.Workers`)."""


@hookspec
def register_backends(register: Register) -> None:
    """Register backends: `--backend NAME` computes layers in inference, in place of torch (`contracts.Backend`)."""
