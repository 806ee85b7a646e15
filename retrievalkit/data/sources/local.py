"""Files and folders on this machine, in any known format, plain or compressed."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from retrievalkit.data import files, forms, json_text
from retrievalkit.data.files import COMPRESSIONS, reading
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import Record, read_records, table_of
from retrievalkit.data.run_forms import is_run_object
from retrievalkit.data.sources.source import PARTS, Part, Source
from retrievalkit.errors import DataError, RetrievalkitError, shortlist
from retrievalkit.reporting import notices
from retrievalkit.reporting.terminal import counted
from retrievalkit.storage import HeldFile, fingerprint_folder, fingerprint_value, kind_of

_CORPUS_FILES = ("corpus.jsonl", "corpus.tsv", "collection.tsv")
_DATA_FILES = tuple(f"{kind}{end}" for kind in (".jsonl", ".json", ".tsv", ".csv") for end in COMPRESSIONS)
_OF_QUERIES = {"query", "queries", "question", "questions", "topic", "topics"}
_OF_RESULTS = {"qrel", "qrels", "run", "runs", "trec"}
_OF_SHARDS = {"of", "part", "shard", "jsonl", "json", "tsv", "csv", "gz", "zst"}
_OF_SPLITS = {"train", "dev", "test", "valid", "validation"}
ABOUT = {"readme", "license", "licence", "manifest"}
_WITHOUT_DATA = {
    "checkpoint": "a checkpoint",
    "model": "a model",
    "reranker": "a re-ranker",
    "vectors": "vectors",
    "index": "an index",
}
_LONGEST_LITERAL = 1 << 20
_MOST_HELD = 16


class Local(Source):
    """A file of JSON lines, JSON or a table in any known format, a BEIR folder, or a folder of corpus files."""

    reads_files = True
    content_hashed = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        if not name:
            msg = "the path of the data is empty. Name a file, a folder or a source."
            raise DataError(msg)
        self.path = files.existing(name)
        self.address = name

    @property
    def is_folder(self) -> bool:
        """True if the path is a folder."""
        return os.path.isdir(self.path)

    def parts(self) -> tuple[Part, ...] | None:
        """None for a file; for a folder, determined by file names."""
        return tuple(part for part in PARTS if self.holds(part)) if self.is_folder else None

    def holds(self, part: Part, split: str = "train") -> bool:
        """True if a folder has the file for the part; a single file may contain anything."""
        if not self.is_folder:
            return True
        if part == "judgements":
            return bool(self._judged_splits())
        names = {"passages": _CORPUS_FILES, "queries": ("queries.jsonl",), "examples": (f"{split}.jsonl",)}[part]
        return any(files.find_file(self.path, name) for name in names) or (
            part == "examples" and bool(self._example_shards)
        )

    def records(self, part: Part, split: str = "test") -> Iterator[Record]:
        """Yield the records of a part; `holds` is not checked, because reading reports the missing file."""
        if part == "passages":
            yield from self.corpus_records(forms.CORPUS)
        elif part == "queries":
            path = files.inside(self.path, "queries.jsonl", "queries")
            self._note_unread([path], lambda other: _words(other) & _OF_QUERIES and not _words(other) & _OF_RESULTS)
            for record in read_records(path, *forms.QUERIES):
                if "answer_list" in record.fields:
                    record.fields["answers"] = _literal_answers(record)
                yield record
        elif part == "judgements":
            path = self._qrels_file(split)
            self._note_unread([path], lambda other: path.parent.name == "qrels" and ".tsv" not in other.name)
            yield from _judged(path) if is_run_object(path) else _judged_lines(path)
        else:
            paths = self._paths_of_examples(split)
            shards = paths is self._example_shards
            self._note_unread(
                paths, lambda other: _is_unknown(other) if shards else _words(other) - _OF_SHARDS == {split}
            )
            for path in paths:
                yield from read_records(path, *forms.EXAMPLES)

    def corpus_records(self, form: forms.Form) -> Iterator[Record]:
        """Yield the records of the corpus files; `form` determines the layout of tables."""
        self._note_unread(self._corpus_files, _is_unknown)
        for path in self._corpus_files:
            yield from read_records(path, *form)

    def example_files(self, split: str) -> tuple[Path, ...]:
        """Return the example files, if none is compressed or a JSON array."""
        return _plain(self._paths_of_examples(split)) if self.holds("examples", split) else ()

    def _paths_of_examples(self, split: str) -> list[Path]:
        named = files.find_file(self.path, f"{split}.jsonl") if self.is_folder else None
        if named is None and self._example_shards:
            return self._example_shards
        return [files.inside(self.path, f"{split}.jsonl", "training examples")]

    @cached_property
    def _example_shards(self) -> list[Path]:
        """The data files of a folder without known file names, if they contain training examples."""
        known = (*_CORPUS_FILES, "queries.jsonl", *(f"{split}.jsonl" for split in ("train", "dev", "test")))
        if not self.is_folder or any(files.find_file(self.path, name) for name in known) or self._judged_splits():
            return []
        paths = [] if self._without_data() else self._data_files()
        return paths if paths and _holds_examples(paths[0]) else []

    def splits(self) -> list[str]:
        """Return the splits with judgements in a folder."""
        return self._judged_splits() if self.is_folder else super().splits()

    def fingerprint(self) -> str:
        """Return a hash of the file, or of all files of the folder."""
        if not self.is_folder:
            return files.fingerprint(self.path)
        with reading(self.path):
            return fingerprint_folder(self.path)

    def corpus_fingerprint(self) -> str:
        """Return a hash of the corpus files."""
        prints = [files.fingerprint(path) for path in self._corpus_files]
        return prints[0] if len(prints) == 1 else fingerprint_value(prints)

    def size(self) -> int | None:
        """Return the number of lines of the corpus files, including empty lines; None for JSON arrays."""
        count = 0
        for path in self._corpus_files:
            if files.first_character(path) == "[":
                return None
            table = table_of(path, forms.corpus_table)
            last = b"\n"
            with files.open_bytes(path) as stream:
                while block := stream.read(files.CHUNK):
                    count, last = count + block.count(b"\n"), block[-1:]
            count += (last != b"\n") - bool(table and table.header)
        return count

    def plain_files(self) -> tuple[Path, ...]:
        """Return the corpus files, if none is compressed or a JSON array."""
        return _plain(self._corpus_files)

    @cached_property
    def _corpus_files(self) -> list[Path]:
        """The corpus files; a few stay open, so that passages can be read after they are replaced."""
        paths = self._find_corpus()
        return list(map(HeldFile.of, paths)) if len(paths) <= _MOST_HELD else paths

    def _find_corpus(self) -> list[Path]:
        """Return the file itself, the corpus of a BEIR folder, or all data files of a folder."""
        from retrievalkit.data.sources import as_documents

        if (documents := as_documents(self.path)) != self.path:
            kind = "a folder of documents" if self.is_folder else "a document"
            msg = f"this is {kind}. To read it as a corpus, give '{documents}'."
            raise DataError(msg, file=self.path)
        if not self.is_folder:
            return [self.path]
        for name in _CORPUS_FILES:
            if corpus := files.find_file(self.path, name):
                return [corpus]
        if other := self._without_data():
            msg = f"the folder contains {other}, not data. Give a corpus: a file, or a folder of files."
            raise DataError(msg, file=self.path)
        paths = self._data_files()
        if not paths:
            contents = files.listing(self.path)
            msg = f"the folder holds no corpus.jsonl and no .jsonl, .json, .tsv or .csv file. It holds {contents}."
            raise DataError(msg, file=self.path)
        return paths

    def _without_data(self) -> str:
        """Name the artifact in the folder, such as "a model" or "an index", whose JSON files are not data; or ""."""
        return _WITHOUT_DATA.get(kind_of(self.path) or "", "a model" * os.path.isfile(self.path / "config.json"))

    def _data_files(self) -> list[Path]:
        paths = [self.path / name for name in files.names_in(self.path) if name.lower().endswith(_DATA_FILES)]
        other = (files.find_file(self.path, "queries.jsonl"), self.path / "manifest.json")
        return [path for path in paths if os.path.isfile(path) and path not in other]

    def _note_unread(self, read: Sequence[Path], may_belong: Callable[[Path], object]) -> None:
        """Note other files of a folder that may contain more data of the same kind."""
        if not self.is_folder:
            return
        folder = read[0].parent
        unread: dict[str, list[str]] = {}
        for path in map(folder.joinpath, files.names_in(folder)):
            if path in read or path.name.startswith(".") or _words(path) & ABOUT or not may_belong(path):
                continue
            kind = "folders" if os.path.isdir(path) else path.suffix.lower() or "no extension"
            unread.setdefault(kind, []).append(path.name)
        if unread:
            total = sum(map(len, unread.values()))
            notices.note(
                f"Not read: {total:,} of the {total + len(read):,} files of '{folder}', {files.grouped(unread)}. "
                f"Read: {shortlist((path.name for path in read), 3)}. Give the paths of the others to read them."
            )

    def _judged_splits(self) -> list[str]:
        folder = self.path / "qrels"
        names = files.names_in(folder) if os.path.isdir(folder) else []
        return sorted({name.partition(".tsv")[0] for name in names if ".tsv" in name})

    def _qrels_file(self, split: str) -> Path:
        if not self.is_folder:
            return self.path
        folder = self.path / "qrels" if os.path.isdir(self.path / "qrels") else self.path
        if file := files.find_file(folder, f"{split}.tsv"):
            return file
        known = self._judged_splits()
        others = f"It has {', '.join(known)}" if known else f"It holds {files.listing(self.path)}"
        msg = f"the folder has no judgements for the split '{split}' (qrels/{split}.tsv). {others}."
        raise DataError(msg, file=self.path)


class Parquet(Source):
    """A Parquet file of passages, queries, judgements or training examples, detected by its column names."""

    reads_files = True
    content_hashed = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = files.existing(name)

    def parts(self) -> tuple[Part, ...] | None:
        """None: the parts depend on the columns."""
        return None

    def _rows(self, part: Part, split: str) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """Yield the rows, read in batches; a file has one part and one split."""
        with self._opened() as table:
            for batch in table.iter_batches(batch_size=1024):
                yield from batch.to_pylist()

    def fingerprint(self) -> str:
        """Return a hash of the file."""
        return files.fingerprint(self.path)

    def size(self) -> int:
        """Return the number of rows."""
        with self._opened() as table:
            return int(table.metadata.num_rows)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        from pyarrow import parquet

        try:
            with reading(self.path), parquet.ParquetFile(self.path) as table:
                yield table
        except RetrievalkitError:
            raise
        except Exception as error:  # noqa: BLE001 - values that Python lacks raise any of a dozen exceptions
            reason = str(error).splitlines()[0].rstrip(".")[:300] if str(error) else type(error).__name__
            msg = f"the Parquet file cannot be read: {reason}. Write or fetch it again."
            raise DataError(msg, file=self.path) from None


def _words(path: Path) -> set[str]:
    return set(re.findall("[a-z]+", path.name.lower()))


def _is_unknown(path: Path) -> bool:
    """True if neither name nor content identifies a file or non-empty folder as another part of a collection."""
    if _words(path) & (_OF_QUERIES | _OF_RESULTS | _OF_SPLITS):
        return False
    if os.path.isdir(path):
        return kind_of(path) is None and any(names for *_, names in os.walk(path))
    return not (path.name.lower().endswith(_DATA_FILES) and _holds_examples(path))


def _holds_examples(path: Path) -> bool:
    try:
        first = next(read_records(path, *forms.EXAMPLES), None)
    except DataError:
        return False  # reading it as another kind reports the problem
    return first is not None and forms.is_example(first.fields.keys())


def _plain(paths: list[Path]) -> tuple[Path, ...]:
    plain = all(files.is_plain(path) and files.first_character(path) != "[" for path in paths)
    return tuple(paths) if plain else ()


def _literal_answers(record: Record) -> list[str]:
    """Parse DPR's answers, a Python list, as a literal; nothing is executed."""
    cell = record.fields.pop("answer_list")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about backslashes in the texts
            answers = ast.literal_eval(cell) if len(cell) <= _LONGEST_LITERAL else None
        if isinstance(answers, list | tuple):
            return [str(answer) for answer in answers]
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    msg = f'the answers are not a list of texts: {shown(cell)}. Write them as ["one", "two"].'
    raise record.error(msg)


def _judged_lines(path: Path) -> Iterator[Record]:
    """Read judgements from a file of lines, with or without BEIR's header."""
    for line in files.filled_lines(path):
        cells = forms.columns(line.text, (3, 4))
        if line.number == 1 and forms.is_judgement_header(cells):
            continue
        if len(cells) not in (3, 4):
            run = len(cells) == 6 and line.number == 1 and cells[3].isdecimal()
            problem = f"the line has {counted(len(cells), 'columns')}{', as in a run' * run}"
            msg = f"{problem}. Known formats of judgements: {'; '.join(forms.QRELS)}."
            raise DataError(msg, file=path, line=line.number)
        yield Record(str(path), line.number, {"query_id": cells[0], "doc_id": cells[-2], "score": cells[-1]})


def _judged(path: Path) -> Iterator[Record]:
    """Read judgements from a JSON object query -> document -> grade, as in ranx and pytrec_eval."""
    for line, query, judged in json_text.members(path):
        if not isinstance(judged, dict):
            msg = f"query {shown(query)} has {shown(judged)}, but should have an object document -> grade."
            raise DataError(msg, file=path, line=line)
        for document, grade in judged.items():
            yield Record(str(path), line, {"query_id": query, "doc_id": document, "score": grade})
