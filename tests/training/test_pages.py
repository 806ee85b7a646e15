"""The page of a training shows loss, terms, learning rate and dev measure, and is not fingerprinted."""

from __future__ import annotations

import json

from retrievalkit.storage import NOT_WEIGHTS
from retrievalkit.training.pages import read_series, write_curves

LOG = [
    {"step": 2, "loss": 3.0, "mlm": 3.0, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 0.5},
    {"step": 3, "dev_average_rank": 7.5, "epoch": 1.0},
    {"step": 4, "loss": 2.25, "mlm": 2.25, "grad_norm": 1.5, "learning_rate": 5e-5, "epoch": 1.0},
]


def test_every_logged_value_is_drawn_over_the_steps(tmp_path):
    (tmp_path / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    series = read_series(tmp_path / "training.jsonl")
    assert series["loss"] == [(2, 3.0), (4, 2.25)]
    assert series["dev_average_rank"] == [(3, 7.5)]
    write_curves(tmp_path)
    page = (tmp_path / "training.html").read_text()
    for part in ("Loss and its terms", "Dev questions: average rank", "Learning rate", "mlm", "2.25"):
        assert part in page
    assert page.count("<svg") == 4
    assert "training.html" in NOT_WEIGHTS


def test_pace_and_memory_have_a_separate_page(tmp_path):
    """Also after resuming from step 2: a repeated step is drawn once."""
    (tmp_path / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    (tmp_path / "logs").mkdir()
    speeds = [(2, 40.0), (4, 50.0), (4, 60.5)]
    lines = [{"step": step, "texts_per_second": speed, "memory_gib": 1.5} for step, speed in speeds]
    (tmp_path / "logs/pace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_series(tmp_path / "logs/pace.jsonl")["texts_per_second"] == [(2, 40.0), (4, 60.5)]
    write_curves(tmp_path)
    page = (tmp_path / "logs/pace.html").read_text()
    assert page.count("<svg") == 2
    assert "50.2500" in page
    assert "../training.html" in page
    assert "logs/pace.html" in (tmp_path / "training.html").read_text()


def test_without_a_log_there_is_no_page(tmp_path):
    write_curves(tmp_path)
    assert list(tmp_path.iterdir()) == []
