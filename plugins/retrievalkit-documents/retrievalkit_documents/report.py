"""The report of a sync: files read, and changes made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrievalkit.contracts.commands import counted, printable
from retrievalkit.errors import shortlist
from retrievalkit_documents.folder import Difference
from retrievalkit_documents.source import counts_of

_SHOWN = 20


@dataclass
class Synced:
    """The changes of one collection.

    Attributes:
        index: The collection, or the index.
        folder: The folder that it follows.
        documents: The documents that differ from the last sync.
        read: Number of files read.
        skipped: Paths of files that are not in the indexes, by reason.
        left: Content of the files read that is not in the indexes: kind, such as "images" -> number in each file.
        total: Number of passages in the indexes.
        added: Number of new passages.
        changed: Number of passages whose text changed.
        removed: Number of passages removed.
        unchanged: Number of unchanged passages.
        encoded: Number of texts encoded.
        lost: Number of tokens of the files read that the model does not read: 0, unless a letter has too many; None for
            a text index.
        seconds: Duration.
    """

    index: str
    folder: str
    documents: Difference
    read: int
    skipped: Mapping[str, Sequence[str]]
    left: Mapping[str, Sequence[int]] = field(default_factory=dict)
    total: int | None = None
    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    encoded: int = 0
    lost: int | None = None
    seconds: float = 0.0

    def count(self, added: int, changed: int, removed: int, unchanged: int, encoded: int) -> None:
        """Count the changes of an index; with several indexes, those of the first with any changes."""
        self.encoded += encoded
        if not (self.added or self.changed or self.removed):
            self.added, self.changed, self.removed, self.unchanged = added, changed, removed, unchanged

    @property
    def is_dry(self) -> bool:
        """True for a dry run."""
        return self.total is None

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        documents, passages = vars(self.documents), ("added", "changed", "removed", "unchanged")
        counts: dict[str, Any] = {"passages": {name: getattr(self, name) for name in passages}}
        counts |= {"encoded": self.encoded, "tokens_cut": self.lost}
        return {
            "index": self.index,
            "folder": self.folder,
            "read": self.read,
            "documents": documents,
            **({} if self.is_dry else counts),
            "skipped": {reason: list(paths) for reason, paths in self.skipped.items()},
            "not_read": {kind: sum(counts) for kind, counts in self.left.items()},
            "seconds": round(self.seconds, 3),
        }

    @property
    def summary(self) -> str:
        """The report as a table; for a dry run, the documents by name."""
        known = self.documents
        moved = [f"{old} -> {new}" for old, new in known.renamed]
        listed = {"added": known.added, "changed": known.changed, "removed": known.removed, "renamed": moved}
        counts = [f"{len(paths):,} {name}" for name, paths in listed.items() if paths]
        counts += [f"{known.unchanged:,} unchanged"] if known.unchanged else []
        rows = {"files": f"{self.read:,} read", "documents": ", ".join(counts)}
        if self.is_dry:
            rows |= {name: _named(paths, _SHOWN) for name, paths in listed.items() if paths}
        else:
            names = ("added", "changed", "removed", "unchanged")
            kinds = [f"{value:,} {name}" for name in names if (value := getattr(self, name))]
            rows["passages"] = ", ".join(kinds)
            lost = "" if self.lost is None else f", {counted(self.lost, 'tokens')} cut"
            rows["encoded"] = f"{counted(self.encoded, 'texts')}{lost}"
        rows["seconds"] = f"{self.seconds:.1f}"
        if self.left:
            rows["not read"] = counts_of(self.left)
        title = f"{self.folder} -> {self.index}{' (dry run: nothing was changed)' if self.is_dry else ''}"
        lines = [title, *(f"  {name:<11}{value}" for name, value in rows.items())]
        reasons = sorted(self.skipped.items(), key=lambda item: -len(item[1]))
        if reasons:
            lines.append(f"  {'skipped':<11}{counted(sum(len(paths) for _, paths in reasons), 'files')}")
        lines += [
            f"    {len(paths):>7,}  {printable(reason)}: {_named(paths, 3)}" for reason, paths in reasons[:_SHOWN]
        ]
        rest = sum(len(paths) for _, paths in reasons[_SHOWN:])
        return "\n".join([*lines, *([f"    {rest:>7,}  for other reasons (--json lists them)"] if rest else [])])


def _named(paths: Sequence[str], most: int) -> str:
    """Return the first few paths, one per line."""
    return shortlist(map(printable, paths), most)
