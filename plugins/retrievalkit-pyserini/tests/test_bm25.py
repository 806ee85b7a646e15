"""The indexer `bm25` compared with Pyserini's searcher and with a reference of BM25."""

import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from retrievalkit_pyserini import bm25
from retrievalkit_pyserini.bm25 import BM25
from retrievalkit_pyserini.lucene import part_ties

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.errors import ArtifactError, DataError, OptionError, UnsupportedError
from retrievalkit.registry import create


def built(folder, corpus, **options):
    index = BM25(**options)
    index.build(corpus, folder)
    index.open(folder)
    return index


def of_pyserini(searcher, query, k):
    hits = searcher.search(query, k)
    return [hit.docid for hit in hits], np.array([hit.score for hit in hits], dtype=np.float32)


def assert_same(hits, expected):
    assert hits[0] == expected[0]
    for ours, theirs in zip(hits[1], expected[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_hits_equal_those_of_pyserini(index, folder, pyserini, k, queries):
    """Ids and scores equal LuceneSearcher.search on the same index, ties and special characters included."""
    searcher = pyserini.LuceneSearcher(str(folder / "lucene"))
    ids, scores = zip(*(of_pyserini(searcher, query, k) for query in queries), strict=True)
    assert_same(index.search(queries, k), (list(ids), scores))


@pytest.mark.parametrize("k", [1, 10, bm25.FEW, bm25.FEW + 1])
def test_a_single_query_has_the_same_hits_as_in_a_batch(index, k, queries):
    for query, *among in zip(queries, *index.search(queries, k), strict=True):
        assert_same(index.search([query], k), ([among[0]], [among[1]]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_is_a_query(index, folder, pyserini, text):
    queries = [text, f"violin {text} candle"]
    searcher = pyserini.LuceneSearcher(str(folder / "lucene"))
    ids, scores = zip(*(of_pyserini(searcher, query, 5) for query in queries), strict=True)
    assert_same(index.search(queries, 5), (list(ids), scores))


def reference(texts, query, k1, b):
    """Compute Lucene's BM25 (no factor k1 + 1) for texts of up to 40 words, whose lengths Lucene stores exactly."""
    documents = {name: Counter(re.findall(r"\w+", text.lower())) for name, text in texts.items()}
    average = sum(map(Counter.total, documents.values())) / len(documents)
    scores = Counter()
    for term in query.lower().split():
        holders = [name for name, terms in documents.items() if term in terms]
        idf = math.log(1 + (len(documents) - len(holders) + 0.5) / (len(holders) + 0.5))
        for name in holders:
            count, length = documents[name][term], documents[name].total()
            scores[name] += idf * count / (count + k1 * (1 - b + b * length / average))
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.0, 0.4), (2.0, 0.0)])
def test_scores_are_bm25(tmp_path, corpus, k1, b):
    index = built(tmp_path, corpus, k1=k1, b=b, stemmer="none", remove_stopwords=False)
    texts = {passage.id: f"{passage.title} {passage.text}" for passage in corpus}
    query = "frozen river river near the theorem"
    expected = reference(texts, query, k1, b)
    (ids,), (scores,) = index.search([query], 400)
    assert set(ids) == set(expected)
    np.testing.assert_allclose(scores, [expected[name] for name in ids], atol=2e-4)


def test_several_python_threads_search_concurrently(folder, queries):
    index = BM25()
    index.open(folder)
    few = list(queries)[:3]

    def answers():
        ids, scores = index.search(queries, 20)
        scores_of_few = [row.tolist() for row in index.scores(few, ids[:3])]
        explained = [index.contributions(query, some[:2]) for query, some in zip(few, ids, strict=False)]
        alone = [index.search([query], 5)[0] for query in few]
        return ids, [row.tolist() for row in scores], scores_of_few, explained, alone

    expected = answers()
    with ThreadPoolExecutor(4) as pool:
        assert all(answer == expected for answer in pool.map(lambda _: answers(), range(40)))


def test_scores_of_requested_texts(index, queries, passages, monkeypatch):
    """They equal those of search before ties are broken, in any order; other texts score 0."""
    names = [passage.id for passage in passages]
    rankings = list(zip(*index.search(queries, len(names)), strict=True))
    documents = [names[::-1], names[7:9] * 2, [], *[names] * (len(queries) - 3)]
    whole = index.scores(queries, [names] * len(queries))
    for (ids, scores), all_scores in zip(rankings, whole, strict=True):
        by_name = dict(zip(names, all_scores, strict=True))
        np.testing.assert_array_equal(part_ties(np.array([by_name.pop(name) for name in ids])), scores)
        assert set(by_name.values()) <= {0.0}
    for most in (500_000, 60):
        monkeypatch.setattr(bm25, "HITS_IN_A_CALL", most)
        for ours, all_scores, some in zip(index.scores(queries, documents), whole, documents, strict=True):
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours, all_scores[[names.index(name) for name in some]])


def test_scores_of_unknown_texts(tmp_path, index, folder):
    """Unknown ids and empty texts have no score (NaN); rm3 cannot score requested texts."""
    built(tmp_path, Corpus.of([Passage("1", "", "violin"), Passage("2", "", " ")]))
    small = BM25()
    small.open(tmp_path)
    (scores,) = small.scores(["violin"], [["2", "1", "zebra"]])
    assert np.isnan(scores).tolist() == [True, False, True]
    assert index.scores([], []) == []
    expanding = BM25(rm3=True)
    expanding._searcher = index._searcher
    with pytest.raises(UnsupportedError, match="rm3"):
        expanding.scores(["violin"], [["p0001"]])


@pytest.mark.parametrize("k", [1, 3, 30, 39, 40, 41])
def test_of_many_equal_texts_those_with_the_first_ids_are_hits(tmp_path, k):
    """Their position in the index does not matter."""
    names = [f"{number * 7 % 40:02}" for number in range(40)]
    index = built(
        tmp_path, Corpus.of([Passage("best", "", "violin violin")] + [Passage(n, "", "a violin") for n in names])
    )
    ids, scores = index.search(["violin", "candle"], k)
    assert ids == [["best", *sorted(names)][:k], []]
    assert (np.diff(scores[0]) < 0).all()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        (many := " ".join(f"word{number}" for number in range(5_000)), many),
        ("violin \ud83d candle", "violin \ud83d"),
        ("candle river", "\x00river"),
    ],
    ids=["many words", "half a character", "zero"],
)
def test_any_text_can_be_indexed_and_be_a_query(tmp_path, text, query):
    index = built(tmp_path, Corpus.of([Passage("1", "", text), Passage("2", "", "other word")]))
    assert index.search([query], 2)[0] == [["1"]]


def test_empty_texts_are_counted_and_are_never_hits(tmp_path, queries, passages):
    """They do not change the scores of other texts."""
    filled = passages[:50]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    index = BM25()
    counts = index.build(Corpus.of([Passage("e1", "", ""), *filled, Passage("e2", " ", " \n")]), tmp_path / "a")
    assert counts == {"texts": 52, "empty": 2}
    index.open(tmp_path / "a")
    assert_same(index.search(queries, 60), built(tmp_path / "b", Corpus.of(filled)).search(queries, 60))


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ([Passage("1", "", "violin"), Passage("1", "", "candle")], "1"),
        ([], "empty"),
        ([Passage("1", "", ""), Passage("2", "", " ")], "none of the 2 passages"),
        ([Passage("1\n2", "", "violin")], "line break"),
    ],
)
def test_a_bad_corpus_leaves_nothing(tmp_path, bad, problem):
    """Duplicate ids, no passages, no texts and ids with a line break are errors, and leave an empty folder."""
    with pytest.raises(DataError, match=problem):
        BM25().build(Corpus.of(bad), tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_analysis_options_than_the_indexs_are_refused(folder):
    with pytest.raises(ArtifactError, match=r"built with .*stemmer=porter.* but the options are .*stemmer=none"):
        BM25(stemmer="none").open(folder)
    with pytest.raises(ArtifactError, match="without rm3"):
        BM25(rm3=True).open(folder)


@pytest.mark.parametrize(
    ("options", "query", "default", "changed"),
    [
        ({"stemmer": "none"}, "violins", ["violin"], []),
        ({"stemmer": "krovetz"}, "generalization", ["general"], []),
        ({"remove_stopwords": False}, "the", [], ["the"]),
        ({"language": "de"}, "häuser", [], ["haus"]),
    ],
)
def test_analysis_options(tmp_path, options, query, default, changed):
    texts = Corpus.of(Passage(name, "", name) for name in ("violin", "general", "the", "haus"))
    for name, settings_, expected in (("default", {}, default), ("changed", options, changed)):
        (tmp_path / name).mkdir()
        assert built(tmp_path / name, texts, **settings_).search([query], 3)[0] == [expected]


def test_storing_the_texts(tmp_path, corpus, pyserini):
    """Only with store can Pyserini read the texts from the index."""
    for store in (True, False):
        folder = tmp_path / str(store)
        folder.mkdir()
        BM25(store=store).build(corpus, folder)
        document = pyserini.LuceneSearcher(str(folder / "lucene")).doc("p0001")
        assert (document.raw() is not None) is store


def test_rm3_equals_that_of_pyserini(tmp_path, pyserini, passages):
    """Hits equal Pyserini's with the same settings, and each setting changes them."""
    # RM3 adds no term that occurs in more than a tenth of the texts.
    words = "topic{} detail{} point{} case{}"
    rare = [f"{passage.text} {words.format(n % 37, n % 53, n % 29, n % 71)}" for n, passage in enumerate(passages)]
    corpus = Corpus.of(Passage(str(number), "", text) for number, text in enumerate(rare))
    settings_ = {"rm3_terms": 5, "rm3_documents": 3, "rm3_original_weight": 0.4}
    index = built(tmp_path, corpus, rm3=True, **settings_)
    searcher = pyserini.LuceneSearcher(str(tmp_path / "lucene"))
    searcher.set_rm3(5, 3, 0.4)
    queries = ["red river topic5", "detail7 violin", "paints case70"]
    results = index.search(queries, 20)
    ids, scores = zip(*(of_pyserini(searcher, query, 20) for query in queries), strict=True)
    assert_same(results, (list(ids), scores))
    for name, value in {"rm3_terms": 20, "rm3_documents": 9, "rm3_original_weight": 0.9}.items():
        other = BM25(rm3=True, **settings_ | {name: value})
        other.open(tmp_path)
        pairs = zip(other.search(queries, 20)[1], results[1], strict=True)
        assert not all(np.array_equal(after, before) for after, before in pairs), name
    plain = BM25()
    plain.open(tmp_path)
    assert plain.search(queries, 20)[0] != results[0]
    assert index.search(["", "zebra"], 5)[0] == [[], []]


@pytest.mark.parametrize(
    ("indexer", "options", "problem"),
    [
        ("bm25", {"k1": -1}, "k1"),
        ("bm25", {"b": 1.5}, "1.5"),
        ("bm25", {"language": "xx"}, "xx"),
        ("bm25", {"rm3": True, "rm3_original_weight": 2}, "rm3_original_weight"),
        ("bm25", {"rm3": True, "rm3_documents": 0}, "rm3_documents"),
        ("bm25", {"stemmer": "none", "language": "de"}, "only apply to English"),
        ("bm25", {"rm3_terms": 20}, "without rm3"),
        *(("impact", {name: value}, name) for name, value in {"scale": 0.0, "sample": -1}.items()),
        *(("impact", {"bits": bits}, "bits") for bits in (0, 17)),
        ("lucene_hnsw", {"ef_search": 0}, "ef_search"),
        *((name, {"threads": 0}, "threads") for name in ("bm25", "impact", "lucene_hnsw")),
    ],
)
def test_invalid_options_are_refused(indexer, options, problem):
    with pytest.raises(OptionError, match=problem):
        create("indexer", indexer, **options)


def test_relative_folders_follow_the_working_directory(tmp_path, monkeypatch):
    """Java keeps the directory that it was started in, but Python's may change."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        folder = Path("index")
        folder.mkdir()
        indexer = BM25()
        indexer.build(Corpus.of([Passage("d1", "", "a relative place")]), folder)
        indexer.open(folder)
        assert indexer.search(["relative"], 1)[0] == [["d1"]]
        assert (tmp_path / name / "index").is_dir()
