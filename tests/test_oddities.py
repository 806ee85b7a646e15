"""What looks wrong but does not stop a command is told once at its end, and is an error with --strict."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from retrievalkit import oddities
from retrievalkit.cli import main
from retrievalkit.data.runs import write_run
from retrievalkit.errors import InputError
from retrievalkit.mine.audit import _SCORES

pytestmark = pytest.mark.precision


def rkit(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def test_a_note_is_shown_once_and_at_the_end(capsys):
    with oddities.collected():
        oddities.note("One.", "Two.")
        oddities.note("One.")
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "Note: One.\nNote: Two.\n"


def test_outside_of_a_command_a_note_is_shown_at_once(capsys):
    oddities.note("One.")
    assert capsys.readouterr().err == "Note: One.\n"


def test_after_an_error_there_are_no_notes(capsys):
    """The error is the one message."""
    with pytest.raises(ValueError, match="no"), oddities.collected():
        oddities.note("One.")
        msg = "no"
        raise ValueError(msg)
    assert capsys.readouterr().err == ""


def test_a_step_of_a_recipe_tells_its_own(capsys):
    with oddities.collected():
        with oddities.collected():
            oddities.note("Inner.")
        assert capsys.readouterr().err == "Note: Inner.\n"
    assert capsys.readouterr().err == ""


def test_a_strict_command_refuses():
    with (
        oddities.collected(strict=True),
        pytest.raises(InputError, match=r"One\. Two\. \(An error because of --strict"),
    ):
        oddities.note("One.", "Two.")


@pytest.fixture
def judged(tmp_path):
    """A run of two hits for each query, and judgements of more documents and of another query."""
    write_run(tmp_path / "run", {"q1": [("a", 2.0), ("b", 1.0)], "q2": [("a", 2.0), ("b", 1.0)], "x": [("a", 1.0)]})
    (tmp_path / "qrels").write_text("q1 0 a 1\nq1 0 z 1\nq2 0 b 1\nq3 0 a 1\n")
    return tmp_path


NOTES = [
    "1 of 3 queries of the run are not in the qrels and are left out: 'x'.",
    "1 of 3 queries of the qrels are not in the run and count 0: 'q3'.",
    "the run has at most 2 documents per query, so R@1000 looks no further.",
]


def test_an_evaluation_tells_what_its_figures_lack(judged):
    """Recall at 1,000 of a run with two hits is not what its name says; RR@10 may be, if all queries found a hit."""
    result = rkit("evaluate", judged / "run", "--qrels", judged / "qrels", "--metrics", "R@1000 RR@10")
    assert result.exit_code == 0
    for note in NOTES:
        assert f"Note: {note}\n" in result.stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_strict_evaluation_is_refused(judged, form):
    result = rkit("evaluate", judged / "run", "--qrels", judged / "qrels", "--strict", *form)
    assert (result.exit_code, result.stdout) == (2, "")
    assert all(note in result.stderr for note in NOTES[:2])


def test_a_strict_comparison_of_runs_of_different_queries_is_refused(judged):
    write_run(judged / "other", {"q1": [("a", 2.0)], "q3": [("a", 2.0)]})
    words = ["compare", judged / "run", judged / "other", "--qrels", judged / "qrels", "--output", judged / "page.json"]
    assert rkit(*words).exit_code == 0
    (judged / "page.json").unlink()
    result = rkit(*words, "--strict")
    assert result.exit_code == 2
    assert "'x'" in result.stderr
    assert "are not in run 'other'" in result.stderr
    assert not (judged / "page.json").exists()


@pytest.fixture
def long_texts(tmp_path):
    """A corpus with an empty text and one of 10,000 words."""
    rows = [{"_id": "a", "text": "rome"}, {"_id": "b", "text": " "}, {"_id": "c", "text": "rome " * 10_000}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_encoding_tells_of_empty_and_cut_texts(tiny_model, long_texts):
    words = ["encode", tiny_model, long_texts / "corpus.jsonl", "--output", long_texts / "v"]
    result = rkit(*words)
    assert result.exit_code == 0
    assert "Note: one of the texts is empty: b." in result.stderr
    limit = json.loads((long_texts / "v" / "manifest.json").read_text())["counts"]["texts"]
    assert limit == 3
    (note,) = [line for line in result.stderr.splitlines() if "were cut" in line]
    assert note.startswith("Note: 1 document texts had more than ")
    kept, lost = (
        int(word.replace(",", "")) for word in note.split() if word.replace(",", "").isdigit() and word != "1"
    )
    assert kept + lost == pytest.approx(10_002, abs=5) or kept + lost > 10_000  # "rome" may be several tokens


def test_a_strict_encoding_writes_nothing(tiny_model, long_texts):
    result = rkit("encode", tiny_model, long_texts / "corpus.jsonl", "--output", long_texts / "v", "--strict")
    assert result.exit_code == 2
    assert "would be cut" in result.stderr
    assert [path.name for path in long_texts.iterdir()] == ["corpus.jsonl"]


def test_few_scores_of_a_sampled_question_are_kept():
    """With 100,000 negatives a question they took gigabytes."""
    from retrievalkit.data.queries import Query
    from retrievalkit.mine.audit import Audit
    from retrievalkit.mine.filters import Filtered
    from retrievalkit.mine.options import Found, Mined, Question

    ids = [f"d{n}" for n in range(5_000)]
    found = Found(Question(Query("q", "text"), ("q",), frozenset()), ids, [float(-n) for n in range(5_000)])
    audit = Audit([], questions=1)
    audit.count([Filtered(found, [], range(5_000), Mined(tuple(ids)))], [])
    (row,) = audit.sample
    assert row["negatives"] == 5_000
    assert len(row["scores"]) <= _SCORES
    assert (row["scores"][0], row["scores"][-1]) == (0.0, -4_995.0)
