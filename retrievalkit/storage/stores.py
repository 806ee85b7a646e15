"""Object stores through fsspec: reads, lists and writes addresses such as s3://bucket/vectors.

Objects are written atomically. fsspec, and the package of a store (s3fs, gcsfs), are imported with the first address.
Credentials come from where the store's own tools look for them (environment, files of the user), never from an address;
messages and manifests contain none.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retrievalkit.errors import ArtifactError, InputError, MissingDependencyError, RetrievalkitError, nearest
from retrievalkit.storage.outputs import NO_ROOM

_S3, _GS = ("s3fs", "retrievalkit[s3]"), ("gcsfs", "retrievalkit[gs]")
_EXTRAS = {"s3": _S3, "s3a": _S3, "gs": _GS, "gcs": _GS}
_LONGEST_REASON = 300


class Store:
    """A folder, or an object, in a store.

    Raises:
        InputError: The kind of store is unknown, or the address contains a password.
        MissingDependencyError: The package of the store is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if "@" in parts.netloc:
            msg = (
                f"'{parts.scheme}://***@{parts.netloc.rpartition('@')[2]}{parts.path}' contains a user or a "
                "password. Leave them out, and set them as for the store's own tools (environment, credentials file)."
            )
            raise InputError(msg)
        self._files, self._root = _file_system(parts.scheme, self.url)

    @property
    def name(self) -> str:
        """The last part of its address."""
        return posixpath.basename(self.url)

    def below(self, name: str) -> Store:
        """Return a folder in this folder."""
        return Store(f"{self.url}/{name}")

    def parent(self) -> Store:
        """Return the folder that contains this object or folder."""
        return Store(posixpath.dirname(self.url))

    def is_folder(self) -> bool:
        """True for a folder, False for an object."""
        with self._reaching("read"):
            return bool(self._files.info(self._root)["type"] == "directory")

    def names(self) -> dict[str, int]:
        """List the objects below this folder: name relative to it -> size; {} if there are none."""
        with self._reaching("listed"):
            entries = self._files.find(self._root, detail=True)
        root = f"{self._root}/"
        inner = {path[len(root) :]: entry for path, entry in entries.items() if path.startswith(root)}
        # Some tools represent folders by empty objects.
        return {name: int(entry["size"]) for name, entry in inner.items() if name and not name.endswith("/")}

    def state(self) -> str:
        """Return a text that changes with the object, or with any object in the folder."""
        with self._reaching("read"):
            return repr(sorted(self._files.find(self._root, detail=True).items()))

    def size(self) -> int:
        """Return the size of the object in bytes."""
        with self._reaching("read"):
            return int(self._files.info(self._root)["size"])

    def read(self, name: str) -> bytes:
        """Read an object."""
        with self._reaching("read", name):
            return bytes(self._files.cat_file(self._path(name)))

    def parts(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Read byte ranges of objects: (name, start, end), end excluded."""
        paths = [self._path(name) for name, _, _ in wanted]
        with self._reaching("read", wanted[0][0] if len(wanted) == 1 else ""):
            chunks = self._files.cat_ranges(paths, [start for _, start, _ in wanted], [end for *_, end in wanted])
        for (name, start, end), data in zip(wanted, chunks, strict=True):
            with self._reaching("read", name):
                if isinstance(data, Exception):
                    raise data
            if len(data) != end - start:
                msg = f"'{self.url}/{name}' has no bytes {start:,} to {end:,}: it has changed. Run the command again."
                raise ArtifactError(msg)
        return [bytes(data) for data in chunks]

    def fetch(self, name: str, target: Path) -> None:
        """Copy an object to a file."""
        with self._reaching("read", name):
            self._files.get_file(self._path(name), str(target))

    def put(self, source: Path, name: str) -> None:
        """Write a file as an object."""
        with self._reaching("written", name):
            self._files.put_file(str(source), self._path(name))

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects, if they exist."""
        with self._reaching("removed"):
            for name in names:
                if self._files.exists(self._path(name)):
                    self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _reaching(self, verb: str, name: str = "") -> Iterator[None]:
        """Replace the libraries' errors, of dozens of types, by one message."""
        try:
            yield
        except (RetrievalkitError, GeneratorExit):
            raise
        except Exception as error:
            if isinstance(error, OSError):
                file = error.filename
                if error.errno in NO_ROOM or (isinstance(file, str) and os.path.isabs(file) and os.path.lexists(file)):
                    raise  # about a local file
            url = f"{self.url}/{name}" if name else self.url
            msg = f"'{url}' could not be {verb}: {_reason(error)}"
            raise ArtifactError(msg) from error


def _file_system(scheme: str, url: str) -> tuple[Any, str]:
    import fsspec

    try:
        options = {"auto_mkdir": True} if scheme in ("file", "local") else {"use_listings_cache": False}
        result: tuple[Any, str] = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        package, extra = _EXTRAS.get(scheme, (getattr(error, "name", None) or f"of {scheme}://", None))
        raise MissingDependencyError(package, f"'{url}'", extra and f"'{extra}'") from error
    except ValueError as error:
        close = nearest(scheme, fsspec.available_protocols())
        offer = f"; did you mean '{close}://'?" if close and close != scheme else "."
        msg = f"'{url}' is not in a known store ({error}){offer} Known: s3://, gs:// and all others of fsspec."
        raise InputError(msg) from error
    return result


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_REASON]}".rstrip(".")
    if isinstance(error, FileNotFoundError):
        return "the bucket, folder or object does not exist. Check the address."
    if isinstance(error, PermissionError) or "Credentials" in text:
        return f"access is denied ({text}). Check the credentials and their permissions."
    return f"{text}. Check the address, the network and the endpoint, and run the command again."
