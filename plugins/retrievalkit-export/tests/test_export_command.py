"""`rkit export` and `rk.export`: the folder, its model card, and the uploads of --push."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from huggingface_hub import ModelCard

import retrievalkit as rk
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.errors import InputError, OptionError, RetrievalkitError


def run(*words):
    return CliRunner().invoke(main, ["export", *map(str, words)])


def test_card_of_a_trained_checkpoint(tiny_model, tiny_collection, tmp_path):
    """The card has the example of the library, the licence, and the facts of the checkpoint's own card."""
    data = {"corpus": tiny_collection.corpus, "output": tmp_path / "checkpoint"}
    rk.train(tiny_model, tiny_collection.folder, epochs=1, limit=16, encoder_options={"title": "space"}, **data)
    rk.export(tmp_path / "checkpoint", tmp_path / "out", to="sentence-transformers", license="apache-2.0")
    card = ModelCard.load(tmp_path / "out" / "README.md", ignore_metadata_errors=True)
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "sentence-transformers")
    assert 'SentenceTransformer("out")' in card.text
    assert "| examples | 16 from " in card.text
    assert str(tmp_path) not in str(card)
    assert storage.kind_of(tmp_path / "out") == "export"


def test_python_and_the_command_write_equal_folders(checkpoint, tmp_path):
    """An existing folder is not replaced."""
    source = checkpoint("mean")
    exported = rk.export(source, tmp_path / "exported", to="sentence-transformers", license="apache-2.0")
    assert run(source, tmp_path / "typed", "--to", "sentence-transformers", "--license", "apache-2.0").exit_code == 0
    typed = rk.Folder(tmp_path / "typed")
    assert exported.manifest["options"] == typed.manifest["options"]
    assert exported.manifest["files"].keys() == typed.manifest["files"].keys()
    assert exported.manifest["files"]["model.safetensors"] == typed.manifest["files"]["model.safetensors"]
    with pytest.raises(RetrievalkitError, match="exists already"):
        rk.export(source, tmp_path / "exported", to="sentence-transformers")


def test_push_only_lists_the_files_by_default(checkpoint, tmp_path):
    """All files except the manifest, which contains local paths."""
    result = run(checkpoint("mean"), tmp_path / "out", "--to", "sentence-transformers", "--push", "me/model")
    assert result.exit_code == 0
    listed = [line.split(": ", 1)[1].split(" (")[0] for line in result.stdout.splitlines() if "would be" in line]
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert set(listed) == {path.relative_to(tmp_path / "out").as_posix() for path in files} - {"manifest.json"}
    assert "Nothing was uploaded." in result.stdout


def test_an_unreachable_hub_is_reported_before_anything_is_written(checkpoint, tmp_path):
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
def test_options_without_effect_are_refused(tmp_path, options, error, reason):
    with pytest.raises(error, match=reason):
        rk.export("model", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["vectors", "index"])
def test_vectors_cannot_be_exported_as_a_model(tmp_path, kind):
    (tmp_path / "in").mkdir()
    storage.write_manifest(tmp_path / "in", kind, command="encode", options={})
    with pytest.raises(InputError, match="onnx needs a model"):
        rk.export(tmp_path / "in", tmp_path / "out", to="onnx")
