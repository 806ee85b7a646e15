"""The indexer `bm25`: a corpus in a Lucene index, searched with BM25; the scores equal Pyserini's.

    rkit index CORPUS --indexer bm25 --output bm25
    rkit search bm25 --queries QUERIES --k 1000 --output bm25.trec

The folder contains `lucene/` (an index that Pyserini can open too), `ids.txt` (the texts' ids in Lucene's order) and
`bm25.json` (the analysis options).
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le

from retrievalkit.contracts import Allowed, Indexer
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError, UnsupportedError
from retrievalkit.reporting import notices
from retrievalkit_pyserini.analysis import ANSERINI, ICU, LUCENE, Analysis
from retrievalkit_pyserini.bulk import HITS_IN_A_CALL
from retrievalkit_pyserini.changing import write_changed
from retrievalkit_pyserini.filtering import with_ids
from retrievalkit_pyserini.index_folder import INDEX, index_expected, read_settings, undone_on_failure, write_settings
from retrievalkit_pyserini.java import alone, java_class, processors, quicken_next_start
from retrievalkit_pyserini.languages import Sample, detectable
from retrievalkit_pyserini.lucene import Searcher, Writer, part_ties, rounded
from retrievalkit_pyserini.rescoring import scores_in_calls

READ = 200_000
"""Number of passages at the beginning of a corpus that its languages are detected in."""

FEW = 100
"""Maximum number of hits of a single query that are read one at a time."""

MANY = 5_000
"""Minimum number of texts for which faster starts of Java justify seconds of extra work at indexing."""

BATCH_TEXTS = 2_000
BATCH_CHARACTERS = 4_000_000

_IDS, _SETTINGS = "ids.txt", "bm25.json"


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Schema of bm25.json."""

    analysis: Analysis
    term_vectors: bool


class BM25(Indexer):
    """Lucene's BM25 through Pyserini; title and text form one field, as in Pyserini's flat BEIR indexes.

    BM25 (Robertson and Zaragoza 2009) scores matching words with an inverted index: compressed posting lists on disk.
    A query reads the lists of its words. Hits and scores equal those of Pyserini's `LuceneSearcher`
    (https://arxiv.org/abs/2102.10073): rounded to four decimals, with ties in order of id and
    lowered by 1, 2, 3 ... millionths. A query none of whose terms is in the index has no hits.

    Args:
        k1: Term frequency saturation: the higher, the longer repetitions of a term add to the score; 0 counts it once.
        b: Length normalisation: 0 does not penalise long texts, 1 penalises them in proportion to their length.
        language: Two-letter code of the texts' language, which determines how words are separated and stemmed, or
            several, as in "en,zh", for a corpus whose texts have different languages; auto = detected, and recorded.
        stemmer: For English: "porter", "krovetz" (lighter) or "none".
        remove_stopwords: For English: remove Lucene's 33 stop words.
        store: Also store the texts in the index, to read them with Pyserini; rkit reads them from the corpus.
        rm3: Expand queries with RM3 (pseudo-relevance feedback); makes the index larger and search slower.
        rm3_terms: Number of terms that RM3 adds.
        rm3_documents: Number of top hits of the first search that supply the terms.
        rm3_original_weight: Weight of the original query, 0 to 1.
        threads: Threads for building and searching; none = one per processor. Does not affect hits.
    """

    indexes: ClassVar[Literal["vectors", "texts"]] = "texts"

    _searcher: Searcher
    _ids: list[str]
    _numbers: dict[str, int] | None

    def __init__(
        self,
        *,
        k1: Annotated[float, Ge(0)] = 0.9,
        b: Annotated[float, Ge(0), Le(1)] = 0.4,
        language: str | tuple[str, ...] = "auto",
        stemmer: Literal["porter", "krovetz", "none"] = "porter",
        remove_stopwords: bool = True,
        store: bool = False,
        rm3: bool = False,
        rm3_terms: Annotated[int, Ge(1)] = 10,
        rm3_documents: Annotated[int, Ge(1)] = 10,
        rm3_original_weight: Annotated[float, Ge(0), Le(1)] = 0.5,
        threads: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        self._english: dict[str, Any] = {"stemmer": stemmer, "remove_stopwords": remove_stopwords}
        codes = language.replace(" ", "").split(",") if isinstance(language, str) else [*language] or [""]
        self._analysis = None if codes == ["auto"] else self._analysis_of(codes)
        expansion = {"terms": rm3_terms, "documents": rm3_documents, "original_weight": rm3_original_weight}
        if not rm3 and tuple(expansion.values()) != (10, 10, 0.5):
            msg = "the options rm3_... have no effect without rm3. Set rm3=true, or leave them out."
            raise OptionError(msg)
        self.threads = threads or processors()
        self.k1, self.b = k1, b
        self.store = store
        self.rm3: dict[str, Any] | None = expansion if rm3 else None

    def _analysis_of(self, languages: Sequence[str]) -> Analysis:
        quick = ANSERINI | ICU | LUCENE.keys()
        if unknown := [language for language in languages if language not in quick and language not in detectable()]:
            msg = (
                f"language '{unknown[0]}' is unknown. Known are {' '.join(sorted(quick | detectable()))}. Give a code, "
                "several (en,zh), or auto to detect them."
            )
            raise OptionError(msg)
        if "en" not in languages and self._english != {"stemmer": "porter", "remove_stopwords": True}:
            named = f"language is '{','.join(languages)}'"
            msg = (
                f"stemmer and remove_stopwords only apply to English, but {named}. Leave them out, or set language=en."
            )
            raise OptionError(msg)
        first, *others = dict.fromkeys(languages)
        return Analysis(first, **self._english, others=tuple(others))

    def options_for(self, source: Corpus | Any) -> Mapping[str, Any]:
        """Return the languages of a corpus: those that are set, or detected ones, which are noted unless English."""
        return {"language": ",".join((self._analysis or self._detected(source)).languages)}

    def _detected(self, source: Corpus) -> Analysis:
        sample = Sample()
        for passage in itertools.islice(source, READ):
            if text := _contents(passage):
                sample.see(text)
        languages = sample.languages() or ["en"]
        analysis = self._analysis_of(languages)
        if languages != ["en"]:
            how = "detected" if len(languages) == 1 else "detected, passage by passage"
            set_it = f"Set it with --set indexer.language={','.join(languages)} (rkit sync: --language)"
            notices.note(f"BM25 language: {_named(languages)} ({how}). {set_it}.")
        return analysis

    @alone
    def build(self, source: Corpus | Any, index_dir: Path) -> Mapping[str, int]:
        """Index a corpus; empty texts are counted as "empty" and never retrieved.

        Raises:
            DataError: No passage has any text, or an id contains a line break.
            RetrievalkitError: Lucene ran out of disk space or memory. No files are left behind.
        """
        with undone_on_failure(Path(index_dir), _IDS, _SETTINGS):
            return self._build(source, Path(index_dir), self._analysis or self._detected(source), sampled=READ)

    def _build(self, source: Corpus, index_dir: Path, analysis: Analysis, *, sampled: int) -> dict[str, int]:
        """Write the index; note languages that the analysis lacks, if the passages after `sampled` have any."""
        folder, sample = index_dir / INDEX, Sample()
        texts = empty = 0
        term_vectors = self.rm3 is not None
        with Writer(folder, analysis, threads=self.threads, term_vectors=term_vectors, store=self.store) as writer:
            for batch in batches(source):
                filled = [(passage.id, contents) for passage in batch if (contents := _contents(passage))]
                if filled:
                    writer.add(filled)
                for _, text in filled[max(0, sampled - texts) :]:
                    sample.see(text)
                texts += len(batch)
                empty += len(batch) - len(filled)
            if texts == empty:
                msg = f"none of the {texts} passages has a title or a text. Give passages with texts."
                raise DataError(msg, file=getattr(source, "source", None))
        if unlike := [language for language in sample.languages() if language not in analysis.languages]:
            codes = ",".join([*analysis.languages, *unlike])
            notices.note(
                f"BM25 analyses passages in {_named(unlike)} as {_named(analysis.languages)}, because the index does. "
                f"Index again with --set indexer.language={codes}, or sync with --language {codes}."
            )
        written = self._write_ids(folder, index_dir / _IDS, analysis)
        if written != texts - empty:
            msg = f"{texts - empty} texts were indexed with {written} ids: an id contains a line break. Remove it."
            raise DataError(msg)
        settings = {"analysis": dataclasses.asdict(analysis), "term_vectors": term_vectors}
        write_settings(index_dir / _SETTINGS, settings)
        return {"texts": texts, "empty": empty}

    def _write_ids(self, folder: Path, path: Path, analysis: Analysis) -> int:
        """Write the ids in Lucene's order and return their number."""
        searcher = Searcher(folder, analysis, k1=self.k1, b=self.b)
        ids = searcher.ids()
        if len(ids) >= MANY:
            # This loads the classes that a search needs, so that the archive contains them.
            searcher.few("text", 1), searcher.contributions("text", [0])
            quicken_next_start()
        searcher.close()
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{name}\n" for name in ids)
        return len(ids)

    @alone
    def changed(
        self, index_dir: Path, target: Path, *, deleted: Collection[str], added: Corpus | Any, compact: bool
    ) -> Mapping[str, int]:
        """Write the changed index; its scores equal those of a newly built index.

        Raises:
            DataError: No text with any word would remain.
            RetrievalkitError: Lucene ran out of disk space or memory.
        """
        index_dir, target = Path(index_dir), Path(target)
        added_index, empty = target / "added", 0
        analysis = self._checked_settings(index_dir).analysis
        filled = added is not None and any(_contents(passage) for passage in added)
        if filled:
            added_index.mkdir()
            empty = self._build(added, added_index, analysis, sampled=0)["empty"]
        elif added is not None:
            empty = len(added)
        joined = [added_index / INDEX] if filled else []
        write_changed(index_dir / INDEX, target / INDEX, deleted=deleted, added=joined, compact=compact)
        shutil.rmtree(added_index, ignore_errors=True)
        shutil.copyfile(index_dir / _SETTINGS, target / _SETTINGS)
        texts = self._write_ids(target / INDEX, target / _IDS, analysis)
        if not texts:
            msg = f"no passage with a title or a text would remain in '{index_dir}'. Add passages in the same command."
            raise DataError(msg)
        return {"texts": texts + empty, "empty": empty}

    @alone
    def join(self, parts: Sequence[Path], target: Path) -> None:
        """Merge the texts of several indexes into one; its scores equal those of a single build.

        Raises:
            RetrievalkitError: Lucene ran out of disk space or memory.
        """
        with undone_on_failure(target, _IDS, _SETTINGS):
            first, *others = map(Path, parts)
            analysis = self._checked_settings(first).analysis
            write_changed(first / INDEX, target / INDEX, added=[part / INDEX for part in others])
            shutil.copyfile(first / _SETTINGS, target / _SETTINGS)
            self._write_ids(target / INDEX, target / _IDS, analysis)

    @alone
    def open(self, index_dir: Path) -> None:
        """Open an index; its folder may have been moved.

        Raises:
            ArtifactError: The index does not exist, or was built with other analysis options.
        """
        index_dir = Path(index_dir)
        analysis = self._checked_settings(index_dir).analysis
        self._searcher = Searcher(index_dir / INDEX, analysis, k1=self.k1, b=self.b)
        self._numbers = None
        with index_expected(index_dir, "bm25", f"its {_IDS} is missing or damaged", "CORPUS"):
            self._ids = (index_dir / _IDS).read_text(encoding="utf-8").split("\n")[:-1]
        if len(self._ids) != len(self._searcher):
            msg = (
                f"the index '{index_dir}' is damaged: Lucene has {len(self._searcher)} texts, {_IDS} {len(self._ids)}. "
                "Build it again: rkit index CORPUS --indexer bm25"
            )
            raise ArtifactError(msg)
        if self.rm3 is not None:
            self._searcher.use_rm3(**self.rm3, english_only=analysis.languages == ("en",))

    def _checked_settings(self, index_dir: Path) -> _Settings:
        """Read the settings of an index, and refuse one that was built with other options."""
        with index_expected(index_dir, "bm25", f"its {_SETTINGS} is missing or damaged", "CORPUS"):
            settings = read_settings(index_dir / _SETTINGS, _Settings)
        built = settings.analysis
        ours = self._analysis or dataclasses.replace(built, **self._english)
        if built != ours:
            msg = (
                f"the index '{index_dir}' was built with {_as_options(built)}, but the options are "
                f"{_as_options(ours)}. Use its options, or build another index."
            )
            raise ArtifactError(msg)
        if self.rm3 is not None and not settings.term_vectors:
            msg = (
                f"the index '{index_dir}' was built without rm3, which needs the texts' terms. "
                "Build it again: rkit index CORPUS --indexer bm25 --set indexer.rm3=true"
            )
            raise ArtifactError(msg)
        return settings

    @alone
    def search(self, queries: Sequence[str] | Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """Return each query's best texts (at most k, best first): their ids and float32 scores."""
        if k < 1:
            msg = f"k is {k}, but must be 1 or more."
            raise InputError(msg)
        if len(queries) == 1 and k <= FEW:
            hits = self._searcher.few(queries[0], min(k, len(self._ids)))
            return [[name for name, _ in hits]], [np.array([score for _, score in hits], dtype=np.float32)]
        return self._search(queries, min(k, len(self._ids)))

    @alone
    def search_among(
        self, queries: Sequence[str] | Any, k: int, allowed: Allowed
    ) -> tuple[list[list[str]], list[np.ndarray]]:
        """Search the allowed texts; the filter does not change scores. With rm3, request more hits and filter them."""
        if self.rm3 is not None:
            return super().search_among(queries, k, allowed)
        return self._search(queries, min(k, len(allowed)), with_ids(allowed.ids))

    def _search(self, queries: Sequence[str], k: int, only: Any = None) -> tuple[list[list[str]], list[np.ndarray]]:
        ids: list[list[str]] = []
        scores: list[np.ndarray] = []
        step = max(1, HITS_IN_A_CALL // max(k, 1))
        for start in range(0, len(queries), step):
            for names, values in self._hits(queries[start : start + step], k, only):
                ids.append(names)
                scores.append(values)
        return ids, scores if self.rm3 is not None else list(map(part_ties, scores))

    @alone
    def scores(self, queries: Sequence[str] | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return the BM25 scores of the requested texts, rounded to four decimals as in `search`.

        `search` breaks ties by millionths, which depends on the other hits; here, equal scores stay equal.

        Args:
            queries: Texts.
            ids: For each query, ids of texts.

        Returns:
            For each query, float32 scores in the order of its ids; 0 for a text that shares no term with it, NaN for a
            text that is not in the index, such as an empty text.

        Raises:
            UnsupportedError: With rm3, whose expanded query Anserini does not expose.
        """
        if self.rm3 is not None:
            msg = "bm25 with rm3 can search, but cannot score requested texts. Drop rm3."
            raise UnsupportedError(msg)
        known = self._known()
        numbers = [np.array([known.get(name, -1) for name in names], dtype=np.int64) for names in ids]

        def score(start: int, end: int, inside: list[np.ndarray]) -> list[np.ndarray]:
            return list(map(rounded, self._searcher.scores(queries[start:end], inside, threads=self.threads)))

        return scores_in_calls(numbers, score, most=HITS_IN_A_CALL)

    @alone
    def contributions(self, query: str | Any, ids: Sequence[str]) -> list[dict[str, float]]:
        """Return each query term's contribution to the scores of texts, largest first; terms as stemmed in the index.

        Raises:
            UnsupportedError: With rm3, whose expanded query Anserini does not expose.
        """
        if self.rm3 is not None:
            msg = "bm25 with rm3 cannot compute the contributions of query terms. Drop rm3."
            raise UnsupportedError(msg)
        return self._searcher.contributions(query, list(map(self._known().get, ids)))

    def _known(self) -> dict[str, int]:
        """Map each text's id to Lucene's document number."""
        if self._numbers is None:
            self._numbers = {name: number for number, name in enumerate(self._ids)}
        return self._numbers

    def _hits(self, queries: Sequence[str], k: int, only: Any) -> Iterator[tuple[list[str], np.ndarray]]:
        if self.rm3 is not None:
            for hits in self._searcher.ids_and_scores(queries, k, threads=self.threads):
                yield [name for name, _ in hits], np.array([score for _, score in hits], dtype=np.float32)
            return
        for numbers, scores in self._searcher.numbers_and_scores(queries, k, threads=self.threads, only=only):
            ids = [self._ids[number] for number in numbers.tolist()]
            if (scores[1:] == scores[:-1]).any():
                order = sorted(range(len(ids)), key=list(zip((-scores).tolist(), ids, strict=True)).__getitem__)
                ids, scores = [ids[place] for place in order], scores[order]
            yield ids[:k], scores[:k]


def batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Split the passages into lists of bounded length, in passages and in characters."""
    batch: list[Passage] = []
    characters = 0
    for passage in passages:
        batch.append(passage)
        characters += len(passage.title) + len(passage.text)
        if len(batch) >= BATCH_TEXTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _contents(passage: Passage) -> str:
    return f"{passage.title}\n{passage.text}".strip()


def _as_options(analysis: Analysis) -> str:
    english = f", stemmer={analysis.stemmer}, remove_stopwords={analysis.remove_stopwords}"
    return f"language={','.join(analysis.languages)}{english}"


@alone
def _named(languages: Sequence[str]) -> str:
    """Return the English names of languages."""
    locale = java_class("java.util.Locale")
    names = [str(locale.forLanguageTag(language).getDisplayLanguage(locale.ENGLISH)) for language in languages]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
