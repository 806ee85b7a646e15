"""`rkit convert --parts` and `--merge-parts`: passages, judgements and examples in parts, and runs merged back."""

from __future__ import annotations

import json
from functools import partial

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.cli import main
from retrievalkit.data.corpus import Corpus, Cut, Passage, open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.passage_parts import (
    documents_of,
    equal_parts,
    in_passages,
    joined,
    open_document,
    parts_of,
    windows,
)
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import read_run
from retrievalkit.errors import DataError, OptionError
from retrievalkit.evaluation.run import Run
from retrievalkit.storage import read_manifest
from retrievalkit.training.examples import open_examples

PASSAGES = [
    {"_id": "a", "title": "Rome", "text": "Rome is old. Its river is the Tiber.  Dr. Smith swam in the Tiber in 1903."},
    {"_id": "b#x", "title": "", "text": "Paris lies at the Seine. It is the capital."},
    {"_id": "c", "title": "Nothing", "text": ""},
]
QUERIES = [
    {"_id": "1", "text": "which river", "answers": ["Tiber", "Seine"]},
    {"_id": "2", "text": "which mountain", "answers": ["Etna"]},
    {"_id": "3", "text": "what"},
]
JUDGED = {"1": {"a": 2, "b#x": 0}, "2": {"b#x": 1}, "3": {"b#x": 1, "c": 1}}


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path):
    """A collection of three passages and three judged questions, two of them with answers."""
    data = tmp_path / "data"
    write(data / "corpus.jsonl", PASSAGES)
    write(data / "queries.jsonl", QUERIES)
    (data / "qrels").mkdir()
    lines = (
        f"{query}\t{document}\t{grade}\n" for query, judged in JUDGED.items() for document, grade in judged.items()
    )
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return data


def run(*words):
    """Run `rkit convert`; return its result and standard error, or raise its error."""
    result = CliRunner().invoke(main, ["convert", *map(str, words), "--json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout), result.stderr


def texts(corpus):
    return {passage.id: passage.text for passage in open_corpus(corpus)}


def test_sentences():
    text = PASSAGES[0]["text"]

    def cut(size, stride=None):
        return [text[part.start : part.end] for part in windows(text, size, stride, "sentences")]

    first, second, third = cut(1)
    assert (first, second) == ("Rome is old.", "Its river is the Tiber.")
    assert third == "Dr. Smith swam in the Tiber in 1903."
    assert windows(" \n ", 1, by="sentences") == []
    assert cut(2, 1) == [f"{first} {second}", f"{second}  {third}"]


@given(words=st.lists(st.text("ab,", min_size=1), max_size=30), size=st.integers(1, 9), data=st.data())
def test_windows(words, size, data):
    """Each word is in a passage, passages start every `stride` words, and none contains another."""
    stride = data.draw(st.integers(1, size))
    text = " \n".join(words)
    cut = [text[part.start : part.end].split() for part in windows(text, size, stride)]
    assert cut == [words[first : first + size] for first in range(0, stride * len(cut), stride)]
    assert not words or cut[-1][-1] == words[-1]
    assert len(cut) < 2 or stride * (len(cut) - 2) + size < len(words)
    assert bool(cut) == bool(words)


@given(
    text=st.text(st.sampled_from("ab. \n\u3002\u5b57\u0e01")),
    size=st.integers(1, 9),
    stride=st.integers(1, 9),
    by=st.sampled_from(["words", "sentences", "parts"]),
)
def test_passages_restore_their_document(text, size, stride, by):
    """The whole text with its white space, however it was cut; each passage is in its place."""
    cut = equal_parts if by == "parts" else partial(windows, stride=min(size, stride), by=by)
    passages = parts_of(Passage("d", "", text), cut(text, size))
    whole, spans = joined(passages)
    assert whole == text
    assert [whole[slice(*spans[passage.id])] for passage in passages] == [passage.text for passage in passages]


def test_documents_of_earlier_versions_and_with_lost_passages_are_joined_by_spaces():
    """Without a record of its start, or after a gap, a passage follows a space; headers of tables are not repeated."""
    old = [Passage(f"d#{number}", "", text, cut=Cut("d", number, 2)) for number, text in enumerate(["a b", "b c"], 1)]
    assert joined(old) == ("a b b c", {"d#1": (0, 3), "d#2": (4, 7)})
    some = [
        Passage("d#1", "", "a b", cut=Cut("d", 1, 3, 0)),
        Passage("d#3", "", "head c", cut=Cut("d", 3, 3, 9, "", 5)),
    ]
    assert joined(some) == ("a b c", {"d#1": (0, 3), "d#3": (4, 5)})


def test_judgements_follow_passages_of_words(tmp_path, folder):
    done, _ = run(folder, tmp_path / "out", "--passages", 4, "--stride", 2)
    assert done["passages"] == 12
    assert read_manifest(tmp_path / "out", "collection")["options"]["stride"] == 2
    judged = read_qrels(tmp_path / "out")["1"]
    assert {part for part, grade in judged.items() if grade} == {"a#3", "a#4", "a#6", "a#7"}
    assert set(read_qrels(tmp_path / "out")["2"]) == {"b#x#1", "b#x#2", "b#x#3", "b#x#4"}


@given(words=st.lists(st.text("ab,", min_size=1), max_size=30), count=st.integers(2, 9))
def test_equal_parts(words, count):
    """All words in order, in `count` parts whose sizes differ by at most a word, or in a part per word."""
    text = "  ".join(words)
    parts = [text[part.start : part.end].split() for part in equal_parts(text, count)]
    assert [word for part in parts for word in part] == words
    sizes = list(map(len, parts))
    assert len(parts) == min(count, len(words))
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_a_collection(tmp_path, folder):
    """Parts with an answer are positives, or all parts if none has an answer; other parts keep their grade."""
    counts, _ = run(folder, tmp_path / "parts", "--parts", "sentences")
    assert counts == {"passages": 6, "queries": 3, "judgements": 9}
    corpus = list(open_corpus(tmp_path / "parts"))
    assert [part.id for part in corpus] == ["a#1", "a#2", "a#3", "b#x#1", "b#x#2", "c#1"]
    assert corpus[1].title == "Rome"
    assert corpus[1].text == "Its river is the Tiber."
    assert read_queries(tmp_path / "parts") == read_queries(folder)
    assert read_qrels(tmp_path / "parts") == {
        "1": {"a#2": 2, "a#3": 2, "b#x#1": 0, "b#x#2": 0},
        "2": {"b#x#1": 1, "b#x#2": 1},
        "3": {"b#x#1": 1, "b#x#2": 1, "c#1": 1},
    }
    assert read_manifest(tmp_path / "parts", "collection")["options"]["parts"] == "sentences"


def test_parts_keep_their_record_in_copies(tmp_path, folder):
    """Each row records its document, so copied, filtered and joined files of parts stay parts, and only these."""
    run(folder, tmp_path / "parts.jsonl", "--kind", "corpus", "--parts", "3")
    own = write(tmp_path / "own.jsonl", [{"_id": "a#4", "text": "mine"}, {"_id": "d#1", "text": "mine", "cut": "loin"}])
    (tmp_path / "joined.jsonl").write_text(own.read_text() + (tmp_path / "parts.jsonl").read_text())
    run(tmp_path / "joined.jsonl", tmp_path / "again.jsonl.gz", "--kind", "corpus")
    corpus = list(open_corpus(tmp_path / "again.jsonl.gz"))
    assert [passage.cut for passage in corpus[:3]] == [None, None, Cut("a", 1, 3, 0)]
    assert documents_of(corpus) == {"a": 3, "b#x": 3, "c": 1}
    assert corpus[1].fields == {"cut": "loin"}
    assert open_document(Corpus.of(corpus), "a").passages.keys() == {"a#1", "a#2", "a#3"}
    assert open_document(Corpus.of(corpus), "d") is None


@pytest.mark.parametrize(
    "cut",
    [
        {"document": "b", "number": 1, "of": 2},
        {"document": "a", "number": 2, "of": 2},
        {"document": "a", "number": 1, "of": 0},
        {"document": "a", "number": True, "of": 1},
        {"document": ["a"], "number": 1, "of": 1},
    ],
)
def test_a_record_that_contradicts_its_id_is_refused(tmp_path, cut):
    corpus = write(tmp_path / "corpus.jsonl", [{"_id": "a#1", "text": "x", "cut": cut}])
    with pytest.raises(DataError, match=r"corpus\.jsonl:1: 'cut' is .*, but the id is 'a#1'"):
        list(open_corpus(corpus))


def test_judgements_alone(tmp_path, folder):
    """Answers and passages come from the collection, or from --corpus if the source is a file of judgements."""
    run(folder, tmp_path / "parts", "--parts", "sentences")
    run(folder, tmp_path / "of-folder.tsv", "--parts", "sentences", "--kind", "qrels")
    run(folder / "qrels" / "test.tsv", tmp_path / "of-file.tsv", "--parts", "sentences", "--corpus", folder)
    for name in ("of-folder.tsv", "of-file.tsv"):
        assert read_qrels(tmp_path / name) == read_qrels(tmp_path / "parts")
    with pytest.raises(OptionError, match=r"refers to passages whose texts it does not contain\. Give the corpus"):
        run(folder / "qrels" / "test.tsv", tmp_path / "x.tsv", "--parts", "2")


def test_examples(tmp_path, folder):
    """All parts of a negative are negatives, hardest first; a note counts the dropped teacher scores."""
    rows = [
        {"query_id": "1", "query": "which river", "answers": ["Tiber"], "positives": ["a"], "negatives": ["c", "b#x"]},
        {"query_id": "2", "query": "what", "positives": ["b#x", "a"], "teacher": {"b#x": 3.0, "a": 1.0}},
    ]
    train = write(tmp_path / "train.jsonl", rows)
    _, notes = run(train, tmp_path / "parts.jsonl", "--parts", "3", "--corpus", folder)
    assert "Dropped the teacher scores of 1 examples" in notes
    run(folder, tmp_path / "corpus.jsonl", "--kind", "corpus", "--parts", "3")
    cut = texts(tmp_path / "corpus.jsonl")
    first, second = read_examples(tmp_path / "parts.jsonl", corpus=open_corpus(tmp_path / "corpus.jsonl"))
    assert {part: "Tiber" in cut[part] for part in ("a#1", "a#2", "a#3")} == {"a#1": False, "a#2": True, "a#3": True}
    assert first.positives == ("a#2", "a#3")
    assert first.negatives == ("c#1", "b#x#1", "b#x#2", "b#x#3")
    assert second.positives == ("b#x#1", "b#x#2", "b#x#3", "a#1", "a#2", "a#3")
    assert second.teacher is None


def test_examples_with_their_passages(tmp_path):
    """DPR's examples: their parts are written too, or mapped to the parts of a corpus with other ids."""
    row = {
        "question": "which river",
        "answers": ["Tiber"],
        "positive_ctxs": [{"title": "Rome", "text": PASSAGES[0]["text"], "passage_id": "7"}],
        "hard_negative_ctxs": [{"title": "", "text": PASSAGES[1]["text"], "passage_id": "9"}],
    }
    (tmp_path / "dpr.json").write_text(json.dumps([row]))
    counts, _ = run(tmp_path / "dpr.json", tmp_path / "out", "--parts", "sentences")
    assert counts == {"examples": 1, "passages": 5}
    (example,) = read_examples(tmp_path / "out", corpus=open_corpus(tmp_path / "out"))
    assert example.positives == ("7#2", "7#3")
    assert example.negatives == ("9#1", "9#2")
    write(tmp_path / "corpus.jsonl", PASSAGES)
    run(tmp_path / "dpr.json", tmp_path / "by-ids.jsonl", "--parts", "sentences", "--corpus", tmp_path / "corpus.jsonl")
    (example,) = read_examples(tmp_path / "by-ids.jsonl")
    assert (example.positives, example.negatives) == (("a#2", "a#3"), ("b#x#1", "b#x#2"))


def test_a_run_of_parts_becomes_a_run_of_passages(tmp_path, folder):
    """A passage has the score of its best part, so metrics are comparable with a search for passages."""
    (tmp_path / "parts.trec").write_text(
        "1 Q0 b#x#2 1 9.5 t\n1 Q0 a#3 2 8 t\n1 Q0 b#x#1 3 7 t\n1 Q0 a#1 4 6 t\n1 Q0 c#1 5 5 t\n2 Q0 b#x#1 1 1 t\n"
    )
    run(folder, tmp_path / "parts.jsonl", "--kind", "corpus", "--parts", "3")
    of = ("--merge-parts", "--corpus", tmp_path / "parts.jsonl")
    counts, _ = run(tmp_path / "parts.trec", tmp_path / "passages.trec", *of)
    assert counts == {"results": 4}
    assert read_run(tmp_path / "passages.trec") == {"1": [("b#x", 9.5), ("a", 8.0), ("c", 5.0)], "2": [("b#x", 1.0)]}
    evaluation = Run.load(tmp_path / "passages.trec").evaluate(folder, "RR@10")
    assert evaluation["RR@10"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    run(tmp_path / "parts.trec", tmp_path / "ms.tsv", *of, "--form", "msmarco")
    assert (tmp_path / "ms.tsv").read_text().splitlines()[:2] == ["1\tb#x\t1", "1\ta\t2"]


@pytest.mark.parametrize(
    "part", ["a", "a#0", "a#", "#1", "a#x", "a#4", "a#01", "a#\u0661", "b#1", f"a#{'9' * 5000}"], ids=range(10)
)
def test_a_run_of_other_texts_is_refused(tmp_path, folder, part):
    """Parts are those that the corpus records, whatever an id looks like; its other texts are whole passages."""
    run(folder, tmp_path / "parts.jsonl", "--kind", "corpus", "--parts", "3")
    (tmp_path / "run.trec").write_text(f"1 Q0 {part} 1 9.5 t\n")
    with pytest.raises(DataError, match=r"run\.trec: unknown document id 'a|b|#"):
        run(tmp_path / "run.trec", tmp_path / "out.trec", "--merge-parts", "--corpus", tmp_path / "parts.jsonl")
    assert not (tmp_path / "out.trec").exists()
    with (tmp_path / "parts.jsonl").open("a") as stream:
        stream.write(json.dumps({"_id": part, "text": "my own"}) + "\n")
    run(tmp_path / "run.trec", tmp_path / "out.trec", "--merge-parts", "--corpus", tmp_path / "parts.jsonl")
    assert read_run(tmp_path / "out.trec") == {"1": [(part, 9.5)]}
    with pytest.raises(OptionError, match="Give the corpus of the parts"):
        run(tmp_path / "run.trec", tmp_path / "out.trec", "--merge-parts")
    with pytest.raises(DataError, match="does not record that its passages are parts"):
        run(tmp_path / "run.trec", tmp_path / "out.trec", "--merge-parts", "--corpus", folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--parts", "1"], "parts is '1', but should be 'sentences' or a number"),
        (["--parts", "words"], "parts is 'words'"),
        (["--parts", "2", "--merge-parts"], "merge_parts is for runs"),
        (["--parts", "2", "--kind", "queries"], "parts cuts passages, but .* is read as queries"),
        (["--parts", "2", "--kind", "run"], "is read as run"),
        (["--merge-parts"], "merge_parts is for runs, but '.*' is read as collection"),
    ],
)
def test_wrong_usage(tmp_path, folder, words, message):
    with pytest.raises(OptionError, match=message):
        run(folder, tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_examples_may_refer_to_documents_that_the_corpus_stores_as_passages(tmp_path):
    passages = [
        {"_id": f"a#{number}", "text": text, "cut": {"document": "a", "number": number, "of": 2}}
        for number, text in enumerate(["of Rome", "of the Tiber"], 1)
    ]
    passages += [{"_id": f"c#{number}", "text": f"ticket {number}"} for number in (1, 2)]
    corpus = write(tmp_path / "corpus.jsonl", [*passages, {"_id": "b", "text": "of Paris"}])
    rows = [
        {"query": "which river", "positives": ["a"], "negatives": ["b"], "answers": ["Tiber"]},
        {"query": "which town", "positives": ["b"], "negatives": ["a"]},
    ]
    examples = write(tmp_path / "examples.jsonl", rows)
    for read in (
        in_passages(read_examples(examples), open_corpus(corpus)),
        open_examples(examples, open_corpus(corpus), "train"),
    ):
        assert [(row.positives, row.negatives) for row in read.rows] == [(("a#2",), ("b",)), (("b",), ("a#1", "a#2"))]
    write(examples, [{"query": "which river", "positives": ["c"], "negatives": []}])  # the ids of c were not cut
    with pytest.raises(DataError, match="unknown document id 'c'"):
        open_examples(examples, open_corpus(corpus), "train")


@pytest.mark.parametrize(
    "text", ["借书证的办理方法和有效期限。" * 99, "การศึกษาเป็นสิ่งสำคัญ" * 150, "Python 3を使う方法。" * 70]
)
@pytest.mark.parametrize("stride", [50, 100])
def test_texts_without_spaces_are_cut_by_signs(text, stride):
    """A Chinese or Japanese sign, or four Thai letters, count as a word."""
    cut = windows(text, 100, stride)
    assert len(cut) > 2
    assert max(part.end - part.start for part in cut) < 700
