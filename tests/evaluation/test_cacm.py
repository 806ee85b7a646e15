"""Evaluation and comparison by command line on a classic collection, with trec_eval beside it."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from click.testing import CliRunner
from markupsafe import escape

from places import SHARED
from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import write_run

CACM = SHARED / "cacm"
pytestmark = pytest.mark.skipif(not CACM.is_dir(), reason="RKIT_SHARED_DATA has no cacm")


def words(text):
    return set(re.findall(r"[a-z]{3,}", text.lower()))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Files: the words that query and document share, all alike (with many equal scores), and rare ones more."""
    folder = tmp_path_factory.mktemp("cacm")
    held = {passage.id: words(f"{passage.title} {passage.text}") for passage in open_corpus(CACM)}
    common = Counter(word for some in held.values() for word in some)
    for name, weight in (("alike", lambda _: 1.0), ("rare", lambda word: 1 / common[word])):
        run = {}
        for query in read_queries(CACM):
            wanted = {word: weight(word) for word in words(query.text) if word in common}
            scores = {one: sum(wanted[word] for word in some & wanted.keys()) for one, some in held.items()}
            run[query.id] = sorted(((one, s) for one, s in scores.items() if s), key=lambda hit: -hit[1])[:200]
        write_run(folder / f"{name}.trec", run)
    return folder


def rkit(*arguments):
    ran = CliRunner().invoke(main, [str(one) for one in arguments])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_a_run_in_another_form_has_the_same_values(runs):
    for form, ties in (("msmarco", "run"), ("beir", "document_id")):
        rkit("convert", runs / "rare.trec", runs / f"rare.{form}.gz", "--form", form)
        options = ("--qrels", CACM, "--metrics", "nDCG@10 RR@10 R@100", "--ties", ties)
        assert rkit("evaluate", runs / f"rare.{form}.gz", *options) == rkit(
            "evaluate", runs / "rare.trec", *options[:4]
        )


def test_a_comparison_tells_what_was_won(runs):
    texts = ("--queries", CACM, "--corpus", CACM, "--metrics", "nDCG@10 AP", "--examples", "2")
    rkit("compare", runs / "alike.trec", runs / "rare.trec", "--qrels", CACM, *texts, "--no-plot", "-o", runs / "out")
    found = json.loads((runs / "out" / "comparison.json").read_text())
    means = {(one["metric"], one["run"]): one["mean"] for one in found["means"]}
    assert means["nDCG@10", "rare"] > means["nDCG@10", "alike"]
    won = found["differences"][0]["largest"][0]
    assert won["value"] > won["against"]
    assert {hit["title"] for hit in won["rankings"]["rare"]["first"]}
    page = (runs / "out" / "compare.html").read_text()
    assert str(escape(won["text"][:40])) in page
    assert page.count("<details>") == 4
