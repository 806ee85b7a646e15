"""Untrusted JSON files: their size, nesting, types and names."""

import json
import os
from dataclasses import dataclass

import pytest

from retrievalkit import storage
from retrievalkit.errors import ArtifactError

DO = "Write it again."


@dataclass(frozen=True)
class Form:
    """A form to check against."""

    count: int
    names: dict[str, list[str]]
    pair: tuple[int, float] = (0, 0.0)


def read(path, **options):
    return storage.read_document(path, Form, do=DO, **options)


def test_a_document_is_read_as_its_form(tmp_path):
    """Entries that the form lacks are allowed: a later version may have added them."""
    (tmp_path / "a").write_text('{"count": 3, "names": {"a": ["b"]}, "pair": [1, 2], "more": null}')
    assert read(tmp_path / "a") == Form(3, {"a": ["b"]}, (1, 2.0))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", r"is not valid JSON"),
        (b"\xff\xfe\xfa", r"is not valid JSON \("),
        ("[" * 5_000 + "]" * 5_000, r"is not valid JSON .*recursion"),
        ('{"a": ' * 300 + "1" + "}" * 300, r"is not valid JSON .*recursion"),
        ("9" * 5_000, r"is not valid JSON .*out of range"),
        ('{"count": NaN}', r"is not valid JSON"),
        ('{"count": 1e400}', r"is not valid JSON"),
        ("[]", r"is damaged: it is \[\], but should be an object"),
        ('{"names": {}}', "is damaged: count is missing"),
        ('{"count": "3", "names": {}}', "is damaged: count is '3', but should be a valid integer"),
        ('{"count": true, "names": {}}', "is damaged: count is True, but should be a valid integer"),
        ('{"count": 3, "names": {"a": [1]}}', r"is damaged: names\.a\.0 is 1, but should be a valid string"),
        ('{"count": 3, "names": {"\\u001b[31m\\n": 1}}', r"is damaged: names\.\\x1b\[31m\\n is 1, but should be a"),
        ('{"count": 3, "names": {"\\ud800": []}}', r"is not valid JSON"),
    ],
)
def test_a_damaged_document_is_one_line_that_names_file_place_and_value(tmp_path, text, problem):
    path = tmp_path / "a"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ArtifactError, match=rf"a' {problem}.*{DO}$") as caught:
        read(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_document_is_a_regular_file_of_bounded_size(tmp_path):
    """A pipe does not block, and a device does not fill the memory."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text(json.dumps({"count": 1, "names": {}}))
    for place, problem in ((tmp_path / "pipe", "not a regular file"), ("/dev/zero", "not a regular file")):
        with pytest.raises(ArtifactError, match=problem):
            read(place)
    with pytest.raises(ArtifactError, match="more than 10 bytes"):
        read(tmp_path / "large", most=10)
    with pytest.raises(ArtifactError, match=r"nowhere' cannot be read \(No such file"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["", ".", "..", "/etc/passwd", "../a", "a/../../b", "a//b", "a\0b", "..\\a", "C:a"])
def test_a_name_that_may_lead_out_of_a_folder_is_refused(tmp_path, name):
    """Names are checked for all systems, as folders are copied between systems."""
    with pytest.raises(ArtifactError, match="leads out of the folder"):
        storage.inside(tmp_path, name)


def test_a_link_that_leads_out_of_a_folder_is_refused(tmp_path):
    """Links within the folder, and a folder that is a link, are allowed."""
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "file").touch()
    (tmp_path / "secret").touch()
    (tmp_path / "folder" / "out").symlink_to("../secret")
    (tmp_path / "folder" / "up").symlink_to("..")
    (tmp_path / "folder" / "in").symlink_to("sub/file")
    (tmp_path / "linked").symlink_to("folder")
    for folder in (tmp_path / "folder", tmp_path / "linked"):
        assert storage.inside(folder, "sub/file") == folder / "sub" / "file"
        assert storage.inside(folder, "in") == folder / "in"
        for name in ("out", "up/secret"):
            with pytest.raises(ArtifactError, match="leads out of the folder"):
                storage.inside(folder, name)
