from retrievalkit.data.sources import open_source


def test_each_file_is_a_passage(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(f"text of {name}")
    records = open_source(f"my_name:{tmp_path}").records("passages")
    assert [record.fields["id"] for record in records] == ["a", "b"]
