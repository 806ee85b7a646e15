"""`rkit export` and `rk.export`: the folder, its card, and what --push would upload."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import retrievalkit as rk
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.errors import InputError, OptionError, RetrievalkitError


def run(*words):
    return CliRunner().invoke(main, ["export", *map(str, words)])


def test_the_card_says_how_it_was_made(checkpoint, tmp_path):
    """The command, the data, the figures and the licence; without paths of this machine."""
    source = checkpoint("mean")
    described = {"model": "bert", "training": {"epochs": 2, "batch_size": 8}}
    inputs = {"examples": {"path": "/home/somebody/train.jsonl", "fingerprint": "f"}}
    storage.write_manifest(source, "checkpoint", command="train", options=described, inputs=inputs)
    (tmp_path / "nq.json").write_text(json.dumps({"metrics": {"nDCG@10": 0.5}, "queries": 3}))
    words = ("--to", "sentence-transformers", "--license", "apache-2.0", "--figures", tmp_path / "nq.json")
    assert run(source, tmp_path / "out", *words).exit_code == 0
    card = (tmp_path / "out" / "README.md").read_text()
    for part in (
        "license: apache-2.0",
        "library_name: sentence-transformers",
        'SentenceTransformer("out")',
        "| command | rkit train |",
        "| training | epochs 2, batch_size 8 |",
        "| data: examples | train.jsonl |",
        "| nDCG@10 (nq) | 0.5 |",
    ):
        assert part in card
    assert "somebody" not in card
    assert storage.kind_of(tmp_path / "out") == "export"


def test_python_writes_what_the_command_writes(checkpoint, tmp_path):
    """A second call keeps the folder."""
    source = checkpoint("mean")
    made = rk.export(source, tmp_path / "made", to="sentence-transformers", license="apache-2.0")
    assert run(source, tmp_path / "typed", "--to", "sentence-transformers", "--license", "apache-2.0").exit_code == 0
    typed = rk.Folder(tmp_path / "typed")
    assert made.manifest["options"] == typed.manifest["options"]
    assert made.manifest["files"].keys() == typed.manifest["files"].keys()
    assert made.manifest["files"]["model.safetensors"] == typed.manifest["files"]["model.safetensors"]
    with pytest.raises(RetrievalkitError, match="exists already"):
        rk.export(source, tmp_path / "made", to="sentence-transformers")


def test_push_is_dry_unless_told_otherwise(checkpoint, tmp_path):
    """Every file but the manifest, whose paths are those of this machine."""
    result = run(checkpoint("mean"), tmp_path / "out", "--to", "sentence-transformers", "--push", "me/model")
    assert result.exit_code == 0
    listed = [line.split(": ", 1)[1].split(" (")[0] for line in result.stdout.splitlines() if "would be" in line]
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert set(listed) == {path.relative_to(tmp_path / "out").as_posix() for path in files} - {"manifest.json"}
    assert "Nothing was uploaded." in result.stdout


def test_a_hub_that_cannot_be_reached_is_one_message(checkpoint, tmp_path):
    """Before anything is written."""
    words = ("--to", "sentence-transformers", "--push", "me/model", "--no-dry-run")
    result = run(checkpoint("mean"), tmp_path / "out", *words)
    assert result.exit_code == 1
    assert "nothing was uploaded to 'me/model'" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({}, OptionError, "'to'"),
        ({"to": "onxn"}, OptionError, "'onxn'"),
        ({"to": "onnx", "qunatize": "int8"}, OptionError, "did you mean 'quantize'"),
        ({"to": "pylate", "dry_run": False}, InputError, "push"),
        ({"to": "pylate", "texts": ["a"]}, InputError, "texts only applies to the targets onnx and openvino"),
        ({"to": "pylate", "quantize": "int8"}, InputError, "quantize only applies to the targets onnx and openvino"),
        ({"to": "onnx", "quantize": "int8"}, InputError, "Give a corpus"),
        ({"to": "onnx", "texts": ["a"]}, InputError, "measures the loss of quantize"),
        ({"to": "onnx", "quantize": "int8", "texts": ["a"], "queries": ["q"]}, InputError, "needed together"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path, options, error, reason):
    with pytest.raises(error, match=reason):
        rk.export("model", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["vectors", "index"])
def test_vectors_become_no_model(tmp_path, kind):
    (tmp_path / "in").mkdir()
    storage.write_manifest(tmp_path / "in", kind, command="encode", options={})
    with pytest.raises(InputError, match="onnx needs a model"):
        rk.export(tmp_path / "in", tmp_path / "out", to="onnx")
