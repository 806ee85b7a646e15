"""`rkit sync` from the user's side: reading, reports, refusals and searches."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from document_folders import CITIES, rkit, write
from retrievalkit_documents import collection as collection_module
from retrievalkit_testing import tiny_model

import retrievalkit as rk
from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import InputError
from retrievalkit.storage import read_manifest


def passages(place):
    """The text of each passage in an index, by id."""
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
    """Tables with an id column or ids by content, passages of long rows, and named fields."""
    (docs / "faq.csv").write_text("question,answer,id\nHow to pay?,By card,r1\nRefunds?," + "word " * 30 + ",r2\n")
    (docs / "lines.jsonl").write_text(json.dumps({"text": "without an id"}) + "\n")
    sync("--text-field", "answer", "--title-field", "question", "--passages", "100")
    held = passages(tmp_path / "index" / "dense")
    assert {name for name in held if name.startswith("faq")} == {"faq.csv/r1#1", "faq.csv/r2#1", "faq.csv/r2#2"}
    assert [text for name, text in held.items() if name.startswith("lines.jsonl/")] == ["without an id"]
    (docs / "faq.csv").write_text("question,answer,id\nHow to pay?,By card,r1\n")
    report = sync()  # with the same fields
    assert report["passages"] == {"added": 0, "changed": 0, "removed": 2, "unchanged": 7}


TABLES = {
    "named.csv": ('sep=;\r\nid;text;price\r\n1;"a ""quoted"" text; here";3,50\r\n', 'a "quoted" text; here'),
    "unnamed.csv": ('name,price\nZebra,42\n"Multi\nline",7\n', "name: Zebra | price: 42"),
    "tabs.tsv": ("question\tanswer\nwhy?\tbecause\n", "question: why? | answer: because"),
    "encoded.csv": ("id,text\n1,caf\xe9\n".encode("latin-1"), "caf\xe9"),
}


def test_tables_of_spreadsheet_programs_are_read(sync, docs, tmp_path):
    """With `sep=`, in a local encoding, and without a column of texts."""
    for name, (content, _) in TABLES.items():
        (docs / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert sync()["skipped"] == {}
    held = passages(tmp_path / "index" / "dense")
    assert {name for name, (_, text) in TABLES.items() if text not in held.values()} == set()


def test_files_that_cannot_be_read_are_listed_by_reason(sync, docs):
    (docs / "a.docx").write_bytes(b"PK broken")
    (docs / "b.docx").write_bytes(b"no archive")
    (docs / "empty.txt").write_text(" ")
    (docs / "binary.txt").write_bytes(b"\0\1")
    (docs / "header.csv").write_text("x,y\n")
    (docs / "image.png").write_bytes(b"png")
    (docs / ".hidden.txt").write_text("hidden")
    (docs / "new\nline.txt").write_text("a text")
    (docs / os.fsdecode(b"caf\xe9.txt")).write_text("a text")
    skipped = sync()["skipped"]
    assert skipped == {
        "not a table with a header and rows": ["header.csv"],
        "damaged": ["a.docx", "b.docx"],
        "without text": ["empty.txt"],
        "binary": ["binary.txt"],
        ".png": ["image.png"],
        "hidden": [".hidden.txt"],
        "with a name that cannot be an id": ["caf\udce9.txt", "new\nline.txt"],
    }
    assert "new\\x0aline.txt" in rkit("sync", docs, docs.parent / "index")
    write(docs / "a.docx", "whole again")
    assert sync()["documents"]["added"] == ["a.docx"]


def test_only_regular_files_of_the_folder_are_read(sync, docs, tmp_path):
    """Links out of it, pipes, files of the kernel and sparse files are listed, by reason."""
    (tmp_path / "private.txt").write_text("SECRET key")
    links = {"out.txt": tmp_path / "private.txt", "kernel.txt": "/proc/self/pagemap", "device.txt": "/dev/zero"}
    links |= {"inside.txt": "rome.txt", "loop.txt": "loop.txt", "hidden.txt": ".hidden/note.txt", "folder": tmp_path}
    for name, target in links.items():
        (docs / name).symlink_to(target)
    write(docs / ".hidden" / "note.txt", "A note of the Tiber.")
    os.mkfifo(docs / "pipe.txt")
    os.link(docs / "rome.txt", docs / "hard.txt")
    for name in ("sparse.txt", "sparse.csv", "sparse.pdf"):
        (docs / name).touch()
        os.truncate(docs / name, 1 << 40)
    skipped = sync()["skipped"]
    assert {reason: names for reason, names in skipped.items() if "symbolic" not in reason} == {
        "links out of the folder, to be replaced by the files": ["device.txt", "kernel.txt", "out.txt"],
        "links to other files of the folder": ["inside.txt"],
        "links to folders": ["folder"],
        "hidden": [".hidden/"],
        "not a regular file": ["pipe.txt"],
        "sparse files": ["sparse.csv", "sparse.pdf"],
        "larger than 64 MiB": ["sparse.txt"],
    }
    held = passages(tmp_path / "index" / "dense")
    assert "SECRET" not in "".join(held.values())
    assert {"hard.txt#1", "hidden.txt#1"} <= held.keys()
    link = tmp_path / "link"
    link.symlink_to(docs)
    assert json.loads(rkit("sync", link, tmp_path / "index", "--json"))[0]["documents"]["unchanged"] == 7
    assert "kernel file" in rkit("sync", "/proc", tmp_path / "other", code=2)


def test_damaged_rows_of_a_table_are_left_out_and_counted(sync, docs, tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    rows = ['{"text": "a good row"}', "no json", '{"text": "half \\ud800"}', "[1]", f'{{"text": "x", "a": {deep}}}']
    (docs / "rows.jsonl").write_text("\n".join([*rows, '{"text": "the last row"}']))
    (docs / "short.csv").write_text("docid,body\n1,alpha\n2\n3,gamma\n")
    for synced in range(2):
        skipped = {names[0]: reason for reason, names in sync()["skipped"].items()}
        assert skipped["rows.jsonl"].startswith("4 rows left out, the first in line 2: broken JSON"), synced
        assert skipped["short.csv"].startswith("1 row left out, the first in line 3: the row has 1 column"), synced
    held = passages(tmp_path / "index" / "dense")
    assert {text for name, text in held.items() if ".jsonl" in name} == {"a good row", "the last row"}
    assert {name for name in held if ".csv" in name} == {"short.csv/1#1", "short.csv/3#1"}


def test_a_file_at_which_a_reader_fails_ends_no_sync(sync, docs, monkeypatch):
    from retrievalkit_documents import folder

    read, errors = folder.passage_of, iter([RecursionError(), MemoryError()])

    def fails(record):
        if record.file.endswith(".txt"):
            raise next(errors)
        return read(record)

    monkeypatch.setattr(folder, "passage_of", fails)
    assert sync()["skipped"] == {
        "that the reader cannot read (RecursionError)": ["berlin.txt"],
        "that the reader cannot read (MemoryError)": ["rome.txt"],
    }


def test_a_damaged_state_is_not_believed(sync, docs, tmp_path):
    """The folder is read again, and the indexes stay as they are."""
    sync()
    index = tmp_path / "index"
    for kind in (".files-*.json", ".passages-*.jsonl"):
        for content in ("", "[]", "[" * 100_000, '{"rome.txt": [["x"], "d", -5, "", ""]}', None):
            (path,) = index.glob(kind)
            path.write_text(content) if content is not None else os.truncate(path, 1 << 40)
            report = sync()
            assert (report["read"], report["encoded"], report["passages"]["unchanged"]) == (5, 0, 5), content
    assert sync()["read"] == 0


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        *(("listing", value) for value in ("/dev/zero", "../other", "a\0b", "", 5, None, {})),
        *(("passages", value) for value in ("/dev/zero", "../other", 5)),
        *(("holds", value) for value in (5, None, {"dense": 5}, {"../x": ["x", 0]})),
        *(("options", value) for value in ({"passages": "3"}, {"passages": -1}, {"passages": True}, {"id_field": 5})),
        *(("inputs", value) for value in ({}, {"folder": {}}, {"folder": {"path": 5, "fingerprint": "x"}})),
    ],
)
def test_a_manifest_with_other_values_is_an_error_or_read_again(collection, docs, tmp_path, entry, value):
    shutil.copytree(collection, tmp_path / "copy")
    manifest = tmp_path / "copy" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {entry: value}))
    done = CliRunner().invoke(main, ["sync", str(docs), str(tmp_path / "copy"), "--dry-run"])
    assert done.exit_code in (0, 2), done.output
    assert done.exit_code == 0 or "manifest.json' is damaged: " in done.stderr


@pytest.fixture(scope="session")
def collection(tmp_path_factory, tiny_model):
    """A collection of a single document."""
    place = tmp_path_factory.mktemp("collection")
    write(place / "docs" / "rome.txt", CITIES["rome"])
    rk.sync(place / "docs", place / "index", model=tiny_model)
    return place / "index"


@pytest.mark.parametrize("name", ["dense", "manifest.json", "corpus.jsonl", ".syncing", ".building"])
@pytest.mark.parametrize("plant", ["link", "pipe"])
def test_links_and_pipes_inside_a_collection_are_refused(collection, docs, tmp_path, name, plant):
    """A sync would empty another index, or wait forever."""
    for copy in ("ours", "other"):
        shutil.copytree(collection, tmp_path / copy)
    path, other = tmp_path / "ours" / name, tmp_path / "other"
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(other / name if (other / name).exists() else other) if plant == "link" else os.mkfifo(path)
    before = {file: file.read_bytes() for file in other.rglob("*") if file.is_file()}
    assert name in rkit("sync", docs, tmp_path / "ours", code=2)
    assert before == {file: file.read_bytes() for file in other.rglob("*") if file.is_file()}


def test_a_folder_that_lost_everything_is_refused(sync, docs, tmp_path):
    """As with an unmounted disk: the error gives advice, and nothing is deleted."""
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
    first, second = (json.loads(rkit(*words, *more))[0] for more in (("--passages", 60), ()))
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


def test_the_language_is_detected_kept_and_set(docs, tiny_model, tmp_path):
    """Another language builds the bm25 index again; a language that it cannot have is refused before reading."""
    shutil.rmtree(docs)
    write(docs / "a.txt", "Die alten Häuser am Hafen wurden im letzten Sommer an Kaufleute aus dem Norden verkauft.")
    place = tmp_path / "index"
    synced = ("sync", docs, place, "--model", tiny_model)

    def state():
        options = json.loads((place / "bm25" / "manifest.json").read_text())["indexer"]["options"]
        hits = json.loads(rkit("search", place / "bm25", "--query", "haus", "--json"))["hits"]
        return options["language"], len(hits)

    assert "xx" in rkit(*synced, "--language", "xx", code=2)
    assert not place.exists()
    rkit(*synced)
    assert state() == ("de", 1)
    write(docs / "b.txt", "Im Winter verkauften die Kaufleute ihre Schiffe und zogen in das kleine Haus am Berg.")
    assert json.loads(rkit(*synced, "--json"))[0]["read"] == 1
    assert state() == ("de", 2)
    report = json.loads(rkit(*synced, "--language", "en", "--json"))[0]
    assert (report["read"], state()) == (0, ("en", 1))
    rkit(*synced, "--language", "auto")
    rkit(*synced)
    assert state() == ("de", 2)
    assert "no bm25 index" in rkit("sync", docs, place / "dense", "--language", "de", code=2)


def test_the_default_model_reads_english_which_is_noted_for_other_languages(docs, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(collection_module, "default_model", lambda: str(tiny_model))
    shutil.rmtree(docs)
    write(docs / "a.txt", "Die alten Häuser am Hafen wurden im letzten Sommer an Kaufleute aus dem Norden verkauft.")
    with pytest.raises(InputError, match="trained on English, and the texts have the language de"):
        rk.sync(docs, tmp_path / "index", language="de", strict=True)
    rk.sync(docs, tmp_path / "english", language="en", strict=True)


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
    monkeypatch.setattr("retrievalkit_documents.collection._MOST_SEGMENTS", 3)
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
