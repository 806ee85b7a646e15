"""Where data comes from: files (plain, gzip or zstandard), Hugging Face datasets and ir_datasets, as records.

A record is what one line, one row or one array element holds, with its place, so that every complaint can name file
and line. Files are read as a stream, and told apart by their first bytes rather than by their names.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from retrievalkit.artifacts import fingerprint_file, fingerprint_folder, fingerprint_value, write_file
from retrievalkit.errors import DataError, MissingDependencyError, nearest

PREFIXES = ("hf", "irds", "pydoc")
COMPRESSIONS = ("", ".gz", ".zst")
_CHUNK = 1 << 20
_LONGEST_ELEMENT = 1 << 28
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Record(NamedTuple):
    """What one line holds, and where it stands.

    Attributes:
        file: The file or source.
        line: Counted from 1.
        fields: Name -> value.
        start: Of a plain file, the byte where the record starts.
        end: The byte after the record.
        element: In a JSON array, the element's number, counted from 1; otherwise 0.
    """

    file: str
    line: int
    fields: dict[str, Any]
    start: int = 0
    end: int = 0
    element: int = 0

    def error(self, problem: str) -> DataError:
        """A complaint about this record."""
        return DataError(f"element {self.element}: {problem}" if self.element else problem, file=self.file, line=self.line)

    def identifier(self, name: str) -> str:
        """The id in a field; whole numbers become text."""
        return as_identifier(self.fields[name], name, self)

    def text(self, name: str) -> str:
        """The text in a field."""
        return as_text(self.fields[name], name, self)

    def texts(self, name: str) -> tuple[str, ...]:
        """The list of texts in a field; () where it is absent or null, and one text counts as a list of one."""
        value = self.fields.get(name)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else as_list(value, name, self)
        return tuple(as_text(one, name, self) for one in values)

    def identifiers(self, name: str) -> tuple[str, ...]:
        """The list of ids in a field; () where it is absent or null."""
        value = self.fields.get(name)
        return () if value is None else tuple(as_identifier(one, name, self) for one in as_list(value, name, self))


class Table(NamedTuple):
    """How the rows of a table are read.

    Attributes:
        names: Of the columns.
        header: Whether the first row is one.
        quoted: Whether cells are quoted as in csv.
        bare: A column whose text loses the quotation marks at both ends, as DPR's reader does.
    """

    names: tuple[str, ...]
    header: bool = False
    quoted: bool = False
    bare: str = ""

    def fields(self, row: list[str]) -> dict[str, Any]:
        """Name -> cell."""
        cells = dict(zip(self.names, row, strict=True))
        if self.bare:
            cells[self.bare] = cells[self.bare].strip('"')
        return cells


TableForm = Callable[[list[str]], Table | None]


def as_identifier(value: object, name: str, record: Record) -> str:
    """An id: text without tabs and line breaks, or a whole number, which becomes text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise record.error(f"'{name}' is {_shown(value)}; an id is text or a whole number.")
    if "\n" in value or "\t" in value or "\r" in value:
        raise record.error(f"'{name}' is {_shown(value)}; an id holds no tabs and no line breaks.")
    return value


def as_text(value: object, name: str, record: Record) -> str:
    """A text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise record.error(f"'{name}' is {_shown(value)}, and should be text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON can hold half of a surrogate pair, which no tokeniser and no file takes.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def as_list(value: object, name: str, record: Record) -> list[Any]:
    """A list."""
    if not isinstance(value, list | tuple):
        raise record.error(f"'{name}' is {_shown(value)}, and should be a list.")
    return list(value)


def unknown_form(record: Record, kind: str, forms: tuple[str, ...]) -> DataError:
    """The complaint about a record whose fields are those of no known form."""
    found = ", ".join(record.fields) or "none"
    return record.error(f"no form of {kind} has these fields: {found}. Known forms: {'; '.join(forms)}.")


def split_prefix(source: str | Path) -> tuple[str, str]:
    """Take a source apart: ("hf" | "irds" | "pydoc", the rest), or ("", the path)."""
    prefix, colon, rest = str(source).partition(":")
    return (prefix, rest) if colon and prefix in PREFIXES else ("", str(source))


def existing(path: str | Path) -> Path:
    """A path that exists.

    Raises:
        DataError: There is nothing; names the nearest file in that folder.
    """
    path = Path(path)
    if path.exists():
        return path
    problem = f"'{path}' does not exist"
    if not path.parent.is_dir():
        problem += f", and neither does the folder '{path.parent}'"
    elif close := nearest(path.name, sorted(one.name for one in path.parent.iterdir())):
        problem += f"; did you mean '{path.parent / close}'?"
    raise DataError(f"{problem.rstrip('?.')}{'?' if problem.endswith('?') else '.'} Check the path.")


def find_file(folder: Path, name: str) -> Path | None:
    """A file of this name in a folder, plain or compressed."""
    return next((path for end in COMPRESSIONS if (path := folder / f"{name}{end}").is_file()), None)


def is_folder(source: str | Path) -> bool:
    """Whether a source is a folder on this machine."""
    return not split_prefix(source)[0] and Path(source).is_dir()


def inside(path: Path, name: str, kinds: str) -> Path:
    """The file itself, or the file of this name (plain or compressed) in the folder that `path` is."""
    if not path.is_dir():
        return path
    if found := find_file(path, name):
        return found
    there = ", ".join(sorted(one.name for one in path.iterdir())[:12]) or "nothing"
    msg = f"the folder has no {name} (nor {name}.gz, {name}.zst), where its {kinds} would be. It holds {there}."
    raise DataError(msg, file=path)


def fingerprint(source: str | Path) -> str:
    """A fingerprint of a source's content; of a remote one, of its name and version."""
    prefix, rest = split_prefix(source)
    if prefix == "pydoc":
        from retrievalkit.data import pydoc

        return pydoc.fingerprint(rest)
    if prefix:
        return fingerprint_value([prefix, rest, _fetched_version(prefix, rest)])
    path = existing(rest)
    return fingerprint_folder(path) if path.is_dir() else fingerprint_file(path)


def is_plain(path: str | Path) -> bool:
    """Whether a file is not compressed, so that its bytes can be read at any place."""
    with Path(path).open("rb") as stream:
        return not stream.read(4).startswith((_GZIP, _ZSTD))


@contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacking gzip and zstandard, which are known by their first bytes."""
    path = existing(path)
    if path.is_dir():
        msg = f"'{path}' is a folder, and a file was expected."
        raise DataError(msg)
    with path.open("rb") as stream:
        start = stream.peek(4)[:4]
        if start.startswith(_ZSTD):
            with _zstandard(path).ZstdDecompressor().stream_reader(stream, read_across_frames=True) as packed:
                yield io.BufferedReader(packed, _CHUNK)
        elif start.startswith(_GZIP):
            with gzip.open(stream) as unpacked:
                yield io.BufferedReader(unpacked, _CHUNK)  # type: ignore[type-var]
        else:
            yield stream


@contextmanager
def open_text(path: str | Path) -> Iterator[Iterator[str]]:
    """Open a text file (plain, gzip or zstandard) for reading line by line, strictly as UTF-8."""
    yield (line for _, line in read_lines(path))


@contextmanager
def write_text(path: str | Path) -> Iterator[IO[str]]:
    """Open a text file for writing; `.gz` and `.zst` are packed, and the file appears when it is whole."""
    with write_file(path) as staging, staging.open("wb") as raw, _packed(raw, Path(path)) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()


def write_jsonl(path: str | Path, rows: Iterator[dict[str, Any]]) -> int:
    """Write one JSON object a line and return how many there were."""
    count = 0
    with write_text(path) as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, without line ends."""
    for line, _, _, text in _lines(path):
        yield line, text


def read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON lines file with their line numbers; empty lines are skipped."""
    for record in _json_lines(Path(path)):
        yield record.line, record.fields


def read_records(path: str | Path, form: TableForm, kinds: str) -> Iterator[Record]:
    """The records of a file: JSON lines, a JSON array, or a table, told apart by the first character.

    Args:
        path: The file.
        form: Given the cells of a table's first row, says how the table is read, or None for "no known form".
        kinds: What the records are, for complaints: "passages".
    """
    path = Path(path)
    start = first_character(path)
    if not start:
        msg = f"the file is empty, and {kinds} were expected."
        raise DataError(msg, file=path)
    if start == "{":
        yield from _json_lines(path)
    elif start == "[":
        yield from _json_array(path)
    else:
        yield from _table(path, form, kinds)


def parse_record(raw: bytes, file: str, table: Table | None) -> Record:
    """A record from its bytes, as `read_records` found them; `table` is None for JSON lines."""
    text = raw.decode().replace("\r\n", "\n")
    if table is None:
        return Record(file, 0, json.loads(text))
    if table.quoted:
        row = next(csv.reader(io.StringIO(text, newline=""), delimiter="\t"))
    else:
        row = text.rstrip("\r\n").split("\t")
    return Record(file, 0, table.fields(row))


def table_of(path: str | Path, form: TableForm) -> Table | None:
    """How a file's table is read, or None where the file is JSON."""
    if first_character(path) in ("{", "["):
        return None
    _, _, _, first = next(_filled(_lines(path)))
    return form(next(csv.reader([first], delimiter="\t")))


def first_character(path: str | Path) -> str:
    """The first character of a file that is no white space; "" for an empty file."""
    with open_bytes(path) as stream, _unpacking(path):
        while block := stream.read(_CHUNK):
            if text := block.decode("utf-8", "replace").lstrip("\ufeff \t\r\n"):
                return text[0]
    return ""


def fetched_records(prefix: str, name: str, part: str, split: str | None = None) -> Iterator[Record]:
    """The records of a Hugging Face dataset ("hf") or of ir_datasets ("irds").

    Args:
        prefix: "hf" or "irds".
        name: NAME[:CONFIG][@SPLIT] of a Hugging Face dataset, or the name of an ir_datasets one.
        part: "docs", "queries" or "qrels": what is wanted of an ir_datasets one.
        split: The split where the name gives none.
    """
    rows = _hugging_face(name, split) if prefix == "hf" else _ir_datasets(name, part)
    source = f"{prefix}:{name}"
    for number, fields in enumerate(_fetching(source, rows), 1):
        yield Record(source, number, fields)


def _hugging_face(name: str, split: str | None) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise MissingDependencyError("datasets", f"reading 'hf:{name}'") from None
    path, _, own_split = name.partition("@")
    path, _, config = path.partition(":")
    found = datasets.load_dataset(path, config or None, split=own_split or None)
    if isinstance(found, dict):
        found = found[_choose_split(name, list(found), split)]
    yield from found


def _choose_split(name: str, known: list[str], wanted: str | None) -> str:
    if wanted in known:
        return str(wanted)
    if len(known) == 1:
        return known[0]
    missing = "it has several splits" if wanted is None else f"it has no split '{wanted}'"
    msg = f"hf:{name}: {missing}. Known: {', '.join(known)}. Write hf:{name}@{known[0]}, for one."
    raise DataError(msg)


def _ir_datasets(name: str, part: str) -> Iterator[dict[str, Any]]:
    try:
        import ir_datasets
    except ImportError:
        raise MissingDependencyError("ir_datasets", f"reading 'irds:{name}'", "ir-datasets") from None
    try:
        found = ir_datasets.load(name)
    except KeyError:
        close = nearest(name, ir_datasets.registry)
        hint = f" Did you mean 'irds:{close}'?" if close else ""
        msg = f"ir_datasets knows no dataset '{name}'.{hint} See https://ir-datasets.com for the names."
        raise DataError(msg) from None
    if not getattr(found, f"has_{part}")():
        msg = f"'irds:{name}' has no {part}."
        raise DataError(msg)
    for row in getattr(found, f"{part}_iter")():
        fields = row._asdict()
        if part == "docs" and "text" not in fields:
            fields["text"] = row.default_text()
        yield fields


def _fetching(source: str, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Turn whatever goes wrong while fetching into one message."""
    try:
        yield from rows
    except DataError:
        raise
    except MissingDependencyError:
        raise
    except Exception as error:  # noqa: BLE001 - the libraries raise dozens of kinds, from several layers of network code
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        msg = f"'{source}' could not be read: {reason[:300]} Check the name and the network, or give a local file."
        raise DataError(msg) from error


def _fetched_version(prefix: str, name: str) -> str:
    if prefix == "irds":
        return ""
    try:
        import datasets
    except ImportError:
        raise MissingDependencyError("datasets", f"reading 'hf:{name}'") from None
    path, _, config = name.partition("@")[0].partition(":")
    try:
        return str(datasets.load_dataset_builder(path, config or None).hash)
    except Exception:  # noqa: BLE001 - offline, the name has to do
        return ""


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("zstandard", f"the file '{path}'") from None
    return zstandard


@contextmanager
def _packed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    if path.suffix == ".gz":
        # No name and no time in the header: the same rows give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
            yield stream  # type: ignore[misc]
    elif path.suffix == ".zst":
        with _zstandard(path).ZstdCompressor().stream_writer(raw, closefd=False) as stream:
            yield stream
    else:
        yield raw


@contextmanager
def _unpacking(path: str | Path) -> Iterator[None]:
    """Turn the errors of a damaged compressed file into one message."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        msg = f"the compressed file is damaged or cut off ({error}). Fetch or pack it again."
        raise DataError(msg, file=path) from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        msg = f"the compressed file is damaged or cut off ({error}). Fetch or pack it again."
        raise DataError(msg, file=path) from error


def _lines(path: str | Path) -> Iterator[tuple[int, int, int, str]]:
    """Line number, first byte, byte after, and text without line end, of each line."""
    end = 0
    with open_bytes(path) as stream, _unpacking(path):
        for line, raw in enumerate(stream, 1):
            start, end = end, end + len(raw)
            if line == 1 and raw.startswith(codecs.BOM_UTF8):
                start, raw = len(codecs.BOM_UTF8), raw[len(codecs.BOM_UTF8) :]
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(path, line, error) from None
            yield line, start, end, text.rstrip("\r\n")


def _filled(lines: Iterator[tuple[int, int, int, str]]) -> Iterator[tuple[int, int, int, str]]:
    return (row for row in lines if row[3] and not row[3].isspace())


def _not_utf8(path: str | Path, line: int, error: UnicodeDecodeError) -> DataError:
    raw, place = error.object, error.start - (error.object.rfind(b"\n", 0, error.start) + 1)
    guess = "UTF-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "another encoding"
    msg = f"byte 0x{raw[error.start]:02x} at position {place + 1} of the line is not UTF-8: the file is in {guess}."
    return DataError(f"{msg} Save it as UTF-8, with iconv for one.", file=path, line=line)


def _json_lines(path: Path) -> Iterator[Record]:
    file = str(path)
    for line, start, end, text in _filled(_lines(path)):
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            msg = f"broken JSON: {error.msg} at column {error.colno}. Each line holds one whole JSON object."
            raise DataError(msg, file=path, line=line) from None
        if not isinstance(fields, dict):
            msg = f"the line holds {_shown(fields)}, and should hold one JSON object ({{...}})."
            raise DataError(msg, file=path, line=line)
        yield Record(file, line, fields, start, end)


def _json_array(path: Path) -> Iterator[Record]:
    """The elements of a JSON array, without holding more than a few of them."""
    file, scan = str(path), json.JSONDecoder().raw_decode
    with open_bytes(path) as stream, _unpacking(path):
        window = _Window(path, stream)
        window.skip("[")
        number = 0
        while window.peek() != "]":
            number += 1
            line, fields = window.line, window.take(scan, number)
            record = Record(file, line, {}, element=number)
            if not isinstance(fields, dict):
                raise record.error(f"it is {_shown(fields)}, and should be a JSON object ({{...}}).")
            yield record._replace(fields=fields)
            if window.peek() == ",":
                window.skip(",")
            elif window.peek() != "]":
                raise record.error("broken JSON: neither ',' nor ']' comes after it. Is the file cut off?")


class _Window:
    """The part of a text file that is being parsed: it grows where an element needs more, and forgets what was read."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text = ""
        self.at = 0
        self.line = 1
        self.ended = False

    def grow(self, size: int = _CHUNK) -> None:
        raw = self.stream.read(size)
        self.ended = not raw
        try:
            more = self.decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            read = self.text.count("\n", self.at) + error.object.count(b"\n", 0, error.start)
            raise _not_utf8(self.path, self.line + read, error) from None
        self.text = self.text[self.at :] + more
        self.at = 0

    def peek(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.advance(self.at + 1)
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self.grow()

    def skip(self, character: str) -> None:
        """Go past a character that is there."""
        if self.peek() == character:
            self.advance(self.at + 1)

    def advance(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def take(self, scan: Callable[[str, int], tuple[Any, int]], number: int) -> Any:
        """The element that starts here."""
        while True:
            self.peek()
            try:
                value, end = scan(self.text, self.at)
            except json.JSONDecodeError as error:
                size = len(self.text) - self.at
                cut_off = error.msg.startswith("Unterminated string") or error.pos > len(self.text) - 16
                if not self.ended and cut_off and size < _LONGEST_ELEMENT:
                    self.grow(max(_CHUNK, size))
                    continue
                line = self.line + self.text.count("\n", self.at, error.pos)
                msg = f"element {number}: broken JSON: {error.msg}. Is the file whole?"
                raise DataError(msg, file=self.path, line=line) from None
            self.advance(end)
            return value


def _table(path: Path, form: TableForm, kinds: str) -> Iterator[Record]:
    table = table_of(path, form)
    if table is None:
        _, _, _, first = next(_filled(_lines(path)))
        columns = len(first.split("\t"))
        msg = f"no form of {kinds} is a table with {columns} tab-separated column{'s' * (columns != 1)} ({_shown(first)})."
        raise DataError(msg, file=path, line=1)
    rows = _quoted_rows(path) if table.quoted else _plain_rows(path)
    if table.header:
        next(rows)
    file, names, width = str(path), table.names, len(table.names)
    for line, start, end, row in rows:
        if len(row) != width:
            msg = f"the row has {len(row)} columns, and the table has {width}: {', '.join(names)}."
            raise DataError(msg, file=path, line=line)
        yield Record(file, line, table.fields(row), start, end)


def _plain_rows(path: Path) -> Iterator[tuple[int, int, int, list[str]]]:
    for line, start, end, text in _filled(_lines(path)):
        yield line, start, end, text.split("\t")


def _quoted_rows(path: Path) -> Iterator[tuple[int, int, int, list[str]]]:
    """Rows of a table in which a quoted cell may hold tabs and line breaks."""
    # The limit of 128 KiB a cell is the csv module's own, and shared by the process.
    csv.field_size_limit(max(csv.field_size_limit(), min(sys.maxsize, 2**31 - 1)))
    line = end = 0

    def counted() -> Iterator[str]:
        nonlocal line, end
        for line, _, end, text in _lines(path):  # noqa: B007 - what the reader has taken so far is used below
            yield text + "\n"

    first, start = 1, 0
    try:
        for row in csv.reader(counted(), delimiter="\t"):
            if row:
                yield first, start, end, row
            first, start = line + 1, end
    except csv.Error as error:
        msg = f"the row cannot be read: {error}."
        raise DataError(msg, file=path, line=first) from None


def _shown(value: object) -> str:
    """A value as it is shown in a message."""
    text = json.dumps(value, ensure_ascii=False, default=str) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
