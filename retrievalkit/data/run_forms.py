"""The formats of run files, detected from their first lines.

| format | a line |
|---|---|
| TREC | query Q0 document rank score tag |
| MS MARCO | query, document, rank |
| MS MARCO with scores | query, document, rank, score |
| scores | query, document, score with a decimal point |
| MS MARCO top 1000 | query, document, query text, passage text |

Cells are separated by tabs or other white space. Without scores, the score is 1 / rank; without ranks either, it is
1 / position in the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import hypot
from pathlib import Path
from typing import Literal, NamedTuple

from retrievalkit.data import files
from retrievalkit.data.forms import columns, is_judgement_header, number
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import id_problem
from retrievalkit.errors import DataError
from retrievalkit.reporting.terminal import counted

KNOWN_FORMS = (
    "Known formats of a run: TREC (query Q0 document rank score tag); MS MARCO (query, document, rank, maybe a score); "
    "query, document, score; MS MARCO's top 1000 (query, document, their texts); BEIR (JSON)."
)
_SAMPLE_LINES, _SAMPLE_BYTES = 20, 1 << 12
_JSON = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{\s*(?:\}|"(?:[^"\\]|\\.)*"\s*:\s*\{\s*(?:\}|"(?:[^"\\]|\\.)*"\s*:\s*[-"\dN]))'
)
_ITERATIONS = {"Q0", "q0", "0"}
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\r"))
_ODD_CELLS = ("\t\t", "\n\t", " \t", "\t ", "\n ")  # empty cells, and cells that begin or end with white space

LARGEST_SCORE = 3.4028235677973362e38
"""Scores are 32-bit floats in run files and in trec_eval; a larger score would become infinity."""


class Rows(NamedTuple):
    """Lines of a run as columns of equal length."""

    queries: Sequence[str]
    documents: Sequence[str]
    scores: Sequence[float]
    ranks: Sequence[int]


@dataclass(frozen=True)
class RunForm:
    """The layout of a run's lines: `width` cells, and the positions of their contents; the query id comes first."""

    width: int
    document: int
    rank: int | None = None
    score: int | None = None

    def rows(self, text: str, *, ranks: bool) -> Rows | None:
        """Read many whole lines in one pass if all have the usual layout; None if they must be read one by one.

        Splitting dominates the reading time, and one split of all lines takes half as long as a split per line. Ranks
        are 0 if there are scores, unless `ranks` is set.
        """
        plain = _is_plain(text)
        columns = self._columns(text)
        if columns is None or not (plain or not any(map(id_problem, {*columns[0], *columns[self.document]}))):
            return None
        usual = plain and "_" not in text
        wanted = [self.rank] if self.rank is not None and (ranks or self.score is None) else []
        wanted += [] if self.score is None else [self.score]
        for column in () if usual else wanted:
            # Numbers that only Python accepts (1_0) are left to `row`, which refuses them.
            if "_" in (joined := "".join(columns[column])) or not joined.isascii():
                return None
        try:
            places = [0] * len(columns[0])
            if self.rank in wanted:
                places = list(map(int, columns[self.rank]))
            if self.score is not None:
                scores = list(map(float, columns[self.score]))
            elif self.rank is not None:
                scores = [1 / place for place in places] if min(places) > 0 else []
            else:
                scores = [0.0] * len(places)
        except ValueError:
            return None
        # The norm bounds the largest absolute score, is NaN if any score is, and is six times as fast as a sum.
        finite = hypot(*scores) <= LARGEST_SCORE
        return Rows(columns[0], columns[self.document], scores, places) if scores and finite else None

    def _columns(self, text: str) -> list[list[str]] | None:
        """Return the columns, from a single split with line ends as cells; None unless every line has `width` cells."""
        gap = "\t" if "\t" in text else " "
        if gap == " " and ("  " in text or "\n " in text or " \n" in text or text.startswith(" ")):
            return None
        cells = text.replace("\n", f"{gap}\n{gap}").split(gap)
        lines, step = text.count("\n"), self.width + 1
        regular = len(cells) == lines * step + 1 and cells[self.width :: step].count("\n") == lines
        return [cells[column:-1:step] for column in range(self.width)] if regular else None

    def rows_one_by_one(self, text: str, path: Path, *, ranks: bool) -> Rows:
        """Like `rows`, for lines that may be empty or use different separators."""
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        rows = [self.row(line.rstrip("\r"), path, 1, ranks=ranks) for line in lines]
        return Rows(*map(list, zip(*rows, strict=True))) if rows else Rows([], [], [], [])

    def row(self, text: str, path: Path, line: int, *, ranks: bool) -> tuple[str, str, float, int]:
        """Query, document, score (0 if the format has none) and rank of a line."""
        cells = columns(text, (self.width,))
        if len(cells) != self.width:
            msg = f"the line has {counted(len(cells), 'columns')}, but earlier lines have {self.width}. {KNOWN_FORMS}"
            raise DataError(msg, file=path, line=line)
        score, rank, wrong = 0.0, 0.0, ""
        if self.rank is not None and (ranks or self.score is None):
            rank = number(cells[self.rank])
            score = 1 / max(rank, 1)
            if rank < 1 or rank % 1:
                wrong = f"{shown(cells[self.rank])} is not a rank (1, 2, 3 ...). {KNOWN_FORMS}"
        if self.score is not None:
            score = number(cells[self.score])
            if not wrong and not abs(score) <= LARGEST_SCORE:
                wrong = f"{shown(cells[self.score])} is not a score (a decimal number). {KNOWN_FORMS}"
        for kind, identifier in (("query", cells[0]), ("document", cells[self.document])):
            if not wrong and (problem := id_problem(identifier)):
                wrong = f"the id of the {kind} is {shown(identifier)}; {problem}"
        if wrong:
            raise DataError(wrong, file=path, line=line)
        return cells[0], cells[self.document], score, int(rank)


TREC = RunForm(6, document=2, rank=3, score=4)
_RANKED = RunForm(3, document=1, rank=2)
_SCORED = RunForm(3, document=1, score=2)
_RANKED_AND_SCORED = RunForm(4, document=1, rank=2, score=3)
_CANDIDATES = RunForm(4, document=1)


def form_of(path: Path) -> RunForm:
    """Detect the format of a run file from its first lines."""
    lines = list(islice(files.filled_lines(path), _SAMPLE_LINES))
    if not lines:
        msg = "the file contains no results."
        raise DataError(msg, file=path)
    cells = [columns(line.text, (TREC.width, _RANKED.width, _CANDIDATES.width)) for line in lines]
    width = len(cells[0])
    if is_judgement_header(cells[0]) or (width == 4 and all(len(row) > 1 and row[1] in _ITERATIONS for row in cells)):
        msg = "these are judgements (qrels), but a run was expected. Give the file that rkit search wrote."
        raise DataError(msg, file=path, line=lines[0].number)
    if width == TREC.width:
        return TREC
    third = [row[2] for row in cells if len(row) == width] if width > 2 else []
    if width == 3:
        return _SCORED if any(_is_fraction(cell) for cell in third) else _RANKED
    if width == 4:
        return _RANKED_AND_SCORED if all(cell.lstrip("-").isdigit() for cell in third) else _CANDIDATES
    msg = f"the line has {counted(width, 'columns')}. {KNOWN_FORMS}"
    raise DataError(msg, file=path, line=lines[0].number)


def is_run_object(path: Path) -> bool:
    """True if a file is a JSON object query -> document -> score."""
    with files.open_bytes(path) as stream:
        return _JSON.match(stream.read(_SAMPLE_BYTES)) is not None


def judgements_or_run(path: Path) -> Literal["qrels", "run"] | None:
    """Detect the kind of a file without a header; None if its first lines are ambiguous."""
    rows = [columns(line.text, (6, 4, 3)) for line in islice(files.filled_lines(path), _SAMPLE_LINES)]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        return None
    if widths == {TREC.width}:
        return "run" if all(_is_number(row[4]) for row in rows) else None
    if widths == {4}:
        if all(_is_number(row[3]) for row in rows):
            ranked = all(row[2].isdigit() for row in rows) and not all(row[1] in _ITERATIONS for row in rows)
            return "run" if ranked else "qrels"
        candidates = all(line.text.count("\t") == 3 for line in islice(files.filled_lines(path), _SAMPLE_LINES))
        return "run" if candidates else None
    return _of_three(rows) if widths == {3} else None


def _of_three(rows: Sequence[Sequence[str]]) -> Literal["qrels", "run"] | None:
    """Classify three columns: the last contains ranks (1, 2, 3 ..., all different) or grades (mostly equal)."""
    if not all(_is_number(row[2]) for row in rows):
        return None
    if any(_is_fraction(row[2]) for row in rows):
        return "run"
    third: dict[str, list[float]] = {}
    for query, _, cell in rows:
        third.setdefault(query, []).append(float(cell))
    if any(len(set(values)) < len(values) or min(values) < 1 for values in third.values()):
        return "qrels"
    return "run" if any(values == list(range(1, len(values) + 1)) != [1] for values in third.values()) else None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_fraction(cell: str) -> bool:
    return not cell.lstrip("-").isdigit() and _is_number(cell)


def _is_plain(text: str) -> bool:
    """True if the characters of these lines rule out an invalid id."""
    if not text.isascii() or ("\r" in text and text.count("\r") > text.count("\r\n")):
        return False
    if "\t" in text and any(odd in text for odd in _ODD_CELLS):
        return False
    raw = text.encode()
    return len(raw) == len(raw.translate(None, _CONTROLS)) and text[0] not in " \t"
