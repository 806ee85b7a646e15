"""rkit encode: shards in the corpus's order, resumed after a kill with equal bytes, and memory that does not grow."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from device_memory import DeviceMemory
from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.errors import InputError
from retrievalkit.indexing import corpus_encoding as program
from retrievalkit.models.retriever import Retriever
from retrievalkit.storage import partial_folder, read_manifest

pytestmark = pytest.mark.precision


def encode(model, texts, *, side, output, overwrite=False, **options):
    """The program, its options by name."""
    made = program.EncodingOptions(**options)
    return program.encode(model, texts, side=side, output=output, options=made, overwrite=overwrite)


@pytest.fixture
def documents(tiny_model, tiny_collection, tmp_path):
    """Encodes the collection into a folder of this name."""

    def encoded(name, texts=tiny_collection.corpus, *, side="document", **options):
        encode(tiny_model, texts, side=side, output=tmp_path / name, **{"pooler": "mean", **options})
        return tmp_path / name

    return encoded


def all_vectors(folder):
    return np.concatenate([np.asarray(rows) for _, rows in VectorStore(folder).shards()])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("side", ["document", "query"])
def test_vectors_are_those_of_the_retriever_in_the_order_of_the_texts(documents, tiny_model, tiny_collection, side):
    """The manifest names the texts and describes the model, which can be made from it again."""
    source = tiny_collection.corpus if side == "document" else tiny_collection.folder
    folder = documents("v", source, side=side, precision="fp32")
    if side == "document":
        texts = {one.id: (one.title, one.text) for one in open_corpus(source)}
    else:
        texts = {one.id: ("", one.text) for one in read_queries(source)}
    expected = Retriever.create(tiny_model, pooler="mean").encode(list(texts.values()), side)
    assert list(VectorStore(folder).ids) == list(texts)
    np.testing.assert_allclose(all_vectors(folder), expected.vectors[:, 0].numpy(), rtol=1e-4, atol=1e-5)
    manifest = read_manifest(folder, "vectors")
    assert manifest.get("corpus", {}).get("source") == (str(source) if side == "document" else None)
    assert manifest["counts"]["texts"] == len(texts)
    checkpoint = manifest["checkpoint"]
    assert Retriever.from_description(checkpoint["description"], "cpu").fingerprint == checkpoint["fingerprint"]


@pytest.mark.parametrize("shard_texts", [5, 42, 100])
def test_the_size_of_a_shard_changes_nothing_but_the_files(shard_texts, documents):
    # In bf16 a vector depends on what it is batched with.
    whole, parts = documents("whole", precision="fp32"), documents("parts", precision="fp32", shard_texts=shard_texts)
    assert len(list(parts.glob("vectors-*.npy"))) == -(-42 // shard_texts)
    np.testing.assert_allclose(all_vectors(parts), all_vectors(whole), rtol=1e-4, atol=1e-5)


def test_texts_with_different_numbers_of_vectors(documents, tiny_model, tiny_collection):
    """Every token is a vector: offsets say which rows belong to which text."""
    folder = documents("v", pooler="multi_layer", pooler_options={"tokens": "all"}, shard_texts=10)
    texts = [(one.title, one.text) for one in open_corpus(tiny_collection.corpus)]
    tokens = Retriever.create(tiny_model, pooler="mean").tower("document").tokenize(texts, "document")
    assert np.diff(VectorStore(folder).offsets).tolist() == [len(ids) for ids in tokens]


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


CHANGES = {
    "vectors": ("vectors-00001.npy", flip),
    "vectors cut off": ("vectors-00001.npy", lambda path: path.write_bytes(path.read_bytes()[:-4])),
    "ids": ("ids-00001.txt", lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b"0\n", 1))),
    "counts removed": ("counts-00001.npy", lambda path: path.unlink()),
    "record": ("shard-00001.json", lambda path: path.write_text(path.read_text().replace('"texts": 8', '"texts": 7'))),
    "record cut off": ("shard-00001.json", lambda path: path.write_text(path.read_text()[:9])),
}


@forks
@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_was_changed_is_encoded_again(change, documents, tmp_path, capsys):
    """Whichever file of a shard was changed after a kill: it is named, and the bytes end up the same."""
    options = {"shard_texts": 8}
    whole = documents("whole", **options)

    def killed():
        kill_at_call(VectorWriter, "write_shard", 4)
        documents("cut", **options)

    assert in_another_process(killed) == -signal.SIGKILL
    assert not (tmp_path / "cut").exists()
    name, alter = CHANGES[change]
    alter(partial_folder(tmp_path / "cut") / name)
    assert contents(documents("cut", **options)) == contents(whole)
    told = capsys.readouterr().err
    assert f"{name}' was changed after it was written: its texts are encoded again" in told
    assert "resuming after 16 texts of 42" in told
    assert not partial_folder(tmp_path / "cut").exists()


@forks
@pytest.mark.parametrize("count", [2, 5, 9])
def test_an_encoding_killed_while_it_tidies_up_ends_with_the_same_bytes(count, documents):
    """Records, ids and counts of shards are removed one after the other."""
    whole = documents("whole", shard_texts=8)

    def killed():
        finish = VectorWriter.finish

        def finished(self):
            kill_at_call(Path, "unlink", count)
            return finish(self)

        VectorWriter.finish = finished
        documents("cut", shard_texts=8)

    assert in_another_process(killed) == -signal.SIGKILL
    assert contents(documents("cut", shard_texts=8)) == contents(whole)


def test_no_more_than_two_shards_are_in_memory(tiny_model, tmp_path, monkeypatch):
    """The corpus is read as it is needed: one shard is computed while one is tokenised and one waits."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": f"d{n}", "title": "", "text": "rome"}) + "\n" for n in range(200)))
    read, ahead = [0], []
    rows = program._Texts.__iter__

    def counted(self):
        for row in rows(self):
            read[0] += 1
            yield row

    write_shard = VectorWriter.write_shard

    def watched(self, number, *arguments, **more):
        ahead.append(read[0] - 10 * (number + 1))
        return write_shard(self, number, *arguments, **more)

    monkeypatch.setattr(program._Texts, "__iter__", counted)
    monkeypatch.setattr(VectorWriter, "write_shard", watched)
    encode(tiny_model, corpus, side="document", output=tmp_path / "v", shard_texts=10)
    assert len(ahead) == 20
    assert max(ahead) <= 30


@pytest.mark.parametrize(
    "extra", [{"pooler": "mean"}, {"pooler_options": {"normalize": True}}, {"encoder": "transformer"}]
)
def test_a_checkpoint_takes_no_parts(extra, tiny_model, tiny_collection, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    Retriever.create(tiny_model, pooler="mean").save(tmp_path / "checkpoint")
    with pytest.raises(InputError, match="holds its own encoder, pooler and options"):
        encode(tmp_path / "checkpoint", tiny_collection.corpus, side="document", output=tmp_path / "v", **extra)
    assert not (tmp_path / "v").exists()


def test_bf16_vectors_point_the_way_of_float32_vectors(documents):
    one, other = (torch.from_numpy(all_vectors(documents(name, precision=name))) for name in ("fp32", "bf16"))
    assert torch.nn.functional.cosine_similarity(one, other).min() > 0.9999


@pytest.fixture
def poisoned(tiny_collection, tiny_model, tmp_path, monkeypatch):
    """Encodes, on a cluster, a corpus of whose texts the model can compute all but two, the third and the last."""
    rows = list(map(json.loads, tiny_collection.corpus.read_text(encoding="utf-8").splitlines()))
    for row in (rows[2], rows[-1]):
        row["text"] += " poison"
    path = tmp_path / "poisoned.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_tower = Retriever.tower

    def tower(self, side):
        made = make_tower(self, side)

        def refusing(texts, which):
            if any("poison" in text.body for text in texts):
                raise MemoryError("no memory for this text")
            return type(made).tokenize(made, texts, which)

        monkeypatch.setattr(made, "tokenize", refusing, raising=False)
        return made

    monkeypatch.setattr(Retriever, "tower", tower)
    monkeypatch.setattr(program, "spread_map", lambda make, items, cluster, **_: map(make(), items()))

    def encoded(shard_texts):
        more = {"options": program.EncodingOptions(shard_texts=shard_texts)}
        cluster = program.ClusterOptions(ray="local")
        return program.encode(tiny_model, path, side="document", output=tmp_path / "v", cluster=cluster, **more)

    return encoded, [row["_id"] for row in rows]


def test_on_a_cluster_texts_that_cannot_be_encoded_fail_alone(poisoned, tmp_path, capsys):
    """They are named at the end, also those that an earlier, interrupted command met."""
    encoded, ids = poisoned
    with pytest.raises(MemoryError, match="no memory"):
        encoded(1)  # a shard without a text
    assert encoded(10)["left_out"] == [
        {"id": one, "reason": "MemoryError: no memory for this text"} for one in (ids[2], ids[-1])
    ]
    assert f"2 texts could not be encoded, and the folder lacks them: '{ids[2]}'" in capsys.readouterr().err
    assert list(VectorStore(tmp_path / "v").ids) == [one for one in ids if one not in (ids[2], ids[-1])]
    assert not list((tmp_path / "v").glob("left-out*"))


def test_the_manifest_records_the_size_that_fits_in_memory(tiny_model, tiny_collection, tmp_path):
    retriever = Retriever.create(tiny_model, pooler="mean")
    DeviceMemory(200).limit(retriever.tower("document").model)
    output = tmp_path / "vectors"
    manifest = program.encode(tiny_model, tiny_collection.corpus, side="document", output=output, opened=retriever)
    assert manifest["batch_tokens"] == retriever.limit.reduced <= 200
    assert manifest["options"]["batch_tokens"] is None, "the option, by which a resumed command is recognised"
