"""What killed processes leave is found and removed; what a living one holds is not."""

from __future__ import annotations

import pytest

from retrievalkit import artifacts
from retrievalkit.artifacts import leftovers, outputs


def ours(path):
    path.mkdir()
    artifacts.write_manifest(path, "vectors", command="encode", options={})
    return path


def found(folder):
    return {one.path.name: one for one in leftovers.find_leftovers([folder], temporary=False)}


def test_leftovers_are_found_and_removed_and_nothing_else(tmp_path):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "options.json").write_text("{}")
    (tmp_path / ".partial.run.trec").touch()
    (tmp_path / ".out.lock").write_text("1 host\n")
    (tmp_path / ".mine.lock").write_text("not ours")
    (tmp_path / ".photos.old").mkdir()
    one = found(tmp_path)
    assert set(one) == {".out.partial", ".partial.run.trec", ".out.lock"}
    assert "--resume goes on with it" in one[".out.partial"].made_by
    assert all(map(leftovers.remove, one.values()))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.lock", ".photos.old"]


def test_what_a_command_holds_is_left_alone(tmp_path):
    with artifacts.write_folder(tmp_path / "out") as staging:
        assert found(tmp_path) == {}
        assert staging.exists()


def test_a_folder_that_lost_its_name_gets_it_back(tmp_path):
    """From `rkit clean`, and from the next command that writes there."""
    ours(tmp_path / "out").rename(tmp_path / ".out.old")
    (one,) = found(tmp_path).values()
    assert one.kind == "lost"
    assert leftovers.remove(one)
    assert (tmp_path / "out" / "manifest.json").exists()
    (tmp_path / "out").rename(tmp_path / ".out.old")
    with pytest.raises(RuntimeError), artifacts.write_folder(tmp_path / "out", overwrite=True):
        assert (tmp_path / "out" / "manifest.json").exists()
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_refused_rename_within_an_output_names_the_file(tmp_path, monkeypatch):
    """What it was complete with is of no use: the whole folder is written again."""

    def refuse(source, target):
        raise OSError(116, "Stale file handle", str(source), None, str(target))

    monkeypatch.setattr(outputs.os, "replace", refuse)
    with (
        pytest.raises(OSError, match=r"Stale file handle: .*\.partial\.part") as caught,
        artifacts.write_folder(tmp_path / "out") as staging,
    ):
        artifacts.write_json(staging / "part", 1)
    assert artifacts.was_written(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [18, 16, 39, 116])
def test_a_refused_rename_loses_neither_the_old_folder_nor_the_new_one(tmp_path, monkeypatch, number):
    """EXDEV, EBUSY, ENOTEMPTY and ESTALE, as file servers answer."""
    ours(tmp_path / "out")
    original = type(tmp_path).rename

    def refuse(self, target):
        if self.name == ".out.partial":
            raise OSError(number, "refused")
        return original(self, target)

    monkeypatch.setattr(outputs.Path, "rename", refuse)
    with (
        pytest.raises(
            artifacts.outputs.RetrievalkitError, match=r"was complete, but could not get its name \(refused\)"
        ),
        artifacts.write_folder(tmp_path / "out", overwrite=True) as staging,
    ):
        (staging / "new").touch()
    assert (tmp_path / "out" / "manifest.json").exists()
    assert (tmp_path / ".out.partial" / "new").exists()
