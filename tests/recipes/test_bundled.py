"""Bundled recipes: their command lines and options are valid, and small recipes run."""

import json

import pytest
import retrievalkit_testing as testing

from paper_settings import PAPERS, load, ours
from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.recipes import recipe
from retrievalkit.recipes.files import FOLDER, find_recipe, read_recipe, recipes_in
from retrievalkit.recipes.run import plan, run

NAMES = tuple(recipes_in(FOLDER))
TABLES = [name for name in NAMES if "table" in name.rpartition("/")[2] or "four_stage" in name]


@pytest.fixture
def need():
    """Skip a test if plugins are missing."""
    known = {kind: registry.names(kind) for kind in ("pooler", "loss", "indexer")}
    commands = {*main.built_in, *registry.names("command"), "rerank train", "rerank apply"}

    def need(loaded):
        for step in loaded.steps:
            if step.command not in commands:
                pytest.skip(f"no installed plugin provides the command '{step.command}'")
            for kind, names in known.items():
                wanted = step.options.get(kind)
                if wanted and not set(str(wanted).split("+")) <= set(names):
                    pytest.skip(f"no installed plugin provides the {kind} '{wanted}'")

    return need


@pytest.mark.parametrize("name", NAMES)
def test_command_lines_and_options_of_a_recipe_are_valid(name, tmp_path, need):
    loaded = load(name)
    need(loaded)
    assert plan(loaded, tmp_path, main.with_all_commands())
    assert loaded.description
    assert find_recipe(f"recipes/{name}.yaml").samefile(loaded.file)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_has_references_and_their_source(name):
    rows = load(name).rows
    assert any(row.expected for row in rows)
    # Tables of a paper have references in each row; with sets, maybe only for the mean. The four stages add rows.
    whole = "four_stage" not in name and not read_recipe(find_recipe(name)).get("sets")
    for row in rows if whole else [row for row in rows if row.expected]:
        assert all(0 < value < 1 for (_, name), value in row.expected.items() if name != "perplexity"), row.name
        assert row.source.startswith(("MLR", "Aggretriever", "MVR", "CoT-MAE")), row.name


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith("squad/") and "_table" in name])
def test_a_small_table_has_the_references_of_its_table(name):
    paper, _, table = name.removeprefix("squad/").partition("_")
    large = load(f"{paper}/{table}_squad" if name == "squad/mlr_table2" else f"{paper}/{table}")
    known = {row.name: row.expected for row in large.rows}
    for row in load(name).rows:
        assert row.expected == {key: value for key, value in known[row.name].items() if key[0] == "figures"}


@pytest.mark.parametrize("name", PAPERS)
def test_a_recipe_has_the_hyper_parameters_of_its_paper(name):
    recipe = load(name)
    for step, settings in PAPERS[name].items():
        used = ours(recipe, step)
        assert used, step
        for setting, paper in settings.items():
            mine = {options.get(setting) for options in used}
            assert mine == (paper if isinstance(paper, set) else {paper}), f"{step}: {setting}"


def test_every_table_of_a_paper_has_its_hyper_parameters_listed():
    folders = ("mlr/table", "aggretriever/table", "mvr/table", "cotmae/table")
    tables = {name for name in NAMES if name.startswith(folders)}
    assert tables - PAPERS.keys() == set()


def test_enough_hits_are_mined_to_drop_positives():
    for mined in ours(load("mlr/table4"), "mined"):
        assert mined["depth"] > mined["negatives"] == 100


def test_beir_has_the_sets_of_the_papers_and_cqadupstack_counts_as_a_single_set():
    rows = {row.name: row for row in load("beir5").rows}
    assert rows["beir5"].of == ("nfcorpus", "fiqa", "arguana", "scidocs", "scifact")
    fourteen, fifteen = (
        {row.name.rpartition("-")[2]: row.of for row in load(name).rows if row.of} for name in ("beir", "mlr/table5")
    )
    assert len(fourteen["cqadupstack"]) == len(fifteen["cqadupstack"]) == 12
    assert (len(fourteen["beir14"]), len(fifteen["beir15"])) == (14, 15)
    other = {name.rpartition("-")[2] for name in fifteen["beir15"]} ^ set(fourteen["beir14"])
    assert other == {"arguana", "quora", "trec_news", "robust04", "bioasq"}


def test_each_recipe_is_in_the_readme():
    path = find_recipe("quickstart").parent / "README.md"
    if not path.exists():
        pytest.skip("the README is not installed")
    text = path.read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in text] == []


@pytest.fixture
def tiny(tiny_collection, tmp_path):
    """Settings for the tiny collection and a tiny model with its vocabulary head."""
    return {
        "data": str(tiny_collection.folder),
        "examples": str(tiny_collection.folder),  # so that there are no BM25 negatives, for which Java would start
        "model": testing.tiny_model(tmp_path / "model"),
        "negatives": 0,
        "epochs": 1,
        "limit": 16,
        "batch_size": 8,
        "document_length": 48,
        "k": 20,
    }


def results(name, output, variants, values):
    run(recipe.load_recipe(name, values, variants), output, cli=main.with_all_commands())
    return {row["variant"]: row for row in json.loads((output / "results.json").read_text())["rows"]}


def test_a_small_table_of_the_open_domain_runs(tiny, tmp_path, need):
    tiny |= {"pair": [1, 2], "tokens": 2}
    need(recipe.load_recipe("squad/mlr_table2", tiny))
    rows = results("squad/mlr_table2", tmp_path / "out", ["dual_encoder", "mlr_pair"], tiny)
    figures = rows["mlr_pair"]["figures"]
    assert figures.keys() == {"nDCG@10", "RR@10", "R@50", "top5", "top20", "top100"}
    assert figures["top5"]["reference"] == 0.4247
    assert 0 < figures["top5"]["ours"] < 1
    assert "against_baseline" in rows["mlr_pair"]
    assert (tmp_path / "out/mlr_pair/seed-42/model/manifest.json").exists()


def test_a_small_table_of_two_stages_runs(tiny, tmp_path, need):
    tiny |= {"pooler_options": {"top_k": 16}, "mined_depth": 10, "negatives": 1, "cotmae": tiny["model"]}
    need(recipe.load_recipe("squad/cotmae_table4", tiny))
    rows = results("squad/cotmae_table4", tmp_path / "out", ["full", "finetune_spr"], tiny)
    assert list(rows) == ["full", "finetune_spr"]
    assert all(0 < row["figures"]["nDCG@10"]["ours"] < 1 for row in rows.values())
    assert (tmp_path / "out/full/seed-42/stage2.jsonl").exists()


@pytest.mark.slow
def test_the_four_stages_run(tiny, tmp_path, need):
    tiny |= {"pooler_options": {"top_k": 16}, "mined_depth": 10, "negatives": 1, "distilled_negatives": 2}
    tiny |= {"base": tiny.pop("model"), "pretrain_length": 24, "pretrain_epochs": 1, "pretrain_batch_size": 8}
    tiny |= {"reranker_epochs": 1, "reranker_batch_size": 4, "reranker_negatives": 2, "reranked_depth": 10}
    need(recipe.load_recipe("squad/cotmae_v2_four_stage", tiny))
    rows = results(
        "squad/cotmae_v2_four_stage", tmp_path / "out", ["first", "full*", "half_dimensions"], tiny | {"half": 8}
    )
    assert list(rows) == ["first", "full", "full_reranked", "full_distilled", "half_dimensions"]
    assert all(0 < row["figures"]["nDCG@10"]["ours"] < 1 for row in rows.values())
    taught = (tmp_path / "out/full_distilled/seed-42/taught.jsonl").read_text().splitlines()
    assert all(json.loads(line)["teacher"] for line in taught)
