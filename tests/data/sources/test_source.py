"""Sources by address, and sources from a plugin in a local file."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from places import ROOT
from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.kinds import kind_of
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import as_documents, fingerprint, open_source, split_prefix
from retrievalkit.errors import DataError, InputError, MissingDependencyError

PLUGIN = '''
from retrievalkit import hookimpl
from retrievalkit.data.sources import Source


class Films(Source):
    """Films: `films:NUMBER` has this number of films."""

    def passages(self):
        for number in range(int(self.name)):
            yield {"id": f"f{number}", "title": f"Film {number}", "text": f"the plot of part {number}"}

    def queries(self):
        return [{"query_id": "q0", "text": "plot of part 0"}, {"query_id": "q1", "text": "plot of part 1"}]

    def judgements(self, split):
        return [{"query_id": f"q{n}", "doc_id": f"f{n}", "score": 1} for n in range(2)]

    def size(self):
        return int(self.name)


class Lines(Source):
    """A passage per line: `old.lines`."""

    reads_files = True

    def passages(self):
        with open(self.name) as stream:
            for number, line in enumerate(stream):
                yield {"id": str(number), "text": line.strip()}


class NoSource:
    """A class that is not a Source."""

    def __init__(self, name):
        self.name = name


@hookimpl
def register_sources(register):
    register("films", "film_plugin:Films")
    register("lines", "film_plugin:Lines")
    register("wrong", "film_plugin:NoSource")
'''


@pytest.fixture
def films(tmp_path, monkeypatch, fresh_registry):
    """A plugin in a local file."""
    file = tmp_path / "film_plugin.py"
    file.write_text(PLUGIN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", f"{file},{ROOT / 'tests' / 'overlap_plugin.py'}")
    fresh_registry()


def run(*arguments):
    ran = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_a_plugins_source_has_all_parts(films):
    corpus = open_corpus("films:3")
    assert corpus.get("f1") == Passage("f1", "Film 1", "the plot of part 1")
    assert (len(corpus), open_corpus("films:3").expected_size()) == (3, 3)
    assert [query.id for query in read_queries("films:3")] == ["q0", "q1"]
    assert read_qrels("films:3") == {"q0": {"f0": 1}, "q1": {"f1": 1}}
    assert read_examples("films:3", corpus=corpus).rows[0].positives == ("f0",)
    assert open_source("films:3").parts() == ("passages", "queries", "judgements")
    assert kind_of("films:3") == "collection"
    assert fingerprint("films:3") == fingerprint("films:3") != fingerprint("films:4")
    with pytest.raises(registry.PluginError, match="the source 'wrong' is not a Source"):
        open_source("wrong:x")


def test_the_command_line_reads_from_a_plugins_source(films, tmp_path, tiny_model):
    """Index, search, evaluate, mine, train, encode and convert accept it in place of a file."""
    run("index", "films:5", "--indexer", "overlap", "--output", tmp_path / "index")
    run("search", tmp_path / "index", "--queries", "films:5", "--k", 4, "--output", tmp_path / "run.trec")
    run("evaluate", tmp_path / "run.trec", "--qrels", "films:5")
    data = ("--corpus", "films:5", "--examples", "films:5")
    run("mine-negatives", "--from", tmp_path / "run.trec", *data, "--output", tmp_path / "mined.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    assert [row["positives"] for row in rows] == [["f0"], ["f1"]]
    assert all(len(row["negatives"]) == 3 for row in rows)
    run("train", "--model", tiny_model, *data, "--epochs", 0, "--negatives", 0, "--output", tmp_path / "checkpoint")
    run("encode", tmp_path / "checkpoint", "films:5", "--output", tmp_path / "vectors")
    assert json.loads((tmp_path / "vectors" / "manifest.json").read_text())["corpus"]["source"] == "films:5"
    run("convert", "films:5", tmp_path / "converted")
    assert list(open_corpus(tmp_path / "converted")) == list(open_corpus("films:5"))


def test_a_plugins_file_format_is_detected_by_the_extension(films, tmp_path):
    """Registered as "lines", it reads old.lines, with and without the prefix."""
    file = tmp_path / "old.lines"
    file.write_text("one\ntwo\n")
    assert [passage.text for passage in open_corpus(file)] == ["one", "two"]
    assert [passage.text for passage in open_corpus(f"lines:{file}")] == ["one", "two"]


def test_a_part_that_a_source_lacks_is_refused(films, tmp_path):
    (tmp_path / "a.lines").write_text("one\n")
    with pytest.raises(DataError, match=r"a\.lines' has no queries; it has passages\."):
        read_queries(tmp_path / "a.lines")


def test_an_unknown_prefix_names_the_nearest_or_the_distribution_that_provides_it(
    monkeypatch, fresh_registry, tmp_path
):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("a note")
    monkeypatch.setenv("RKIT_PLUGINS", "")
    fresh_registry()
    with pytest.raises(MissingDependencyError, match=r"'pydoc:click' needs .* pip install retrievalkit-pydoc"):
        open_source("pydoc:click")
    with pytest.raises(MissingDependencyError, match=r"pip install 'retrievalkit\[documents\]'"):
        as_documents(folder)
    with pytest.raises(
        InputError,
        match=r"not a known source prefix; did you mean 'json:vaswani'\? Known: csv:, json:",
    ):
        open_source("jso:vaswani")
    with pytest.raises(DataError, match="does not exist"):
        open_source("no/such:file")


def test_a_file_with_a_colon_in_its_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foo:bar").write_text('{"_id": "1", "title": "", "text": "x"}\n')
    assert open_corpus("foo:bar").ids() == ["1"]
    assert split_prefix("foo:bar") == ("", "foo:bar")
    assert split_prefix("irds:beir/fiqa") == ("irds", "beir/fiqa")


def test_parts_and_splits_of_a_folder(tiny_collection, tmp_path):
    source = open_source(tiny_collection.folder)
    assert source.parts() == ("passages", "queries", "judgements")
    assert source.splits() == ["test", "train"]
    assert source.size() == 42
    with pytest.raises(DataError, match="has no queries"):
        read_queries(tmp_path)


PASSAGE = '{{"_id": "{0}", "title": "", "text": "x"}}\n'
EXAMPLE = '{"query_id": "1", "query": "x", "positives": ["corpus.jsonl"], "negatives": []}\n'


def filled(folder, names):
    """Create a folder of files, each with a passage or, depending on its name, a training example."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(EXAMPLE if "mined" in name or "train" in name or name == "0.jsonl" else PASSAGE.format(name))
    return folder


@pytest.mark.parametrize(
    ("read", "unread", "others"),
    [
        ("corpus.jsonl", "faq.jsonl", ""),
        ("corpus.jsonl", "corpus.tsv corpus.jsonl.gz more.JSONL a.jsonl.bz2 x.parquet notes.docx", "README.md LICENSE"),
        ("corpus.jsonl", "old/part.jsonl", "qrels/test.tsv qrels/dev.tsv runs/bm25.trec queries.jsonl queries.dev.tsv"),
        ("corpus.jsonl", "", "train.jsonl mined.jsonl bm25.trec .hidden .git/x manifest.json"),
        ("a.jsonl B.JSONL", "c.parquet guide.pdf old/part.jsonl photo.JPG noending", "queries.jsonl README.md"),
    ],
)
def test_files_of_a_folder_that_are_not_read_are_counted_and_named(tmp_path, read, unread, others):
    """Other parts of a collection, READMEs and hidden files are not counted; --strict refuses the rest."""
    folder = filled(tmp_path / "data", f"{read} {unread} {others}".split())
    (folder / "empty").mkdir()
    command = ["convert", str(folder), str(tmp_path / "out.jsonl"), "--kind", "corpus"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert sorted(passage.id for passage in open_corpus(tmp_path / "out.jsonl")) == sorted(read.split())
    count = len(unread.split())
    assert done.stderr.count("\n") == (count > 0)
    assert not count or f"{count} of the {count + len(read.split())} files" in done.stderr
    for group in {name.partition("/")[0] for name in unread.split()}:
        assert group in done.stderr
    assert CliRunner().invoke(main, [*command, "--strict"]).exit_code == (2 if count else 0)


@pytest.mark.parametrize(
    ("part", "read", "unread", "others"),
    [
        ("queries", "queries.jsonl", "queries.tsv dev-queries.jsonl", "corpus.jsonl qrels.tsv"),
        ("examples", "0.jsonl", "rest.parquet", "README.md"),
        ("examples", "train.jsonl", "train-2.jsonl train.00003.jsonl.gz", "dev.jsonl mined.jsonl corpus.jsonl"),
        ("judgements", "qrels/train.tsv", "qrels/train.trec", "qrels/test.tsv qrels/README queries.train.tsv"),
    ],
)
def test_other_files_of_the_same_part_are_named(tmp_path, capsys, part, read, unread, others):
    """Only one file of queries, judgements or examples is read; others may be shards."""
    folder = filled(tmp_path / "data", f"{read} {unread} {others}".split())
    if part == "judgements":
        (folder / read).write_text("1 0 a 1\n")
    list(open_source(folder).records(part, "train"))
    note = capsys.readouterr().err
    assert f"{len(unread.split())} of the {len(unread.split()) + 1} files" in note
    assert all(name.partition("/")[2] or name in note for name in unread.split())


def test_the_size_is_known_before_reading(tmp_path):
    (tmp_path / "a.tsv").write_text("id\ttext\ttitle\n1\tx\ty\n2\tx\ty")
    assert open_corpus(tmp_path / "a.tsv").expected_size() == 2
    (tmp_path / "a.json").write_text('[{"_id": "1", "title": "", "text": ""}]')
    corpus = open_corpus(tmp_path / "a.json")
    assert corpus.expected_size() is None
    assert (len(corpus), corpus.expected_size()) == (1, 1)
