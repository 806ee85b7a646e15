"""`--push`, and checkpoints by their hub names: huggingface_hub against a stand-in for the hub.

huggingface_hub reads the hub's address when it is imported, so the commands run in processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from huggingface_hub import ModelCard

import hub_server
import retrievalkit as rk
from retrievalkit import storage

pytestmark = pytest.mark.slow

DEV = [{"query_id": str(row), "query": f"what is number {row}", "positives": [f"c{row}"]} for row in range(20)]


@pytest.fixture(scope="module")
def hub():
    with hub_server.serving() as server:
        yield server


@pytest.fixture(scope="module")
def run(hub, tmp_path_factory):
    """Run Python code with the hub's address, a separate cache and a token; return its output, parsed as JSON."""
    home = tmp_path_factory.mktemp("home")

    def run(code):
        left_out = ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_TOKEN": hub_server.TOKEN}
        code = f"import json\nimport numpy as np\nimport retrievalkit as rk\n{code}"
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return run


@pytest.fixture(scope="module")
def pushes(run, tmp_path_factory, tiny_model, tiny_collection):
    """A training that pushes without a login, a training that pushes to me/geography, and the same resumed."""
    output = tmp_path_factory.mktemp("trained") / "checkpoint"
    options = {"corpus": str(tiny_collection.corpus), "dev": DEV, "pooler": "mean", "epochs": 1, "limit": 32}
    code = f"""
import contextlib, io
from pathlib import Path
from huggingface_hub import constants
from retrievalkit.errors import RetrievalkitError

def train(name, **changes):
    options = {options!r} | changes
    rk.train({str(tiny_model)!r}, {str(tiny_collection.folder)!r}, push=name, output={str(output)!r}, **options)

constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True
try:
    train("me/other")
except RetrievalkitError as error:
    refused = str(error)
begun = Path({str(output)!r}).exists()
constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = False
with contextlib.redirect_stderr(io.StringIO()) as log:
    train("me/geography")
train("me/again", resume=True)
print(json.dumps({{"refused": refused, "begun": begun, "log": log.getvalue()}}))"""
    return {**run(code), "output": output}


@pytest.fixture(scope="module")
def trained(pushes):
    return pushes["output"]


def test_the_repository_has_the_weights_and_the_card(trained, hub):
    """It is private, and has no file that describes the training on this machine."""
    repository = hub.repositories["me/geography"]
    assert repository.private
    files = {path.relative_to(trained).as_posix(): path for path in trained.rglob("*") if path.is_file()}
    kept = {name for name in files if name.partition("/")[0] in ("encoder", "pooler.safetensors", "retrievalkit.json")}
    assert repository.files.keys() == {*kept, "README.md", ".gitattributes"}
    assert all(repository.files[name] == files[name].read_bytes() for name in kept)
    assert str(trained.parent.parent).encode() not in repository.files["README.md"]


def test_the_card_has_the_metrics_in_the_hubs_model_index(trained, hub):
    card = ModelCard(hub.repositories["me/geography"].files["README.md"].decode())
    results = {one.metric_name: one for one in card.data.eval_results}
    dev = storage.read_manifest(trained)["dev"]
    assert {name: one.metric_value for name, one in results.items()} == dev["after"]
    assert results["nDCG@10"].metric_type == "ndcg_at_10"
    assert str(dev["questions"]) in results["nDCG@10"].dataset_name
    assert card.data.library_name == "retrievalkit"


def test_a_pushed_checkpoint_is_used_by_its_name(trained, run, hub, tmp_path, tiny_collection):
    """For encoding, indexing, searching, training and export; it equals the local checkpoint."""
    own = rk.Retriever.load(trained, precision="fp32")
    local = rk.Index.build(tiny_collection.corpus, own, tmp_path / "local")
    corpus, examples = str(tiny_collection.corpus), str(tiny_collection.folder)
    code = f"""
model = rk.Retriever.load("me/geography", precision="fp32")
index = rk.Index.build({corpus!r}, "me/geography", {str(tmp_path / "index")!r}, precision="fp32")
local = rk.Index.open({str(local.folder)!r}, model="me/geography")
options = {{"epochs": 0, "held_out": 0, "limit": 8, "output": {str(tmp_path / "next")!r}}}
rk.train("me/geography", {examples!r}, corpus={corpus!r}, **options)
exported = {{"to": "sentence-transformers", "push": "me/exported", "dry_run": False}}
rk.export("me/geography", {str(tmp_path / "exported")!r}, **exported)
print(json.dumps({{
    "fingerprint": model.model.fingerprint,
    "vector": np.asarray(model.encode_queries(["the capital of Peru"]))[0].tolist(),
    "hits": [[hit.id for hit in one.search("the capital of Peru")] for one in (index, local)],
}}))"""
    found = run(code)
    assert found["fingerprint"] == own.model.fingerprint
    np.testing.assert_allclose(found["vector"], np.asarray(own.encode_queries(["the capital of Peru"]))[0], atol=1e-6)
    expected = [hit.id for hit in local.search("the capital of Peru")]
    assert found["hits"] == [expected, expected]
    assert {"modules.json", "README.md"} < hub.repositories["me/exported"].files.keys()
    assert "manifest.json" not in hub.repositories["me/exported"].files
    # The index opens without the hub; a model that was trained further names its origin.
    assert [hit.id for hit in rk.Index.open(tmp_path / "index").search("the capital of Peru")] == expected
    assert ModelCard.load(tmp_path / "next" / "README.md").data.base_model == "me/geography"


def test_a_finished_training_is_pushed_when_it_is_resumed(pushes, hub):
    first, second = (hub.repositories[name].files for name in ("me/geography", "me/again"))
    assert first == second
    assert f"uploaded to {hub.address}/me/geography" in pushes["log"]


def test_a_missing_login_is_reported_before_the_training(pushes, hub):
    assert "hf auth login" in pushes["refused"]
    assert not pushes["begun"]
    assert "me/other" not in hub.repositories
