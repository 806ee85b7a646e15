"""Searching: the right encoder for each index, fusion, mistakes, and hits as people read them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from retrievalkit import artifacts, registry, search, searcher, testing
from retrievalkit.contracts import Representation
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.queries import Query
from retrievalkit.data.vectors import VectorWriter
from retrievalkit.errors import ArtifactError, InputError, OptionError, RetrievalkitError, UnknownNameError
from retrievalkit.fusion import fuse
from retrievalkit.hits import describe_hits, matches, snippet
from retrievalkit.index import build_index

TEXTS = {f"t{row}": f"text number {row}" for row in range(30)}


def vector(text, salt):
    """A vector that depends on the text and the model alone."""
    seed = int.from_bytes(f"{salt}{text}".encode(), "little") % 2**32
    return np.random.default_rng(seed).standard_normal(6).astype(np.float32)


class FakeRetriever:
    """Encodes a text as random numbers of its own; a checkpoint is a folder with a name in retrievalkit.json."""

    loads = 0
    encoded = 0

    def __init__(self, salt, fingerprint):
        self.salt, self.fingerprint = salt, fingerprint

    @classmethod
    def load(cls, folder, device=None):
        cls.loads += 1
        if not (Path(folder) / "retrievalkit.json").exists():
            msg = f"'{folder}' is not a checkpoint"
            raise ArtifactError(msg)
        salt = (Path(folder) / "retrievalkit.json").read_text()
        return cls(salt, artifacts.read_manifest(folder)["fingerprint"])

    @classmethod
    def from_description(cls, description, device=None):
        return cls(description["model"], artifacts.fingerprint_value(description["model"]))

    def encode(self, texts, side, *, precision="auto"):
        type(self).encoded += len(texts)
        assert side == "query"
        assert all(title == "" for title, _ in texts)
        return Representation(torch.from_numpy(np.stack([vector(text, self.salt) for _, text in texts]))[:, None])


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    """A fake encoder, and an indexer of texts from a local file."""
    monkeypatch.setattr(searcher, "Retriever", FakeRetriever)
    monkeypatch.setattr(FakeRetriever, "loads", 0)
    monkeypatch.setattr(FakeRetriever, "encoded", 0)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(Path(__file__).with_name("overlap_plugin.py")))
    monkeypatch.setenv("RKIT_PLUGINS", "")
    registry.default_registry.cache_clear()
    yield
    registry.default_registry.cache_clear()


def make_checkpoint(folder, salt):
    folder.mkdir(parents=True)
    (folder / "retrievalkit.json").write_text(salt)
    artifacts.write_manifest(
        folder, "checkpoint", command="train", options={}, fingerprint=artifacts.fingerprint_value(salt)
    )
    return folder


def make_index(folder, salt, *, checkpoint, texts=TEXTS, corpus=None):
    """An index of the texts as encoded by a checkpoint; `checkpoint` is the manifest's entry, or None."""
    vectors = folder.with_name(f"{folder.name}-vectors")
    vectors.mkdir(parents=True)
    writer = VectorWriter(vectors)
    writer.write_shard(0, list(texts), np.stack([vector(text, salt) for text in texts.values()])[:, None])
    extra = {} if checkpoint is None else {"checkpoint": checkpoint}
    if corpus is not None:
        extra["corpus"] = {"source": str(corpus), "fingerprint": "c"}
    counts = writer.finish()
    artifacts.write_manifest(
        vectors, "vectors", command="encode", options={}, counts=counts, files=writer.checksums(), **extra
    )
    build_index(vectors, output=folder)
    return folder


def entry(checkpoint):
    return artifacts.describe_input(checkpoint, artifacts.read_manifest(checkpoint)["fingerprint"])


@pytest.fixture
def stage1(tmp_path):
    """A checkpoint, and an index of the texts that it made."""
    checkpoint = make_checkpoint(tmp_path / "stage1", "one")
    return checkpoint, make_index(tmp_path / "dense", "one", checkpoint=entry(checkpoint))


@pytest.fixture
def words(tmp_path):
    """An index of the texts' words."""
    rows = [json.dumps({"_id": name, "title": "", "text": text}) for name, text in TEXTS.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows) + "\n")
    build_index(tmp_path / "corpus.jsonl", indexer="overlap", output=tmp_path / "words")
    return tmp_path / "words"


def ask(*texts):
    return [Query(f"q{row}", text) for row, text in enumerate(texts)]


def expected(text, salt, k):
    """Brute force."""
    scored = [(-float(vector(text, salt) @ vector(one, salt)), row) for row, one in enumerate(TEXTS.values())]
    return [f"t{row}" for _, row in sorted(scored)[:k]]


def ids(hits):
    return [name for name, _ in hits]


def test_queries_are_encoded_by_the_checkpoint_that_made_the_index(stage1):
    """It is found by itself, and loaded once; the run keeps the order of the queries."""
    _, index = stage1
    run = search.search([index], queries=ask("b", "a", "text number 3"), k=4)
    assert list(run) == ["q0", "q1", "q2"]
    assert [ids(run[f"q{row}"]) for row in range(3)] == [
        expected(text, "one", 4) for text in ("b", "a", "text number 3")
    ]
    assert all(isinstance(score, float) for _, score in run["q0"])
    assert FakeRetriever.loads == 1


def test_the_batch_size_changes_nothing(stage1):
    """Queries are encoded and searched in batches."""
    _, index = stage1
    queries = ask(*(f"query {row}" for row in range(7)))
    whole = search.search([index], queries=queries, k=3)
    parts = search.search([index], queries=queries, k=3, batch_size=2)
    assert {name: ids(hits) for name, hits in whole.items()} == {name: ids(hits) for name, hits in parts.items()}


def test_an_index_of_texts_is_given_texts(words):
    """Without any model; a query may find nothing."""
    run = search.search([words], queries=ask("number 3", "nothing of that"), k=5)
    assert run["q0"][0] == ("t3", 2.0)
    assert run["q1"] == []
    assert FakeRetriever.loads == 0


@pytest.mark.parametrize(
    "options", [{}, {"fusion": "rrf"}, {"fusion": "linear", "weights": [0.3, 0.7], "normalization": "min_max"}]
)
def test_several_indexes_are_fused(stage1, words, options):
    """Each is searched to a depth of its own, and the fused run is cut to k."""
    _, index = stage1
    queries = ask("number 3", "text 7")
    fused = search.search([index, words], queries=queries, k=4, **options)
    runs = [search.search([one], queries=queries, k=1000) for one in (index, words)]
    options = {"method": "rrf", **{("method" if name == "fusion" else name): value for name, value in options.items()}}
    assert fused == fuse(runs, depth=4, **options)


def test_the_fusion_depth_matters(stage1, words):
    """Fewer hits of each index give other fused scores."""
    _, index = stage1
    queries = ask("number 3")
    deep = search.search([index, words], queries=queries, k=30)
    assert search.search([index, words], queries=queries, k=2, depth=2) != {
        name: hits[:2] for name, hits in deep.items()
    }


def test_two_checkpoints_encode_each_their_own(tmp_path, stage1):
    """Indexes of different models are searched together; one that shares the model shares the encoding."""
    other = make_checkpoint(tmp_path / "stage2", "two")
    second = make_index(tmp_path / "second", "two", checkpoint=entry(other))
    third = make_index(tmp_path / "third", "two", checkpoint=entry(other))
    fused = search.search([stage1[1], second, third], queries=ask("a"), k=5)
    runs = [search.search([one], queries=ask("a"), k=1000) for one in (stage1[1], second, third)]
    assert fused == fuse(runs, method="rrf", depth=5)
    FakeRetriever.loads = FakeRetriever.encoded = 0
    search.search([stage1[1], second, third], queries=ask("a"), k=5)
    assert (FakeRetriever.loads, FakeRetriever.encoded) == (2, 2)


def test_another_checkpoint_is_refused(tmp_path, stage1):
    """Both are named, whether it was given by --model or lies where the right one was."""
    checkpoint, index = stage1
    other = make_checkpoint(tmp_path / "stage2", "two")
    with pytest.raises(ArtifactError, match=r"stage1' \(fingerprint .*stage2' is another one"):
        search.search([index], queries=ask("a"), model=other)
    shutil.rmtree(checkpoint)
    shutil.move(other, checkpoint)
    with pytest.raises(ArtifactError, match="is another one"):
        search.search([index], queries=ask("a"))


def test_checkpoint_and_index_may_be_moved_together(tmp_path, stage1):
    """The place relative to the index is tried too."""
    (tmp_path / "new").mkdir()
    for folder in stage1:
        shutil.move(folder, tmp_path / "new" / folder.name)
    run = search.search([tmp_path / "new" / "dense"], queries=ask("a"), k=3)
    assert ids(run["q0"]) == expected("a", "one", 3)


def test_a_checkpoint_that_is_gone_is_asked_for(tmp_path, stage1):
    """And --model is its new place."""
    checkpoint, index = stage1
    (tmp_path / "deep").mkdir()
    shutil.move(checkpoint, tmp_path / "deep" / "moved")
    with pytest.raises(ArtifactError, match=r"not there any more\. Give its new place with --model"):
        search.search([index], queries=ask("a"))
    run = search.search([index], queries=ask("a"), k=3, model=tmp_path / "deep" / "moved")
    assert ids(run["q0"]) == expected("a", "one", 3)


def test_an_index_that_does_not_say_its_checkpoint_needs_one(tmp_path):
    """Vectors that somebody else wrote can be searched with --model."""
    index = make_index(tmp_path / "dense", "one", checkpoint=None)
    with pytest.raises(ArtifactError, match="does not say which checkpoint made it"):
        search.search([index], queries=ask("a"))
    checkpoint = make_checkpoint(tmp_path / "stage1", "one")
    assert ids(search.search([index], queries=ask("a"), k=3, model=checkpoint)["q0"]) == expected("a", "one", 3)


def test_an_untrained_model_is_made_again_from_its_description(tmp_path):
    """Encoder and pooler are in the index's manifest."""
    made = {"path": "bert", "fingerprint": artifacts.fingerprint_value("bert"), "description": {"model": "bert"}}
    index = make_index(tmp_path / "dense", "bert", checkpoint=made)
    assert ids(search.search([index], queries=ask("a"), k=3)["q0"]) == expected("a", "bert", 3)
    changed = make_index(tmp_path / "changed", "bert", checkpoint={**made, "fingerprint": "0" * 32})
    with pytest.raises(ArtifactError, match="another one"):
        search.search([changed], queries=ask("a"), k=3)


def test_a_query_that_is_not_encoded_as_numbers_is_named(stage1, monkeypatch):
    """Otherwise it would silently find nothing."""
    vectors = torch.zeros(2, 1, 6)
    vectors[1, 0, 3] = float("nan")
    monkeypatch.setattr(FakeRetriever, "encode", lambda *arguments, **options: Representation(vectors))
    with pytest.raises(RetrievalkitError, match="the query 'q1' was encoded"):
        search.search([stage1[1]], queries=ask("a", "b"))


def test_folders_that_are_no_index_say_what_to_do(tmp_path, stage1):
    """Vectors, a checkpoint, nothing at all."""
    checkpoint, index = stage1
    with pytest.raises(ArtifactError, match=r"is a vectors folder\. Make an index of it first: rkit index"):
        search.search([index.with_name("dense-vectors")], queries=ask("a"))
    with pytest.raises(ArtifactError, match=r"is a checkpoint\. Encode a corpus and index it first"):
        search.search([checkpoint], queries=ask("a"))
    with pytest.raises(ArtifactError, match="does not exist"):
        search.search([tmp_path / "nothing"], queries=ask("a"))
    with pytest.raises(ArtifactError, match="is not an index folder"):
        search.search([tmp_path], queries=ask("a"))


def test_a_plugin_that_is_missing_is_named(words, monkeypatch):
    """Distribution and version, and the line to install them."""
    manifest = json.loads((words / "manifest.json").read_text())
    manifest["indexer"] |= {"name": "gone", "distribution": "retrievalkit-gone", "version": "1.2"}
    (words / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"pip install retrievalkit-gone==1\.2"):
        search.search([words], queries=ask("a"))


def test_options_can_be_changed_when_an_index_is_opened(words):
    """The others are those it was built with."""
    assert searcher.open_index(words).search(["NUMBER"], 1) == [[("t0", 1.0)]]
    opened = searcher.open_index(words, options={"lower": False})
    assert opened.search(["NUMBER"], 1) == [[]]
    assert (opened.name, opened.needs_encoding) == ("overlap", False)
    with pytest.raises(OptionError, match="has no option"):
        searcher.open_index(words, options={"loud": True})


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"queries": []}, "there is no query"),
        ({"queries": ask("a", " ")}, "the query 'q1' is empty"),
        ({"queries": [Query("a", "x"), Query("a", "y")]}, "two queries have the id 'a'"),
        ({"indexes": []}, "there is no index"),
        ({"fusion": "rrf"}, "--fusion combines several indexes"),
        ({"weights": [1.0]}, "--weights combines several indexes"),
        ({"model": "stage1"}, "none of the indexes needs that"),
    ],
)
def test_mistakes_are_found_before_anything_is_searched(words, mistake, message):
    """Each says what was wrong."""
    arguments = {"indexes": [words], "queries": ask("a"), **mistake}
    indexes = arguments.pop("indexes")
    with pytest.raises(InputError, match=message):
        search.search(indexes, **arguments)


def test_fusion_options_are_checked_before_anything_is_searched(stage1, words, monkeypatch):
    """A wrong number of weights or an unknown method costs no search."""
    monkeypatch.setattr(searcher, "open_index", lambda folder: pytest.fail("it was opened"))
    for options in ({"weights": [1.0]}, {"fusion": "linear", "weights": [1.0, 2.0, 3.0]}):
        with pytest.raises(OptionError, match="weights for 2 runs"):
            search.search([stage1[1], words], queries=ask("a"), **options)
    with pytest.raises(UnknownNameError):
        search.search([stage1[1], words], queries=ask("a"), fusion="sumo")


def test_a_snippet_is_the_part_with_most_words_of_the_query():
    """Different words count before repeated ones; common words do not count; plurals match."""
    filler = " ".join(f"word{row}" for row in range(40))
    text = f"distance distance distance {filler} the distances of two points {filler}"
    found = snippet(text, "distance between points", words=10)
    assert found.startswith("… ")
    assert found.endswith(" …")
    assert "distances of two points" in found
    assert len(found.split()) == 12
    assert [found[start:end] for start, end in matches(found, "distance between the points")] == ["distances", "points"]
    assert snippet("short text", "anything") == "short text"
    assert matches("what is it", "what is") == ((0, 4), (5, 7))


def test_hits_are_described_from_the_corpus():
    """Rank, score, id, title, snippet; a hit that the corpus lacks keeps its id."""
    corpus = Corpus.of([Passage("a", "Alpha", "the first letter"), Passage("b", "", "second")])
    first, second, third = describe_hits([("b", 2.0), ("a", 1.0), ("z", 0.5)], "letters", corpus)
    assert (first.rank, first.score, first.id, first.title, first.snippet) == (1, 2.0, "b", "", "second")
    assert (second.title, second.matches) == ("Alpha", ((10, 16),))
    assert (third.id, third.snippet) == ("z", "")


def reader(*folders, **options):
    opened = searcher.Searcher(folders, note=search.to_stderr)
    return search.Reader(opened, search.fusion_of(len(folders)), **options)


def test_hits_are_printed_with_their_texts(words, capsys):
    """The corpus is found by the index's manifest; --json is one object."""
    reader(words)("number 3", 2)
    printed = capsys.readouterr()
    assert "t3" in printed.out
    assert "text number 3" in printed.out
    reader(words, as_json=True)("number 3", 2)
    result = json.loads(capsys.readouterr().out)
    assert result["query"] == "number 3"
    assert result["hits"][0] == {
        "rank": 1,
        "score": 2.0,
        "id": "t3",
        "title": "",
        "snippet": "text number 3",
        "matches": ["number", "3"],
        "found": [{"index": "words", "rank": 1, "score": 2.0}],
    }


def test_hits_without_their_texts_are_printed_with_a_note(tmp_path, words, capsys):
    """On standard error; --corpus says where they are."""
    shutil.move(tmp_path / "corpus.jsonl", tmp_path / "elsewhere.jsonl")
    reader(words)("number 3", 1)
    printed = capsys.readouterr()
    assert "t3" in printed.out
    assert "--corpus" in printed.err
    reader(words, corpus=tmp_path / "elsewhere.jsonl")("number 3", 1)
    assert "text number 3" in capsys.readouterr().out
    reader(words, corpus=tmp_path / "elsewhere.jsonl")("nothing of that", 1)
    assert "nothing found" in capsys.readouterr().out


def test_the_texts_are_found_when_all_was_moved_together(tmp_path, capsys):
    """By the place relative to the index."""
    (tmp_path / "old").mkdir()
    collection = testing.tiny_collection(tmp_path / "old" / "data")
    build_index(collection.corpus, indexer="overlap", output=tmp_path / "old" / "words")
    shutil.move(tmp_path / "old", tmp_path / "new")
    reader(tmp_path / "new" / "words")("kathmandu.", 1)
    assert "Nepal" in capsys.readouterr().out
