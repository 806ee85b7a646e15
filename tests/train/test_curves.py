"""The page of a training shows its loss, terms, learning rate and dev measure; it has no part in the fingerprint."""

from __future__ import annotations

import json

from retrievalkit.artifacts import NOT_WEIGHTS
from retrievalkit.train.curves import read_series, write_curves

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


def test_without_a_log_there_is_no_page(tmp_path):
    write_curves(tmp_path)
    assert list(tmp_path.iterdir()) == []
