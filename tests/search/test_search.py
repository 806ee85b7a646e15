"""Search: the encoder of each index, fusion, refused options, and printed hits."""

from __future__ import annotations

import json
import shlex
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch
from click.testing import CliRunner

from fused_runs import fuse, search
from places import ROOT
from retrievalkit import registry, storage
from retrievalkit.cli import main
from retrievalkit.contracts import Representation
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import write_run
from retrievalkit.data.vectors import VectorWriter
from retrievalkit.errors import ArtifactError, OptionError, RetrievalkitError, UnsupportedError
from retrievalkit.evaluation.run import Run
from retrievalkit.indexing import open_indexes
from retrievalkit.indexing.build import build_index
from retrievalkit.models import retriever
from retrievalkit.search import searcher

TEXTS = {f"t{row}": f"text number {row}" for row in range(30)}


def vector(text, salt):
    """Return a vector that depends only on the text and the model."""
    return np.random.default_rng(zlib.crc32(f"{salt}{text}".encode())).standard_normal(6).astype(np.float32)


class FakeRetriever:
    """Encodes each text as its own random numbers; a checkpoint is a folder with a name in retrievalkit.json."""

    backend = "torch"
    loads = 0
    encoded = 0

    def __init__(self, salt, fingerprint):
        self.salt, self.fingerprint = salt, fingerprint

    @classmethod
    def load(cls, folder, device=None, *, backend=None, encoder_options=None):
        cls.loads += 1
        salt = (Path(folder) / "retrievalkit.json").read_text()
        return cls(salt, storage.read_manifest(folder)["fingerprint"])

    @classmethod
    def from_description(cls, description, device=None, *, backend=None, encoder_options=None):
        salt = description["model"] + description["pooler"]["name"]
        return cls(salt, storage.fingerprint_value(salt))

    def encode(self, texts, side, *, precision="auto"):
        type(self).encoded += len(texts)
        assert side == "query"
        assert all(text.title == "" for text in texts)
        return Representation(torch.from_numpy(np.stack([vector(text.body, self.salt) for text in texts]))[:, None])


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setattr(retriever, "Retriever", FakeRetriever)
    monkeypatch.setattr(FakeRetriever, "loads", 0)
    monkeypatch.setattr(FakeRetriever, "encoded", 0)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(ROOT / "tests" / "overlap_plugin.py"))
    monkeypatch.setenv("RKIT_PLUGINS", "")
    registry.default_registry.cache_clear()
    yield
    registry.default_registry.cache_clear()


def make_checkpoint(folder, salt):
    folder.mkdir(parents=True)
    (folder / "retrievalkit.json").write_text(salt)
    fingerprint = storage.fingerprint_folder(folder)
    storage.write_manifest(folder, "checkpoint", command="train", options={}, fingerprint=fingerprint)
    return folder


def make_index(folder, salt, *, checkpoint, texts=TEXTS, corpus=None):
    """Build an index of the texts; `checkpoint` is the manifest's entry of their checkpoint, or None."""
    vectors = folder.with_name(f"{folder.name}-vectors")
    vectors.mkdir(parents=True)
    writer = VectorWriter(vectors)
    writer.write_shard(0, list(texts), np.stack([vector(text, salt) for text in texts.values()])[:, None])
    extra = {} if checkpoint is None else {"checkpoint": checkpoint}
    if corpus is not None:
        extra["corpus"] = {"source": str(corpus), "fingerprint": "c"}
    counts = writer.finish()
    storage.write_manifest(
        vectors, "vectors", command="encode", options={}, counts=counts, files=writer.checksums(), **extra
    )
    build_index(vectors, output=folder)
    return folder


def entry(checkpoint):
    return storage.describe_input(checkpoint, storage.read_manifest(checkpoint)["fingerprint"])


@pytest.fixture
def stage1(tmp_path):
    checkpoint = make_checkpoint(tmp_path / "stage1", "one")
    return checkpoint, make_index(tmp_path / "dense", "one", checkpoint=entry(checkpoint))


@pytest.fixture
def words(tmp_path):
    rows = [json.dumps({"_id": name, "title": "", "text": text}) for name, text in TEXTS.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows) + "\n")
    build_index(tmp_path / "corpus.jsonl", indexer="overlap", output=tmp_path / "words")
    return tmp_path / "words"


def ask(*texts):
    return [Query(f"q{row}", text) for row, text in enumerate(texts)]


def brute(text, salt):
    return {name: float(vector(text, salt) @ vector(one, salt)) for name, one in TEXTS.items()}


def expected(text, salt, k):
    scores = brute(text, salt)
    return sorted(scores, key=scores.get, reverse=True)[:k]


def ids(hits):
    return [name for name, _ in hits]


def test_queries_are_encoded_by_the_checkpoint_of_the_index(stage1):
    """The manifest names the checkpoint, which is loaded once; the run keeps the order of the queries."""
    _, index = stage1
    run = search([index], queries=ask("b", "a", "text number 3"), k=4)
    assert list(run) == ["q0", "q1", "q2"]
    assert list(map(ids, run.values())) == [expected(text, "one", 4) for text in ("b", "a", "text number 3")]
    assert FakeRetriever.loads == 1


@pytest.mark.parametrize("options", [{"k": 3}, {"k": 9, "depth": 4, "fusion": "linear", "normalization": "z_score"}])
def test_the_batch_size_changes_nothing(two_models, monkeypatch, options):
    indexes = two_models if "fusion" in options else two_models[:1]
    queries = ask(*(f"query {row}" for row in range(7)))
    whole = search(indexes, queries=queries, **options)
    monkeypatch.setattr(searcher, "BATCH_QUERIES", 2)
    parts = search(indexes, queries=queries, **options)
    assert {name: ids(hits) for name, hits in whole.items()} == {name: ids(hits) for name, hits in parts.items()}


@pytest.mark.parametrize(
    "options", [{}, {"fusion": "rrf"}, {"fusion": "linear", "weights": [0.3, 0.7], "normalization": "min_max"}]
)
def test_several_indexes_are_fused(stage1, words, options):
    _, index = stage1
    queries = ask("number 3", "text 7")
    runs = [search([one], queries=queries, k=1000) for one in (index, words)]
    fused = search([index, words], queries=queries, k=4, **options)
    assert fused == fuse(runs, method=options.pop("fusion", "rrf"), depth=4, **options)


def test_each_index_is_searched_with_its_own_checkpoint(tmp_path, stage1):
    """Indexes of different models are searched together; indexes of the same model share the encoded queries."""
    other = make_checkpoint(tmp_path / "stage2", "two")
    second = make_index(tmp_path / "second", "two", checkpoint=entry(other))
    third = make_index(tmp_path / "third", "two", checkpoint=entry(other))
    fused = search([stage1[1], second, third], queries=ask("a"), k=5)
    runs = [search([one], queries=ask("a"), k=1000) for one in (stage1[1], second, third)]
    assert fused == fuse(runs, method="rrf", depth=5)
    FakeRetriever.loads = FakeRetriever.encoded = 0
    search([stage1[1], second, third], queries=ask("a"), k=5)
    assert (FakeRetriever.loads, FakeRetriever.encoded) == (2, 2)


def test_the_checkpoint_that_encoded_the_index_is_required(tmp_path, stage1):
    """It is at the recorded path, next to a moved index, or set by --model; any other checkpoint is refused."""
    _, index = stage1
    other = make_checkpoint(tmp_path / "stage2", "two")
    with pytest.raises(ArtifactError, match=r"stage1' \(fingerprint .*not with '.*stage2'"):
        search([index], queries=ask("a"), model=other)
    (tmp_path / "new").mkdir()
    for folder in stage1:
        shutil.move(folder, tmp_path / "new" / folder.name)
    moved = tmp_path / "new" / "dense"
    assert ids(search([moved], queries=ask("a"), k=3)["q0"]) == expected("a", "one", 3)
    shutil.move(tmp_path / "new" / "stage1", tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=r"no longer exists\. Set --model to its new path"):
        search([moved], queries=ask("a"))
    shutil.copytree(other, tmp_path / "new" / "stage1")
    with pytest.raises(ArtifactError, match="vectors are not comparable"):
        search([moved], queries=ask("a"))
    unknown = make_index(tmp_path / "unknown", "one", checkpoint=None)
    with pytest.raises(ArtifactError, match="does not record the checkpoint that encoded it"):
        search([unknown], queries=ask("a"))
    for one in (moved, unknown):
        run = search([one], queries=ask("a"), k=3, model=tmp_path / "elsewhere")
        assert ids(run["q0"]) == expected("a", "one", 3)


def untrained(pooler):
    encoder, pooling = (
        {"name": name, "options": {}, "distribution": "retrievalkit", "version": "1"}
        for name in ("transformer", pooler)
    )
    description = {"model": "bert", "encoder": encoder, "pooler": pooling, "separate_towers": False}
    return {"path": "bert", "fingerprint": storage.fingerprint_value(f"bert{pooler}"), "description": description}


def test_untrained_models_are_created_from_their_descriptions(tmp_path):
    folders = [
        make_index(tmp_path / pooler, f"bert{pooler}", checkpoint=untrained(pooler)) for pooler in ("cls", "mean")
    ]
    runs = [search([folder], queries=ask("a")) for folder in folders]
    assert ids(runs[0]["q0"])[:3] == expected("a", "bertcls", 3)
    assert ids(runs[0]["q0"]) != ids(runs[1]["q0"])
    assert search(folders, queries=ask("a")) == fuse(runs)
    entry = {**untrained("cls"), "fingerprint": "0" * 32}
    changed = make_index(tmp_path / "changed", "bertcls", checkpoint=entry)
    with pytest.raises(ArtifactError, match="vectors are not comparable"):
        search([changed], queries=ask("a"), k=3)


def test_a_query_whose_encoding_is_not_finite_is_named(stage1, monkeypatch):
    vectors = torch.zeros(2, 1, 6)
    vectors[1, 0, 3] = float("nan")
    monkeypatch.setattr(FakeRetriever, "encode", lambda *arguments, **options: Representation(vectors))
    with pytest.raises(RetrievalkitError, match="encoding of the query 'b' is not finite"):
        search([stage1[1]], queries=ask("a", "b"))


def test_hits_are_printed_with_their_texts(tmp_path, words):
    """The manifest names the corpus, and --corpus a moved corpus; --json prints a single object."""
    assert "text number 3" in rkit(words, "--query", "number 3").stdout
    result = json.loads(rkit(words, "--query", "number 3", "--json").stdout)
    found = {"rank": 1, "score": 2.0, "found": [{"index": "words", "rank": 1, "score": 2.0}]}
    text = {"id": "t3", "title": "", "snippet": "text number 3", "matches": ["number", "3"]}
    assert (result["query"], result["hits"][0]) == ("number 3", text | found)
    shutil.move(tmp_path / "corpus.jsonl", tmp_path / "elsewhere.jsonl")
    gone = rkit(words, "--query", "number 3")
    assert ("t3" in gone.stdout, "--corpus" in gone.stderr) == (True, True)
    assert "text number 3" in rkit(words, "--query", "number 3", "--corpus", tmp_path / "elsewhere.jsonl").stdout
    assert "nothing found" in rkit(words, "--query", "nothing of that").stdout


def test_names_in_a_manifest_are_looked_up_without_the_users_token(tmp_path, words, monkeypatch):
    """The manifest may come from a stranger; the user's own --corpus is read with the token."""
    asked = []
    monkeypatch.setenv("RKIT_PLUGINS", "adapters")
    registry.default_registry.cache_clear()
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **how: asked.append((names, how.get("token"))) or [][0])
    (tmp_path / "corpus.jsonl").unlink()
    manifest = json.loads((words / "manifest.json").read_text())
    manifest["corpus"] = {"source": "hf:stranger/texts", "fingerprint": "x"}
    (words / "manifest.json").write_text(json.dumps(manifest))
    assert "hf:stranger/texts" in rkit(words, "--query", "number 3").stderr
    assert rkit(words, "--query", "number 3", "--corpus", "hf:mine/texts").exit_code == 2
    assert asked[0] == (("stranger/texts", None), False)
    assert asked[-1] == (("mine/texts", None), None)


def test_the_texts_are_found_if_index_and_corpus_were_moved_together(tmp_path):
    (tmp_path / "old").mkdir()
    collection = testing.tiny_collection(tmp_path / "old" / "data")
    build_index(collection.corpus, indexer="overlap", output=tmp_path / "old" / "words")
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert "Nepal" in rkit(tmp_path / "new" / "words", "--query", "kathmandu.").stdout


@pytest.fixture
def two_models(tmp_path, stage1):
    other = make_checkpoint(tmp_path / "stage2", "two")
    return [stage1[1], make_index(tmp_path / "second", "two", checkpoint=entry(other))]


@pytest.mark.parametrize("depth", [2, 5, 30])
def test_the_sum_of_two_indexes_equals_brute_force_over_their_hits(two_models, depth):
    fused = search(two_models, queries=ask("a", "b c"), k=30, depth=depth, fusion="sum")
    for query in ask("a", "b c"):
        one, two = brute(query.text, "one"), brute(query.text, "two")
        candidates = {*sorted(one, key=one.get)[-depth:], *sorted(two, key=two.get)[-depth:]}
        best = sorted(candidates, key=lambda name: -(one[name] + two[name]))
        assert ids(fused[query.id]) == best
        assert [score for _, score in fused[query.id]] == pytest.approx([one[i] + two[i] for i in best], rel=1e-5)


def test_an_index_that_cannot_score_documents_is_noted_once(stage1, words, monkeypatch):
    """Its lowest score replaces missing scores; with missing=computed, it is an error."""
    notes = []
    options = {"queries": ask("number 3", "text 7"), "k": 5, "depth": 2, "fusion": "sum"}
    monkeypatch.setattr(searcher, "BATCH_QUERIES", 1)
    fused = search([stage1[1], words], note=notes.append, **options)
    [note] = notes
    assert "'words' did not retrieve get its lowest score for the query: Overlap cannot score" in note
    lowest = open_indexes.open_index(words).indexer.search(["number 3"], 2)[1][0][-1]
    expected = {name: score + lowest for name, score in brute("number 3", "one").items()}
    for name, score in fused["q0"]:
        assert name in ("t3", "t0") or score == pytest.approx(expected[name], rel=1e-5)
    with pytest.raises(UnsupportedError, match="'words' cannot compute the missing scores"):
        search([stage1[1], words], missing="computed", **options)


def test_a_document_that_an_index_lacks_gets_its_lowest_score_and_a_note(tmp_path, stage1):
    other = make_checkpoint(tmp_path / "stage2", "two")
    fewer = {name: TEXTS[name] for name in list(TEXTS)[:10]}
    for folder, corpus in (("some", "part"), ("same", "whole")):
        make_index(tmp_path / folder, "two", checkpoint=entry(other), texts=fewer, corpus=corpus)
    whole = make_index(tmp_path / "all", "one", checkpoint=entry(stage1[0]), corpus="whole")
    for folder in ("some", "same"):
        path = tmp_path / folder / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["corpus"]["fingerprint"] = "d" if folder == "some" else "c"
        path.write_text(json.dumps(manifest))
    notes = []
    fused = search([whole, tmp_path / "some"], queries=ask("a"), k=30, fusion="sum", note=notes.append)
    assert ["different corpora, by their fingerprints: 'whole' and 'part'" in note for note in notes] == [True, False]
    assert notes[1] == "'some' lacks documents that others retrieved; they get its lowest score."
    one, two = brute("a", "one"), brute("a", "two")
    lowest = min(two[name] for name in fewer)
    assert dict(fused["q0"]) == pytest.approx(
        {name: one[name] + two.get(name, 0) if name in fewer else one[name] + lowest for name in TEXTS}, rel=1e-5
    )
    notes.clear()
    search([whole, tmp_path / "same"], queries=ask("a"), note=notes.append)
    assert notes == []


def write(path, **queries):
    write_run(path, queries)
    return path


def test_runs_are_fused_without_queries(tmp_path):
    one = write(tmp_path / "one.trec", q1=[("a", 3), ("b", 2)], q2=[("c", 1)])
    two = write(tmp_path / "two.trec", q1=[("b", 9)], q3=[("d", 1)])
    notes = []
    fused = search([one, two], queries=None, fusion="sum", note=notes.append)
    assert fused == {"q1": [("b", 11.0), ("a", 12.0)][::-1], "q2": [("c", 1.0)], "q3": [("d", 1.0)]}
    assert "the run 'two.trec' has no hits for 1 of 3 queries: q2." in notes


def test_a_run_may_replace_an_index(tmp_path, words):
    run = write(tmp_path / "run.trec", q0=[("t3", 0.5), ("t9", 0.25)], other=[("t1", 1)])
    fused = search([words, run], queries=ask("number 3"), k=3)
    assert list(fused) == ["q0"]
    assert fused == fuse([search([words], queries=ask("number 3")), {"q0": [("t3", 0.5), ("t9", 0.25)]}], depth=3)


def rkit(*words):
    return CliRunner().invoke(main, ["search", *map(str, words)])


def test_the_command_prints_a_run_or_hits(tmp_path, words):
    queries = tmp_path / "queries.tsv"
    queries.write_text("q0\tnumber 3\n")
    printed = rkit(words, "--queries", queries, "--k", 2)
    assert printed.output == "q0 Q0 t3 1 2.0 rkit\nq0 Q0 t0 2 1.0 rkit\n"
    written = rkit(words, "--queries", queries, "--k", 2, "--output", tmp_path / "run.trec")
    assert written.output == f"{tmp_path / 'run.trec'}: 1 query, 2 hits\n"
    assert (tmp_path / "run.trec").read_text() == printed.output
    as_json = json.loads(rkit(words, "--queries", queries, "--k", 2, "--json").output)
    assert as_json == {"queries": 1, "hits": 2, "run": None, "results": {"q0": [["t3", 2.0], ["t0", 1.0]]}}


def test_the_command_answers_line_by_line(words):
    """A query from a pipe is repeated above its hits; --json prints a line per query."""
    asked = CliRunner().invoke(main, ["search", str(words), "-i", "--k", "1"], input="number 3\nnothing of that\n")
    answered = "number 3\n  1  t3  2.0000\n     text number 3\n\nnothing of that\nnothing found\n\n"
    assert (asked.exit_code, asked.stdout) == (0, answered)
    asked = CliRunner().invoke(main, ["search", str(words), "-i", "--json"], input="number 3\n:k 1\nnumber 7\n")
    assert [len(json.loads(line)["hits"]) for line in asked.stdout.splitlines()] == [10, 1]


def test_hits_have_their_rank_and_score_in_each_index(words, stage1):
    _, index = stage1
    asked = rkit(index, words, "--fusion", "sum", "--depth", 3, "--query", "number 3", "--k", 9, "--json")
    hits = json.loads(asked.stdout)["hits"]
    assert all([one["index"] for one in hit["found"]] == ["dense", "words"] for hit in hits)
    reasons = {hit["id"]: hit["found"] for hit in hits}
    assert reasons["t3"][1] == {"index": "words", "rank": 1, "score": 2.0}
    scores = brute("number 3", "one")
    best = expected("number 3", "one", 3)
    for name, (dense, _) in reasons.items():
        assert dense["rank"] == (best.index(name) + 1 if name in best else None)
        assert dense["score"] == pytest.approx(scores[name], rel=1e-5)
    assert any(name not in best for name in reasons)


MANY, SEVERAL = "words --queries QUERIES", "words dense --queries QUERIES --output RUN"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("words", "there is nothing to search for in"),
        ("words --query x --interactive", "query and interactive exclude each other"),
        ("words --query ' '", "the query is empty"),
        ("words --query x --split test", "split has no effect here. Use it with queries,"),
        (f"{MANY} --no-explain", "explain has no effect here. Use it with hits to read"),
        (f"{MANY} --corpus x", "corpus has no effect here"),
        ("words --interactive --output RUN", "output has no effect here"),
        ("words --query x --tune QRELS", "tune has no effect here"),
        (f"{MANY} --tune-metric RR@10", "tune_metric has no effect here. Use it with tune"),
        (f"{MANY} --missing zero", "missing needs several indexes, but there is only one"),
        (f"{MANY} --model stage1", "none of the indexes needs that"),
        ("words --tune QRELS --tune-queries QUERIES", "tune needs several indexes, but there is only one"),
        ("words --tune QRELS", "has judgements but no queries. Give the queries with tune_queries"),
        (f"{MANY} --output .", "output '.' is a folder"),
        (f"{MANY} --output a.html", "output 'a.html' is a page"),
        (f"{MANY} --set indexer.lowr=1", "did you mean 'indexer.lower'"),
        (f"{MANY} --set faiss.device=cpu", "--set faiss.device is not an option of any index"),
        ("dense-vectors --query x", "is a vectors folder. Index it first: rkit index"),
        ("stage1 --query x", "is a checkpoint. Encode and index a corpus first"),
        ("nothing --query x", "does not exist"),
        ("empty --query x", "is not an index folder"),
        ("gone --query x", "pip install retrievalkit-gone==1.2"),
        ("STRANGER --queries QUERIES", "there is nothing to fuse it with"),
        ("words STRANGER --queries QUERIES", "has none of the 1 query: its ids are like 'x', the queries' like 'q0'"),
        ("words JUNK --queries QUERIES", "was read as a run; an index is a folder"),
        (f"{SEVERAL} --weights much,less", "weights 'much,less' are neither numbers such as 0.3,0.7 nor a file"),
        (f"{SEVERAL} --weights QUERIES", "QUERIES' is not valid JSON"),
        (f"{SEVERAL} --tune QRELS --weights 1,2", "weights are set to [1.0, 2.0], but --tune determines"),
        (f"{SEVERAL} --tune QRELS --fusion sum", "fusion 'sum' has nothing to tune"),
        (f"{SEVERAL} --tune QRELS --tune-metric 'RR@10 P@1'", "must be a single metric"),
        (f"{SEVERAL} --tune UNJUDGED", "none of the 1 query to tune on is judged"),
        (f"{SEVERAL} --tune QRELS --tune-metric nDGC@10", "unknown metric 'nDGC@10'"),
    ],
)
def test_mistakes_end_with_one_message_exit_code_2_and_no_file(tmp_path, words, stage1, line, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"QUERIES": "q0\tnumber 3\n", "QRELS": "q0 0 t3 1\n", "UNJUDGED": "z 0 t3 1\n", "JUNK": "a sentence\n"}
    for name, text in files.items():
        Path(name).write_text(text)
    Path("empty").mkdir()
    write(tmp_path / "STRANGER", x=[("t3", 1)])
    shutil.copytree(words, tmp_path / "gone")
    manifest = json.loads((words / "manifest.json").read_text())
    manifest["indexer"] |= {"name": "gone", "distribution": "retrievalkit-gone", "version": "1.2"}
    (tmp_path / "gone" / "manifest.json").write_text(json.dumps(manifest))
    before = sorted(tmp_path.rglob("*"))
    result = rkit(*shlex.split(line))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_weights_are_tuned_written_and_used(tmp_path, words, stage1):
    """The file of --tune, its printed command, and tuning in the same command give the same run; overlaps are noted."""
    queries, qrels, choice = tmp_path / "q.tsv", tmp_path / "dev.qrels", tmp_path / "choice.json"
    queries.write_text("".join(f"q{row}\tnumber {row}\n" for row in range(12)))
    qrels.write_text("".join(f"q{row} 0 t{row} 1\n" for row in range(6)))
    tune = (words, stage1[1], "--tune", qrels)
    tuned = rkit(*tune, "--tune-queries", queries, "--output", choice)
    assert tuned.exit_code == 0, tuned.stderr
    assert "fusions tried on 6 queries" in tuned.stdout
    value = json.loads(choice.read_text())
    assert value["nDCG@10"] == 1.0 > value["references"]["dense alone"]
    assert value["fusion"]["method"] == "linear"
    line = tuned.stdout.partition("Best search:  rkit search ")[2].splitlines()[0].split()
    runs = [tmp_path / f"{number}.trec" for number in range(3)]
    search_for = ("--queries", queries, "--output")
    assert rkit(words, stage1[1], "--weights", choice, *search_for, runs[0]).exit_code == 0
    assert rkit(*line, *search_for, runs[1]).exit_code == 0
    both = rkit(*tune, *search_for, runs[2])
    assert "6 of the 12 queries are among the 6 that the weights were tuned on" in both.stderr
    assert len({run.read_text() for run in runs}) == 1
    assert Run.load(runs[0]).evaluate(qrels=qrels, metrics="nDCG@10")["nDCG@10"] == value["nDCG@10"]
    swapped = rkit(stage1[1], words, "--weights", choice, *search_for, tmp_path / "no.trec")
    assert (swapped.exit_code, "in this order: words, dense" in swapped.stderr) == (2, True)
    other = rkit(words, stage1[1], "--weights", choice, "--fusion", "rrf", *search_for, tmp_path / "no.trec")
    assert "has fusion=linear, but the option is rrf" in other.stderr


def test_the_weights_of_runs_are_tuned_without_queries(tmp_path):
    one = write(tmp_path / "one.trec", q1=[("a", 3), ("b", 2)], q2=[("c", 1), ("d", 0.5)])
    two = write(tmp_path / "two.trec", q1=[("b", 9), ("a", 1)], q2=[("d", 2), ("c", 1)])
    (tmp_path / "qrels").write_text("q1 0 b 1\n")
    tuned = rkit(one, two, "--tune", tmp_path / "qrels", "--json")
    value = json.loads(tuned.stdout)
    assert (value["queries"], value["nDCG@10"], value["references"]["two.trec alone"]) == (1, 1.0, 1.0)
    assert value["references"]["one.trec alone"] < 1


def test_options_of_an_index_are_set_for_the_search(words, stage1):
    assert search([words], queries=ask("NUMBER"), k=1) == {"q0": [("t0", 1.0)]}
    with pytest.raises(OptionError, match="has no option"):
        open_indexes.open_index(words, options={"loud": True})
    for section in ("indexer", "overlap", "words"):
        assert search([words], queries=ask("NUMBER"), options={section: {"lower": False}}) == {"q0": []}
    several = searcher.Searcher([words, stage1[1]], options={"indexer": {"lower": False, "block": 7}})
    assert (several.indexes[0].indexer.lower, several.indexes[1].indexer.block) == (False, 7)
