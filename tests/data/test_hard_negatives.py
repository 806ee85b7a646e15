"""sentence-transformers' file of hard negatives: selection of the negatives, and invalid files."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from click.testing import CliRunner

from retrievalkit.cli.main import main
from retrievalkit.data.examples import read_examples
from retrievalkit.data.hard_negatives import HardNegatives
from retrievalkit.data.kinds import kind_of
from retrievalkit.errors import DataError, OptionError, UnknownNameError

# As in the original, ids are whole numbers. The positives score 8 and 9; 21 and 3 score within 3 of the lower positive.
LINES = [
    {"qid": 571018, "pos": [10, 11], "neg": {"bm25": [20, 21, 22, 10], "tas-b": [22, 3, 4], "v3": [5]}},
    {"qid": 2, "pos": [20], "neg": {"bm25": [21, 22]}},
    {"qid": 3, "pos": [], "neg": {"bm25": [21]}},
]
QUERIES = {571018: "what does a baker bake", 2: "who was first", 3: "why"}
SCORES = {
    571018: {10: 9.0, 11: 8.0, 20: 5.0, 21: 5.5, 22: -1.0, 3: 8.5, 4: 0.0, 5: 1.0},
    2: {20: 4.0, 21: 0.5, 22: 3.0},
    3: {21: 1.0},
}
PAIRS = [(query, passage, score) for query, scores in SCORES.items() for passage, score in scores.items()]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "hard.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (tmp_path / "queries.tsv").write_text("".join(f"{query}\t{text}\n" for query, text in QUERIES.items()))
    (tmp_path / "scores.tsv").write_text("".join(f"{q}\t{p}\t{score}\n" for q, p, score in PAIRS))
    return tmp_path


def chosen(place, **options):
    """Return query -> its negatives."""
    selection = HardNegatives(queries=str(place / "queries.tsv"), **options)
    return {row.query_id: row.negatives for row in read_examples(place / "hard.jsonl", hard_negatives=selection)}


def test_all_systems_in_their_order_each_passage_once_and_no_positive(place):
    examples = read_examples(place / "hard.jsonl", hard_negatives=HardNegatives(queries=str(place / "queries.tsv")))
    assert kind_of(place / "hard.jsonl") == "examples"
    first, second = examples.rows
    assert (first.query_id, first.query) == ("571018", "what does a baker bake")
    assert first.positives == ("10", "11")
    assert first.negatives == ("20", "21", "22", "3", "4", "5")
    assert second.negatives == ("21", "22")
    assert first.teacher is None
    assert examples.dropped == 1


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({"systems": ["tas-b", "bm25"]}, "22 3 4 20 21", "21 22"),
        ({"systems": ["v3"]}, "5", ""),
        # With two per system, 22 comes from tas-b, because bm25 has two already.
        ({"per_system": 2}, "20 21 22 3 5", "21 22"),
        ({"per_system": 3}, "20 21 22 3 4 5", "21 22"),
        # The lower positive scores 8, so 20 with exactly 5 stays; 21 and 3 are replaced by their systems' next hits.
        ({"margin": 3}, "20 22 4 5", "21"),
        ({"margin": 3.1}, "22 4 5", "21"),
        ({"margin": 3, "per_system": 1}, "20 22 5", "21"),
        ({"margin": -1}, "20 21 22 3 4 5", "21 22"),
    ],
)
def test_negatives_are_chosen_by_system_number_and_margin(place, options, first, second):
    scores = {"scores": str(place / "scores.tsv")} if "margin" in options else {}
    assert chosen(place, **options, **scores) == {"571018": tuple(first.split()), "2": tuple(second.split())}


@pytest.mark.parametrize(("negatives", "texts"), [({"bm25": ["n"]}, []), (["another"], ["a text", "another"])])
def test_a_line_may_contain_the_query_and_texts_make_it_a_triple(tmp_path, negatives, texts):
    line = {"qid": "q", "query": "who", "pos": ["a text"], "neg": negatives}
    (tmp_path / "own.jsonl").write_text(json.dumps(line))
    examples = read_examples(tmp_path / "own.jsonl")
    assert examples.rows[0].query == "who"
    assert sorted(passage.text for passage in examples.passages.values()) == texts


def in_form(form, path):
    shuffled = [PAIRS[row] for row in np.random.default_rng(0).permutation(len(PAIRS))]
    rows = [dict(zip(("qid", "pid", "score"), pair, strict=True)) for pair in shuffled]
    path.write_text({
        "header": "qid\tpid\tscore\n" + "".join(f"{q}\t{p}\t{s}\n" for q, p, s in shuffled),
        "array": json.dumps(rows),
        "lines": "".join(json.dumps(row) + "\n" for row in rows),
        "one object": json.dumps(SCORES),
        "an object a query": "".join(json.dumps({q: scores}) + "\n" for q, scores in SCORES.items()),
    }[form])  # fmt: skip
    return path


@pytest.mark.parametrize("form", ["header", "array", "lines", "one object", "an object a query"])
def test_all_formats_of_scores_give_the_same_negatives(form, place):
    negatives = chosen(place, scores=str(in_form(form, place / "scores")), margin=3)
    assert negatives == {"571018": ("20", "22", "4", "5"), "2": ("21",)}


def test_a_pickle_is_never_read(place):
    class Harm:
        def __reduce__(self):
            return (open, (str(place / "harm"), "w"))

    for name in ("scores.pkl", "scores"):
        (place / name).write_bytes(pickle.dumps(Harm()))
        with pytest.raises(DataError, match="it is a pickle, which is refused"):
            chosen(place, scores=str(place / name))
    assert not (place / "harm").exists()


DAMAGE = {
    "571018\t10\tnan\n": "scores:1: the score is 'nan', but should be a number",
    "571018\t10\n": "no scores have 2 tab-separated columns",
    '{"qid": 1, "pid": 2}\n': "no known format of a score of a pair has these fields",
    '{"1": {"2": true}}\n': "the score is true, but should be a number",
    "": "the file is empty",
    "571018\t10\t1\n571018\t10\t2\n": "the passage '10' has two scores for the query '571018'",
    "571018\t10\t1\n": "has no score of the passage '11' for this query, which margin needs",
}  # fmt: skip


@pytest.mark.parametrize("text", DAMAGE)
def test_damaged_scores_are_refused(text, place):
    (place / "scores").write_text(text)
    with pytest.raises(DataError) as error:
        chosen(place, scores=str(place / "scores"), margin=1)
    assert DAMAGE[text] in str(error.value)


@pytest.mark.parametrize(
    ("options", "files", "error", "message"),
    [
        ({"systems": ["bm52"]}, {}, UnknownNameError, r"'bm52'; did you mean 'bm25'\? Known: bm25, tas-b, v3"),
        ({"margin": 3}, {}, OptionError, "margin 3 compares re-ranker scores"),
        ({}, {"queries.tsv": "571019\twhat\n"}, DataError, r"'571018' is not in .*; did you mean '571019'\?"),
        ({}, {"hard.jsonl": '{"query": "a", "pos": ["b"], "neg": ["c"]}'}, DataError, "no known format of a line"),
    ],
)
def test_wrong_options_and_files_are_refused(place, options, files, error, message):
    for name, content in files.items():
        (place / name).write_text(content)
    with pytest.raises(error, match=message):
        chosen(place, **options)


@pytest.mark.parametrize("negatives", [None, "n", ["n"], {"bm25": 3}, {"bm25": [1.5]}])
def test_negatives_must_be_lists_of_ids(negatives, place):
    (place / "hard.jsonl").write_text(json.dumps({"qid": 2, "pos": [20], "neg": negatives}) + "\n")
    with pytest.raises(DataError, match=r"hard\.jsonl:1: '(neg|bm25)' is"):
        chosen(place)


def convert(place, *words, code=0):
    line = ["convert", place / "hard.jsonl", place / "train.jsonl", *words]
    result = CliRunner().invoke(main, [str(word) for word in line])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_the_command_writes_examples_with_teacher_scores(place):
    scores = ("--scores", place / "scores.tsv", "--margin", 3)
    printed = convert(place, "--queries", place / "queries.tsv", "--systems", "tas-b, v3", "--per-system", 1, *scores)
    assert printed == f"{place}/train.jsonl: 2 examples, 1 without a negative, 1 without a positive\n"
    first, second = read_examples(place / "train.jsonl").rows
    assert (first.query, first.negatives) == ("what does a baker bake", ("22", "5"))
    assert first.teacher == {"10": 9.0, "11": 8.0, "22": -1.0, "5": 1.0}
    assert second.negatives == ()
