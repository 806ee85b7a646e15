"""Counts with their nouns."""

from __future__ import annotations

import pytest

from retrievalkit.reporting.counts import counted


@pytest.mark.parametrize("plural", ["queries", "query texts", "passages", "indexes", "processes", "cases"])
def test_a_count_of_one_is_in_the_singular(plural):
    singular = {"queries": "query", "indexes": "index", "processes": "process"}.get(plural, plural[:-1])
    assert (counted(1, plural), counted(0, plural)) == (f"1 {singular}", f"0 {plural}")
    assert counted(1200, plural) == f"1,200 {plural}"
