"""Arrays of other libraries as encoded texts: NumPy, torch, scipy, pandas, Arrow, lists of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retrievalkit.api.vectors import Vectors
from retrievalkit.errors import InputError

_KNOWN = (
    "Give an array (texts, dim) or (texts, m, dim) of numbers: NumPy, torch, a list of arrays where the number of "
    "vectors varies; scipy.sparse weights of terms; or a table with the columns id and vector."
)


def as_vectors(data: Any, ids: Iterable[Any] | None = None) -> Vectors:
    """Encoded texts of an array; those without ids are numbered from 0.

    Args:
        data: `Vectors`; (dim,) for a single text, (texts, dim) or (texts, m, dim) numbers; a list of (m, dim) arrays;
            scipy.sparse (texts, vocabulary) weights; a table with the columns `id` and `vector`.
        ids: The ids of the texts, in this order.

    Raises:
        InputError: It is something else, or the ids do not fit.
    """
    if isinstance(data, Vectors):
        made = data if ids is None else replace(data, ids=_ids(ids, len(data)))
    elif hasattr(data, "columns") and hasattr(data, "__arrow_c_stream__"):
        made = _of_table(data, ids)
    elif hasattr(data, "tocsr"):
        weights = data.tocsr().astype(np.float32)
        made = Vectors(_ids(ids, weights.shape[0]), weights=weights)
    else:
        made = _of_array(data, ids)
    _check(made)
    return made


def _of_table(data: Any, ids: Iterable[Any] | None) -> Vectors:
    import pyarrow

    table = pyarrow.table(data)
    if "vector" not in table.column_names or (ids is None and "id" not in table.column_names):
        msg = f"the table has the columns {', '.join(table.column_names)}, and should have id and vector. Rename them."
        raise InputError(msg)
    return _of_array(table["vector"].to_pylist(), table["id"].to_pylist() if ids is None else ids)


def _of_array(data: Any, ids: Iterable[Any] | None) -> Vectors:
    if hasattr(data, "detach"):  # a tensor, which may be on a GPU, and of a type that NumPy lacks
        data = data.detach().cpu().float().numpy()
    if hasattr(data, "to_numpy") and not isinstance(data, np.ndarray):
        data = data.to_numpy()
    if isinstance(data, Mapping | str | bytes) or not hasattr(data, "__len__"):
        msg = f"vectors of the type {type(data).__name__} are unknown. {_KNOWN}"
        raise InputError(msg)
    array = _numbers(data)
    if array is None:
        return _of_list(data, ids)
    if array.ndim == 1:
        array = array[None]
    return Vectors(_ids(ids, len(array)), array[:, None] if array.ndim == 2 else array)


def _numbers(data: Any) -> np.ndarray | None:
    """The values as one array, float16 or float32; None if their shapes differ."""
    if isinstance(data, np.ndarray) and data.dtype == object:
        data = list(data)
    try:
        array = np.asarray(data)
    except ValueError:
        return None
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2, 3):
        if array.dtype == object:
            return None
        msg = f"the vectors are an array {array.shape} of {array.dtype}. {_KNOWN}"
        raise InputError(msg)
    return array if array.dtype == np.float16 else array.astype(np.float32)


def _of_list(data: Sequence[Any], ids: Iterable[Any] | None) -> Vectors:
    """Arrays (m, dim), whose m varies."""
    try:
        parts = [np.atleast_2d(np.asarray(one, dtype=np.float32)) for one in data]
        counts = np.array([len(one) for one in parts], dtype=np.int64)
        return Vectors(_ids(ids, len(parts)), np.concatenate(parts), counts)
    except (TypeError, ValueError):
        msg = f"the vectors do not have the same number of dimensions, or are no numbers. {_KNOWN}"
        raise InputError(msg) from None


def _ids(ids: Iterable[Any] | None, count: int) -> list[str]:
    if ids is None:
        return [str(number) for number in range(count)]
    given = [str(one) for one in ids]
    if len(given) != count:
        msg = f"there are {len(given):,} ids for {count:,} vectors. Give one for each."
        raise InputError(msg)
    if len(set(given)) < count:
        twice = next(one for one in given if given.count(one) > 1)
        msg = f"the id '{twice}' is there twice. Give each text an id of its own."
        raise InputError(msg)
    return given


def _check(made: Vectors) -> None:
    if not len(made):
        msg = "there are no vectors. Give at least one."
        raise InputError(msg)
    for values in (made.vectors, None if made.weights is None else made.weights.data):
        if values is not None and not np.isfinite(values).all():
            msg = "a vector has numbers that are not finite (NaN or infinity). Look where they come from."
            raise InputError(msg)
    if made.vectors is not None and (0 in made.vectors.shape or (made.counts is not None and (made.counts < 1).any())):
        msg = f"the vectors are empty: their shape is {made.vectors.shape}. {_KNOWN}"
        raise InputError(msg)
