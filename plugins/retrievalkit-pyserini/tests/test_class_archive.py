"""Java starts from an archive of Lucene's classes if it exists and fits, and otherwise without."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

BUILD = """
    import tempfile
    from pathlib import Path
    from retrievalkit.data.corpus import Corpus, Passage
    from retrievalkit_pyserini import bm25
    bm25.MANY = 2
    bm25.BM25().build(Corpus.of([Passage("1", "", "a violin"), Passage("2", "", "a candle")]), Path(tempfile.mkdtemp()))
"""
SHARES = """
    import sys
    from pathlib import Path
    from retrievalkit_pyserini.java import java_class
    java_class("io.anserini.search.SimpleSearcher")
    sys.exit(".jsa" not in Path("/proc/self/maps").read_text().replace("classes.jsa", ""))
"""


def run(code, cache, **environment):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    variables = os.environ | {"XDG_CACHE_HOME": str(cache)} | environment
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="reads /proc")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    assert run(BUILD, cache, JAVA_TOOL_OPTIONS="-Dmine=1") == (0, "", "")
    (version,) = (cache / "retrievalkit" / "java").glob("*/*.jsa")
    return version


def test_java_starts_from_the_archive(archive, tmp_path):
    assert run(SHARES, archive.parents[3]) == (0, "", "")
    assert run(SHARES, tmp_path)[0] == 1


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def plant(path):
    path.write_bytes(b"not an archive " * 1000)


def link(path):
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [cut, plant, link, pipe])
def test_an_archive_that_changed_is_not_given_to_java(archive, tmp_path, damage):
    shutil.copytree(archive.parents[2], tmp_path / "retrievalkit")
    damage(next(tmp_path.glob("retrievalkit/java/*/*.jsa")))
    code, output, errors = run(SHARES, tmp_path)
    assert (code, output) == (1, "")
    assert "cache" in errors


def test_no_cache_folder_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    code, output, errors = run(BUILD, tmp_path / "file")
    assert (code, output) == (0, "")
    assert "cache" in errors
