"""Edits of files and folders, as data: JSON objects that are applied to a copy of some material.

    {"op": "splice", "file": F, "at": 7, "cut": 2, "put": "x", "times": 1}   bytes; latin-1, "cut": null = the rest
    {"op": "set", "file": F, "line": 3, "where": ["a", 0], "value": V}          a value in JSON, JSON lines or YAML
    {"op": "drop", "file": F, "line": null, "where": ["a"]}
    {"op": "recode", "file": F, "as": "utf-16"}
    {"op": "array", "file": F, "member": "data.npy", "key": "shape", "value": "(1,)"}     the header of .npy, or in .npz
    {"op": "tensor", "file": F, "where": ["name", "dtype"], "value": V}          the header of safetensors
    {"op": "member", "file": F, "member": M, "to": null}                         renames or removes a member of .npz
    {"op": "remove" | "folder" | "fifo", "file": F}, {"op": "link", "file": F, "to": T}
    {"op": "swap", "file": F, "other": G}, {"op": "copy", "file": F, "of": MATERIAL}
    {"op": "seal"}                         sizes and checksums in manifests are made to fit

A file is named from the folder; "" is a material that is a file itself. {"$text": T, "times": N} as a value stands for
JSON that no library writes: NaN, 1e400, a thousand brackets.
"""

import codecs
import gzip
import io
import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import yaml

from retrievalkit import storage

_STRANGE = "rkit-fuzz-raw"


class Inapplicable(Exception):  # noqa: N818 - no error of a command
    """The edit names a file or a place that is not there."""


def apply(edits, root, material):
    """Apply edits to a file or folder; returns how many could be applied.

    Args:
        edits: The edits.
        root: The file or folder.
        material: The folder of all material, for copies of other kinds.
    """
    applied = 0
    for edit in edits:
        try:
            _OPERATIONS[edit["op"]](_named(edit, root), root, material)
            applied += 1
        except Exception:  # noqa: BLE001 - whatever earlier edits left of the file
            continue
    return applied


def _named(edit, root):
    """With the first file that fits a pattern: names with fingerprints of vectors differ between machines."""
    if "*" not in edit.get("file", ""):
        return edit
    return edit | {"file": str(min(root.glob(edit["file"])).relative_to(root))}


def _place(edit, root, name="file"):
    path = root / edit[name] if edit[name] else root
    if not os.path.lexists(path) or path.parent.resolve() != root.parent.resolve() / path.parent.relative_to(
        root.parent
    ):
        raise Inapplicable
    return path


def _content(edit, root):
    path = _place(edit, root)
    # Never through a link of an earlier edit: it may lead to the material.
    if not path.is_file() or path.resolve() != root.parent.resolve() / path.relative_to(root.parent):
        raise Inapplicable
    return path, path.read_bytes()


def _splice(edit, root, material):
    path, content = _content(edit, root)
    at, cut = edit["at"], edit["cut"]
    rest = b"" if cut is None else content[at + cut :]
    path.write_bytes(content[:at] + edit["put"].encode("latin-1") * edit.get("times", 1) + rest)


def _recode(edit, root, material):
    path, content = _content(edit, root)
    name = edit["as"]
    if name == "gzip":
        content = gzip.compress(content, mtime=0)
    elif name == "zstd":
        import pyarrow

        content = pyarrow.compress(content, "zstd", asbytes=True)
    elif name in ("\r", "\r\n", "\x00", "\x0b", "\x85", "\u2028"):
        content = content.replace(b"\n", name.encode())
    elif name == "bom":
        content = codecs.BOM_UTF8 + content
    else:
        content = content.decode().encode(name)
    path.write_bytes(content)


def parsed(path, line):
    """The lines of a file and the value in one of them, or in the whole of it."""
    text = path.read_text(encoding="utf-8")
    if line is not None:
        lines = text.splitlines(keepends=True)
        return lines, json.loads(lines[line])
    if path.suffix in (".yaml", ".yml"):
        if "*" in text:  # aliases: written as JSON, they may not end
            raise Inapplicable
        return None, yaml.safe_load(text)
    return None, json.loads(text)


def _change(edit, root, change):
    path, _ = _content(edit, root)
    lines, value = parsed(path, edit.get("line"))
    raw = []
    *above, last = edit["where"]
    inner = value
    for step in above:
        inner = inner[step]
    change(inner, last, raw)
    written = json.dumps(value, ensure_ascii=False, indent=None if lines else 2)
    for text in raw:
        written = written.replace(f'"{_STRANGE}"', text, 1)
    if lines:
        lines[edit["line"]] = written + "\n"
        written = "".join(lines)
    path.write_bytes(written.encode("utf-8", errors="surrogatepass"))


def _set(edit, root, material):
    def change(inner, last, raw):
        if not isinstance(inner, dict) and not 0 <= last < len(inner):
            raise Inapplicable
        value = edit["value"]
        if isinstance(value, dict) and "$text" in value:
            raw.append(value["$text"] * value["times"] + value.get("then", "") * value["times"])
            value = _STRANGE
        elif isinstance(value, str):
            value = value.replace("{outside}", str(material.parent / "outside"))
        inner[last] = value

    _change(edit, root, change)


def _drop(edit, root, material):
    def change(inner, last, raw):
        del inner[last]

    _change(edit, root, change)


_HEADER = re.compile(rb"^\x93NUMPY")


def _header(content, key, value):
    """An .npy file with another entry in its header."""
    if not _HEADER.match(content):
        raise Inapplicable
    if key == "version":
        return content[:6] + bytes(value) + content[8:]
    stream = io.BytesIO(content)
    np.lib.format.read_magic(stream)
    shape, order, dtype = np.lib.format.read_array_header_1_0(stream)
    entries = {"descr": repr(np.lib.format.dtype_to_descr(dtype)), "fortran_order": repr(order), "shape": repr(shape)}
    entries[key] = value
    text = "{" + ", ".join(f"'{name}': {one}" for name, one in entries.items()) + ", }"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return content[:8] + len(text).to_bytes(2, "little") + text.encode() + content[stream.tell() :]


def _array(edit, root, material):
    path, content = _content(edit, root)
    if edit["member"] is None:
        path.write_bytes(_header(content, edit["key"], edit["value"]))
        return
    _members(path, {edit["member"]: lambda data: _header(data, edit["key"], edit["value"])}, {})


def _member(edit, root, material):
    path, _ = _content(edit, root)
    _members(path, {}, {edit["member"]: edit["to"]})


def _members(path, changes, names):
    with zipfile.ZipFile(path) as opened:
        kinds = {one.filename: one.compress_type for one in opened.infolist()}
        members = {name: opened.read(name) for name in opened.namelist()}
    if not (set(changes) | set(names)) <= set(members):
        raise Inapplicable
    with zipfile.ZipFile(path, "w") as written:
        for name, data in members.items():
            # Not two of one name, of which zipfile warns.
            if (to := names.get(name, name)) is not None and to not in written.namelist():
                data = changes[name](data) if name in changes else data
                written.writestr(zipfile.ZipInfo(to), data, compress_type=kinds[name])


def _tensor(edit, root, material):
    path, content = _content(edit, root)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    *above, last = edit["where"]
    inner = header
    for step in above:
        inner = inner[step]
    inner[last] = edit["value"]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def _remove(edit, root, material):
    path = _place(edit, root)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _folder(edit, root, material):
    _remove(edit, root, material)
    (root / edit["file"]).mkdir()


def _fifo(edit, root, material):
    _remove(edit, root, material)
    os.mkfifo(root / edit["file"])


def _link(edit, root, material):
    path = root / edit["file"]
    to = edit["to"]
    if to == "aside":
        # The same content, behind a link.
        path.rename(path.with_name(f"{path.name}.aside"))
        to = f"{path.name}.aside"
    else:
        _remove(edit, root, material)
    outside = str(material.parent / "outside")
    path.symlink_to(to.replace("{material}", str(material)).replace("{outside}", outside))


def _swap(edit, root, material):
    one, other = _place(edit, root), _place(edit, root, "other")
    aside = one.with_name("swapped-aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _copy(edit, root, material):
    path = _place(edit, root)
    _remove(edit, root, material)
    source = material / edit["of"]
    if source.is_dir():
        shutil.copytree(source, path)
    else:
        shutil.copy(source, path)


def _seal(edit, root, material):
    """Let the sizes and checksums in all manifests fit the files, as whoever made the folder could."""
    if not root.is_dir():
        raise Inapplicable
    # The innermost first: a manifest may hold the checksum of another.
    for path in sorted(root.rglob("manifest.json"), key=lambda one: -len(one.parts)):
        if not path.is_file() or path.resolve() != root.resolve() / path.relative_to(root):  # a pipe, or behind a link
            continue
        try:
            manifest = json.loads(path.read_text())
            files = manifest["files"].items()
        except (ValueError, KeyError, AttributeError, TypeError, OSError):
            continue
        for name, recorded in files:
            file = path.parent / str(name)
            if isinstance(recorded, dict) and file.is_file() and file.stat().st_size < 1 << 26:
                recorded |= {"bytes": file.stat().st_size, "blake2b": storage.fingerprint_file(file)}
        path.write_text(json.dumps(manifest, indent=2))


_OPERATIONS = {
    "splice": _splice, "set": _set, "drop": _drop, "recode": _recode, "array": _array, "member": _member,
    "tensor": _tensor, "remove": _remove, "folder": _folder, "fifo": _fifo, "link": _link, "swap": _swap,
    "copy": _copy, "seal": _seal,
}  # fmt: skip


def files(root):
    """The files of a material, named from its folder; [""] for a file."""
    root = Path(root)
    if not root.is_dir():
        return [""]
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
