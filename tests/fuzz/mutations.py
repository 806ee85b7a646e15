"""Draws edits for a material: random bytes, nasty values at the places of its format, and damage to folders."""

import json
import string
import zipfile

from fuzz import edits, nasty

_TABLES = (".tsv", ".trec", ".msmarco", ".txt")


def draw(rng, root):
    """Edits for a file or folder: usually one, sometimes up to three, sealed now and then."""
    names = edits.files(root)
    drawn = [_one(rng, root, _chosen(rng, names)) for _ in range(rng.choice((1, 1, 1, 1, 2, 3)))]
    if "manifest.json" in names and rng.random() < 0.35:
        drawn.append({"op": "seal"})
    return drawn


def _chosen(rng, names):
    name = rng.choice(names)
    # What nobody reads is drawn less often.
    return rng.choice(names) if "README" in name or "events.out" in name else name


def _one(rng, root, name):
    path = root / name if name else root
    suffix = path.suffix
    families = [(_bytes, 3), (_of_folder, 2 if name else 0.5)]
    if suffix in (".json", ".jsonl", ".yaml"):
        families += [(_value, 8), (_snippet, 2), (_recoded, 0.7)]
    if suffix == ".yaml":
        families += [(_yaml, 3)]
    if suffix in _TABLES:
        families += [(_cell, 7), (_snippet, 3), (_recoded, 1), (_lines, 2)]
    if suffix == ".jsonl":
        families += [(_lines, 1)]
    if suffix in (".npy", ".npz"):
        families += [(_of_array, 7)]
    if suffix == ".safetensors":
        families += [(_of_tensor, 5)]
    draw_one = rng.choices([family for family, _ in families], [weight for _, weight in families])[0]
    try:
        return draw_one(rng, path, name)
    except (ValueError, IndexError, KeyError):  # such as an empty file
        return _bytes(rng, path, name)


def _splice(name, at, cut, put, times=1):
    return {"op": "splice", "file": name, "at": at, "cut": cut, "put": put, "times": times}


def _bytes(rng, path, name):
    size = path.stat().st_size
    at = rng.choice((rng.randrange(size + 1), rng.randrange(min(size, 200) + 1)))
    kind = rng.choice(("flip", "noise", "noise", "put", "cut", "truncate", "repeat", "empty", "append"))
    random = "".join(chr(rng.randrange(256)) for _ in range(rng.choice((1, 4, 64))))
    if kind == "flip":
        with path.open("rb") as stream:
            stream.seek(at)
            old = stream.read(1) or b"\0"
        return _splice(name, at, 1, chr(old[0] ^ (1 << rng.randrange(8))))
    if kind == "repeat":
        with path.open("rb") as stream:
            stream.seek(at)
            return _splice(
                name, at, 0, stream.read(rng.choice((1, 64, 1000))).decode("latin-1"), rng.choice((1, 2, 50))
            )
    return {
        "noise": _splice(name, at, len(random), random), "put": _splice(name, at, 0, random),
        "cut": _splice(name, at, rng.choice((1, 8, 64)), ""), "truncate": _splice(name, at, None, ""),
        "empty": _splice(name, 0, None, ""), "append": _splice(name, size, 0, random),
    }[kind]  # fmt: skip


def _snippet(rng, path, name):
    put, times = rng.choice(nasty.SNIPPETS)
    content = path.read_bytes()
    at = rng.choice((0, len(content), rng.randrange(len(content) + 1), _line_start(rng, content)))
    return _splice(name, at, rng.choice((0, 0, 1)), put, times)


def _line_start(rng, content):
    starts = [0, *(place + 1 for place, byte in enumerate(content) if byte == 10)]
    return rng.choice(starts)


def _yaml(rng, path, name):
    content = path.read_bytes()
    bomb = rng.choice(nasty.YAML)
    if rng.random() < 0.4:
        return _splice(name, 0, None, bomb)
    return _splice(name, rng.choice((0, len(content), _line_start(rng, content))), 0, bomb)


def _recoded(rng, path, name):
    return {"op": "recode", "file": name, "as": rng.choice(nasty.CODES)}


def _lines(rng, path, name):
    """A line that is repeated, lost, or in another's place."""
    content = path.read_bytes()
    start = _line_start(rng, content)
    line = content[start:].partition(b"\n")[0].decode("latin-1") + "\n"
    kind = rng.choice(("repeat", "drop", "move", "join"))
    if kind == "drop":
        return _splice(name, start, len(line), "")
    if kind == "join":
        return _splice(name, start + len(line) - 1, 1, rng.choice(("", " ", "\r", "\t")))
    return _splice(name, _line_start(rng, content) if kind == "move" else start, 0, line, rng.choice((1, 1, 30)))


def _cell(rng, path, name):
    content = path.read_bytes()
    start = _line_start(rng, content)
    line = content[start:].partition(b"\n")[0]
    tab = b"\t" if b"\t" in line else b" "
    cells = line.split(tab)
    number = rng.randrange(len(cells))
    at = start + sum(len(cell) + 1 for cell in cells[:number])
    put, times = rng.choice(
        (
            *nasty.SNIPPETS,
            *((_text(value), 1) for value in nasty.VALUES),
            ("", 1),
            ("9" * 20, 1),
            ("-1.5", 1),
            ("inf", 1),
        )
    )
    return _splice(name, at, rng.choice((len(cells[number]), len(cells[number]), 0)), put, times)


def _text(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", errors="surrogatepass").decode("latin-1")


def _value(rng, path, name):
    line = None
    if path.suffix == ".jsonl":
        line = rng.randrange(path.read_bytes().count(b"\n"))
    places = list(_places(edits.parsed(path, line)[1]))
    where = list(rng.choice(places))
    kind = rng.choice(("set", "set", "set", "set", "drop", "add", "twice"))
    value = rng.choice(nasty.VALUES) if rng.random() < 0.75 else rng.choice(nasty.STRANGE)
    if kind == "drop":
        return {"op": "drop", "file": name, "line": line, "where": where}
    if kind == "add":
        where = [*where[:-1], rng.choice(("x", "", "path", "files", "$id", "__class__", "auto_map", "\ud800"))]
    if kind == "twice":
        key = json.dumps(str(where[0]))
        text = f"{{{key}: {json.dumps(value) if not isinstance(value, dict) or '$text' not in value else '0'},"
        at = path.read_bytes().find(b"{")
        if at >= 0:
            return _splice(name, at, 1, text)
    return {"op": "set", "file": name, "line": line, "where": where, "value": value}


def _places(value, above=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for number, (key, inner) in enumerate(items):
        if number == 40:  # a vocabulary has thousands
            return
        yield (*above, key)
        yield from _places(inner, (*above, key))


def _of_array(rng, path, name):
    member = None
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as opened:
            member = rng.choice(opened.namelist())
        if rng.random() < 0.2:
            to = rng.choice((None, "other.npy", "../../escape.npy", "data.npy", "indptr.npy", "x" * 300))
            return {"op": "member", "file": name, "member": member, "to": to}
    key = rng.choice(("shape", "shape", "descr", "descr", "fortran_order", "version"))
    values = {
        "shape": nasty.SHAPES,
        "descr": nasty.TYPES,
        "fortran_order": ("True", "False", "7", "None"),
        "version": ([2, 0], [3, 0], [9, 9], [0, 0]),
    }
    if rng.random() < 0.35 and member is None:
        # Numbers of the contents: rows and columns out of range, NaN, infinity.
        size = path.stat().st_size
        number = rng.choice(
            (
                b"\xff" * 4,
                b"\x7f" + b"\xff" * 3,
                b"\xff" * 3 + b"\x7f",
                b"\0\0\xc0\x7f",
                b"\0\0\x80\x7f",
                b"\0" * 8,
                b"\xff" * 8,
            )
        )
        at = min(size, 128 + 4 * rng.randrange(max(1, (size - 128) // 4)))
        return _splice(name, at, len(number), number.decode("latin-1"))
    return {"op": "array", "file": name, "member": member, "key": key, "value": rng.choice(values[key])}


def _of_tensor(rng, path, name):
    with path.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    if rng.random() < 0.15:
        length = rng.choice((0, 1, 2**63, 2**40, 2**64 - 1))
        return _splice(name, 0, 8, length.to_bytes(8, "little").decode("latin-1"))
    tensor = rng.choice([key for key in header if key != "__metadata__"])
    key = rng.choice(("dtype", "shape", "data_offsets", None))
    value = {
        "dtype": ("F16", "BF16", "F64", "I64", "U8", "X", None, 3),
        "shape": ([], [0], [1], [-1], [2**63], [2**32, 2**32], ["a"], None, [1] * 100),
        "data_offsets": ([0, 0], [4, 0], [0, 2**63], [-4, 4], [0], None, [0, 16]),
        None: (None, {}, "x", {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    }[key]
    return {"op": "tensor", "file": name, "where": [tensor, key] if key else [tensor], "value": rng.choice(value)}


def _of_folder(rng, path, name):
    # In a stranger's folder alone: who names a pipe as a corpus waits for it.
    rare = "fifo" if rng.random() < 0.1 and name and not name.startswith((".", "out/")) else "swap"
    kind = rng.choice(("remove", "remove", "folder", "link", "link", "swap", "copy", "copy", rare))
    if kind == "swap" and name:
        root = path
        for _ in name.split("/"):
            root = root.parent
        return {"op": "swap", "file": name, "other": rng.choice(edits.files(root))}
    if kind == "link":
        to = rng.choice((*nasty.LINKS, path.name))
        return {"op": "link", "file": name, "to": to}
    if kind in ("copy", "swap"):
        return {"op": "copy", "file": name, "of": rng.choice(nasty.KINDS)}
    return {"op": kind, "file": name}


def draw_options(rng, options):
    """One or two of these options with nasty values."""
    drawn = []
    for flag, kind in rng.sample(options, min(len(options), rng.choice((1, 1, 1, 2)))):
        value = rng.choice(nasty.OPTION_VALUES[kind])
        if rng.random() < 0.05:
            value = "".join(rng.choice(string.printable) for _ in range(rng.choice((1, 5, 40))))
        drawn += [flag, value]
    return drawn
