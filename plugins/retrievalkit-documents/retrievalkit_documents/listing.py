"""The files of a folder of documents that may be read; the others are listed by reason.

A file `.rkitignore` excludes files and folders below its own folder, by the rules of Git: the last pattern that matches
decides, a deeper file before a higher one, and nothing below an excluded folder is read. Patterns of an option come
after all of these. Hidden files, packages and caches are excluded unless a pattern includes them by name: `!.github/`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from retrievalkit.contracts.commands import kind_of
from retrievalkit.data.files import LONGEST_LINE
from retrievalkit.data.records import Record
from retrievalkit.data.same_text import plain_form
from retrievalkit.errors import DataError, OptionError

if TYPE_CHECKING:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

IGNORES = ".rkitignore"
EXCLUDED = ("hidden", "packages and caches", f"excluded by {IGNORES}", "excluded by exclude")
"""Reasons of files that are left out by intention."""
_HIDDEN = (".", "~$")  # ~$ begins the locks of Word
_INSTALLED = ("node_modules", "bower_components", "__pycache__")
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
_LARGEST_IGNORES = 1 << 20
_MANY_STARS = re.compile(r"(?:\*[^/*]+){4}\*")
_OWN = re.compile(rf"{re.escape(IGNORES)}|\..+\.lock")  # not documents that anyone misses
_KERNEL = ("/proc/", "/sys/")


def identifier_of(path: PurePosixPath | Path) -> str:
    """Return the id of a document at a path: some systems store names in decomposed letters."""
    return plain_form(path.as_posix()).strip()


def documents_below(
    folder: Path, limits: Mapping[str, float], left_out: dict[str, list[str]], exclude: Sequence[str] = ()
) -> list[tuple[str, Path]]:
    """Return the id and the path of each file to read in a folder, by id; files with the same id are left out.

    A link is read only if it leads to an excluded file of the folder.

    Args:
        folder: The folder.
        limits: Extensions of the files to read -> maximum size in bytes.
        left_out: Receives the relative paths of all other files, by reason; of an excluded folder, its own path.
        exclude: Patterns of files and folders to exclude, besides those of `.rkitignore`.

    Raises:
        DataError: The folder, or one inside it, cannot be listed, or a `.rkitignore` cannot be read.
        OptionError: A pattern is not valid.
    """
    root = os.path.join(os.path.realpath(folder), "")
    listed: dict[str, tuple[str, Path]] = {}

    def problem_of(name: str, path: Path, target: str) -> str:
        most = limits.get(path.suffix.lower())
        if most is None:
            return path.suffix.lower() or "no extension"
        if not _is_id(name):
            return "with a name that cannot be an id"
        if not target.startswith(root):
            return "links out of the folder, to be replaced by the files"
        if target in listed:
            return "links to other files of the folder"
        try:
            status = os.stat(target)
        except OSError as error:
            return error.strerror or str(error)
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if status.st_size > most:
            return f"larger than {int(most) >> 20} MiB"
        return "sparse files" if status.st_size > LONGEST_LINE and _has_holes(path) else ""

    links = []
    for name, path in _below(folder, left_out, exclusions(exclude)):
        if path.is_symlink():
            links.append((name, path, os.path.realpath(path)))
        elif problem := problem_of(name, path, root + name):
            left_out.setdefault(problem, []).append(name)
        else:
            listed[root + name] = name, path
    for name, path, target in links:
        if problem := problem_of(name, path, target):
            left_out.setdefault(problem, []).append(name)
        else:
            listed[target] = name, path
    named: dict[str, Path] = {}
    for name, path in sorted(listed.values()):
        if named.setdefault(identifier_of(Path(name)), path) is not path:
            left_out.setdefault("with the name of another file, in another form of its letters", []).append(name)
    return sorted(named.items())


class _Pattern(NamedTuple):
    """A pattern of files and folders below a folder."""

    folder: str
    pattern: GitIgnoreSpecPattern
    reason: str

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """True if it matches the path itself, not only a folder above it, which was included before."""
        if not path.startswith(self.folder):
            return False
        inside, regex = path[len(self.folder) :], self.pattern.regex
        assert regex is not None
        if "ps_d" not in regex.groupindex:  # such as docs/**, which excludes only what is inside of docs
            return regex.search(inside) is not None
        matches = regex.finditer(f"{inside}/" if is_folder else inside)
        return any(match["ps_d"] is None or match.end("ps_d") > len(inside) for match in matches)

    def names(self, name: str) -> bool:
        """True if it names a file or folder that is excluded by default: `!*/` does not, `!.github/` and `!.*` do."""
        last = str(self.pattern.pattern).strip().rstrip("/").rpartition("/")[2].lstrip("!")
        return last == name or (name.startswith(".") and last.startswith("."))


class Exclusions(NamedTuple):
    """Patterns in the order of their precedence: of the option, of the deepest `.rkitignore`, of the highest."""

    own: tuple[_Pattern, ...]
    nested: tuple[_Pattern, ...] = ()

    def below(self, folder: Path, name: str) -> Exclusions:
        """Add the patterns of the `.rkitignore` in a folder, which is named relative to the whole folder."""
        lines = _lines_of(folder / IGNORES)
        prefix = "" if name == "." else f"{name}/"
        return self._replace(nested=(*_patterns(lines, prefix, folder / IGNORES), *self.nested)) if lines else self

    def reason(self, name: str, *, is_folder: bool, path: Path) -> str:
        """Return the reason to exclude a file or folder; "" if it is to be read."""
        default = _default_reason(path, is_folder=is_folder)
        for pattern in (*self.own, *self.nested):
            if pattern.matches(name, is_folder=is_folder):
                if pattern.pattern.include:
                    return pattern.reason
                return "" if pattern.names(path.name) else default
        return default


def _default_reason(path: Path, *, is_folder: bool) -> str:
    if path.name.startswith(_HIDDEN):
        return EXCLUDED[0]
    if is_folder and (path.name in _INSTALLED or any(os.path.lexists(path / file) for file in _ENVIRONMENTS)):
        return EXCLUDED[1]
    return ""


def is_excluded(folder: Path, path: Path, exclude: Iterable[str]) -> bool:
    """True if a file or folder below a folder is excluded, or a folder above it; an ignore file is not."""
    parts = path.relative_to(folder).parts
    with suppress(DataError):  # the next reading reports it
        inner, place = exclusions(exclude), folder
        for part in parts[:-1] if path.name == IGNORES else parts:
            inner = inner.below(place, place.relative_to(folder).as_posix())
            place /= part
            is_folder = place != path or path.is_dir()
            if inner.reason(place.relative_to(folder).as_posix(), is_folder=is_folder, path=place):
                return True
    return False


def exclusions(exclude: Iterable[str]) -> Exclusions:
    """Return the patterns of an option.

    Raises:
        OptionError: A pattern is not valid.
    """
    return Exclusions(_patterns(exclude, "", None))


def _patterns(lines: Iterable[str], folder: str, file: Path | None) -> tuple[_Pattern, ...]:
    """Return the patterns of a file, or of the option, the last first."""
    from pathspec.patterns.gitignore.base import GitIgnorePatternError
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    patterns = []
    for number, line in enumerate(lines, 1):
        problem = "has too many wildcards" if _MANY_STARS.search(line) else ""
        try:
            pattern = GitIgnoreSpecPattern(line)
        except (GitIgnorePatternError, re.error):
            problem = "is not valid"
        if problem:
            msg = f"the pattern {line!r} {problem}. Write patterns as for Git: https://git-scm.com/docs/gitignore"
            raise OptionError(msg) if file is None else DataError(msg, file=file, line=number)
        if pattern.include is not None:
            patterns.append(_Pattern(folder, pattern, EXCLUDED[3 if file is None else 2]))
    return tuple(reversed(patterns))


def _lines_of(path: Path) -> list[str]:
    """Return the lines of a `.rkitignore`; none if there is no such file."""
    if not os.path.lexists(path):
        return []
    if path.is_symlink() or not path.is_file():  # a pipe has no end, and Git refuses links too
        msg = "is not a regular file. Nothing was changed. Replace it by a file of patterns."
        raise DataError(msg, file=path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(_LARGEST_IGNORES + 1)
    except OSError as error:
        msg = f"{error.strerror}. Nothing was changed, because documents that it excludes would be read."
        raise DataError(msg, file=path) from error
    if len(raw) > _LARGEST_IGNORES:
        msg = f"is larger than {_LARGEST_IGNORES >> 20} MiB. Nothing was changed. Shorten it."
        raise DataError(msg, file=path)
    return raw.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").split("\n")


def _below(folder: Path, left_out: dict[str, list[str]], excluded: Exclusions) -> Iterator[tuple[str, Path]]:
    """Yield the relative path and the path of all files and links to files in a folder, except excluded ones."""

    def refuse(error: OSError) -> None:
        msg = f"cannot list the folder '{error.filename}': {error.strerror}. Nothing was changed. Make it readable."
        raise DataError(msg) from error

    open_exclusions = {os.fspath(folder): excluded}
    for parent, folders, names in os.walk(folder, onerror=refuse):
        place = Path(parent)
        inner = open_exclusions.pop(parent).below(place, place.relative_to(folder).as_posix())
        listed = [(Path(parent, name), True) for name in sorted(folders)]
        listed += [(Path(parent, name), False) for name in sorted(names) if not _OWN.fullmatch(name)]
        folders.clear()
        for path, is_folder in listed:
            name = path.relative_to(folder).as_posix()
            is_link = path.is_symlink()
            if reason := inner.reason(name, is_folder=is_folder and not is_link, path=path):
                left_out.setdefault(reason, []).append(f"{name}/" if is_folder else name)
            elif is_folder and (problem := _problem_of_folder(path, is_link=is_link)):
                left_out.setdefault(problem, []).append(name)
            elif is_folder:
                folders.append(path.name)
                open_exclusions[os.path.join(parent, path.name)] = inner
            else:
                yield name, path


def _problem_of_folder(path: Path, *, is_link: bool) -> str:
    if is_link:
        return "links to folders"
    if f"{os.path.realpath(path)}/" in _KERNEL:
        return "kernel files"
    return "folders that rkit wrote" if kind_of(path) is not None else ""


def _has_holes(path: Path) -> bool:
    """True if a file is sparse: it may be larger than the disk, and its text is elsewhere than in NUL bytes."""
    with suppress(OSError, AttributeError), path.open("rb") as stream:  # not on every system
        return os.lseek(stream.fileno(), 0, os.SEEK_HOLE) < os.fstat(stream.fileno()).st_size
    return False


def _is_id(name: str) -> bool:
    try:
        Record(ascii(name), 1, {"path": name}).identifier("path")
    except DataError:
        return False
    return True
