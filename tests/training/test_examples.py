"""Examples that stay in their files equal examples in memory, and take hardly any."""

from __future__ import annotations

import json
import random
import tracemalloc

import pytest

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.examples import read_examples
from retrievalkit.errors import DataError
from retrievalkit.training.examples import Rows, examples_at, open_examples
from retrievalkit.training.sampling import ExampleSampler, StepAssembler

CORPUS = Corpus.of(Passage(f"d{row}", "", f"text {row}") for row in range(30))


def by_ids(row):
    positives = [f"d{row}", f"d{row + 2}"] if row % 5 else []
    query = f"é {row % 7}" if row < 10 else f" E\u0301 {row % 7}\n"
    return {"query_id": f"q{row % 7}", "query": query, "positives": positives, "negatives": [f"d{row + 1}"]}


def tevatron(row):
    passages = [{"docid": f"d{one}", "title": "t", "text": f"text {one}"} for one in (row % 3, row % 4)]
    return {"query_id": row, "query": f"q{row}", "positive_passages": passages[:1], "negative_passages": passages}


def triple(row):
    return {"anchor": f"q{row % 9}", "positive": f"text {row % 3}", "negative_1": f"text {row % 4}"}


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n\n" for row in rows)


FILES = {
    "ids.jsonl": lines(map(by_ids, range(20))),
    "tevatron.jsonl": lines(map(tevatron, range(20))),
    "triples.jsonl": lines(map(triple, range(20))),
    "triples.csv": "query,positive,negative\n" + "".join(f'q{row},"a, {row % 3}\nb",c\n' for row in range(20)),
}


@pytest.mark.parametrize("name", FILES)
def test_examples_on_disk_equal_those_in_memory(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8")
    corpus = CORPUS if name == "ids.jsonl" else None
    opened, read = open_examples(path, corpus, "train"), read_examples(path, corpus=corpus)
    assert isinstance(opened.rows, Rows)
    assert list(opened.rows) == read.rows
    assert list(opened.located()) == list(read.located())
    assert list(opened.passages.items()) == list(read.passages.items())
    assert (opened.source, opened.dropped) == (read.source, read.dropped)
    assert list(examples_at(opened.rows, [5, 2])) == [read.rows[5], read.rows[2]]
    assert list(opened.rows[:3]) == read.rows[:3]
    draws = [ExampleSampler(rows).draw(3, 1) for rows in (opened.rows, read.rows)]
    assert draws[0] == draws[1]
    if corpus:
        assemblers = [StepAssembler(corpus.get, rows) for rows in (opened.rows, read.rows)]
        assert assemblers[0].assemble(draws[:1]) == assemblers[1].assemble(draws[1:])


def test_a_folder_of_example_files_is_read(tmp_path):
    for name, first in (("part-0.jsonl", 0), ("part-1.jsonl", 10)):
        (tmp_path / name).write_text(lines(map(triple, range(first, first + 10))))
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "all.jsonl").write_text(FILES["triples.jsonl"])
    whole = read_examples(tmp_path / "all" / "all.jsonl").rows
    assert list(open_examples(tmp_path, None, "train").rows) == whole == read_examples(tmp_path).rows


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("ids.jsonl", '"é 3"', '"other"', r":\d+: the query id 'q3' is already used at line 7, for another query"),
        ("ids.jsonl", '"d17"', '"x17"', r"ids\.jsonl:\d+: unknown document id 'x17'"),
        ("tevatron.jsonl", '"text 1"', '"other"', r":\d+: the passage id 'd1' is used for another text earlier"),
    ],
)
def test_contradictions_are_reported_with_their_line(tmp_path, name, old, new, message):
    (tmp_path / name).write_text(FILES[name].replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        open_examples(tmp_path / name, CORPUS, "train")


def test_missing_texts_are_reported(tmp_path):
    (tmp_path / "ids.jsonl").write_text(FILES["ids.jsonl"], encoding="utf-8")
    with pytest.raises(DataError, match="documents by id, without texts"):
        open_examples(tmp_path / "ids.jsonl", None, "train")


def test_an_epoch_has_the_order_of_a_shuffled_list():
    expected = list(range(50))
    random.Random("order 42 3").shuffle(expected)
    assert list(ExampleSampler([None] * 50).order(3)) == expected


def held(path):
    """Return the bytes that opened examples take, and the maximum while they were opened."""
    tracemalloc.start()
    try:
        examples = open_examples(path, CORPUS, "train")
        sampler = ExampleSampler(examples.rows)
        ready = StepAssembler(CORPUS.get, examples.rows), sampler.order(0)
        return *tracemalloc.get_traced_memory(), ready
    finally:
        tracemalloc.stop()


def test_memory_hardly_grows_with_the_number_of_examples(tmp_path):
    """16 bytes per example and 4 for the order of an epoch; some more while they are read and compared."""
    measured = []
    for count in (1_000, 1_000, 11_000):
        path = tmp_path / f"{count}.jsonl"
        rows = ({"query_id": f"q{row}", "query": f"q{row}", "positives": [f"d{row % 30}"]} for row in range(count))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        measured.append(held(path))
    now, peak = (high - low for low, high in zip(*(one[:2] for one in measured[1:]), strict=True))
    assert now < 24 * 10_000
    assert peak < 64 * 10_000
