"""`rkit export`: the folder, its card, and what --push would upload."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from retrievalkit import artifacts
from retrievalkit.cli import main


def run(*words):
    return CliRunner().invoke(main, ["export", *map(str, words)])


def test_the_card_says_how_it_was_made(checkpoint, tmp_path):
    """The command, the data, the figures and the licence; without paths of this machine."""
    source = checkpoint("mean")
    described = {"model": "bert", "training": {"epochs": 2, "batch_size": 8}}
    inputs = {"examples": {"path": "/home/somebody/train.jsonl", "fingerprint": "f"}}
    artifacts.write_manifest(source, "checkpoint", command="train", options=described, inputs=inputs)
    (tmp_path / "nq.json").write_text(json.dumps({"metrics": {"nDCG@10": 0.5}, "queries": 3}))
    words = ("--to", "sentence-transformers", "--license", "apache-2.0", "--figures", tmp_path / "nq.json")
    assert run(source, tmp_path / "out", *words).exit_code == 0
    card = (tmp_path / "out" / "README.md").read_text()
    for part in (
        "license: apache-2.0",
        "library_name: sentence-transformers",
        'SentenceTransformer("out")',
        "| made by | rkit train |",
        "| training | epochs 2, batch_size 8 |",
        "| data: examples | train.jsonl |",
        "| nDCG@10 (nq) | 0.5 |",
    ):
        assert part in card
    assert "somebody" not in card
    assert artifacts.kind_of(tmp_path / "out") == "export"


def test_push_is_dry_unless_told_otherwise(checkpoint, tmp_path):
    """Every file but the manifest, whose paths are those of this machine."""
    result = run(checkpoint("mean"), tmp_path / "out", "--to", "sentence-transformers", "--push", "me/model")
    assert result.exit_code == 0
    listed = [line.split(": ", 1)[1].split(" (")[0] for line in result.stdout.splitlines() if "would be" in line]
    written = {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert set(listed) == written - {"manifest.json"}
    assert "Nothing was uploaded." in result.stdout


def test_a_hub_that_cannot_be_reached_is_one_message(checkpoint, tmp_path):
    """The folder stays, so that the command need not be run again for it."""
    words = ("--to", "sentence-transformers", "--push", "me/model", "--no-dry-run")
    result = run(checkpoint("mean"), tmp_path / "out", *words)
    assert result.exit_code == 1
    assert "was not uploaded to 'me/model'" in result.stderr
    assert (tmp_path / "out" / "modules.json").exists()


def test_no_dry_run_alone_is_refused(checkpoint, tmp_path):
    result = run(checkpoint("mean"), tmp_path / "out", "--to", "pylate", "--no-dry-run")
    assert (result.exit_code, "--no-dry-run is for --push" in result.stderr) == (2, True)


@pytest.mark.parametrize("kind", ["vectors", "index"])
def test_vectors_become_no_model(tmp_path, kind):
    (tmp_path / "in").mkdir()
    artifacts.write_manifest(tmp_path / "in", kind, command="encode", options={})
    result = run(tmp_path / "in", tmp_path / "out", "--to", "onnx")
    assert (result.exit_code, ", and onnx takes a model" in result.stderr) == (2, True)


def test_an_existing_folder_is_kept(checkpoint, tmp_path):
    source = checkpoint("mean")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    result = run(source, tmp_path / "out", "--to", "sentence-transformers")
    assert (result.exit_code, "exists already" in result.stderr) == (2, True)
