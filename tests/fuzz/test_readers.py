"""Whatever a file of texts holds, reading it gives records or an error that names the file."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.nasty import SNIPPETS, VALUES
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import read_run
from retrievalkit.errors import DataError

READERS = {
    "corpus": lambda path: list(open_corpus(path)),
    "queries": read_queries,
    "qrels": read_qrels,
    "run": read_run,
    "examples": read_examples,
}
KEYS = "_id id docid title text contents query query_id question answers positives negatives pos neg teacher anchor"

words = st.one_of(
    st.sampled_from(["q1", "d1", "0", "1", "Q0", "0.5", "the capital", "query-id", "corpus-id", "score", "id", "text"]),
    st.text(max_size=8),
    st.sampled_from([put.encode("latin-1") * min(times, 30) for put, times in SNIPPETS]),
)
cells = words.map(lambda word: word if isinstance(word, bytes) else word.encode("utf-8", errors="surrogatepass"))
tables = st.builds(
    lambda gap, end, rows: end.join(gap.join(row) for row in rows),
    st.sampled_from([b"\t", b" ", b"  "]),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.lists(cells, min_size=1, max_size=6), max_size=5),
)
values = st.one_of(st.sampled_from(VALUES), st.text(max_size=8), st.lists(st.sampled_from(["d1", "d2"]), max_size=3))
records = st.dictionaries(st.sampled_from(KEYS.split()), values, max_size=5)
lines = st.lists(records.map(lambda fields: json.dumps(fields).encode()), max_size=4).map(b"\n".join)
contents = st.one_of(
    tables, lines, lines.map(lambda text: b"[" + text.replace(b"\n", b",") + b"]"), st.binary(max_size=60)
)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("name", ["file.jsonl", "file.tsv"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=contents)
def test_any_content_is_read_or_refused(kind, name, tmp_path, content):
    """Never another exception; and the message names the file."""
    path = tmp_path / name
    path.write_bytes(content)
    refused = ""
    try:
        READERS[kind](str(path))
    except DataError as error:
        refused = str(error)
    assert name in refused or not refused
