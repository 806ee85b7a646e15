"""`rkit index INDEX --add`, `--delete`, `--compact`: encoded texts, open readers, killed changes."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import retrievalkit as rk
from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.contracts import Representation
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import Query
from retrievalkit.errors import ArtifactError, InputError, OptionError
from retrievalkit.indexing import change as change_module
from retrievalkit.indexing import corpus_encoding
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.change import change_index
from retrievalkit.indexing.open_indexes import open_index
from retrievalkit.search.searcher import Searcher
from retrievalkit.storage import read_manifest
from vector_folders import write as write_store

DIM = 16


def write(folder, ids, seed=0, checkpoint=None):
    """A vectors folder."""
    vectors = np.random.default_rng([seed, len(ids)]).standard_normal((len(ids), DIM)).astype(np.float32)
    extra = {} if checkpoint is None else {"checkpoint": {"path": checkpoint, "fingerprint": checkpoint * 32}}
    return write_store(folder, ids=ids, vectors=vectors, **extra).folder


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


def collection(path, texts, of=()):
    """A corpus; `of` maps the documents that its texts were cut from to their numbers of passages."""
    path.write_text("".join(json.dumps(row) + "\n" for row in cut_rows(texts, of)))
    return path


def cut_rows(texts, of):
    for name, text in texts.items():
        document, _, number = name.rpartition("#")
        is_cut = document in of and int(number) <= of[document]
        cut = {"cut": {"document": document, "number": int(number), "of": of[document]}} if is_cut else {}
        yield {"_id": name, "title": "", "text": text, **cut}


def encoded(model, folder, texts, of=()):
    """An index of texts encoded by a model."""
    options = corpus_encoding.EncodingOptions(pooler="mean", precision="fp32")
    corpus, vectors = collection(folder.with_suffix(".jsonl"), texts, of), folder.with_suffix(".vectors")
    corpus_encoding.encode(model, corpus, output=vectors, side="document", options=options)
    build_index(vectors, output=folder)
    return folder


def test_only_new_and_changed_texts_are_encoded(tiny_model, tiny_collection, tmp_path, monkeypatch):
    """By the index's model; the result is the same as encoding all texts again."""
    texts = {one.id: one.text for one in open_corpus(tiny_collection.corpus)}
    names = list(texts)
    changed, new = names[3], names[30:]
    index = encoded(tiny_model, tmp_path / "a", {name: texts[name] for name in names[:30]} | {changed: "another text"})
    seen = []

    def watched(model, given, **options):
        seen.extend(one.id for one in open_corpus(given))
        return corpus_encoding.encode(model, given, **options)

    monkeypatch.setattr(change_module, "encode", watched)
    for counts in ((len(new), 1, 29), (0, 0, len(texts))):
        outcome = json.loads(rkit(index, "--add", collection(tmp_path / "b.jsonl", texts), "--json").stdout)
        assert (outcome["added"], outcome["changed"], outcome["unchanged"]) == counts
    assert seen == [changed, *new]
    assert read_manifest(index, "index")["change"] == 1

    order = [*(name for name in names[:30] if name != changed), changed, *new]
    anew = encoded(tiny_model, tmp_path / "c", {name: texts[name] for name in order})
    rankings = []
    for place in (index, anew):
        searcher = Searcher([place])
        rankings.append(searcher.search(searcher.ask([Query("q", texts[changed])]), 10, None).rankings[0])
    assert rankings[0][0] == rankings[1][0]
    np.testing.assert_allclose(rankings[0][1], rankings[1][1], rtol=1e-5)
    corpus = read_manifest(index, "index")["corpus"]
    assert list(open_corpus(corpus["path"])) == list(open_corpus(tmp_path / "c.jsonl"))
    assert corpus["fingerprint"] == read_manifest(anew, "index")["corpus"]["fingerprint"]


def test_texts_under_other_ids_keep_their_vectors(tiny_model, tiny_collection, tmp_path, monkeypatch):
    """Renamed texts, also texts that swap ids, are not encoded again; hits are the same as those of a new index."""
    texts = {one.id: one.text for one in open_corpus(tiny_collection.corpus)}
    first, second, third, *others = texts
    before = {name: texts[name] for name in (first, second, third, *others[:5])}
    after = {name: texts[name] for name in others[:6]} | {first: texts[second], second: texts[first]}
    after |= {"renamed": texts[third]}
    index = encoded(tiny_model, tmp_path / "a", before)
    seen = []

    def watched(model, given, **options):
        seen.extend(one.text for one in open_corpus(given))
        return corpus_encoding.encode(model, given, **options)

    monkeypatch.setattr(change_module, "encode", watched)
    outcome = change_index(index, add=collection(tmp_path / "b.jsonl", after), mirror=True)
    assert seen == [texts[others[5]]]
    assert (outcome.added, outcome.changed, outcome.deleted, outcome.unchanged, outcome.encoded) == (2, 2, 1, 5, 1)
    anew = encoded(tiny_model, tmp_path / "c", after)
    (ids, scores), (ids_anew, scores_anew) = (
        searcher.search(searcher.ask([Query("q", texts[third])]), 20, None).rankings[0]
        for searcher in (Searcher([index]), Searcher([anew]))
    )
    assert ids == ids_anew
    np.testing.assert_allclose(scores, scores_anew, rtol=1e-5)
    outcome = change_index(index, add=collection(tmp_path / "d.jsonl", {"again": texts[third]}))
    assert (outcome.added, outcome.encoded) == (1, 0)


def test_a_mirror_deletes_texts_that_are_not_in_the_passages(tiny_model, tmp_path):
    texts = {name: f"text of {name}" for name in "abcd"}
    index = encoded(tiny_model, tmp_path / "a", texts)
    outcome = change_index(index, add=collection(tmp_path / "b.jsonl", {"a": texts["a"], "e": "another"}), mirror=True)
    assert (outcome.added, outcome.deleted, outcome.texts) == (1, 3, 2)
    with pytest.raises(InputError, match="has none of the texts of"):
        change_index(index, add=collection(tmp_path / "c.jsonl", {"x": "of another collection"}), mirror=True)
    assert change_index(index, add=collection(tmp_path / "d.jsonl", {"z": "another"}), mirror=True).encoded == 0
    assert "Set add" in rkit(index, "--mirror").stderr


def test_an_open_reader_keeps_its_state(index, tmp_path):
    reader = open_index(index)
    before = found(reader)
    change_index(index, add=write(tmp_path / "more", ["f", "a"], seed=1, checkpoint="m"))
    second = open_index(index)
    between = found(second)
    change_index(index, delete=["b"], compact=True)
    assert found(reader) == before
    assert found(second) == between
    assert found(index)[0] != between[0] != before[0]
    assert not (index / "vectors").exists()
    assert len([path for path in (index / "segments").iterdir() if path.is_dir()]) == 1


@forks
@pytest.mark.parametrize(("owner", "name"), [(os, "replace"), (pathlib.Path, "rename"), (storage, "describe_file")])
def test_a_killed_change_leaves_the_old_or_the_new_index(index, tmp_path, owner, name):
    """Killed at each file that is renamed; the same command completes the change."""
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


def test_wrong_changes_are_refused(index, tmp_path):
    with pytest.raises(OptionError, match="nothing to change"):
        change_index(index)
    with pytest.raises(ArtifactError, match="does not exist"):
        change_index(tmp_path / "nowhere", compact=True)
    with pytest.raises(ArtifactError, match="not comparable"):
        change_index(index, add=write(tmp_path / "more", ["f"], checkpoint="x"))
    assert not (tmp_path / "nowhere").exists()
    assert "segments" not in read_manifest(index, "index")


A = [f"notes/a.txt#{number}" for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("ids", "left"),
    [
        (["notes/a.txt"], ["b.md#1", "gone.txt"]),
        (["notes/a.txt#2", "b.md"], ["gone.txt", A[0], *A[2:]]),
        (["gone.txt"], ["b.md#1", *A]),
        (["list.txt"], ["gone.txt"]),
        (["corpus.jsonl"], ["gone.txt", *A]),
        (["corpus.tsv"], ["gone.txt", *A]),
        (["b.md", "x.txt"], "1 of the 2 ids to delete"),
        (["notes/a.tx"], "did you mean 'notes/a.txt'"),
        (["notes/a.txt#5"], "did you mean 'notes/a.txt"),
        (["unknown.txt"], "2 of the 3 ids to delete (read from unknown.txt): nowhere, elsewhere"),
        (["../notes/a.txt"], "did you mean 'notes/a.txt'"),
        (["folder"], "folder"),
    ],
)
def test_documents_lists_of_ids_and_corpora_are_deleted(tmp_path, monkeypatch, ids, left):
    """Ids of texts and documents take precedence over file names; with an unknown id, nothing is deleted."""
    monkeypatch.chdir(tmp_path)
    rows = cut_rows(dict.fromkeys([*A, "b.md#1", "gone.txt"], "x"), {"notes/a.txt": 4, "b.md": 1})
    rk.Index.build(list(rows), vectors=np.eye(6, DIM, dtype=np.float32), output=tmp_path / "index")
    files = {"gone.txt": "b.md#1\n", "list.txt": "notes/a.txt\nb.md#1\n", "unknown.txt": "b.md\nnowhere\nelsewhere\n"}
    for name, text in {**files, "corpus.tsv": "b.md#1\tx\ty\n"}.items():
        (tmp_path / name).write_text(text)
    collection(tmp_path / "corpus.jsonl", {"b.md#1": "x"})
    (tmp_path / "folder").mkdir()
    done = rkit("index", *(word for one in ids for word in ("--delete", one)))
    if refused := isinstance(left, str):
        assert left in done.stderr
    assert done.exit_code == (2 if refused else 0)
    assert sorted(found("index")[0][0]) == sorted(["b.md#1", "gone.txt", *A] if refused else left)


@pytest.mark.parametrize("own", ["tools#{}", "CVE-2024#{}", "a#b#{}", "#{}", "x#0{}"])
def test_ids_of_the_users_own_are_changed_one_by_one(tmp_path, own):
    """An id that looks like that of a passage is an id like any other, unless rkit has cut the passage."""
    names = [own.format(number) for number in range(1, 7)]
    rows, vectors = [{"id": name, "text": f"ticket {name}"} for name in names], np.eye(6, DIM, dtype=np.float32)
    index = rk.Index.build(rows, vectors=vectors, output=tmp_path / "index")
    index.add([{"id": names[0], "text": "resolved"}], vectors=vectors[:1])
    assert sorted(index.search(vectors[:1], k=10, by="document")["0"]) == sorted(index.search(vectors[:1], k=10)["0"])
    index.delete(names[1])
    with pytest.raises(InputError, match="does not contain"):
        index.delete(names[0].rpartition("#")[0] or "#")
    assert {name for name, _ in index.search(vectors[:1], k=10)["0"]} == {*names} - {names[1]}
    assert not index.searcher.documents


def test_a_record_that_a_text_lacked_is_added_to_the_index(tmp_path):
    """An index without records gets them from the same passages, without a change of its texts."""
    texts, vectors = {f"a.txt#{n}": f"passage {n}" for n in (1, 2)}, np.eye(2, DIM, dtype=np.float32)
    index = rk.Index.build(list(cut_rows(texts, {})), vectors=vectors, output=tmp_path / "index")
    assert index.add(list(cut_rows(texts, {"a.txt": 2})))["unchanged"] == 2
    assert index.search(vectors[0], k=5)[0].id == "a.txt"
    assert index.delete("a.txt#1")["deleted"] == 1
    assert index.document("a.txt").text == "passage 2"


@pytest.mark.parametrize("passages", [True, False])
def test_a_document_with_fewer_passages_loses_the_others(tmp_path, tiny_model, passages):
    """Only passages beyond its new number of passages; passages that are merely not added again stay."""
    texts = {f"a.txt#{n}": f"passage {n}" for n in (1, 2, 3)} | {"b.txt#1": "b", "a.txt#7": "my own"}
    index = encoded(tiny_model, tmp_path / "a", texts, {"a.txt": 3, "b.txt": 1})
    for name, new, count, deleted in (
        ("c", {"a.txt#2": "other"}, 3, 0),
        ("b", {"a.txt#1": "passage 1"}, 1, 2),
        ("d", {"a.txt#1": "passage 1", "a.txt#2": "longer"}, 2, 0),
    ):
        if passages:
            more = collection(tmp_path / "more.jsonl", new, {"a.txt": count})
        else:
            more = encoded(tiny_model, tmp_path / name, new, {"a.txt": count}).with_suffix(".vectors")
        assert change_index(index, add=more).deleted == deleted
        assert change_index(index, add=more).deleted == 0
    corpus = open_corpus(read_manifest(index, "index")["corpus"]["path"])
    cuts = {passage.id: passage.cut and (passage.cut.document, passage.cut.of) for passage in corpus}
    assert cuts == {"a.txt#1": ("a.txt", 2), "a.txt#2": ("a.txt", 2), "b.txt#1": ("b.txt", 1), "a.txt#7": None}
    assert open_index(index).documents == {"a.txt": 2, "b.txt": 1}


def test_repeated_deletions_and_compacting_are_reported(index, tmp_path):
    """A killed command may be repeated; after another change, its ids are unknown."""
    assert rkit(index, "--compact").stdout == f"{index}: nothing to change; 5 texts in 1 segment\n"
    for name, code in (("a", 0), ("a", 0), ("b", 0), ("a", 2)):
        assert rkit(index, "--delete", name).exit_code == code
    assert rkit(index, "--delete", "b").stdout == f"{index}: nothing to change; 3 texts in 1 segment\n"
    for name in "fg":
        change_index(index, add=write(tmp_path / name, [name], checkpoint="m"))
    assert json.loads(rkit(index, "--compact", "--json").stdout)["compacted"] == 3
    change_index(index, delete=["f"])
    assert rkit(index, "--compact").stdout == f"{index}: compacted; 4 texts in 1 segment\n"


def test_an_altered_segment_is_refused(index, tmp_path):
    change_index(index, add=write(tmp_path / "more", ["f"], seed=1), delete=["a"])
    for path in [next((index / "segments").glob("deleted-*")), next((index / "segments").glob("*/vectors/vectors-*"))]:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ArtifactError, match="was altered"):
            open_index(index)
        path.write_bytes(content)
