"""Ids of a folder: the lines of a file by row, and the rows of ids."""

from __future__ import annotations

import numpy as np
import pytest

from retrievalkit.data.vectors import Ids
from retrievalkit.data.vectors import ids as module


def test_rows_of_ids(tmp_path, monkeypatch):
    """Known ids in any order, unknown ids, and different ids with the same hash."""
    (tmp_path / "ids.txt").write_text("".join(f"d{row}\n" for row in range(50)))
    ids = Ids(tmp_path / "ids.txt")
    assert ids.rows(["d7", "x", "d49", "d0", "d7", ""]).tolist() == [7, -1, 49, 0, 7, -1]
    assert ids.rows([]).tolist() == []
    monkeypatch.setattr(module, "hash", lambda text: len(text), raising=False)
    assert Ids(tmp_path / "ids.txt").rows(["d7", "d48", "x9", "d49", "d4", "zzz"]).tolist() == [7, 48, -1, 49, 4, -1]


@pytest.mark.parametrize("batch_bytes", [1, 7, 1 << 20])
def test_ids_of_rows(tmp_path, monkeypatch, batch_bytes):
    monkeypatch.setattr(module, "_BATCH_BYTES", batch_bytes)
    lines = ["a", "bcd", "e" * 300, "0", "caf\u00e9", "z\0", "\u65e5\u672c", "last one"]
    (tmp_path / "ids.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    ids = Ids(tmp_path / "ids.txt")
    for rows in ([0], [3, 1, 0, 1], [4, 5, 6, 7], [7, 2, 3], []):
        assert ids.take(np.array(rows)) == [lines[row] for row in rows]
    assert list(ids) == ids[:] == lines
    assert ids[-1] == "last one"
