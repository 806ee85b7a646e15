"""Ids of a folder: the lines of a file, by row and back."""

from __future__ import annotations

from retrievalkit.data import ids as module
from retrievalkit.data.ids import Ids


def test_rows_of_ids(tmp_path, monkeypatch):
    """Known ids in any order, unknown ones, and different ids of one hash."""
    (tmp_path / "ids.txt").write_text("".join(f"d{row}\n" for row in range(50)))
    ids = Ids(tmp_path / "ids.txt")
    assert ids.rows(["d7", "x", "d49", "d0", "d7", ""]).tolist() == [7, -1, 49, 0, 7, -1]
    assert ids.rows([]).tolist() == []
    monkeypatch.setattr(module, "hash", lambda one: len(one), raising=False)
    assert Ids(tmp_path / "ids.txt").rows(["d7", "d48", "x9", "d49", "d4", "zzz"]).tolist() == [7, 48, -1, 49, 4, -1]
