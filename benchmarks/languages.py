"""BM25 by language: nDCG@10 as English, with the language detected, and in an index of several; accuracy of detection.

    .venv/bin/python benchmarks/languages.py              # XQuAD; writes results/languages.json and LANGUAGES.md

XQuAD (CC BY-SA 4.0) has the same 240 paragraphs and 1,190 questions in 12 languages. The script reads it in BEIR's
layout from `$RKIT_SHARED_DATA/xquad`: `metadata.language` is the language, qrels/LANGUAGE.tsv.gz has the judgements.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from retrievalkit_pyserini.languages import detectable, likely

import retrievalkit as rk
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries

HERE = Path(__file__).parent
DATA = Path(os.environ.get("RKIT_SHARED_DATA", HERE.parents[1] / "shared" / "data")) / "xquad"
GROUPS = (("en", "ru", "th", "zh"), ("de", "en", "es", "ro"))
PAGE = """# BM25 by language

nDCG@10 of BM25 on XQuAD: 240 paragraphs and 1,190 questions in each language. Written by `benchmarks/languages.py`.

- *English*: analysed as English, the default of earlier versions.
- *detected*: an index per language, whose language is detected (`language=auto`, the default).
- *in ...*: one index of the paragraphs in these languages, each analysed in its own (`detected`), or all as English.
- *passages*, *questions*: share whose language is detected, among all {languages} that can be.

{table}
"""


def measure(texts: dict[str, list[dict[str, str]]], queries: dict[str, dict[str, str]]) -> dict[str, dict[str, float]]:
    """Return language -> column -> nDCG@10."""
    rows: dict[str, dict[str, float]] = {language: {} for language in texts}

    def fill(column: str, languages: Sequence[str], setting: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            passages = [passage for language in languages for passage in texts[language]]
            options = {"language": setting}
            index = rk.Index.build(passages, output=f"{folder}/index", indexer="bm25", indexer_options=options)
            for language in languages:
                run = index.search(queries[language], k=10)
                rows[language][column] = run.evaluate(qrels=DATA / "qrels" / f"{language}.tsv.gz")["nDCG@10"]

    for language in texts:
        fill("English", [language], "en")
        fill("detected", [language], "auto")
    for group in (*GROUPS, tuple(texts)):
        name = f"in {' '.join(group)}" if group in GROUPS else "in all"
        fill(f"{name}: English", group, "en")
        fill(f"{name}: detected", group, "auto")
    return rows


def main() -> None:
    """Measure, and write the figures and the page."""
    texts: dict[str, list[dict[str, str]]] = {}
    queries: dict[str, dict[str, str]] = {}
    for passage in open_corpus(DATA / "corpus.jsonl.gz"):
        texts.setdefault(str(passage.fields["language"]), []).append({"id": passage.id, "text": passage.text})
    for query in read_queries(DATA / "queries.jsonl.gz"):
        queries.setdefault(query.id.split("-")[0], {})[query.id] = query.text
    rows = measure(texts, queries)
    known = sorted(detectable())
    for language, row in rows.items():
        for column, several in (
            ("passages", [text["text"] for text in texts[language]]),
            ("questions", [*queries[language].values()]),
        ):
            row[column] = sum(likely(text, known)[0] == language for text in several) / len(several)
    figures = {language: {name: round(value, 3) for name, value in row.items()} for language, row in rows.items()}
    (HERE / "results" / "languages.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    names = dict.fromkeys(name for row in figures.values() for name in row)
    columns = sorted(names, key=lambda name: name.startswith("in "))
    cells = [["language", *columns], ["---"] * (1 + len(columns))]
    cells += [
        [language, *(f"{row[name]:.3f}".lstrip("0") if name in row else "" for name in columns)]
        for language, row in figures.items()
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    page = PAGE.format(languages=len(known), table=table)
    (HERE / "LANGUAGES.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
