"""The commands to kill, with tiny inputs: each takes about a second."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

INPUTS = Path("../inputs")
MODEL, DATA, CORPUS = (f"{INPUTS}/{name}" for name in ("bert", "data", "data/corpus.jsonl"))

RECIPE = f"""\
name: small
description: Encodes, indexes, searches and evaluates.
steps:
  - {{name: vectors, command: encode, with: {{model: {INPUTS}/model, texts: {CORPUS}}}, output: vectors}}
  - {{name: index, command: index, with: {{source: "${{steps.vectors}}"}}, output: index}}
  - name: run
    command: search
    with: {{indexes: ["${{steps.index}}"], queries: {DATA}, split: test, k: 5}}
    output: run.trec
  - name: figures
    command: evaluate
    with: {{run: ["${{steps.run}}"], qrels: {DATA}/qrels/test.tsv, metrics: nDCG@10, json: true}}
    output: figures.json
"""


@dataclass(frozen=True)
class Command:
    """A command that writes.

    Attributes:
        words: Its command line, run in its own folder next to the inputs.
        again: Options to run it again, as its message or help advises.
        searched: Compare the index by its hits: Lucene and Milvus name and date their files.
        existing: The commands that write the folder that this command replaces or changes, one per line.
        changes: It changes an existing index: a killed command leaves the old or the new index.
        processes: Number of processes that train together.
        volatile: Names of files that contain times.
    """

    words: str
    again: str = ""
    searched: bool = False
    existing: str = ""
    changes: bool = False
    processes: int = 1
    volatile: tuple[str, ...] = ()


_TRAIN = f"--corpus {CORPUS} --examples {INPUTS}/train.jsonl --dev {INPUTS}/dev.jsonl"
_TRAIN += " --epochs 3 --batch-size 8 --negatives 2 --set limit=40 --set save_steps=2 --set logging_steps=3"
_MINED = f"--corpus {CORPUS} --examples {DATA} --set negatives=5 --depth 20"
_RUNS = f"{INPUTS}/run.trec {INPUTS}/other.trec --qrels {DATA}/qrels/test.tsv"
_CHANGE = f"index out --add {INPUTS}/more.jsonl --delete {INPUTS}/gone.txt"

COMMANDS = {
    "train": Command(f"train --model {MODEL} --pooler mean {_TRAIN} --output out", "--resume"),
    "train, negatives refreshed": Command(
        f"train --model {MODEL} --pooler mean {_TRAIN} --refresh-negatives every=1 --output out", "--resume"
    ),
    "train, two processes": Command(
        f"train --model {MODEL} --pooler mean {_TRAIN} --output out", "--resume", processes=2
    ),
    "train, replacing": Command(
        f"train --model {MODEL} --pooler mean {_TRAIN} --output out --overwrite",
        "--resume",
        existing=f"train --model {MODEL} --pooler cls --epochs 0 --corpus {CORPUS} --examples {DATA} --output out",
    ),
    "pretrain": Command(
        f"pretrain --pretrainer mlm --model {MODEL} --corpus {CORPUS} --steps 12 --batch-size 8 --max-length 24 "
        "--set save_steps=3 --output out",
        "--resume",
    ),
    "rerank train": Command(f"rerank train --model {MODEL} {_TRAIN} --output out", "--resume"),
    "rerank apply": Command(
        f"rerank apply {INPUTS}/reranker --run {INPUTS}/run.trec --queries {DATA} --corpus {CORPUS} --output out.trec"
    ),
    "encode": Command(f"encode {INPUTS}/model {CORPUS} --output out"),
    "encode, replacing": Command(
        f"encode {INPUTS}/model {CORPUS} --output out --overwrite",
        existing=f"encode {INPUTS}/model {DATA} --side query --output out",
    ),
    "index flat": Command(f"index {INPUTS}/vectors --indexer flat --output out"),
    "index faiss": Command(f"index {INPUTS}/vectors --indexer faiss --set factory=HNSW8 --output out"),
    "index sparse": Command(f"index {INPUTS}/both --indexer sparse --output out"),
    "index dense_sparse": Command(f"index {INPUTS}/both --indexer dense_sparse --output out"),
    "index bm25": Command(f"index {CORPUS} --indexer bm25 --output out", searched=True),
    "index impact": Command(f"index {INPUTS}/both --indexer impact --output out", searched=True),
    "index lucene_hnsw": Command(f"index {INPUTS}/vectors --indexer lucene_hnsw --output out", searched=True),
    "index in shards": Command(f"index {INPUTS}/both --indexer dense_sparse --shards 1 --output out"),
    "index bm25 in shards": Command(f"index {CORPUS} --indexer bm25 --shards 3 --output out", searched=True),
    "index milvus": Command(f"index {INPUTS}/vectors --indexer milvus --output out", searched=True),
    "index, replacing": Command(
        f"index {INPUTS}/vectors --output out --overwrite",
        existing=f"index {INPUTS}/both --indexer sparse --output out",
    ),
    "index, changed": Command(
        _CHANGE,
        existing=f"index {INPUTS}/vectors --output out",
        changes=True,
    ),
    "index, compacted": Command(
        "index out --compact",
        existing=f"index {INPUTS}/vectors --output out\n{_CHANGE}",
        changes=True,
    ),
    "index bm25, changed": Command(
        f"{_CHANGE} --compact", searched=True, existing=f"index {CORPUS} --indexer bm25 --output out", changes=True
    ),
    "index milvus, changed": Command(
        _CHANGE, searched=True, existing=f"index {INPUTS}/vectors --indexer milvus --output out", changes=True
    ),
    "mine-negatives": Command(f"mine-negatives --from {INPUTS}/model {_MINED} --output out.jsonl"),
    "mine-negatives of a run": Command(f"mine-negatives --from {INPUTS}/run-train.trec {_MINED} --output out.jsonl"),
    "search": Command(f"search {INPUTS}/index --queries {DATA} --k 20 --output out.trec"),
    "search milvus": Command(f"search {INPUTS}/milvus --queries {DATA} --k 20 --output out.trec"),
    "search, tuned": Command(
        f"search {INPUTS}/index {INPUTS}/sparse --fusion linear --tune {DATA}/qrels/train.tsv --tune-queries {DATA} "
        "--output out.json"
    ),
    "compare": Command(f"compare {_RUNS} --no-plot --output out"),
    "convert": Command(f"convert {DATA} out --kind collection"),
    "evaluate, two processes": Command(
        f"evaluate {INPUTS}/run.trec --answers {DATA} --corpus {CORPUS} --top 5 --processes 2"
    ),
    "run": Command(f"run {INPUTS}/small.yaml --output out", volatile=("run.json",)),
}


SMALL = (
    "train",
    "train, two processes",
    "encode",
    "encode, replacing",
    "index flat",
    "index, changed",
    "convert",
)
"""Commands for which few inputs are needed, quickly made."""


def make_inputs(folder: Path, rkit: Callable[[str], None], names: Iterable[str]) -> None:
    """Write the inputs of commands.

    Args:
        folder: The folder to write to.
        rkit: Runs a command line in that folder.
        names: The commands.
    """
    import retrievalkit_testing as testing

    testing.tiny_model(folder / "bert")
    testing.tiny_collection(folder / "data")
    few = "--epochs 1 --corpus data --set limit=8"
    rkit(f"train --model bert --pooler mean --examples data {few} --output model")
    rkit("encode model data --output vectors")
    rkit("mine-negatives --from model --examples data --corpus data --depth 6 --set negatives=5 --output train.jsonl")
    (folder / "dev.jsonl").write_text("".join((folder / "train.jsonl").read_text().splitlines(True)[-8:]))
    _write_changes(folder)
    if set(names) <= set(SMALL):
        return
    (folder / "small.yaml").write_text(RECIPE)
    rkit(f"train --model bert --pooler dense_sparse --set pooler.top_k=40 --examples data {few} --output double")
    rkit(f"rerank train --model bert --examples train.jsonl {few} --output reranker")
    rkit("encode double data --output both")
    rkit("index vectors --output index")
    rkit("index both --indexer sparse --output sparse")
    rkit("search index --queries data --split test --k 10 --output run.trec")
    rkit("search sparse --queries data --split test --k 10 --output other.trec")
    rkit("search index --queries data --split train --k 20 --output run-train.trec")
    if "search milvus" in names:
        rkit("index vectors --indexer milvus --output milvus")


def _write_changes(folder: Path) -> None:
    """Write texts to add to an index of the collection, some with existing ids, and ids to delete."""
    texts = [json.loads(line) for line in (folder / "data/corpus.jsonl").read_text().splitlines()]
    coming = [
        one | {"_id": one["_id"] if row % 2 else f"new{row}", "text": f"{one['text']} again"}
        for row, one in enumerate(texts[:8])
    ]
    (folder / "more.jsonl").write_text("".join(json.dumps(one) + "\n" for one in coming))
    (folder / "gone.txt").write_text("".join(f"{one['_id']}\n" for one in texts[8:12]))
