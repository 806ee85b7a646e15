"""Tables of spreadsheet programs: separators, decimal commas, headers, encodings; the same in sync and `documents:`."""

from __future__ import annotations

import pytest
from document_folders import write
from retrievalkit_documents import tables
from retrievalkit_documents.tables import read_table
from retrievalkit_documents.text import UnreadableError

import retrievalkit as rk
from retrievalkit.data.corpus import Columns, open_corpus

_PRICES = ["Zebra | price: 1,50", "Okapi | price: 2,00"]


@pytest.mark.parametrize(
    ("source", "texts", "field"),
    [
        ("id;text;price\n1;a, b;1,50\n2;c;1.200,00\n", ["a, b", "c"], {"price": "1.50"}),
        ("sep=;\nname;price\nZebra;1,50\nOkapi;2,00\n", [f"name: {text}" for text in _PRICES], {"price": "1.50"}),
        ("Name;price, EUR, net\nZebra;1,50\n", ["Name: Zebra | price, EUR, net: 1,50"], {"price, EUR, net": "1.50"}),
        ('name,price\n"Zebra","1,500"\n', ["name: Zebra | price: 1,500"], {"price": "1,500"}),
        ("1,The brown fox,2.5\n2,jumps,3.5\n", ["1 | The brown fox | 2.5", "2 | jumps | 3.5"], {}),
        ("0,5;1,5\n1,5;2,5\n", ["0,5 | 1,5", "1,5 | 2,5"], {}),
        ("Country,2019\nFrance,1\n", ["Country: France | 2019: 1"], {"2019": "1"}),
        ("Report\n\nname,stock\nZebra,1\n", ["Report", "name: Zebra | stock: 1"], {"stock": "1"}),
        ("name,name,\na,b,c\n", ["name: a | name (2): b | column 3: c"], {"name (2)": "b"}),
        ("name|note\nZebra|a, b\n", ["name: Zebra | note: a, b"], {}),
        ("Käse;Maß\nBrie;groß\n".encode("cp1252"), ["Käse: Brie | Maß: groß"], {"Maß": "groß"}),
        ("id\ttext\n1\tgrüße\n".encode("utf-16"), ["grüße"], {}),
    ],
)  # fmt: skip
def test_tables_of_spreadsheet_programs_are_read(tmp_path, source, texts, field):
    path = tmp_path / "table.csv"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    rows, note = read_table(path, Columns())
    assert ([row.text for row in rows], note) == (texts, "")
    assert not field or field in [{name: row.fields.get(name) for name in field} for row in rows]


def test_a_table_beyond_the_limits_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_ROWS", 3)
    for source in ("id,text\n" + "".join(f"{row},x\n" for row in range(5)), "1,a\n" * 5):
        (tmp_path / "a.csv").write_text(source)
        with pytest.raises(UnreadableError, match="more than 3 rows"):
            read_table(tmp_path / "a.csv", Columns())


def test_documents_and_sync_read_the_same_rows(tmp_path, tiny_model):
    docs = tmp_path / "docs"
    write(docs / "a.csv", "Rome lies on the Tiber")
    write(docs / "b.txt", "A text.")
    (docs / "c.csv").write_text("name;price\nZebra;1,50\n")
    rk.sync(docs, tmp_path / "index", model=tiny_model)
    synced = [(row.id.rpartition("#")[0], row.text, row.fields) for row in open_corpus(tmp_path / "index/corpus.jsonl")]
    assert [(row.id, row.text, row.fields) for row in open_corpus(f"documents:{docs}")] == synced
    assert len(synced) == 4
