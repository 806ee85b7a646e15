"""`rkit sync` as its users see it: what is read, what is listed, what is refused, and what is searched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from document_folders import CITIES, rkit, write
from retrievalkit_testing import tiny_model

import retrievalkit as rk
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import InputError
from retrievalkit.storage import read_manifest


def passages(place):
    """The id -> the text of each passage that an index holds."""
    return {passage.id: passage.text for passage in open_corpus(read_manifest(place, "index")["corpus"]["path"])}


def test_a_new_name_becomes_a_collection_that_is_searched(sync, tmp_path):
    report = sync()
    assert report["documents"]["added"] == ["berlin.txt", "london.docx", "paris.md", "prague.html", "rome.txt"]
    assert (report["read"], report["encoded"], report["skipped"]) == (5, 5, {})
    assert passages(tmp_path / "index" / "dense")["london.docx#1"] == CITIES["london"]
    assert passages(tmp_path / "index" / "dense") == passages(tmp_path / "index" / "bm25")
    assert {passage.id for passage in open_corpus(tmp_path / "index")} == set(passages(tmp_path / "index" / "dense"))
    hits = json.loads(rkit("search", tmp_path / "index", "--query", "Vltava Prague", "--json"))["hits"]
    assert "prague.html" in [hit["id"] for hit in hits]
    assert rk.Collection(tmp_path / "index").open().search("Vltava Prague")[0].id in [hit["id"] for hit in hits]
    assert {part.name for part in rk.Hybrid(tmp_path / "index").parts} == {"dense", "bm25"}
    with pytest.raises(InputError, match=r"rk.Hybrid\('.*index'\)"):
        rk.Index.open(tmp_path / "index")


def test_only_what_is_new_is_read_and_encoded(sync, docs, tmp_path):
    sync()
    assert (sync()["read"], sync()["encoded"]) == (0, 0)
    os.utime(docs / "rome.txt")
    (docs / "paris.md").rename(docs / "lutetia.md")
    (docs / "sub").mkdir()
    (docs / "prague.html").rename(docs / "sub" / "prague.html")
    write(docs / "berlin.txt", "Berlin was divided.")
    (docs / "london.docx").unlink()
    write(docs / "new.md", "# A heading\n\nA new text.")
    listed = sync("--dry-run")
    report = sync()
    assert (
        listed["documents"]
        == report["documents"]
        == {
            "added": ["new.md"],
            "changed": ["berlin.txt"],
            "removed": ["london.docx"],
            "renamed": [["paris.md", "lutetia.md"], ["prague.html", "sub/prague.html"]],
            "unchanged": 1,
        }
    )
    assert report["encoded"] == 2
    held = passages(tmp_path / "index" / "dense")
    assert set(held) == {"berlin.txt#1", "lutetia.md#1", "new.md#1", "rome.txt#1", "sub/prague.html#1"}
    assert held["berlin.txt#1"] == "Berlin was divided."


def test_a_file_that_is_replaced_by_one_of_the_same_size_and_time_is_read(sync, docs, tmp_path):
    write(docs / "other", "AAAA")
    write(docs / "a.txt", "BBBB")
    for name in ("other", "a.txt"):
        os.utime(docs / name, (1, 1))
    sync()
    (docs / "other").rename(docs / "a.txt")
    assert sync()["documents"]["changed"] == ["a.txt"]
    assert passages(tmp_path / "index" / "dense")["a.txt#1"] == "AAAA"


def test_rows_of_tables_are_documents(sync, docs, tmp_path):
    """With the id column, or ids of their content; passages of long rows; fields that are named."""
    (docs / "faq.csv").write_text("question,answer,id\nHow to pay?,By card,r1\nRefunds?," + "word " * 150 + ",r2\n")
    (docs / "lines.jsonl").write_text(json.dumps({"text": "without an id"}) + "\n")
    sync("--text-field", "answer", "--title-field", "question", "--passages", "100")
    held = passages(tmp_path / "index" / "dense")
    assert {name for name in held if name.startswith("faq")} == {"faq.csv/r1#1", "faq.csv/r2#1", "faq.csv/r2#2"}
    assert [text for name, text in held.items() if name.startswith("lines.jsonl/")] == ["without an id"]
    (docs / "faq.csv").write_text("question,answer,id\nHow to pay?,By card,r1\n")
    report = sync()  # with the same fields
    assert report["passages"] == {"added": 0, "changed": 0, "removed": 2, "unchanged": 7}


def test_files_that_cannot_be_read_are_listed_by_reason(sync, docs):
    (docs / "a.docx").write_bytes(b"PK broken")
    (docs / "b.docx").write_bytes(b"no archive")
    (docs / "empty.txt").write_text(" ")
    (docs / "binary.txt").write_bytes(b"\0\1")
    (docs / "numbers.csv").write_text("x,y\n1,2\n")
    (docs / "image.png").write_bytes(b"png")
    (docs / ".hidden.txt").write_text("hidden")
    (docs / "new\nline.txt").write_text("a text")
    (docs / os.fsdecode(b"caf\xe9.txt")).write_text("a text")
    skipped = sync()["skipped"]
    reason = next(name for name in skipped if "field" in name)
    assert "fields are x, y" in reason
    assert {name: paths for name, paths in skipped.items() if name != reason} == {
        "damaged": ["a.docx", "b.docx"],
        "without text": ["empty.txt"],
        "binary": ["binary.txt"],
        ".png": ["image.png"],
        "with a name that cannot be an id": ["caf\udce9.txt", "new\nline.txt"],
    }
    assert "new\\x0aline.txt" in rkit("sync", docs, docs.parent / "index")
    write(docs / "a.docx", "whole again")
    assert sync()["documents"]["added"] == ["a.docx"]


def test_a_folder_that_lost_everything_is_refused(sync, docs, tmp_path):
    """As where a disk is not mounted: the message says what to do, and nothing is deleted."""
    sync()
    held = passages(tmp_path / "index" / "dense")
    words = ("sync", docs, tmp_path / "index")
    shutil.move(docs, tmp_path / "away")
    assert "does not exist. Nothing was changed" in rkit(*words, code=2)
    docs.mkdir()
    assert "mount it" in rkit(*words, code=2)
    write(docs / "other.txt", "of another folder")
    assert "has none of the texts of" in rkit(*words, code=2)
    docs.joinpath("other.txt").unlink()
    docs.rmdir()
    shutil.move(tmp_path / "away", docs)
    assert sync()["documents"]["unchanged"] == 5
    assert passages(tmp_path / "index" / "dense") == held


def test_an_index_that_was_built_before_is_synced(docs, tiny_model, tmp_path):
    """Texts without a title of their own lose the name of the file as their title."""
    rkit("convert", docs, tmp_path / "corpus.jsonl", "--passages", 20)
    rkit("encode", tiny_model, tmp_path / "corpus.jsonl", "--output", tmp_path / "vectors")
    rkit("index", tmp_path / "vectors", "--indexer", "faiss", "--output", tmp_path / "index")
    words = ("sync", docs, tmp_path / "index", "--json")
    first, second = (json.loads(rkit(*words, *more))[0] for more in (("--passages", 20), ()))
    assert first["passages"] == {"added": 0, "changed": 5, "removed": 0, "unchanged": 0}
    assert second["read"] == 0
    (docs / "rome.txt").unlink()
    assert json.loads(rkit(*words))[0]["passages"]["removed"] == 1
    hits = json.loads(rkit("search", tmp_path / "index", "--query", "Rome", "--json"))["hits"]
    assert len(hits) == 4


def test_another_model_is_refused(sync, docs, tmp_path):
    sync()
    other = tiny_model(tmp_path / "other", seed=1)
    assert "is another model than" in rkit("sync", docs, tmp_path / "index", "--model", other, code=2)


def test_a_collection_inside_its_folder_is_no_part_of_it(docs, tiny_model, monkeypatch):
    monkeypatch.chdir(docs)
    for _ in range(2):
        report = json.loads(rkit("sync", ".", "index", "--model", tiny_model, "--json"))[0]
    assert (report["documents"]["unchanged"], report["skipped"]) == (5, {"folders that rkit wrote": ["index"]})


def test_other_folders_are_no_collections(docs, tiny_model, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    assert "not a collection or an index" in rkit("sync", docs, tmp_path / "full", code=2)
    rkit("encode", tiny_model, f"documents:{docs}", "--output", tmp_path / "vectors")
    assert "is a vectors folder" in rkit("sync", docs, tmp_path / "vectors", code=2)


def test_many_changes_are_compacted(sync, docs, tmp_path, monkeypatch):
    monkeypatch.setattr("retrievalkit_sync.collection._MOST_SEGMENTS", 3)
    sync()
    for number in range(4):
        write(docs / "rome.txt", f"Rome number {number}.")
        sync()
    assert len(read_manifest(tmp_path / "index" / "dense", "index")["segments"]) < 4
    assert passages(tmp_path / "index" / "dense")["rome.txt#1"] == "Rome number 3."


def test_fields_of_documents_reach_the_index_and_cost_no_encoding(sync, docs):
    """Front matter of Markdown, and columns of tables."""
    (docs / "paris.md").write_text("---\nyear: 2020\n---\nParis lies on the Seine.")
    (docs / "faq.csv").write_text("id,text,source\nr1,How to pay,faq\n")
    sync()
    (docs / "paris.md").write_text("---\nyear: 2021\n---\nParis lies on the Seine.")
    report = sync()
    assert (report["encoded"], report["passages"]["changed"]) == (0, 1)
    for condition, name in (("year=2021", "paris.md"), ("source=faq", "faq.csv/r1")):
        words = ("search", docs.parent / "index", "--query", "Paris", "--filter", condition, "--json")
        assert [hit["id"] for hit in json.loads(rkit(*words))["hits"]] == [name]


@pytest.mark.slow
def test_watching_follows_the_folder_until_interrupted(sync, docs, tmp_path):
    sync()
    words = [sys.executable, "-m", "retrievalkit", "sync", str(docs), str(tmp_path / "index"), "--watch"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "Following" in line:
            break
    write(docs / "new.txt", "A new text.")
    for line in process.stderr:
        if "encoded" in line:
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "1 added" in output
    assert "new.txt#1" in passages(tmp_path / "index" / "dense")
