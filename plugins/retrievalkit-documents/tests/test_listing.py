"""Excluded files: `.rkitignore` and `--exclude` follow the rules of Git, and later syncs keep them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess

import pytest
from document_folders import CITIES, write
from retrievalkit_documents.collection import Collection
from retrievalkit_documents.listing import documents_below, is_excluded

import retrievalkit as rk
from retrievalkit.errors import DataError, OptionError

LIMITS = {".txt": 1e9, ".md": 1e9}
NAMES = ("a.txt", "b.txt", "ab.md", "docs", "a", "c.txt")
PARTS = (*NAMES, "*", "**", "?", "*.txt", "a*", "[ab].txt", "[!a]", "\\a", "d*s")


def plant(choice, folder, depth=0):
    """Create files and folders, some with an ignore file."""
    for name in choice.sample(NAMES, choice.randint(2, 5)):
        if depth < 3 and "." not in name:
            (folder / name).mkdir()
            plant(choice, folder / name, depth + 1)
        elif "." in name:
            (folder / name).write_text("x")
    if not depth or choice.random() < 0.3:
        lines = [
            choice.choice(("", "", "!"))
            + choice.choice(("", "/"))
            + "/".join(choice.choices(PARTS, k=choice.randint(1, 3)))
            + choice.choice(("", "/", " ", "\\ "))
            for _ in range(choice.randint(1, 4))
        ]
        for ending in ("rkit", "git"):
            (folder / f".{ending}ignore").write_text("# comment\n\n" + "\n".join(lines))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
def test_the_same_files_are_excluded_as_by_git(tmp_path):
    """In random trees with nested ignore files and negation."""
    command = ["git", "ls-files", "--others", "--exclude-per-directory=.gitignore", "*.txt", "*.md"]
    for seed in range(60):
        folder = tmp_path / str(seed)
        folder.mkdir()
        plant(random.Random(seed), folder)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        listed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()
        assert [name for name, _ in documents_below(folder, LIMITS, {})] == sorted(listed), seed


def test_hidden_files_packages_and_caches_are_excluded_unless_they_are_included_by_name(tmp_path):
    """Of an excluded folder, only its own name is listed."""
    for name in (".git/x.md", "node_modules/p/x.md", "a/__pycache__/x.txt", "env/x.txt", ".github/x.md", "a/x.md"):
        write(tmp_path / name, "text")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    left_out: dict[str, list[str]] = {}
    assert [name for name, _ in documents_below(tmp_path, LIMITS, left_out)] == ["a/x.md"]
    packages = ["env/", "node_modules/", "a/__pycache__/"]
    assert left_out == {"hidden": [".git/", ".github/"], "packages and caches": packages}
    include = ("*", "!*/", "!*.md", "!.github/", "!/node_modules")
    names = [name for name, _ in documents_below(tmp_path, LIMITS, {}, include)]
    assert names == [".github/x.md", "a/x.md", "node_modules/p/x.md"]


def test_ignore_files_that_cannot_be_read_are_errors(tmp_path):
    """Because documents that they exclude would be indexed."""
    write(tmp_path / "a.txt", "text")
    for content in (b"*\\", b"x\n!\n", b"*a*a*a*a*a*a", b"#" * (2 << 20)):
        (tmp_path / ".rkitignore").write_bytes(content)
        with pytest.raises(DataError, match=r"\.rkitignore"):
            documents_below(tmp_path, LIMITS, {})
    for create in (os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/hosts", path)):
        (tmp_path / ".rkitignore").unlink()
        create(tmp_path / ".rkitignore")
        with pytest.raises(DataError, match="not a regular file"):
            documents_below(tmp_path, LIMITS, {})
        (tmp_path / ".rkitignore").rmdir() if create is os.mkdir else None
        (tmp_path / ".rkitignore").touch() if create is os.mkdir else None
    with pytest.raises(OptionError, match="not valid"):
        documents_below(tmp_path, LIMITS, {}, ["!"])


def test_a_sync_keeps_its_exclusions_and_removes_documents_that_become_excluded(sync, docs, tmp_path):
    write(docs / "drafts" / "old.md", "A draft.")
    assert "drafts/old.md" in sync("--exclude", "*.docx")["documents"]["added"]
    (docs / ".rkitignore").write_text("drafts/\n")
    report = sync()
    assert (report["documents"]["removed"], report["read"]) == (["drafts/old.md"], 0)
    assert report["skipped"] == {
        "excluded by exclude": [next(name for name in CITIES_BY_KIND if name.endswith(".docx"))],
        "excluded by .rkitignore": ["drafts/"],
    }
    report = rk.sync(docs, tmp_path / "index", exclude=("*.html", "/rome.*"))[0]
    assert report.documents.removed == ["prague.html", "rome.txt"]
    assert Collection(tmp_path / "index").sync().documents.unchanged == 3
    report = sync("--exclude", "")
    assert report["documents"]["added"] == ["prague.html", "rome.txt"]
    assert rk.Collection(tmp_path / "index").exclude == ("",)


CITIES_BY_KIND = [f"{name}{kind}" for name, kind in zip(CITIES, (".txt", ".md", ".html", ".docx", ".txt"), strict=True)]


def test_changes_of_excluded_files_concern_no_sync(docs):
    """Changes of an ignore file do."""
    (docs / ".rkitignore").write_text("drafts/")
    write(docs / "drafts" / "a.txt", "x")
    names = (
        "rome.txt",
        ".rkitignore",
        "a.tmp.txt",
        "drafts/a.txt",
        ".hidden/.rkitignore",
        ".git/x",
        "drafts",
        "gone/a",
    )
    excluded = {name: is_excluded(docs, docs / name, ("*.tmp.txt",)) for name in names}
    assert [name for name in names if not excluded[name]] == ["rome.txt", ".rkitignore", "gone/a"]
