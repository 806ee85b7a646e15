"""The documentation of installed packages as a collection."""

from __future__ import annotations

import gzip
import shutil
import sys

import pytest
from retrievalkit_pydoc import modules
from retrievalkit_pydoc.source import plain

from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, read_examples
from retrievalkit.data.kinds import kind_of
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import InputError, UnknownNameError

BODY = "This body says with quite a number of words what happens to each of the {0} when they are bowed or plucked."
SOURCES = {
    "__init__.py": "raise RuntimeError('imported')\nfrom ._impl import tune, tune_again\nfrom .deep import *\n",
    "_impl.py": f'''
def tune():
    """Tune all strings of a violin.

    {BODY.format("strings")}
    """
def tune_again():
    """Tune all strings of a violin.

    {BODY.format("strings")}
    """
def hidden():
    """Hide the violin in its case.

    {BODY.format("cases")}
    """
''',
    "deep.py": f'''
class Bow:
    """Put rosin on the hair of a bow.

    {BODY.format("hairs")}
    """
    def rosin(self):
        """Put more rosin on the bow's hair.

        {BODY.format("rosins")}
        """
class Other:
    def rosin(self):
        """Put more rosin on the bow's hair!

        {BODY.format("others")}
        """
''',
    "tests/test_deep.py": f'def check():\n    """Check the tests of a violin.\n\n    {BODY.format("tests")}"""\n',
    "broken.py": "def broken(:",
}


def passages(packages):
    return list(open_corpus(f"pydoc:{packages}"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A temporary cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    modules.version.cache_clear()
    return tmp_path / "cache" / "retrievalkit" / "pydoc"


@pytest.fixture
def violins(tmp_path, monkeypatch):
    """A package that must not be imported."""
    for name, source in SOURCES.items():
        path = tmp_path / "site" / "violins" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site" / "violins"


def test_passages_and_questions(violins):
    """A text with two names is a single passage; a summary line shared by two passages is not a question."""
    assert [(passage.id, passage.title, passage.text) for passage in passages("violins")] == [
        (name, name, BODY.format(word))
        for name, word in [
            ("violins.Bow", "hairs"),
            ("violins.Bow.rosin", "rosins"),
            ("violins.Other.rosin", "others"),
            ("violins.tune", "strings"),
        ]
    ]
    assert [(query.id, query.text) for query in read_queries("pydoc:violins")] == [
        ("q:violins.Bow", "Put rosin on the hair of a bow"),
        ("q:violins.tune", "Tune all strings of a violin"),
    ]
    assert Example("q:violins.tune", "Tune all strings of a violin", ("violins.tune",)) in read_examples(
        "pydoc:violins"
    )
    assert kind_of("pydoc:violins") == "collection"
    assert "violins" not in sys.modules


def test_a_part_of_a_package(violins):
    assert [passage.id for passage in passages("violins.Bow")] == ["violins.Bow.rosin"]
    with pytest.raises(InputError, match=r"'pydoc:violins\.cello' has no documentation"):
        passages("violins.cello")


def test_documentation_is_cached(violins, cache, monkeypatch):
    first = passages("violins")
    with monkeypatch.context() as patch:
        patch.delattr("retrievalkit_pydoc.source._read_package")
        assert passages("violins") == first
    (kept,) = cache.glob("*/*.gz")
    with gzip.open(kept, "wt") as stream:
        stream.write('["violins.new", "", "body"]\n')
    assert passages("violins") == first, "a planted entry is not believed"
    shutil.rmtree(cache)
    cache.write_text("a file where the folder would be")
    assert passages("violins") == first


def test_a_changed_package_is_read_again(violins):
    before = fingerprint("pydoc:violins")
    (violins / "deep.py").write_text("")
    modules.version.cache_clear()
    assert [passage.id for passage in passages("violins")] == ["violins.tune"]
    assert fingerprint("pydoc:violins") != before


def test_an_unknown_package_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown package 'nunpy'; did you mean 'numpy'\?"):
        open_corpus("pydoc:nunpy").get("x")
    with pytest.raises(UnknownNameError, match="unknown package 'no such name'"):
        passages("no such name")


def test_names_of_distributions_are_resolved():
    assert modules.import_name("PyYAML") == "yaml"
    assert modules.import_name("ir-measures") == "ir_measures"
    assert modules.import_name("json") == "json"


def test_numpy():
    """Python functions, compiled functions, ufuncs and methods, under their usual names."""
    texts = {passage.id: passage.text for passage in passages("numpy")}
    questions = {query.id.removeprefix("q:"): query.text for query in read_queries("pydoc:numpy")}
    assert len(texts) > 900
    assert len(questions) > 600
    assert questions["numpy.linalg.eigh"].startswith("Return the eigenvalues and eigenvectors of a complex Hermitian")
    for name in ("numpy.add", "numpy.dot", "numpy.concatenate", "numpy.random.Generator.choice", "numpy.fft.fft"):
        assert name in questions, name
    assert not [name for name in texts if "._" in name or ".tests." in name]
    assert not [name for name, text in questions.items() if plain(text) in plain(texts[name])]


def test_the_standard_library_has_its_own_names(monkeypatch):
    wanted = {"posixpath", "json", "itertools"}
    monkeypatch.setattr(sys, "stdlib_module_names", frozenset(wanted))
    names = {passage.id for passage in passages("stdlib")}
    assert {"json.dumps", "itertools.combinations", "os.path.join", "str.split"} <= names
    assert "posixpath.join" not in names


def test_splits_share_the_passages_and_divide_the_questions():
    ids = {at: {query.id for query in read_queries(f"pydoc:numpy{at}")} for at in ("", "@train", "@test")}
    assert ids["@train"] | ids["@test"] == ids[""]
    assert not ids["@train"] & ids["@test"]
    assert all(len(ids[split]) > 250 for split in ("@train", "@test"))
    assert set(read_qrels("pydoc:numpy@test")) == ids["@test"]
    assert open_corpus("pydoc:numpy@train").fingerprint() == open_corpus("pydoc:numpy@test").fingerprint()
    assert fingerprint("pydoc:numpy@train") != fingerprint("pydoc:numpy@test")
    with pytest.raises(InputError, match="dev"):
        read_queries("pydoc:numpy@dev")
