"""What users do wrong ends in one message that names it, exit code 2, and nothing left behind, in every command."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.data.runs import write_run
from retrievalkit.models.cross_encoder import CrossEncoder
from retrievalkit.models.retriever import Retriever

MISTAKES = {
    "convert {model} out.jsonl": "the folder contains a model, not data",
    "convert {corpus} out --kind corpsu": "is not one of",
    "convert {corpus} checkpoint --kind corpus": "'checkpoint' exists already. Choose another name, or remove it",
    "convert out.jsonl {corpus}": "SOURCE 'out.jsonl' does not exist, and OUTPUT '{corpus}' is a corpus. Swap them",
    "convert empty.jsonl out.jsonl": "the file is empty",
    "convert {corpus} out.tsv --kind corpus --form trec": "form is for runs and qrels",
    "encode nothere {corpus} -o out": "cannot load the model 'nothere'",
    "encode {model} nothere.jsonl -o out": "'nothere.jsonl' does not exist",
    "encode {model} {qrels} -o out": "is a file of judgements (qrels), but TEXTS should be a corpus or",
    "encode {corpus} {model} -o out": "is a corpus, and TEXTS '{model}' is a model. Swap them",
    "encode {corpus} {queries} -o out": "is a corpus, but MODEL should be a checkpoint (rkit train) or a model",
    "encode {model} notes -o out": "give 'documents:notes'",
    "index notes -o out": "give 'documents:notes'",
    "encode {model} {corpus} -o out --batch-tokens 0": "greater than or equal to 1",
    "encode {model} {corpus} -o out --set pooler.normalise=true": "did you mean 'normalize'?",
    "encode reranker {corpus} -o out": "'reranker' is a re-ranker, which scores pairs",
    "encode vectors {corpus} -o out": "'vectors' holds vectors, not a model",
    "index {corpus} --add index": "is a corpus, and --add 'index' is an index. Swap them",
    "index run.trec -o out": "'run.trec' is a run, but SOURCE should be a corpus",
    "index checkpoint -o out": "'checkpoint' is a checkpoint. Encode a corpus",
    "index vectors -o out --indexer falt": "did you mean 'flat'?",
    "index vectors -o out --check-k 3": "Add check",
    "train --model checkpoint --pooler mean --examples examples.jsonl --corpus {corpus} -o out": (
        "start from its encoder alone: --model checkpoint/encoder"
    ),
    "train --model {model} --examples {corpus} --corpus examples.jsonl -o out": "file of training examples. Swap them",
    "train --model {model} --examples examples.jsonl -o out": "Give the corpus: --corpus",
    "train --model {model} --examples examples.jsonl --corpus {corpus} -o out --seed 4294967296": (
        "equal to 4294967295"
    ),
    "train --model {model} --examples examples.jsonl --corpus {corpus} -o out --epochs 1e300": "equal to 1000000",
    "train --model {model} --examples examples.jsonl --corpus {corpus} -o out --learning-rate inf": "finite number",
    "pretrain --pretrainer mlm --model checkpoint --corpus {corpus} -o out": "Use its encoder: 'checkpoint/encoder'",
    "pretrain --pretrainer nope --model {model} --corpus {corpus} -o out": "unknown pretrainer 'nope'",
    "rerank apply checkpoint --run run.trec --queries {queries} --corpus {corpus} -o out": "is a retriever (rkit",
    "rerank apply {model} --run run.trec --queries {queries} --corpus {corpus} -o out": "is not a re-ranker",
    "rerank apply reranker --run {qrels} --queries {queries} --corpus {corpus} -o out": "(qrels), but --run should be",
    "rerank apply reranker --run run.trec --queries {corpus} --corpus {queries} -o out": "Swap them",
    "search {corpus} --queries {queries} -o out": "is a corpus, but INDEX should be an index (rkit index) or a run",
    "search run.trec other.trec --queries {queries} --split test -o out": "Use it with a folder of queries",
    "mine-negatives --from {corpus} --examples examples.jsonl --corpus {corpus} -o out": "is a corpus, but --from",
    "evaluate run.trec --qrels run.trec": "'run.trec' is a run, but --qrels should be a file of judgements",
    "evaluate run.trec {qrels}": "is a file of judgements (qrels). Give it as --qrels",
    "rerank apply reranker run.trec --queries {queries} --corpus {corpus} -o out": "is a run. Give it as --run",
    "search index 'a question of words'": "Give a text to search for as --query",
    "evaluate run.trec --qrels {qrels} --metrics nDCG@0": "has cutoff 0",
    "evaluate run.trec --qrels {qrels} --split dev": "split has no effect here",
    "compare run.trec run.trec --qrels {qrels} -o out": "a run is listed twice",
    "compare run.trec other.trec --qrels {qrels} --confidence nan -o out": "confidence cannot be 'nan'",
    "train {train} --examples broken.jsonl": "broken.jsonl:1",
    "train {train} --examples fields.jsonl": "fields.jsonl:1",
    "train {train} --examples unknown.jsonl": "unknown.jsonl:1: unknown document id 'c99'",
    "train {train} --examples examples.jsonl --pooler self_contrastve": "did you mean 'self_contrastive'",
    "train {train} --examples examples.jsonl --set pooler.layer=last": "option 'layer'",
    "train {train} --examples examples.jsonl --pooler multi_layer --set pooler.layers=9": "layer 9",
    "train {train} --examples examples.jsonl --set epochs": "epochs",
    "index empty.jsonl --indexer bm25 -o out": "empty.jsonl",
    "index twice.jsonl --indexer bm25 -o out": "twice.jsonl:2",
    "index latin.jsonl --indexer bm25 -o out": "latin.jsonl:1",
    "encode checkpoint {corpus} --pooler mean -o out": "drop --pooler",
    "evaluate run.trec --qrels {qrels} --metrics nDGC@10": "nDCG",
    "evaluate run.trec": "qrels",
    "mine-negatives --from run.trec --examples examples.jsonl --corpus {corpus} -o out --set x=1": "'x'",
    "evaluate run.trec --qrels x --qrels y": "--qrels accepts one value, but 'x' and 'y' were given",
    "serch": "Did you mean 'search'",
    "plugins show claps": "did you mean 'cls'",
    "run quickstrt -o out": "did you mean 'quickstart'",
    "run nothere -o out": "unknown recipe 'nothere'",
    "quickstart --corpus {corpus} -o out": "Your own data needs all four",
}

BROUGHT = {"bm25": "retrievalkit_pyserini", "self_contrast": "retrievalkit_mlr", "multi_layer": "retrievalkit_mlr"}


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model, tiny_collection):
    folder = tmp_path_factory.mktemp("mistakes")
    texts = {
        "empty.jsonl": "",
        "broken.jsonl": '{"query_id": "1", "query": ',
        "fields.jsonl": '{"question": "1"}',
        "unknown.jsonl": '{"query_id": "1", "query": "q", "positives": ["c1"], "negatives": ["c99"]}',
        "twice.jsonl": '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "latin.jsonl").write_bytes(b'{"_id": "a", "text": "caf\xe9"}\n')
    example = {"query_id": "q0-0", "query": "peru", "positives": ["c0"], "negatives": []}
    (folder / "examples.jsonl").write_text(json.dumps(example) + "\n")
    for name, document in (("run", "c0"), ("other", "c1")):
        write_run(folder / f"{name}.trec", {"q0-0": [(document, 1.0)]})
    for name in ("checkpoint", "reranker"):
        (folder / name).mkdir()
    Retriever.create(tiny_model).save(folder / "checkpoint")
    CrossEncoder.create(tiny_model).save(folder / "reranker")
    for kind in ("checkpoint", "reranker", "vectors", "index"):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / "manifest.json").write_text(json.dumps({"kind": kind}))
    (folder / "notes").mkdir()
    (folder / "notes" / "one.md").write_text("# Peru\n\nLima is its capital.\n")
    return folder


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_ends_in_one_message(line, place, tiny_model, tiny_collection, monkeypatch):
    for name in (package for word, package in BROUGHT.items() if word in line):
        pytest.importorskip(name)
    monkeypatch.chdir(place)
    files = {name: getattr(tiny_collection, name) for name in ("corpus", "queries", "qrels")} | {"model": tiny_model}
    files["train"] = f"--model {tiny_model} --corpus {tiny_collection.corpus} -o out"
    before = sorted(place.rglob("*"))
    result = CliRunner().invoke(main, shlex.split(line.format(**files)))
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (2, "")
    said = [one for one in result.stderr.splitlines() if one.strip() and not one.startswith(("Usage:", "Try "))]
    assert len(said) == 1
    assert said[0].startswith("Error: ")
    assert MISTAKES[line].format(**files) in said[0]
    assert sorted(place.rglob("*")) == before


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(registry, "plugins", lambda: 1 / 0)
    assert isinstance(CliRunner().invoke(main, ["plugins", "list"]).exception, ZeroDivisionError)
