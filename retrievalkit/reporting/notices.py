"""Non-fatal warnings, printed once when a command ends; `--strict` turns them into errors.

Any part of a program calls `note`, or `cut` and `empty` for texts that were truncated or are empty; a command collects
the warnings with `collected`. Outside of a command, they are printed immediately. Commands in several threads do not
meet: a command's own threads run in copies of its context (`contextvars.copy_context`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock

from retrievalkit.errors import InputError
from retrievalkit.reporting.terminal import counted, printable, say

_DISTINCT = 1 << 17
_SHOWN = 3
_COUNTING = Lock()  # of truncated texts, in several threads of a command


@dataclass(eq=False)
class Notices:
    """Warnings of a command, or of a worker on another machine."""

    strict: bool = False
    sentences: dict[str, None] = field(default_factory=dict)
    harmless: set[str] = field(default_factory=set)
    # (kind of text, limit) -> number of truncated texts, and maximum number of lost tokens
    cut: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    # Hashes of the first truncated texts: epochs, indexes and explanations tokenise the same text repeatedly.
    texts: set[int] = field(default_factory=set)

    def warnings(self) -> list[str]:
        """Return the warnings as sentences."""
        lengths = [
            f"{counted(count, kind)} had more than {counted(limit, 'tokens')} and {'was' if count == 1 else 'were'} "
            f"cut, by {'up to ' * (count > 1)}{counted(most, 'tokens')}. Raise the maximum length if the model accepts "
            f"more, or split {'it' if count == 1 else 'them'}."
            for (kind, limit), (count, most) in self.cut.items()
        ]
        return [*self.sentences, *lengths]


# The innermost running command of this context: a recipe's step runs inside `rkit run`.
_COMMAND: ContextVar[Notices | None] = ContextVar("command", default=None)


def strict() -> bool:
    """True if the running command treats warnings as errors."""
    command = _COMMAND.get()
    return command is not None and command.strict


@contextmanager
def _running(notices: Notices) -> Iterator[None]:
    outer = _COMMAND.get()
    _COMMAND.set(notices)
    try:
        yield
    finally:
        _COMMAND.set(outer)


@contextmanager
def collected(*, strict: bool = False) -> Iterator[None]:
    """Collect the warnings of a command, and print them to standard error when it ends without an error.

    Args:
        strict: Raise the first warning as an error instead; the steps of a strict recipe are strict too.
    """
    outer = _COMMAND.get()
    notices = Notices(strict or (outer is not None and outer.strict))
    with _running(notices):
        yield
    # In distributed training, only the main process prints them.
    if os.environ.get("RANK", "0") == "0":
        for sentence in notices.warnings():
            show(sentence)


@contextmanager
def gathered() -> Iterator[Notices]:
    """Gather warnings silently, to be passed to `join` in another process."""
    notices = Notices()
    with _running(notices):
        yield notices


def join(other: Notices) -> None:
    """Add the warnings of another process.

    Raises:
        InputError: The command is strict, and there are warnings.
    """
    check(*(sentence for sentence in other.warnings() if sentence not in other.harmless))
    for sentence in other.sentences:
        note(sentence, harmless=sentence in other.harmless)
    if (command := _COMMAND.get()) is None:
        return
    with _COUNTING:
        for key, (count, most) in other.cut.items():
            before, longest = command.cut.get(key, (0, 0))
            command.cut[key] = before + count, max(longest, most)


def note(*sentences: str, harmless: bool = False) -> None:
    """Issue warnings, each a complete sentence; equal sentences are shown once.

    Raises:
        InputError: The command is strict, and the warnings are not `harmless`: results may differ, not only times.
    """
    if not harmless:
        check(*sentences)
    command = _COMMAND.get()
    for sentence in sentences:
        if command is None:
            show(sentence)
        else:
            command.sentences[sentence] = None
            if harmless:
                command.harmless.add(sentence)


def check(*sentences: str) -> None:
    """Raise warnings as an error if the command is strict, for programs that print the warnings themselves.

    Raises:
        InputError: The command is strict, and there are warnings.
    """
    if sentences and strict():
        msg = f"{' '.join(sentences)} (An error because of --strict.)"
        raise InputError(msg)


def cut(parts: Sequence[str], kind: str, limit: int, lost: int) -> None:
    """Count a truncated text, once even if it is tokenised repeatedly.

    Args:
        parts: The text, or the two texts of a pair.
        kind: Kind of text, in the plural.
        limit: Maximum number of tokens.
        lost: Number of tokens lost.

    Raises:
        InputError: The command is strict.
    """
    if (command := _COMMAND.get()) is None:
        return
    check(f"one of the {kind} has more than {counted(limit, 'tokens')} and would be cut, by {counted(lost, 'tokens')}.")
    text = hash((kind, limit, *parts))
    with _COUNTING:
        if text in command.texts:
            return
        if len(command.texts) < _DISTINCT:
            command.texts.add(text)
        count, most = command.cut.get((kind, limit), (0, 0))
        command.cut[kind, limit] = count + 1, max(most, lost)


def empty(kind: str, source: str, among: int, count: int, first: Sequence[str]) -> None:
    """Warn about empty texts.

    Raises:
        InputError: The command is strict.
    """
    if not count:
        return
    rest = f" and {count - len(first):,} more" if count > len(first) else ""
    verb, them = ("is", "it") if count == 1 else ("are", "them")
    empty = f"{count:,} of the {counted(among, kind)} of '{source}' {verb} empty: {', '.join(first)}{rest}"
    note(f"{empty}. Fill {them}, or leave {them} out.")


class Blanks:
    """Counts the empty texts of a source; `kind` is in the plural."""

    def __init__(self, kind: str, source: str) -> None:
        self.kind = kind
        self.source = source
        self._seen = self._empty = 0
        self._first: list[str] = []

    def see(self, identifier: str, *parts: str) -> None:
        """Count a text, which may have several parts, such as a title."""
        self._seen += 1
        if any(part and not part.isspace() for part in parts):
            return
        self._empty += 1
        if len(self._first) < _SHOWN:
            self._first.append(identifier)

    def report(self) -> None:
        """Warn about the number of empty texts.

        Raises:
            InputError: Some texts are empty, and the command is strict.
        """
        empty(self.kind, self.source, self._seen, self._empty, self._first)


def at_once(sentence: str) -> None:
    """Print a warning immediately, for long-running commands.

    Raises:
        InputError: The command is strict.
    """
    check(sentence)
    show(sentence)


def show(sentence: str) -> None:
    """Print a warning, with values formatted as in an error."""
    say(f"Note: {printable(str(InputError(sentence)))}", err=True)
