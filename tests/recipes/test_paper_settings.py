"""The recipes of the papers' tables have the papers' hyper-parameters."""

import pytest

from paper_settings import PAPERS, load, ours
from retrievalkit.recipes.files import bundled_recipes

PAPERS_FOLDERS = ("mlr/table", "aggretriever/table", "mvr/table", "cotmae/table")


@pytest.mark.parametrize("name", PAPERS)
def test_a_recipe_has_the_hyper_parameters_of_its_paper(name):
    recipe = load(name)
    for step, settings in PAPERS[name].items():
        found = ours(recipe, step)
        assert found, step
        for setting, paper in settings.items():
            mine = {one.get(setting) for one in found}
            assert mine == (paper if isinstance(paper, set) else {paper}), f"{step}: {setting}"


def test_every_table_of_a_paper_has_its_hyper_parameters_listed():
    tables = {name for name in bundled_recipes() if name.startswith(PAPERS_FOLDERS)}
    assert tables - PAPERS.keys() == set()


def test_enough_negatives_are_left_when_positives_are_taken_out():
    for mined in ours(load("mlr/table4"), "mined"):
        assert mined["depth"] > mined["negatives"] == 100


def test_beir_5_are_the_five_sets_of_aggretriever():
    rows = {row.name: row for row in load("beir5").rows}
    assert rows["beir5"].of == ("nfcorpus", "fiqa", "arguana", "scidocs", "scifact")


def test_beir_14_and_15_count_the_forums_of_cqadupstack_as_one_set():
    fourteen, fifteen = (
        {row.name.rpartition("-")[2]: row.of for row in load(name).rows if row.of} for name in ("beir", "mlr/table5")
    )
    assert len(fourteen["cqadupstack"]) == len(fifteen["cqadupstack"]) == 12
    assert (len(fourteen["beir14"]), len(fifteen["beir15"])) == (14, 15)
    other = {one.rpartition("-")[2] for one in fifteen["beir15"]} ^ set(fourteen["beir14"])
    assert other == {"arguana", "quora", "trec_news", "robust04", "bioasq"}
