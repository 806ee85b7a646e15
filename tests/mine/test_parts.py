"""Mining at full size: parts that an interrupted mining goes on behind, several sources, a re-ranker, the audit."""

from __future__ import annotations

import json
import os
import random
import signal

import markupsafe
import pytest
from click.testing import CliRunner

from killed_processes import forks, in_another_process, kill_at_call
from mining_by_name import mine_by_name
from retrievalkit import artifacts, oddities
from retrievalkit.cli import main
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import write_run
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError
from retrievalkit.mine import parts as mining
from retrievalkit.mine import program as mine
from retrievalkit.mine.audit import Audit, distribution

QUESTIONS = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Forty questions of a hundred passages, half of them with answers, and a run of thirty hits for each."""
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random("mining")
    words = [f"word{number}" for number in range(50)]
    rows = [{"_id": f"p{n}", "title": f"T{n // 5}", "text": " ".join(draw.choices(words, k=12))} for n in range(100)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = [
        Example(f"q{n}", f"question {n}", (f"p{n}",), (), (words[n],) if n % 2 else ()) for n in range(QUESTIONS)
    ]
    write_examples(folder / "train.jsonl", examples)
    hits = {one.query_id: draw.sample([row["_id"] for row in rows], 30) for one in examples}
    write_run(folder / "run.trec", {q: [(one, 30.0 - n) for n, one in enumerate(ids)] for q, ids in hits.items()})
    return folder


OPTIONS = {"drop_answers": True, "near_duplicates": 0.5, "same_document": "title", "skip_top": 2, "negatives": 9}


def mine_run(data, output, **options):
    places = {"corpus": data / "corpus.jsonl", "examples": data / "train.jsonl", "output": output}
    return mine_by_name(data / "run.trec", **(places | options))


def written(output):
    """The bytes of all that a mining writes."""
    return [path.read_bytes() for path in (output, mine.audit_file(output), mine.page_file(output))]


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of four questions, and a search of sixteen at a time."""
    monkeypatch.setattr(mining, "PART", 4)
    monkeypatch.setattr(mining, "searched_at_once", lambda depth: 16)


MOMENTS = {
    "before the first part": lambda: kill_at_call(mining.MinedParts, "write", 1),
    "after the fourth part, between two searches": lambda: kill_at_call(mining.MinedParts, "write", 4, after=True),
    "after the sixth part": lambda: kill_at_call(mining.MinedParts, "write", 6, after=True),
    "while a part is written": lambda: kill_at_call(os, "replace", 3),
    "while the examples are written": lambda: kill_at_call(mine, "write_examples", 1),
    "while the audit is written": lambda: kill_at_call(mine, "audit_page", 1),
}


@forks
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_mining_goes_on_and_ends_with_the_same_bytes(data, tmp_path, small_parts, moment):
    """Nothing else is left, and nothing was there before it was whole."""
    mine_run(data, tmp_path / "whole" / "out.jsonl", **OPTIONS)
    output = tmp_path / "killed" / "out.jsonl"

    def killed():
        MOMENTS[moment]()
        mine_run(data, output, **OPTIONS)

    assert in_another_process(killed) == -signal.SIGKILL
    assert not output.exists()
    mine_run(data, output, **OPTIONS)
    assert written(output) == written(tmp_path / "whole" / "out.jsonl")
    assert {path.name for path in output.parent.iterdir()} == {
        "out.jsonl",
        "out.jsonl.audit.json",
        "out.jsonl.audit.html",
    }


def test_parts_that_are_there_are_not_mined_again(data, tmp_path, small_parts, monkeypatch):
    """Of ten parts six are done; the second search is repeated, so that its questions keep their company."""
    write, searched = mining.MinedParts.write, []

    def interrupted(self, number, *rest):
        if number == 6:
            raise KeyboardInterrupt
        write(self, number, *rest)

    monkeypatch.setattr(mining.MinedParts, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine_run(data, tmp_path / "out.jsonl")
    monkeypatch.setattr(mining.MinedParts, "write", lambda self, *rest: (searched.append(rest[0]), write(self, *rest)))
    mine_run(data, tmp_path / "out.jsonl")
    assert searched == [6, 7, 8, 9]


@pytest.mark.parametrize(
    "change", [lambda text: text[:9], lambda text: text.replace("p1", "p2", 1)], ids=["cut", "altered"]
)
def test_a_part_that_was_changed_since_is_mined_again(data, tmp_path, small_parts, monkeypatch, change):
    mine_run(data, tmp_path / "whole" / "out.jsonl", **OPTIONS)
    write = mining.MinedParts.write

    def interrupted(self, number, *rest):
        if number == 3:
            raise KeyboardInterrupt
        write(self, number, *rest)

    monkeypatch.setattr(mining.MinedParts, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine_run(data, tmp_path / "out.jsonl", **OPTIONS)
    monkeypatch.undo()
    monkeypatch.setattr(mining, "PART", 4)
    (part,) = tmp_path.rglob("000001.json")
    text = part.read_text()
    part.write_text(change(text))
    assert part.read_text() != text
    mine_run(data, tmp_path / "out.jsonl", **OPTIONS)
    assert written(tmp_path / "out.jsonl") == written(tmp_path / "whole" / "out.jsonl")


def test_parts_of_another_mining_are_not_used(data, tmp_path, small_parts, monkeypatch):
    """With another option all is mined anew."""
    write = mining.MinedParts.write

    def interrupted(self, number, *rest):
        write(self, number, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(mining.MinedParts, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine_run(data, tmp_path / "out.jsonl")
    monkeypatch.setattr(mining.MinedParts, "write", write)
    mine_run(data, tmp_path / "out.jsonl", skip_top=3)
    mine_run(data, tmp_path / "other.jsonl", skip_top=3)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "other.jsonl").read_bytes()


@pytest.mark.parametrize("sample", ["top", "random"])
def test_the_size_of_parts_changes_nothing(data, tmp_path, monkeypatch, sample):
    """The outcome does not hang on what is in memory at once."""
    options = {**OPTIONS, "sample": sample}
    mine_run(data, tmp_path / "one" / "out.jsonl", **options)
    monkeypatch.setattr(mining, "PART", 3)
    monkeypatch.setattr(mining, "searched_at_once", lambda depth: 9)
    mine_run(data, tmp_path / "two" / "out.jsonl", **options)
    assert written(tmp_path / "one" / "out.jsonl") == written(tmp_path / "two" / "out.jsonl")


def test_the_order_of_questions_does_not_matter(data, tmp_path):
    """Each question has the same negatives, and the audit the same sample and counts."""
    rows = read_examples(data / "train.jsonl").rows
    rows += [Example("again", "question 3", ("p99",))]
    audits, found = [], []
    for name in ("straight", "back"):
        write_examples(tmp_path / f"{name}.jsonl", rows if name == "straight" else rows[::-1])
        output = tmp_path / f"{name}.out"
        options = {**OPTIONS, "negatives": 3, "sample": "random"}
        audits.append(mine_run(data, output, examples=tmp_path / f"{name}.jsonl", **options))
        found.append({row.query_id: row for row in read_examples(output).rows})
    assert found[0] == found[1]
    for name in ("hits", "left", "sample", "scores", "ranks_of_negatives", "ranks_of_positives", "warnings"):
        assert audits[0][name] == audits[1][name]


def test_another_seed_draws_other_negatives_and_another_sample(data, tmp_path):
    """The seed that is in the options."""
    one = mine_run(data, tmp_path / "1.jsonl", negatives=3, sample="random", seed=1)
    two = mine_run(data, tmp_path / "2.jsonl", negatives=3, sample="random", seed=2)
    assert (tmp_path / "1.jsonl").read_bytes() != (tmp_path / "2.jsonl").read_bytes()
    assert [row["query_id"] for row in one["sample"]] != [row["query_id"] for row in two["sample"]]


# --- the audit -----------------------------------------------------------------------------------------------------


def test_the_audit_counts_every_hit_once(data, tmp_path):
    """Hits = dropped by each filter + left; kept are those that were written."""
    audit = mine_run(data, tmp_path / "out.jsonl", **OPTIONS)
    assert audit["hits"] == 30 * QUESTIONS
    assert audit["left"] == audit["hits"] - sum(one["dropped"] for one in audit["filters"])
    rows = read_examples(tmp_path / "out.jsonl").rows
    kept = sum(len(row.negatives) for row in rows)
    assert sum(one["count"] for one in audit["ranks_of_negatives"]) == kept == audit["scores"]["negatives"]["count"]
    assert sum(audit["scores"]["negatives"]["bins"]) == kept
    assert audit["questions_whose_positive_was_found"] == sum(one["count"] for one in audit["ranks_of_positives"])
    assert audit["negatives"] == distribution(
        {n: sum(len(row.negatives) == n for row in rows) for n in {len(row.negatives) for row in rows}}
    )


def test_the_sample_is_what_was_written(data, tmp_path):
    """Twenty questions, each with its positive and its first three negatives."""
    audit = mine_run(data, tmp_path / "out.jsonl", **OPTIONS)
    rows = {row.query_id: row for row in read_examples(tmp_path / "out.jsonl").rows}
    assert len(audit["sample"]) == 20
    for asked in audit["sample"]:
        row = rows[asked["query_id"]]
        assert [one["document_id"] for one in asked["first_negatives"]] == list(row.negatives[:3])
        assert asked["positive"]["document_id"] in row.positives
        assert asked["negatives"] == len(row.negatives)


def test_dropped_hits_are_shown_with_the_reason_and_the_positive(data, tmp_path):
    """So that a person can judge the filter."""
    audit = mine_run(data, tmp_path / "out.jsonl", **OPTIONS)
    shown = {one["name"]: one["examples"] for one in audit["filters"]}
    assert all(len(rows) <= 5 for rows in shown.values())
    first = shown["document of a positive"][0]
    assert first["reason"].startswith("document 't")
    assert first["positive"]["title"] == first["title"]
    assert (data / "corpus.jsonl").read_text().count(first["text"])


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"depth": 1, "drop_positives": False}, "did not find their positive"),
        ({"negatives": 2}, "from the first 3 ranks"),
        ({"skip_top": 29, "drop_answers": True}, "have no negative"),
        ({"skip_top": 20}, "More than half of all hits were dropped by: rank"),
        ({"skip_top": 2, "negatives": 1, "drop_positives": False}, "score above their question's positive"),
    ],
)
def test_the_audit_warns(data, tmp_path, options, warning):
    """Of what a person would want to know."""
    audit = mine_run(data, tmp_path / "out.jsonl", **options)
    assert any(warning in one for one in audit["warnings"]), audit["warnings"]
    assert str(markupsafe.escape(warning)) in mine.page_file(tmp_path / "out.jsonl").read_text()


def test_the_page_holds_what_the_audit_says_and_nothing_is_taken_for_html(data, tmp_path):
    """The funnel, each filter, the sample."""
    rows = read_examples(data / "train.jsonl").rows
    write_examples(tmp_path / "odd.jsonl", [Example("q0", "<b>bold</b> & more", ("p0",)), *rows[1:]])
    audit = mine_run(data, tmp_path / "out.jsonl", examples=tmp_path / "odd.jsonl", **OPTIONS)
    page = mine.page_file(tmp_path / "out.jsonl").read_text()
    assert "<b>bold" not in page
    assert all(one["name"] in page for one in audit["filters"])
    assert all(f">{row['query_id']}" in page or row["query_id"] in page for row in audit["sample"])
    assert page.count("<svg") == 1


def test_an_audit_is_the_sum_of_its_parts(data, tmp_path):
    """Adding nothing changes nothing."""
    audit = Audit(["a"], questions=1)
    audit.add(Audit(["a"], questions=1).as_dict())
    assert audit.as_dict() == Audit(["a"], questions=1).as_dict()


# --- several sources -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tiny_model, tiny_collection, tmp_path_factory):
    """Two indexes of two checkpoints, and a run of the first."""
    from fused_runs import search
    from retrievalkit.indexing.build import build_index
    from retrievalkit.indexing.encoding import encode
    from retrievalkit.training.train import train

    folder = tmp_path_factory.mktemp("tiny")
    for pooler in ("mean", "cls"):
        places = {"corpus": str(tiny_collection.folder), "examples": str(tiny_collection.folder)}
        model, made = str(tiny_model), folder / f"c-{pooler}"
        train(model, **places, pooler=pooler, output=made, epochs=0)
        encode(made, tiny_collection.folder, side="document", output=folder / f"v-{pooler}")
        build_index(folder / f"v-{pooler}", indexer="flat", output=folder / pooler)
    write_run(folder / "mean.trec", search([folder / "mean"], queries=read_queries(tiny_collection.folder), k=42))
    return folder


def mine_tiny(tiny_collection, source, output, **options):
    places = {"corpus": tiny_collection.folder, "examples": tiny_collection.folder, "output": output}
    return mine_by_name(source, **places, depth=12, **options)


@pytest.mark.precision
def test_several_sources_are_fused_as_search_does(tiny, tiny_collection, tmp_path):
    """The hits are those of the fused run."""
    from fused_runs import search

    places = [tiny / "mean", tiny / "cls"]
    audit = mine_tiny(tiny_collection, places, tmp_path / "a.jsonl")
    assert audit["source"] == {"source": f"{places[0]} + {places[1]}", "kind": "fusion"}
    run = search(places, queries=read_queries(tiny_collection.folder), k=12)
    for row in read_examples(tmp_path / "a.jsonl").rows:
        assert row.negatives == tuple(one for one, _ in run[row.query_id] if one not in row.positives)


@pytest.mark.precision
def test_a_run_takes_part_in_fusion_and_weights_count(tiny, tiny_collection, tmp_path):
    """With all the weight on the run, its hits are mined."""
    fusion = {"fusion": "rrf", "weights": [1.0, 0.0]}
    mine_tiny(tiny_collection, [tiny / "mean.trec", tiny / "cls"], tmp_path / "a.jsonl", **fusion)
    mine_tiny(tiny_collection, tiny / "mean.trec", tmp_path / "b.jsonl")
    mine_tiny(tiny_collection, [tiny / "mean.trec", tiny / "cls"], tmp_path / "c.jsonl")
    rows = {name: read_examples(tmp_path / f"{name}.jsonl").rows for name in "abc"}
    assert rows["a"] == rows["b"] != rows["c"]


@pytest.mark.precision
def test_the_command_line_takes_several_sources(tiny, tiny_collection, tmp_path):
    """--from twice, with a way to fuse and weights."""
    arguments = ["mine-negatives", "--from", str(tiny / "mean"), "--from", str(tiny / "cls"), "--depth", "12"]
    arguments += ["--corpus", str(tiny_collection.folder), "--examples", str(tiny_collection.folder)]
    arguments += ["--fusion", "linear", "--weights", "0.3,0.7", "--set", "normalization=min_max"]
    ran = CliRunner().invoke(main, [*arguments, "--output", str(tmp_path / "out.jsonl"), "--json"])
    assert ran.exit_code == 0, ran.output
    fusion = {"fusion": "linear", "weights": [0.3, 0.7], "normalization": "min_max"}
    mine_tiny(tiny_collection, [tiny / "mean", tiny / "cls"], tmp_path / "b.jsonl", **fusion)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


# --- a re-ranker ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reranker(tiny_model, tmp_path_factory):
    """An untrained cross-encoder."""
    from retrievalkit.model.cross_encoder import CrossEncoder

    folder = tmp_path_factory.mktemp("reranker")
    CrossEncoder.create(tiny_model, max_length=48, seed=1).save(folder)
    return folder


@pytest.mark.precision
def test_a_rerankers_scores_are_those_of_rerank_apply(tiny, tiny_collection, reranker, tmp_path):
    """Mining with the folder drops what mining with a run of its scores drops: those above the median."""
    from retrievalkit.rerank import rerank_run

    rerank_run(
        reranker,
        run=tiny / "mean.trec",
        queries=tiny_collection.folder,
        corpus=tiny_collection.folder,
        output=tmp_path / "reranked.trec",
    )
    scores = sorted(float(line.split()[4]) for line in (tmp_path / "reranked.trec").read_text().splitlines())
    limit = (scores[len(scores) // 2] + scores[len(scores) // 2 + 1]) / 2
    options = {"reranker_above": limit}
    one = mine_tiny(tiny_collection, tiny / "mean.trec", tmp_path / "a.jsonl", reranker=str(reranker), **options)
    reranked = str(tmp_path / "reranked.trec")
    two = mine_tiny(tiny_collection, tiny / "mean.trec", tmp_path / "b.jsonl", reranker=reranked, **options)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    dropped = {row["name"]: row["dropped"] for row in one["filters"]}["re-ranker"]
    assert 0 < dropped < one["hits"]
    assert [row["dropped"] for row in one["filters"]] == [row["dropped"] for row in two["filters"]]


# --- wrong input ---------------------------------------------------------------------------------------------------


def refused(folder, error, problem, **options):
    """A mining is refused, and leaves nothing."""
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(error, match=problem):
        mine_by_name(**{"output": folder / "out.jsonl", **options})
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_retriever_is_no_reranker(data, tmp_path):
    """The message says what it is."""
    artifacts.write_manifest(tmp_path, "checkpoint", command="train", options={})
    places = {"source": data / "run.trec", "corpus": data / "corpus.jsonl", "examples": data / "train.jsonl"}
    refused(tmp_path, ArtifactError, "is a retriever", **places, reranker=str(tmp_path), reranker_above=0.0)
    refused(tmp_path, InputError, "cannot load the model", **places, reranker="nowhere", reranker_above=0.0)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"near_duplicates": 2}, OptionError, "near_duplicates is 2"),
        ({"same_document": "["}, OptionError, "nor a regular expression"),
        ({"reranker_above": 1}, OptionError, "Give a re-ranker with --reranker"),
        ({"fusion": "rrf"}, OptionError, "there is only one"),
        ({"precision": "bf16"}, OptionError, "is for a checkpoint, an index or a re-ranker, but there is none"),
        ({"source": []}, InputError, "nothing to mine from"),
        ({"source": ["bm25", "bm25"]}, OptionError, "given twice"),
    ],
)
def test_options_that_make_no_sense_are_refused(data, tmp_path, options, error, problem):
    """Before anything is searched."""
    places = {"source": data / "run.trec", "corpus": data / "corpus.jsonl", "examples": data / "train.jsonl"}
    refused(tmp_path, error, problem, **(places | options))


def test_examples_without_positives_are_refused(data, tmp_path):
    """Questions alone are mined for with positives=retrieved, and only with answers."""
    rows = [{"query_id": "q1", "query": "question 1", "positives": [], "negatives": ["p1"]}]
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"source": data / "run.trec", "corpus": data / "corpus.jsonl", "examples": tmp_path / "bare.jsonl"}
    refused(tmp_path, DataError, "bare.jsonl.*positive", **places)
    refused(tmp_path, InputError, "positives 'retrieved' needs the answers", **places, positives="retrieved")


@pytest.mark.parametrize("wanted", [{"drop_answers": True}, {"positives": "retrieved"}], ids=str)
def test_questions_without_answers_drop_nothing_for_them(data, tmp_path, capsys, wanted):
    """One recipe serves collections with answers and without: the file is the same, a note says so, strict refuses."""
    rows = [json.loads(line) | {"answers": []} for line in (data / "train.jsonl").read_text().splitlines()]
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"source": data / "run.trec", "corpus": data / "corpus.jsonl", "examples": tmp_path / "bare.jsonl"}
    with oddities.collected():
        mine_by_name(output=tmp_path / "with.jsonl", **places, **wanted)
    assert "No question has answers" in capsys.readouterr().err
    mine_by_name(output=tmp_path / "without.jsonl", **places)
    assert (tmp_path / "with.jsonl").read_bytes() == (tmp_path / "without.jsonl").read_bytes()
    with oddities.collected(strict=True), pytest.raises(InputError, match="No question has answers"):
        mine_by_name(output=tmp_path / "strict.jsonl", **places, **wanted)


@pytest.mark.precision
def test_wrong_weights_are_refused(tiny, tiny_collection, tmp_path):
    """Their number, and what is no number."""
    places = {"corpus": tiny_collection.folder, "examples": tiny_collection.folder}
    fusion = {"weights": [1.0]}
    refused(tmp_path, OptionError, "1 weights for 2", source=[tiny / "mean", tiny / "cls"], **fusion, **places)
    fusion = {"weights": "a,b"}
    refused(tmp_path, OptionError, "neither numbers", source=[tiny / "mean", tiny / "cls"], **fusion, **places)
    with pytest.raises(OptionError, match="weights"):
        mine.parse_settings(["a", "b"], {"weights": [None]})
