"""What is around the methods: sources, filters of mined negatives, fusion methods, metrics, re-rankers and recipes.

The classes are beside the programs that use them.
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
    "SetP": "Precision of all that was found.",
    "Success": "Whether a relevant document was found.",
    "nDCG": "Normalised discounted cumulative gain; the gain is the grade.",
}
"""The usual ones of ir-measures, all of which are read."""


@hookimpl
def register_sources(register: Register) -> None:
    """The built-in sources, through the same hook as everybody's."""
    register("documents", "retrievalkit.data.sources.documents:Documents")
    register("hf", "retrievalkit.data.sources.remote:HuggingFace")
    register("irds", "retrievalkit.data.sources.remote:IrDatasets")
    register("pydoc", "retrievalkit.data.sources.pydoc:PythonDocumentation")
    register("parquet", "retrievalkit.data.sources.parquet:Parquet")
    for ending in ("jsonl", "json", "tsv", "csv"):
        register(ending, "retrievalkit.data.sources.local:Local")


@hookimpl
def register_filters(register: Register) -> None:
    """The built-in filters."""
    for name, target in {
        "known_positive": "KnownPositive",
        "positive_copy": "PositiveCopy",
        "same_document": "SameDocument",
        "like_positive": "LikePositive",
        "answer": "Answer",
        "rank": "Rank",
        "absolute_margin": "AbsoluteMargin",
        "relative_margin": "RelativeMargin",
        "like_better": "LikeBetter",
        "reranked": "Reranked",
    }.items():
        register(name, f"retrievalkit.mine.filters:{target}")


@hookimpl
def register_fusions(register: Register) -> None:
    """The built-in fusion methods."""
    register("rrf", "retrievalkit.search.fusion:ReciprocalRanks")
    register("sum", "retrievalkit.search.fusion:Sum")
    register("linear", "retrievalkit.search.fusion:Linear")


@hookimpl
def register_metrics(register: Register) -> None:
    """The built-in metrics."""
    for name, text in METRICS.items():
        register(name, "retrievalkit.evaluate.measures:IrMeasure", help=text)


@hookimpl
def register_rerankers(register: Register) -> None:
    """The built-in re-ranker."""
    register("cross_encoder", "retrievalkit.model.cross_encoder:CrossEncoder")


@hookimpl
def register_recipes(register: Register) -> None:
    """The recipes of this repository, which `rkit run` finds without the prefix too."""
    register("retrievalkit", "retrievalkit.recipe.files:FOLDER", help="The recipes that come with retrievalkit.")
