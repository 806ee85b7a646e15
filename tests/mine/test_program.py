"""Mining negatives: every filter by hand, the merging of sets, and whole minings from a run file and from indexes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mining_by_name import mine_by_name
from places import SHARED
from retrievalkit import registry
from retrievalkit.contracts import Found, Question
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.data.queries import Query, write_queries
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError, RetrievalkitError
from retrievalkit.mine import audit as audits
from retrievalkit.mine import program
from retrievalkit.mine.filters import make_filters, mine_part
from retrievalkit.mine.merge import merge_examples
from retrievalkit.mine.options import MiningOptions, choose
from retrievalkit.mine.questions import find_copies, group_questions

pytestmark = pytest.mark.precision

HITS = [("p1", 10.0), ("p2", 9.0), ("p3", 8.0), ("p4", 6.0), ("p5", 5.0)]


def mine_hits(hits=HITS, positives=("p2",), copies=(), holds=None, **options):
    """The negatives of one question."""
    question = Question(Query("q", "a question", ("yes",)), ("q",), frozenset(positives), frozenset(copies))
    chosen = MiningOptions(**options)
    found = Found.of(question, hits, holds)
    (outcome,) = mine_part([found], chosen, make_filters(chosen))
    return outcome.mined.negatives


def test_known_positives_are_no_negatives():
    """The question's positives go, unless the filter is switched off."""
    assert mine_hits() == ("p1", "p3", "p4", "p5")
    assert mine_hits(drop_positives=False) == ("p1", "p2", "p3", "p4", "p5")


def test_copies_of_a_positive_are_no_negatives():
    """A passage with the positive's text would be punished for being right."""
    assert mine_hits(copies=["p4"]) == ("p1", "p3", "p5")


def test_passages_with_the_answer_are_dropped_on_demand():
    """Without the option the flags play no role."""
    holds = [True, True, False, True, False]
    assert mine_hits(holds=holds) == ("p1", "p3", "p4", "p5")
    assert mine_hits(holds=holds, drop_answers=True) == ("p3", "p5")


def test_the_first_ranks_are_skipped_by_their_original_rank():
    """Ranks count from the top of the run, positives included."""
    assert mine_hits(skip_top=1) == ("p3", "p4", "p5")
    assert mine_hits(skip_top=2) == ("p3", "p4", "p5")
    assert mine_hits(skip_top=3) == ("p4", "p5")


def test_an_absolute_margin_keeps_what_scores_enough_less_than_the_positive():
    """The positive p2 has 9: a margin of 1 keeps scores up to 8, of 1.5 up to 7.5."""
    assert mine_hits(margin_absolute=0.0) == ("p3", "p4", "p5")
    assert mine_hits(margin_absolute=1.0) == ("p3", "p4", "p5")
    assert mine_hits(margin_absolute=1.5) == ("p4", "p5")
    assert mine_hits(margin_absolute=-1.0) == ("p1", "p3", "p4", "p5")


def test_a_relative_margin_keeps_a_share_of_the_positives_score():
    """Of 9, 0.8 is 7.2, and 0.6 is 5.4."""
    assert mine_hits(margin_relative=0.8) == ("p4", "p5")
    assert mine_hits(margin_relative=0.6) == ("p5",)


def test_a_relative_margin_goes_downwards_from_negative_scores_too():
    """A positive at -10 and a share of 0.9: hits up to -11 are kept."""
    hits = [("p1", -9.0), ("p2", -10.0), ("p3", -10.5), ("p4", -11.0), ("p5", -12.0)]
    assert mine_hits(hits, margin_relative=0.9) == ("p4", "p5")


def test_margins_count_from_the_lowest_positive():
    """Of the positives p1 (10) and p4 (6) the lower one counts."""
    assert mine_hits(positives=["p1", "p4"], margin_absolute=0.5) == ("p5",)


def test_a_positive_that_was_not_found_counts_with_the_last_score():
    """It scores 5 at most, so a margin of 0 leaves the last hit."""
    assert mine_hits(positives=["absent"], margin_absolute=0.0) == ("p5",)
    assert mine_hits(positives=["absent"], margin_absolute=0.1) == ()


def test_the_best_hits_are_kept_in_rank_order():
    """As many as were asked for."""
    assert mine_hits(negatives=2) == ("p1", "p3")
    assert mine_hits([], negatives=2) == ()


def test_a_random_sample_depends_on_the_seed_and_the_question_alone():
    """It is in rank order, of the size asked for, and another seed or question gives another one."""
    places = list(range(100))
    options = MiningOptions(negatives=10, sample="random", seed=1)
    chosen = choose(places, options, "q")
    assert chosen == choose(places, options, "q")
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 10
    assert chosen != choose(places, options, "r")
    assert chosen != choose(places, MiningOptions(negatives=10, sample="random", seed=2), "q")
    assert max(chosen) > 10


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.integers(0, 5), st.floats(0, 5), st.integers(1, 40))
def test_negatives_are_hits_in_order_and_never_positives(scores, skip, margin, wanted):
    """Whatever the filters, the negatives are hits in rank order, without the positive."""
    hits = [(f"p{rank}", score) for rank, score in enumerate(sorted(scores, reverse=True))]
    found = mine_hits(hits, positives=["p1"], skip_top=skip, margin_absolute=margin, negatives=wanted)
    ranks = [int(one[1:]) for one in found]
    assert ranks == sorted(set(ranks))
    assert len(ranks) <= wanted
    assert 1 not in ranks
    assert all(rank >= skip for rank in ranks)


def test_questions_without_copies_share_one_set():
    """An empty set of its own would take 200 bytes of each of 100,000 questions."""
    corpus = Corpus.of([Passage(one, "", f"text {one}") for one in "abc"])
    questions = group_questions([Example(one, f"question {one}", (one,)) for one in "abc"], corpus)
    assert {id(question.copies) for question in questions} == {id(questions[0].copies)}
    assert not questions[0].copies


def test_copies_are_found_by_text_whatever_the_title_and_white_space():
    """Where there is no text, the title counts."""
    texts = {"a": ("A", "one  text"), "b": ("B", "one text "), "c": ("A", "another"), "d": ("T", ""), "e": ("T", " ")}
    corpus = Corpus.of(Passage(one, title, text) for one, (title, text) in texts.items())
    assert find_copies({"a", "c"}, corpus) == {"a": {"a", "b"}}
    assert find_copies({"d"}, corpus) == {"d": {"d", "e"}}


def test_merging_puts_the_other_set_first_and_cuts_both():
    """By default a question's examples stay apart, each with the first `keep` negatives of its own set."""
    first = [Example("1", "x", ("p",), ("a", "b", "c")), Example("2", "y", ("p",), ("a",))]
    mined = [Example("1", "x", ("p",), ("d", "a", "e"))]
    assert list(merge_examples(first, mined, keep=2)) == [
        Example("1", "x", ("p",), ("a", "b")),
        Example("2", "y", ("p",), ("a",)),
        Example("1", "x", ("p",), ("d", "a")),
    ]
    assert list(merge_examples(first, mined)) == [*first, *mined]


def test_merging_into_a_pool_makes_one_example_a_question():
    """The first set's negatives, then the second's, without repeats and without the positives of either."""
    first = [Example("1", "x", ("p",), ("a", "m", "c"), ("yes",)), Example("2", "y", ("p",), ("a",))]
    mined = [Example("1", "x", ("m",), ("d", "a", "p"), ("no",)), Example("3", "z", ("p",), ("a", "b", "c"))]
    assert list(merge_examples(first, mined, keep=2, merge="pool")) == [
        Example("1", "x", ("p", "m"), ("a", "d"), ("yes", "no")),
        Example("2", "y", ("p",), ("a",)),
        Example("3", "z", ("p",), ("a", "b")),
    ]


@pytest.mark.parametrize("merge", ["concatenate", "pool"])
def test_merging_keeps_the_teachers_scores_of_the_documents_kept(merge):
    """A score without its document would be refused when the examples are read."""
    first = [Example("1", "x", ("p",), ("a", "b"), teacher={"p": 1.0, "a": 2.0, "b": 3.0})]
    second = [Example("2", "y", ("p",), ("a", "b"), teacher={"b": 3.0})]
    assert [row.teacher for row in merge_examples(first, second, keep=1, merge=merge)] == [{"p": 1.0, "a": 2.0}, None]


def test_two_sets_with_one_id_for_two_questions_are_refused():
    """The message names the id and both questions."""
    with pytest.raises(DataError, match="'1' stands for 'x' in one set, and for 'z' in the other"):
        list(merge_examples([Example("1", "x", ("p",))], [Example("1", "z", ("p",))]))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"depth": 0}, "depth is 0, but must be at least 1"),
        ({"skip_top": 200}, "skip_top 200 leaves nothing of depth 200"),
        ({"margin_relative": 1.5}, "margin_relative is 1.5"),
        ({"sample": "best"}, "'top' or 'random'"),
        ({"negativs": 3}, "did you mean 'negatives'"),
        ({"keep": 50}, "there is no other set"),
        ({"merge": "pool"}, "there is no other set"),
        ({"model": "m"}, "model is for an index"),
        ({"indexer": {"k1": 1}}, "indexer options are for --from bm25"),
    ],
)
def test_options_that_make_no_sense_are_refused(collection, options, problem):
    """Values out of range, unknown options, and options without effect."""
    with pytest.raises(OptionError, match=problem):
        collection.mine(**options)


def test_settings_of_the_command_line_are_options():
    """`--set margin_relative=0.95 --set indexer.k1=1.2` reaches the mining; an unknown one is an error."""
    settings = {"margin_relative": "0.95", "indexer": {"k1": 1.2}, "model": "m"}
    sources, options = program.parse_settings(["bm25"], settings)
    assert (sources.names, sources.indexer_options, sources.model) == (["bm25"], {"k1": 1.2}, "m")
    assert options == MiningOptions(margin_relative=0.95)
    with pytest.raises(OptionError, match="did you mean 'margin_relative'"):
        program.parse_settings(["bm25"], {"margin_relativ": 1})
    with pytest.raises(OptionError, match="set like indexer"):
        program.parse_settings(["bm25"], {"indexer": "bm25"})


class Collection:
    """Six passages, three examples of two questions, and a run of them."""

    def __init__(self, folder):
        self.folder = folder
        self.corpus = folder / "corpus.jsonl"
        texts = ["red", "the answer is yes", "red", "green", "blue", "violet"]
        rows = [{"_id": f"p{number}", "title": f"T{number}", "text": text} for number, text in enumerate(texts, 1)]
        self.corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.examples = folder / "train.jsonl"
        rows = [
            Example("qa", "which colour?", ("p1",), ("p6",), ("yes",)),
            Example("qb", "which other?", ("p4",)),
            Example("qc", "which colour?", ("p5",)),
        ]
        write_examples(self.examples, rows)
        self.run = self.write_run(qa="p2 p1 p3 p5 p6", qb="p4 p5")
        self.output = folder / "mined.jsonl"

    def write_run(self, **hits):
        path = self.folder / "run.trec"
        lines = [
            f"{query} Q0 {one} {rank} {10 - rank} tag\n"
            for query, found in hits.items()
            for rank, one in enumerate(found.split(), 1)
        ]
        path.write_text("".join(lines))
        return path

    def mine(self, source=None, **options):
        places = {"corpus": self.corpus, "examples": self.examples, "output": self.output}
        return mine_by_name(source or self.run, **(places | options))

    def mined(self):
        rows = [json.loads(line) for line in self.output.read_text().splitlines()]
        return [(row["query_id"], row["positives"], row["negatives"]) for row in rows]

    def left_behind(self):
        known = {"corpus.jsonl", "train.jsonl", "run.trec"}
        return sorted(path.name for path in self.folder.iterdir() if path.name not in known)


@pytest.fixture
def collection(tmp_path):
    return Collection(tmp_path)


def test_mining_from_a_run_file(collection):
    """Positives of every example with the question's text go, and copies (p3 has the text of p1); old negatives too."""
    audit = collection.mine()
    assert collection.mined() == [
        ("qa", ["p1"], ["p2", "p6"]),
        ("qb", ["p4"], ["p5"]),
        ("qc", ["p5"], ["p2", "p6"]),
    ]
    assert [(one["name"], one["dropped"]) for one in audit["filters"]] == [
        ("known positive", 3),
        ("copy of a positive", 1),
    ]
    assert (audit["hits"], audit["left"]) == (7, 3)
    assert audit["counts"] == {"examples": 3, "questions": 2, "mined": 3, "written": 3}
    assert audit["negatives"]["mean"] == pytest.approx(5 / 3)
    shown = audit["filters"][0]["examples"]
    assert [(one["query"], one["document_id"], one["title"], one["rank"]) for one in shown] == [
        ("which colour?", "p1", "T1", 2),
        ("which other?", "p4", "T4", 1),
    ]
    assert json.loads(program.audit_file(collection.output).read_text()) == audit
    assert collection.left_behind() == ["mined.jsonl", "mined.jsonl.audit.html", "mined.jsonl.audit.json"]


def test_the_audit_is_a_table_that_people_read(collection):
    """It names each filter with its count, shows what was dropped, and what was written."""
    table = audits.audit_table(collection.mine(drop_answers=True))
    assert "1 dropped: copy of a positive" in table
    assert "'which colour?' found at rank 1: T2: 'the answer is yes'" in table
    assert "3 examples written, 3 of them mined, with 1 to 1 negatives" in table


def test_answers_are_looked_for_in_the_corpus(collection):
    """Passage p2 holds the answer; the other question has none, and keeps its hits."""
    collection.mine(drop_answers=True)
    assert [negatives for _, _, negatives in collection.mined()] == [["p6"], ["p5"], ["p6"]]


def test_depth_cuts_the_run(collection):
    """Only so many hits are looked at; a question left without a negative keeps its example."""
    audit = collection.mine(depth=1)
    assert [negatives for _, _, negatives in collection.mined()] == [["p2"], [], ["p2"]]
    assert audit["negatives"]["examples_without"] == 1


def test_a_folder_is_mined_for_the_questions_of_one_split(collection):
    """A split that is not there lists those that are."""
    folder = collection.folder / "beir"
    (folder / "qrels").mkdir(parents=True)
    write_queries(folder / "queries.jsonl", [Query("qa", "which colour?"), Query("qb", "which other?")])
    for split, line in (("dev", "qb\tp4\t1"), ("train", "qa\tp1\t1")):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{line}\n")
    collection.mine(examples=folder)
    assert collection.mined() == [("qa", ["p1"], ["p2", "p5", "p6"])]
    collection.mine(examples=folder, split="dev")
    assert collection.mined() == [("qb", ["p4"], ["p5"])]
    with pytest.raises(DataError, match=r"split 'test' .* It has dev, train"):
        collection.mine(examples=folder, split="test")


def test_mining_twice_writes_the_same_bytes(collection):
    """With the same seed, a random sample too."""
    collection.mine(sample="random", negatives=1)
    first = collection.output.read_bytes(), program.audit_file(collection.output).read_bytes()
    collection.mine(sample="random", negatives=1)
    assert (collection.output.read_bytes(), program.audit_file(collection.output).read_bytes()) == first


def test_merging_with_the_set_that_was_mined_for(collection):
    """The walk's second mining: the examples themselves first, then the mined ones."""
    audit = collection.mine(merge_with=collection.examples, keep=1)
    assert collection.mined()[:4] == [
        ("qa", ["p1"], ["p6"]),
        ("qb", ["p4"], []),
        ("qc", ["p5"], []),
        ("qa", ["p1"], ["p2"]),
    ]
    assert audit["counts"]["written"] == 6
    assert len(read_examples(collection.output).rows) == 6


def test_mined_positives_follow_the_golden_case(tmp_path):
    """Golden check mlr_hard_negative_mining: the best hit with the answer, no question without one, pools of two."""
    answered = {"p1": False, "p2": True, "p3": False, "p4": True, "p5": False, "p6": False, "p7": False, "p8": True}
    corpus = [{"_id": one, "title": "", "text": f"{one} yes" if holds else one} for one, holds in answered.items()]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    (tmp_path / "questions.jsonl").write_text(
        "".join(json.dumps({"_id": one, "text": f"question {one}", "answers": ["yes"]}) + "\n" for one in "abc")
    )
    hits = {"a": ["p1", "p2", "p3", "p4", "p5"], "b": ["p6", "p7"], "c": ["p8"]}
    lines = [f"{q} Q0 {one} 1 {-rank} t\n" for q, found in hits.items() for rank, one in enumerate(found)]
    (tmp_path / "run.trec").write_text("".join(lines))
    audit = mine_by_name(
        tmp_path / "run.trec",
        corpus=tmp_path / "corpus.jsonl",
        examples=tmp_path / "questions.jsonl",
        output=tmp_path / "out.jsonl",
        positives="retrieved",
        negatives=2,
    )
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["query_id"], row["positives"], row["negatives"]) for row in rows] == [
        ("a", ["p2"], ["p1", "p3"]),
        ("c", ["p8"], []),
    ]
    assert audit["counts"] == {"examples": 3, "questions": 3, "mined": 2, "written": 2}


def test_a_question_whose_positives_are_mined_makes_one_example(collection):
    """Two examples of one text would be the same example twice; a question without an answer in reach is dropped."""
    collection.mine(positives="retrieved")
    assert collection.mined() == [("qa", ["p2"], ["p6"])]


def test_passages_that_came_with_the_examples_are_found_in_the_corpus(collection):
    """A Tevatron file names its passages otherwise than the corpus: the same text is the same passage."""
    passage = {"docid": "other-4", "title": "", "text": "green"}
    row = {"query_id": "qb", "query": "which other?", "positive_passages": [passage], "negative_passages": []}
    collection.examples.write_text(json.dumps(row) + "\n")
    collection.mine()
    assert collection.mined() == [("qb", ["p4"], ["p5"])]
    row["positive_passages"][0]["text"] = "lilac"
    collection.examples.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"train.jsonl:1: unknown document id 'other-4'"):
        collection.mine()


@pytest.mark.parametrize(
    ("harm", "options", "error", "problem"),
    [
        ({"qa": "p1 p77"}, {}, DataError, "unknown document id 'p77'.*"),
        ({"q1": "p1 p2"}, {}, InputError, "none of 2 questions is in the run.*'qa', the run like 'q1'"),
        ({"qa": "p1", "qb": "p4"}, {}, RetrievalkitError, "dropped all 2 hits .known positive 2."),
        ({}, {"source": "run.trek"}, InputError, "does not exist.*--from takes bm25"),
        ({}, {"source": "bm52"}, InputError, "did you mean 'bm25'"),
        ({}, {"source": "."}, ArtifactError, "a folder that rkit did not write"),
        ({}, {"output": "."}, ArtifactError, "is a folder"),
        ({}, {"corpus": "nowhere"}, DataError, "does not exist"),
        ({}, {"examples": "nowhere"}, DataError, "does not exist"),
        ({}, {"split": "train"}, OptionError, "--split has no effect on the examples of a file"),
    ],
)
def test_bad_input_gets_one_message_and_leaves_nothing(collection, monkeypatch, harm, options, error, problem):
    """Nothing is written, beside the output either."""
    monkeypatch.chdir(collection.folder)
    if harm:
        collection.write_run(**harm)
    with pytest.raises(error, match=problem):
        collection.mine(**options)
    assert collection.left_behind() == []


def test_vectors_are_not_searched(collection):
    """A vectors folder is indexed first; the message says so."""
    folder = collection.folder / "vectors"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"kind": "vectors"}')
    with pytest.raises(ArtifactError, match="a vectors folder, which must be indexed first"):
        collection.mine(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A collection of countries and an untrained checkpoint."""
    from retrievalkit_testing import tiny_collection, tiny_model

    from retrievalkit.training.train import train

    folder = tmp_path_factory.mktemp("tiny")
    tiny_collection(folder / "data")
    model = tiny_model(folder / "model")
    data = str(folder / "data")
    train(model, data, corpus=data, pooler="mean", output=folder / "checkpoint", epochs=0)
    return folder


def mine_tiny(tiny, source, output, **options):
    mine_by_name(source, corpus=tiny / "data", examples=tiny / "data", output=output, **options)
    return read_examples(output).rows


def test_mining_with_a_checkpoint_equals_mining_from_its_index_and_from_its_run(tiny, tmp_path):
    """The corpus is encoded and searched on the way, and nothing of that stays."""
    from fused_runs import search
    from retrievalkit.data.queries import read_queries
    from retrievalkit.data.runs import write_run
    from retrievalkit.indexing.build import build_index
    from retrievalkit.indexing.encoding import encode

    rows = mine_tiny(tiny, tiny / "checkpoint", tmp_path / "a.jsonl", depth=20)
    encode(tiny / "checkpoint", tiny / "data", side="document", output=tmp_path / "vectors")
    build_index(tmp_path / "vectors", indexer="flat", output=tmp_path / "index")
    assert mine_tiny(tiny, tmp_path / "index", tmp_path / "b.jsonl", depth=20) == rows
    run = search([tmp_path / "index"], queries=read_queries(tiny / "data"), k=20)
    write_run(tmp_path / "run.trec", run)
    assert mine_tiny(tiny, tmp_path / "run.trec", tmp_path / "c.jsonl", depth=20) == rows
    assert sum(len(row.negatives) for row in rows) > 15 * len(rows)
    left = {path.name for path in tmp_path.iterdir()} - {"vectors", "index", "run.trec"}
    assert left == {f"{name}.jsonl{end}" for name in "abc" for end in ("", ".audit.json", ".audit.html")}


def test_an_interrupted_mining_goes_on_with_the_vectors_it_has(tiny, tmp_path, monkeypatch):
    """Encoding the corpus is the long part: it is not done twice, and the outcome is the same."""
    import retrievalkit.indexing.encoding
    from retrievalkit.search.searcher import Searcher

    ask = Searcher.ask
    rows = mine_tiny(tiny, tiny / "checkpoint", tmp_path / "whole.jsonl")

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Searcher, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine_tiny(tiny, tiny / "checkpoint", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    monkeypatch.setattr(Searcher, "ask", ask)
    monkeypatch.setattr(retrievalkit.indexing.encoding, "encode", interrupted)
    assert mine_tiny(tiny, tiny / "checkpoint", tmp_path / "out.jsonl") == rows
    assert {path.name.partition(".jsonl")[0] for path in tmp_path.iterdir()} == {"whole", "out"}


@pytest.mark.skipif("bm25" not in registry.names("indexer"), reason="retrievalkit-pyserini is not installed")
def test_mining_with_lucene(tiny, tmp_path):
    """BM25 finds the country that a question names; its options reach the index."""
    rows = mine_tiny(tiny, "bm25", tmp_path / "out.jsonl", depth=20, indexer={"threads": 1})
    assert len(rows) == len(read_examples(tiny / "data").rows)
    audit = json.loads(program.audit_file(tmp_path / "out.jsonl").read_text())
    assert audit["source"]["kind"] == "bm25"
    assert audit["questions_whose_positive_was_found"] == len(rows)
    assert any(row.negatives for row in rows)
    with pytest.raises(OptionError, match="did you mean 'threads'"):
        mine_tiny(tiny, "bm25", tmp_path / "no.jsonl", indexer={"thread": 1})
    assert not (tmp_path / "no.jsonl").exists()


@pytest.mark.skipif(not (SHARED / "squad-open").exists(), reason="RKIT_SHARED_DATA has no squad-open")
def test_answers_on_real_questions(tmp_path):
    """On SQuAD, a hit that holds the answer is dropped, whatever its rank, and a positive is always among these."""
    from retrievalkit.data.corpus import open_corpus

    folder = SHARED / "squad-open"
    examples = read_examples(folder).rows[:50]
    passages = [passage.id for _, passage in zip(range(200), open_corpus(folder), strict=False)]
    hits = {row.query_id: [*row.positives, *(one for one in passages if one not in row.positives)] for row in examples}
    lines = [f"{q} Q0 {one} 1 {-rank} t\n" for q, found in hits.items() for rank, one in enumerate(found)]
    (tmp_path / "run.trec").write_text("".join(lines))
    write_examples(tmp_path / "train.jsonl", examples)
    options = {"corpus": folder, "examples": tmp_path / "train.jsonl", "output": tmp_path / "out.jsonl"}
    audit = mine_by_name(tmp_path / "run.trec", drop_answers=True, drop_positives=False, **options)
    assert audit["filters"][0]["dropped"] >= 50
    positives = {row.query_id: set(row.positives) for row in examples}
    assert all(positives[row.query_id].isdisjoint(row.negatives) for row in read_examples(tmp_path / "out.jsonl").rows)
