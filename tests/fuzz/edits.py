"""Edits of files and folders, as data: JSON objects that are applied to a copy of some material.

    {"op": "splice", "file": F, "at": 7, "cut": 2, "put": "x", "times": 1}   bytes; latin-1, "cut": null = the rest
    {"op": "set", "file": F, "line": 3, "where": ["a", 0], "value": V}          a value in JSON, JSON lines or YAML
    {"op": "drop", "file": F, "line": null, "where": ["a"]}
    {"op": "array", "file": F, "member": "data.npy", "key": "shape", "value": "(1,)"}     the header of .npy, or in .npz
    {"op": "remove" | "fifo", "file": F}, {"op": "link", "file": F, "to": T}
    {"op": "swap", "file": F, "other": G}, {"op": "copy", "file": F, "of": MATERIAL}
    {"op": "seal"}                         sizes and checksums in manifests are made to fit

A file is named from the folder; "" is a material that is a file itself. {"$text": T, "times": N} as a value stands for
JSON that no library writes: NaN, 1e400, a thousand brackets.
"""

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import yaml

from retrievalkit import storage

_STRANGE = "rkit-fuzz-raw"


def apply(edits, root, material):
    """Apply edits to a file or folder, with copies from the folder of all material; returns how many applied."""
    applied = 0
    for edit in edits:
        try:
            if "*" in edit.get("file", ""):  # names with fingerprints of vectors differ between machines
                edit = edit | {"file": str(min(root.glob(edit["file"])).relative_to(root))}
            _OPERATIONS[edit["op"]](edit, root, material)
            applied += 1
        except Exception:  # noqa: BLE001 - whatever earlier edits left of the file
            continue
    return applied


def _place(edit, root, name="file"):
    """Return the path of a file; never through a link of an earlier edit, which may lead to the material."""
    path = root / edit[name] if edit[name] else root
    if not os.path.lexists(path) or path.parent.resolve() != root.parent.resolve() / path.parent.relative_to(
        root.parent
    ):
        raise FileNotFoundError
    return path


def _content(edit, root):
    path = _place(edit, root)
    if not path.is_file() or path.is_symlink():
        raise FileNotFoundError
    return path, path.read_bytes()


def _splice(edit, root, material):
    path, content = _content(edit, root)
    at, cut = edit["at"], edit["cut"]
    rest = b"" if cut is None else content[at + cut :]
    path.write_bytes(content[:at] + edit["put"].encode("latin-1") * edit.get("times", 1) + rest)


def parsed(path, line):
    """Return the lines of a file, and the value in a line or in the whole file."""
    text = path.read_text(encoding="utf-8")
    if line is not None:
        lines = text.splitlines(keepends=True)
        return lines, json.loads(lines[line])
    if path.suffix in (".yaml", ".yml"):
        if "*" in text:  # aliases: written as JSON, they may not end
            raise ValueError
        return None, yaml.safe_load(text)
    return None, json.loads(text)


def _set(edit, root, material):
    """Set or drop a value."""
    path, _ = _content(edit, root)
    lines, value = parsed(path, edit.get("line"))
    *above, last = edit["where"]
    inner, raw = value, None
    for step in above:
        inner = inner[step]
    if edit["op"] == "drop":
        del inner[last]
    else:
        put = edit["value"]
        if isinstance(put, dict) and "$text" in put:
            raw = put["$text"] * put["times"] + put.get("then", "") * put["times"]
            put = _STRANGE
        inner[last] = put.replace("{outside}", str(material.parent / "outside")) if isinstance(put, str) else put
    written = json.dumps(value, ensure_ascii=False, indent=None if lines else 2)
    written = written if raw is None else written.replace(f'"{_STRANGE}"', raw, 1)
    if lines:
        lines[edit["line"]] = written + "\n"
        written = "".join(lines)
    path.write_bytes(written.encode("utf-8", errors="surrogatepass"))


def _header(content, key, value):
    """Return an .npy file with another entry in its header."""
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
    with zipfile.ZipFile(path) as opened:
        members = [(one, opened.read(one)) for one in opened.infolist()]
    with zipfile.ZipFile(path, "w") as written:
        for one, data in members:
            changed = _header(data, edit["key"], edit["value"]) if one.filename == edit["member"] else data
            written.writestr(zipfile.ZipInfo(one.filename), changed, compress_type=one.compress_type)


def _remove(edit, root, material):
    path = _place(edit, root)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _fifo(edit, root, material):
    _remove(edit, root, material)
    os.mkfifo(root / edit["file"])


def _link(edit, root, material):
    path, to = root / edit["file"], edit["to"]
    if to == "aside":
        # The same content, behind a link.
        to = f"{path.name}.aside"
        path.rename(path.with_name(to))
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
    _remove(edit, root, material)
    source = material / edit["of"]
    (shutil.copytree if source.is_dir() else shutil.copy)(source, root / edit["file"])


def _seal(edit, root, material):
    """Update sizes and checksums in all manifests to the files, as the author of the folder could."""
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
    "splice": _splice, "set": _set, "drop": _set, "array": _array, "remove": _remove, "fifo": _fifo,
    "link": _link, "swap": _swap, "copy": _copy, "seal": _seal,
}  # fmt: skip


def files(root):
    """Return the files of a material, relative to its folder; [""] for a file."""
    root = Path(root)
    if not root.is_dir():
        return [""]
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
