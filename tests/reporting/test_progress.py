"""Progress: lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
import sys
import time

import pytest

from retrievalkit.reporting.progress import ProgressBar, duration


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    with ProgressBar("encode documents", 50_000, unit="texts") as progress:
        clock(5)
        progress.advance(2_000)
        assert capsys.readouterr().err == ""
        clock(55)
        progress.advance(10_000)
        assert capsys.readouterr().err == "encode documents 12,000/50,000 texts (24 %), 3 min left\n"
        clock(130)
        progress.update(50_000)
    assert capsys.readouterr().err.splitlines()[-1] == "encode documents 50,000/50,000 texts (100 %), took 3 min"


def test_a_short_step_writes_nothing(clock, capsys):
    with ProgressBar("search", 10) as progress:
        clock(5)
        progress.advance(10)
    assert capsys.readouterr().err == ""


def test_a_long_step_does_not_fill_the_log(clock, capsys):
    with ProgressBar("encode", 86_400) as progress:
        for _ in range(86_400):
            clock(1)
            progress.advance()
    assert 50 < len(capsys.readouterr().err.splitlines()) < 200


def test_work_of_an_earlier_command_does_not_count_as_speed(clock, capsys):
    with ProgressBar("mine", 200, done=100) as progress:
        clock(40)
        progress.advance(40)
    assert capsys.readouterr().err.splitlines()[0] == "mine 140/200 (70 %), 1 min left"


def test_without_a_total_only_the_count_is_shown(clock, capsys):
    progress = ProgressBar("read", unit="texts").start()
    clock(20)
    progress.update(1_500, label="read corpus")
    progress.stop()
    assert capsys.readouterr().err.splitlines() == ["read corpus 1,500 texts", "read corpus 1,500 texts, took 20 s"]


def test_a_terminal_gets_a_bar(monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with ProgressBar("encode [red]x", 4, unit="texts", done=1) as progress:
        progress.advance(2)
        progress._bar.refresh()
    assert "encode [red]x" in stream.getvalue()
    assert "3/4 texts (75 %)" in stream.getvalue()


def test_durations_are_readable():
    shown = {0.2: "1 s", 59: "59 s", 90: "2 min", 3_600: "1 h 0 min", 7_500: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_a_notebook_has_one_line_that_is_removed(clock, monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar("search", 10, unit="queries") as progress:
        for _ in range(4):
            clock(0.3)
            progress.advance()
    first, second = "search 2/10 queries (20 %), 3 s left", "search 4/10 queries (40 %), 2 s left"
    assert stream.getvalue() == f"\r{first}\r{second}\r{' ' * len(second)}\r"
