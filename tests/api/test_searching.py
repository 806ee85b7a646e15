"""Indexes that are searched: hits, threads, models that are loaded when asked, mistakes."""

from __future__ import annotations

import copy
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import retrievalkit as rk
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError, RetrievalkitError, UnsupportedError
from retrievalkit.indexing import query_encoders

pytestmark = pytest.mark.precision


def test_a_text_gives_hits_with_their_texts_and_reasons(late):
    hits = late.search("what is the capital of Peru", k=3)
    assert len(hits) == 3
    assert [hit.rank for hit in hits] == [1, 2, 3]
    assert all(hit.text.startswith("The seat of government") and hit.title for hit in hits)
    assert all(hit.why for hit in hits)
    assert not any(hit.why for hit in late.search("peru", k=3, explain=False))
    assert hits[:2] == rk.Hits(hits.query, [hits[0], hits[1]])
    assert list(hits.to_pandas()["id"]) == [hit.id for hit in hits]


def test_many_queries_give_a_run(dense, queries, tiny_collection):
    """A list, a dict, a file, a split of a folder; ten hits for one, a thousand for many."""
    texts = list(queries.values())
    by_id = dense.search(queries, k=5)
    assert list(dense.search(texts, k=5).values()) == list(by_id.values())
    assert dense.search(tiny_collection.queries, k=5) == by_id
    test = dense.search(tiny_collection.folder, k=5, split="test")
    assert test == {query: by_id[query] for query in test}
    assert len(test) == 42
    assert len(dense.search(texts[:1])["0"]) == 42
    assert len(dense.search(texts[0])) == 10


@pytest.mark.parametrize("name", ["dense", "late", "both"])
def test_threads_search_at_once(name, request, queries):
    index = request.getfixturevalue(name)
    texts = list(queries.values())[:12]
    alone = [index.search(text, k=4) for text in texts]
    whole = index.search(texts, k=4)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda text: index.search(text, k=4), texts * 2)) == alone * 2
        assert all(run == whole for run in pool.map(lambda _: index.search(texts, k=4), range(6)))


def test_the_model_is_loaded_when_asked(dense, model, monkeypatch):
    loads = []
    usual = query_encoders._load
    monkeypatch.setattr(query_encoders, "_load", lambda *words: loads.append(words) or usual(*words))
    index = rk.Index.open(dense.folder)
    assert not loads
    index.search("peru")
    assert len(loads) == 1
    ready = rk.Index.open(dense.folder, encoder=True)
    assert len(loads) == 2
    ready.search("peru")
    rk.Index.open(dense.folder).warm().search("peru")
    assert len(loads) == 3
    lent = rk.Index.open(dense.folder, model=model)
    assert lent.search("peru") == index.search("peru")
    assert len(loads) == 3


def test_hits_of_a_run_are_explained_later(both, late):
    for index in (late, both):
        run = index.search({"q": "the capital of Peru"}, k=4)
        assert index.explain("the capital of Peru", run["q"]) == index.search("the capital of Peru", k=4)
    with pytest.raises(InputError, match="'nowhere' is not among the hits of 'peru'"):
        both.explain("peru", [("nowhere", 1.0)])


@pytest.mark.parametrize("name", ["dense", "late", "both"])
def test_an_index_can_be_pickled_and_copied(name, request, model):
    index = request.getfixturevalue(name)
    expected = index.search("the capital of Peru", k=4)
    for other in (pickle.loads(pickle.dumps(index)), copy.copy(index), copy.deepcopy(index)):
        assert other.search("the capital of Peru", k=4) == expected
        assert repr(other) == repr(index)


def test_an_index_keeps_its_options_when_it_is_pickled(dense, model, monkeypatch, tmp_path):
    """Also a loaded model, and passages in memory; relative paths start where the first process did."""
    texts = [{"id": hit.id, "text": f"other {hit.id}"} for hit in dense.search("peru")]
    monkeypatch.chdir(dense.folder.parent)
    index = rk.Index.open(dense.folder.name, model=model, corpus=texts, indexer_options={"block": 7})
    pickled = pickle.dumps(index)
    monkeypatch.chdir(tmp_path)
    other = pickle.loads(pickled)
    assert other.search("peru") == index.search("peru")
    assert other.search("peru")[0].text.startswith("other")
    assert other.settings == index.settings


def test_a_pickled_index_whose_folder_has_changed_is_refused(dense, tmp_path):
    shutil.copytree(dense.folder, tmp_path / "index")
    index = rk.Index.open(tmp_path / "index")
    pickled = pickle.dumps(index)
    index.check()
    assert len(pickle.loads(pickled)) == len(index)
    index.delete(index.search("peru", k=1)[0].id)
    with pytest.raises(ArtifactError, match="has changed since the index was pickled"):
        pickle.loads(pickled)
    assert len(pickle.loads(pickle.dumps(index))) == len(index)


def test_a_retriever_can_be_pickled_and_copied_unless_its_weights_were_changed(tiny_model):
    model = rk.Retriever.load(tiny_model, pooler="mean", precision="fp32", backend="torch")
    expected = model.encode_queries(["peru"]).to_numpy()
    copies = [pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)]
    for other in copies:
        assert (other.encode_queries(["peru"]).to_numpy() == expected).all()
    with torch.no_grad():
        next(copies[2].model.parameters()).mul_(2)
    with pytest.raises(UnsupportedError, match="were changed in memory"):
        pickle.dumps(copies[2])
    assert pickle.loads(pickle.dumps(model)).pooler == "mean"


def test_an_index_is_closed_at_the_end_of_its_block(dense):
    with rk.Index.open(dense.folder) as index:
        assert index.search("peru", k=1)
    with pytest.raises(InputError, match="'dense' was closed"):
        index.search("peru")


def test_an_index_of_passages_in_memory_is_whole_by_itself(dense, tmp_path):
    shutil.copytree(dense.folder, tmp_path / "moved")
    entry = rk.Index.open(tmp_path / "moved").manifest["corpus"]
    assert entry["relative_path"] == "texts.jsonl"
    hit = rk.Index.open(tmp_path / "moved", verify=True).search("peru", k=1)[0]
    assert hit.text


def test_runs_are_fused_with_each_other_and_with_indexes(dense, late, queries):
    asked = dict(list(queries.items())[:5])
    one, other = dense.search(asked, k=10), late.search(asked, k=10)
    fused = rk.Hybrid([one, other], fusion="rrf").search(k=5)
    assert fused == rk.Hybrid([dense, late], depth=10).search(asked, k=5)
    assert rk.Hybrid([dense, other]).search(asked, k=5).keys() == asked.keys()
    other.name = one.name
    assert rk.Hybrid([one, other], fusion="rrf").search(k=5) == fused


def test_mining_from_a_hybrid_takes_its_fusion_and_its_corpus(both, tiny_collection, tiny_model, tmp_path):
    """And a training takes the corpus from the examples."""
    mined = rk.mine_negatives(both, tiny_collection.folder, depth=10, negatives=2, drop_answers=True)
    assert len(mined) == 84
    assert mined.corpus == str(both.parts[0].folder / "texts.jsonl")
    assert mined.report["source"]["kind"] == "fusion"
    made = rk.train(tiny_model, mined, epochs=0.2, batch_size=16, output=tmp_path / "made")
    assert rk.Retriever.load(made).pooler == "cls"


def test_an_interrupted_build_goes_on(model, passages, tmp_path, monkeypatch):
    """Ctrl-C while it indexes leaves no index, and the vectors for the next call."""
    from retrievalkit.objects import index as api

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    usual = api.build_index
    monkeypatch.setattr(api, "build_index", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rk.Index.build(passages, model, tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == [".index.building"]
    monkeypatch.setattr(api, "build_index", usual)
    monkeypatch.setattr("retrievalkit.objects.retriever.encode", interrupted)
    assert len(rk.Index.build(passages, model, tmp_path / "index")) == 42
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (lambda index, _: index.search(""), InputError, "the query is empty"),
        (lambda index, _: index.search([]), DataError, "it contains no queries"),
        (lambda index, _: index.search(5), InputError, "cannot read queries from int"),
        (lambda index, _: index.search("peru", k=0), OptionError, "k is 0"),
        (lambda index, _: index.search("peru", k=1.5), OptionError, "k is 1.5"),
        (lambda index, _: rk.Index.open(index.folder, presicion="fp32"), OptionError, "did you mean 'precision'"),
        (lambda _, folder: rk.Index.open(folder / "none"), InputError, "does not exist"),
        (lambda _, folder: rk.Index.open(folder), ArtifactError, "manifest.json"),
        (lambda index, _: rk.Index.open(index.folder, indexer_options={"blok": 3}), OptionError, "indexer.block"),
        (lambda index, _: rk.Hybrid([index]), InputError, "two or more indexes, not 1"),
        (lambda index, _: rk.Hybrid([index, 5]), InputError, "an object of type int cannot be searched"),
        (lambda index, _: rk.Hybrid([index, index], wieghts=[1, 2]), OptionError, "did you mean 'weights'"),
        (lambda index, _: rk.Hybrid([index, index]).save_weights("x"), InputError, "no tuned weights"),
        (lambda index, _: rk.Index.build(["a"], None), OptionError, "index needs 'output'"),
        (
            lambda _, folder: rk.Index.build(["a"], None, folder / "x", pooler="mean"),
            OptionError,
            "pooler only applies",
        ),
        (lambda index, folder: rk.Index.build(["a"], None, folder / "x", indexer="flta"), RetrievalkitError, "'flat'"),
        (lambda index, folder: rk.Retriever.load(folder), RetrievalkitError, "config.json"),
        (lambda index, _: rk.train("m", [{"x": 1}]), OptionError, "train needs the option 'output'"),
        (lambda index, _: rk.mine_negatives("bm25", [{}]), InputError, "there is no corpus to mine"),
    ],
)
def test_a_mistake_is_one_error_of_ours(dense, tmp_path, mistake, error, message):
    with pytest.raises(error) as raised:
        mistake(dense, tmp_path)
    assert message in str(raised.value)


def test_a_model_that_did_not_make_the_index_is_refused(dense, tiny_model):
    other = rk.Retriever.load(tiny_model, pooler="cls")
    with pytest.raises(ArtifactError, match="their vectors are not comparable"):
        rk.Index.open(dense.folder, model=other)


def test_nothing_is_printed(dense, model, tiny_collection, tmp_path, capfd):
    """Neither results, which are returned, nor reports of libraries."""
    run = dense.search(tiny_collection.folder, k=5, split="test")
    run.evaluate(tiny_collection.qrels)
    rk.compare([run, rk.Run(run.to_dict(), "other")], tiny_collection.qrels)
    rk.convert(tiny_collection.qrels, tmp_path / "qrels.trec")
    rk.Index.build(Path(tiny_collection.corpus), model, tmp_path / "index")
    rk.Retriever.load(model.source).encode_queries(["x"])
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_queries_are_cut_where_the_index_is_told_to(dense, model, tiny_model, queries, folders, passages):
    """As `rkit search --set encoder.query_length` does; also by a model that was loaded so, and in a hybrid."""
    short = rk.Index.open(dense.folder, model=model, encoder_options={"query_length": 4}).search(queries, k=5)
    whole = dense.search(queries, k=5)
    assert short != whole
    assert rk.Index.open(dense.folder, encoder_options={"query_length": 4}).search(queries, k=5) == short
    other = rk.Hybrid([dense, rk.Index.open(dense.folder, encoder_options={"query_length": 4})], fusion="sum")
    both = other.search(queries, k=5)
    assert both not in (short, whole)
    with pytest.raises(OptionError, match="mining cannot use"):
        rk.mine_negatives(other, [{}], corpus=passages)


def test_a_checkpoint_that_was_loaded_with_other_lengths_encodes_queries_with_them(checkpoint, passages, folders):
    loaded = rk.Retriever.load(checkpoint, encoder_options={"query_length": 4})
    index = rk.Index.build(passages, loaded, folders / "short")
    assert index.manifest["checkpoint"]["encoder_options"] == {"query_length": 4}
    run = index.search(["where do people speak Spanish today"], k=5)
    assert rk.Index.open(index.folder).search(["where do people speak Spanish today"], k=5) == run
    whole = rk.Retriever.load(checkpoint)
    assert rk.Index.open(index.folder, model=whole).search(["where do people speak Spanish today"], k=5) == run


def test_queries_that_are_cut_are_told_of(dense, capsys):
    """Once, as the command line does; with `strict` they are an error."""
    long = ["people " * 600]
    dense.search(long, k=1)
    assert "1 query text had more than" in capsys.readouterr().err
    with pytest.raises(InputError, match="would be cut"):
        dense.search(long, k=1, strict=True)


def test_a_hybrid_uses_the_models_of_its_indexes(dense, late, monkeypatch):
    monkeypatch.setattr(query_encoders, "_load", None)
    dense.search("peru")
    assert rk.Hybrid([dense, late]).search("peru", k=2)


def test_vectors_go_out_as_arrays(model, tiny_model, passages):
    one = model.encode_documents(passages[:3])
    assert (one.to_numpy().shape, tuple(one.to_torch().shape)) == ((3, 32), (3, 32))
    np.testing.assert_array_equal(np.stack(one.to_pandas()["vector"]), np.asarray(one))
    assert one.to_arrow().column("id").to_pylist() == ["c0", "c1", "c2"]
    several = rk.Retriever.load(tiny_model, pooler="colbert").encode_documents(passages[:3])
    assert [len(rows) for rows in several.to_list()] == several.counts.tolist()
    assert several.scores(several).shape == (3, 3)
    with pytest.raises(UnsupportedError, match="varies from text to text"):
        several.to_numpy()
    np.testing.assert_allclose(one.scores(one), np.asarray(one) @ np.asarray(one).T, rtol=1e-4)


def test_functions_and_commands_write_the_same_bytes(tiny_model, tiny_collection, late, command, tmp_path):
    """Vectors, an index of them, a run, and a run of a hybrid."""
    here, there = tmp_path / "here", tmp_path / "there"
    rk.encode(tiny_model, tiny_collection.corpus, output=here / "vectors", pooler="mean", dimensions=8)
    rk.index(here / "vectors", output=here / "index")
    index = rk.Index.open(here / "index")
    index.search(tiny_collection.queries, k=10).save(here / "run.trec")
    hybrid = rk.Hybrid([index, late], fusion="linear", weights=[0.3, 0.7], normalization="min_max", depth=30)
    hybrid.search(tiny_collection.queries, k=10).save(here / "fused.trec")
    encoding = ("--pooler", "mean", "--dimensions", 8)
    command("encode", tiny_model, tiny_collection.corpus, *encoding, "--output", there / "vectors")
    command("index", there / "vectors", "--output", there / "index")
    asked = ("--queries", tiny_collection.queries, "--k", 10)
    command("search", there / "index", *asked, "--output", there / "run.trec")
    fused = ("--fusion", "linear", "--weights", "0.3,0.7", "--normalization", "min_max", "--depth", 30)
    command("search", there / "index", late.folder, *fused, *asked, "--output", there / "fused.trec")
    ours, theirs = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (here, there)
    )
    assert ours.keys() == theirs.keys()
    # Manifests hold places and times.
    assert not [path for path in ours if ours[path] != theirs[path] and path.name != "manifest.json"]


def test_a_hybrid_is_tuned_as_by_the_command(dense, late, command, tiny_collection, tmp_path):
    """And the file of weights is read by either side."""
    train = tiny_collection.folder / "qrels" / "train.tsv"
    tuned = rk.Hybrid([dense, late], fusion="linear").tune(train, tiny_collection.queries, metric="RR@10", k=20)
    tuned.save_weights(tmp_path / "here.json")
    words = ("--tune", train, "--tune-queries", tiny_collection.queries, "--tune-metric", "RR@10", "--k", 20)
    command("search", dense.folder, late.folder, *words, "--output", tmp_path / "there.json")
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    again = rk.Hybrid([dense.folder, late.folder], weights=tmp_path / "there.json")
    assert again.fusion == tuned.fusion
    assert again.search("peru", k=3) == tuned.search("peru", k=3)
