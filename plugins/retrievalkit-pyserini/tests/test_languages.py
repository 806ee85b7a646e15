# ruff: noqa: RUF001 - texts in other scripts
"""Languages of BM25: detected, recorded, noted, set; words found in each; several languages in one index."""

import pytest
from retrievalkit_pyserini.analysis import ANSERINI, ICU, LUCENE, Analysis
from retrievalkit_pyserini.bm25 import BM25
from retrievalkit_pyserini.languages import Sample

import retrievalkit as rk
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.errors import InputError, OptionError

# language: (a text, another text, a query in other forms of words of the first text)
TEXTS = {
    "en": (
        "The old houses near the harbour were sold to merchants from the north last summer.",
        "Boil the potatoes for twenty minutes, and add salt, butter and a little milk.",
        "house merchant",
    ),
    "de": (
        "Die alten Häuser am Hafen wurden im letzten Sommer an Kaufleute aus dem Norden verkauft.",
        "Die Kartoffeln zwanzig Minuten kochen, danach Salz, Butter und etwas Milch dazugeben.",
        "haus hafen",
    ),
    "ru": (
        "Старые дома возле гавани прошлым летом были проданы купцам с севера страны.",
        "Варите картофель двадцать минут, затем добавьте соль, масло и немного молока.",
        "старый дом купец",
    ),
    "el": (
        "Τα παλιά σπίτια κοντά στο λιμάνι πουλήθηκαν πέρυσι το καλοκαίρι σε εμπόρους.",
        "Βράστε τις πατάτες για είκοσι λεπτά και προσθέστε αλάτι, βούτυρο και λίγο γάλα.",
        "σπίτι έμπορος",
    ),
    "th": (
        "บ้านเก่าใกล้ท่าเรือถูกขายให้พ่อค้าจากทางเหนือเมื่อฤดูร้อนที่แล้ว",
        "ต้มมันฝรั่งเป็นเวลายี่สิบนาทีแล้วเติมเกลือ เนย และนมเล็กน้อย",
        "พ่อค้า",
    ),
    "zh": (
        "去年夏天，港口附近的老房子被卖给了来自北方的商人。",
        "把土豆煮二十分钟，然后加入盐、黄油和少许牛奶。",
        "北方商人",
    ),
}


def passages(*languages):
    numbered = ((language, number) for language in languages for number in range(2))
    return [Passage(f"{language}{number}", "", TEXTS[language][number]) for language, number in numbered]


def built(folder, texts, **options):
    folder.mkdir(exist_ok=True)
    index = BM25(threads=1, **options)
    index.build(Corpus.of(texts), folder)
    index.open(folder)
    return index


@pytest.mark.parametrize("language", TEXTS)
def test_the_language_is_detected_recorded_and_noted(tmp_path, language, capsys):
    """Words are found in other forms; the manifest has the language; only English is not noted."""
    index = rk.Index.build(passages(language), output=tmp_path / "index", indexer="bm25")
    notes = capsys.readouterr().err
    assert index.manifest["indexer"]["options"]["language"] == language
    assert notes.count("Note:") == notes.count(f"language={language} ") == (language != "en")
    assert [hit.id for hit in rk.Index.open(tmp_path / "index").search(TEXTS[language][2])][:1] == [f"{language}0"]


def test_a_strict_command_does_not_guess_a_language(tmp_path):
    with pytest.raises(InputError, match=r"indexer\.language=de"):
        rk.Index.build(passages("de"), output=tmp_path / "a", indexer="bm25", strict=True)
    rk.Index.build(
        passages("de"), output=tmp_path / "b", indexer="bm25", indexer_options={"language": "de"}, strict=True
    )


def test_english_is_indexed_as_before(tmp_path, folder, queries, corpus):
    """An English corpus has the hits and scores of language=en, in Anserini's own index."""
    for name, language in (("auto", "auto"), ("en", "en")):
        index = built(tmp_path / name, corpus, language=language)
        assert index._searcher._analysis.arguments() == ["-language", "en", "-stemmer", "porter"]
        ids, scores = index.search(queries, 20)
        if name == "auto":
            expected = ids, [row.tolist() for row in scores]
    assert (ids, [row.tolist() for row in scores]) == expected


@pytest.mark.parametrize("languages", [["en", "ru", "th", "zh"], ["en", "de", "el"]])
def test_each_text_of_a_mixed_corpus_is_analysed_in_its_language(tmp_path, languages):
    """All methods agree, and a removed language is no longer searched in its forms."""
    texts = passages(*languages)
    index = built(tmp_path / "mixed", texts)
    queries = [TEXTS[language][2] for language in languages]
    ids, scores = index.search(queries, 3)
    assert [row[0] for row in ids] == [f"{language}0" for language in languages]
    for query, names, values in zip(queries, ids, scores, strict=True):
        assert index.search([query], 3)[0] == [names]
        assert index.scores([query], [names])[0] == pytest.approx(values, abs=1e-4)
        assert sum(index.contributions(query, names[:1])[0].values()) == pytest.approx(values[0], abs=1e-3)
    english = built(tmp_path / "english", texts, language="en")
    assert english.search(queries, 3)[0] != ids


def test_every_language_has_an_analyzer(tmp_path):
    """Also those that Lucene has only a tokenizer for, and those that are segmented by ICU."""
    texts = [Passage("1", "", "Berlin 2024 東京 mir ภาษาไทย"), Passage("2", "", "other"), Passage("3", "", "!!!")]
    for language in sorted(ANSERINI | ICU | LUCENE.keys()):
        assert "2024" in Analysis(language).terms([texts[0].text], language, 1)[0], language
    for language in ("vi", "el", "km", "th,en,ja"):
        index = built(tmp_path / language, texts, language=language)
        assert index.search(["2024", "!!! ."], 2)[0] == [["1"], []]
    assert built(tmp_path / "half", [Passage("1", "", "ไทย \ud83d")], language="th").search(["ไทย"], 1)[0] == [["1"]]


@pytest.mark.parametrize("language", ["en, th", ("en", "th"), ["en", "th"]])
def test_several_languages_are_recorded_in_one_form(tmp_path, language):
    index = rk.Index.build(
        passages("en"), output=tmp_path / "index", indexer="bm25", indexer_options={"language": language}
    )
    assert index.manifest["indexer"]["options"]["language"] == "en,th"


@pytest.mark.parametrize("language", ["xx", "", "en,xx", "auto,en", "EN", ()])
def test_unknown_languages_are_refused(language):
    with pytest.raises(OptionError, match=r"unknown.*Known are"):
        BM25(language=language)


def test_added_texts_are_analysed_as_the_index_is(tmp_path, capsys):
    """A language that the index lacks is noted."""
    index = rk.Index.build(passages("de", "ru"), output=tmp_path / "index", indexer="bm25")
    capsys.readouterr()
    index.add([Passage("new", "", "Im Winter verkauften die Kaufleute ihre Schiffe und zogen in das Haus am Berg.")])
    assert index.search("winter schiff")[0].id == "new"
    assert "Note" not in capsys.readouterr().err
    index.add(passages("en"))
    assert "English" in capsys.readouterr().err


def test_shards_are_in_the_language_of_the_whole_corpus(tmp_path):
    """Shards of one language each are joined."""
    texts = [passage for pair in zip(passages("en"), passages("ru"), strict=True) for passage in pair]
    rk.index(texts, indexer="bm25", output=tmp_path / "sharded", shards=2)
    index = rk.Index.open(tmp_path / "sharded")
    assert sorted(index.manifest["indexer"]["options"]["language"].split(",")) == ["en", "ru"]
    assert [index.search(TEXTS[name][2])[0].id for name in ("en", "ru")] == ["en0", "ru0"]


def test_a_language_counts_from_a_twentieth_of_the_texts_on():
    """Wherever these are in the stream; texts without words are in no language."""
    for ru, expected in ((100, ["en", "ru"]), (20, ["en"])):
        sample = Sample()
        for text in [TEXTS["en"][0]] * (1800 - ru) + [TEXTS["ru"][0]] * ru + ["12 34"] * 200:
            sample.see(text)
        assert sample.languages() == expected
    assert Sample().languages() == []


def test_stored_texts_are_the_texts(tmp_path, pyserini):
    """Although an index of several languages has their terms."""
    built(tmp_path / "mixed", passages("en", "th"), store=True)
    assert TEXTS["th"][0] in pyserini.LuceneSearcher(str(tmp_path / "mixed" / "lucene")).doc("th0").raw()
