"""Backends are selected by name, by RKIT_BACKEND, or automatically; a backend of a plugin computes, or torch does."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

import retrievalkit as rk
from retrievalkit.cli.main import main
from retrievalkit.errors import MissingDependencyError, OptionError, UnknownNameError, UnsupportedError
from retrievalkit.models.backends import AUTO, resolve_backend
from retrievalkit.models.cross_encoder import CrossEncoder
from retrievalkit.models.rerankers import open_reranker

PLUGIN = """
from retrievalkit import hookimpl
from retrievalkit.contracts import Backend, ExportError, Program
from retrievalkit.errors import UnsupportedError


class Doubled(Program):
    def __init__(self, function):
        self.function = function

    def __call__(self, inputs, precision, *, parallel):
        if len(inputs["input_ids"]) > 2:
            raise ExportError("the batch has more than two texts")
        return [2 * output for output in self.function.compute(dict(inputs))]


class Doubling(Backend):
    automatic = True

    def check(self, device):
        if device != "cpu":
            raise UnsupportedError("doubling computes on processors")

    def compile(self, function):
        return Doubled(function)


@hookimpl
def register_backends(register):
    register("broken", "no_such_module:Backend")
    register("doubling", "doubling:Doubling")
"""


@pytest.fixture
def doubling(tmp_path, monkeypatch, fresh_registry):
    """A backend of a plugin, next to one that cannot be imported, without the installed plugins."""
    (tmp_path / "doubling.py").write_text(PLUGIN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(tmp_path / "doubling.py"))
    monkeypatch.setenv("RKIT_PLUGINS", "")
    monkeypatch.delenv(AUTO)
    fresh_registry()


def test_an_available_automatic_backend_is_selected_and_others_by_name(doubling, monkeypatch, capsys):
    assert resolve_backend("auto", "cpu").name == "doubling"
    assert "'broken' is not used" in capsys.readouterr().err
    assert resolve_backend("auto", "cuda") is resolve_backend("torch", "cpu") is None
    with pytest.raises(UnsupportedError, match="doubling computes on processors"):
        resolve_backend("doubling", "cuda")
    for backend in ("openvino", "onnx"):
        with pytest.raises(MissingDependencyError, match=rf"pip install 'retrievalkit\[{backend}\]'"):
            resolve_backend(backend, "cpu")
    monkeypatch.setenv(AUTO, "tensorrt")
    with pytest.raises(OptionError, match="to torch, broken, doubling"):
        resolve_backend("auto", "cpu")


@pytest.mark.parametrize(
    ("name", "message"), [("openvino", "pip install 'retrievalkit[openvino]'"), ("dubling", "did you mean 'doubling'?")]
)
def test_an_unknown_backend_is_refused_when_an_index_is_opened(doubling, tiny_model, tmp_path, name, message):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "lima"}\n')
    rk.encode(tiny_model, tmp_path / "corpus.jsonl", output=tmp_path / "vectors", backend="torch")
    rk.index(tmp_path / "vectors", output=tmp_path / "index")
    ended = CliRunner().invoke(main, ["search", str(tmp_path / "index"), "--query", "lima", "--backend", name])
    assert (ended.exit_code, message in ended.output) == (2, True), ended.output
    with pytest.raises((UnknownNameError, MissingDependencyError)):
        rk.Index.open(tmp_path / "index", backend=name)


def test_a_backend_computes_a_cross_encoder_and_torch_what_it_cannot(doubling, tiny_model, tmp_path, capsys):
    CrossEncoder.create(tiny_model).save(tmp_path)
    ours, usual = (open_reranker(tmp_path, backend=name) for name in ("doubling", "torch"))
    pairs = usual.tokenize(["a", "b", "c"], [("", "x")] * 3)
    expected = usual.score(pairs)
    torch.testing.assert_close(ours.score(pairs[:2]), 2 * expected[:2])
    with pytest.raises(UnsupportedError, match="computes in fp32 here, not in int8"):
        ours.score(pairs[:2], precision="int8")
    torch.testing.assert_close(ours.score(pairs), expected)
    assert "runs on torch" in capsys.readouterr().err
    assert ours.backend is None
