"""A valid file or folder of each kind that rkit reads, made from the tiny model and the tiny collection in seconds."""

import json
import shutil
from pathlib import Path

import retrievalkit_testing as testing

from fuzz import process
from killed_processes import kill_at_call

PASSAGES, QUESTIONS = 12, 8

# name -> the command that makes it; @NAME is an earlier one.
_COMMANDS = {
    "checkpoint": "train --model @bert --corpus @corpus.jsonl --examples @examples.jsonl --pooler mean --epochs 1 "
    "--batch-size 4 --precision fp32 --learning-rate 1e-3 --set limit=8 -o OUT",
    "reranker": "rerank train --model @bert --corpus @corpus.jsonl --examples @examples.jsonl --epochs 1 "
    "--batch-size 4 --precision fp32 --set limit=8 -o OUT",
    "pretrained": "pretrain --pretrainer mlm --model @bert --corpus @corpus.jsonl --steps 1 --batch-size 4 "
    "--max-length 16 --precision fp32 -o OUT",
    "vectors": "encode @checkpoint @corpus.jsonl --precision fp32 -o OUT",
    "many_vectors": "encode @bert @corpus.jsonl --pooler colbert --set pooler.dimension=8 --precision fp32 -o OUT",
    "weights": "encode @bert @corpus.jsonl --pooler dense_sparse --set pooler.views=sparse --set pooler.top_k=20 "
    "--precision fp32 -o OUT",
    "both": "encode @bert @corpus.jsonl --pooler dense_sparse --set pooler.top_k=20 --precision fp32 -o OUT",
    "flat": "index @vectors -o OUT",
    "many_flat": "index @many_vectors -o OUT",
    "faiss": "index @vectors --indexer faiss -o OUT",
    "sparse": "index @weights --indexer sparse -o OUT",
    "dense_sparse": "index @both --indexer dense_sparse -o OUT",
    "run.trec": "search @flat --queries @queries.jsonl --k 10 -o OUT",
    "other.trec": "search @sparse --queries @queries.jsonl --k 10 -o OUT",
    "weights.json": "search @run.trec @other.trec --fusion linear --missing minimum --tune @qrels.tsv "
    "--tune-queries @queries.jsonl -o OUT",
    "taught.jsonl": "rerank apply @reranker --examples @examples.jsonl --corpus @corpus.jsonl -o OUT",
}

RESUMED = "train --model @bert --corpus @corpus.jsonl --examples @examples.jsonl --pooler mean --epochs 1 "
RESUMED += "--batch-size 4 --precision fp32 --set limit=12 --set save_steps=1 -o out"
MINED = "mine-negatives --from @run.trec --corpus @corpus.jsonl --examples @examples.jsonl -o out.jsonl"
RECIPE_RUN = "run @recipe.yaml -o out"

_RECIPE = """\
name: tiny
description: Index, search, judge.
values: {{k: 5, vectors: {folder}/vectors, queries: {folder}/queries.jsonl}}
defaults:
  search: {{queries: "${{queries}}", k: "${{k}}"}}
steps:
  - name: index
    title: "Index ${{vectors}}"
    command: index
    with: {{source: "${{vectors}}", indexer: flat}}
    output: index
  - name: found
    command: search
    with: {{indexes: "${{steps.index}}"}}
    output: runs/found.trec
  - name: figures
    command: evaluate
    with: {{run: "${{steps.found}}", qrels: {folder}/qrels.tsv, metrics: nDCG@5, json: true}}
    output: figures.json
"""


def make(folder):
    """Write all material into the folder."""
    folder.mkdir()
    testing.tiny_model(folder / "bert")
    _sentence_transformers(folder)
    _texts(folder)
    for name, command in _COMMANDS.items():
        _run(command.replace("OUT", str(folder / name)), folder)
    (folder / "recipe.yaml").write_text(_RECIPE.format(folder=folder))
    _cut_off(folder)


def arguments(command, folder, **elsewhere):
    """Return the arguments of a command with the paths of its material; `elsewhere` has other paths by name."""
    return [elsewhere.get(one[1:], str(folder / one[1:])) if one.startswith("@") else one for one in command.split()]


def _run(command, folder, *, before=None, room=None):
    room = room or folder.parent / "made" / "room"
    room.mkdir(parents=True, exist_ok=True)
    ended = process.run(arguments(command, folder), room, before=before)
    if ended.code and before is None:
        msg = f"rkit {command}: exit {ended.code}\n{ended.err}"
        raise RuntimeError(msg)
    return ended


def _cut_off(folder):
    """Write the remains of killed commands, and the folder of a recipe's run, for commands to resume."""
    from retrievalkit.mining import parts
    from retrievalkit.training import loop

    moments = {
        "training_state": (RESUMED, lambda: kill_at_call(loop.Loop, "compute_step", 2)),
        "mining_state": (MINED, lambda: kill_at_call(parts.MinedParts, "write", 1, after=True)),
        "recipe_state": (RECIPE_RUN, None),
    }
    for name, (command, kill) in moments.items():
        room = folder.parent / "made" / name / "room"
        _run(command, folder, before=kill, room=room)
        shutil.copytree(room, folder / name)


def _sentence_transformers(folder):
    published = folder / "published"
    shutil.copytree(folder / "bert", published)
    names = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(names)
    ]
    for name in ("1_Pooling", "2_Normalize"):
        (published / name).mkdir()
    (published / "modules.json").write_text(json.dumps(modules))
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (published / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (published / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
    prompts = {"prompts": {"query": "query: ", "document": ""}, "similarity_fn_name": "cosine"}
    (published / "config_sentence_transformers.json").write_text(json.dumps(prompts))


def _texts(folder):
    """Write a corpus, queries, judgements and examples, as files and as a collection."""
    whole = testing.tiny_collection(folder.parent / "made" / "collection")
    passages = _rows(whole.corpus)[:PASSAGES]
    ids = [passage["_id"] for passage in passages]
    judged = [
        line.split("\t")
        for split in ("test", "train")
        for line in (whole.qrels.parent / f"{split}.tsv").read_text().splitlines()[1:]
    ]
    positive = dict([row[:2] for row in judged if row[1] in ids][:QUESTIONS])
    queries = [row for row in _rows(whole.queries) if row["_id"] in positive]
    examples = [
        {
            "query_id": row["_id"],
            "query": row["text"],
            "positives": [positive[row["_id"]]],
            "negatives": [one for one in ids if one != positive[row["_id"]]][:3],
            "answers": row["answers"],
        }
        for row in queries
    ]
    for name, rows in (("corpus", passages), ("queries", queries), ("examples", examples)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{query}\t{document}\t1\n" for query, document in positive.items()]
    (folder / "qrels.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *lines]))
    (folder / "beir" / "qrels").mkdir(parents=True)
    for name, copy in (("corpus.jsonl",) * 2, ("queries.jsonl",) * 2, ("qrels.tsv", "qrels/test.tsv")):
        shutil.copy(folder / name, folder / "beir" / copy)


def _rows(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]
