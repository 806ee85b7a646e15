"""Tables as text in several formats, and counts with their nouns."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.reporting.table import csv_table, latex_table, markdown_table, text_table
from retrievalkit.reporting.terminal import counted

ROWS = [["run", "nDCG@10"], ["bm25_k1", "0.4871"], ["a|b", "1.0"]]


def test_columns_of_text_are_aligned():
    assert text_table(ROWS, right=[1]).splitlines() == [
        "run      nDCG@10",
        "bm25_k1   0.4871",
        "a|b          1.0",
    ]
    assert text_table([]) == markdown_table([]) == csv_table([]) == ""


def test_markdown_escapes_characters_that_end_a_cell():
    assert markdown_table(ROWS, right=[1]).splitlines() == [
        "| run | nDCG@10 |",
        "| --- | ---: |",
        "| bm25_k1 | 0.4871 |",
        "| a\\|b | 1.0 |",
    ]
    assert markdown_table([["a\nb"]]).splitlines() == ["| a b |", "| --- |"]


def test_latex_escapes_its_special_characters():
    assert latex_table([["a_1", "50 %"], ["x & y", "$2^{3}$"]], right=[1]).splitlines() == [
        "\\begin{tabular}{lr}",
        "\\toprule",
        "a\\_1 & 50 \\% \\\\",
        "\\midrule",
        "x \\& y & \\$2\\textasciicircum{}\\{3\\}\\$ \\\\",
        "\\bottomrule",
        "\\end{tabular}",
    ]


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=2, max_size=2), min_size=1))
def test_csv_is_read_back_unchanged(rows):
    assert list(csv.reader(io.StringIO(csv_table(rows)))) == rows


@pytest.mark.parametrize("plural", ["queries", "query texts", "passages", "indexes", "processes", "cases"])
def test_a_count_of_one_is_in_the_singular(plural):
    singular = {"queries": "query", "indexes": "index", "processes": "process"}.get(plural, plural[:-1])
    assert (counted(1, plural), counted(0, plural)) == (f"1 {singular}", f"0 {plural}")
    assert counted(1200, plural) == f"1,200 {plural}"
