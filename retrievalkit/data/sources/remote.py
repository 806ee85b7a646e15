"""Data sets of others: Hugging Face `datasets` as `hf:NAME[:CONFIG][@SPLIT][#REVISION]`, ir_datasets as `irds:NAME`.

Data sets that have a loading script, which `datasets` no longer runs, are read at the revision `refs/convert/parquet`.
"""

from __future__ import annotations

import importlib
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrievalkit.artifacts import fingerprint_value
from retrievalkit.data.records import Record
from retrievalkit.errors import DataError, MissingDependencyError, RetrievalkitError, nearest


def fetched_records(prefix: str, name: str, part: str, split: str | None = None) -> Iterator[Record]:
    """The records of a data set.

    Args:
        prefix: "hf" or "irds".
        name: What comes after the prefix.
        part: "docs", "queries" or "qrels": what is wanted of an ir_datasets one.
        split: The split of a Hugging Face one, where the name gives none.

    Raises:
        DataError: It cannot be fetched, or has no such part.
    """
    source = f"{prefix}:{name}"
    with _complaining(source):
        rows = _hugging_face(name, split) if prefix == "hf" else _ir_datasets(name, part)
        for number, fields in enumerate(rows, 1):
            yield Record(source, number, fields)


def fingerprint(prefix: str, name: str) -> str:
    """A fingerprint of a data set: of a Hugging Face one, that of its data; of an ir_datasets one, its name."""
    if prefix == "irds":
        return fingerprint_value([prefix, name])  # a name there stands for one version of the data, for good
    with _complaining(f"hf:{name}"):
        found = _load(name)
        splits = found.values() if isinstance(found, dict) else [found]
        return fingerprint_value([prefix, name, [one._fingerprint for one in splits]])


def _hugging_face(name: str, split: str | None) -> Iterator[dict[str, Any]]:
    found = _load(name)
    if isinstance(found, dict):
        found = found[_choose_split(name, list(found), split)]
    yield from found


def _load(name: str) -> Any:
    datasets = _need("datasets", "datasets", f"hf:{name}")
    path, _, revision = name.partition("#")
    path, _, split = path.partition("@")
    path, _, config = path.partition(":")
    with _quiet():
        return datasets.load_dataset(path, config or None, split=split or None, revision=revision or None)


def _choose_split(name: str, known: list[str], wanted: str | None) -> str:
    if wanted in known:
        return str(wanted)
    if len(known) == 1:
        return known[0]
    missing = "it has several splits" if wanted is None else f"it has no split '{wanted}'"
    path, mark, revision = name.partition("#")
    msg = f"hf:{name}: {missing}. Known: {', '.join(known)}. Choose one: hf:{path}@{known[0]}{mark}{revision}"
    raise DataError(msg)


def _ir_datasets(name: str, part: str) -> Iterator[dict[str, Any]]:
    ir_datasets = _need("ir_datasets", "ir-datasets", f"irds:{name}")
    try:
        found = ir_datasets.load(name)
    except KeyError:
        close = nearest(name, ir_datasets.registry)
        hint = f" Did you mean 'irds:{close}'?" if close else ""
        msg = f"ir_datasets knows no data set '{name}'.{hint} See https://ir-datasets.com for the names."
        raise DataError(msg) from None
    if not getattr(found, f"has_{part}")():
        parts = ", ".join(one for one in ("docs", "queries", "qrels") if getattr(found, f"has_{one}")()) or "nothing"
        msg = f"'irds:{name}' has no {part}; it has {parts}."
        raise DataError(msg)
    rows = getattr(found, f"{part}_iter")()
    with _quiet():
        first = list(itertools.islice(rows, 1))  # which downloads what is not here yet
    for row in itertools.chain(first, rows):
        fields = row._asdict()
        if part == "docs" and "text" not in fields:
            fields["text"] = row.default_text()
        yield fields


def _need(module: str, package: str, source: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(module, f"reading '{source}'", package) from None


@contextmanager
def _complaining(source: str) -> Iterator[None]:
    """Turn whatever goes wrong while fetching into one message."""
    try:
        yield
    except (RetrievalkitError, GeneratorExit):
        raise
    except Exception as error:
        # The libraries raise dozens of kinds, from several layers of network code.
        told = str(error.args[0] if error.args else "").strip() or type(error).__name__
        reason = told.splitlines()[0][:300].rstrip(".")
        msg = f"'{source}' could not be read: {reason}. Check the name and the network, or give a local file."
        raise DataError(msg) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' log lines about each retry; what fails in the end is told once."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
