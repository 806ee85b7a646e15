"""An open index answers from the files that it opened, whatever happens to its folder."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import scipy.sparse

import retrievalkit as rk
from retrievalkit import storage
from retrievalkit.data.fields import FIELDS, write_fields
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.change import change_index
from retrievalkit.indexing.open_indexes import open_index
from vector_folders import DIM, drawn, drawn_weights, write

TEXTS = 60
INDEXERS = {
    "flat": {},
    "small": {},
    "binary": {"kind": "binary"},
    "faiss": {"factory": "Flat"},
    "faiss-hnsw": {"factory": "HNSW8"},
    "faiss-ivf": {"factory": "IVF4,Flat"},
    "sparse": {},
    "dense_sparse": {},
    "dense_sparse-exact": {"rounded": False},
}


def texts(seed, ids=None):
    """Passages with fields."""
    ids = [f"t{row}" for row in range(TEXTS)] if ids is None else ids
    return [{"_id": name, "text": f"text {row} of {seed}", "n": row * seed % 7} for row, name in enumerate(ids)]


def vectors(folder, indexer, seed, ids=None):
    """A folder of vectors, weights or both, with the texts and their fields, as `rkit encode` writes it."""
    rows = texts(seed, ids)
    corpus = folder.with_suffix(".jsonl")
    corpus.parent.mkdir(exist_ok=True)
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print_ = storage.fingerprint_file(corpus)
    dense, lexical = indexer != "sparse", "sparse" in indexer
    described = {"texts": storage.describe_input(corpus, print_)}
    write(
        folder,
        ids=[row["_id"] for row in rows],
        vectors=drawn(len(rows), seed) if dense else None,
        weights=drawn_weights(np.random.default_rng(seed), len(rows)) if lexical else None,
        corpus={"source": str(corpus), "fingerprint": print_},
        inputs=described,
    )
    write_fields(folder / FIELDS, ((row["_id"], "", {"n": row["n"]}) for row in rows))
    files = storage.read_manifest(folder)["files"] | {FIELDS: storage.describe_file(folder / FIELDS)}
    storage.add_to_manifest(folder, files=files)
    return folder


def build(place, indexer, seed, **options):
    source = vectors(place / f"vectors-{seed}", indexer, seed)
    name = "small" if indexer == "binary" else indexer.partition("-")[0]
    options = {"options": INDEXERS[indexer], "overwrite": True, **options}
    build_index(source, output=place / "index", indexer=name, **options)


def queries(indexer):
    random = np.random.default_rng(99)
    dense = random.standard_normal((3, 1, DIM)).astype(np.float32) if indexer != "sparse" else None
    weights = scipy.sparse.csr_matrix(drawn_weights(random, 3)) if "sparse" in indexer else None
    return rk.Vectors(["0", "1", "2"], dense, None, weights)


def answers(index, indexer, k=70):
    """Everything that an open index is asked for: hits, filtered hits, texts, scores of listed texts, fields."""
    run, filtered = (index.search(queries(indexer), k=k, filter=condition) for condition in (None, "n < 3"))
    ids = [name for name, _ in run["0"]]
    shown = [(hit.id, hit.text) for hit in index.explain("q", run["0"], explain=False)]
    batch, (source,) = queries(indexer).representation, index.searcher.indexes
    scores = source.indexer.scores(batch, [ids[:5]] * 3)
    return dict(run), dict(filtered), shown, np.concatenate(scores).tolist(), index.document(ids[0]).text


def overwrite(folder, indexer):
    build(folder, indexer, 2)


def rename(folder, indexer):
    folder.rename(folder.with_name("elsewhere"))


def remove(folder, indexer):
    shutil.rmtree(folder)


def change(folder, indexer):
    more = vectors(folder / "more", indexer, 3, ["t5", *(f"new{row}" for row in range(5))])
    change_index(folder / "index", add=more, delete=["t1"])
    change_index(folder / "index", delete=["t2"], compact=True)


@pytest.mark.parametrize(("indexer", "shards"), [*((name, None) for name in INDEXERS), ("flat", 3), ("sparse", 3)])
def test_an_open_index_answers_as_before(tmp_path, indexer, shards):
    """Also if nothing was searched before, and if two objects have different states of a folder open."""
    build(tmp_path / "built", indexer, 1, parts=shards)
    for happen in (overwrite, rename, remove, change):
        folder = tmp_path / happen.__name__
        shutil.copytree(tmp_path / "built", folder)
        manifest = (folder / "index" / storage.MANIFEST).read_text()
        (folder / "index" / storage.MANIFEST).write_text(manifest.replace(str(tmp_path / "built"), str(folder)))
        index, fresh = rk.Index.open(folder / "index"), rk.Index.open(folder / "index")
        expected = answers(index, indexer)
        happen(folder, indexer)
        assert answers(fresh, indexer) == expected
        assert answers(index, indexer) == expected
        if folder.exists():
            assert answers(rk.Index.open(folder / "index"), indexer) != expected
            assert answers(index, indexer) == expected


def test_a_folder_that_is_replaced_again_and_again_is_opened_in_one_state(tmp_path):
    """Each open index has the ids, vectors, texts and fields of one state."""
    expected, sources = [], []
    for seed in (1, 2):
        build(tmp_path / str(seed), "flat", seed)
        sources.append(tmp_path / str(seed) / "index")
        expected.append(answers(rk.Index.open(sources[-1]), "flat"))
    place, stop = tmp_path / "index", threading.Event()
    shutil.copytree(sources[0], place)

    replaced, opened = [], []

    def replace():
        while not stop.wait(0.05):
            replaced.append(sources[len(replaced) % 2])
            with storage.write_folder(place, overwrite=True) as staging:
                shutil.copytree(replaced[-1], staging, dirs_exist_ok=True)

    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(replace)
        try:
            while len(opened) < 15 or (len(replaced) < 4 and not replacing.done()):
                opened.append(answers(rk.Index.open(place), "flat"))
        finally:
            stop.set()
        replacing.result()
    assert all(one in expected for one in opened)


def test_threads_search_while_the_folder_is_replaced(tmp_path):
    build(tmp_path, "dense_sparse", 1)
    index = rk.Index.open(tmp_path / "index")
    expected = answers(index, "dense_sparse")
    with ThreadPoolExecutor(3) as pool:
        searches = [pool.submit(answers, index, "dense_sparse") for _ in range(12)]
        overwrite(tmp_path, "dense_sparse")
        remove(tmp_path, "dense_sparse")
        assert all(search.result() == expected for search in searches)


def test_an_index_may_have_more_files_than_a_process_descriptors(tmp_path):
    resource = pytest.importorskip("resource")
    weights = drawn_weights(np.random.default_rng(1), 40)
    write(tmp_path / "vectors", vectors=drawn(40), weights=weights, shard=1)
    build_index(tmp_path / "vectors", output=tmp_path / "flat")
    build_index(tmp_path / "vectors", output=tmp_path / "small", indexer="small", options={"view": "vectors"})
    build_index(tmp_path / "vectors", output=tmp_path / "segments", parts=40)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:  # the ten lowest free ones: a process has gaps among those it holds
        free = [stack.enter_context(open(os.devnull)).fileno() for _ in range(10)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, limits[1]))
    try:
        indexes = [open_index(tmp_path / name) for name in ("flat", "small", "segments")]
        hits = [index.indexer.search(queries("dense_sparse").representation, 40)[0][0] for index in indexes]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(hits[1]) == 40
    assert hits[0] == hits[2]


@pytest.mark.parametrize("indexer", ["flat", "small", "faiss", "sparse", "dense_sparse"])
def test_texts_with_equal_scores_are_ranked_by_id_whatever_their_history(tmp_path, indexer):
    """Built in any order, in shards, or with texts added and deleted: also at the cut-off, and with a filter."""
    random, ids = np.random.default_rng(5), [f"t{row}" for row in range(40)]
    kinds, dense, weights = random.integers(3, size=40), drawn(3), drawn_weights(random, 3, share=0.9)

    def folder(name, chosen):
        rows = kinds[[ids.index(chosen_id) for chosen_id in chosen]]
        parts = {} if indexer == "sparse" else {"vectors": dense[rows]}
        parts |= {"weights": weights[rows]} if "sparse" in indexer else {}
        write(tmp_path / name, ids=list(chosen), shard=9, **parts)
        write_fields(tmp_path / name / FIELDS, ((name, "", {"n": 1}) for name in chosen))
        files = storage.read_manifest(tmp_path / name)["files"]
        files[FIELDS] = storage.describe_file(tmp_path / name / FIELDS)
        storage.add_to_manifest(tmp_path / name, files=files)
        return tmp_path / name

    def index(name, chosen, **options):
        build_index(folder(f"{name}-vectors", chosen), output=tmp_path / name, indexer=indexer, **options)
        return tmp_path / name

    shuffled = list(random.permutation(ids))
    places = [index("built", ids), index("shuffled", shuffled), index("shards", shuffled, parts=4)]
    places.append(index("changed", shuffled[:25]))
    change_index(places[-1], add=folder("added", shuffled[20:]), delete=shuffled[3:6])
    change_index(places[-1], add=folder("again", shuffled[:9]), delete=shuffled[20:22])
    change_index(places[-1], add=folder("last", shuffled[20:22]))
    opened = [rk.Index.open(place) for place in places]
    # The kernels of faiss for filtered searches round differently.
    conditions = (None, "n = 1")[: 1 if indexer == "faiss" else 2]
    for k, condition in itertools.product((1, 3, 10, 17, 40, 100), conditions):
        runs = [dict(index.search(queries(indexer), k=k, filter=condition)) for index in opened]
        for hits in runs[0].values():
            assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))
        for run in runs:
            assert run == runs[0]
