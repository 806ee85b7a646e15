"""Text analysis: the terms of texts and queries in one or several languages.

Lucene analyzes the texts itself if they are in one of the languages that Anserini supports. Otherwise the terms are
computed here, and Lucene splits them at spaces: words are segmented with ICU where they are not separated by spaces and
the bundled Java lacks a dictionary, and analyzed by the Lucene analyzer of the text's language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retrievalkit_pyserini.bulk import lucene_errors, run, strings
from retrievalkit_pyserini.handles import bind, static_method, then
from retrievalkit_pyserini.java import java_class, java_text
from retrievalkit_pyserini.languages import likely

ANSERINI = frozenset("ar bn da de en es fa fi fr hi hu id it ja ko nl no pl pt ru sv te tr uk zh".split())  # noqa: SIM905
"""Languages that Anserini selects an analyzer for."""

LUCENE = {
    "bg": "bg.Bulgarian", "ca": "ca.Catalan", "cs": "cz.Czech", "el": "el.Greek", "et": "et.Estonian",
    "eu": "eu.Basque", "ga": "ga.Irish", "gl": "gl.Galician", "hy": "hy.Armenian", "lt": "lt.Lithuanian",
    "lv": "lv.Latvian", "ne": "ne.Nepali", "ro": "ro.Romanian", "sr": "sr.Serbian", "ta": "ta.Tamil",
}  # fmt: skip
"""Further analyzers of Lucene. Words of all other languages are only put in lower case."""

ICU = frozenset({"km", "lo", "my", "th"})
"""Languages without spaces between words that the bundled Java has no dictionary of."""

_WORDLESS = "."
"""The only term of a text without words, because Anserini refuses empty documents; no query has it."""

_LUCENE = "org.apache.lucene.analysis"


@dataclass(frozen=True)
class Analysis:
    """Text analysis for an index and its queries; stemmer and stop words apply only to English.

    Attributes:
        language: Language of the texts, or the most frequent one.
        others: Further languages; the language of each text is detected among all.
    """

    language: str = "en"
    stemmer: str = "porter"
    remove_stopwords: bool = True
    others: tuple[str, ...] = ()

    @property
    def languages(self) -> tuple[str, ...]:
        """All languages."""
        return (self.language, *self.others)

    @property
    def by_lucene(self) -> bool:
        """True if Lucene analyzes texts and queries itself."""
        return not self.others and self.language in ANSERINI

    def arguments(self) -> list[str]:
        """Return the arguments of Anserini's indexer for this analysis."""
        if not self.by_lucene:
            return ["-pretokenized"]
        keep = [] if self.remove_stopwords else ["-keepStopwords"]
        return ["-language", self.language, "-stemmer", self.stemmer, *keep]

    def analyzer(self) -> Any:
        """Return the analyzer that Lucene uses on what `documents` and `queries` return."""
        if not self.by_lucene:
            return java_class(f"{_LUCENE}.core.WhitespaceAnalyzer")()
        return self._analyzer_of(self.language)

    def documents(self, texts: Sequence[str], threads: int) -> list[str]:
        """Return the texts as Lucene indexes them: as they are, or the terms of each in its language."""
        if self.by_lucene:
            return list(texts)
        rows_of: dict[str, list[int]] = {}
        for row, text in enumerate(texts):
            languages = likely(text, self.languages)
            rows_of.setdefault(languages[0] if len(languages) < len(self.languages) else self.language, []).append(row)
        documents = [""] * len(texts)
        for language, rows in rows_of.items():
            for row, terms in zip(rows, self.terms([texts[row] for row in rows], language, threads), strict=True):
                documents[row] = " ".join(terms) or _WORDLESS
        return documents

    def queries(self, texts: Sequence[str], threads: int) -> list[str]:
        """Return the queries as Lucene searches them: as they are, or their terms in each language they may be in."""
        if self.by_lucene:
            return list(texts)
        rows_of: dict[str, list[int]] = {}
        for row, text in enumerate(texts):
            for language in likely(text, self.languages):
                rows_of.setdefault(language, []).append(row)
        queries = [Counter[str]() for _ in texts]
        for language, rows in rows_of.items():
            for row, terms in zip(rows, self.terms([texts[row] for row in rows], language, threads), strict=True):
                queries[row] |= Counter(terms)
        return [" ".join(terms.elements()) for terms in queries]

    def terms(self, texts: Sequence[str], language: str, threads: int) -> list[list[str]]:
        """Return the terms of each text in one of the languages."""
        if language in ICU:
            texts = [_segmented(text, language) for text in texts]
        types = ("java.util.List", f"{_LUCENE}.Analyzer", "java.lang.String")
        analyze = static_method("io.anserini.analysis.AnalyzerUtils", "analyze", *types)
        analyze = bind(analyze, 0, self._analyzer_of(language))
        with lucene_errors(f"analyze texts in '{language}'"):
            return [*map(list, run(then(strings(texts), analyze), len(texts), threads))]

    def _analyzer_of(self, language: str) -> Any:
        if language == "en":
            english = java_class("io.anserini.analysis.DefaultEnglishAnalyzer")
            return english.fromArguments(self.stemmer, not self.remove_stopwords, None)
        if language in ANSERINI:
            return java_class("io.anserini.analysis.AnalyzerMap").getLanguageSpecificAnalyzer(language)
        return java_class(f"{_LUCENE}.{LUCENE.get(language, 'standard.Standard')}Analyzer")()


def _segmented(text: str, language: str) -> str:
    """Separate the words of a text by spaces."""
    from icu4py.breakers import WordBreaker

    return " ".join(WordBreaker(java_text(text), language))
