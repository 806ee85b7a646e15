"""`rkit rerank`: training a cross-encoder, scoring runs and examples, and resuming after a kill."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from statistics import fmean

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

import retrievalkit as rk
from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.contracts import Progress
from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import read_run, write_run
from retrievalkit.errors import InputError
from retrievalkit.models.cross_encoder import CrossEncoder
from retrievalkit.models.pretrained import quiet
from retrievalkit.search import pair_scoring
from retrievalkit.training.collective import GradientSum
from retrievalkit.training.options import RerankerOptions, TrainRerankerOptions
from retrievalkit.training.reranker import DevLists, RerankerTraining, listwise, pointwise
from retrievalkit.training.train_reranker import train_reranker
from trainings import log_of, quick_training

# Three steps per epoch.
QUICK = {"epochs": 2, "batch_size": 4, "negatives": 3, "learning_rate": 1e-2, "precision": "fp32", "logging_steps": 2}


@pytest.fixture(scope="session")
def euro(tiny_collection, tmp_path_factory):
    """Examples that a tiny model learns: a passage about the euro, and five about something else."""
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
    # A known positive among the negatives, and an example with fewer negatives than the loss draws.
    rows[0] = dataclasses.replace(rows[0], negatives=(with_euro[2], *rows[0].negatives[:2]))
    rows[2] = dataclasses.replace(rows[2], negatives=rows[2].negatives[:1], positives=(with_euro[2],))
    write_examples(folder / "train.jsonl", rows)
    write_examples(folder / "dev.jsonl", rows[3:7])
    return {name: str(folder / f"{name}.jsonl") for name in ("train", "dev")}


@pytest.fixture(scope="module")
def train(tiny_model, tiny_collection, euro):
    places = {"model": tiny_model, "corpus": str(tiny_collection.corpus), "examples": euro["train"]}
    return quick_training(train_reranker, QUICK, **places)


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "reranker"
    train(output, epochs=16)
    return output


def plain_scores(folder, pairs):
    with quiet():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        return [float(model(**tokenizer(*pair, truncation=True, return_tensors="pt")).logits[0, 0]) for pair in pairs]


def rkit(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


SCORES = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0])
LISTS = torch.tensor([[0, 1, 2], [4, 3, -1]])


# -log(e^2 / (e^2 + e^1 + e^0)) - log(e^3 / (e^3 + e^-1)), and the sum of -log sigmoid of +2, -1, -0, +3, -(-1).
BY_HAND = {
    listwise: math.log(1 + math.exp(-1) + math.exp(-2)) + math.log(1 + math.exp(-4)),
    pointwise: sum(math.log(1 + math.exp(-one)) for one in (2, -1, 0, 3, 1)),
}


@pytest.mark.parametrize("loss", [listwise, pointwise])
def test_the_loss_worked_out_by_hand_with_padding(loss):
    assert float(loss(SCORES, LISTS)) == pytest.approx(BY_HAND[loss], rel=1e-6)
    scores = SCORES.clone().requires_grad_()
    padded = torch.cat([LISTS, torch.full((2, 3), -1)], dim=1)
    assert torch.equal(loss(scores, padded), loss(scores, LISTS))
    loss(scores, padded).backward()
    assert scores.grad.isfinite().all()


@pytest.fixture
def step_of(tiny_model, tiny_collection, euro):
    """Creates a training step whose model is in float64, for tight tolerances, and has no dropout."""

    def step_of(**options):
        places = {"examples": euro["train"], "corpus": str(tiny_collection.corpus), "output": "never"}
        step = RerankerTraining(TrainRerankerOptions(tiny_model, **places, precision="fp32", negatives=3, **options))
        step.module.double().eval()
        return step

    return step_of


KEYS = [(0, position) for position in range(5)]


@pytest.mark.parametrize(
    ("loss", "false_negatives"), [("listwise", "mask"), ("pointwise", "mask"), ("pointwise", "keep")]
)
def test_the_loss_of_a_step_equals_that_of_pairs_scored_one_by_one(step_of, tiny_collection, loss, false_negatives):
    made = step_of(loss=loss, false_negatives=false_negatives)
    model, corpus = made.module, open_corpus(tiny_collection.corpus)
    total = count = 0.0
    for epoch, position in KEYS:
        draw = made.samples.draw(position, epoch)
        # The positives of all examples with the query text are known positives.
        known = {one for row in made.samples.examples if row.query == draw.example.query for one in row.positives}
        negatives = [one for one in draw.negatives if false_negatives == "keep" or one not in known]
        passages = [corpus.get(one) for one in (draw.positive, *negatives)]
        pairs = [model.tokenize([draw.example.query], [(one.title, one.text)]) for one in passages]
        with torch.no_grad():
            scores = [float(model(model.collate(pair))) for pair in pairs]
        exponentials = [math.exp(one) for one in scores]
        if loss == "listwise":
            total -= math.log(exponentials[0] / sum(exponentials))
            count += 1
        else:
            total += sum(math.log(1 + math.exp(one if row else -one)) for row, one in enumerate(scores))
            count += len(scores)
    (part,) = made.collate(KEYS).parts
    assert part.size == count
    assert float(made.loss(part, Progress(0, 0.0, 1)).total.detach()) == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize("options", [{"micro_batch_size": 2}, {"batch_tokens": 50}, {"micro_batch_size": 1}], ids=str)
@pytest.mark.parametrize("loss", ["listwise", "pointwise"])
def test_the_size_of_a_micro_batch_changes_neither_loss_nor_gradient(step_of, loss, options):
    """Lists differ in length, so a pointwise loss has to count pairs, not queries."""
    values, gradients = [], []
    for made in (step_of(loss=loss), step_of(loss=loss, **options)):
        logged = made.run(made.collate(KEYS), Progress(0, 0.0, 1), torch.Tensor.backward, GradientSum([]))
        values.append(logged["loss"])
        gradients.append({name: one.grad for name, one in made.module.named_parameters() if one.grad is not None})
    torch.testing.assert_close(*values)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        # Scores are computed in float32.
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-8)


def test_a_reranker_learns(trained, euro, tiny_collection):
    losses = [line["loss"] for line in log_of(trained) if "loss" in line]
    assert losses[-1] < losses[0] / 2
    dev = DevLists(read_examples(euro["dev"]).rows, open_corpus(tiny_collection.corpus).get)
    assert fmean(dev.measure(CrossEncoder.load(trained), "fp32")["nDCG@10"]) > 0.8


def test_known_positives_and_their_copies_are_not_negatives_of_dev_questions(trained, euro, tiny_collection):
    """Of all examples of a question, in any spelling: such negatives change no figure of the question."""
    passages = {one.id: one for one in open_corpus(tiny_collection.corpus)}
    first, *others = read_examples(euro["dev"]).rows
    same = next(row for row in others if row.query == first.query and not {*row.positives} & {*first.positives})
    passages["copy"] = Passage("copy", "", f"{passages[first.positives[0]].text.upper()}\n")
    spoiled = dataclasses.replace(first, negatives=("copy", *same.positives, *first.negatives))
    respelled = dataclasses.replace(same, query=f" {same.query.title()}")
    lists = [first, same], [spoiled, respelled]
    model = CrossEncoder.load(trained)
    plain, other = (DevLists(rows, passages.__getitem__).measure(model, "fp32") for rows in lists)
    assert {name: values[0] for name, values in plain.items()} == {name: values[0] for name, values in other.items()}


def test_the_manifest_records_the_training(train, tmp_path, euro, tiny_model):
    returned = train(tmp_path / "out", dev=euro["dev"])
    manifest = storage.read_manifest(tmp_path / "out", "reranker")
    assert manifest == json.loads(json.dumps(returned))
    assert manifest["counts"] == {"examples": 11, "without_negatives": 0, "steps": 6}
    assert manifest["options"] == {"model": tiny_model, "training": dataclasses.asdict(RerankerOptions(**QUICK))}
    assert manifest["precision"] == "fp32"
    assert set(manifest["inputs"]) == {"model", "examples", "corpus", "dev"}
    assert manifest["fingerprint"] == CrossEncoder.load(tmp_path / "out").fingerprint
    assert "listwise, 3 negatives" in (tmp_path / "out" / "README.md").read_text()
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_the_best_state_on_the_dev_queries_is_kept(train, tmp_path, euro, monkeypatch):
    states, values = [], [0.1, 0.2, 0.4, 0.3, 0.2, 0.2]

    def measure(self, model, precision):
        states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return {"nDCG@10": [values[len(states) - 1]], "RR@10": [0.0]}

    monkeypatch.setattr(DevLists, "measure", measure)
    train(tmp_path / "out", dev=euro["dev"], epochs=3)
    kept = CrossEncoder.create(tmp_path / "out").state_dict()
    same = [all(torch.equal(kept[name], tensor) for name, tensor in state.items()) for state in states]
    assert same == [False, False, True, False, False, False]
    selected = storage.read_manifest(tmp_path / "out")["selection"]
    assert selected == {"epoch": pytest.approx(4 / 3), "measure": "nDCG@10", "value": 0.4}


@pytest.fixture(scope="module")
def run(tiny_collection, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "first.trec"
    ids = open_corpus(tiny_collection.corpus).ids()
    write_run(path, {f"q{row}-1": [(ids[(row + 5 * place) % 42], -place) for place in range(12)] for row in range(3)})
    return path


@pytest.fixture
def apply(trained, run, euro, tiny_collection, tmp_path, monkeypatch):
    monkeypatch.setattr(pair_scoring, "WINDOW", 5)

    def apply(name, *, of="run", reranker=trained, **options):
        given = {"examples": euro["train"]} if of == "examples" else {"run": run, "queries": tiny_collection.queries}
        return rk.rerank(reranker, corpus=tiny_collection.corpus, output=tmp_path / name, **given, **options)

    return apply


@pytest.mark.parametrize("k", [100, 7])
def test_a_run_is_ordered_by_the_scores(trained, apply, run, tiny_collection, tmp_path, k):
    found = apply("out.trec", k=k, batch_tokens=100)
    corpus = open_corpus(tiny_collection.corpus)
    texts = {one.id: one.text for one in read_queries(tiny_collection.queries)}
    pairs = {
        (query, document): (texts[query], f"{corpus.get(document).title} {corpus.get(document).text}")
        for query, hits in read_run(run).items()
        for document, _ in hits[:k]
    }
    expected = dict(zip(pairs, plain_scores(trained, pairs.values()), strict=True))
    assert found.report["pairs"] == len(pairs) == sum(map(len, found.values()))
    assert found == rk.Run.load(tmp_path / "out.trec", ties="run")
    places = (tiny_collection.queries, tiny_collection.corpus)
    assert rk.rerank(trained, rk.Run(read_run(run)), *places, k=k, batch_tokens=100) == found
    for query, hits in found.items():
        assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
        for document, score in hits:
            assert score == pytest.approx(expected[query, document], abs=1e-4)
    assert list(tmp_path.iterdir()) == [tmp_path / "out.trec"]


def test_documents_with_equal_scores_keep_their_order(apply, run, monkeypatch):
    monkeypatch.setattr(CrossEncoder, "score", lambda self, pairs, **_: np.zeros(len(pairs), dtype=np.float32))
    order = [
        [[document for document, _ in hits] for hits in one.values()] for one in (apply("out.trec"), read_run(run))
    ]
    assert order[0] == order[1]


def test_examples_get_a_score_for_each_document(trained, apply, euro, tiny_collection):
    corpus, after = open_corpus(tiny_collection.corpus), apply("o", of="examples")
    assert [dataclasses.replace(row, teacher=None) for row in after] == read_examples(euro["train"]).rows
    for row in after[:3]:
        documents = list(dict.fromkeys((*row.positives, *row.negatives)))
        assert list(row.teacher) == documents
        passages = [corpus.get(one) for one in documents]
        expected = plain_scores(trained, [(row.query, f"{one.title} {one.text}") for one in passages])
        assert list(row.teacher.values()) == pytest.approx(expected, abs=1e-4)


def test_the_size_of_windows_and_batches_changes_only_the_last_digits(apply, monkeypatch):
    found = []
    for window, tokens in ((4096, None), (3, 40)):
        monkeypatch.setattr(pair_scoring, "WINDOW", window)
        rows = apply("scored.jsonl", of="examples", batch_tokens=tokens)
        found.append([score for row in rows for score in row.teacher.values()])
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@forks
@pytest.mark.parametrize(("count", "tail", "again"), [(1, b"cut off", 0), (4, b"cut off", 0), (4, -9, 1)])
def test_killed_scoring_resumes_after_its_complete_windows(apply, tmp_path, monkeypatch, count, tail, again):
    """A truncated window is scored again; the output has the same bytes."""

    def killed():
        kill_at_call(CrossEncoder, "score", count)
        apply("killed.jsonl", of="examples")

    whole = apply("whole.jsonl", of="examples")
    assert in_another_process(killed) == -signal.SIGKILL
    work = storage.partial_folder(tmp_path / "killed.jsonl")
    kept = (work / "scores.f32").read_bytes()
    assert len(kept) == 4 * 5 * (count - 1)
    (work / "scores.f32").write_bytes(kept + tail if isinstance(tail, bytes) else kept[:tail])
    scored, score = [], CrossEncoder.score
    monkeypatch.setattr(CrossEncoder, "score", lambda *args, **more: scored.append(1) or score(*args, **more))
    apply("killed.jsonl", of="examples")
    assert len(scored) == math.ceil(whole.report["pairs"] / 5) - (count - 1) + again
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not work.exists()


@forks
def test_scores_of_another_input_are_not_reused(apply, tmp_path):
    def killed():
        kill_at_call(pair_scoring, "write_run", 1)
        apply("out")

    assert in_another_process(killed) == -signal.SIGKILL
    assert len(apply("out", of="examples")) == 11
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


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
    assert "trained on 11 examples in 3 steps" in succeed(*train, "--output", tmp_path / "reranker")
    options = storage.read_manifest(tmp_path / "reranker")["options"]["training"]
    assert (options["loss"], options["max_length"], options["seed"]) == ("pointwise", 48, 7)
    apply = ("rerank", "apply", tmp_path / "reranker", *corpus)
    queries = ("--queries", tiny_collection.queries)
    shown = succeed(*apply, "--run", run, *queries, "--k", 5, "--json", "--output", tmp_path / "second.trec")
    assert json.loads(shown) == {"output": str(tmp_path / "second.trec"), "queries": 3, "pairs": 15}
    succeed(*apply, "--examples", euro["train"], "--output", tmp_path / "scored.jsonl")
    distilled = ("train", "--model", tiny_model, *corpus, "--examples", tmp_path / "scored.jsonl", "--epochs", 1)
    succeed(*distilled, "--loss", "distill_kl", "--negatives", 3, "--output", tmp_path / "retriever")


@pytest.mark.parametrize("role", ["examples", "dev"])
def test_examples_without_negatives_are_refused(train, tmp_path, euro, role):
    path = tmp_path / "none.jsonl"
    write_examples(path, [dataclasses.replace(row, negatives=()) for row in read_examples(euro["train"]).rows])
    with pytest.raises(InputError, match=r"none of the 11 examples .* has negatives.*rkit mine-negatives"):
        train(tmp_path / "out", **{role: str(path)})
    assert list(tmp_path.iterdir()) == [path]


ROW = '{"query_id": "q0-1", "query": "lima", "positives": ["c0"], "negatives": ["c1"]}\n'
HITS = "q0-1 Q0 c1 1 2 x\nq0-1 Q0 c99 2 1 x\n"
RUN = "--run RUN --queries QUERIES"


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        ("--run RUN --queries GIVEN", "q0-2\tlima\n", "3 of its 3 queries, such as 'q0-1', are not among the 1 query"),
        ("--run GIVEN --queries QUERIES", HITS, "given:2: unknown document id 'c99'; did you mean 'c"),
        ("--examples GIVEN", ROW.replace("c1", "d1"), "given:1: unknown document id 'd1'"),
        ("--examples GIVEN", ROW + ROW[:40], "given:2: "),
        ("--examples FOLDER", "", "none of the 84 examples"),
        (f"{RUN} --max-length 20", "", "drop --max-length"),
        (f"{RUN} --precision int8", "", "int8"),
        ("", "", "either a run with its queries or examples"),
        (f"{RUN} --examples EXAMPLES", "", "either a run with its queries or examples"),
        ("--run RUN", "", "queries"),
        ("--examples EXAMPLES --k 3", "", "k only applies to a run"),
        ("--examples EXAMPLES --queries QUERIES", "", "queries only applies to a run"),
        (f"{RUN} --output RUN", "", "is also the input"),
        (f"{RUN} --output .", "", "is a folder"),
    ],
)
def test_wrong_input_is_one_message_and_leaves_nothing(
    trained, run, euro, tiny_collection, tmp_path, monkeypatch, words, given, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given").write_text(given)
    places = {"RUN": run, "QUERIES": tiny_collection.queries, "EXAMPLES": euro["train"], "GIVEN": "given"}
    places |= {"FOLDER": tiny_collection.folder}
    output = () if "--output" in words else ("--output", "out")
    shown = [places.get(word, word) for word in words.split()]
    result = rkit("rerank", "apply", trained, "--corpus", tiny_collection.corpus, *output, *shown)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == [tmp_path / "given"]
