"""Commands on an S3 server: outputs equal local ones, inputs are read by range, mistakes end in one message."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit import storage
from retrievalkit.cli.main import main
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.errors import ArtifactError
from retrievalkit.indexing.corpus_encoding import encode
from retrievalkit.indexing.options import EncodingOptions
from s3_server import client, objects, put, serving

s3fs = pytest.importorskip("s3fs")

pytestmark = [pytest.mark.precision, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
_SECRET = "a-secret-that-nobody-sees"
_BUCKETS = itertools.count()


@pytest.fixture(scope="module")
def server():
    with serving() as (address, given):
        yield address, given


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    name = f"bucket{next(_BUCKETS)}"
    variables = {
        "ENDPOINT_URL": server[0], "ACCESS_KEY_ID": "somebody", "SECRET_ACCESS_KEY": _SECRET,
        "DEFAULT_REGION": "us-east-1", "EC2_METADATA_DISABLED": "true", "MAX_ATTEMPTS": "1",
    }  # fmt: skip
    for key, value in variables.items():
        monkeypatch.setenv(f"AWS_{key}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    client(server[0]).create_bucket(Bucket=name)
    storage.places.ADDRESSES.clear()
    return name


@pytest.fixture
def rkit():
    def run(*words):
        result = CliRunner().invoke(main, list(map(str, words)))
        assert _SECRET not in result.output
        return result.exit_code, result.output

    return run


def encoded(model, texts, output, **options):
    chosen = EncodingOptions(pooler="mean", precision="fp32", shard_texts=8)
    if not storage.is_address(output):
        return encode(model, texts, side="document", output=output, options=chosen, **options)
    with storage.sent(output, overwrite=False) as place:
        return encode(model, texts, side="document", output=place, options=chosen, **options)


@forks
def test_killed_encoding_resumes_in_the_store_and_equals_a_local_folder(
    server, bucket, tiny_model, tiny_collection, tmp_path, monkeypatch
):
    def killed():
        kill_at_call(VectorWriter, "write_shard", 4)
        encoded(tiny_model, tiny_collection.corpus, f"s3://{bucket}/vectors")

    assert in_another_process(killed) == -signal.SIGKILL
    left = objects(server[0], bucket)
    assert [name for name in left if name.endswith(".npy") and ".partial" not in name] == [
        f"vectors/vectors-0000{number}.npy" for number in range(3)
    ]
    assert "vectors/manifest.json" not in left
    assert not list((tmp_path / "cache").rglob("vectors-*.npy"))

    written, write = [], VectorWriter.write_shard
    monkeypatch.setattr(
        VectorWriter,
        "write_shard",
        lambda self, number, *a, **o: (written.append(number), write(self, number, *a, **o)),
    )
    encoded(tiny_model, tiny_collection.corpus, f"s3://{bucket}/vectors")
    assert written == [3, 4, 5]
    encoded(tiny_model, tiny_collection.corpus, tmp_path / "vectors")
    assert objects(server[0], bucket) == {
        f"vectors/{path.name}": path.read_bytes() for path in (tmp_path / "vectors").iterdir()
    }
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_texts_vectors_index_queries_and_run_may_be_in_the_store(
    server, bucket, rkit, tiny_model, tiny_collection, tmp_path
):
    put(server[0], bucket, "texts/corpus.jsonl", tiny_collection.corpus.read_bytes())
    put(server[0], bucket, "texts/queries.jsonl", tiny_collection.queries.read_bytes())
    for path in Path(tiny_model).iterdir():
        put(server[0], bucket, f"model/{path.name}", path.read_bytes())
    there = f"s3://{bucket}"
    hits = []
    for root, model, texts in (
        (tmp_path, tiny_model, tiny_collection.folder),
        (there, f"{there}/model", f"{there}/texts"),
    ):
        for words in (
            ("encode", model, f"{texts}/corpus.jsonl", "--precision", "fp32", "--output", f"{root}/v"),
            ("index", f"{root}/v", "--output", f"{root}/ix"),
            ("search", f"{root}/ix", "--queries", f"{texts}/queries.jsonl", "--k", 5, "-o", f"{root}/runs/a.trec"),
            ("search", f"{root}/ix", "--query", "capital of France", "--no-explain"),
        ):
            code, output = rkit(*words)
            assert code == 0, output
            assert "cache" not in output
        hits.append(output)
    found = objects(server[0], bucket)
    assert found["runs/a.trec"] == (tmp_path / "runs" / "a.trec").read_bytes()
    assert hits[0].replace(str(tmp_path), there) == hits[1]
    manifest = json.loads(found["ix/manifest.json"])
    assert manifest["checkpoint"]["path"] == f"{there}/model"
    assert manifest["corpus"]["path"] == f"{there}/texts/corpus.jsonl"
    assert manifest["inputs"]["vectors"]["path"] == f"{there}/v"
    assert not any(_SECRET.encode() in data or str(tmp_path).encode() in data for data in found.values())
    # An existing output is refused, and replaced with --overwrite.
    code, output = rkit("index", f"{there}/v", "--output", f"{there}/ix")
    assert (code, f"output folder '{there}/ix' exists already" in output) == (2, True)
    put(server[0], bucket, "ix/old.bin", b"of the old index")
    assert rkit("index", f"{there}/v", "--output", f"{there}/ix", "--overwrite")[0] == 0
    assert objects(server[0], bucket) == found


def test_rows_are_read_by_range(server, bucket, tiny_model, tiny_collection, tmp_path):
    encoded(tiny_model, tiny_collection.corpus, f"s3://{bucket}/vectors")
    encoded(tiny_model, tiny_collection.corpus, tmp_path / "vectors")
    here, given = VectorStore(tmp_path / "vectors"), server[1]
    given.clear()
    there = VectorStore(storage.local(f"s3://{bucket}/vectors"))
    head, row = 128, 32 * 4
    assert [given[f"{bucket}/vectors/vectors-0000{number}.npy"] for number in range(6)] == [head] * 6
    np.testing.assert_array_equal(there.block(8, 16).vectors, here.block(8, 16).vectors)
    np.testing.assert_array_equal(there.take_vectors(np.array([2, 0])), here.take_vectors(np.array([2, 0])))
    assert [given[f"{bucket}/vectors/vectors-0000{number}.npy"] for number in range(6)] == [
        head + 3 * row, head + 8 * row, head, head, head, head
    ]  # fmt: skip
    for one, other in zip(there.blocks(5), here.blocks(5), strict=True):
        np.testing.assert_array_equal(one.vectors, other.vectors)
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_an_altered_or_removed_shard_is_refused(server, bucket, tiny_model, tiny_collection):
    encoded(tiny_model, tiny_collection.corpus, url := f"s3://{bucket}/vectors")
    store = VectorStore(storage.local(url))
    name = "vectors/vectors-00000.npy"
    data = objects(server[0], bucket)[name]
    put(server[0], bucket, name, data[:-4] + b"\0\0\0\0")
    with pytest.raises(ArtifactError, match=f"'{url}/vectors-00000.npy' is damaged, or was replaced: its checksum"):
        list(store.blocks(5))
    put(server[0], bucket, name, data[:-4])
    with pytest.raises(ArtifactError, match="it has changed"):
        list(store.blocks(5))
    client(server[0]).delete_object(Bucket=bucket, Key=name)
    with pytest.raises(
        ArtifactError, match=r"00000.npy' could not be read: the bucket, folder or object does not exist"
    ):
        list(store.blocks(5))
    shutil.rmtree(store.folder)
    put(server[0], bucket, "vectors/ids.txt", b"other ids\n" * 42)
    with pytest.raises(ArtifactError, match=f"'{url}/ids.txt' does not match its manifest.json"):
        storage.local(url)


NOBODY = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": "none"}
SILENCE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("address", "environment", "message"),
    [
        ("s3://no-such-bucket/vectors", {}, "'s3://no-such-bucket/vectors' could not be read: the bucket"),
        ("s3://BUCKET/vectros", {}, "vectros' could not be read: the bucket, folder or object does not exist"),
        ("s4://BUCKET/vectors", {}, "is not in a known store"),
        ("s3://me:pass-word@BUCKET/vectors", {}, "contains a user or a password"),
        ("gs://BUCKET/vectors", {}, "needs the package 'gcsfs'. Install it: pip install 'retrievalkit[gs]'"),
        ("s3://BUCKET/vectors", NOBODY, "access is denied"),
        ("s3://BUCKET/vectors", SILENCE, "Check the address, the network"),
    ],
)
def test_a_wrong_address_or_a_refusing_store_is_one_message(
    address, environment, message, bucket, rkit, tmp_path, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    code, output = rkit("index", address, "--output", tmp_path / "ix")
    assert (code, output.count("\n"), output[:7]) == (2, 1, "Error: ")
    assert message in output
    if not environment and "the bucket" not in message:
        assert message in rkit("index", tmp_path, "--output", address)[1]
    assert "pass-word" not in output
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_command_that_writes_only_locally_refuses_a_store(rkit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output = rkit("run", "tiny", "--output", "s3://bucket/x")
    assert (code, "cannot write to a store" in output) == (2, True), output
    assert not list(tmp_path.iterdir())
