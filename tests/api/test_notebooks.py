"""HTML of objects in notebooks, and runs, evaluations and examples as tables of other libraries."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser

import pandas
import pytest

import retrievalkit as rk
from retrievalkit.errors import InputError

ATTACK = '</style></div><script>alert(1)</script><img src=x onerror="alert(1)">'
VOID = ("br", "img", "meta")


class Reader(HTMLParser):
    """Parser that collects the elements of HTML, and those that are not closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.marked = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["mark"]:
            self.marked.append(data)


def read(shown):
    html = shown._repr_html_()
    found = Reader(html)
    assert found.open == []
    assert "script" not in found.seen
    assert "http" not in html
    return found


def test_hits_have_their_words_marked(late):
    found = read(late.search("which people speak Spanish", k=2))
    assert found.seen.count("li") == 2
    assert "People" in found.marked
    assert "nothing found" in rk.Hits("x", [])._repr_html_()


def test_texts_of_strangers_are_texts():
    hit = rk.Hit(1, 0.5, ATTACK, ATTACK, ATTACK, ((2, 5),), (), ATTACK)
    shown = read(rk.Hits(ATTACK, [hit]))
    assert "img" not in shown.seen
    run = rk.Run({ATTACK: {ATTACK: 1.0}, "q": {"d": 1.0}}, ATTACK)
    assert "img" not in read(run).seen
    read(run.evaluate({ATTACK: {ATTACK: 1}}))


def test_every_object_has_html(dense, both, model, tiny_collection):
    run = dense.search(tiny_collection.folder, k=5, split="test")
    other = rk.Run({query: dict(hits[1:]) for query, hits in run.items()}, "other")
    compared = rk.compare([run, other], tiny_collection.qrels)
    assert read(compared).seen.count("img") == 2
    for one in (run, run.evaluate(tiny_collection.qrels), compared):
        read(one)
    for one in (run, dense, both, model, model.encode_queries(["x"])):
        assert "\n" not in repr(one)
    assert list(compared.to_pandas()["run"]) == ["dense", "other"]
    assert list(run.evaluate(tiny_collection.qrels, "RR@10").to_pandas().columns) == ["RR@10"]


def test_a_run_comes_from_dicts_pairs_and_tables():
    wanted = {"q": [("a", 2.0), ("b", 1.0), ("c", 1.0)]}
    table = pandas.DataFrame({"qid": ["q"] * 3, "docno": ["b", "a", "c"], "score": [1, 2, 1]})
    for data in ({"q": {"b": 1, "a": 2, "c": 1}}, {"q": [("b", 1.0), ("a", 2.0), ("c", 1.0)]}, table):
        assert rk.Run(data) == wanted
    run = rk.Run(wanted, "mine")
    assert rk.Run(run.to_dict()) == rk.Run(run.to_pandas()) == rk.Run(run.to_arrow()) == run
    assert (pickle.loads(pickle.dumps(run)), pickle.loads(pickle.dumps(run)).name) == (run, "mine")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"q": 5}, "the hits of query 'q' are 5"),
        ({"q": {"d": "high"}}, "the hits of query 'q' are .*Give a dict document -> score"),
        ({"q": [("d", 1), ("d", 2)]}, "query 'q' has a document twice"),
        ([{"query_id": "q", "score": 1}], "row 1 of the run: the row has no document_id"),
        (5, "cannot read run from int"),
    ],
)
def test_a_wrong_run_is_refused(data, message):
    with pytest.raises(InputError, match=message):
        rk.Run(data)
