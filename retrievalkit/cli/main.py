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
    "quickstart": (
        "recipes",
        "retrievalkit.cli.run:quickstart",
        "Train, index, search and compare on real text: a first run of all steps, with a table of results.",
    ),
    "run": (
        "recipes",
        "retrievalkit.cli.run:run",
        "Run the steps of a recipe in order, skipping steps whose inputs have not changed.",
    ),
    "convert": (
        "data",
        "retrievalkit.data.convert:convert",
        "Convert a source in any known format, or a folder of .txt, .md, .html, .pdf and .docx files, to our format.",
    ),
    "mine-negatives": (
        "data",
        "retrievalkit.mining.mine:mine_negatives",
        "Mine hard negatives: passages that rank high but do not answer the question.",
    ),
    "pretrain": (
        "train",
        "retrievalkit.training.pretrain:pretrain",
        "Pre-train a model on documents, and write a Hugging Face folder.",
    ),
    "train": (
        "train",
        "retrievalkit.training.train:train",
        "Train a retriever on examples, and write a checkpoint folder.",
    ),
    "tune": (
        "train",
        "retrievalkit.training.tune:tune",
        "Search learning rate, temperature and epochs within a time budget, and write the best checkpoint.",
    ),
    "rerank": (
        "train",
        "retrievalkit.cli.rerank:rerank",
        "Train a cross-encoder, and apply it to a run or to training examples.",
    ),
    "encode": (
        "search",
        "retrievalkit.indexing.encode:encode",
        "Encode TEXTS (a corpus or queries) with MODEL (a checkpoint or a pretrained model).",
    ),
    "index": (
        "search",
        "retrievalkit.indexing.index:index",
        "Index SOURCE: a vectors folder (rkit encode) or a corpus.",
    ),
    "search": (
        "search",
        "retrievalkit.search.search:search",
        "Search one INDEX, or several and combine their hits.",
    ),
    "evaluate": (
        "judge",
        "retrievalkit.evaluation.evaluate:evaluate",
        "Evaluate runs against judgements, or by the answers in their passages.",
    ),
    "compare": (
        "judge",
        "retrievalkit.evaluation.compare.compare:compare",
        "Compare runs: paired significance tests, wins and losses; printed, or as a page or a table.",
    ),
    "plugins": (
        "plugins",
        "retrievalkit.cli.plugins:group",
        "List, show, check, create and install plugins: encoders, poolers, losses, indexers, commands and more.",
    ),
    "doctor": (
        "plugins",
        "retrievalkit.cli.doctor:doctor",
        "Report the state of this machine: Python, packages, processor, plugins and their requirements.",
    ),
}
