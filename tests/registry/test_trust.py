"""Code that comes with a model is not run, whatever the model's files or standard input contain."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import retrievalkit_testing as testing
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import dynamic_module_utils

import retrievalkit as rk
from killed_processes import forks, in_another_process
from retrievalkit.cli import main
from retrievalkit.errors import InputError, OptionError
from retrievalkit.models.cross_encoder import CrossEncoder
from retrievalkit.models.retriever import Retriever
from retrievalkit.registry import trust

CODE = """\
from pathlib import Path
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

Path({marker!r}).write_text("run")

class Config(BertConfig):
    model_type = "strange"

class Model(BertModel):
    config_class = Config

class MaskedLM(BertForMaskedLM):
    config_class = Config

class Classifier(BertForSequenceClassification):
    config_class = Config

class Tokenizer(PreTrainedTokenizerFast):
    pass
"""
CLASSES = {
    "AutoConfig": "strange.Config",
    "AutoModel": "strange.Model",
    "AutoModelForMaskedLM": "strange.MaskedLM",
    "AutoModelForSequenceClassification": "strange.Classifier",
}
RECIPE = """\
name: strangers
steps:
  - name: vectors
    command: encode
    with: {model: MODEL, texts: CORPUS, set: {encoder.trust_remote_code: true}}
    output: vectors
"""


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.fixture
def strange(tmp_path, marker):
    """A model whose configuration, weights and tokenizer need its own code."""
    folder = Path(testing.tiny_model(tmp_path / "strange"))
    (folder / "strange.py").write_text(CODE.format(marker=str(marker)))
    edit(folder / "config.json", model_type="strange", auto_map=CLASSES)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "strange.Tokenizer"]})
    return folder


@pytest.fixture
def rkit(monkeypatch):
    monkeypatch.delenv(trust.TRUST, raising=False)

    def rkit(*words):
        result = CliRunner().invoke(main, [str(word) for word in words], input="y\n" * 10)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return rkit


COMMANDS = {
    "encode": "encode MODEL CORPUS --output OUT",
    "encode, allowed by --set": "encode MODEL CORPUS --set encoder.trust_remote_code=true --output OUT",
    "train": "train --model MODEL --examples EXAMPLES --corpus CORPUS --epochs 1 --output OUT",
    "pretrain": "pretrain --pretrainer mlm --model MODEL --corpus CORPUS --steps 1 --output OUT",
    "rerank train": "rerank train --model MODEL --examples MINED --corpus CORPUS --epochs 1 --output OUT",
    "rerank apply": "rerank apply MODEL --run RUN --queries EXAMPLES --corpus CORPUS --output OUT",
    "a recipe": "run RECIPE --output OUT",
}


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_no_command_runs_code_of_a_model(line, strange, marker, rkit, tiny_collection, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("MODEL", str(strange)).replace("CORPUS", str(tiny_collection.corpus)))
    ids = [json.loads(line)["_id"] for line in tiny_collection.corpus.read_text().splitlines()[:2]]
    question = json.loads(tiny_collection.queries.read_text().splitlines()[0])["_id"]
    mined, ranking = tmp_path / "mined.jsonl", tmp_path / "run.trec"
    mined.write_text(json.dumps({"query_id": "q", "query": "which", "positives": ids[:1], "negatives": ids[1:]}) + "\n")
    ranking.write_text(f"{question} Q0 {ids[0]} 1 2.0 x\n")
    places = {"MODEL": strange, "CORPUS": tiny_collection.corpus, "EXAMPLES": tiny_collection.folder}
    places |= {"MINED": mined, "RUN": ranking, "RECIPE": recipe, "OUT": tmp_path / "out"}
    code, output = rkit(*(places.get(word, word) for word in line.split()))
    assert (code, marker.exists()) == (2, False)
    assert f"'{strange}' needs Python code that came with it" in output
    assert "RKIT_TRUST_REMOTE_CODE=1" in output
    assert "[y/N]" not in output


def test_a_checkpoint_cannot_allow_its_own_code(strange, marker, rkit, tiny_model, tiny_collection, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    Retriever.create(tiny_model).save(checkpoint)
    for name in ("config.json", "tokenizer_config.json", "strange.py"):
        shutil.copy(strange / name, checkpoint / "encoder" / name)
    description = json.loads((checkpoint / "retrievalkit.json").read_text())
    for allowed in (False, True):
        description["encoder"]["options"]["trust_remote_code"] = allowed
        (checkpoint / "retrievalkit.json").write_text(json.dumps(description))
        code, output = rkit("encode", checkpoint, tiny_collection.corpus, "--output", tmp_path / "out")
        assert (code, marker.exists()) == (2, False)
        assert "needs Python code that came with it" in output


def test_code_of_a_tokenizer_is_not_run(strange, marker, tiny_model):
    """transformers' own class is used if there is one."""
    shutil.copy(Path(tiny_model) / "config.json", strange)
    assert Retriever.create(strange).encode([("", "the capital")], "query").vectors.shape == (1, 1, 32)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_attention_code_of_the_hub_is_refused(name, tiny_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    edit(folder / "config.json", **{name: "stranger/kernel"})
    for load in (Retriever.create, CrossEncoder.create):
        with pytest.raises(InputError, match="none of it was run"):
            load(folder)
    with pytest.raises(InputError, match="none of it was run"):
        Retriever.create(tiny_model, encoder_options={"attention": "stranger/kernel"})


@forks
def test_the_environment_allows_code(strange, marker, tmp_path):
    def create():
        os.environ[trust.TRUST] = "1"
        dynamic_module_utils.HF_MODULES_CACHE = str(tmp_path / "modules")
        Retriever.create(strange)

    assert in_another_process(create) == 0
    assert marker.exists()


class Exploit:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.write_text, (self.marker, "run")


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_pickled_code_instead_of_weights_is_refused(form, marker, rkit, tiny_model, tiny_collection, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    weights = load_file(Path(tiny_model) / "model.safetensors")
    if form == "torch":
        torch.save(weights | {"exploit": Exploit(marker)}, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Exploit(marker), protocol=2))
    code, _ = rkit("encode", folder, tiny_collection.corpus, "--output", tmp_path / "out")
    assert (code, marker.exists()) == (2, False)
    torch.save(weights, folder / "pytorch_model.bin")
    code, output = rkit("encode", folder, tiny_collection.corpus, "--output", tmp_path / "out")
    assert code == 0, output


def test_a_recipe_does_not_upload(tiny_model, tiny_collection, tmp_path):
    """Its author may be a stranger, but the token is the user's."""
    with trust.recipe_step(), pytest.raises(OptionError, match="your token"):
        rk.train(tiny_model, tiny_collection.folder, output=tmp_path / "out", push="somebody/else")
