"""Through a real encoder: the contract, cached gradients, and the walk from training to evaluation."""

from __future__ import annotations

import json

import pytest
import retrievalkit_testing as testing
import torch
from click.testing import CliRunner

from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.contracts import Progress
from retrievalkit.errors import InputError, OptionError, UnsupportedError
from retrievalkit.model.retriever import Retriever
from retrievalkit.training.gradcache import Chunk, cached_step, plain_step

pytestmark = pytest.mark.precision

SMALL = {"cls_dim": 8, "agg_dim": 24}
CASES = [
    {},
    {"term_weight": "signed"},
    {"vocabulary_head": False},
    {"aggregation": "linear"},
    {"aggregation": "average"},
    {"agg_dim": "vocabulary"},
    {"slices": "seeded", "slice_seed": 7},
    {"cls_dim": 0, "aggregation": "semi"},
    {"layers": (1, 2)},
    {"layers": (1, 2), "keep": "last"},
]


def ids_of(options):
    return ",".join(f"{name}={value}" for name, value in options.items()) or "default"


QUICK = ({}, {"agg_dim": "vocabulary"}, {"layers": (1, 2), "keep": "last"})


@pytest.mark.parametrize(
    "options", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in CASES], ids=ids_of
)
def test_the_contract_is_kept(options, tiny_model):
    """Padding, order and batch size change nothing; saving and loading give equal vectors; gradients arrive."""
    testing.check_pooler("aggretriever", model=tiny_model, **(SMALL | options))


def test_other_architectures(tmp_path):
    """RoBERTa, whose head is another one."""
    testing.check_pooler("aggretriever", model=testing.tiny_model(tmp_path, architecture="roberta"), **SMALL)


class TestEncodersThatItIsNotFor:
    """Refused before any training step."""

    def test_without_a_head(self, tmp_path):
        model = testing.tiny_model(tmp_path, architecture="t5")
        with pytest.raises(InputError, match="vocabulary head"):
            Retriever.create(model, pooler="aggretriever", pooler_options=SMALL)

    @pytest.mark.parametrize("architecture", ["t5", "llama"])
    def test_without_cls(self, architecture, tmp_path):
        model = testing.tiny_model(tmp_path, architecture=architecture)
        with pytest.raises(UnsupportedError, match=r"\[CLS\]-like token .* begin with none\. Choose a model with one"):
            Retriever.create(model, pooler="aggretriever", pooler_options=SMALL | {"vocabulary_head": False})

    def test_of_few_terms(self, tiny_model):
        with pytest.raises(OptionError, match=r"agg_dim is 640: .* Set agg_dim to \d+ or less"):
            Retriever.create(tiny_model, pooler="aggretriever")


class TestCachedGradients:
    """Encoding chunk by chunk gives the gradients of the whole batch."""

    QUERIES = (("", "what is the capital of france"), ("", "rome"))
    DOCUMENTS = (
        ("France", "The seat of government is the city of Paris."),
        ("Peru", "lima"),
        ("Italy", "People pay with the euro, and the language that is spoken most is Italian."),
    )

    def gradients(self, model, step, most, options):
        retriever = Retriever.create(
            model, pooler="aggretriever", pooler_options=SMALL | options, encoder_options={"dropout": 0.3}
        )
        retriever.to("cpu").train()
        loss = registry.create("loss", "aggretriever")
        chunks = []
        for side, texts in (("query", self.QUERIES), ("document", self.DOCUMENTS)):
            tower = retriever.tower(side)
            ids = tower.tokenize(texts, side)
            for start in range(0, len(ids), most):
                rows = list(range(start, min(start + most, len(ids))))
                chunks.append(Chunk(side, rows, tower.collate([ids[row] for row in rows], side)))
        torch.manual_seed(0)
        value = step(
            retriever,
            chunks,
            lambda queries, documents: loss(queries, documents, torch.tensor([0, 2]), Progress(0, 0.0, 10)),
            torch.autograd.backward,
        )
        named = retriever.named_parameters()
        return value, {name: parameter.grad for name, parameter in named if parameter.grad is not None}

    @pytest.mark.parametrize("options", [{}, {"vocabulary_head": False}, {"layers": (1, 2)}], ids=ids_of)
    @pytest.mark.parametrize("most", [1, 100])
    def test_equal_to_plain_ones(self, options, most, tiny_model):
        plain, cached = (self.gradients(tiny_model, step, most, options) for step in (plain_step, cached_step))
        torch.testing.assert_close(plain[0].total, cached[0].total)
        assert plain[1].keys() == cached[1].keys()
        for name, one in plain[1].items():
            torch.testing.assert_close(one, cached[1][name], rtol=1e-4, atol=1e-6, msg=name)


def rkit(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, f"rkit {' '.join(map(str, words))}\n{result.output}\n{result.exception!r}"
    return result.stdout


def settings(given):
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


def train(model, tiny_collection, output, **given):
    words = [
        "--model",
        model,
        "--corpus",
        tiny_collection.corpus,
        "--examples",
        tiny_collection.folder,
        "--output",
        output,
    ]
    words += ["--pooler", "aggretriever", "--batch-size", 16, "--precision", "fp32", "--json"]
    small = {"pooler.cls_dim": 8, "pooler.agg_dim": 24, "negatives": 0, "encoder.dropout": 0, "logging_steps": 6}
    manifest = json.loads(rkit("train", *words, *settings(small | given)))
    return manifest, [json.loads(line) for line in (output / "training.jsonl").read_text().splitlines()]


def measure(model, tiny_collection, folder, *options):
    """nDCG@10 of exact search, and the counts of the vectors."""
    vectors = rkit("encode", model, tiny_collection.corpus, "--output", folder / "vectors", "--json", *options)
    rkit("index", folder / "vectors", "--indexer", "flat", "--output", folder / "index")
    rkit("search", folder / "index", "--queries", tiny_collection.queries, "--k", 10, "--output", folder / "run.trec")
    found = rkit("evaluate", folder / "run.trec", "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10", "--json")
    return json.loads(found)["metrics"]["nDCG@10"], json.loads(vectors)["counts"]


def test_from_training_to_evaluation(tiny_model, tiny_collection, tmp_path):
    """Trained by the pooler's own loss it beats the same model untrained; one vector of 32 numbers a text."""
    manifest, log = train(tiny_model, tiny_collection, tmp_path / "model", epochs=10, learning_rate=1e-2)
    assert manifest["options"]["loss"]["name"] == "aggretriever"
    for line in log:
        assert line["loss"] == pytest.approx(line["contrastive"] + 0.5 * (line["agg"] + line["cls"]), rel=1e-4)
    trained, counts = measure(tmp_path / "model", tiny_collection, tmp_path / "trained")
    assert (counts["texts"], counts["vectors"]) == (42, 42)
    small = settings({"pooler.cls_dim": 8, "pooler.agg_dim": 24})
    untrained, _ = measure(tiny_model, tiny_collection, tmp_path / "untrained", "--pooler", "aggretriever", *small)
    assert trained > untrained + 0.2


def test_layers_self_contrastive(tiny_model, tiny_collection, tmp_path):
    """keep=last trains the vectors of all layers with the loss of retrievalkit-mlr, and indexes one a document."""
    pytest.importorskip("retrievalkit_mlr")
    given = {"pooler.layers": "1,2", "pooler.keep": "last", "logging_steps": 1, "epochs": 0.5}
    manifest, log = train(tiny_model, tiny_collection, tmp_path / "model", **given)
    assert manifest["options"]["loss"]["name"] == "self_contrastive"
    assert all(line["regularizer"] > 0 for line in log)
    _, counts = measure(tmp_path / "model", tiny_collection, tmp_path / "found")
    assert counts["vectors"] == 42


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "agg_dim is 640"),
        ({"pooler.cls_dim": 0, "pooler.agg_dim": 0}, "both 0"),
        ({"pooler.agg_dim": 16, "pooler.slice_seed": 3}, "slice_seed=3 has no effect with slices=strided"),
        ({"pooler.agg_dim": 16, "loss.part_weights": 1}, "did you mean 'part_weight'"),
    ],
)
def test_wrong_settings_are_said_before_training(given, message, tiny_model, tiny_collection, tmp_path):
    words = ["train", "--model", tiny_model, "--corpus", tiny_collection.corpus, "--examples", tiny_collection.folder]
    words += ["--output", tmp_path / "model", "--pooler", "aggretriever", *settings(given)]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "model").exists()


def test_the_loss_wants_parts(tiny_model, tiny_collection, tmp_path):
    """With another pooler it says which one to choose."""
    words = ["train", "--model", tiny_model, "--corpus", tiny_collection.corpus, "--examples", tiny_collection.folder]
    words += ["--output", tmp_path / "model", "--loss", "aggretriever"]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 2
    assert "Choose --pooler aggretriever, or --loss contrastive." in result.stderr
