"""Runs: for each query, the retrieved documents with their scores, best first.

Opening a run file locates the lines of each query; hits are read on demand. If the file is grouped by query, as usual,
only the query ids and 20 bytes per query are kept in memory; otherwise 20 bytes per stretch of lines with the same
query. Compressed files are unpacked to an unnamed temporary file. JSON runs (BEIR's format) are read whole.
"""

from __future__ import annotations

import codecs
import json
import re
import shutil
import tempfile
import weakref
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import gt, itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from retrievalkit.data import files, json_text
from retrievalkit.data.files import uncollected
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import id_problem
from retrievalkit.data.run_forms import KNOWN_FORMS, LARGEST_SCORE, RunForm, form_of, is_run_object
from retrievalkit.data.sources import InMemory
from retrievalkit.errors import DataError, InputError, check_choice

if TYPE_CHECKING:
    from numpy.typing import NDArray

Hits = list[tuple[str, float]]
Run = dict[str, Hits]
Ranking = tuple[Sequence[str], "Sequence[float] | NDArray[Any]"]
"""Ids and scores, best first."""

Ties = Literal["document_id", "run"]
Form = Literal["trec", "msmarco", "beir"]

# Consecutive lines with the same first cell, which ends at a tab if the line has tabs, otherwise at a space.
_SPACED = re.compile(rb"([^ \r\n][^ \n]*) [^\n]*\n(?:\1 [^\n]*\n)*")
_STRETCH = re.compile(
    rb"([^ \t\r\n][^\t\n]*)\t[^\n]*\n(?:\1\t[^\n]*\n)*|([^ \t\r\n][^ \t\n]*) [^\t\n]*\n(?:\2 [^\t\n]*\n)*"
)


class Columns(NamedTuple):
    """The hits of a query as columns of equal length."""

    documents: Sequence[str]
    scores: Sequence[float]


def ranking(run: Mapping[str, Sequence[tuple[str, float]]], query_id: str) -> Ranking:
    """Return a run's ranking for a query."""
    hits = run.get(query_id, ())
    return [document for document, _ in hits], [score for _, score in hits]


def read_run(path: str | Path, ties: Ties = "document_id") -> Run:
    """Read a run into memory; see `open_run`.

    Raises:
        DataError: A line is damaged, or a document occurs twice for a query.
    """
    with uncollected():
        return dict(open_run(path, ties))


def open_run(path: str | Path, ties: Ties = "document_id") -> Mapping[str, Hits]:
    """Open a run in any format of `run_forms`, or in BEIR's: a JSON object query -> document -> score.

    Hits are read on demand and sorted by score, as in trec_eval, regardless of the ranks.

    Args:
        path: The file, plain or compressed, or a folder with a `run.trec`.
        ties: The order of documents with equal scores: by "document_id", descending, as in trec_eval; or as in the
            "run": by its ranks, or by its line order if it has no ranks.
    """
    check_choice("choice of ties", ties, get_args(Ties))
    if isinstance(path, InMemory):
        in_memory: Mapping[str, Hits] = path.run
        return in_memory
    path = files.inside(files.existing(path), "run.trec", "results")
    if not is_run_object(path):
        return RunFile(path, form_of(path), ties)
    read = ((str(query), _scored(path, line, str(query), scores)) for line, query, scores in json_text.members(path))
    run = {query: sorted(hits.items(), key=itemgetter(1, 0), reverse=True) for query, hits in read}
    if not any(run.values()):
        msg = "the file contains no results."
        raise DataError(msg, file=path)
    return run


def check_run(run: Mapping[str, Hits]) -> None:
    """Read the unread queries of a run from `open_run`, to find damaged lines."""
    if isinstance(run, RunFile):
        run.check()


def columns_of(run: Mapping[str, Hits], query: str) -> Columns:
    """Return the hits of a query as columns, possibly unsorted and with duplicate documents; see `RunFile.columns`.

    Reading columns takes half as long as reading hits.
    """
    if isinstance(run, RunFile):
        return run.columns(query)
    hits = run[query]
    return Columns([document for document, _ in hits], [score for _, score in hits])


class RunFile(Mapping[str, Hits]):
    """Query id -> its hits, best first, read from a file at each access; see `open_run`."""

    def __init__(self, path: Path, form: RunForm, ties: Ties) -> None:
        self.path = path
        self.form = form
        self._by_rank = ties == "run"
        self._numbers: dict[str, int] = {}
        self._queries, self._starts, self._sizes = array("i"), array("q"), array("q")
        if files.is_plain(path):
            self._stream: IO[bytes] = path.open("rb")
        else:
            # An unnamed file leaves nothing behind if the process is killed.
            self._stream = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open as long as the run
            with files.open_bytes(path) as stream:
                shutil.copyfileobj(stream, self._stream, files.CHUNK)
            self._stream.flush()
        weakref.finalize(self, self._stream.close)
        self._stamp = files.stamp(self._stream.fileno())
        self._locate()
        self._seen = bytearray(len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __contains__(self, query: object) -> bool:
        return query in self._numbers

    def __getitem__(self, query: str) -> Hits:
        documents, scores = self.columns(query)
        if len(set(documents)) < len(documents):
            raise self._repeated(query)
        hits = list(zip(documents, scores, strict=True))
        if self._by_rank or _decrease(scores):
            return hits
        return sorted(hits, key=itemgetter(1, 0), reverse=True)

    def columns(self, query: str) -> Columns:
        """Return the hits of a query as columns, in line order unless `ties` is "run".

        Duplicate documents are not checked here: accessing the hits of the query raises the error.
        """
        number, form, ranks = self._numbers[query], self.form, self._by_rank
        try:
            text = self._raw(number).decode()
            rows = form.rows(text, ranks=ranks) or form.rows_one_by_one(text, self.path, ranks=ranks)
        except (DataError, UnicodeDecodeError):
            self._report_damage()
            raise
        queries, documents, scores, places = rows
        if queries.count(query) < len(queries):
            msg = f"lines of query '{query}' are separated differently. Separate all cells by tabs, or all by spaces."
            raise DataError(msg, file=self.path)
        self._seen[number] = True
        if form.rank is form.score is None:
            scores = [1 / place for place in range(1, len(documents) + 1)]
        if not ranks or _decrease(scores):
            return Columns(documents, scores)
        order = sorted(range(len(documents)), key=lambda place: (-scores[place], places[place]))
        return Columns([documents[place] for place in order], [scores[place] for place in order])

    def check(self) -> None:
        """Read the unread queries; see `check_run`."""
        for query, number in self._numbers.items():
            if not self._seen[number]:
                self[query]

    def _locate(self) -> None:
        end = 0
        for start, block in self._blocks():
            stretch = _STRETCH if b"\t" in block else _SPACED
            place = 0
            while place < len(block):
                match = stretch.match(block, place)
                line_end = block.index(b"\n", place)
                after = match.end() if match else line_end + 1
                first = block[place:line_end]
                if first and not first.isspace():
                    number = self._numbers.setdefault(self._query(first), len(self._numbers))
                    if self._queries and self._queries[-1] == number and end == start + place:
                        self._sizes[-1] += after - place
                    else:
                        self._queries.append(number)
                        self._starts.append(start + place)
                        self._sizes.append(after - place)
                    end = start + after
                place = after
        if len(self._starts) > len(self._numbers):
            # Group the stretches by query, in file order.
            import numpy

            order = numpy.argsort(numpy.frombuffer(self._queries, numpy.intc), kind="stable")
            for name in ("_queries", "_starts", "_sizes"):
                values = getattr(self, name)
                ordered = numpy.frombuffer(values, values.typecode)[order]
                setattr(self, name, array(values.typecode, ordered.tobytes()))

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of whole lines, each with its byte offset in the file."""
        self._stream.seek(0)
        bom = self._stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
        start, rest = self._stream.seek(len(codecs.BOM_UTF8) if bom else 0), b""
        while block := self._stream.read(files.CHUNK):
            whole, newline, after = block.rpartition(b"\n")
            if newline:
                lines = rest + whole + newline
                yield start, lines
                start, rest = start + len(lines), b""
            rest += after
            if len(rest) > files.LONGEST_LINE:
                msg = f"a line is longer than {files.LONGEST_LINE >> 20} MiB. Is this file a run?"
                raise DataError(msg, file=self.path)
        if rest:
            yield start, rest + b"\n"

    def _query(self, line: bytes) -> str:
        """Return the query of a line."""
        try:
            return self.form.row(line.decode().rstrip("\r"), self.path, 1, ranks=False)[0]
        except (DataError, UnicodeDecodeError):
            self._report_damage()
            raise

    def _raw(self, number: int) -> bytes:
        """Return the lines of a query."""
        place = bisect_left(self._queries, number)
        parts = []
        while place < len(self._queries) and self._queries[place] == number:
            self._stream.seek(self._starts[place])
            part = self._stream.read(self._sizes[place])
            parts.append(part if part.endswith(b"\n") else part + b"\n")
            place += 1
        # After the reads, so that a change during them is seen too.
        if files.stamp(self._stream.fileno()) != self._stamp:
            msg = "the file changed while it was being read. Start again."
            raise DataError(msg, file=self.path)
        return b"".join(parts)

    def _report_damage(self) -> None:
        """Raise the error for the first damaged line, with its number."""
        for line in files.filled_lines(self.path):
            self.form.row(line.text, self.path, line.number, ranks=self._by_rank)

    def _repeated(self, query: str) -> DataError:
        """Return the error for the first document that occurs twice for a query."""
        seen: dict[str, int] = {}
        for line in files.filled_lines(self.path):
            line_query, document, _, _ = self.form.row(line.text, self.path, line.number, ranks=False)
            if line_query == query and seen.setdefault(document, line.number) != line.number:
                break
        msg = f"document '{document}' is already at line {seen[document]} for query '{query}'. List each document once."
        return DataError(msg, file=self.path, line=line.number)


def _decrease(scores: Sequence[float]) -> bool:
    return all(map(gt, scores, islice(scores, 1, None)))


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """Return the names of runs: the file names, or the paths where two files share a name."""
    stems = [_stem(Path(path).name) for path in paths]
    shared = {stem for stem, count in Counter(stems).items() if count > 1}
    names = [str(path) if stem in shared else stem for path, stem in zip(paths, stems, strict=True)]
    if len(set(names)) < len(names):
        msg = f"a run is listed twice: {', '.join(map(str, paths))}. List each once."
        raise InputError(msg)
    return names


def _stem(name: str) -> str:
    for ending in (".gz", ".zst", ".trec", ".run", ".txt", ".tsv", ".json"):
        name = name.removesuffix(ending) or name
    return name


def write_run(
    path: str | Path,
    run: Mapping[str, Sequence[tuple[str, float]]] | Iterable[tuple[str, Sequence[tuple[str, float]]]],
    tag: str = "rkit",
    form: Form = "trec",
) -> int:
    """Write a run without sorting it; returns the number of results.

    Scores are written as the shortest decimal that gives the same 32-bit float. If an id contains a space, the cells
    of that query's lines are separated by tabs, which `read_run` supports.

    Args:
        path: The file; `.gz` and `.zst` files are compressed.
        run: The run, or an iterable of queries with their hits, written as a stream.
        tag: The last column of the TREC format.
        form: "trec", "msmarco" (query, document, rank) or "beir" (JSON).
    """
    check_choice("form of a run", form, get_args(Form))
    count = 0
    with files.write_text(path) as stream:
        stream.write("{" if form == "beir" else "")
        for number, (query, hits) in enumerate(run.items() if isinstance(run, Mapping) else run):
            if form == "beir":
                scores = {document: float(score) for document, score in _with_short_scores(hits)}
                stream.write(f"{', ' * bool(number)}{json.dumps(query)}: {json.dumps(scores)}")
            elif form == "msmarco":
                stream.writelines(f"{query}\t{document}\t{rank}\n" for rank, (document, _) in enumerate(hits, 1))
            else:
                names = [query, *(document for document, _ in hits)]
                joined = "".join(names)
                gap = "\t" if joined.split() != [joined] or not all(names) else " "
                start = gap.join((query, "Q0", ""))
                stream.writelines(
                    f"{start}{document}{gap}{rank}{gap}{score}{gap}{tag}\n"
                    for rank, (document, score) in enumerate(_with_short_scores(hits), 1)
                )
            count += len(hits)
        stream.write("}\n" if form == "beir" else "")
    return count


def _with_short_scores(hits: Sequence[tuple[str, float]]) -> Iterator[tuple[str, str]]:
    import numpy

    scores = numpy.array([score for _, score in hits], dtype=numpy.float32)
    # In this range, a decimal that round-trips with four digits is the shortest; Python formats it faster than NumPy.
    rounded = numpy.rint(scores.astype(numpy.float64) * 1e4) / 1e4
    plain = (rounded.astype(numpy.float32) == scores) & (rounded >= 1e-3) & (rounded < 512)
    short = list(map(repr, rounded.tolist()))
    for place, score in zip((~plain).nonzero()[0].tolist(), scores[~plain].astype(str).tolist(), strict=True):
        short[place] = score
    return zip((document for document, _ in hits), short, strict=True)


def _scored(path: Path, line: int, query: str, scores: Any) -> dict[str, float]:
    """Return the hits of a query in a JSON run."""
    if not isinstance(scores, dict):
        scores = {query: scores}
    hits = {}
    for document, value in scores.items():
        if problem := id_problem(query) or id_problem(document):
            msg = f"query {shown(query)} with document {shown(document)}: {problem}"
            raise DataError(msg, file=path, line=line)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_SCORE:
            msg = f"query '{query}' has {shown(value)} instead of a document with its score. {KNOWN_FORMS}"
            raise DataError(msg, file=path, line=line)
        hits[document] = float(value)
    return hits
