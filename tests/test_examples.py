"""The scripts in examples/ run without changes."""

from __future__ import annotations

import runpy
import sys
import tempfile
from contextlib import redirect_stdout

import pytest

from killed_processes import forks, in_another_process
from places import ROOT

SCRIPTS = {
    "search": ("People pay", "q2"),
    "compare": ("0.8769", "second"),
    "train": ("negatives)", "Hit(id="),
}


def test_every_script_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SCRIPTS)


@forks
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_print_their_results(name, tiny_model, tiny_collection, tmp_path):
    words = {
        "search": [tiny_model],
        "compare": [],
        "train": [tiny_model, tiny_collection.corpus, tiny_collection.folder],
    }
    line = [str(word) for word in (ROOT / "examples" / f"{name}.py", *words[name])]
    printed = tmp_path / "printed"

    def run():
        # In a fork, torch is already imported.
        tempfile.tempdir, sys.argv = str(tmp_path), line
        with printed.open("w") as out, redirect_stdout(out):
            runpy.run_path(line[0], run_name="__main__")

    assert in_another_process(run) == 0
    assert all(text in printed.read_text() for text in SCRIPTS[name]), printed.read_text()
