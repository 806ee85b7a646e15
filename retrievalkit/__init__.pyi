"""The public names: `__init__.py` imports them on first use."""

from pluggy import HookimplMarker
from retrievalkit_documents.collection import Collection as Collection
from retrievalkit_documents.sync import sync as sync
from retrievalkit_export.export import export as export
from retrievalkit_pretrain.pretrain import pretrain as pretrain
from retrievalkit_serve.serve import serve as serve

from retrievalkit.cli.command import command as command
from retrievalkit.cli.doctor import doctor as doctor
from retrievalkit.cli.plugins import plugins as plugins
from retrievalkit.cli.plugins import show_plugin as show_plugin
from retrievalkit.cli.run import quickstart as quickstart
from retrievalkit.cli.run import run as run
from retrievalkit.data.convert import convert as convert
from retrievalkit.data.example_table import Examples as Examples
from retrievalkit.data.passage_parts import Document as Document
from retrievalkit.evaluation.compare.compare import compare as compare
from retrievalkit.evaluation.compare.comparison import Comparison as Comparison
from retrievalkit.evaluation.results import Evaluation as Evaluation
from retrievalkit.evaluation.run import Run as Run
from retrievalkit.indexing.encode import encode as encode
from retrievalkit.indexing.index import IndexFolder as IndexFolder
from retrievalkit.indexing.index import index as index
from retrievalkit.indexing.vectors import Vectors as Vectors
from retrievalkit.mining.mine import mine_negatives as mine_negatives
from retrievalkit.objects.hybrid import Hybrid as Hybrid
from retrievalkit.objects.index import Index as Index
from retrievalkit.objects.retriever import Retriever as Retriever
from retrievalkit.reporting.table import Table as Table
from retrievalkit.search.rerank import rerank as rerank
from retrievalkit.search.searching import Hit as Hit
from retrievalkit.search.searching import Hits as Hits
from retrievalkit.storage.manifest import Folder as Folder
from retrievalkit.training.train import train as train
from retrievalkit.training.train_reranker import train_reranker as train_reranker
from retrievalkit.training.tune import tune as tune

__version__: str
hookimpl: HookimplMarker
