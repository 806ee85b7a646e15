"""A file at its size limit, instead of a full disk: a message, no partial output, and progress to resume from."""

from __future__ import annotations

import os
import pathlib
import resource

import pytest

from forked_commands import complete, content, rkit
from killed_processes import forks

LIMITS = {
    "encode": (100, 4_000),
    "index flat": (300,),
    "index faiss": (300, 5_000),
    "train": (300, 5_000, 60_000),
    "pretrain": (300, 60_000),
    "rerank train": (5_000, 60_000),
    "rerank apply": (100, 5_000),
    "mine-negatives": (100, 5_000),
    "search": (5_000,),
    "compare": (100, 5_000),
    "convert": (100, 2_000),
}
# The other commands train and write with the same functions.
QUICK = ("encode", "index flat", "train", "search", "compare", "convert")


@forks
@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=pytest.mark.slow if number or name not in QUICK else ())
        for name, sizes in LIMITS.items()
        for number, size in enumerate(sizes)
    ],
)
def test_a_file_that_cannot_be_written_is_a_message_and_the_next_command_is_whole(
    commands, whole, tmp_path, name, size
):
    words = complete(commands[name], "out")
    ended = rkit(*words, folder=tmp_path, prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    assert ended.code == 1, ended
    last = ended.err.splitlines()[-1]
    assert last.startswith("Error: cannot write '") or "File too large" in last, ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()
    assert rkit(*words, folder=tmp_path).code == 0
    assert content(tmp_path / "out") == whole(name)[0]
    assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]


def full():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def unreadable():
    for owner in (pathlib.Path, os):
        owner.open = refusing(owner.open)


def refusing(original):
    def refuse(path, *rest, **options):
        if os.path.basename(path) == "corpus.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *rest, **options)

    return refuse


@forks
@pytest.mark.parametrize(
    ("name", "prepare", "code", "message"),
    [
        ("search", full, 1, "Error: cannot write standard output: the disk is full."),
        ("encode", unreadable, 2, "Error: cannot read '"),
    ],
)
def test_a_full_standard_output_and_an_unreadable_file_are_named(commands, tmp_path, name, prepare, code, message):
    words = commands[name] if prepare is full else complete(commands[name], "out")
    ended = rkit(*words, folder=tmp_path, prepare=prepare)
    assert (ended.code, ended.err.count("\n")) == (code, 1)
    assert ended.err.startswith(message)
