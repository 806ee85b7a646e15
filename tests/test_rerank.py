"""`rkit rerank` trains a cross-encoder, goes on where it was killed, and scores runs and examples as it should."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

from killed_processes import first_fast, forks, in_another_process, kill_at_call
from retrievalkit import artifacts, rerank
from retrievalkit.cli import main
from retrievalkit.contracts import Progress
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.data.runs import read_run, write_run
from retrievalkit.errors import ArtifactError, InputError
from retrievalkit.model.cross_encoder import CrossEncoder
from retrievalkit.model.pretrained import quiet
from retrievalkit.rerank import Settings, rerank_run, score_examples
from retrievalkit.training import selection
from retrievalkit.training.loop import Loop
from retrievalkit.training.options import RerankerOptions
from retrievalkit.training.reranker import DevLists, RerankerStep, listwise, pointwise, sum_of_losses
from retrievalkit.training.sampling import ExampleSampler, StepAssembler
from retrievalkit.training.train_reranker import train_reranker
from trainings import bytes_of, interrupt_at, log_of, quick_training, saved_states

# Three steps an epoch, and each option has something to change.
QUICK = {"epochs": 2, "batch_size": 4, "negatives": 3, "learning_rate": 1e-2, "precision": "fp32", "logging_steps": 2}


@pytest.fixture(scope="session")
def euro(tiny_collection, tmp_path_factory):
    """Examples of one kind, which a tiny model learns: a passage that tells of the euro, and five that do not."""
    folder = tmp_path_factory.mktemp("euro")
    passages = list(open_corpus(tiny_collection.corpus))
    with_euro = [one.id for one in passages if "euro" in one.text]
    without = [one.id for one in passages if "euro" not in one.text]
    rows = [
        Example(
            f"e{row}",
            "which use the euro" if row % 2 else "the euro is the currency in",
            (one, with_euro[row - 1]),
            tuple(without[(3 * row + place) % len(without)] for place in range(5)),
        )
        for row, one in enumerate(with_euro)
    ]
    # A known positive among the negatives, and an example with fewer negatives than are drawn.
    rows[0] = dataclasses.replace(rows[0], negatives=(with_euro[2], *rows[0].negatives[:2]))
    rows[2] = dataclasses.replace(rows[2], negatives=rows[2].negatives[:1], positives=(with_euro[2],))
    write_examples(folder / "train.jsonl", rows)
    write_examples(folder / "dev.jsonl", rows[3:7])
    return {name: str(folder / f"{name}.jsonl") for name in ("train", "dev")}


@pytest.fixture
def quick(tiny_model, tiny_collection, euro):
    """Trains for half a second or so."""
    places = {"model": tiny_model, "corpus": str(tiny_collection.corpus), "examples": euro["train"]}
    return quick_training(train_reranker, QUICK, **places)


@pytest.fixture(scope="module")
def trained(tiny_model, tiny_collection, euro, tmp_path_factory):
    """A re-ranker that has learnt the examples."""
    output = tmp_path_factory.mktemp("trained") / "reranker"
    corpus = str(tiny_collection.corpus)
    train_reranker(tiny_model, euro["train"], corpus=corpus, output=output, **QUICK | {"epochs": 16})
    return output


def plain_scores(folder, pairs):
    """The logits of transformers alone, one pair at a time."""
    with quiet():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        return [float(model(**tokenizer(*pair, truncation=True, return_tensors="pt")).logits[0, 0]) for pair in pairs]


def rkit(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


# --- losses --------------------------------------------------------------------------------------------------------

SCORES = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0])
LISTS = torch.tensor([[0, 1, 2], [4, 3, -1]])


def test_the_listwise_loss_by_hand():
    """-log(e^2 / (e^2 + e^1 + e^0)) - log(e^3 / (e^3 + e^-1))"""
    expected = math.log(1 + math.exp(-1) + math.exp(-2)) + math.log(1 + math.exp(-4))
    assert float(listwise(SCORES, LISTS)) == pytest.approx(expected, rel=1e-6)


def test_the_pointwise_loss_by_hand():
    """-log sigmoid(2) - log sigmoid(-1) - log sigmoid(0) - log sigmoid(3) - log sigmoid(1)"""
    expected = sum(math.log(1 + math.exp(-one)) for one in (2, -1, 0, 3, 1))
    assert float(pointwise(SCORES, LISTS)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss", [listwise, pointwise])
def test_places_without_a_pair_have_no_gradient(loss):
    scores = SCORES.clone().requires_grad_()
    padded = torch.cat([LISTS, torch.full((2, 3), -1)], dim=1)
    assert torch.equal(loss(scores, padded), loss(scores, LISTS))
    loss(scores, padded).backward()
    assert scores.grad.isfinite().all()


@pytest.fixture
def step_of(tiny_model, tiny_collection, euro):
    """Makes a step; its model is in float64, so that nothing but rounding is forgiven, and has no dropout."""
    corpus, rows = open_corpus(tiny_collection.corpus), read_examples(euro["train"]).rows

    def step_of(**options):
        model = CrossEncoder.create(tiny_model, seed=1).double().eval()
        options = RerankerOptions(precision="fp32", negatives=3, **options)
        assembler = StepAssembler(corpus.get, rows, mask_false_negatives=options.false_negatives == "mask")
        return RerankerStep(model, ExampleSampler(rows, negatives=3), assembler, options)

    return step_of


KEYS = [(0, position) for position in range(5)]


@pytest.mark.parametrize("loss", ["listwise", "pointwise"])
def test_the_loss_of_a_step_is_that_of_its_pairs_scored_one_by_one(step_of, tiny_model, tiny_collection, loss):
    made = step_of(loss=loss)
    model, corpus = made.model, open_corpus(tiny_collection.corpus)
    total = count = 0.0
    for epoch, position in KEYS:
        draw = made.samples.draw(position, epoch)
        # All that share a query text are its known positives.
        known = {one for row in made.samples.examples if row.query == draw.example.query for one in row.positives}
        documents = [draw.positive, *(one for one in draw.negatives if one not in known)]
        passages = [corpus.get(one) for one in documents]
        with torch.no_grad():
            scores = [
                float(model(model.collate(model.tokenize([draw.example.query], [(one.title, one.text)]))))
                for one in passages
            ]
        exponentials = [math.exp(one) for one in scores]
        if loss == "listwise":
            total -= math.log(exponentials[0] / sum(exponentials))
            count += 1
        else:
            total += sum(math.log(1 + math.exp(one if row else -one)) for row, one in enumerate(scores))
            count += len(scores)
    (part,) = made.collate(KEYS).parts
    assert part.size == count
    value = sum_of_losses(model, part.batch["lists"], loss, "fp32")
    assert float(value.detach()) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("options", [{"micro_batch_size": 2}, {"batch_tokens": 50}, {"micro_batch_size": 1}], ids=str)
@pytest.mark.parametrize("loss", ["listwise", "pointwise"])
def test_the_size_of_a_micro_batch_changes_neither_loss_nor_gradient(step_of, loss, options):
    """Lists differ in length, so a pointwise loss may not count queries."""
    values, gradients = [], []
    for made in (step_of(loss=loss), step_of(loss=loss, **options)):
        logged = made.run(made.collate(KEYS), Progress(0, 0.0, 1), torch.Tensor.backward)
        values.append(logged["loss"])
        gradients.append({name: one.grad for name, one in made.module.named_parameters() if one.grad is not None})
    torch.testing.assert_close(*values)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        # Scores are computed in float32.
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-8)


def test_known_positives_are_no_negatives_unless_kept(step_of):
    """The first example has another's positive among its negatives, and asks the same."""
    for false_negatives, pairs in (("mask", 3), ("keep", 4)):
        (part,) = step_of(loss="pointwise", false_negatives=false_negatives).collate([(0, 0)]).parts
        assert part.size == pairs


# --- training ------------------------------------------------------------------------------------------------------


def test_a_reranker_learns(trained, euro, tiny_collection):
    losses = [line["loss"] for line in log_of(trained) if "loss" in line]
    assert losses[-1] < losses[0] / 2
    dev = DevLists(read_examples(euro["dev"]).rows, open_corpus(tiny_collection.corpus).get)
    assert dev.average_rank(CrossEncoder.load(trained), "fp32") < 0.5


def test_the_rank_counts_the_negatives_that_score_as_high(tiny_model, tiny_collection, euro):
    model = CrossEncoder.create(tiny_model).eval()
    with torch.no_grad():
        model.model.classifier.weight.zero_()
    rows = read_examples(euro["dev"]).rows
    assert DevLists(rows, open_corpus(tiny_collection.corpus).get).average_rank(model, "fp32") == 5


def test_the_folder_says_what_made_it(quick, tmp_path, euro, tiny_model):
    returned = quick(tmp_path / "out", dev=euro["dev"])
    manifest = artifacts.read_manifest(tmp_path / "out", "reranker")
    assert manifest == json.loads(json.dumps(returned))
    assert manifest["counts"] == {"examples": 11, "without_negatives": 0, "steps": 6}
    assert manifest["options"] == {"model": tiny_model, "training": dataclasses.asdict(RerankerOptions(**QUICK))}
    assert manifest["precision"] == "fp32"
    assert set(manifest["inputs"]) == {"model", "examples", "corpus", "dev"}
    assert manifest["fingerprint"] == CrossEncoder.load(tmp_path / "out").fingerprint
    card = (tmp_path / "out" / "README.md").read_text()
    for part in (tiny_model, "11 from", "listwise, 3 negatives", "rkit rerank apply FOLDER"):
        assert part in card
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_the_best_state_on_the_dev_questions_is_kept(quick, tmp_path, euro, monkeypatch):
    states, values = [], [3.0, 1.0, 2.0]

    def average_rank(self, model, precision):
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return values[len(states) - 1]

    monkeypatch.setattr(DevLists, "average_rank", average_rank)
    quick(tmp_path / "out", dev=euro["dev"], epochs=3)
    kept = CrossEncoder.create(tmp_path / "out").state_dict()
    same = [all(torch.equal(kept[name], tensor) for name, tensor in state.items()) for state in states]
    assert same == [False, True, False]
    chosen = json.loads((tmp_path / "out" / "selection.json").read_text())
    assert chosen == {"epoch": 1, "measure": "average_rank", "value": 1.0}


OTHERWISE = {
    "loss": "pointwise", "epochs": 1, "limit": 8, "batch_size": 3, "micro_batch_size": 2, "negatives": 2,
    "negative_pool": 1, "positive": "random", "false_negatives": "keep", "max_length": 20, "learning_rate":
    2e-2, "warmup_ratio": 0.5, "weight_decay": 0.1, "adam_epsilon": 1e-3, "max_gradient_norm": 0.01,
    "batch_tokens": 50, "precision": "bf16", "logging_steps": 1, "save_steps": 1, "seed": 43,
}  # fmt: skip


@pytest.fixture(scope="module")
def baseline(tiny_model, tiny_collection, euro, tmp_path_factory):
    output = tmp_path_factory.mktemp("baseline") / "out"
    corpus = str(tiny_collection.corpus)
    train_reranker(tiny_model, euro["train"], corpus=corpus, output=output, **QUICK)
    return output


def test_every_option_is_among_those_that_are_changed():
    assert set(OTHERWISE) == {field.name for field in dataclasses.fields(RerankerOptions)}


@pytest.mark.parametrize("option", OTHERWISE)
def test_every_option_changes_something(quick, tmp_path, baseline, monkeypatch, option):
    saved = saved_states(monkeypatch)
    manifest = quick(tmp_path / "out", **{option: OTHERWISE[option]})
    same = manifest["fingerprint"] == artifacts.read_manifest(baseline)["fingerprint"]
    assert same == (option in ("save_steps", "logging_steps"))
    if option == "save_steps":
        assert len(saved) == 6
    if option == "logging_steps":
        assert len(log_of(tmp_path / "out")) > len(log_of(baseline))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "epochs.*-1.*greater than or equal to 0"),
        ({"negatives": 0}, "negatives.*0.*greater than or equal to 1"),
        ({"batch_size": 0}, "batch_size.*0"),
        ({"learning_rate": math.nan}, "learning_rate.*nan"),
        ({"warmup_ratio": 2}, "warmup_ratio.*less than or equal to 1"),
    ],
    ids=str,
)
def test_options_that_no_training_can_have_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        train_reranker("no-model", "no-examples", output="never", **options)


# --- resuming ------------------------------------------------------------------------------------------------------

RESUMED = {"epochs": 3, "save_steps": 2, "logging_steps": 4}


MOMENTS = {
    "before any state": (Loop, "compute_step", 2),
    "in the middle of an epoch": (Loop, "compute_step", 6),
    "while the best state is written": (selection, "save_weights", 1),
    "before the folder gets its name": (artifacts.outputs, "_replace_folder", 1),
}


@pytest.fixture(scope="module")
def uninterrupted(tiny_model, tiny_collection, euro, tmp_path_factory):
    """The bytes of a training that was not killed."""
    output = tmp_path_factory.mktemp("uninterrupted") / "out"
    places = {"corpus": str(tiny_collection.corpus), "examples": euro["train"], "dev": euro["dev"]}
    train_reranker(tiny_model, **places, output=output, **QUICK | RESUMED)
    return bytes_of(output)


@forks
@pytest.mark.parametrize("moment", first_fast(MOMENTS))
def test_a_killed_training_goes_on_and_ends_with_the_same_bytes(quick, tmp_path, euro, uninterrupted, moment):
    output = tmp_path / "out"

    def killed():
        kill_at_call(*MOMENTS[moment])
        quick(output, dev=euro["dev"], **RESUMED)

    assert in_another_process(killed) == -signal.SIGKILL
    assert not output.exists()
    quick(output, dev=euro["dev"], resume=True, **RESUMED)
    assert bytes_of(output) == uninterrupted
    assert list(tmp_path.iterdir()) == [output]


def test_a_finished_training_is_not_done_again(quick, tmp_path, monkeypatch):
    returned = quick(tmp_path / "out")
    monkeypatch.setattr(Loop, "compute_step", None)
    assert quick(tmp_path / "out", resume=True) == json.loads(json.dumps(returned))
    with pytest.raises(ArtifactError, match="exists already"):
        quick(tmp_path / "out", resume=True, seed=1)


def test_an_interrupted_training_without_a_state_leaves_nothing(quick, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- applying ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tiny_collection, tmp_path_factory):
    """Twelve documents for each of three questions, and a queries file."""
    path = tmp_path_factory.mktemp("run") / "first.trec"
    ids = open_corpus(tiny_collection.corpus).ids()
    write_run(path, {f"q{row}-1": [(ids[(row + 5 * place) % 42], -place) for place in range(12)] for row in range(3)})
    return path


def run_pairs(run, collection, k):
    """(query id, document id) -> the texts of the best k of each query."""
    corpus = open_corpus(collection.corpus)
    texts = {}
    for line in collection.queries.read_text().splitlines():
        texts[json.loads(line)["_id"]] = json.loads(line)["text"]
    pairs = {}
    for query, hits in read_run(run).items():
        for document, _ in hits[:k]:
            passage = corpus.get(document)
            pairs[query, document] = (texts[query], f"{passage.title} {passage.text}")
    return pairs


def apply_to_run(trained, run, collection, output, **options):
    return rerank_run(trained, run=run, queries=collection.queries, corpus=collection.corpus, output=output, **options)


@pytest.mark.parametrize("k", [100, 7])
def test_a_run_comes_out_in_the_order_of_the_scores(trained, run, tiny_collection, tmp_path, k):
    settings = Settings(precision="fp32", window=5, batch_tokens=100)
    counts = apply_to_run(trained, run, tiny_collection, tmp_path / "out.trec", k=k, settings=settings)
    pairs = run_pairs(run, tiny_collection, k)
    expected = dict(zip(pairs, plain_scores(trained, pairs.values()), strict=True))
    found = read_run(tmp_path / "out.trec")
    assert counts["pairs"] == len(pairs) == sum(map(len, found.values()))
    for query, hits in found.items():
        assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
        for document, score in hits:
            assert score == pytest.approx(expected[query, document], abs=1e-4)
    assert list(tmp_path.iterdir()) == [tmp_path / "out.trec"]


def test_equal_scores_stay_in_their_order(trained, run, tiny_collection, tmp_path, monkeypatch):
    monkeypatch.setattr(CrossEncoder, "score", lambda self, pairs, **_: np.zeros(len(pairs), dtype=np.float32))
    apply_to_run(trained, run, tiny_collection, tmp_path / "out.trec")
    documents = [line.split()[2] for line in (tmp_path / "out.trec").read_text().splitlines()]
    assert documents == [document for hits in read_run(run).values() for document, _ in hits]


def test_examples_come_out_with_a_score_for_each_document(trained, euro, tiny_collection, tmp_path):
    settings = Settings(precision="fp32", window=4)
    corpus = open_corpus(tiny_collection.corpus)
    score_examples(
        trained,
        examples=euro["train"],
        corpus=tiny_collection.corpus,
        output=tmp_path / "scored.jsonl",
        settings=settings,
    )
    before, after = read_examples(euro["train"]).rows, read_examples(tmp_path / "scored.jsonl").rows
    assert [dataclasses.replace(row, teacher=None) for row in after] == before
    for row in after[:3]:
        documents = list(dict.fromkeys((*row.positives, *row.negatives)))
        assert list(row.teacher) == documents
        passages = [corpus.get(one) for one in documents]
        expected = plain_scores(trained, [(row.query, f"{one.title} {one.text}") for one in passages])
        assert list(row.teacher.values()) == pytest.approx(expected, abs=1e-4)


def test_the_size_of_windows_and_batches_changes_nothing_but_the_last_digits(trained, euro, tiny_collection, tmp_path):
    found = []
    for settings in (Settings(precision="fp32"), Settings(precision="fp32", window=3, batch_tokens=40)):
        arguments = {"examples": euro["train"], "corpus": tiny_collection.corpus, "output": tmp_path / "scored.jsonl"}
        score_examples(trained, **arguments, settings=settings)
        rows = read_examples(tmp_path / "scored.jsonl").rows
        found.append([score for row in rows for score in row.teacher.values()])
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@forks
@pytest.mark.parametrize("count", [1, 4])
def test_a_killed_scoring_goes_on_and_ends_with_the_same_bytes(trained, euro, tiny_collection, tmp_path, count):
    settings = Settings(precision="fp32", window=8)

    def score(name):
        arguments = {"examples": euro["train"], "corpus": tiny_collection.corpus, "output": tmp_path / name}
        score_examples(trained, **arguments, settings=settings)

    def killed():
        kill_at_call(CrossEncoder, "score", count)
        score("killed.jsonl")

    score("whole.jsonl")
    assert in_another_process(killed) == -signal.SIGKILL
    work = artifacts.partial_folder(tmp_path / "killed.jsonl")
    assert (work / "scores.f32").stat().st_size == 4 * 8 * (count - 1)
    # A window that was cut off is scored again.
    with (work / "scores.f32").open("ab") as stream:
        stream.write(b"cut off")
    scored = []
    with pytest.MonkeyPatch.context() as patch:
        original = CrossEncoder.score
        patch.setattr(
            CrossEncoder, "score", lambda self, pairs, **more: scored.append(1) or original(self, pairs, **more)
        )
        score("killed.jsonl")
    windows = math.ceil(sum(len(row.teacher) for row in read_examples(tmp_path / "whole.jsonl").rows) / 8)
    assert len(scored) == windows - count + 1
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not work.exists()


def flip(path):
    data = bytearray(path.read_bytes())
    data[4 * 8 + 5] ^= 1
    path.write_bytes(data)


@forks
@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("scores.f32", flip, "were changed after they were written: from pair 9 on they are scored again"),
        ("scores.f32", lambda path: path.write_bytes(path.read_bytes()[:-9]), ""),
        ("scores.f32", Path.unlink, ""),
        ("checksums.txt", lambda path: path.write_bytes(path.read_bytes()[:-9]), ""),
        ("checksums.txt", flip, "from pair 9 on they are scored again"),
    ],
)
def test_scores_that_were_changed_after_a_kill_are_computed_again(
    trained, euro, tiny_collection, tmp_path, capsys, name, change, told
):
    def score(name):
        arguments = {"examples": euro["train"], "corpus": tiny_collection.corpus, "output": tmp_path / name}
        score_examples(trained, **arguments, settings=Settings(precision="fp32", window=8))

    def killed():
        kill_at_call(CrossEncoder, "score", 4)
        score("killed.jsonl")

    score("whole.jsonl")
    assert in_another_process(killed) == -signal.SIGKILL
    change(artifacts.partial_folder(tmp_path / "killed.jsonl") / name)
    score("killed.jsonl")
    assert told in capsys.readouterr().err
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@forks
def test_scores_of_something_else_are_not_used(trained, euro, run, tiny_collection, tmp_path):
    output = tmp_path / "out"

    def killed():
        kill_at_call(rerank, "write_run", 1)
        apply_to_run(trained, run, tiny_collection, output)

    assert in_another_process(killed) == -signal.SIGKILL
    score_examples(trained, examples=euro["train"], corpus=tiny_collection.corpus, output=output)
    assert len(read_examples(output).rows) == 11
    assert list(tmp_path.iterdir()) == [output]


# --- the command line ----------------------------------------------------------------------------------------------


@pytest.mark.precision
def test_from_a_reranker_to_a_distilled_retriever(tmp_path, tiny_model, tiny_collection, euro, run):
    def succeed(*words):
        result = rkit(*words)
        assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
        return result.stdout

    corpus = ("--corpus", tiny_collection.corpus)
    train = ("rerank", "train", "--model", tiny_model, *corpus, "--examples", euro["train"], "--dev", euro["dev"])
    train += ("--epochs", 1, "--batch-size", 4, "--negatives", 3, "--learning-rate", 1e-3, "--max-length", 48)
    train += ("--loss", "pointwise", "--precision", "fp32", "--seed", 7, "--set", "logging_steps=1")
    shown = succeed(*train, "--output", tmp_path / "reranker")
    assert shown == f"{tmp_path / 'reranker'}: trained on 11 examples in 3 steps\n"
    options = artifacts.read_manifest(tmp_path / "reranker")["options"]["training"]
    assert (options["loss"], options["max_length"], options["seed"]) == ("pointwise", 48, 7)
    apply = ("rerank", "apply", tmp_path / "reranker", *corpus)
    queries = ("--queries", tiny_collection.queries)
    shown = succeed(*apply, "--run", run, *queries, "--k", 5, "--json", "--output", tmp_path / "second.trec")
    assert json.loads(shown) == {"output": str(tmp_path / "second.trec"), "queries": 3, "pairs": 15}
    shown = succeed(*apply, "--examples", euro["train"], "--output", tmp_path / "scored.jsonl")
    assert re.fullmatch(r".*scored\.jsonl: 11 examples, \d+ pairs scored\n", shown)
    distilled = ("train", "--model", tiny_model, *corpus, "--examples", tmp_path / "scored.jsonl", "--epochs", 1)
    succeed(*distilled, "--loss", "distill_kl", "--negatives", 3, "--output", tmp_path / "retriever")


def test_examples_without_negatives_are_dropped_and_counted(quick, tmp_path, euro):
    rows = read_examples(euro["train"]).rows
    rows[1] = dataclasses.replace(rows[1], negatives=())
    write_examples(tmp_path / "some.jsonl", rows)
    manifest = quick(tmp_path / "out", examples=str(tmp_path / "some.jsonl"), epochs=0)
    assert manifest["counts"] == {"examples": 10, "without_negatives": 1, "steps": 0}


@pytest.mark.parametrize("role", ["examples", "dev"])
def test_without_any_negative_nothing_is_trained(quick, tmp_path, euro, role):
    path = tmp_path / "none.jsonl"
    write_examples(path, [dataclasses.replace(row, negatives=()) for row in read_examples(euro["train"]).rows])
    with pytest.raises(InputError, match=r"none of the 11 examples .* has negatives.*rkit mine-negatives"):
        quick(tmp_path / "out", **{role: str(path)})
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "no-such/model"}, "cannot load the model 'no-such/model'"),
        ({"corpus": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"corpus": None}, "--corpus"),
        ({"max_length": 1000}, "max_length is 1000"),
        ({"precision": "fp16"}, "fp16 needs a GPU"),
        ({"batch_size": 0}, "batch_size"),
    ],
    ids=str,
)
def test_wrong_input_of_a_training_leaves_nothing(quick, tmp_path, changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        quick(tmp_path / "out", **changes)
    assert list(tmp_path.iterdir()) == []


@dataclasses.dataclass
class Place:
    """What wrong commands are made of."""

    folder: Path
    reranker: Path
    encoder: str
    run: Path
    examples: str
    collection: Any

    def write(self, text):
        (self.folder / "given").write_text(text)
        return self.folder / "given"

    def apply(self, *words, reranker=None, output="out"):
        corpus = ("--corpus", self.collection.corpus)
        return ("rerank", "apply", reranker or self.reranker, *corpus, "--output", self.folder / output, *words)

    def to_run(self, *words, **changes):
        return self.apply("--run", self.run, "--queries", self.collection.queries, *words, **changes)

    def to_examples(self, examples, *words):
        return self.apply("--examples", examples, *words)


@pytest.fixture
def place(tmp_path, trained, tiny_model, run, euro, tiny_collection):
    return Place(tmp_path, trained, tiny_model, run, euro["train"], tiny_collection)


ROW = '{"query_id": "q0-1", "query": "lima", "positives": ["c0"], "negatives": ["c1"]}\n'
# What is wrong: the command, and what it says.
WRONG = {
    "queries are missing": (
        lambda at: at.apply("--run", at.run, "--queries", at.write("q0-2\tlima\n")),
        "3 of its 3 queries, such as 'q0-1', are not among the 1 query",
    ),
    "an unknown document of a run": (
        lambda at: (
            *at.apply("--run", at.write("q0-1 Q0 c1 1 2 x\nq0-1 Q0 c99 2 1 x\n")),
            *("--queries", at.collection.queries),
        ),
        "given:2: unknown document id 'c99'; did you mean 'c",
    ),
    "an unknown document of examples": (
        lambda at: at.to_examples(at.write(ROW.replace("c1", "d1"))),
        "given:1: unknown document id 'd1'",
    ),
    "a file cut short": (lambda at: at.to_examples(at.write(ROW + ROW[:40])), "given:2: "),
    "examples without negatives": (lambda at: at.to_examples(at.collection.folder), "none of the 84 examples"),
    "an encoder": (lambda at: at.to_run(reranker=at.encoder), "is not a re-ranker"),
    "a length for ours": (lambda at: at.to_run("--max-length", 20), "drop --max-length"),
    "no run and no examples": (lambda at: at.apply(), "give either --run RUN"),
    "a run and examples": (lambda at: at.to_run("--examples", at.examples), "give either --run RUN"),
    "a run without queries": (lambda at: at.apply("--run", at.run), "--queries QUERIES"),
    "a depth of examples": (lambda at: at.to_examples(at.examples, "--k", 3), "--k goes with --run"),
    "queries of examples": (
        lambda at: at.to_examples(at.examples, "--queries", at.collection.queries),
        "--queries goes with --run",
    ),
    "an output that is read": (lambda at: at.to_run(output=at.run), "is the input too"),
    "an output that is a folder": (lambda at: at.to_run(output=""), "is a folder"),
    "an unknown option": (
        lambda at: (
            *("rerank", "train", "--model", at.encoder, "--examples", at.examples, "--output", at.folder / "out"),
            *("--set", "batchsize=3"),
        ),
        "did you mean 'batch_size'",
    ),
    "an unknown command": (lambda at: ("rerank", "aply"), "Did you mean 'apply'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_message_and_leaves_nothing(place, case):
    words, message = WRONG[case]
    result = rkit(*words(place))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert {path.name for path in place.folder.iterdir()} <= {"given"}


def test_a_folder_of_another_kind_is_no_reranker(tmp_path, run, tiny_collection):
    (tmp_path / "vectors").mkdir()
    artifacts.write_manifest(tmp_path / "vectors", "vectors", command="encode", options={})
    with pytest.raises(
        ArtifactError, match="is of the kind vectors, and should be a Hugging Face model or a re-ranker"
    ):
        apply_to_run(tmp_path / "vectors", run, tiny_collection, tmp_path / "out.trec")
    assert list(tmp_path.iterdir()) == [tmp_path / "vectors"]


# --- recipes -------------------------------------------------------------------------------------------------------

RECIPE = """
name: distilling
steps:
  - name: reranker
    command: rerank train
    with: {{model: {model}, corpus: {corpus}, examples: {examples}, loss: pointwise, epochs: 0, set: {{negatives: 3}}}}
    output: reranker
  - name: scored
    command: rerank apply
    with: {{reranker: "${{steps.reranker}}", corpus: {corpus}, examples: {examples}}}
    output: scored.jsonl
"""


@pytest.fixture
def recipe(tmp_path, tiny_model, tiny_collection, euro):
    text = RECIPE.format(model=tiny_model, corpus=tiny_collection.corpus, examples=euro["train"])
    (tmp_path / "recipe.yaml").write_text(text)
    return tmp_path / "recipe.yaml"


@pytest.mark.precision
def test_a_recipe_names_both_words_of_the_command(recipe, tmp_path):
    result = rkit("run", recipe, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    options = artifacts.read_manifest(tmp_path / "out" / "reranker")["options"]["training"]
    assert (options["loss"], options["negatives"]) == ("pointwise", 3)
    assert len(read_examples(tmp_path / "out" / "scored.jsonl").rows[0].teacher) == 5


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("rerank train", "rerank trian", "recipe.yaml:4: .*'rerank trian'; did you mean 'rerank train'"),
        ("rerank train", "rerank", "recipe.yaml:4: .*unknown command 'rerank'"),
        ("pointwise", "pairwise", "recipe.yaml:6: .*'pairwise' is not one of"),
        ("negatives: 3", "negatifs: 3", "recipe.yaml:6: .*did you mean 'negatives'"),
    ],
    ids=str,
)
def test_a_recipe_with_a_mistake_is_refused_before_it_runs(recipe, tmp_path, right, wrong, message):
    recipe.write_text(recipe.read_text().replace(right, wrong))
    result = rkit("run", recipe, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert re.search(message, result.stderr), result.stderr
