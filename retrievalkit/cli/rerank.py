"""The command group `rkit rerank`."""

from __future__ import annotations

import click

from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.cli.group import RkitGroup
from retrievalkit.search.rerank import rerank as apply
from retrievalkit.training.train_reranker import train_reranker


@click.group(cls=RkitGroup)
def rerank() -> None:
    """Train a cross-encoder, and apply it to a run or to training examples."""


rerank.add_command(DerivedCommand(train_reranker))
rerank.add_command(DerivedCommand(apply))
