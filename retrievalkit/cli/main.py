"""The command `rkit`: the built-in commands by section."""

from __future__ import annotations

import click

from retrievalkit import __version__
from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.cli.doctor import doctor
from retrievalkit.cli.export import export
from retrievalkit.cli.group import RootGroup
from retrievalkit.cli.mine import mine_negatives
from retrievalkit.cli.plugins import group as plugins
from retrievalkit.cli.rerank import rerank
from retrievalkit.cli.run import quickstart, run
from retrievalkit.cli.serve import serve
from retrievalkit.conversion import convert
from retrievalkit.evaluate.compare.compare import compare
from retrievalkit.evaluate.evaluate import evaluate
from retrievalkit.indexing.encode import encode
from retrievalkit.indexing.index import index
from retrievalkit.search.search import search
from retrievalkit.training.pretrain import pretrain
from retrievalkit.training.train import train


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rkit")
def main() -> None:
    """Train, index, search and compare first-stage text retrievers; every method is a plugin.

    `rkit COMMAND --help` explains a command and its options.
    """


main.add_section("recipes", DerivedCommand(quickstart), DerivedCommand(run))
main.add_section("data", DerivedCommand(convert), mine_negatives)
main.add_section("train", DerivedCommand(pretrain), DerivedCommand(train), rerank)
main.add_section("search", DerivedCommand(encode), DerivedCommand(index), DerivedCommand(search), serve, export)
main.add_section("judge", DerivedCommand(evaluate), DerivedCommand(compare))
main.add_section("plugins", plugins, DerivedCommand(doctor))
