"""Hits as people read them: with their texts and what made their scores, for one query or for each line typed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from rich.console import Console

from retrievalkit.conversation import converse
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.queries import Query, check_queries
from retrievalkit.errors import InputError
from retrievalkit.explain import explain
from retrievalkit.fusion import Fusion, as_hits
from retrievalkit.hits import DescribedHit, describe_hits, render
from retrievalkit.searcher import Place, Searcher, located


@dataclass
class Reader:
    """Answers queries for people: prints hits with their texts and with what made their scores.

    Attributes:
        searcher: What is searched.
        fusion: How several indexes are fused; None for one.
        corpus: Where the texts are, if not where they were when they were indexed.
        depth: Hits of each index that are fused.
        why: Whether to look for what made the scores.
        as_json: Print JSON, an object for each query.
        indent: Of the JSON; None = one line.
    """

    searcher: Searcher
    fusion: Fusion | None = None
    corpus: Place | None = None
    depth: int | None = None
    why: bool = True
    as_json: bool = False
    indent: int | None = 2

    def __post_init__(self) -> None:
        self._texts = self._open_texts()

    def hits(self, text: str, k: int) -> list[DescribedHit]:
        """The hits of a query, described.

        Raises:
            InputError: The query is empty, or the indexes cannot search for it.
        """
        query = Query("query", text)
        check_queries([query])
        found = self.searcher.search(self.searcher.ask([query]), k, self.fusion, self.depth)
        hits = as_hits(*found.rankings[0])
        candidates = None if found.candidates is None else found.candidates[0]
        told = explain(self.searcher, query, hits, corpus=self._texts, candidates=candidates, why=self.why)
        return describe_hits(hits, text, self._texts, told)

    def __call__(self, text: str, k: int) -> list[DescribedHit]:
        """Print the hits of a query."""
        hits = self.hits(text, k)
        if self.as_json:
            value = {"query": text, "hits": [hit.to_json() for hit in hits]}
            sys.stdout.write(json.dumps(value, indent=self.indent, ensure_ascii=False) + "\n")
        else:
            render(hits, Console(highlight=False))
        sys.stdout.flush()
        return hits

    def converse(self, k: int) -> None:
        """Answer each line of standard input."""
        self.indent = None
        for index in self.searcher.indexes:
            if index.needs_encoding:
                self.searcher.encoders.of(index)
        piped = not sys.stdin.isatty()

        def answer(text: str, k: int) -> None:
            if piped and not self.as_json:
                # A terminal shows what was typed.
                sys.stdout.write(f"{text}\n")
            self(text, k)
            if not self.as_json:
                sys.stdout.write("\n")
                sys.stdout.flush()

        converse(answer, k)

    def _open_texts(self) -> Corpus | None:
        if self.corpus is not None:
            return open_corpus(self.corpus)
        problem = "no index was given"
        for index in self.searcher.indexes:
            entry = index.manifest.get("corpus")
            try:
                if entry is not None:
                    return open_corpus(located(entry, index.folder) or entry["source"])
                problem = f"the manifest of '{index.folder}' names no corpus"
            except InputError as error:
                problem = str(error)
        self.searcher.note(f"the texts are not at hand ({problem}). Give them with --corpus.")
        return None
