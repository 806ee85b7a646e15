"""Verdict on a command with damaged input: a list of failures, empty if it behaved correctly."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

MOST_MEMORY = 1 << 30
_OURS = re.compile(r'File "[^"]*/((?:retrievalkit|retrievalkit_\w+)/[\w/]+\.py)", line (\d+),? in ([\w<>]+)')
_PROGRESS = re.compile(r"[\d,]+/[\d,]+ |: \d+ of \d|: \d+ \w+$|^\[[\d-]+/\d+\]|^ {6}|^Stopped in step ")
_NOT_COMPARED = ("manifest.json", "README.md", "training.jsonl", "run.json", ".identity.json")
# Locks are left where they are; what is in them is nobody's data.
_LOCK = re.compile(r"(^|/)\.[^/]*\.?lock$")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x9b]")


@dataclass(frozen=True)
class Failure:
    """A failure: its kind and place, which form a group."""

    kind: str
    place: str
    detail: str = ""


def judge(ended, *, target, trial, whole, changes):
    """Return the failures of a result, compared with the result for whole input and with the changed files."""
    found = [*_ends(ended), *_files(ended, target, changes)]
    if found and found[0].kind in ("signal", "time", "traceback"):
        return found
    found += _messages(ended, target, trial, whole)
    if ended.code == 0 and not target.meaning and not _admitted(trial.edits) and changes.results != whole.results:
        edited = ", ".join(sorted({f"{edit['op']} {edit.get('file', '')!s}" for edit in trial.edits}))
        found.append(Failure("another result in silence", f"{target.name}: {edited}"))
    return found


def _ends(ended):
    if ended.timed_out:
        yield Failure("time", _place(ended.stack, last=False), f"{ended.seconds:.0f} s")
    elif ended.code < 0:
        yield Failure("signal", f"{-ended.code} {_place(ended.stack, last=False)}")
    elif "Traceback (most recent call last)" in ended.err:
        last = next((line for line in reversed(ended.err.splitlines()) if re.match(r"[\w.]+(:|$)", line)), "")
        yield Failure("traceback", f"{_place(ended.err, last=True)} {last.partition(':')[0]}", last[:300])
    elif ended.code not in (0, 2):
        yield Failure("exit code", f"{ended.code} {shape(ended.err)[-150:]}", ended.err[-300:])
    if ended.memory > MOST_MEMORY:
        yield Failure("memory", _place(ended.err, last=True), f"{ended.memory / 2**30:.1f} GB")


def _place(text, *, last):
    """Return the innermost line of our code in a traceback; Python's fault handler prints the innermost first."""
    places = [f"{file}:{line} {name}" for file, line, name in _OURS.findall(text)]
    return (places[-1] if last else places[0]) if places else "elsewhere"


def _messages(ended, target, trial, whole):
    lines = [line for line in ended.err.split("\n") if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("Error: ")]
    before = lines[: errors[0]] if errors and ended.code else lines
    strange = [
        line for line in before if not line.startswith(("Note: ", "Usage: ", "Try '")) and not _PROGRESS.search(line)
    ]
    if strange:
        known = {shape(line) for line in whole.err.splitlines()}
        strange = [line for line in strange if shape(line) not in known]
    if ended.code not in (0, 2):
        return
    if ended.code == 0 and errors:
        yield Failure("message", f"an error, but exit 0: {shape(lines[errors[0]])[:120]}")
    if strange:
        yield Failure("warning of another library", shape(strange[0])[:120], "\n".join(strange)[:500])
    if ended.code == 2:
        if len(errors) != 1:
            yield Failure(
                "message", f"{len(errors)} messages: {shape(lines[-1] if lines else '')[:120]}", ended.err[:500]
            )
        elif not _names_input(" ".join(lines[errors[0] :]), target, trial):
            yield Failure("message names no file", shape(lines[errors[0]])[:120], lines[errors[0]][:500])
    # Control characters that the user typed may be printed.
    typed = "".join(trial.options)
    if controls := [one for one in _CONTROL.findall(ended.out + ended.err) if one not in typed]:
        yield Failure("control characters printed", f"{target.name} {controls[0]!r}")


def _names_input(message, target, trial):
    # Of a recipe, the step is the place.
    if not trial.edits or target.room or (target.keeps and "step '" in message):
        return True
    names = {Path(trial.damaged).name, *(Path(str(edit.get("file", ""))).name for edit in trial.edits)}
    # Or the value: a path that is not there, say.
    names |= {
        str(edit["value"]) for edit in trial.edits if edit["op"] == "set" and isinstance(edit["value"], str | int)
    }
    # `compare` tells runs apart by their names, the shortened names of the files.
    names.add(f"run '{Path(trial.damaged).stem}'")
    return any(name in message for name in names - {""})


def _admitted(edits):
    """True if a manifest was changed too, so that the folder is indistinguishable from a valid folder."""
    return any(
        "manifest.json" in (str(edit.get("file", "")), str(edit.get("other")))
        or edit["op"] == "seal"
        or str(edit.get("file", "")).endswith("/manifest.json")
        for edit in edits
    )


def _files(ended, target, changes):
    if changes.outside:
        yield Failure("wrote outside", shape(sorted(changes.outside)[0]), ", ".join(sorted(changes.outside)[:5]))
    if left := {name for name in changes.temporary if not _LOCK.search(name)}:
        yield Failure("left temporary files", shape(sorted(left)[0]), ", ".join(sorted(left)[:5]))
    new = {name for name in changes.written if not _LOCK.search(name)}
    if ended.code == 0:
        new = {name for name in new if name.startswith(".") or "/." in name or ".partial" in name}
    elif target.keeps:
        new = set()
    inputs = {name for name in changes.inputs if not (target.notes and name.endswith("/manifest.json"))}
    if inputs and not target.room:
        yield Failure("changed an input", f"{target.name}: {shape(sorted(inputs)[0])}")
    if new and not (target.room and ended.code):
        yield Failure("left files", f"{target.name}: {shape(sorted(new)[0])}", ", ".join(sorted(new)[:5]))


def shape(text):
    """Return a line without the parts that differ between trials: numbers, paths, quoted values."""
    text = re.sub(r"'[^']*'", "'…'", text)
    text = re.sub(r"(?<![\w.…])/[^\s:,']+", "PATH", text)
    return re.sub(r"\d+", "#", text)


@dataclass(frozen=True)
class Changes:
    """Names of files that a command has changed.

    Attributes:
        written: New or changed files in the room.
        inputs: Inputs in the room that were deleted or changed.
        outside: Changes outside of the room.
        temporary: Remains in the temporary and home folders.
        results: Digests of the written files, and of the output.
    """

    written: frozenset
    inputs: frozenset
    outside: frozenset
    temporary: frozenset
    results: tuple


def listing(folder):
    """Return each file below a folder with its size and time, and each folder."""
    found = {}
    above = [str(folder)]
    while above:
        with os.scandir(above.pop()) as entries:
            for entry in entries:
                state = entry.stat(follow_symlinks=False)
                inner = entry.is_dir(follow_symlinks=False)
                found[entry.path] = None if inner else (state.st_size, state.st_mtime_ns, state.st_ino)
                if inner:
                    above.append(entry.path)
    return found


def differing(before, after, folder):
    """Return the names of new, deleted and changed files, and of such empty folders."""
    names = {name for name in before.keys() | after.keys() if before.get(name, 0) != after.get(name, 0)}
    names = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
    return frozenset(os.path.relpath(name, folder) for name in names)


def results_of(room, names, out):
    """Return digests of the written files, without the parts that differ between runs, and of the output."""
    digests = []
    for name in sorted(names):
        path = Path(room) / name
        compared = path.name not in _NOT_COMPARED and "logs" not in path.parts and not _LOCK.search(name)
        if compared and path.is_file() and not path.is_symlink():
            digests.append((name, hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()))
    return (*digests, out)
