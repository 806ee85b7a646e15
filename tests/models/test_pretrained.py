"""Pretrained models: locating and loading them, tokens, code, and an unreachable hub."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import transformers
from huggingface_hub import constants
from huggingface_hub.utils import build_hf_headers

from retrievalkit.errors import InputError
from retrievalkit.models.pretrained import load_pretrained, locate_model, model_file
from retrievalkit.registry.trust import anonymously


@pytest.mark.parametrize("kind", [transformers.AutoConfig, transformers.AutoTokenizer, transformers.AutoModel])
def test_missing_models_are_reported(kind, tmp_path):
    with pytest.raises(InputError, match=r"cannot load the model 'no/such-model' from the hub or a local folder: ."):
        load_pretrained(kind, "no/such-model")
    with pytest.raises(InputError, match=f"cannot load the model '{tmp_path}' from the folder: ."):
        load_pretrained(kind, str(tmp_path))


class Recorder:
    """Stand-in for a class of transformers; returns its options, and the token of requests."""

    @staticmethod
    def from_pretrained(source, **options):
        return options, build_hf_headers().get("authorization")


def test_only_the_environment_can_allow_code_of_a_model(monkeypatch, tmp_path):

    assert load_pretrained(Recorder, str(tmp_path))[0] == {"trust_remote_code": False}
    monkeypatch.setenv("RKIT_TRUST_REMOTE_CODE", "1")
    assert load_pretrained(Recorder, str(tmp_path))[0] == {"trust_remote_code": True}


def test_a_package_is_located_without_importing_its_parents(tmp_path, monkeypatch):
    """The name may come from a stranger's file, which may not run code."""
    inner = tmp_path / "outer_package" / "inner"
    (inner / "model").mkdir(parents=True)
    (tmp_path / "outer_package" / "__init__.py").write_text("raise SystemExit")
    (inner / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert locate_model("package:outer_package.inner/model") == str(inner / "model")
    assert "outer_package" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((f"package:{name}", "is not package:NAME/FOLDER") for name in ("click/../../x", "click//etc", "", "/")),
        *((f"package:{name}/model", "is not installed") for name in ("..", "json.nowhere", "nowhere.inside")),
        ("package:retrievalkit/nowhere", "has no folder 'nowhere'"),
    ],
)
def test_models_in_packages(name, message):
    assert locate_model("package:retrievalkit/models").endswith("retrievalkit/models")
    with pytest.raises(InputError, match=message):
        locate_model(name)


@pytest.mark.parametrize("needed", [True, False])
def test_models_named_in_files_are_loaded_without_the_users_token(needed, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with anonymously(needed):
        assert load_pretrained(Recorder, str(tmp_path))[1] == (None if needed else "Bearer hf_secret")
    assert not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN


def test_files_of_a_model(tiny_model):
    assert model_file(tiny_model, "config.json").is_file()
    for name in ("modules.json", f"../{Path(tiny_model).name}/config.json", f"{tiny_model}/config.json"):
        assert model_file(tiny_model, name) is None
    assert model_file("no/such-model", "modules.json") is None


def test_an_unreachable_hub_is_reported_within_seconds(tiny_collection, tmp_path):
    """The library would retry every file of the model, for minutes."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache")}
    program = [sys.executable, "-m", "retrievalkit", "encode", "no/such-model", tiny_collection.corpus]
    program += ["--output", tmp_path / "out"]
    start = time.monotonic()
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert f"{endpoint} cannot be reached" in ended.stderr
    assert "the cache does not hold it" in ended.stderr
    # Mostly the import of torch and transformers.
    assert time.monotonic() - start < 30
