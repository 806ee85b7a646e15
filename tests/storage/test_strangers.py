"""Untrusted folders: a manifest neither leads out of its folder nor causes a traceback."""

import contextlib
import functools
import json
import os
import random
import shutil
import socket
from collections.abc import Iterator

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from retrievalkit_testing.properties import limited

from retrievalkit import storage
from retrievalkit.cli import main
from vector_folders import write

DEEP = json.loads("[" * 300 + "]" * 300)
VALUES = (None, -1, 2**70, 1e300, "x", "../x", [], {}, True, DEEP)


def rkit(*words):
    return CliRunner().invoke(main, list(map(str, words)))


def edited(path, **changes):
    """Set values in a JSON file by their places: `corpus__path=...`."""
    value = json.loads(path.read_text())
    for place, new in changes.items():
        *outer, last = place.split("__")
        functools.reduce(dict.__getitem__, outer, value)[last] = new
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("name", ["../../../.bashrc", "{home}/.bashrc", "sub/../../../../.bashrc", "manifest.json"])
def test_indexing_untrusted_vectors_writes_only_into_the_output(tmp_path, name):
    """The files that a manifest names are linked into the index."""
    folder, home = tmp_path / "downloads" / "vectors", tmp_path / "home"
    (home / "work" / "indexes").mkdir(parents=True)
    write(folder, vectors=np.ones((6, 4)), inputs={"texts": storage.describe_input("corpus", "c" * 32)})
    target = folder / (name := name.format(home=home))
    if not target.exists() and "sub" not in name:
        target.write_text("payload")
    entry = {"bytes": 7, "blake2b": storage.fingerprint_file(target) if target.exists() else "0" * 32}
    files = json.loads((folder / "manifest.json").read_text())["files"]
    edited(folder / "manifest.json", files={**files, name: entry})
    before = sorted(tmp_path.rglob("*"))
    ran = rkit("index", folder, "--output", home / "work" / "indexes" / "index")
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "in files should be the" in ran.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_model, tiny_collection):
    """A folder of each kind, from a tiny model."""
    root = tmp_path_factory.mktemp("folders")
    small = root / "corpus.jsonl"
    small.write_text("".join(tiny_collection.corpus.read_text().splitlines(keepends=True)[:5]))
    for words in (
        ("encode", tiny_model, small, "--output", root / "vectors"),
        ("index", root / "vectors", "--output", root / "index"),
        ("index", root / "vectors", "--indexer", "faiss", "--output", root / "faiss"),
    ):
        assert rkit(*words).exit_code == 0
    from retrievalkit.models.retriever import Retriever

    (root / "checkpoint").mkdir()
    Retriever.create(tiny_model, pooler="mean").save(root / "checkpoint")
    storage.write_manifest(
        root / "checkpoint",
        "checkpoint",
        command="train",
        options={},
        inputs={"model": storage.describe_input(tiny_model, "f" * 32)},
        fingerprint="f" * 32,
    )
    return root


def mutations(value, place=()) -> Iterator[tuple[str, object]]:
    """Yield the value with each of its entries replaced by each of `VALUES`, or dropped."""
    for key in value if isinstance(value, dict) else ():
        rest = {name: inner for name, inner in value.items() if name != key}
        label = ".".join((*place, key))
        yield f"{label} dropped", rest
        for other in VALUES:
            yield f"{label} = {str(other)[:20]}", {**rest, key: other}
        for inner, changed in mutations(value[key], (*place, key)):
            yield inner, {**rest, key: changed}


@pytest.mark.parametrize(
    ("changed", "command"),
    [
        ("vectors/manifest.json", "index {}/vectors --output {}/out"),
        ("index/manifest.json", "search {}/index --query capital --k 2"),
        ("index/vectors/manifest.json", "search {}/index --query capital --k 2"),
        ("faiss/manifest.json", "search {}/faiss --query capital --k 2"),
        *(
            (f"checkpoint/{name}", "encode {}/checkpoint {}/corpus.jsonl --output {}/out")
            for name in ("manifest.json", "retrievalkit.json", "encoder/config.json")
        ),
    ],
)
@pytest.mark.parametrize("count", [12, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_no_value_in_a_folders_files_causes_a_traceback(folders, tmp_path, changed, command, count):
    """Each changed value is accepted or refused in one line."""
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    path = tmp_path / changed
    failed = []
    tried = list(mutations(json.loads(path.read_text())))
    for label, value in tried if count is None else random.Random(11).sample(tried, count):
        path.write_text(json.dumps(value))
        ran = rkit(*command.replace("{}", str(tmp_path)).split())
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        lines = [line for line in ran.stderr.splitlines() if not line.startswith("Note: ")]
        if ran.exit_code and (ran.exit_code != 2 or len(lines) != 1 or len(lines[0]) >= 1_000):
            failed.append(f"{label}: exit {ran.exit_code}, {ran.exception!r} {ran.stderr[:300]}")
    assert not failed, "\n".join(failed)


SCHEMES = ("s3", "gs", "ftp", "ssh", "webhdfs", "memory", "file", "http", "simplecache::s3", "s3a")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("place", ["", "documents:", "hf:", "parquet:", "path", "description__model"])
def test_a_manifest_opens_no_address(folders, tmp_path, monkeypatch, scheme, place):
    """Neither texts nor a model are fetched from an address, as a store would receive the user's key id."""
    opened = []

    def refuse(*words, **_):
        opened.append(words)
        raise OSError

    for owner, name in ((fsspec.core, "url_to_fs"), (socket, "create_connection"), (socket.socket, "connect")):
        monkeypatch.setattr(owner, name, refuse)
    shutil.copytree(folders / "index", tmp_path / "index")
    of_texts = not place or place.endswith(":")
    if of_texts:
        address = f"{place}{scheme}://stranger/x.jsonl"
        changes = {"corpus": {"path": address, "source": address, "fingerprint": "f" * 32}}
    else:
        changes = {f"checkpoint__{one}": "gone" for one in ("path", "relative_path", "description__model")}
        changes[f"checkpoint__{place}"] = f"{scheme}://stranger/x"
    edited(tmp_path / "index" / "manifest.json", **changes)
    ran = rkit("search", tmp_path / "index", "--query", "capital", "--k", "2")
    assert (ran.exit_code, opened) == (0 if of_texts else 2, []), ran.stderr
    assert "--corpus" in ran.stderr if of_texts else ran.stderr.count("\n") == 1


def test_a_store_is_opened_only_within_the_bucket_that_the_user_named(folders, tmp_path, memory):
    """The corpus of an index in a store is read from the same bucket only."""
    corpus = (folders / "corpus.jsonl").read_bytes()
    shutil.copytree(folders / "index", tmp_path / "index")
    for number, (bucket, shown) in enumerate((("mine", True), ("other", False), ("mine::memory://other", False))):
        address = f"memory://{bucket}/corpus.jsonl"
        fingerprint = storage.fingerprint_file(folders / "corpus.jsonl")
        entry = {"path": address, "source": address, "fingerprint": fingerprint}
        edited(tmp_path / "index" / "manifest.json", corpus=entry)
        memory.pipe(address, corpus)
        memory.put(str(tmp_path / "index"), f"memory://mine/{number}", recursive=True)
        ran = rkit("search", f"memory://mine/{number}", "--query", "capital", "--k", "2")
        assert (ran.exit_code, "seat of government" in ran.stdout) == (0, shown), ran.output


FILMS = """
from retrievalkit import hookimpl
from retrievalkit.data.sources import Source

class Films(Source):
    def passages(self):
        yield {"id": "0", "text": "the secret"}

    def fingerprint(self):
        return "1"

@hookimpl
def register_sources(register):
    register("films", "films:Films")
"""


@pytest.mark.parametrize(
    "source",
    "{secret} documents:{secret} documents:{home} {home} ../home/secret.txt .link hf:{home} films:x".split(),  # noqa: SIM905
)
@pytest.mark.parametrize("entry", ["path", "source", "relative_path"])
def test_a_manifest_shows_no_file_of_the_user(folders, tmp_path, source, entry, fresh_registry, monkeypatch):
    """Only who knows the content of a file knows its fingerprint."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders / "index", tmp_path / "index")
    home = tmp_path / "home"
    home.mkdir()
    secret = home / "secret.txt"
    secret.write_text("the secret")
    (home / "corpus.jsonl").write_text('{"_id": "0", "text": "the secret"}\n')
    (tmp_path / "index" / ".link").symlink_to(home / "corpus.jsonl")
    (tmp_path / "films.py").write_text(FILMS)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(tmp_path / "films.py"))
    fresh_registry()
    address = source.format(home=home, secret=secret)
    manifest = json.loads((folders / "index" / "manifest.json").read_text())
    corpus = {"source": "gone", "fingerprint": manifest["corpus"]["fingerprint"], entry: address}
    if source == "films:x":
        corpus["fingerprint"] = "1"
    edited(tmp_path / "index" / "manifest.json", corpus=corpus)
    ids = tmp_path / "index" / "vectors" / "ids.txt"
    for name in ("0", "secret.txt"):
        lines = ids.read_text().splitlines()
        ids.write_text("\n".join([name, *lines[1:]]) + "\n")
        vectors = tmp_path / "index" / "vectors" / "manifest.json"
        edited(vectors, files={**json.loads(vectors.read_text())["files"], "ids.txt": storage.describe_file(ids)})
        manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
        edited(
            tmp_path / "index" / "manifest.json",
            files={**manifest["files"], "vectors/manifest.json": storage.describe_file(vectors)},
        )
        ran = rkit("search", tmp_path / "index", "--query", "capital", "--k", "5")
        assert "the secret" not in ran.output, ran.output
        assert (ran.exit_code, f"  {name}  " in ran.stdout) == (0, True), ran.output


def bind(path):
    # The names of sockets may have about a hundred bytes.
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


def pipe(path):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def shard_elsewhere(folder, secret):
    (folder / "model.safetensors").rename(folder.parent / "secret.safetensors")
    listing = {"metadata": {}, "weight_map": {"x": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listing))


def adapter(folder, secret):
    (folder / "config.json").rename(secret.parent / "config.json")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(secret.parent)}))


ATTACKS = {
    **{
        f"a pipe: {name}": lambda folder, secret, name=name: pipe(folder / name)
        for name in ("special_tokens_map.json", "config.json", "tokenizer.json", "model.safetensors")
    },
    "a pipe in a folder": lambda folder, secret: pipe(folder / "1_Pooling" / "config.json"),
    "a socket": lambda folder, secret: bind(folder / "chat_template.jinja"),
    "a device": lambda folder, secret: (folder / "added_tokens.json").symlink_to("/dev/zero"),
    "a file of the kernel": lambda folder, secret: (folder / "added_tokens.json").symlink_to("/proc/self/environ"),
    "a link": lambda folder, secret: (folder / "vocab.txt").symlink_to(secret),
    "a link upward": lambda folder, secret: (folder / "vocab.txt").symlink_to("../secret.txt"),
    "a link to a folder": lambda folder, secret: (folder / "additional_chat_templates").symlink_to(secret.parent),
    "a shard elsewhere": shard_elsewhere,
    "a vocabulary elsewhere": lambda folder, secret: edited(folder / "tokenizer_config.json", vocab_file=str(secret)),
    "an adapter of another model": adapter,
}


COMMANDS = {
    "encode": "encode MODEL CORPUS --output OUT",
    "rerank": "rerank train --model MODEL --examples MINED --corpus CORPUS --epochs 1 --output OUT",
    "pretrain": "pretrain --pretrainer mlm --model MODEL --corpus CORPUS --steps 1 --output OUT",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_model_is_read_from_files_of_its_own_folder(tiny_model, folders, tmp_path, attack, command):
    """A pipe would block the command, and the target of a link would be copied into the next checkpoint."""
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "secret.txt").write_text("the secret")
    (tmp_path / "mined.jsonl").write_text(
        '{"query_id": "q", "query": "which", "positives": ["c0"], "negatives": ["c1"]}\n'
    )
    ATTACKS[attack](tmp_path / "model", tmp_path / "secret.txt")
    places = {"MODEL": tmp_path / "model", "CORPUS": folders / "corpus.jsonl", "OUT": tmp_path / "out"}
    places["MINED"] = tmp_path / "mined.jsonl"
    with limited(60):
        ran = rkit(*(places.get(word, word) for word in COMMANDS[command].split()))
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.output
    assert not (tmp_path / "out").exists()


def test_links_within_the_hubs_cache_are_allowed(tiny_model, folders, tmp_path):
    """A snapshot consists of links to ../../blobs."""
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    shutil.copytree(tiny_model, tmp_path / "models--owner--name" / "blobs")
    for file in os.listdir(tiny_model):
        (snapshot / file).symlink_to(f"../../blobs/{file}")
    ran = rkit("encode", snapshot, folders / "corpus.jsonl", "--output", tmp_path / "out")
    assert ran.exit_code == 0, ran.output


def test_a_manifest_loads_no_other_model(folders, tiny_model, tmp_path, monkeypatch):
    """A folder with another fingerprint is not opened."""
    shutil.copytree(folders / "index", tmp_path / "index")
    shutil.copytree(tiny_model, tmp_path / "mine")
    edited(tmp_path / "mine" / "config.json", note="another model")
    edited(tmp_path / "index" / "manifest.json", checkpoint__path=str(tmp_path / "mine"))
    monkeypatch.setattr("retrievalkit.models.retriever.Retriever.create", lambda *_, **__: pytest.fail("it is loaded"))
    ran = rkit("search", tmp_path / "index", "--query", "capital", "--k", "2")
    assert (ran.exit_code, "not comparable" in ran.stderr) == (2, True), ran.output


@pytest.fixture(scope="module")
def changed(folders, tmp_path_factory):
    """An index of two segments with a deleted text."""
    root = tmp_path_factory.mktemp("changed")
    shutil.copytree(folders / "index", root / "index")
    (root / "more.jsonl").write_text('{"_id": "new", "text": "a new text"}\n')
    ran = rkit("index", root / "index", "--add", root / "more.jsonl", "--delete", "c0")
    assert ran.exit_code == 0, ran.output
    return root / "index"


@pytest.mark.parametrize("damage", ["bytes", "pipe", "gone", "link", "folder", "segment"])
@pytest.mark.parametrize("command", ["search {} --query capital --k 2", "index {} --delete c1"])
def test_a_damaged_or_linked_segment_is_refused(changed, tmp_path, damage, command):
    """A damaged list of deleted texts is refused too."""
    shutil.copytree(changed, tmp_path / "index")
    segments = tmp_path / "index" / "segments"
    deleted = next(segments.glob("deleted-*.txt"))
    segment = next(path for path in segments.iterdir() if path.is_dir())
    if damage == "bytes":
        deleted.write_bytes(b"c0\n\xf8\n")
        manifest = tmp_path / "index" / "manifest.json"
        files = json.loads(manifest.read_text())["files"]
        edited(manifest, files={**files, f"segments/{deleted.name}": storage.describe_file(deleted)})
    elif damage in ("pipe", "gone", "link"):
        deleted.rename(tmp_path / "elsewhere")
        {"pipe": os.mkfifo, "gone": str, "link": lambda path: path.symlink_to(tmp_path / "elsewhere")}[damage](deleted)
    else:
        moved = segments if damage == "folder" else segment
        moved.rename(tmp_path / "elsewhere")
        moved.symlink_to(tmp_path / "elsewhere")
    with limited(60):
        ran = rkit(*command.format(tmp_path / "index").split())
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.output
