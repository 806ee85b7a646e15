"""The commands that trials run: what each reads, which of it is damaged, and what it may do with that."""

from dataclasses import dataclass

from fuzz.material import MINED, RECIPE_RUN, RESUMED


@dataclass(frozen=True)
class Target:
    """A command with its inputs.

    Attributes:
        name: What reports call it.
        command: Its arguments; @NAME is material.
        damaged: The material that a trial may damage, one of these.
        meaning: Whether other contents may mean other results: texts, judgements, recipes, models without a manifest.
            Otherwise a result that differs from that of the whole input is a failure, unless the manifest says so too.
        share: How often it is drawn, relative to others.
        plugins: Whether it needs Java or Milvus, which take seconds.
        room: The damaged material is the whole working folder: what a killed command left.
        keeps: Whether a command that fails may leave a folder: `rkit run` keeps the steps that are done.
        notes: Whether it adds to the manifest of what it reads: `rkit index --check`.
        options: Of which a trial adds some, and the kind of their values.
    """

    name: str
    command: str
    damaged: tuple[str, ...]
    meaning: bool = False
    share: float = 1.0
    plugins: bool = False
    room: bool = False
    keeps: bool = False
    notes: bool = False
    options: tuple[tuple[str, str], ...] = ()


_WITH_TEXTS = ["tevatron.jsonl", "dpr.json", "triples.jsonl", "triples.tsv", "scored.jsonl"]


def _converted():
    kinds = {
        "corpus": "corpus.jsonl corpus.jsonl.gz corpus.jsonl.zst corpus.json collection.tsv passages.tsv "
        "contents.jsonl",
        "queries": "queries.jsonl queries.tsv answers.tsv",
        "qrels": "qrels.tsv qrels.trec qrels.msmarco",
        "run": "run.trec run.tsv run.json",
        "examples": "examples.jsonl tevatron.jsonl tevatron_2.jsonl dpr.json triples.jsonl triples.tsv scored.jsonl "
        "taught.jsonl",
    }
    for kind, names in kinds.items():
        for name in names.split():
            end = ".trec" if kind in ("qrels", "run") else "" if name in _WITH_TEXTS else ".jsonl"
            yield Target(f"convert {name}", f"convert @{name} out{end} --kind {kind}", (name,), True, 0.6)
    yield Target("convert collection", "convert @beir out --kind collection", ("beir",), True)
    yield Target("convert", "convert @corpus.jsonl out.jsonl", ("corpus.jsonl", "queries.tsv", "run.trec"), True)


_SEARCHED = "--queries @queries.jsonl --k 10 -o out.trec"
_INDEXES = {"flat": 3.0, "many_flat": 2.5, "faiss": 3.0, "sparse": 4.0, "dense_sparse": 3.0}
_BY_PLUGINS = {"bm25": 0.3, "impact": 0.15, "lucene_hnsw": 0.15, "milvus": 0.3}
_TRAINED = "--epochs 1 --batch-size 4 --precision fp32 --set limit=4 -o out"


def _searched():
    for name, share in (_INDEXES | _BY_PLUGINS).items():
        yield Target(f"search {name}", f"search @{name} {_SEARCHED}", (name,), False, share, name in _BY_PLUGINS)
    for name in _INDEXES:
        yield Target(f"check {name}", f"index @{name} --check --check-count 3", (name,), True, 0.5, notes=True)
    built = {"vectors": "flat faiss", "many_vectors": "flat faiss", "weights": "sparse", "both": "dense_sparse"}
    for name, indexers in built.items():
        for indexer in indexers.split():
            yield Target(f"index {name} {indexer}", f"index @{name} --indexer {indexer} -o out", (name,), False, 1.5)


def _options(text):
    return tuple(tuple(one.split(":")) for one in text.split())


_EVALUATED = "@run.trec --qrels @qrels.tsv"
OPTIONS = (
    ("evaluate", f"evaluate {_EVALUATED}", 2.0, _options("--metrics:metric --metrics:metric --ties:text --over:text")),
    (
        "evaluate --answers", "evaluate @run.trec --answers @queries.jsonl --corpus @corpus.jsonl", 0.5,
        _options("--top:number --split:text --metrics:metric --answer-mode:text"),
    ),
    (
        "compare", f"compare @other.trec {_EVALUATED} --no-plot", 1.0,
        _options("--metrics:metric --confidence:number --seed:number --examples:number --baseline:text -o:place"),
    ),
    (
        "search", "search @flat @sparse --queries @queries.jsonl", 2.0,
        _options("--k:number --depth:number --rrf-k:number --weights:weights --fusion:text --set:setting "
                 "--missing:text --normalization:text -o:place --tune-metric:metric"),
    ),
    (
        "search --query", "search @flat", 1.0,
        _options("--query:text --k:number --set:setting --model:text --corpus:text --precision:text"),
    ),
    ("index", "index @vectors", 1.0, _options("--indexer:text --set:setting -o:place --set:factory")),
    (
        "encode", "encode @bert @queries.tsv -o out", 1.0,
        _options("--batch-tokens:number --pooler:text --encoder:text --set:setting --side:text"),
    ),
    (
        "mine", MINED, 1.0,
        _options("--depth:number --negatives:number --skip-top:number --same-document:text --near-duplicates:number "
                 "--seed:number --keep:number --set:setting --reranker:text --merge-with:text --weights:weights"),
    ),
    (
        "train", f"train --model @bert --corpus @corpus.jsonl --examples @examples.jsonl {_TRAINED}", 0.5,
        _options("--negatives:number --query-length:number --document-length:number --seed:number --loss:text "
                 "--micro-batch-size:number --set:setting --refresh-negatives:text --pooler:text"),
    ),
    ("run", "run @recipe.yaml -o out", 1.0, _options("--variants:text --set:setting --set:value")),
    ("convert", "convert @corpus.jsonl", 0.5, _options("--split:text --kind:text --form:text")),
    ("plugins", "plugins show", 0.3, _options("--kind:text --json:text")),
)  # fmt: skip

TARGETS = (
    *_converted(),
    *_searched(),
    Target("search one query", "search @flat --query france", ("flat",), True, 0.7),
    Target("search by a checkpoint", f"search @flat {_SEARCHED} --model @checkpoint", ("checkpoint",), False, 5.0),
    Target(
        "search queries", f"search @flat {_SEARCHED}", ("queries.jsonl", "queries.tsv", "answers.tsv"), True, 1.0
    ),
    Target(
        "fuse",
        "search @run.trec @other.trec --fusion linear --missing minimum --weights @weights.json -o out.trec",
        ("weights.json", "run.trec", "other.trec"), True, 3.0,
    ),
    Target(
        "tune",
        "search @run.trec @other.trec --fusion linear --missing zero --tune @qrels.tsv --tune-queries @queries.jsonl "
        "-o out.json",
        ("qrels.tsv", "queries.jsonl", "run.trec"), True, 1.0,
    ),
    Target("evaluate", "evaluate @run.trec --qrels @qrels.tsv", ("run.trec", "qrels.tsv", "run.json"), True, 2.0),
    Target("evaluate forms", "evaluate @run.tsv --qrels @qrels.trec", ("run.tsv", "qrels.trec"), True, 1.0),
    Target("evaluate json", "evaluate @run.json --qrels @qrels.msmarco", ("run.json", "qrels.msmarco"), True, 1.0),
    Target(
        "evaluate answers", "evaluate @run.trec --answers @queries.jsonl --corpus @corpus.jsonl",
        ("run.trec", "queries.jsonl", "corpus.jsonl"), True, 1.0,
    ),
    Target(
        "compare",
        "compare @run.trec @other.trec --qrels @qrels.tsv --queries @queries.jsonl --corpus @corpus.jsonl --no-plot "
        "-o out.html",
        ("run.trec", "qrels.tsv", "queries.jsonl", "corpus.jsonl"), True, 1.0,
    ),
    Target("mine", MINED, ("run.trec", "corpus.jsonl", "examples.jsonl"), True, 1.5),
    Target(
        "mine by an index", "mine-negatives --from @sparse --corpus @corpus.jsonl --examples @examples.jsonl "
        "-o out.jsonl", ("sparse",), False, 1.0,
    ),
    Target("mine again", MINED, ("mining_state",), False, 1.0, room=True),
    Target("encode", "encode @checkpoint @corpus.jsonl -o out", ("checkpoint",), False, 4.0),
    Target("encode texts", "encode @checkpoint @corpus.jsonl -o out", ("corpus.jsonl", "corpus.json"), True, 0.7),
    Target("encode by a model", "encode @bert @corpus.jsonl --pooler mean -o out", ("bert",), True, 2.0),
    Target("encode by a published model", "encode @published @queries.tsv -o out", ("published",), True, 2.5),
    Target("encode by a pretrained model", "encode @pretrained @queries.tsv -o out", ("pretrained",), False, 2.0),
    Target(
        "rerank", "rerank apply @reranker --run @run.trec --queries @queries.jsonl --corpus @corpus.jsonl --k 3 "
        "-o out.trec", ("reranker",), False, 4.0,
    ),
    Target(
        "rerank texts", "rerank apply @reranker --run @run.trec --queries @queries.jsonl --corpus @corpus.jsonl "
        "--k 3 -o out.trec", ("run.trec", "queries.jsonl", "corpus.jsonl"), True, 0.7,
    ),
    Target(
        "train", f"train --model @bert --corpus @corpus.jsonl --examples @taught.jsonl {_TRAINED}",
        ("bert", "taught.jsonl", "corpus.jsonl"), True, 0.5,
    ),
    Target("train triples", f"train --model @bert --examples @triples.jsonl {_TRAINED}", ("triples.jsonl",), True, 0.2),
    Target("resume", f"{RESUMED} --resume", ("training_state",), False, 1.5, room=True),
    Target(
        "train a re-ranker", f"rerank train --model @bert --corpus @corpus.jsonl --examples @examples.jsonl {_TRAINED}",
        ("examples.jsonl", "bert"), True, 0.3,
    ),
    Target(
        "pretrain", "pretrain --pretrainer mlm --model @bert --corpus @corpus.jsonl --steps 1 --batch-size 4 "
        "--max-length 16 -o out", ("corpus.jsonl", "bert"), True, 0.3,
    ),
    Target("run", RECIPE_RUN, ("recipe.yaml",), True, 3.0, keeps=True),
    Target("run again", RECIPE_RUN, ("recipe_state",), True, 1.0, room=True, keeps=True),
    Target(
        "analyse views", "analyse-views @bert --pooler colbert --corpus @corpus.jsonl --queries @queries.jsonl --qrels "
        "@qrels.tsv --no-plot -o out", ("qrels.tsv", "queries.jsonl"), True, 0.3,
    ),
    *(
        Target(f"options of {name}", command, (), True, share, keeps=name == "run", options=options)
        for name, command, share, options in OPTIONS
    ),
)  # fmt: skip

BY_NAME = {target.name: target for target in TARGETS}
