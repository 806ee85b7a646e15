"""Edits change what they name and nothing else, by their JSON alone."""

import json
import random
import zipfile

import numpy as np
import pytest

from fuzz import edits, mutations
from retrievalkit import artifacts


@pytest.fixture
def folder(tmp_path):
    """A folder with a file of each format that edits know, and a manifest."""
    root = tmp_path / "folder"
    root.mkdir()
    (root / "settings.json").write_text('{"a": {"b": [1, 2]}}')
    (root / "rows.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    (root / "table.tsv").write_text("a\tb\nc\td\n")
    np.save(root / "array.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.savez(root / "arrays.npz", data=np.arange(3))
    files = {"table.tsv": {"bytes": 8, "blake2b": "x"}}
    (root / "manifest.json").write_text(json.dumps({"kind": "vectors", "files": files}))
    return root


def apply(root, *changes):
    return edits.apply(changes, root, root.parent)


def test_a_splice_cuts_and_puts_bytes(folder):
    """Cut, put and repeat in one operation; a cut of null takes the rest."""
    assert apply(folder, {"op": "splice", "file": "table.tsv", "at": 2, "cut": 1, "put": "\xff", "times": 2}) == 1
    assert (folder / "table.tsv").read_bytes() == b"a\t\xff\xff\nc\td\n"
    apply(folder, {"op": "splice", "file": "table.tsv", "at": 1, "cut": None, "put": ""})
    assert (folder / "table.tsv").read_bytes() == b"a"


def test_values_of_json_can_be_what_no_library_writes(folder):
    """Set by their place; of JSON lines, in one line."""
    raw = {"$text": "[", "times": 3, "then": "]"}
    assert apply(folder, {"op": "set", "file": "settings.json", "where": ["a", "b", 1], "value": raw}) == 1
    assert json.loads((folder / "settings.json").read_text()) == {"a": {"b": [1, [[[]]]]}}
    apply(folder, {"op": "set", "file": "rows.jsonl", "line": 1, "where": ["id"], "value": "\ud800"})
    assert (folder / "rows.jsonl").read_bytes() == b'{"id": 1}\n{"id": "\xed\xa0\x80"}\n'
    apply(folder, {"op": "drop", "file": "settings.json", "where": ["a"]})
    assert json.loads((folder / "settings.json").read_text()) == {}


def test_headers_of_arrays_are_rewritten(folder):
    """The numbers stay, their shape and type are others."""
    assert apply(folder, {"op": "array", "file": "array.npy", "member": None, "key": "shape", "value": "(2, 3)"}) == 1
    assert np.load(folder / "array.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    change = {"op": "array", "file": "arrays.npz", "member": "data.npy", "key": "descr", "value": "'<f8'"}
    assert apply(folder, change) == 1
    assert np.load(folder / "arrays.npz")["data"].dtype == np.float64
    apply(folder, {"op": "member", "file": "arrays.npz", "member": "data.npy", "to": "other.npy"})
    assert zipfile.ZipFile(folder / "arrays.npz").namelist() == ["other.npy"]


def test_a_seal_makes_checksums_fit(folder):
    """What is behind them is then read."""
    change = {"op": "splice", "file": "table.tsv", "at": 0, "cut": 1, "put": "xyz"}
    assert apply(folder, change, {"op": "seal"}) == 2
    recorded = json.loads((folder / "manifest.json").read_text())["files"]["table.tsv"]
    assert recorded == {"bytes": 10, "blake2b": artifacts.fingerprint_file(folder / "table.tsv")}


def test_a_seal_does_not_wait_at_a_pipe(folder):
    """A campaign of 10,000 once stood still at such a trial."""
    assert apply(folder, {"op": "fifo", "file": "manifest.json"}, {"op": "seal"}) == 2


def test_an_edit_of_what_is_not_there_is_left_out(folder):
    """It does not count as applied."""
    assert apply(folder, {"op": "remove", "file": "nothing"}, {"op": "remove", "file": "table.tsv"}) == 1
    assert not (folder / "table.tsv").exists()


def test_the_same_seed_draws_the_same_edits(folder):
    """And they can be written as JSON."""
    for seed in range(200):
        drawn = mutations.draw(random.Random(seed), folder)
        assert drawn == mutations.draw(random.Random(seed), folder)
        assert json.loads(json.dumps(drawn)) == drawn


def test_no_edit_writes_through_a_link(folder, tmp_path):
    """It may lead to material that other trials read."""
    (tmp_path / "material.tsv").write_text("whole")
    (tmp_path / "manifest.json").write_text('{"files": {}}')
    edits_of_links = [
        {"op": "link", "file": "table.tsv", "to": "{material}/material.tsv"},
        {"op": "splice", "file": "table.tsv", "at": 0, "cut": 1, "put": "x"},
        {"op": "link", "file": "manifest.json", "to": "{material}/manifest.json"},
        {"op": "seal"},
    ]
    assert apply(folder, *edits_of_links) == 3
    assert (tmp_path / "material.tsv").read_text() == "whole"
    assert (tmp_path / "manifest.json").read_text() == '{"files": {}}'
