"""Questions and answers at a prompt: `rkit search INDEX... --interactive`.

A line is a query; lines that start with a colon are commands. If standard input is not a terminal, every line of it is
answered without a prompt.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from retrievalkit.contracts import Candidates
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.queries import Query, check_queries
from retrievalkit.errors import InputError, RetrievalkitError
from retrievalkit.indexing.open_indexes import Place, open_recorded_corpus
from retrievalkit.reporting.terminal import printable, printable_json, say
from retrievalkit.search.explain import explain
from retrievalkit.search.fusion import Fusion, as_hits
from retrievalkit.search.hits import DescribedHit, describe_hits, render
from retrievalkit.search.searcher import Searcher

PROMPT = "query> "

HELP = """\
Type a query, or
  :k N     show N hits
  :help    show this
  :q       quit (also Ctrl-D)"""


def converse(answer: Callable[[str, int], object], k: int) -> None:
    """Answer each line of standard input, until its end or `:q`.

    An error in one query is reported on standard error and does not end the session.
    """
    for line in _lines():
        name, _, value = line.partition(" ")
        if name == ":q":
            return
        try:
            if name == ":k" and value.strip().isdigit() and int(value) > 0:
                k = int(value)
            elif name == ":k":
                _say(f"Error: ':k {value}' should be a number of hits, such as :k 20.")
            elif name == ":help":
                _say(HELP)
            elif name.startswith(":"):
                _say(f"Error: unknown command '{name}'. {HELP}")
            elif line:
                answer(line, k)
        except RetrievalkitError as error:
            _say(f"Error: {error}")
        except KeyboardInterrupt:
            _say("Interrupted.")


def _say(text: str) -> None:
    sys.stdout.flush()
    say(text, err=True)
    sys.stderr.flush()


def _lines() -> Iterator[str]:
    """The lines of standard input, stripped; on a terminal, with a prompt and a history."""
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            # An invalid byte should spoil a character, not end the session.
            sys.stdin.reconfigure(errors="replace")
        yield from map(str.strip, sys.stdin)
        return
    with contextlib.suppress(ImportError):
        # Imported for its effect on input(): a history and line editing.
        import readline  # noqa: F401
    while True:
        try:
            if not sys.stdout.isatty():  # answers go to a file or a pipe
                sys.stderr.write(PROMPT)
                sys.stderr.flush()
            yield input(PROMPT if sys.stdout.isatty() else "").strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            # As in a shell: the line is discarded.
            sys.stdout.write("\n")


@dataclass
class Reader:
    """Prints the hits of queries with their texts and the reasons for their scores."""

    searcher: Searcher
    fusion: Fusion | None = None
    corpus: Place | None = None
    depth: int | None = None
    why: bool = True
    as_json: bool = False
    indent: int | None = 2

    def __post_init__(self) -> None:
        self._texts = open_texts(self.searcher, self.corpus)
        if self._texts is not None:
            # They were told of when the corpus was indexed, and hits are shown one by one.
            self._texts.counts_empty = False

    def warm(self) -> None:
        """Find out where each text is, which the first hits would wait for."""
        if self._texts is not None:
            self._texts.missing([""])

    def described(
        self, query: Query, hits: Sequence[tuple[str, float]], candidates: Candidates | None, why: bool | None = None
    ) -> list[DescribedHit]:
        """Hits with their texts and the reasons for their scores."""
        why = self.why if why is None else why
        reasons = explain(self.searcher, query, hits, corpus=self._texts, candidates=candidates, why=why)
        return describe_hits(hits, query.text, self._texts, reasons)

    def __call__(self, text: str, k: int) -> list[DescribedHit]:
        """Print the hits of a query, and return them."""
        query = Query("query", text)
        check_queries([query])
        hits = self.described(query, *search_one(self.searcher, query, k, self.fusion, self.depth))
        if self.as_json:
            value = {"query": text, "hits": [hit.to_json() for hit in hits]}
            sys.stdout.write(printable_json(json.dumps(value, indent=self.indent, ensure_ascii=False)) + "\n")
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
                # On a terminal the query is visible already.
                sys.stdout.write(f"{printable(text)}\n")
            self(text, k)
            if not self.as_json:
                sys.stdout.write("\n")
                sys.stdout.flush()

        converse(answer, k)


def open_texts(searcher: Searcher, corpus: Place | None = None) -> Corpus | None:
    """The texts of hits: of a given source, or of the corpus that was indexed; None, which is told, if it is gone."""
    if corpus is not None:
        return open_corpus(corpus)
    problem = "no index was given"
    for index in searcher.indexes:
        entry = index.manifest.get("corpus")
        try:
            if entry is not None:
                return open_recorded_corpus(entry, index.folder)
            problem = f"the manifest of '{index.folder}' names no corpus"
        except InputError as error:
            problem = str(error)
    searcher.note(f"the texts are not available: {problem.rstrip('.')}. Give them with --corpus.")
    return None


def search_one(
    searcher: Searcher, query: Query, k: int, fusion: Fusion | None, depth: int | None
) -> tuple[list[tuple[str, float]], Candidates | None]:
    """The hits of a query, and those of each index if several are fused."""
    found = searcher.search(searcher.ask([query]), k, fusion, depth)
    return as_hits(*found.rankings[0]), None if found.candidates is None else found.candidates[0]
