"""The log of a step: what goes there, what stays on the terminal, and streams that outlive it."""

import logging
import sys

from retrievalkit.recipes.log import StepLog


def test_both_streams_go_to_the_log_under_the_command_line(tmp_path, capsys):
    log = StepLog(tmp_path, "near/train")
    with log.collecting("rkit train", resume=False):
        print("step 1")
        print("a note", file=sys.stderr)
        print("trained")
        print()
    assert log.path.read_text() == "$ rkit train\nstep 1\na note\ntrained\n\n"
    assert log.path == tmp_path / "logs/near/train.log"
    assert log.result == "trained"
    assert log.tail(2) == ["a note", "trained"]
    assert capsys.readouterr() == ("", "")


def test_a_terminal_keeps_standard_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with StepLog(tmp_path, "train").collecting("rkit train", resume=False):
        print("50 %", file=sys.stderr)
    assert capsys.readouterr().err == "50 %\n"


def test_a_resumed_step_adds_to_its_log(tmp_path):
    log = StepLog(tmp_path, "train")
    for resume, lines in ((False, 2), (True, 4), (False, 2)):
        with log.collecting("rkit train", resume=resume):
            print("trained")
        assert len(log.path.read_text().splitlines()) == lines


def test_a_logging_handler_made_during_a_step_can_be_used_after_it(tmp_path, capsys):
    with StepLog(tmp_path, "train").collecting("rkit train", resume=False):
        handler = logging.StreamHandler()
    handler.emit(logging.makeLogRecord({"msg": "afterwards"}))
    assert capsys.readouterr().err == "afterwards\n"
