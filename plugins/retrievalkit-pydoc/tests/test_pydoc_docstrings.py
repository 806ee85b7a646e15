"""Docstrings as passages and questions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retrievalkit_pydoc.source import (
    LEAST_BODY_WORDS,
    MOST_BODY_WORDS,
    MOST_SUMMARY_WORDS,
    is_question,
    plain,
    read_docstring,
    unmarked,
)

BODY = "This body says with quite a number of words what happens to each of the strings when it is bowed or plucked."


LONG = "It goes on, e.g. with the following. " + " ".join(["and on"] * 30)
SUMMARY = "Tune all strings of a violin"


@pytest.mark.parametrize(
    ("doc", "summary", "body"),
    [
        (f"{SUMMARY}.\n\n    {BODY}\n\n    Notes\n    -----\n    Slowly.", SUMMARY, f"{BODY} Notes Slowly."),
        (f"Tune all strings\n    of a violin.\n\n    {BODY}", SUMMARY, BODY),
        (f"Tune the strings, i.e. G, D, A and E. {LONG}", "Tune the strings, i.e. G, D, A and E", LONG),
        (f"{SUMMARY}. {BODY}", SUMMARY, BODY),
        (f"tune(violin, /, pitch=440)\n\n{SUMMARY}.\n\n{BODY}", SUMMARY, f"tune(violin, /, pitch=440) {BODY}"),
        (
            f"tune(a) -> None\ntune(a, b) --> x\n\n{SUMMARY}.\n\n{BODY}",
            SUMMARY,
            f"tune(a) -> None tune(a, b) --> x {BODY}",
        ),
        (f"{SUMMARY}:\n- the G string\n- {BODY}", SUMMARY, f"- the G string - {BODY}"),
        (f"{SUMMARY}\n============\n{BODY}", SUMMARY, BODY),
        (f"{SUMMARY}.\n\n{BODY} Tune ALL strings of a *violin*.", "", f"{BODY} Tune ALL strings of a violin."),
        (f"{SUMMARY}.\n\n%(before)s\n\n{BODY}\n{{more}}\n\n%(example)s\n", SUMMARY, BODY),
        (f"{SUMMARY}.\n\n" + "word " * 900, SUMMARY, "word " * (MOST_BODY_WORDS - 1) + "word"),
    ],
)
def test_summary_and_body(doc, summary, body):
    """The first sentence and the rest, including signatures; a summary repeated in the body is not a question."""
    assert read_docstring(doc, "f") == ("f", summary, body)


@pytest.mark.parametrize(
    "doc", [f"{SUMMARY}.\n\nSlowly, and with care.", f"{SUMMARY}.", "", f"{SUMMARY}.\n\n{BODY} Of %(name)s."]
)
def test_too_little_text_or_an_unfilled_template_is_no_passage(doc):
    assert read_docstring(doc, "f") is None


@pytest.mark.parametrize(
    ("summary", "name"),
    [
        ("Tune it.", "violin.f"),
        ("Return the strings.", "violin.strings"),
        ("Violin string tuner.", "violin.StringTuner"),
        ("Compute the tension of a string.", "violin.string_tension"),
        ("See also the cello of Stradivari.", "f"),
        ("Alias for the cello of Stradivari.", "f"),
        ("Deprecated since the cello came along.", "f"),
        ("In-place version of the tuning of strings.", "f"),
        ("strings (list of str, optional): Names of the strings to tune.", "f"),
        ("Tune the strings of {instrument} with care.", "f"),
        ("http://example.org holds all about tuning strings", "f"),
        ("1 2 3 4 5 6", "f"),
        ("word " * (MOST_SUMMARY_WORDS + 1), "f"),
    ],
)
def test_unspecific_summaries_are_no_questions(summary, name):
    assert is_question("Solve a linear matrix equation", "numpy.linalg.solve")
    assert not is_question(summary.rstrip("."), name)
    read = read_docstring(f"{summary}\n\n{BODY}", name)
    assert read is None or read.summary == ""


@pytest.mark.parametrize(
    ("marked", "text"),
    [
        (":class:`numpy.ndarray` and :meth:`~a.b.Norm.fit`", "numpy.ndarray and a.b.Norm.fit"),
        (":func:`the fit <a.b.fit>`", "the fit"),
        ("``x`` and `y` and *z* and **w**", "x and y and z and w"),
        ("`a paper <https://example.org/x>`_", "a paper"),
        ("[a paper](https://example.org/x)", "a paper"),
        ("[`~pipelines.Pipeline`]", "Pipeline"),
        (".. versionadded:: 1.2\nKept", "\nKept"),
        (".. note:: Mind", "Note: Mind"),
        (".. code-block:: python\n\n   x = 1", "\n\n   x = 1"),
        ("Title\n=====\nText", "Title\n\nText"),
        ("as follows::", "as follows:"),
        ("2 * 3 * 4 and *args, **kwargs", "2 * 3 * 4 and *args, **kwargs"),
        ("a_b and __init__", "a_b and __init__"),
        ("<Tip>\nText\n</Tip>", "\nText\n"),
        ("x < 3 and y > 4", "x < 3 and y > 4"),
        (".. [1] A paper.", " A paper."),
        ("the ``name'' and `other' one", "the name and other one"),
        (r"\*.h files of numpy\ s", "*.h files of numpys"),
    ],
)
def test_markup(marked, text):
    assert unmarked(marked) == text


@given(st.text(st.sampled_from("ab .\n`*:_-{}%()s>[]<|\t\u00e9"), max_size=300))
def test_any_docstring_can_be_read(doc):
    """The result is None or a complete passage."""
    read = read_docstring(f"{doc}\n\n{BODY}", "name")
    if read is not None:
        assert len(read.body.split()) <= MOST_BODY_WORDS
        assert len(plain(read.body).split()) >= LEAST_BODY_WORDS
        assert "\n" not in read.body + read.summary
        assert not read.summary or plain(read.summary) not in plain(read.body)
