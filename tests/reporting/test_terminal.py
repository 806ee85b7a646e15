"""Untrusted texts on a terminal: control characters are escaped, other characters unchanged."""

from __future__ import annotations

import io
import json
import unicodedata

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.cli import main
from retrievalkit.cli.group import RkitGroup
from retrievalkit.errors import InputError
from retrievalkit.reporting.table import text_table
from retrievalkit.reporting.terminal import holds_credentials, printable, printable_json
from retrievalkit.search.interactive import converse

HOSTILE = "\x1b]0;x\x07\x9b2J\u202egpj.exe\u2066\u2028\r\x00\ud800"


def harmless(text: str) -> bool:
    reordering = {"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"}
    return not any(
        (unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") and character not in "\n\t")
        or unicodedata.bidirectional(character) in reordering
        for character in text
    )


@given(st.text(st.characters()))
def test_no_character_that_controls_a_terminal_is_left(text):
    assert harmless(printable(text))
    assert harmless(printable(text, lines=True))
    assert "\n" not in printable(text)


def test_control_characters_are_shown_by_their_codes():
    assert printable(HOSTILE + "\n") == r"\x1b]0;x\x07\x9b2J\u202egpj.exe\u2066\u2028\x0d\x00\ud800\x0a"
    assert printable("a\n\tb\x1b", lines=True) == "a\n\tb\\x1b"
    assert text_table([("a\nb\x1b[2J", "1"), ("c", "2")]).splitlines() == [r"a\x0ab\x1b[2J  1", "c              2"]


@pytest.mark.parametrize("text", ["שלום עולם", "مرحبا", "naïve — 北京 🙂", "👩\u200d🔬", "tab\there"])
def test_ordinary_text_is_unchanged(text):
    assert printable(text) == text


def test_json_without_control_characters_has_the_same_value():
    value = {"title": HOSTILE}
    shown = printable_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert harmless(shown)
    assert json.loads(shown) == value


def test_passwords_of_addresses_are_not_shown():
    error = InputError("at 'https://root:s3cret@host:1/a' and b@c")
    assert str(error) == "at 'https://***@host:1/a' and b@c"
    assert "s3" not in str(InputError(f"at 'https://root:{'s3' * 400}@host:1/a'"))
    assert holds_credentials("--set uri=tcp://token@host")
    assert not holds_credentials("https://host/@scope and a:b@c")


@pytest.mark.parametrize("error", [InputError, click.UsageError])
def test_errors_neither_control_the_terminal_nor_show_passwords(error, capsys):
    group = RkitGroup()

    @group.command()
    def fail():
        msg = f"the id '{HOSTILE}' of https://root:s3cret@host is wrong.\nSecond line."
        raise error(msg)

    with pytest.raises(SystemExit) as ended:
        group.main(["fail"])
    shown = capsys.readouterr().err
    assert ended.value.code == 2
    assert harmless(shown)
    assert "\\x1b]0;x" in shown
    assert "s3cret" not in shown
    assert shown.endswith("Second line.\n")


def test_a_commands_summary_has_no_control_characters(tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "notes.txt"), str(tmp_path / "\u202e\x1b[2J.jsonl")])
    assert done.exit_code == 0
    assert "\\u202e\\x1b[2J.jsonl: 1 passage" in done.stdout
    assert harmless(done.output)


def test_an_unknown_command_of_a_session_is_shown_without_control_characters(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(":\x1b[2J\u202e"))
    converse(lambda query, k: None, 10)
    assert "unknown command" in (shown := capsys.readouterr().err)
    assert harmless(shown)
