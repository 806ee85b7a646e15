"""Commands for trials: their inputs, the material to damage, and permitted results."""

from dataclasses import dataclass

from fuzz.material import MINED, RECIPE_RUN, RESUMED


@dataclass(frozen=True)
class Target:
    """A command with its inputs.

    Attributes:
        name: Name in reports.
        command: The arguments; @NAME is material.
        damaged: The materials to damage, one in each trial.
        meaning: True if other contents may have other results: texts, judgements, recipes, models without a manifest.
            Otherwise a result that differs from that of the whole input is a failure, unless the manifest differs too.
        share: Relative frequency in trials.
        room: True if the damaged material is the whole working folder of a killed command.
        keeps: True if a failed command may leave a folder: `rkit run` keeps finished steps.
        notes: True if it adds to the manifest of its input: `rkit index --check`.
        options: Options to add to a trial, with the kind of their values.
    """

    name: str
    command: str
    damaged: tuple[str, ...]
    meaning: bool = False
    share: float = 1.0
    room: bool = False
    keeps: bool = False
    notes: bool = False
    options: tuple[tuple[str, str], ...] = ()


_SEARCHED = "--queries @queries.jsonl --k 10 -o out.trec"
_INDEXES = {"flat": 3.0, "many_flat": 2.5, "faiss": 3.0, "sparse": 4.0, "dense_sparse": 3.0}
_TRAINED = "--epochs 1 --batch-size 4 --precision fp32 --set limit=4 -o out"


def _searched():
    for name, share in _INDEXES.items():
        yield Target(f"search {name}", f"search @{name} {_SEARCHED}", (name,), False, share)
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
        "encode", "encode @bert @queries.jsonl -o out", 1.0,
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
    *_searched(),
    Target("search one query", "search @flat --query france", ("flat",), True, 0.7),
    Target("search by a checkpoint", f"search @flat {_SEARCHED} --model @checkpoint", ("checkpoint",), False, 5.0),
    Target(
        "fuse",
        "search @run.trec @other.trec --fusion linear --missing minimum --weights @weights.json -o out.trec",
        ("weights.json", "run.trec", "other.trec"), True, 3.0,
    ),
    Target("evaluate", "evaluate @run.trec --qrels @qrels.tsv", ("run.trec", "qrels.tsv"), True, 2.0),
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
    Target("encode by a model", "encode @bert @corpus.jsonl --pooler mean -o out", ("bert",), True, 2.0),
    Target("encode by a published model", "encode @published @queries.jsonl -o out", ("published",), True, 2.5),
    Target("encode by a pretrained model", "encode @pretrained @queries.jsonl -o out", ("pretrained",), False, 2.0),
    Target(
        "rerank", "rerank apply @reranker --run @run.trec --queries @queries.jsonl --corpus @corpus.jsonl --k 3 "
        "-o out.trec", ("reranker",), False, 4.0,
    ),
    Target(
        "train", f"train --model @bert --corpus @corpus.jsonl --examples @taught.jsonl {_TRAINED}",
        ("bert", "taught.jsonl", "corpus.jsonl"), True, 0.5,
    ),
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
