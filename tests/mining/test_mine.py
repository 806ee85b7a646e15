"""Mining a small collection, from runs, checkpoints and indexes; refused commands write nothing."""

import json

import pytest
from click.testing import CliRunner

import retrievalkit as rk
from fused_runs import search
from places import SHARED
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.data.queries import Query, read_queries, write_queries
from retrievalkit.data.runs import write_run
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError, RetrievalkitError

pytestmark = pytest.mark.precision


class Collection:
    """Six passages, three examples of two questions, and a run of the questions."""

    def __init__(self, folder):
        self.folder = folder
        self.corpus = folder / "corpus.jsonl"
        texts = ["red", "the answer is yes", "red", "green", "blue", "violet"]
        self.write("corpus", [{"_id": f"p{n}", "title": f"T{n}", "text": text} for n, text in enumerate(texts, 1)])
        self.examples = folder / "train.jsonl"
        rows = [
            Example("qa", "which colour?", ("p1",), ("p6",), ("yes",)),
            Example("qb", "which other?", ("p4",)),
            Example("qc", "which colour?", ("p5",)),
        ]
        write_examples(self.examples, rows)
        self.run = self.write_run(qa="p2 p1 p3 p5 p6", qb="p4 p5")
        self.output = folder / "mined.jsonl"
        self.before = set(folder.iterdir())

    def write(self, name, rows):
        (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.folder / f"{name}.jsonl"

    def write_run(self, **hits):
        write_run(
            self.folder / "run.trec", {q: [(one, -n) for n, one in enumerate(h.split())] for q, h in hits.items()}
        )
        return self.folder / "run.trec"

    def mine(self, source=None, **options):
        """Return the report, and the ids in the written examples."""
        places = {"corpus": self.corpus, "examples": self.examples, "output": self.output}
        mined = rk.mine_negatives(self.run if source is None else source, **(places | options))
        return mined.report, [(row.query_id, " ".join(row.positives), " ".join(row.negatives)) for row in mined]

    def left_behind(self):
        return sorted(path.name for path in {*self.folder.iterdir()} - self.before)


@pytest.fixture
def collection(tmp_path):
    return Collection(tmp_path)


def test_mining_from_a_run(collection):
    """The positives of all examples with the question's text are dropped, and copies of them (p3 of p1)."""
    audit, mined = collection.mine()
    assert mined == [("qa", "p1", "p2 p6"), ("qb", "p4", "p5"), ("qc", "p5", "p2 p6")]
    dropped = {one["name"]: one["dropped"] for one in audit["filters"]}
    assert dropped == {"known positive": 3, "copy of a positive": 1}
    assert (audit["hits"], audit["left"]) == (7, 3)
    assert audit["counts"] == {"examples": 3, "questions": 2, "mined": 3, "written": 3}
    assert audit["negatives"]["mean"] == pytest.approx(5 / 3)
    shown = audit["filters"][0]["examples"]
    assert [(one["query"], one["document_id"], one["title"], one["rank"]) for one in shown] == [
        ("which colour?", "p1", "T1", 2),
        ("which other?", "p4", "T4", 1),
    ]
    assert json.loads((collection.folder / "mined.jsonl.audit.json").read_text()) == audit
    assert collection.left_behind() == ["mined.jsonl", "mined.jsonl.audit.html", "mined.jsonl.audit.json"]
    in_memory = rk.mine_negatives(rk.Run.load(collection.run), collection.examples, corpus=collection.corpus)
    assert [row.negatives for row in in_memory] == [("p2", "p6"), ("p5",), ("p2", "p6")]


@pytest.mark.parametrize(
    ("options", "negatives"),
    [
        # p2 contains the answer to a question; the other question has no answers, and keeps its hits.
        ({"drop_answers": True}, ["p6", "p5", "p6"]),
        ({"depth": 1}, ["p2", "", "p2"]),
        ({"merge_with": "train.jsonl", "keep": 1}, ["p6", "", "", "p2", "p5", "p2"]),
        # One example per question, whose positive is the best hit with an answer.
        ({"positives": "retrieved"}, ["p6"]),
    ],
    ids=str,
)
def test_options_change_the_examples(collection, monkeypatch, options, negatives):
    monkeypatch.chdir(collection.folder)
    audit, mined = collection.mine(**options)
    assert [one for _, _, one in mined] == negatives
    assert audit["counts"]["written"] == len(negatives)
    assert audit["negatives"]["examples_without"] == negatives[-audit["counts"]["mined"] :].count("")


def test_the_command_prints_the_audit_as_a_table(collection):
    """The table has the filters with their counts, dropped hits, and the number of written examples."""
    places = ["--from", collection.run, "--corpus", collection.corpus, "--examples", collection.examples]
    words = ["mine-negatives", *places, "--output", collection.output, "--drop-answers"]
    table = CliRunner().invoke(main, [str(word) for word in words]).output
    assert "1 dropped: copy of a positive" in table
    assert "'which colour?', rank 1: T2: 'the answer is yes'" in table
    assert "3 examples written, 3 of them mined, with 1 to 1 negatives" in table


def test_a_folder_is_mined_for_the_questions_of_one_split(collection):
    folder = collection.folder / "beir"
    (folder / "qrels").mkdir(parents=True)
    write_queries(folder / "queries.jsonl", [Query("qa", "which colour?"), Query("qb", "which other?")])
    for split, line in (("dev", "qb\tp4\t1"), ("train", "qa\tp1\t1")):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{line}\n")
    assert collection.mine(examples=folder)[1] == [("qa", "p1", "p2 p5 p6")]
    assert collection.mine(examples=folder, split="dev")[1] == [("qb", "p4", "p5")]
    with pytest.raises(DataError, match=r"split 'test' .* It has dev, train"):
        collection.mine(examples=folder, split="test")


def test_mined_positives_follow_the_golden_case(collection):
    """Golden check mlr_hard_negative_mining: the best hit with the answer, no question without one, two negatives."""
    texts = {f"p{n}": f"p{n} yes" if n in (2, 4, 8) else f"p{n}" for n in range(1, 9)}
    corpus = collection.write("many", [{"_id": one, "title": "", "text": text} for one, text in texts.items()])
    questions = [{"_id": one, "text": f"question {one}", "answers": ["yes"]} for one in "abc"]
    examples = collection.write("questions", questions)
    collection.write_run(a="p1 p2 p3 p4 p5", b="p6 p7", c="p8")
    audit, mined = collection.mine(corpus=corpus, examples=examples, positives="retrieved", negatives=2)
    assert mined == [("a", "p2", "p1 p3"), ("c", "p8", "")]
    assert audit["counts"] == {"examples": 3, "questions": 3, "mined": 2, "written": 2}


def test_passages_of_the_examples_are_matched_by_their_text(collection):
    passage = {"docid": "other-4", "title": "", "text": "green"}
    row = {"query_id": "qb", "query": "which other?", "positive_passages": [passage], "negative_passages": []}
    assert collection.mine(examples=collection.write("tevatron", [row]))[1] == [("qb", "p4", "p5")]
    passage["text"] = "lilac"
    with pytest.raises(DataError, match=r"tevatron.jsonl:1: unknown document id 'other-4'"):
        collection.mine(examples=collection.write("tevatron", [row]))


@pytest.mark.parametrize("wanted", [{"drop_answers": True}, {"positives": "retrieved"}], ids=str)
def test_examples_without_answers_are_mined_without_them(collection, capsys, wanted):
    """One recipe serves collections with and without answers; there is a note, and strict refuses."""
    rows = [Example(row.query_id, row.query, row.positives) for row in read_examples(collection.examples).rows]
    write_examples(collection.examples, rows)
    assert collection.mine(**wanted)[1] == collection.mine()[1]
    assert "No question has answers" in capsys.readouterr().err
    with pytest.raises(InputError, match="No question has answers"):
        collection.mine(**wanted, strict=True)


@pytest.mark.parametrize(
    ("run", "options", "error", "problem"),
    [
        ({"qa": "p1 p77"}, {}, DataError, "unknown document id 'p77'.*"),
        ({"q1": "p1 p2"}, {}, InputError, "has none of the 2 questions: .*'qa', the run like 'q1'"),
        ({"qa": "p1", "qb": "p4"}, {}, RetrievalkitError, "dropped all 2 hits .known positive 2."),
        ({}, {"source": "bm52"}, InputError, "did you mean 'bm25'"),
        ({}, {"source": "."}, ArtifactError, "a folder that rkit did not write"),
        ({}, {"source": "vectors"}, ArtifactError, "a vectors folder, which must be indexed first"),
        ({}, {"source": []}, InputError, "nothing to mine from"),
        ({}, {"source": ["bm25", "bm25"]}, OptionError, "listed twice"),
        ({}, {"output": "."}, ArtifactError, "is a folder"),
        ({}, {"corpus": "nowhere"}, DataError, "does not exist"),
        ({}, {"examples": "bare.jsonl"}, DataError, "bare.jsonl.*positive"),
        ({}, {"examples": "bare.jsonl", "positives": "retrieved"}, InputError, "needs answers"),
        ({}, {"split": "train"}, OptionError, "split has no effect"),
        ({}, {"depth": 0}, OptionError, "depth.*0.*greater than or equal to 1"),
        ({}, {"skip_top": 200}, OptionError, "skip_top 200 drops all hits of depth 200"),
        ({}, {"margin_absolute": float("nan")}, OptionError, "margin_absolute.*nan"),
        ({}, {"reranker": "R"}, OptionError, "has no threshold"),
        ({}, {"reranker": "nowhere", "reranker_above": 0.0}, InputError, "cannot load the model"),
        ({}, {"reranker": "checkpoint", "reranker_above": 0.0}, ArtifactError, "is a retriever"),
        ({}, {"reranker_above": 1.0}, OptionError, "need a re-ranker"),
        ({}, {"same_document": "("}, OptionError, "nor a regular expression"),
        ({}, {"same_document": ".*"}, OptionError, "which matches every id"),
        ({}, {"same_document": "recorded"}, InputError, "does not record documents"),
        ({}, {"negativs": 3}, OptionError, "did you mean 'negatives'"),
        ({}, {"keep": 50}, OptionError, "there is no other set"),
        ({}, {"model": "m"}, OptionError, "model only applies to an index"),
        ({}, {"indexer_options": {"k1": 1}}, OptionError, "indexer options only apply to bm25"),
        ({}, {"fusion": "rrf"}, OptionError, "there is only one"),
        ({}, {"source": ["run.trec", "bm25"], "weights": [1.0]}, OptionError, "1 weight for 2 runs"),
        ({}, {"precision": "bf16"}, OptionError, "only applies to a checkpoint, an index or a re-ranker"),
    ],
)
def test_wrong_input_is_one_message_and_leaves_nothing(collection, monkeypatch, run, options, error, problem):
    monkeypatch.chdir(collection.folder)
    if run:
        collection.write_run(**run)
    for kind in ("vectors", "checkpoint"):
        (collection.folder / kind).mkdir()
        storage.write_manifest(collection.folder / kind, kind, command="encode", options={})
    rows = [{"query_id": "q1", "query": "question 1", "positives": [], "negatives": ["p1"]}]
    collection.before |= {
        collection.write("bare", rows),
        collection.folder / "vectors",
        collection.folder / "checkpoint",
    }
    with pytest.raises(error, match=problem):
        collection.mine(**options)
    assert collection.left_behind() == []


# --- checkpoints, indexes, a fusion of several, a re-ranker ---------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tiny_model, tiny_collection, tmp_path_factory):
    """Two checkpoints with their indexes, and a run of the first."""
    folder = tmp_path_factory.mktemp("tiny")
    data = str(tiny_collection.folder)
    for pooler in ("mean", "cls"):
        made = rk.train(tiny_model, data, corpus=data, pooler=pooler, output=folder / f"c-{pooler}", epochs=0)
        rk.encode(made, data, output=folder / f"v-{pooler}")
        rk.index(folder / f"v-{pooler}", output=folder / pooler)
    write_run(folder / "mean.trec", search([folder / "mean"], queries=read_queries(data), k=42))
    return folder


@pytest.fixture
def mine_tiny(tiny_collection, tmp_path):
    """Mine the tiny collection into a named file."""

    def mine(source, name="out", **options):
        options = {"corpus": tiny_collection.folder, "output": tmp_path / f"{name}.jsonl", "depth": 12, **options}
        return rk.mine_negatives(source, tiny_collection.folder, **options)

    return mine


def test_a_checkpoint_and_its_index_and_run_give_the_same_negatives(tiny, mine_tiny, tmp_path):
    """The encoded and indexed corpus is removed."""
    checkpoint, index, run = [
        list(mine_tiny(tiny / source, name))
        for name, source in zip("abc", ("c-mean", "mean", "mean.trec"), strict=True)
    ]
    assert checkpoint == index == run
    assert sum(len(row.negatives) for row in run) > 10 * len(run)
    ends = ("", ".audit.json", ".audit.html")
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.jsonl{end}" for name in "abc" for end in ends}


def test_interrupted_mining_reuses_its_vectors(tiny, mine_tiny, tmp_path, monkeypatch):
    import retrievalkit.indexing.corpus_encoding
    from retrievalkit.search.searcher import Searcher

    ask = Searcher.ask
    rows = list(mine_tiny(tiny / "c-mean", "whole"))

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Searcher, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine_tiny(tiny / "c-mean")
    assert not (tmp_path / "out.jsonl").exists()
    monkeypatch.setattr(Searcher, "ask", ask)
    monkeypatch.setattr(retrievalkit.indexing.corpus_encoding, "encode", interrupted)
    assert list(mine_tiny(tiny / "c-mean")) == rows
    assert {path.name.partition(".jsonl")[0] for path in tmp_path.iterdir()} == {"whole", "out"}


def test_several_sources_are_fused_like_in_search(tiny, tiny_collection, mine_tiny):
    places = [tiny / "mean", tiny / "cls"]
    mined = mine_tiny(places)
    assert mined.report["source"] == {"source": f"{places[0]} + {places[1]}", "kind": "fusion"}
    run = search(places, queries=read_queries(tiny_collection.folder), k=12)
    for row in mined:
        assert row.negatives == tuple(one for one, _ in run[row.query_id] if one not in row.positives)


def test_a_run_is_fused_with_its_weight(tiny, mine_tiny):
    """If the run has all the weight, its hits are mined."""
    both = [tiny / "mean.trec", tiny / "cls"]
    assert list(mine_tiny(both, weights=[1.0, 0.0])) == list(mine_tiny(tiny / "mean.trec")) != list(mine_tiny(both))


def test_the_command_line_takes_several_sources(tiny, tiny_collection, mine_tiny, tmp_path):
    words = ["mine-negatives", "--from", tiny / "mean", "--from", tiny / "cls", "--depth", 12, "--fusion", "linear"]
    words += ["--corpus", tiny_collection.folder, "--examples", tiny_collection.folder, "--weights", "0.3,0.7"]
    words += ["--set", "normalization=min_max", "--output", tmp_path / "out.jsonl", "--json"]
    ran = CliRunner().invoke(main, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    fusion = {"fusion": "linear", "weights": [0.3, 0.7], "normalization": "min_max"}
    assert json.loads(ran.output) == json.loads(
        json.dumps(mine_tiny([tiny / "mean", tiny / "cls"], "b", **fusion).report)
    )
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_rerankers_scores_are_those_of_rerank_apply(tiny, tiny_model, tiny_collection, mine_tiny, tmp_path):
    """Mining with the re-ranker and with a run of its scores drops the same hits: those above the median."""
    from retrievalkit.models.cross_encoder import CrossEncoder

    (tmp_path / "reranker").mkdir()
    CrossEncoder.create(tiny_model, max_length=48, seed=1).save(tmp_path / "reranker")
    data, reranked = tiny_collection.folder, tmp_path / "reranked.trec"
    run = rk.rerank(tmp_path / "reranker", tiny / "mean.trec", data, data, output=reranked)
    scores = sorted(score for hits in run.values() for _, score in hits)
    limit = (scores[len(scores) // 2] + scores[len(scores) // 2 + 1]) / 2
    one, two = (
        mine_tiny(tiny / "mean.trec", reranker=str(place), reranker_above=limit)
        for place in (tmp_path / "reranker", reranked)
    )
    assert list(one) == list(two)
    dropped = {row["name"]: row["dropped"] for row in one.report["filters"]}
    assert dropped == {row["name"]: row["dropped"] for row in two.report["filters"]}
    assert 0 < dropped["re-ranker"] < one.report["hits"]


@pytest.mark.skipif(not (SHARED / "squad-open").exists(), reason="RKIT_SHARED_DATA has no squad-open")
def test_answers_on_real_questions():
    """On SQuAD, hits that contain the answer are dropped at any rank, among them the positives."""
    folder = SHARED / "squad-open"
    examples = read_examples(folder).rows[:50]
    passages = [passage.id for _, passage in zip(range(200), open_corpus(folder), strict=False)]
    found = {row.query_id: [*row.positives, *(one for one in passages if one not in row.positives)] for row in examples}
    run = {query: [(one, -rank) for rank, one in enumerate(ids)] for query, ids in found.items()}
    mined = rk.mine_negatives(rk.Run(run), examples, corpus=folder, drop_answers=True, drop_positives=False)
    assert mined.report["filters"][0]["dropped"] >= 50
    assert all(set(row.positives).isdisjoint(row.negatives) for row in mined)
