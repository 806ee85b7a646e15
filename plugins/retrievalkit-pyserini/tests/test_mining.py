"""Mining with BM25 on the command line: alone, with options, and fused with a run."""

import json

import pytest
from click.testing import CliRunner

from retrievalkit.cli import main


@pytest.fixture(scope="module")
def data(tmp_path_factory, passages):
    """The passages, and fifty examples whose questions are the last six words of a passage."""
    folder = tmp_path_factory.mktemp("mining")
    rows = [{"_id": passage.id, "title": passage.title, "text": passage.text} for passage in passages]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = [
        {
            "query_id": f"q{passage.id}",
            "query": f"{number} {' '.join(passage.text.split()[-6:])}",
            "positives": [passage.id],
        }
        for number, passage in enumerate(passages[:50])
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row | {"negatives": []}) + "\n" for row in examples))
    return folder


def mine(data, *arguments, output):
    places = ["--corpus", data / "corpus.jsonl", "--examples", data / "train.jsonl", "--output", output]
    ran = CliRunner().invoke(main, ["mine-negatives", *map(str, arguments), *map(str, places), "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout), [json.loads(line) for line in output.read_text().splitlines()]


def test_negatives_of_bm25_resemble_the_positive(data, tmp_path, passages):
    """They share words with the question; copies of the positive are dropped."""
    audit, rows = mine(data, "--from", "bm25", "--depth", 50, "--near-duplicates", 0.9, output=tmp_path / "out.jsonl")
    texts = {passage.id: passage.text for passage in passages}
    assert audit["source"] == {"source": "bm25", "kind": "bm25"}
    assert len(rows) == 50
    for row in rows:
        assert row["negatives"]
        (positive,) = row["positives"]
        assert all(texts[negative] != texts[positive] for negative in row["negatives"])
        assert set(texts[row["negatives"][0]].lower().split()) & set(row["query"].lower().split())
    assert {path.name for path in tmp_path.iterdir()} == {
        f"out.jsonl{end}" for end in ("", ".audit.json", ".audit.html")
    }


def test_options_reach_the_index_and_a_run_is_fused(data, tmp_path):
    """If the run has all the weight, only its hits are mined; k1 and b change the hits of BM25."""
    run = tmp_path / "run.trec"
    run.write_text(
        "".join(f"qp{n:04d} Q0 p{(n + place) % 400:04d} 1 {9 - place} t\n" for n in range(50) for place in range(5))
    )
    both = ["--from", "bm25", "--from", run, "--depth", 5]
    _, rows = mine(data, *both, "--weights", "0,1", "--set", "drop_positives=false", output=tmp_path / "a.jsonl")
    assert rows[3]["negatives"] == [f"p{place:04d}" for place in range(3, 8)]
    plain = mine(data, "--from", "bm25", output=tmp_path / "b.jsonl")[1]
    flat = mine(data, "--from", "bm25", "--set", "indexer.b=0", "--set", "indexer.k1=0", output=tmp_path / "c.jsonl")[1]
    assert plain != flat
