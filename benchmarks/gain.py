"""Writes GAIN.md: nDCG@10 before and after `rkit train` with its defaults, by number of examples, on five collections.

    python benchmarks/gain.py --collections COLLECTIONS --work WORK [--only medquad,pydoc]    # run, store, write
    python benchmarks/gain.py                                       # rewrite the page from the stored values

COLLECTIONS has squad-open, medquad and nq-oracle in BEIR's format. Each collection is a run of the recipe
`training_gain` in WORK, which continues after an interruption. The values of each question are stored in gain/, in the
order of the ids, which a digest identifies.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import retrievalkit as rk
from retrievalkit.data.corpus import open_corpus, write_corpus
from retrievalkit.data.files import write_jsonl
from retrievalkit.data.qrels import Qrels, read_qrels, write_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.evaluation.significance import bootstrap_intervals, holm, randomisation_test
from retrievalkit.reporting.table import markdown_table

HERE = Path(__file__).parent
STORED = HERE / "gain"
SIZES = ("50", "200", "1000", "4000")
TEST, POOL, LENGTH = 300, 2_000, 64
COLLECTIONS = {
    "medquad": "health; training questions of the same sites",
    "pydoc": "trained on numpy, scipy, scikit-learn and torch; tested on pandas",
    "squad-open": "trained on SQuADShifts' Wikipedia part; tested on SQuAD",
    "amazon": "SQuADShifts' reviews: questions about other reviews",
    "nq-oracle": "other questions about the same passages",
}


def main() -> None:
    """Run the recipe on collections, if folders are given, and write the page from all stored values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collections", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", default=",".join(COLLECTIONS))
    options = parser.parse_args()
    if options.collections is not None:
        for name in options.only.split(","):
            data, output = options.work / name, options.work / f"{name}-gain"
            if not data.exists():
                prepare(name, options.collections, data)
            values = {"data": data, "passages": data / "pool.jsonl", "document_length": LENGTH}
            words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
            program = Path(sys.executable).with_name("rkit")
            subprocess.run([program, "run", "training_gain", *words, "--output", output], check=True)
            store(name, output)
    stored = {
        name: json.loads(gzip.decompress(file.read_bytes())) for name in COLLECTIONS if (file := _file(name)).exists()
    }
    (HERE / "GAIN.md").write_text(page(stored), encoding="utf-8")


def judgements(name: str, collections: Path) -> tuple[tuple[str, ...], Qrels, Qrels]:
    """Return the addresses of a collection, and the judgements to train on and to test on."""
    if name == "pydoc":
        places = ("pydoc:numpy,scipy,sklearn,torch", "pydoc:pandas")
        return places, read_qrels(places[0]), read_qrels(places[1])
    place = str(collections / ("squad-open" if name == "amazon" else name))
    if name == "nq-oracle":  # has only test questions
        return (place,), read_qrels(place), read_qrels(place)
    train, test = read_qrels(place, "train"), read_qrels(place)
    if part := {"squad-open": "squadshifts-new-wiki", "amazon": "squadshifts-amazon"}.get(name):
        from_part = {query.id for query in read_queries(place) if query.fields["source"] == part}
        train = {query: grades for query, grades in train.items() if query in from_part}
    return (place,), train, train if name == "amazon" else test


def prepare(name: str, collections: Path, folder: Path) -> None:
    """Write a collection with 300 test questions, and a pool of their passages and of random passages."""
    draw = random.Random(42)
    places, train, test = judgements(name, collections)
    test = {query: test[query] for query in draw.sample(sorted(test), TEST)}
    pool = list(dict.fromkeys(passage for grades in test.values() for passage in grades))
    excluded = set(pool) if name == "amazon" else set[str]()
    train = {query: grades for query, grades in train.items() if query not in test and excluded.isdisjoint(grades)}
    queries = {query.id: query.text for place in places for query in read_queries(place)}
    passages = {passage.id: passage for place in places for passage in open_corpus(place)}
    pool += draw.sample(sorted(passages.keys() - set(pool)), POOL - len(pool))
    folder.mkdir(parents=True)
    write_corpus(folder / "corpus.jsonl", passages.values())
    write_corpus(folder / "pool.jsonl", (passages[passage] for passage in pool))
    write_jsonl(folder / "queries.jsonl", ({"_id": query, "text": queries[query]} for query in (*test, *train)))
    for split, judged in (("train", train), ("test", test)):
        write_qrels(folder / "qrels" / f"{split}.tsv", judged)


def store(name: str, run: Path) -> None:
    """Store the values of each question in the runs of a recipe."""
    runs = {size: run / "runs" / f"{size}.trec" for size in ("untrained", *SIZES)}
    values = rk.compare(runs, run / "qrels.tsv").values["nDCG@10"]
    questions = sorted(values["untrained"])
    content = {
        "questions": hashlib.sha256("\n".join(questions).encode()).hexdigest()[:16],
        "values": {size: [round(row[question], 5) for question in questions] for size, row in values.items()},
    }
    STORED.mkdir(exist_ok=True)
    _file(name).write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))


def _file(name: str) -> Path:
    return STORED / f"{name}.json.gz"


def page(stored: Mapping[str, Any]) -> str:
    """Return the page: a row for each collection and number of examples."""
    rows = [row for name, content in stored.items() for row in _rows(name, content["values"])]
    better = sum(row["p"] < 0.05 and row["gap"] > 0 for row in rows)
    worse = sum(row["p"] < 0.05 and row["gap"] < 0 for row in rows)
    head = (
        "collection",
        "examples",
        "untrained",
        "trained",
        "difference",
        "95 % interval",
        "p (Holm)",
        "won/tied/lost",
    )
    lines = [head, *(row["line"] for row in rows)]
    about = "; ".join(f"{name} ({COLLECTIONS[name]})" for name in stored)
    table = markdown_table(lines, right=range(1, len(head)))
    return _PAGE.format(count=len(rows), better=better, worse=worse, table=table, about=about, collections=len(stored))


def _rows(name: str, values: Mapping[str, Sequence[float]]) -> Iterator[dict[str, Any]]:
    before = values["untrained"]
    gaps = {size: [after - old for after, old in zip(values[size], before, strict=True)] for size in SIZES}
    corrected = holm([randomisation_test(gap) if any(gap) else 1.0 for gap in gaps.values()])
    for (size, gap), p in zip(gaps.items(), corrected, strict=True):
        mean, ((low, high),) = sum(gap) / len(gap), bootstrap_intervals(gap)
        won, lost = sum(value > 0 for value in gap), sum(value < 0 for value in gap)
        counted = f"{won}/{len(gap) - won - lost}/{lost}" if any(gap) else "kept untrained"
        means = [f"{sum(row) / len(row):.4f}" for row in (before, values[size])]
        line = (name, f"{int(size):,}", *means, f"{mean:+.4f}", f"[{low:.4f}, {high:.4f}]", f"{p:.4f}", counted)
        yield {"line": line, "gap": mean, "p": p}


_PAGE = """# Does training with the defaults help?

Written by gain.py, which stores the values of each question.

nDCG@10 on 300 test questions before and after `rkit train` with its defaults, by the number of training examples, on
{collections} collections. Of {count} trainings, {better} are significantly better than the model they started from, and
{worse} significantly worse (paired randomisation test, Holm's correction over the four sizes of a collection). "kept
untrained": no state was better on the held-out questions, so the checkpoint is the untrained model.

{table}

- The model is all-MiniLM-L6-v2, which was trained on a billion pairs: a stronger start than most models, so gains are
  smaller and losses more likely.
- 2,000 passages are searched: the relevant passages of the test questions, and random ones. BM25 negatives are mined in
  the whole corpus.
- Documents are cut at 64 tokens instead of 256, to shorten the trainings. Epochs, batch size, learning rate,
  temperature and the held-out questions are the defaults for each number of examples; the precision is the machine's
  `auto`. 4,000 means all, if there are fewer.
- One seed (42). The intervals cover the choice of test questions, not the variation between trainings.
- From 100 examples on, a tenth is held out, at least 50. With 50 examples nothing is held out, and training may make
  the model worse.
- Collections: {about}.
"""


if __name__ == "__main__":
    main()
