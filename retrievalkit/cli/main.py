"""The command `rkit`: built-in commands by section of the help; each is imported on use."""

from __future__ import annotations

import click

from retrievalkit import __version__
from retrievalkit.cli.group import RootGroup


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rkit")
def main() -> None:
    """Train, index, search and compare first-stage text retrievers; every method is a plugin.

    `rkit COMMAND --help` explains a command and its options.
    """


main.built_in = {
    "quickstart": ("recipes", "retrievalkit.cli.run:quickstart"),
    "run": ("recipes", "retrievalkit.cli.run:run"),
    "convert": ("data", "retrievalkit.data.convert:convert"),
    "mine-negatives": ("data", "retrievalkit.mining.mine:mine_negatives"),
    "train": ("train", "retrievalkit.training.train:train"),
    "tune": ("train", "retrievalkit.training.tune:tune"),
    "rerank": ("train", "retrievalkit.cli.rerank:rerank"),
    "encode": ("search", "retrievalkit.indexing.encode:encode"),
    "index": ("search", "retrievalkit.indexing.index:index"),
    "search": ("search", "retrievalkit.search.search:search"),
    "evaluate": ("judge", "retrievalkit.evaluation.evaluate:evaluate"),
    "compare": ("judge", "retrievalkit.evaluation.compare.compare:compare"),
    "plugins": ("plugins", "retrievalkit.cli.plugins:group"),
    "doctor": ("plugins", "retrievalkit.cli.doctor:doctor"),
}
