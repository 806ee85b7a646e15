"""The command `rkit`: the built-in commands by section."""

from __future__ import annotations

import click

from retrievalkit import __version__
from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.cli.doctor import doctor
from retrievalkit.cli.group import RkitGroup, RootGroup
from retrievalkit.cli.plugins import group as plugins
from retrievalkit.cli.run import quickstart, run
from retrievalkit.data.convert import convert
from retrievalkit.evaluation.compare.compare import compare
from retrievalkit.evaluation.evaluate import evaluate
from retrievalkit.indexing.encode import encode
from retrievalkit.indexing.index import index
from retrievalkit.mining.mine import mine_negatives
from retrievalkit.search.rerank import rerank as rerank_apply
from retrievalkit.search.search import search
from retrievalkit.training.pretrain import pretrain
from retrievalkit.training.train import train
from retrievalkit.training.train_reranker import train_reranker


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rkit")
def main() -> None:
    """Train, index, search and compare first-stage text retrievers; every method is a plugin.

    `rkit COMMAND --help` explains a command and its options.
    """


@click.group(cls=RkitGroup)
def rerank() -> None:
    """Train a cross-encoder, and apply it to a run or to training examples."""


rerank.add_command(DerivedCommand(train_reranker))
rerank.add_command(DerivedCommand(rerank_apply))

main.add_section("recipes", DerivedCommand(quickstart), DerivedCommand(run))
main.add_section("data", DerivedCommand(convert), DerivedCommand(mine_negatives))
main.add_section("train", DerivedCommand(pretrain), DerivedCommand(train), rerank)
main.add_section("search", DerivedCommand(encode), DerivedCommand(index), DerivedCommand(search))
main.add_section("judge", DerivedCommand(evaluate), DerivedCommand(compare))
main.add_section("plugins", plugins, DerivedCommand(doctor))
