"""Docstrings as passages and questions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.data.sources.pydoc import (
    LEAST_BODY_WORDS,
    MOST_BODY_WORDS,
    MOST_SUMMARY_WORDS,
    asks,
    plain,
    read_docstring,
    unmarked,
    words_of_name,
)

BODY = "This body says with quite a number of words what happens to each of the strings when it is bowed or plucked."


def test_summary_and_body_are_parted():
    read = read_docstring(
        f"Tune all strings of a violin.\n\n    {BODY}\n\n    Notes\n    -----\n    Slowly.", "violin.tune"
    )
    assert read.summary == "Tune all strings of a violin"
    assert read.body == f"{BODY} Notes Slowly."


def test_a_summary_over_several_lines():
    assert (
        read_docstring(f"Tune all strings\n    of a violin.\n\n    {BODY}", "f").summary
        == "Tune all strings of a violin"
    )


def test_a_long_first_paragraph_gives_its_first_sentence():
    long = "It goes on, e.g. with the following. " + " ".join(["and on"] * 30)
    read = read_docstring(f"Tune the four strings, i.e. G, D, A and E. {long}", "f")
    assert read.summary == "Tune the four strings, i.e. G, D, A and E"
    assert read.body == long


def test_a_first_paragraph_that_is_all_gives_its_first_sentence():
    read = read_docstring(f"Tune all strings of a violin. {BODY}", "f")
    assert read == ("f", "Tune all strings of a violin", BODY)


def test_a_signature_at_the_front_belongs_to_the_body():
    read = read_docstring(f"tune(violin, /, pitch=440)\n\nTune all strings of a violin.\n\n{BODY}", "f")
    assert read == ("f", "Tune all strings of a violin", f"tune(violin, /, pitch=440) {BODY}")
    read = read_docstring(
        f"tune(violin) -> None\ntune(violin, pitch) --> None\n\nTune the four strings.\n\n{BODY}", "f"
    )
    assert read.summary == "Tune the four strings"


def test_a_list_or_section_ends_the_summary():
    read = read_docstring(f"Tune all strings of a violin:\n- the G string\n- {BODY}", "f")
    assert read == ("f", "Tune all strings of a violin", f"- the G string - {BODY}")
    read = read_docstring(f"Tune all strings of a violin\n============\n{BODY}", "f")
    assert read.summary == "Tune all strings of a violin"


def test_a_body_that_is_short_is_no_passage():
    assert read_docstring("Tune all strings of a violin.\n\nSlowly, and with care.", "f") is None
    assert read_docstring("Tune all strings of a violin.", "f") is None
    assert read_docstring("", "f") is None


def test_a_long_body_is_cut():
    assert len(read_docstring("Tune strings of it.\n\n" + "word " * 900, "f").body.split()) == MOST_BODY_WORDS


def test_a_question_is_not_in_its_own_passage():
    read = read_docstring(f"Tune all strings of a violin.\n\n{BODY} It can tune ALL strings of a *violin* too.", "f")
    assert (read.summary, bool(read.body)) == ("", True)


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
def test_what_is_no_question(summary, name):
    assert not asks(summary.rstrip("."), name)
    read = read_docstring(f"{summary}\n\n{BODY}", name)
    assert read is None or read.summary == ""


@pytest.mark.parametrize(
    ("summary", "name"),
    [
        ("Pairwise distances between observations", "scipy.spatial.distance.pdist"),
        ("Compute the one-dimensional discrete Fourier transform", "numpy.fft.fft"),
        ("Solve a linear matrix equation", "numpy.linalg.solve"),
    ],
)
def test_what_is_a_question(summary, name):
    assert asks(summary, name)


def test_templates():
    """A placeholder that is a line of its own is left out; one within a sentence spoils the text."""
    assert read_docstring(f"A normal continuous variable.\n\n%(before)s\n\n{BODY}\n{{more}}\n\n%(example)s\n", "f") == (
        "f",
        "A normal continuous variable",
        BODY,
    )
    assert read_docstring(f"A normal continuous variable.\n\n{BODY} Of %(name)s.", "f") is None


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


def test_words_of_a_name():
    assert words_of_name("a.sparse_graph.HTTPServer2") == {
        *("a", "sparse_graph", "sparse", "graph", "httpserver2", "http", "server", "2")
    }


@given(st.text(st.sampled_from("ab .\n`*:_-{}%()s>[]<|\t\u00e9"), max_size=300))
def test_no_docstring_is_too_odd(doc):
    """Whatever stands in it, the outcome is nothing or a whole passage."""
    read = read_docstring(f"{doc}\n\n{BODY}", "name")
    if read is not None:
        assert len(read.body.split()) <= MOST_BODY_WORDS
        assert len(plain(read.body).split()) >= LEAST_BODY_WORDS
        assert "\n" not in read.body + read.summary
        assert not read.summary or plain(read.summary) not in plain(read.body)
