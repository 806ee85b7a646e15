"""A valid file or folder of each kind that rkit reads, made from the tiny model and the tiny collection in seconds."""

import gzip
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
    "run.tsv": "convert @run.trec OUT --kind run --form msmarco",
    "run.json": "convert @run.trec OUT --kind run --form beir",
    "qrels.trec": "convert @qrels.tsv OUT --kind qrels --form trec",
    "qrels.msmarco": "convert @qrels.tsv OUT --kind qrels --form msmarco",
    "weights.json": "search @run.trec @other.trec --fusion linear --missing minimum --tune @qrels.tsv "
    "--tune-queries @queries.jsonl -o OUT",
    "taught.jsonl": "rerank apply @reranker --examples @examples.jsonl --corpus @corpus.jsonl -o OUT",
}
_BY_PLUGINS = {
    "bm25": "index @corpus.jsonl --indexer bm25 -o OUT",
    "impact": "index @weights --indexer impact -o OUT",
    "lucene_hnsw": "index @vectors --indexer lucene_hnsw -o OUT",
    "milvus": "index @vectors --indexer milvus -o OUT",
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


def make(folder, *, plugins):
    """Write all material into the folder; with what needs Java or Milvus if `plugins`."""
    folder.mkdir()
    testing.tiny_model(folder / "bert")
    _sentence_transformers(folder)
    _texts(folder)
    for name, command in (_COMMANDS | (_BY_PLUGINS if plugins else {})).items():
        _run(command.replace("OUT", str(folder / name)), folder, bounded=name not in _BY_PLUGINS)
    (folder / "recipe.yaml").write_text(_RECIPE.format(folder=folder))
    _cut_off(folder)


def arguments(command, folder, **elsewhere):
    """The arguments of a command, with the places of its material; `elsewhere` are other places by name."""
    return [elsewhere.get(one[1:], str(folder / one[1:])) if one.startswith("@") else one for one in command.split()]


def _run(command, folder, *, bounded=True, before=None, room=None):
    room = room or folder.parent / "made" / "room"
    room.mkdir(parents=True, exist_ok=True)
    ended = process.run(arguments(command, folder), room, bounded=bounded, before=before)
    if ended.code and before is None:
        msg = f"rkit {command}: exit {ended.code}\n{ended.err}"
        raise RuntimeError(msg)
    return ended


def _cut_off(folder):
    """What killed commands leave, and the folder of a recipe's run: each is the room of a command run again."""
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
    """Corpora, queries, judgements and examples in each form."""
    whole = testing.tiny_collection(folder.parent / "made" / "collection")
    passages = _rows(whole.corpus)[:PASSAGES]
    ids = [passage["_id"] for passage in passages]
    judged = [line.split("\t") for line in whole.qrels.read_text().splitlines()[1:]]
    judged += [line.split("\t") for line in (whole.qrels.parent / "train.tsv").read_text().splitlines()[1:]]
    judged = [row for row in judged if row[1] in ids][:QUESTIONS]
    queries = [row for row in _rows(whole.queries) if row["_id"] in {row[0] for row in judged}]
    _corpora(folder, passages)
    qrels = _lines(["query-id", "corpus-id", "score"], *judged)
    (folder / "qrels.tsv").write_text(qrels)
    _jsonl(folder / "queries.jsonl", queries)
    (folder / "queries.tsv").write_text(_lines(*([row["_id"], row["text"]] for row in queries)))
    (folder / "answers.tsv").write_text(_lines(*([row["text"], str(row["answers"])] for row in queries)))
    (folder / "beir" / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        shutil.copy(folder / name, folder / "beir" / name)
    for split in ("train", "dev", "test"):
        (folder / "beir" / "qrels" / f"{split}.tsv").write_text(qrels)
    _examples(folder, passages, queries, {query: document for query, document, _ in judged})


def _corpora(folder, passages):
    _jsonl(folder / "corpus.jsonl", passages)
    content = (folder / "corpus.jsonl").read_bytes()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(content, mtime=0))
    import pyarrow

    (folder / "corpus.jsonl.zst").write_bytes(pyarrow.compress(content, "zstd", asbytes=True))
    (folder / "corpus.json").write_text(json.dumps(passages, indent=1))
    (folder / "collection.tsv").write_text(_lines(*([row["_id"], row["text"]] for row in passages)))
    table = [[row["_id"], f'"{row["text"]}"', row["title"]] for row in passages]
    (folder / "passages.tsv").write_text(_lines(["id", "text", "title"], *table))
    _jsonl(folder / "contents.jsonl", [{"id": row["_id"], "contents": row["text"]} for row in passages])


def _examples(folder, passages, queries, positive):
    texts = {row["_id"]: row for row in passages}
    forms = {name: [] for name in ("examples", "tevatron", "tevatron_2", "dpr", "triples", "scored")}
    for row in queries:
        good, asked = positive[row["_id"]], row["text"]
        bad = [one for one in texts if one != good][:3]
        identity = {"query_id": row["_id"], "query": asked}
        lists = {"positives": [good], "negatives": bad, "answers": row["answers"]}
        forms["examples"].append(identity | lists)
        full = [{"docid": one, "title": texts[one]["title"], "text": texts[one]["text"]} for one in (good, *bad)]
        forms["tevatron"].append({**identity, "positive_passages": full[:1], "negative_passages": full[1:]})
        lists = {"positive_document_ids": [good], "negative_document_ids": bad}
        forms["tevatron_2"].append({"query_id": row["_id"], "query_text": asked, **lists})
        contexts = [{"passage_id": one["docid"], "title": one["title"], "text": one["text"]} for one in full]
        lists = {"positive_ctxs": contexts[:1], "hard_negative_ctxs": contexts[1:]}
        forms["dpr"].append({"question": asked, "answers": row["answers"], **lists})
        first, second, third, _ = (one["text"] for one in full)
        forms["triples"].append({"anchor": asked, "positive": first, "negative_1": second, "negative_2": third})
        scored = {"query": asked, "pos": [first], "neg": [second], "pos_scores": [2.5], "neg_scores": [-1.5]}
        forms["scored"].append(scored)
    (folder / "dpr.json").write_text(json.dumps(forms.pop("dpr"), indent=1))
    for name, rows in forms.items():
        _jsonl(folder / f"{name}.jsonl", rows)
    table = [list(row.values())[:3] for row in forms["triples"]]
    (folder / "triples.tsv").write_text(_lines(["anchor", "positive", "negative_1"], *table))


def _rows(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _lines(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)
