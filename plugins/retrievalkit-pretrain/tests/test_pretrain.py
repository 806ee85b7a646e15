"""`rkit pretrain` learns from real text, is reproducible to the byte, and writes an ordinary model."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import retrievalkit_testing as testing
import torch
import transformers
from click.testing import CliRunner
from retrievalkit_pretrain.pretrain import PretrainingOptions, PretrainOptions, pretrain
from retrievalkit_pretrain.pretraining import Pretraining
from safetensors.torch import load_file
from tokenizers import BertWordPieceTokenizer

from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import InputError
from retrievalkit.models.pretrained import quiet
from retrievalkit.models.retriever import Retriever
from retrievalkit.training.collective import Collective
from retrievalkit.training.loop import batches
from trainings import log_of, weights_of

REAL_TEXT = "pydoc:asyncio,argparse,logging,unittest"


# --- learning real text --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """A small BERT with random weights and a vocabulary of real text."""
    folder = tmp_path_factory.mktemp("random")
    learnt = BertWordPieceTokenizer(lowercase=True)
    learnt.train_from_iterator([passage.text for passage in open_corpus(REAL_TEXT)], 1000, show_progress=False)
    learnt.save_model(str(folder))
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        tokenizer = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=True)
        tokenizer.save_pretrained(folder)
        config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
        transformers.BertForMaskedLM(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("name", "terms"), [("mlm", {"mlm"}), ("retromae", {"encoder_mlm", "decoder"})])
def test_each_term_falls_from_random_initialisation(random_model, tmp_path, name, terms):
    options = {"steps": 30, "batch_size": 16, "max_length": 32, "learning_rate": 3e-3, "logging_steps": 3}
    pretrain(random_model, REAL_TEXT, pretrainer=name, output=tmp_path / "out", precision="fp32", **options)
    log = log_of(tmp_path / "out")
    assert [line["step"] for line in log] == list(range(3, 31, 3))
    for term in terms:
        values = [line[term] for line in log]
        assert values[0] > 6.4, "about ln 1000: nothing is known"
        assert sum(values[-2:]) / 2 < values[0] - 0.5
    for line in log:
        assert set(line) == {"step", "epoch", "loss", "grad_norm", "learning_rate", *terms}
        assert line["loss"] == pytest.approx(sum(line[term] for term in terms), abs=1e-5)


# --- the folder ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(quick, tmp_path_factory):
    """A model pre-trained with RetroMAE."""
    output = tmp_path_factory.mktemp("pretrained") / "model"
    quick(output, pretrainer="retromae")
    return output


def test_the_folder_is_an_ordinary_model(pretrained, tiny_model):
    names = {path.name for path in pretrained.iterdir()} - {"logs"}
    ours = {"README.md", "manifest.json", "training.jsonl", "training.html"}
    assert names == {path.name for path in Path(tiny_model).iterdir()} | ours
    assert list(pretrained.parent.iterdir()) == [pretrained]
    model = transformers.AutoModelForMaskedLM.from_pretrained(pretrained)
    started = transformers.AutoModelForMaskedLM.from_pretrained(tiny_model)
    assert type(model) is transformers.BertForMaskedLM
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, started.state_dict()[name])]
    assert {"cls.predictions.bias", "bert.embeddings.word_embeddings.weight"} <= set(moved)
    assert len(transformers.AutoTokenizer.from_pretrained(pretrained)) == model.config.vocab_size
    stored = [load_file(Path(folder) / "model.safetensors").keys() for folder in (pretrained, tiny_model)]
    assert stored[0] == stored[1], "no part of a decoder is in it"


def test_the_manifest_records_options_and_inputs(quick, tmp_path, tiny_model, tiny_collection):
    returned = quick(tmp_path / "out", pretrainer_options={"mask_ratio": 0.4})
    manifest = storage.read_manifest(tmp_path / "out", "model")
    assert manifest == json.loads(json.dumps(returned))
    paths = {name: entry["path"] for name, entry in manifest["inputs"].items()}
    assert paths == {"model": tiny_model, "corpus": str(tiny_collection.corpus)}
    assert manifest["counts"] == {"documents": 42, "dropped": 0, "samples": 84, "tokens": 1508, "steps": 6}
    options = manifest["options"]
    assert (options["pretraining"]["steps"], options["pretraining"]["short_spans"]) == (6, 0.15)
    assert set(options["pretraining"]) == {field.name for field in dataclasses.fields(PretrainingOptions)}
    assert options["pretrainer"]["options"] == {"mask_ratio": 0.4, "whole_words": True}
    assert options["encoder"]["options"]["document_length"] == 20
    assert manifest["fingerprint"] == weights_of(tmp_path / "out")


@pytest.fixture(scope="module")
def headless(tiny_model, tmp_path_factory):
    """A model whose weights lack a vocabulary head, as those of sentence encoders do."""
    folder = tmp_path_factory.mktemp("headless")
    with quiet():
        transformers.AutoModel.from_pretrained(tiny_model, add_pooling_layer=False).save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return str(folder)


LEXICAL = """
from retrievalkit import hookimpl
from retrievalkit.contracts import Needs, Pooler, Representation
from retrievalkit.scoring.lexical import max_saturated, text_mask

@hookimpl
def register_poolers(register):
    register("lexical", "local_lexical:Lexical")

class Lexical(Pooler):
    needs = Needs(vocabulary_head=True)
    def __init__(self, info):
        super().__init__()
    def forward(self, states, side):
        return Representation(weights=max_saturated(states.last, states.head, text_mask(states)))
"""


def test_a_model_without_a_head_gets_one_for_poolers(quick, headless, tmp_path, monkeypatch, fresh_registry):
    (tmp_path / "local_lexical.py").write_text(LEXICAL)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(tmp_path / "local_lexical.py"))
    with pytest.raises(InputError, match=r"the weights of .* lack it .*rkit pretrain --pretrainer mlm"):
        Retriever.create(headless, pooler="lexical")
    quick(tmp_path / "out", model=headless)
    weights = Retriever.create(tmp_path / "out", pooler="lexical").encode([("", "lima")], "document").weights
    assert weights.shape == (1, 263)
    assert weights.isfinite().all()


@pytest.mark.parametrize("architecture", ["roberta", "distilbert", "mpnet", "modernbert"])
def test_other_architectures_are_pretrained(quick, tmp_path, architecture):
    model = testing.tiny_model(tmp_path / "model", architecture=architecture)
    quick(tmp_path / "out", model=model, pretrainer="retromae", steps=1)
    assert Retriever.create(tmp_path / "out").encode([("", "lima")], "query").vectors.isfinite().all()


def test_from_the_command_line(tmp_path, tiny_model, tiny_collection):
    arguments = ["pretrain", "--pretrainer", "mlm", "--model", tiny_model, "--corpus", str(tiny_collection.corpus)]
    arguments += ["--steps", "2", "--batch-size", "4", "--max-length", "16", "--precision", "fp32"]
    arguments += ["--set", "pretrainer.mask_ratio=0.2", "--output"]
    ran = CliRunner().invoke(main, [*arguments, str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert re.search(rf"{tmp_path}/out: pre-trained on \d+ samples of 42 documents in 2 steps\n", ran.stdout)
    held_out = CliRunner().invoke(main, [*arguments, str(tmp_path / "dev"), "--dev", str(tiny_collection.corpus)])
    assert re.search(r" in 2 steps; held-out loss \d+\.\d{4}\n", held_out.stdout)
    assert storage.read_manifest(tmp_path / "out")["options"]["pretrainer"]["options"]["mask_ratio"] == 0.2


# --- held-out documents --------------------------------------------------------------------------------------------


def test_the_loss_of_held_out_documents_is_measured_and_the_best_state_kept(quick, tmp_path, tiny_collection):
    """After each epoch; the manifest records the lowest."""
    dev = str(tiny_collection.corpus)
    manifest = quick(tmp_path / "a", dev=dev, steps=None, epochs=2)
    lines = [line for line in log_of(tmp_path / "a") if "dev_loss" in line]
    assert len(lines) == 2
    best = min(lines, key=lambda line: line["dev_loss"])
    assert manifest["selection"]["value"] == best["dev_loss"]
    assert lines[1]["dev_loss"] < lines[0]["dev_loss"]
    assert manifest["inputs"]["dev"]["path"] == dev


@pytest.fixture
def opened(tiny_model, tiny_collection, tmp_path_factory):
    """Open a pre-training on the tiny collection, which is also the held-out set."""

    def opened(**options):
        corpus = str(tiny_collection.corpus)
        given = {"pretrainer": "mlm", "dev": corpus, "max_length": 20, "precision": "fp32", "batch_size": 8}
        made = Pretraining(PretrainOptions(tiny_model, corpus, output="never", **given | options), Collective())
        made.open(tmp_path_factory.mktemp("opened"))
        return made

    return opened


def test_held_out_documents_have_the_same_masks_in_every_evaluation(opened):
    """The loss is the same in each evaluation and for any batch size, and differs for other masks."""
    made = opened()
    made.module.train()
    assert made.measure(0) == made.measure(1)
    assert made.module.training
    assert opened(micro_batch_size=3).measure(0) == {"loss": pytest.approx(made.measure(0)["loss"], rel=1e-5)}
    assert opened(seed=1).measure(0) != made.measure(0)


def test_each_epoch_has_every_sample_once_with_new_masks(opened):
    """84 samples are eleven steps of eight, the last of four."""
    made = opened()
    epochs = [list(batches(made.samples, 8, epoch)) for epoch in range(2)]
    assert [[len(keys) for keys in steps] for steps in epochs] == [[8] * 10 + [4]] * 2
    orders = [[position for keys in steps for _, position in keys] for steps in epochs]
    assert set(orders[0]) == set(orders[1]) == set(range(84))
    assert orders[0] != orders[1]
    keys = [[(epoch, position) for position in range(8)] for epoch in (0, 0, 1)]
    one, same, other = (made.collate(part).parts[0].batch["labels"] for part in keys)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


# --- wrong input ---------------------------------------------------------------------------------------------------


def test_a_model_without_a_head_a_mask_or_its_own_vocabulary_is_refused(quick, tmp_path):
    for architecture, message in (
        ("t5", "the architecture 't5' is not supported"),
        ("llama", "has no mask token"),
    ):
        with pytest.raises(InputError, match=message):
            quick(tmp_path / "out", model=testing.tiny_model(tmp_path / architecture, architecture=architecture))
    model = Path(testing.tiny_model(tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    for size in (200, 1000):
        (model / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
        with pytest.raises(InputError, match=rf"has 263 tokens and its model {size} embeddings"):
            quick(tmp_path / "out", model=str(model))
    assert not (tmp_path / "out").exists()


PAIRS = """
from retrievalkit import hookimpl
from retrievalkit.contracts import LossValue, Pretrainer
from retrievalkit.errors import UnsupportedError
from retrievalkit_pretrain.mlm import MaskedLanguageModel

@hookimpl
def register_pretrainers(register):
    register("pairs", "local_pairs:Pairs")
    register("picky", "local_pairs:Picky")

class Pairs(MaskedLanguageModel):
    wants = "two spans of text"
    def samples(self, document):
        return int(len(document.spans) > 1)
    def sample(self, document, number, draw):
        assert number == 0
        return super().sample(document, draw.randrange(len(document.spans)), draw)

class Picky(MaskedLanguageModel):
    def forward(self, batch, progress):
        raise UnsupportedError("pretrainer 'picky' needs another encoder.")
"""


@pytest.fixture
def local_pairs(tmp_path_factory, monkeypatch, fresh_registry):
    path = tmp_path_factory.mktemp("plugin") / "local_pairs.py"
    path.write_text(PAIRS)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(path))


def lines(*texts):
    return [json.dumps({"_id": str(row), "text": text}) for row, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "no-such/model"}, "cannot load the model 'no-such/model'"),
        ({"corpus": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"pretrainer": "mml"}, "did you mean 'mlm'"),
        ({"pretrainer_options": {"mask_ration": 1}}, "did you mean 'mask_ratio'"),
        ({"encoder_options": {"lora_rank": 2}}, "Leave out encoder.lora_rank"),
        ({"max_length": 1000}, "max_length is 1000, and"),
        ({"precision": "fp16"}, "fp16 needs a GPU"),
        ({"pretrainer": "picky"}, "'picky' needs another encoder"),
        ({"corpus": []}, r"corpus\.jsonl: the file is empty"),
        ({"corpus": [*lines(*["The city."] * 300), "{"]}, r"corpus\.jsonl:301: "),
        ({"corpus": lines(" ")}, r"none of the 1 documents of .* has text at max_length 20"),
        ({"corpus": lines("Lima."), "pretrainer": "pairs"}, "has two spans of text"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_input_leaves_no_files(quick, tmp_path, local_pairs, changes, message):
    path = tmp_path / "corpus.jsonl"
    if isinstance(changes.get("corpus"), list):
        path.write_text("".join(f"{line}\n" for line in changes["corpus"]))
        changes = changes | {"corpus": str(path)}
    with pytest.raises(InputError, match=message):
        quick(tmp_path / "out", **changes)
    assert set(tmp_path.iterdir()) <= {path}


def test_unsuitable_documents_are_dropped_and_counted(quick, tmp_path, local_pairs):
    texts = lines("The city of Lima. " * 10, "Lima.", "People pay with the sol. " * 9)
    (tmp_path / "corpus.jsonl").write_text("\n".join(texts))
    manifest = quick(tmp_path / "out", pretrainer="pairs", corpus=str(tmp_path / "corpus.jsonl"))
    assert (manifest["counts"]["dropped"], manifest["counts"]["samples"]) == (1, 2)
    card = (tmp_path / "out" / "README.md").read_text()
    for part in (
        "| pretrainer | pairs",
        "pipeline_tag: fill-mask",
        "3; 1 without two spans of text dropped",
    ):
        assert part in card
