"""The scripts in examples/ run as they are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from places import ROOT

SCRIPTS = {
    "search": ("People pay", "q2"),
    "compare": ("0.8769", "second"),
    "train": ("negatives)", "Hit(id="),
}


def test_every_script_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_what_it_shows(name, tiny_model, tiny_collection, tmp_path):
    """With a tiny model and a tiny collection in place of its own."""
    words = {
        "search": [tiny_model],
        "compare": [],
        "train": [tiny_model, tiny_collection.corpus, tiny_collection.folder],
    }
    line = [sys.executable, ROOT / "examples" / f"{name}.py", *words[name]]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert all(text in ran.stdout for text in SCRIPTS[name]), ran.stdout
