"""`rk.export`: the folder of the command, with its manifest."""

from __future__ import annotations

import pytest

import retrievalkit as rk
from retrievalkit.errors import InputError, OptionError, RetrievalkitError


def test_an_export_is_that_of_the_command(checkpoint, tmp_path, command):
    """A second call refuses the folder."""
    made = rk.export(checkpoint, tmp_path / "made", to="sentence-transformers", license="apache-2.0")
    assert made.manifest["options"]["license"] == "apache-2.0"
    command("export", checkpoint, tmp_path / "typed", "--to", "sentence-transformers", "--license", "apache-2.0")
    typed = rk.Folder(tmp_path / "typed")
    assert made.manifest["files"].keys() == typed.manifest["files"].keys()
    weights = "model.safetensors"
    assert made.manifest["files"][weights] == typed.manifest["files"][weights]
    with pytest.raises(RetrievalkitError, match="overwrite"):
        rk.export(checkpoint, tmp_path / "made", to="sentence-transformers")


def test_a_rehearsed_upload_lists_its_files(checkpoint, tmp_path):
    made = rk.export(checkpoint, tmp_path / "made", to="sentence-transformers", push="me/mine")
    assert made.manifest["push"]["dry_run"] is True
    assert "README.md" in made.manifest["push"]["files"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, OptionError, "export needs 'to'"),
        ({"to": "onxn"}, OptionError, "'onxn' is not one of"),
        ({"to": "onnx", "qunatize": "int8"}, OptionError, "did you mean 'quantize'"),
        ({"to": "pylate", "texts": ["a"]}, InputError, "--texts is for --to"),
        ({"to": "pylate", "dry_run": False}, InputError, "push"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(given, error, message, tmp_path):
    with pytest.raises(error, match=message):
        rk.export("model", tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_the_package_of_the_same_name_can_be_called(tmp_path):
    import retrievalkit.export.targets  # noqa: F401 - makes the package an attribute

    with pytest.raises(OptionError, match="export needs 'to'"):
        rk.export("model", tmp_path / "out")
