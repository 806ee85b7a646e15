"""The built-in components, registered through the same hooks as any plugin's.

Sources, filters, fusion methods, metrics and re-rankers are defined next to the programs that use them.
"""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

METRICS = {
    "AP": "Average precision.",
    "Bpref": "Binary preference: judged non-relevant documents before relevant ones.",
    "ERR": "Expected reciprocal rank.",
    "IPrec": "Interpolated precision at a recall: IPrec@0.1.",
    "Judged": "The share of judged documents.",
    "P": "Precision.",
    "R": "Recall.",
    "RR": "Reciprocal rank of the first relevant document.",
    "Rprec": "Precision at as many documents as are relevant.",
    "SetP": "Precision of all retrieved documents.",
    "Success": "1 if a relevant document is retrieved, else 0.",
    "nDCG": "Normalised discounted cumulative gain; the gain is the grade.",
}
"""The usual metrics of ir-measures; its other metrics are accepted too."""


@hookimpl
def register_encoders(register: Register) -> None:
    """Register the built-in encoder."""
    register("transformer", "retrievalkit.models.encoders.transformer:Transformer")


@hookimpl
def register_poolers(register: Register) -> None:
    """Register the built-in poolers."""
    for name in ("cls", "mean", "max", "last"):
        register(name, f"retrievalkit.models.poolers.single_vector:{name.capitalize()}")
    register("projected", "retrievalkit.models.poolers.single_vector:Projected")
    register("colbert", "retrievalkit.models.poolers.colbert:ColBERT")


@hookimpl
def register_losses(register: Register) -> None:
    """Register the built-in losses."""
    register("contrastive", "retrievalkit.models.losses.contrastive:Contrastive")
    register("distill_kl", "retrievalkit.models.losses.distillation:DistillKL")
    register("margin_mse", "retrievalkit.models.losses.distillation:MarginMSE")
    register("matryoshka", "retrievalkit.models.losses.matryoshka:Matryoshka")


@hookimpl
def register_indexers(register: Register) -> None:
    """Register the built-in indexers."""
    for name in ("flat", "faiss", "sparse", "small"):
        register(name, f"retrievalkit.indexing.indexers.{name}:{name.capitalize()}")
    register("dense_sparse", "retrievalkit.indexing.indexers.dense_sparse:DenseSparse")


@hookimpl
def register_sources(register: Register) -> None:
    """Register the built-in sources."""
    register("parquet", "retrievalkit.data.sources.local:Parquet")
    for ending in ("jsonl", "json", "tsv", "csv"):
        register(ending, "retrievalkit.data.sources.local:Local")


@hookimpl
def register_filters(register: Register) -> None:
    """Register the built-in filters."""
    for name in (
        "known_positive", "positive_copy", "same_document", "like_positive", "answer", "rank", "absolute_margin",
        "relative_margin", "like_better", "reranked",
    ):  # fmt: skip
        register(name, f"retrievalkit.mining.filters:{name.title().replace('_', '')}")


@hookimpl
def register_fusions(register: Register) -> None:
    """Register the built-in fusion methods."""
    register("rrf", "retrievalkit.search.fusion:ReciprocalRanks")
    register("sum", "retrievalkit.search.fusion:Sum")
    register("linear", "retrievalkit.search.fusion:Linear")


@hookimpl
def register_metrics(register: Register) -> None:
    """Register the built-in metrics."""
    for name, text in METRICS.items():
        register(name, "retrievalkit.evaluation.metric_names:IrMeasure", help=text)


@hookimpl
def register_rerankers(register: Register) -> None:
    """Register the built-in re-ranker."""
    register("cross_encoder", "retrievalkit.models.cross_encoder:CrossEncoder")


@hookimpl
def register_recipes(register: Register) -> None:
    """Register the recipes of this repository, which `rkit run` also finds without the prefix."""
    register("retrievalkit", "retrievalkit.recipes.files:FOLDER", help="The recipes that come with retrievalkit.")


@hookimpl
def register_workers(register: Register) -> None:
    """Register the processes that torchrun started."""
    register("torchrun", "retrievalkit.training.ranks:Ranks")
