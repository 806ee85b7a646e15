"""Mining part by part: resuming after a kill with the same bytes, and the audit."""

from __future__ import annotations

import json
import os
import random
import signal

import markupsafe
import pytest

import retrievalkit as rk
from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.data.runs import write_run
from retrievalkit.mining import parts as mining
from retrievalkit.mining import pipeline
from retrievalkit.mining.audit import distribution

QUESTIONS = 40
OPTIONS = {"drop_answers": True, "near_duplicates": 0.5, "same_document": "title", "skip_top": 2, "negatives": 9}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Forty questions of a hundred passages, half of them with answers, and a run of thirty hits for each."""
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random("mining")
    words = [f"word{number}" for number in range(50)]
    rows = [{"_id": f"p{n}", "title": f"T{n // 5}", "text": " ".join(draw.choices(words, k=12))} for n in range(100)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = [
        Example(f"q{n}", f"question {n}", (f"p{n}",), (), (words[n],) if n % 2 else ()) for n in range(QUESTIONS)
    ]
    write_examples(folder / "train.jsonl", examples)
    hits = {one.query_id: draw.sample([row["_id"] for row in rows], 30) for one in examples}
    write_run(folder / "run.trec", {q: [(one, 30.0 - n) for n, one in enumerate(ids)] for q, ids in hits.items()})
    return folder


@pytest.fixture
def mine(data, tmp_path):
    """Mine into a named folder, and return the examples."""

    def mine(name, **options):
        places = {"corpus": data / "corpus.jsonl", "examples": data / "train.jsonl"}
        return rk.mine_negatives(data / "run.trec", **places | options, output=tmp_path / name / "out.jsonl")

    return mine


def bytes_in(folder):
    """Return the bytes of all files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of four questions, and a search of sixteen at a time."""
    monkeypatch.setattr(mining, "PART", 4)
    monkeypatch.setattr(mining, "searched_at_once", lambda depth: 16)


@pytest.fixture
def interrupt(mine, small_parts, tmp_path):
    """Interrupt mining before a part is written."""
    write = mining.MinedParts.write

    def interrupt(at, **options):
        def interrupted(self, number, *rest):
            if number == at:
                raise KeyboardInterrupt
            write(self, number, *rest)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(mining.MinedParts, "write", interrupted)
            mine("resumed", **options)
        assert not (tmp_path / "resumed" / "out.jsonl").exists()

    return interrupt


MOMENTS = {
    "before the first part": lambda: kill_at_call(mining.MinedParts, "write", 1),
    "after the fourth part, between two searches": lambda: kill_at_call(mining.MinedParts, "write", 4, after=True),
    "after the sixth part": lambda: kill_at_call(mining.MinedParts, "write", 6, after=True),
    "while a part is written": lambda: kill_at_call(os, "replace", 3),
    "while the examples are written": lambda: kill_at_call(pipeline, "write_examples", 1),
    "while the audit is written": lambda: kill_at_call(pipeline, "audit_page", 1),
}


@forks
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_mining_resumes_and_writes_the_same_bytes(mine, tmp_path, small_parts, moment):
    mine("whole", **OPTIONS)

    def killed():
        MOMENTS[moment]()
        mine("resumed", **OPTIONS)

    assert in_another_process(killed) == -signal.SIGKILL
    assert not (tmp_path / "resumed" / "out.jsonl").exists()
    mine("resumed", **OPTIONS)
    assert bytes_in(tmp_path / "resumed") == bytes_in(tmp_path / "whole")


def test_complete_parts_are_not_mined_again(mine, interrupt, monkeypatch):
    """Six of ten parts are complete; the second search is repeated, as batches must not change."""
    interrupt(6)
    write, written = mining.MinedParts.write, []
    monkeypatch.setattr(mining.MinedParts, "write", lambda self, *rest: (written.append(rest[0]), write(self, *rest)))
    mine("resumed")
    assert written == [6, 7, 8, 9]


@pytest.mark.parametrize("sample", ["top", "random"])
def test_the_size_of_parts_changes_nothing_and_the_seed_changes_the_sample(mine, tmp_path, monkeypatch, sample):
    options = {**OPTIONS, "sample": sample, "negatives": 3}
    one, other = mine("one", **options), mine("other", **options, seed=1)
    assert (list(one) == list(other)) == (sample == "top")
    assert [row["query_id"] for row in one.report["sample"]] != [row["query_id"] for row in other.report["sample"]]
    monkeypatch.setattr(mining, "PART", 3)
    monkeypatch.setattr(mining, "searched_at_once", lambda depth: 9)
    mine("parts", **options)
    assert bytes_in(tmp_path / "one") == bytes_in(tmp_path / "parts")


def test_the_order_of_questions_does_not_matter(mine, data):
    """Each question has the same negatives, and the audit the same sample and counts."""
    rows = [*read_examples(data / "train.jsonl").rows, Example("again", "question 3", ("p99",))]
    options = {**OPTIONS, "negatives": 3, "sample": "random"}
    one, other = (mine(f"{given[0].query_id}", examples=given, **options) for given in (rows, rows[::-1]))
    assert {row.query_id: row for row in one} == {row.query_id: row for row in other}
    for name in ("hits", "left", "sample", "scores", "ranks_of_negatives", "ranks_of_positives", "warnings"):
        assert one.report[name] == other.report[name]


# --- the audit -----------------------------------------------------------------------------------------------------


def test_the_audit_counts_every_hit_once_and_matches_the_examples(mine, data, tmp_path):
    """Hits are dropped by a filter or left; the sample and the counts agree with the written examples."""
    rows = read_examples(data / "train.jsonl").rows
    rows[0] = Example("q0", "<b>bold</b> & more", ("p0",))
    mined = mine("out", **OPTIONS, examples=rows)
    audit, kept = mined.report, sum(len(row.negatives) for row in mined)
    assert audit["hits"] == 30 * QUESTIONS
    assert audit["left"] == audit["hits"] - sum(one["dropped"] for one in audit["filters"])
    assert sum(one["count"] for one in audit["ranks_of_negatives"]) == kept == audit["scores"]["negatives"]["count"]
    assert sum(audit["scores"]["negatives"]["bins"]) == kept
    assert audit["questions_whose_positive_was_found"] == sum(one["count"] for one in audit["ranks_of_positives"])
    sizes = [len(row.negatives) for row in mined]
    assert audit["negatives"] == distribution({size: sizes.count(size) for size in sizes})
    rows = {row.query_id: row for row in mined}
    assert len(audit["sample"]) == 20
    for asked in audit["sample"]:
        row = rows[asked["query_id"]]
        assert [one["document_id"] for one in asked["first_negatives"]] == list(row.negatives[:3])
        assert asked["positive"]["document_id"] in row.positives
        assert asked["negatives"] == len(row.negatives)
    shown = {one["name"]: one["examples"] for one in audit["filters"]}
    assert all(len(rows) <= 5 for rows in shown.values())
    first = shown["document of a positive"][0]
    assert first["reason"].startswith("document 't")
    assert first["positive"]["title"] == first["title"]
    assert (data / "corpus.jsonl").read_text().count(first["text"])
    page = (tmp_path / "out" / "out.jsonl.audit.html").read_text()
    assert "<b>bold" not in page
    assert all(name in page for name in (*shown, *(row["query_id"] for row in audit["sample"])))
    assert page.count("<svg") == 1


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"depth": 1, "drop_positives": False}, "do not include their positive"),
        ({"negatives": 2}, "from the first 3 ranks"),
        ({"skip_top": 29, "drop_answers": True}, "have no negative"),
        ({"skip_top": 20}, "More than half of all hits were dropped by: rank"),
        ({"skip_top": 2, "negatives": 1, "drop_positives": False}, "score above the retrieved positive"),
    ],
)
def test_the_audit_warns(mine, tmp_path, options, warning):
    assert any(warning in one for one in mine("out", **options).report["warnings"])
    assert str(markupsafe.escape(warning)) in (tmp_path / "out" / "out.jsonl.audit.html").read_text()
