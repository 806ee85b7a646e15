"""What Python gives is what the command line writes: the same vectors, runs, figures and examples."""

from __future__ import annotations

import json

import numpy as np
import pytest

import retrievalkit as rk
from retrievalkit.data.vectors import VectorStore

pytestmark = pytest.mark.precision

MODEL = ("--pooler", "mean")


@pytest.fixture(scope="module")
def made(tmp_path_factory, command, tiny_model, tiny_collection):
    """Vectors, an index, a run and mined examples of the command line."""
    folder = tmp_path_factory.mktemp("commands")
    command("encode", tiny_model, tiny_collection.corpus, *MODEL, "--output", folder / "vectors")
    command("index", folder / "vectors", "--output", folder / "dense")
    command("search", folder / "dense", "--queries", tiny_collection.queries, "--k", 20, "--output", folder / "a.trec")
    words = ("--from", folder / "a.trec", "--corpus", tiny_collection.corpus, "--negatives", 3)
    command("mine-negatives", *words, "--examples", tiny_collection.folder, "--output", folder / "mined.jsonl")
    return folder


def test_vectors(made, model, passages, tiny_collection, command, tmp_path):
    """Of dicts, of the file, in a folder; and of queries."""
    stored = VectorStore(made / "vectors")
    for texts in (passages, tiny_collection.corpus):
        encoded = model.encode_documents(texts)
        assert list(encoded.ids) == list(stored.ids)
        np.testing.assert_array_equal(encoded.to_numpy(), np.load(made / "vectors" / "vectors-00000.npy"))
    folder = model.encode_documents(tiny_collection.corpus, output=tmp_path / "vectors")
    for name in ("ids.txt", "vectors-00000.npy"):
        assert (folder / name).read_bytes() == (made / "vectors" / name).read_bytes()
    words = (model.source, tiny_collection.queries, *MODEL, "--side", "query", "--output", tmp_path / "queries")
    command("encode", *words)
    asked = model.encode_queries(tiny_collection.queries)
    np.testing.assert_array_equal(np.asarray(asked), np.load(tmp_path / "queries" / "vectors-00000.npy"))


def test_runs(made, dense, queries, tiny_collection, tmp_path):
    """Of an index that was built here of passages in memory, and of one of the command line."""
    for index, asked in ((dense, queries), (rk.Index.open(made / "dense"), tiny_collection.queries)):
        index.search(asked, k=20).save(tmp_path / "run")
        assert (tmp_path / "run").read_bytes() == (made / "a.trec").read_bytes()


def test_an_index_of_a_file_has_the_same_bytes(made, model, tiny_collection, tmp_path):
    index = rk.Index.build(tiny_collection.corpus, model, tmp_path / "dense", vectors=tmp_path / "vectors")
    for name in ("ids.txt", "vectors-00000.npy"):
        assert (index.folder / "vectors" / name).read_bytes() == (made / "dense" / "vectors" / name).read_bytes()
    assert index.manifest["corpus"]["path"] == str(tiny_collection.corpus)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_hits_are_those_that_are_printed(made, command):
    """Titles, snippets and reasons too."""
    printed = json.loads(command("search", made / "dense", "--query", "the capital of peru", "--k", 3, "--json"))
    found = rk.Index.open(made / "dense").search("the capital of peru", k=3)
    for hit, shown in zip(found, printed["hits"], strict=True):
        assert (hit.rank, hit.id, hit.title, hit.snippet) == tuple(
            shown[one] for one in ("rank", "id", "title", "snippet")
        )
        assert hit.score == pytest.approx(shown["score"])


@pytest.mark.parametrize(
    "options",
    [{"fusion": "rrf", "rrf_k": 10}, {"fusion": "linear", "weights": [0.3, 0.7], "normalization": "min_max"}],
)
def test_fused_runs(options, dense, late, command, tiny_collection, tmp_path):
    rk.Hybrid([dense, late], depth=30, **options).search(tiny_collection.queries, k=10).save(tmp_path / "here")
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    words = [",".join(map(str, word)) if isinstance(word, list) else word for word in words]
    places = (dense.folder, late.folder, "--queries", tiny_collection.queries, "--k", 10, "--depth", 30)
    command("search", *places, *words, "--output", tmp_path / "there")
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


def test_tuned_weights(dense, late, command, tiny_collection, tmp_path):
    """And the file of weights is read by either side."""
    train = tiny_collection.folder / "qrels" / "train.tsv"
    tuned = rk.Hybrid([dense, late], fusion="linear").tune(train, tiny_collection.queries, metric="RR@10", k=20)
    tuned.save_weights(tmp_path / "here.json")
    words = ("--tune", train, "--tune-queries", tiny_collection.queries, "--tune-metric", "RR@10", "--k", 20)
    command("search", dense.folder, late.folder, *words, "--output", tmp_path / "there.json")
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    again = rk.Hybrid([dense.folder, late.folder], weights=tmp_path / "there.json")
    assert again.fusion == tuned.fusion
    assert again.search("peru", k=3) == tuned.search("peru", k=3)


def test_figures(made, command, tiny_collection, queries):
    """By judgements and by answers, with conventions; compared too."""
    run = rk.Run.load(made / "a.trec")
    words = ("evaluate", made / "a.trec", "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10 R@5", "--over", "run")
    there = json.loads(command(*words, "--per-query", "--json"))
    here = run.evaluate(tiny_collection.qrels, ["nDCG@10", "R@5"], over="run")
    assert (dict(here), here.per_query) == (there["metrics"], there["per_query"])
    words = ("evaluate", made / "a.trec", "--answers", tiny_collection.queries, "--corpus", tiny_collection.corpus)
    there = json.loads(command(*words, "--top", "1 5", "--json"))
    rows = [json.loads(line) for line in tiny_collection.queries.read_text().splitlines()]
    here = run.evaluate(answers=rows, corpus=tiny_collection.corpus, top=[1, 5])
    assert dict(here) == there["metrics"]
    other = rk.Run({query: dict(hits[1:]) for query, hits in run.items()}, "b")
    other.save(made / "b.trec")
    words = ("compare", made / "a.trec", made / "b.trec", "--qrels", tiny_collection.qrels, "--seed", 3, "--json")
    there = json.loads(command(*words))
    here = rk.compare([run, other], tiny_collection.qrels, seed=3)
    assert json.loads(json.dumps(here.as_json())) == there


def test_mined_examples(made, tiny_collection, passages, tmp_path):
    """Of a run in memory, into a file or into memory."""
    run = rk.Run.load(made / "a.trec")
    place = tmp_path / "mined.jsonl"
    found = rk.mine_negatives(run, tiny_collection.folder, corpus=passages, negatives=3, output=place)
    assert place.read_bytes() == (made / "mined.jsonl").read_bytes()
    assert (tmp_path / "mined.jsonl.audit.html").is_file()
    again = rk.mine_negatives(run, tiny_collection.folder, corpus=tiny_collection.corpus, negatives=3)
    assert list(again) == list(found)
    assert again.report["counts"] == found.report["counts"]


def test_checkpoints_and_scores(made, command, tiny_model, tiny_collection, passages, tmp_path):
    """A training, a re-ranker, and its scores of a run and of examples, of data in memory."""
    examples = rk.Examples(made / "mined.jsonl", tiny_collection.corpus)
    train = {"epochs": 1, "batch_size": 16, "pooler": "cls", "warmup_ratio": 0.2}
    here = rk.train(tiny_model, list(examples), corpus=passages, output=tmp_path / "here", **train)
    words = ("--model", tiny_model, "--examples", made / "mined.jsonl", "--corpus", tiny_collection.corpus)
    flags = ("--epochs", 1, "--batch-size", 16, "--pooler", "cls", "--set", "warmup_ratio=0.2")
    command("train", *words, *flags, "--output", tmp_path / "there")
    for name in ("encoder/model.safetensors", "retrievalkit.json"):
        assert (here.path / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    reranker = rk.train_reranker(tiny_model, examples, output=tmp_path / "reranker", epochs=0.2, batch_size=16)
    command("rerank", "train", *words, "--epochs", 0.2, "--batch-size", 16, "--output", tmp_path / "reranker2")
    assert (reranker.path / "model.safetensors").read_bytes() == (tmp_path / "reranker2/model.safetensors").read_bytes()
    run = rk.Run.load(made / "a.trec")
    rk.rerank(reranker, run, tiny_collection.queries, passages, k=2).save(tmp_path / "here.trec")
    reads = ("--corpus", tiny_collection.corpus, "--output")
    words = ("--run", made / "a.trec", "--queries", tiny_collection.queries, "--k", 2, *reads, tmp_path / "there.trec")
    command("rerank", "apply", reranker, *words)
    assert (tmp_path / "here.trec").read_bytes() == (tmp_path / "there.trec").read_bytes()
    rk.rerank(reranker, examples=examples).save(tmp_path / "here.jsonl")
    command("rerank", "apply", reranker, "--examples", made / "mined.jsonl", *reads, tmp_path / "there.jsonl")
    assert (tmp_path / "here.jsonl").read_bytes() == (tmp_path / "there.jsonl").read_bytes()


def test_pretraining_conversion_and_recipes(tiny_model, tiny_collection, passages, command, tmp_path):
    """The rest of the commands."""
    made = rk.pretrain(tiny_model, passages, pretrainer="mlm", steps=1, batch_size=8, output=tmp_path / "pretrained")
    assert made.manifest["counts"]["steps"] == 1
    assert rk.convert(passages, tmp_path / "corpus.jsonl", kind="corpus") == {"passages": 42}
    assert rk.convert(tiny_collection.qrels, tmp_path / "qrels.trec", form="trec") == {"judgements": 42}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: tiny\nvalues: {corpus: null}\nsteps:\n- name: all\n  command: convert\n  output: all.jsonl\n"
        "  with: {source: '${corpus}', kind: corpus}\n"
    )
    steps = rk.run(recipe, tmp_path / "out", set={"corpus": str(tiny_collection.corpus)})
    assert [step.name for step in steps.steps] == ["all"]
    assert (tmp_path / "out" / "all.jsonl").is_file()
