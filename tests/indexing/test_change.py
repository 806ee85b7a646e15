"""`rkit index INDEX --add`, `--delete`, `--compact`: what is encoded, what a reader sees, and what a kill leaves."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import signal

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.contracts import Representation
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import Query
from retrievalkit.data.vectors import VectorWriter
from retrievalkit.errors import ArtifactError, OptionError
from retrievalkit.indexing import change as change_module
from retrievalkit.indexing import encoding
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.change import change_index
from retrievalkit.indexing.open_indexes import open_index
from retrievalkit.indexing.segments import joined_vectors
from retrievalkit.search.searcher import Searcher
from retrievalkit.storage import read_manifest

DIM = 16


def write(folder, ids, seed=0, checkpoint=None):
    """A vectors folder."""
    folder.mkdir(parents=True)
    writer = VectorWriter(folder)
    vectors = np.random.default_rng([seed, len(ids)]).standard_normal((len(ids), 1, DIM)).astype(np.float32)
    writer.write_shard(0, ids, vectors)
    extra = {} if checkpoint is None else {"checkpoint": {"path": checkpoint, "fingerprint": checkpoint * 32}}
    counts, files = writer.finish(), writer.checksums()
    storage.write_manifest(folder, "vectors", command="encode", options={}, counts=counts, files=files, **extra)
    return folder


@pytest.fixture
def index(tmp_path):
    """An index of five texts, a to e."""
    build_index(write(tmp_path / "vectors", list("abcde"), checkpoint="m"), output=tmp_path / "index")
    return tmp_path / "index"


def found(index, k=20):
    queries = Representation(torch.from_numpy(np.random.default_rng(9).standard_normal((3, 1, DIM)).astype(np.float32)))
    opened = index if hasattr(index, "indexer") else open_index(index)
    ids, scores = opened.indexer.search(queries, k)
    return ids, [one.tolist() for one in scores]


def rkit(*words):
    return CliRunner().invoke(main, ["index", *map(str, words)])


def collection(path, texts):
    path.write_text("".join(json.dumps({"_id": k, "title": "", "text": text}) + "\n" for k, text in texts.items()))
    return path


def test_only_new_and_changed_texts_are_encoded(tiny_model, tiny_collection, tmp_path, monkeypatch):
    """By the model of the index, which it knows; the result is that of encoding all anew."""
    texts = {one.id: one.text for one in open_corpus(tiny_collection.corpus)}
    names = list(texts)
    before = {name: texts[name] for name in names[:30]} | {names[3]: "another text"}
    options = encoding.EncodingOptions(pooler="mean", precision="fp32")
    build = {"side": "document", "options": options}
    encoding.encode(tiny_model, collection(tmp_path / "a.jsonl", before), output=tmp_path / "va", **build)
    build_index(tmp_path / "va", output=tmp_path / "index")
    seen = []

    def watched(model, given, **options):
        seen.extend(one.id for one in open_corpus(given))
        return encoding.encode(model, given, **options)

    monkeypatch.setattr(change_module, "encode", watched)
    done = rkit(tmp_path / "index", "--add", collection(tmp_path / "b.jsonl", texts), "--json")
    assert done.exit_code == 0, done.output
    outcome = json.loads(done.stdout)
    assert (outcome["added"], outcome["changed"], outcome["unchanged"]) == (len(texts) - 30, 1, 29)
    assert seen == [names[3], *names[30:]]
    again = json.loads(rkit(tmp_path / "index", "--add", tmp_path / "b.jsonl", "--json").stdout)
    assert (again["added"], again["changed"], again["unchanged"]) == (0, 0, len(texts))
    assert read_manifest(tmp_path / "index", "index")["change"] == 1

    anew = {name: text for name, text in texts.items() if name != names[3] and name in names[:30]}
    anew |= {names[3]: texts[names[3]]} | {name: texts[name] for name in names[30:]}
    encoding.encode(tiny_model, collection(tmp_path / "c.jsonl", anew), output=tmp_path / "vc", **build)
    build_index(tmp_path / "vc", output=tmp_path / "anew")
    rankings = []
    for place in (tmp_path / "index", tmp_path / "anew"):
        searcher = Searcher([place])
        rankings.append(searcher.search(searcher.ask([Query("q", texts[names[3]])]), 10, None).rankings[0])
    assert rankings[0][0] == rankings[1][0]
    np.testing.assert_allclose(rankings[0][1], rankings[1][1], rtol=1e-5)
    corpus = read_manifest(tmp_path / "index", "index")["corpus"]
    assert list(open_corpus(corpus["path"])) == list(open_corpus(tmp_path / "c.jsonl"))
    assert corpus["fingerprint"] == read_manifest(tmp_path / "anew", "index")["corpus"]["fingerprint"]


def test_what_a_reader_has_open_goes_on(index, tmp_path):
    reader = open_index(index)
    before = found(reader)
    change_index(index, add=write(tmp_path / "more", ["f", "a"], seed=1, checkpoint="m"))
    second = open_index(index)
    between = found(second)
    change_index(index, delete=["b"], compact=True)
    assert found(reader) == before
    assert found(second) == between
    assert found(index)[0] != between[0] != before[0]
    assert (index / "vectors").exists()
    del reader, second
    gc.collect()
    change_index(index, delete=["c"])
    assert not (index / "vectors").exists()
    assert len([path for path in (index / "segments").iterdir() if path.is_dir()]) == 1


def test_scores_have_the_same_bits_as_those_of_an_index_built_anew(index, tmp_path):
    """Blocks are cut at the same texts, so matrix products have the same shapes."""
    change_index(index, add=write(tmp_path / "more", [f"m{row}" for row in range(70)], seed=1), delete=["b"])
    change_index(index, delete=["m7", "m8", "m30"])
    whole = tmp_path / "whole"
    joined = joined_vectors(index, read_manifest(index, "index"))
    block = joined.take(np.arange(len(joined)))
    whole.mkdir()
    writer = VectorWriter(whole)
    writer.write_shard(0, list(joined.ids), block.vectors[:, None])
    writer.finish()
    build_index(whole, output=tmp_path / "anew")
    for k in (1, 7, 100):
        assert found(index, k) == found(tmp_path / "anew", k)


@forks
@pytest.mark.parametrize(("owner", "name"), [(os, "replace"), (pathlib.Path, "rename"), (storage, "describe_file")])
def test_a_change_that_is_killed_leaves_the_old_index_or_the_new(index, tmp_path, owner, name):
    """At each file that gets its name; the same command again does what is left to do."""
    more = write(tmp_path / "more", ["f", "a"], seed=1, checkpoint="m")
    old = found(index)
    build_index(tmp_path / "vectors", output=tmp_path / "other")
    change_index(tmp_path / "other", add=more, delete=["c"], compact=True)
    new = found(tmp_path / "other")
    killed = 0
    for count in range(1, 60):
        place = tmp_path / f"copy{count}"
        build_index(tmp_path / "vectors", output=place)

        def change(place=place, count=count):
            kill_at_call(owner, name, count)
            change_index(place, add=more, delete=["c"], compact=True)

        code = in_another_process(change)
        half = found(place)
        assert half in (old, new)
        change_index(place, add=more, delete=["c"], compact=True)
        assert found(place) == new
        assert not (place / ".changing").exists()
        if code != -signal.SIGKILL:
            break
        killed += 1
    assert killed > 1


def test_options_that_do_not_go_together(index, tmp_path):
    for words, message in [
        (["--delete", "a", "--output", "x"], "output has no part in changing the index"),
        (["--delete", "a", "--model", "x"], "model has no part in changing"),
        (["--compact", "--indexer", "flat"], "indexer has no part in changing"),
    ]:
        assert message in rkit(index, *words).stderr
    with pytest.raises(OptionError, match="nothing to change"):
        change_index(index)
    with pytest.raises(ArtifactError, match="does not exist"):
        change_index(tmp_path / "nowhere", compact=True)
    assert not (tmp_path / "nowhere").exists()


def test_vectors_of_another_model_are_refused(index, tmp_path):
    with pytest.raises(ArtifactError, match="another model"):
        change_index(index, add=write(tmp_path / "more", ["f"], checkpoint="x"))
    assert "segments" not in read_manifest(index, "index")


def test_ids_to_delete_come_one_by_one_or_in_a_file(index, tmp_path):
    (tmp_path / "gone.txt").write_text("a\nb\n")
    done = rkit(index, "--delete", tmp_path / "gone.txt", "--delete", "c")
    assert done.stdout == f"{index}: 3 deleted; 2 texts in 1 segment\n"
    assert sorted(found(index)[0][0]) == ["d", "e"]


def of_documents(folder):
    """An index of two documents in four passages and in one, and of a text that is named as a file here is."""
    ids = ["notes/a.txt#1", "notes/a.txt#2", "notes/a.txt#3", "notes/a.txt#4", "b.md#1", "gone.txt"]
    build_index(write(folder / "v", ids, checkpoint="m"), output=folder / "documents")
    return folder / "documents"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["b.md", "x.txt"], "1 of the 2 ids to delete"),
        (["notes/a.tx"], "did you mean 'notes/a.txt'"),
        (["notes/a.txt#5"], "did you mean 'notes/a.txt"),
        (["list.txt"], "2 of the 3 ids to delete (read from list.txt): nowhere, elsewhere"),
        (["../notes/a.txt"], "did you mean 'notes/a.txt'"),
        (["folder"], "folder"),
    ],
)
def test_unknown_ids_are_refused_and_nothing_is_deleted(tmp_path, monkeypatch, ids, message):
    monkeypatch.chdir(tmp_path)
    index = of_documents(tmp_path)
    (tmp_path / "list.txt").write_text("b.md\nnowhere\nelsewhere\n")
    (tmp_path / "folder").mkdir()
    refused = rkit(index, *(word for one in ids for word in ("--delete", one)))
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert len(found(index)[0][0]) == 6


def test_a_deletion_that_is_repeated_is_noted(index):
    """A killed command is run again as it is; after another change, the ids are unknown."""
    for words, code in ((["a"], 0), (["a"], 0), (["b"], 0), (["a"], 2)):
        done = rkit(index, "--delete", *words)
        assert done.exit_code == code
    assert rkit(index, "--delete", "b").stdout == f"{index}: nothing to change; 3 texts in 1 segment\n"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["notes/a.txt"], ["b.md#1", "gone.txt"]),
        (["notes/a.txt#2", "b.md"], ["gone.txt", "notes/a.txt#1", "notes/a.txt#3", "notes/a.txt#4"]),
        (["gone.txt"], ["b.md#1", *(f"notes/a.txt#{n}" for n in (1, 2, 3, 4))]),
        (["list.txt"], ["gone.txt"]),
        (["corpus.jsonl"], ["gone.txt", *(f"notes/a.txt#{n}" for n in (1, 2, 3, 4))]),
        (["corpus.tsv"], ["gone.txt", *(f"notes/a.txt#{n}" for n in (1, 2, 3, 4))]),
    ],
)
def test_documents_lists_of_ids_and_corpora_are_deleted(tmp_path, monkeypatch, given, left):
    """An id or a document of the index comes before a file of the same name."""
    monkeypatch.chdir(tmp_path)
    index = of_documents(tmp_path)
    (tmp_path / "gone.txt").write_text("b.md#1\n")
    (tmp_path / "list.txt").write_text("notes/a.txt\nb.md#1\n")
    collection(tmp_path / "corpus.jsonl", {"b.md#1": "x"})
    (tmp_path / "corpus.tsv").write_text("b.md#1\tx\ty\n")
    done = rkit(index, *(word for one in given for word in ("--delete", one)))
    assert done.exit_code == 0, done.stderr
    assert sorted(found(index)[0][0]) == left


@pytest.mark.parametrize("passages", [True, False])
def test_a_document_added_again_in_fewer_passages_loses_the_others(tmp_path, tiny_model, passages):
    """Its first passages are all given; where only some are, as of a corpus with ids of its own, the others stay."""
    texts = {f"a.txt#{n}": f"passage {n}" for n in (1, 2, 3)} | {"b.txt#1": "b"}
    options = encoding.EncodingOptions(pooler="mean", precision="fp32")
    build = {"side": "document", "options": options}
    encoding.encode(tiny_model, collection(tmp_path / "a.jsonl", texts), output=tmp_path / "va", **build)
    build_index(tmp_path / "va", output=tmp_path / "index")
    again = collection(tmp_path / "b.jsonl", {"a.txt#1": "passage 1"})
    some = collection(tmp_path / "c.jsonl", {"a.txt#2": "other"})
    if not passages:
        again, some = (
            encoding.encode(tiny_model, one, output=tmp_path / f"v{one.name}", **build) and tmp_path / f"v{one.name}"
            for one in (again, some)
        )
    assert change_index(tmp_path / "index", add=some).deleted == 0
    assert change_index(tmp_path / "index", add=again).deleted == 2
    assert sorted(open_corpus(read_manifest(tmp_path / "index", "index")["corpus"]["path"]).ids()) == [
        "a.txt#1",
        "b.txt#1",
    ]


def test_compacting_is_reported(index, tmp_path):
    assert rkit(index, "--compact").stdout == f"{index}: nothing to change; 5 texts in 1 segment\n"
    for name in "fg":
        change_index(index, add=write(tmp_path / name, [name], checkpoint="m"))
    assert json.loads(rkit(index, "--compact", "--json").stdout)["compacted"] == 3
    change_index(index, delete=["f"])
    assert rkit(index, "--compact").stdout == f"{index}: compacted; 6 texts in 1 segment\n"


def test_an_altered_segment_is_found(index, tmp_path):
    change_index(index, add=write(tmp_path / "more", ["f"], seed=1), delete=["a"])
    for path in [next((index / "segments").glob("deleted-*")), next((index / "segments").glob("*/vectors/vectors-*"))]:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ArtifactError, match="was altered"):
            open_index(index)
        path.write_bytes(content)
