"""The command `rkit`: all commands under one name."""

from __future__ import annotations

import click

from retrievalkit import __version__
from retrievalkit.cli.compare import compare
from retrievalkit.cli.convert import convert
from retrievalkit.cli.doctor import doctor
from retrievalkit.cli.encode import encode
from retrievalkit.cli.evaluate import evaluate
from retrievalkit.cli.group import RkitGroup
from retrievalkit.cli.index import index
from retrievalkit.cli.mine import mine_negatives
from retrievalkit.cli.plugins import plugins
from retrievalkit.cli.pretrain import pretrain
from retrievalkit.cli.quickstart import quickstart
from retrievalkit.cli.rerank import rerank
from retrievalkit.cli.run import run
from retrievalkit.cli.search import search
from retrievalkit.cli.train import train
from retrievalkit.cli.views import analyse_views


@click.group(cls=RkitGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rkit")
def main() -> None:
    """Train, index, search and compare first-stage text retrievers; every method is a plugin."""


for command in (
    train,
    pretrain,
    encode,
    index,
    search,
    mine_negatives,
    rerank,
    evaluate,
    compare,
    analyse_views,
    convert,
    run,
    quickstart,
    plugins,
    doctor,
):
    main.add_command(command)
