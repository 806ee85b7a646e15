"""The tiny collection: 42 passages about countries and 126 questions that they answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COUNTRIES = (
    "Argentina Buenos-Aires peso Spanish|Australia Canberra dollar English|Austria Vienna euro German|"
    "Bolivia Sucre boliviano Spanish|Brazil Brasilia real Portuguese|Bulgaria Sofia euro Bulgarian|"
    "Cambodia Phnom-Penh riel Khmer|Canada Ottawa dollar English|Chile Santiago peso Spanish|"
    "China Beijing yuan Mandarin|Croatia Zagreb euro Croatian|Cuba Havana peso Spanish|"
    "Denmark Copenhagen krone Danish|Egypt Cairo pound Arabic|Ethiopia Addis-Ababa birr Amharic|"
    "Finland Helsinki euro Finnish|France Paris euro French|Germany Berlin euro German|"
    "Ghana Accra cedi English|Greece Athens euro Greek|Hungary Budapest forint Hungarian|"
    "Iceland Reykjavik krona Icelandic|India New-Delhi rupee Hindi|Ireland Dublin euro Irish|"
    "Italy Rome euro Italian|Japan Tokyo yen Japanese|Kenya Nairobi shilling Swahili|"
    "Latvia Riga euro Latvian|Mexico Mexico-City peso Spanish|Mongolia Ulaanbaatar tugrik Mongolian|"
    "Morocco Rabat dirham Arabic|Nepal Kathmandu rupee Nepali|Norway Oslo krone Norwegian|"
    "Peru Lima sol Spanish|Poland Warsaw zloty Polish|Portugal Lisbon euro Portuguese|"
    "Romania Bucharest leu Romanian|Senegal Dakar franc French|Sweden Stockholm krona Swedish|"
    "Thailand Bangkok baht Thai|Turkey Ankara lira Turkish|Vietnam Hanoi dong Vietnamese"
)
"""Country, capital, currency and language, for each passage; "-" stands for a space."""


@dataclass(frozen=True)
class Collection:
    """Where the parts of a collection in BEIR form lie."""

    folder: Path
    corpus: Path
    queries: Path
    qrels: Path


def tiny_collection(folder: str | Path) -> Collection:
    """Write a collection of 42 passages (countries) and 126 questions, in BEIR form.

    Two thirds of the questions are in `qrels/train.tsv`, the rest in `qrels/test.tsv`.
    """
    folder = Path(folder)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    passages: list[dict[str, Any]] = []
    queries: list[dict[str, Any]] = []
    train: list[str] = []
    test: list[str] = []
    for row, line in enumerate(COUNTRIES.split("|")):
        country, capital, currency, language = (word.replace("-", " ") for word in line.split())
        text = (
            f"The seat of government is the city of {capital}. People pay with the {currency}, and the language that "
            f"is spoken most is {language}. It is number {row + 1} of this list."
        )
        passages.append({"_id": f"c{row}", "title": country, "text": text})
        asked = (
            f"what is the capital of {country}",
            f"which currency do people use in {country}",
            f"what language is spoken in {country}",
        )
        for number, question in enumerate(asked):
            queries.append(
                {"_id": f"q{row}-{number}", "text": question, "answers": [(capital, currency, language)[number]]}
            )
            (test if (row + number) % 3 == 0 else train).append(f"q{row}-{number}\tc{row}\t1")
    _write_jsonl(folder / "corpus.jsonl", passages)
    _write_jsonl(folder / "queries.jsonl", queries)
    for name, rows in (("train", train), ("test", test)):
        (folder / "qrels" / f"{name}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return Collection(folder, folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv")


def _write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
