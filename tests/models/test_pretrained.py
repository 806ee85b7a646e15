"""Pretrained models are loaded quietly, with one error for whatever goes wrong, and soon where there is no network."""

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
def test_a_model_that_is_not_there_is_one_error(kind, tmp_path):
    with pytest.raises(InputError, match=r"cannot load the model 'no/such-model' from the hub or a local folder: ."):
        load_pretrained(kind, "no/such-model")
    with pytest.raises(InputError, match=f"cannot load the model '{tmp_path}' from the folder: ."):
        load_pretrained(kind, str(tmp_path))


class Recorder:
    """In the place of a class of transformers: returns what it was called with, and the token of requests."""

    @staticmethod
    def from_pretrained(source, **options):
        return options, build_hf_headers().get("authorization")


def test_code_of_a_model_is_not_run_unless_the_environment_allows_it(monkeypatch, tmp_path):

    assert load_pretrained(Recorder, str(tmp_path))[0] == {"trust_remote_code": False}
    monkeypatch.setenv("RKIT_TRUST_REMOTE_CODE", "1")
    assert load_pretrained(Recorder, str(tmp_path))[0] == {"trust_remote_code": True}


def test_a_package_is_found_without_importing_what_it_is_part_of(tmp_path, monkeypatch):
    """Code of a package named by a stranger's file does not run."""
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
        *((f"package:{one}", "is not package:NAME/FOLDER") for one in ("click/../../x", "click//etc", "", "/")),
        *((f"package:{one}/model", "is not installed") for one in ("..", "json.nowhere", "nowhere.inside")),
        ("package:retrievalkit/nowhere", "has no folder 'nowhere'"),
    ],
)
def test_a_model_in_a_package_is_below_a_package_that_is_installed(name, message):
    assert locate_model("package:retrievalkit/models").endswith("retrievalkit/models")
    with pytest.raises(InputError, match=message):
        locate_model(name)


@pytest.mark.parametrize("needed", [True, False])
def test_what_a_file_names_is_asked_for_without_the_users_token(needed, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with anonymously(needed):
        assert load_pretrained(Recorder, str(tmp_path))[1] == (None if needed else "Bearer hf_secret")
    assert not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN


def test_files_of_a_model(tiny_model):
    assert model_file(tiny_model, "config.json").is_file()
    for name in ("modules.json", f"../{Path(tiny_model).name}/config.json", f"{tiny_model}/config.json"):
        assert model_file(tiny_model, name) is None
    assert model_file("no/such-model", "modules.json") is None


def test_a_hub_that_cannot_be_reached_is_an_error_within_seconds(tiny_collection, tmp_path):
    """The library would try every file of the model again and again, for minutes."""
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
    # Nearly all of it is the import of torch and transformers.
    assert time.monotonic() - start < 30
