"""Shared by sources that another package fetches: importing the package, and one message for any failure."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrievalkit.errors import DataError, MissingDependencyError, RetrievalkitError


def need(module: str, package: str, address: str) -> Any:
    """The module that reads a source.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(module, f"reading '{address}'", package) from None


@contextmanager
def readable(address: str) -> Iterator[None]:
    """Turn any failure of fetching into one message."""
    try:
        yield
    except (RetrievalkitError, GeneratorExit):
        raise
    except Exception as error:
        # The libraries raise dozens of exception types, from several layers of network code.
        text = str(error.args[0] if error.args else "").strip() or type(error).__name__
        reason = text.splitlines()[0][:300].rstrip(".")
        msg = f"'{address}' could not be read: {reason}. Check the name and the network, or give a local file."
        raise DataError(msg) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the libraries' log lines about retries; `readable` reports the final failure once."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
