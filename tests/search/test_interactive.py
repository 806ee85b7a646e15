"""The prompt of `rkit search --interactive`."""

from __future__ import annotations

import io
import os
import sys

import pytest

from retrievalkit.errors import InputError
from retrievalkit.search.interactive import PROMPT, converse


@pytest.fixture
def typed(monkeypatch):
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_lines_are_queries_or_commands(typed, capsys):
    asked = []
    typed("first\n\n   second one \n:k 20\na\n:k none\n:k 0\n:nope\n:help\nb\n:q\nc\n")
    converse(lambda text, k: asked.append((text, k)), 3)
    assert asked == [("first", 3), ("second one", 3), ("a", 20), ("b", 20)]
    printed = capsys.readouterr().err
    assert "':k none' should be a number" in printed
    assert "unknown command ':nope'" in printed


def test_an_error_in_a_query_does_not_end_the_session(typed, capsys):
    asked = []

    def answer(text, k):
        asked.append(text)
        if text == "bad":
            message = "this is bad."
            raise InputError(message)
        if text == "slow":
            raise KeyboardInterrupt
        if text == "bug":
            raise ZeroDivisionError

    typed("bad\nslow\ngood\nbug\nnever\n")
    with pytest.raises(ZeroDivisionError):
        converse(answer, 3)
    assert asked == ["bad", "slow", "good", "bug"]
    assert capsys.readouterr().err == "Error: this is bad.\nInterrupted.\n"


def test_a_prompt_is_shown_on_a_terminal_only(typed, capsys, monkeypatch):
    typed("a\n")
    converse(lambda text, k: None, 3)
    assert capsys.readouterr().out == ""
    main, terminal = pytest.importorskip("pty").openpty()
    os.write(main, b"a\n:q\n")
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        asked = []
        converse(lambda text, k: asked.append(text), 3)
    os.close(main)
    assert asked == ["a"]
    # Standard output is not a terminal here, and is reserved for answers.
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", 2 * PROMPT)


def test_bytes_that_are_not_text_do_not_end_the_session(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\nb\n"), encoding="utf-8"))
    asked = []
    converse(lambda text, k: asked.append(text), 3)
    assert asked == ["caf\ufffd", "b"]
