"""An option that is given twice is refused, or adds up: no value is lost in silence."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from retrievalkit.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "a.trec", "--qrels", "x", "--qrels", "y"], "--qrels takes one value, and 'x' and 'y' are given"),
        (["search", "i", "--query", "a", "-o", "x", "--output", "y"], "--output takes one value, and 'x' and 'y'"),
        (["rerank", "apply", "r", "--k", "3", "--k", "4"], "--k takes one value, and '3' and '4' are given"),
    ],
)
def test_a_repeated_option_is_refused(words, message):
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 2
    assert message in ran.output


def test_metrics_add_up(tmp_path):
    (tmp_path / "run.trec").write_text("q1 Q0 d2 1 2.0 x\nq1 Q0 d1 2 1.0 x\n")
    (tmp_path / "qrels").write_text("q1 0 d1 1\n")
    words = ["evaluate", str(tmp_path / "run.trec"), "--qrels", str(tmp_path / "qrels")]
    ran = CliRunner().invoke(main, [*words, "--metrics", "RR@10", "--metrics", "P@1 R@2"])
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["RR@10", "P@1", "R@2"]
