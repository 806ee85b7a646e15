"""Runs a Java program, composed of method handles, for a whole batch in Java threads.

Results are returned as a single text, and arrays of numbers are passed as a single byte string, because every call
from Python into Java costs about ten microseconds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from retrievalkit.data.files import uncollected
from retrievalkit.errors import RetrievalkitError
from retrievalkit_pyserini.handles import as_interface, bind, gather, method, returning, static_method, supply, then
from retrievalkit_pyserini.java import MEMORY, java_class, java_text, java_type

HITS_IN_A_CALL = 500_000
"""Maximum number of hits in memory as Java objects and JSON at a time; batches of queries are split accordingly."""

_AS_SPACES = bytes.maketrans(b",\n", b"  ")


@contextlib.contextmanager
def lucene_errors(operation: str, kind: type[RetrievalkitError] = RetrievalkitError) -> Iterator[None]:
    """Convert a Java exception to a `kind` error that names the operation and the root cause."""
    exception = java_exception()
    try:
        yield
    except exception as error:
        lines = [line.strip() for line in error.stacktrace or []]
        causes = [after for line, after in itertools.pairwise(lines) if line == "Caused by:"]
        cause = causes[-1] if causes else f"{error.classname}: {error.innermessage}"
        more = f". Give Java more memory, as in {MEMORY}=4g" if "OutOfMemoryError" in cause else ""
        msg = f"Lucene could not {operation}: {cause}{more}"
        raise kind(msg) from error


def java_exception() -> Any:
    """Return the Python class of Java exceptions."""
    java_class("java.lang.Throwable")
    from jnius import JavaException

    return JavaException


def run(answer: Any, count: int, threads: int) -> Any:
    """Call a handle (position -> hits) in threads for every position below a count, and decode the hits."""
    text = f"[{_answers(answer, count, threads, ',')}]"
    with uncollected():
        return json.loads(text)


def best(answer: Any, count: int, threads: int) -> list[np.ndarray]:
    """Call a handle (position -> Lucene's TopDocs) in threads for every position below a count.

    Returns:
        For each position (hits, 2) float64: Lucene's document numbers and scores.
    """
    if not count:
        return []
    text = _answers(answer, count, threads, "\n").encode("ascii")
    # A line such as [[[12,3.5],[7,2.25]]] has one bracket per hit, plus two.
    ends = np.cumsum([line.count(b"[") - 2 for line in text.split(b"\n")])
    # NumPy parses only numbers separated by spaces.
    cells = text.translate(_AS_SPACES, b"[]").strip().decode()
    numbers = np.fromstring(cells, dtype=np.float64, sep=" ") if cells else np.empty(0)
    return np.split(numbers.reshape(ends[-1], 2), ends[:-1])


def _answers(answer: Any, count: int, threads: int, separator: str) -> str:
    """Return the handle's results for all positions as JSON, joined by the separator."""
    write = method("com.fasterxml.jackson.databind.ObjectMapper", "writeValueAsString", "java.lang.String", object)
    function = as_interface("java.util.function.IntFunction", then(answer, bind(write, 0, _hits_mapper())))
    answers = java_class("java.util.stream.IntStream").range(0, count).parallel().mapToObj(function)
    collect = method("java.util.stream.Stream", "collect", object, "java.util.stream.Collector")
    hits = as_interface("java.util.function.Supplier", bind(collect, 0, answers, joining(separator)))
    with lucene_errors("search"), _pool(threads) as pool:
        return str(java_class("java.util.concurrent.CompletableFuture").supplyAsync(hits, pool).get())


def do(action: Any, count: int, threads: int) -> None:
    """Call a handle (position -> anything) for every position below a count; in order if there is a single thread."""
    consumer = as_interface("java.util.function.IntConsumer", returning("void", action))
    numbers = java_class("java.util.stream.IntStream").range(0, count)
    numbers = numbers.parallel() if threads > 1 else numbers
    each = method("java.util.stream.IntStream", "forEach", "void", "java.util.function.IntConsumer")
    work = as_interface("java.lang.Runnable", bind(each, 0, numbers, consumer))
    with _pool(threads) as pool:
        java_class("java.util.concurrent.CompletableFuture").runAsync(work, pool).get()


@contextlib.contextmanager
def _pool(threads: int) -> Iterator[Any]:
    """Open a pool of Java threads; a parallel stream runs in the pool that starts it."""
    pool = java_class("java.util.concurrent.ForkJoinPool")(threads)
    try:
        yield pool
    finally:
        pool.shutdown()


def strings(texts: Sequence[str]) -> Any:
    """Store texts in Java, and return a handle (position -> text)."""
    array = java_class("java.util.ArrayList")()
    for text in texts:
        array.add(java_text(text))
    return returning("java.lang.String", bind(method("java.util.ArrayList", "get", object, int), 0, array))


def ints(numbers: np.ndarray) -> Any:
    """Store numbers in Java, and return a handle (position -> int)."""
    return bind(method("java.nio.IntBuffer", "get", int, int), 0, _buffer(numbers.astype("<i4")).asIntBuffer())


def vectors(rows: np.ndarray) -> Any:
    """Store a matrix in Java, and return a handle (position -> float[]) of its rows."""
    count, dim = rows.shape
    buffer = java_class("java.nio.FloatBuffer").allocate(count * dim).put(_buffer(rows.astype("<f4")).asFloatBuffer())
    copy = static_method("java.util.Arrays", "copyOfRange", "[F", "[F", int, int)
    copy = supply(copy, bind(method("java.nio.FloatBuffer", "array", "[F"), 0, buffer))
    starts = np.arange(count) * dim
    return gather(copy, ints(starts), ints(starts + dim))


def lines(text: str) -> Any:
    """Store a text in Java, and return a handle (position -> text) of its lines; each ends with a line break."""
    split = java_class("java.lang.String")(text.encode(), "UTF-8").lines().toList()
    return returning("java.lang.String", bind(method("java.util.List", "get", object, int), 0, split))


def _buffer(numbers: np.ndarray) -> Any:
    data = java_class("java.nio.ByteBuffer").wrap(numbers.tobytes())
    return data.order(java_class("java.nio.ByteOrder").LITTLE_ENDIAN)


def joining(separator: str) -> Any:
    """Return the collector that joins texts."""
    return java_class("java.util.stream.Collectors").joining(java_class("java.lang.String")(separator))


def _hits_mapper() -> Any:
    """Return a JSON writer that writes a hit as [document number, score] or [id, number, score]."""
    mapper = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
    features = java_class("com.fasterxml.jackson.databind.MapperFeature")
    mapper.configure(features.SORT_PROPERTIES_ALPHABETICALLY, True)
    mapper.disable(java_class("com.fasterxml.jackson.databind.SerializationFeature").FAIL_ON_EMPTY_BEANS)
    shapes = java_class("com.fasterxml.jackson.annotation.JsonFormat$Shape")
    as_list = java_class("com.fasterxml.jackson.annotation.JsonFormat$Value").forShape(shapes.ARRAY)
    properties = java_class("com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value")
    for name, unread in {
        "org.apache.lucene.search.TopDocs": ["totalHits"],
        "org.apache.lucene.search.ScoreDoc": ["shardIndex"],
        "org.apache.lucene.search.TopFieldDocs": ["fields", "totalHits"],
        "org.apache.lucene.search.FieldDoc": ["fields", "shardIndex"],
        "io.anserini.search.ScoredDoc": ["lucene_document"],
    }.items():
        override = mapper.configOverride(java_type(name))
        override.setFormat(as_list)
        override.setIgnorals(properties.forIgnoredProperties(*unread))
    return mapper
