"""Indexes and models as PyTerrier transformers, for pipelines and experiments."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pandas as pd

import retrievalkit as rk
from retrievalkit.contracts.commands import kind_of
from retrievalkit.data import inputs
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit_adapters import is_blank, missing, note_blank, open_index, scores_of

try:
    import pyterrier as pt
except ImportError as error:
    raise missing("pyterrier", "PyTerrier") from error

# Java starts once per process: Lucene must be on the class path of PyTerrier's Java.
if find_spec("retrievalkit_pyserini") is not None and not pt.java.started():
    from retrievalkit_pyserini.java import anserini_jar

    pt.java.add_jar(str(anserini_jar()))


class IndexRetriever(pt.Transformer):
    """Retrieves documents from an index: a transformer of queries (qid, query) into results (docno, score, rank).

    Results are re-ranked: their documents get the scores of the index, or 0 if it does not retrieve them. This ranks
    the whole index for each query.

    Args:
        index: An open index or hybrid, an index folder, or a list of folders, fused by reciprocal rank fusion.
        num_results: Documents per query; `%` reduces it.
        filter: Condition on the documents' fields, as in `index.search`.
        texts: True to add the columns title and text, which re-rankers read.

    Raises:
        InputError: The index does not exist.
    """

    def __init__(self, index: Any, num_results: int = 1000, filter: str | None = None, texts: bool = False) -> None:
        self.index = open_index(index)
        self.num_results = num_results
        self.filter = filter
        self.texts = texts

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Search for the queries; a blank query has no results.

        Raises:
            UnsupportedError: `texts` is set, but the index has no corpus to read them from.
        """
        with pt.validate.any(inp) as mode:
            mode.query_frame(extra_columns=["query"])
            mode.result_frame(extra_columns=["query"])
        inp = _with_queries(inp)
        run: dict[str, Any] = {}
        queries = dict(zip(inp["qid"], inp["query"], strict=True))
        if "docno" in inp:
            for query, text in queries.items():
                scored = scores_of(self.index, text, documents := inp["docno"][inp["qid"] == query], self.filter)
                run[query] = [*scored, *((docno, 0.0) for docno in documents if docno not in dict(scored))]
        elif queries:
            run = self.index.search(queries, self.num_results, filter=self.filter)
        rows = [
            (query, document, score, rank)
            for query, hits in run.items()
            for rank, (document, score) in enumerate(hits, pt.model.FIRST_RANK)
        ]
        results = pd.DataFrame(rows, columns=["qid", "docno", "score", "rank"])
        if self.texts:
            from retrievalkit.search.public import open_texts

            corpus = open_texts(self.index.searcher, self.index.corpus)
            if corpus is None:
                msg = f"'{self.index.name}' has no corpus to read texts from. Open it with corpus=..., or drop texts."
                raise UnsupportedError(msg)
            passages = [corpus.get(document) for document in results["docno"]]
            results["title"] = [passage.title for passage in passages]
            results["text"] = [passage.text for passage in passages]
        if "docno" in inp:
            return inp.drop(columns=[*results.columns[2:]], errors="ignore").merge(results, on=["qid", "docno"])
        return inp.merge(results, on="qid")

    def fuse_rank_cutoff(self, k: int) -> IndexRetriever:
        """Return the retriever that `retriever % k` is compiled to."""
        return IndexRetriever(self.index, min(k, self.num_results), self.filter, self.texts)

    def __repr__(self) -> str:
        return f"IndexRetriever({self.index.name!r}, {self.num_results})"


def _with_queries(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose query is not blank.

    PyTerrier's `+` leaves the query of some results empty; other results of the query have it.
    """
    texts = {str(qid): query for qid, query in zip(frame["qid"], frame["query"], strict=True) if not is_blank(query)}
    named = frame.assign(qid=frame["qid"].astype(str))
    note_blank(named["qid"].nunique() - len(texts), named["qid"].nunique())
    kept = named[named["qid"].isin(texts.keys())]
    return kept.assign(query=kept["qid"].map(texts))


class Reranker(pt.Transformer):
    """Scores the texts of results: a transformer of results (qid, query, docno, text) that replaces score and rank.

    Args:
        model: A cross-encoder (a folder, a hub name, or a plugin's re-ranker as `NAME:MODEL`); or a retriever, which
            compares the vectors of query and text: a checkpoint of `rk.train`, or a loaded `rk.Retriever`.
        corpus: The passages of results without a text, such as PyTerrier's `+` returns; None = these are refused.

    Raises:
        InputError: The model does not exist.
    """

    def __init__(self, model: Any, corpus: Any = None) -> None:
        from retrievalkit.search.public import open_reranker

        if not isinstance(model, rk.Retriever) and kind_of(model) == "checkpoint":
            model = rk.Retriever.load(model)
        self.model = model if isinstance(model, rk.Retriever) else open_reranker(model)
        self._name = str(getattr(self.model, "source", model))
        self.corpus = None if corpus is None else open_corpus(inputs.passages(corpus))

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Score the texts, with their titles if there are any; a blank query has no results.

        Raises:
            InputError: A result has no text, and there is no corpus to read it from.
        """
        pt.validate.result_frame(inp, extra_columns=["query", *([] if self.corpus else ["text"])])
        results = _with_queries(inp).reset_index(drop=True).assign(score=0.0)
        for name in {"title", "text"} - {*results.columns}:
            results[name] = "" if name == "title" else None
        lacking = results["text"].isna()
        if lacking.any() and self.corpus is None:
            first = results[lacking].iloc[0]
            msg = (
                f"{lacking.sum():,} of {len(results):,} results have no text to score, such as '{first['docno']}' of "
                f"the query '{first['qid']}'. Read them from the corpus: Reranker(model, corpus=...), or retrieve "
                "with IndexRetriever(..., texts=True)."
            )
            raise InputError(msg)
        if self.corpus is not None:
            passages = [self.corpus.get(docno) for docno in results.loc[lacking, "docno"]]
            results.loc[lacking, "title"] = [passage.title for passage in passages]
            results.loc[lacking, "text"] = [passage.text for passage in passages]
        titles = results["title"].fillna("")
        for query, rows in results.groupby("query", sort=False).groups.items():
            results.loc[rows, "score"] = self._scores(query, list(titles[rows]), list(results["text"][rows]))
        return pt.model.add_ranks(results)

    def _scores(self, query: Any, titles: Sequence[str], texts: Sequence[str]) -> Any:
        if isinstance(self.model, rk.Retriever):
            passages = [{"title": title, "text": text} for title, text in zip(titles, texts, strict=True)]
            return self.model.encode_queries([query]).scores(self.model.encode_documents(passages))[0]
        from retrievalkit.search.public import score_pairs

        pairs = self.model.tokenize([query] * len(texts), list(zip(titles, texts, strict=True)))
        return score_pairs(self.model, pairs)

    def __repr__(self) -> str:
        return f"Reranker({self._name!r})"
