"""Tables as text: every form holds the same cells."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.reporting.table import csv_table, latex_table, markdown_table, text_table

ROWS = [["run", "nDCG@10"], ["bm25_k1", "0.4871"], ["a|b", "1.0"]]


def test_columns_of_text_are_aligned():
    assert text_table(ROWS, right=[1]).splitlines() == [
        "run      nDCG@10",
        "bm25_k1   0.4871",
        "a|b          1.0",
    ]
    assert text_table([]) == markdown_table([]) == csv_table([]) == ""


def test_markdown_escapes_what_would_end_a_cell():
    assert markdown_table(ROWS, right=[1]).splitlines() == [
        "| run | nDCG@10 |",
        "| --- | ---: |",
        "| bm25_k1 | 0.4871 |",
        "| a\\|b | 1.0 |",
    ]
    assert markdown_table([["a\nb"]]).splitlines() == ["| a b |", "| --- |"]


def test_latex_escapes_its_own_signs():
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
def test_csv_is_read_back_as_it_was(rows):
    assert list(csv.reader(io.StringIO(csv_table(rows)))) == rows
