"""A training says where it is: lines in a log, from which step it goes on, and what an interrupted one leaves."""

from __future__ import annotations

from retrievalkit.training import progress
from retrievalkit.training.progress import Bar
from retrievalkit.training.resume import interruption


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_a_log_gets_a_line_now_and_then_with_step_loss_and_time_left(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    bar = Bar("training")
    bar.start(600, done=100)
    for step in range(101, 201):
        clock.now += 0.3
        bar.update(step, "loss 1.5000")
    bar.stop()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: 134 of 600 steps, loss 1.5000, 0:02:20 left"
    assert len(lines) == 3, "two in thirty seconds, and the last"
    assert lines[-1].startswith("training: 200 of 600 steps")


def test_without_a_total_there_is_no_time_left(monkeypatch, capsys):
    Clock(monkeypatch)
    bar = Bar("reading", "documents")
    bar.start()
    bar.update(4200)
    bar.stop()
    assert capsys.readouterr().err == "reading: 4,200 documents\n"


def test_of_several_processes_one_shows(capsys):
    bar = Bar("training", shown=False)
    bar.start(2)
    bar.update(2)
    bar.say("hello")
    bar.stop()
    assert capsys.readouterr().err == ""


def test_an_interruption_says_what_is_kept(tmp_path):
    assert "no state was saved" in interruption(120, tmp_path)
    (tmp_path / "step-100").mkdir()
    assert interruption(120, tmp_path) == (
        "Interrupted at step 120; the state after step 100 is kept: run the same command with --resume."
    )
