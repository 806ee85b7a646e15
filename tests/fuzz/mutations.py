"""Draws edits for a material: random bytes, nasty values at the places of its format, and damage to folders."""

import json
import string
import zipfile

from fuzz import edits, nasty

_TEXTS = (".json", ".jsonl", ".yaml", ".tsv", ".trec", ".txt")


def draw(rng, root):
    """Draw edits for a file or folder: usually one, sometimes up to three, sealed now and then."""
    names = edits.files(root)
    drawn = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        # The first of two at random, unless nobody reads it.
        name = min(rng.choice(names), rng.choice(names), key=lambda one: "README" in one or "events.out" in one)
        path = root / name if name else root
        kinds = [(_bytes, 3), (_of_folder, 2 if name else 0.5)]
        kinds += [(_value, 8)] if path.suffix in (".json", ".jsonl", ".yaml") else []
        kinds += [(_text, 6)] if path.suffix in _TEXTS else []
        kinds += [(_of_array, 7)] if path.suffix in (".npy", ".npz") else []
        draw_one = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        try:
            drawn.append(draw_one(rng, path, name))
        except (ValueError, IndexError, KeyError):  # such as an empty file
            drawn.append(_bytes(rng, path, name))
    if "manifest.json" in names and rng.random() < 0.35:
        drawn.append({"op": "seal"})
    return drawn


def _splice(name, at, cut, put, times=1):
    return {"op": "splice", "file": name, "at": at, "cut": cut, "put": put, "times": times}


def _bytes(rng, path, name):
    content = path.read_bytes()
    at = rng.choice((0, len(content), rng.randrange(len(content) + 1), rng.randrange(min(len(content), 200) + 1)))
    put = rng.choice(("", rng.randbytes(rng.choice((1, 4, 64))), content[at : at + rng.choice((1, 64, 1000))]))
    put = put if isinstance(put, str) else put.decode("latin-1")
    return _splice(name, at, rng.choice((0, 1, len(put), 64, None)), put, rng.choice((1, 1, 2, 50)))


def _text(rng, path, name):
    """Replace a cell, or a part of it."""
    content = path.read_bytes()
    start = rng.choice([0, *(place + 1 for place, byte in enumerate(content) if byte == 10)])
    line = content[start:].partition(b"\n")[0]
    gap = b"\t" if b"\t" in line else b" "
    cells = line.split(gap)
    number = rng.randrange(len(cells))
    at = start + sum(len(cell) + 1 for cell in cells[:number])
    value = rng.choice(nasty.VALUES)
    text = value if isinstance(value, str) else json.dumps(value)
    text = text.encode("utf-8", errors="surrogatepass").decode("latin-1")
    put, times = rng.choice((*nasty.SNIPPETS, *((one, 1) for one in nasty.YAML if path.suffix == ".yaml"), (text, 1)))
    return _splice(name, rng.choice((at, at, at, 0, len(content))), rng.choice((len(cells[number]), 1, 0)), put, times)


def _value(rng, path, name):
    line = rng.randrange(path.read_bytes().count(b"\n")) if path.suffix == ".jsonl" else None
    where = list(rng.choice(list(_places(edits.parsed(path, line)[1]))))
    if rng.random() < 0.15:
        return {"op": "drop", "file": name, "line": line, "where": where}
    if rng.random() < 0.15:
        where[-1] = rng.choice(("x", "", "path", "files", "$id", "__class__", "auto_map", "\ud800"))
    value = rng.choice(nasty.VALUES) if rng.random() < 0.75 else rng.choice(nasty.STRANGE)
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
    elif rng.random() < 0.35:
        # Numbers of the contents: rows and columns out of range, NaN, infinity.
        at = 128 + 4 * rng.randrange(max(1, (path.stat().st_size - 128) // 4))
        return _splice(
            name, at, 4, rng.choice(("\xff" * 4, "\xff" * 3 + "\x7f", "\0\0\xc0\x7f", "\0\0\x80\x7f", "\0" * 8))
        )
    key, values = rng.choice(list(nasty.HEADERS.items()))
    return {"op": "array", "file": name, "member": member, "key": key, "value": rng.choice(values)}


def _of_folder(rng, path, name):
    # In a stranger's folder alone: who names a pipe as a corpus waits for it.
    rare = "fifo" if rng.random() < 0.1 and name and not name.startswith((".", "out/")) else "swap"
    kind = rng.choice(("remove", "remove", "link", "link", "swap", "copy", "copy", rare))
    if kind == "swap" and name:
        return {"op": "swap", "file": name, "other": rng.choice(edits.files(path.parents[name.count("/")]))}
    if kind == "link":
        return {"op": "link", "file": name, "to": rng.choice((*nasty.LINKS, path.name))}
    if kind in ("copy", "swap"):
        return {"op": "copy", "file": name, "of": rng.choice(nasty.KINDS)}
    return {"op": kind, "file": name}


def draw_options(rng, options):
    """Draw one or two of these options with nasty values."""
    drawn = []
    for flag, kind in rng.sample(options, min(len(options), rng.choice((1, 1, 1, 2)))):
        value = rng.choice(nasty.OPTION_VALUES[kind])
        if rng.random() < 0.05:
            value = "".join(rng.choices(string.printable, k=rng.choice((1, 5, 40))))
        drawn += [flag, value]
    return drawn
