"""What finds the hits that are mined: BM25, a checkpoint, an index, a run, or several of these, whose hits are fused.

A checkpoint and BM25 are made into an index on the way, in a folder beside the output. What is built there is named
after what it is made of, so that a mining which was interrupted goes on with it, and another one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.negatives import Question
from retrievalkit.data.runs import Run, read_run
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import ArtifactError, InputError, OptionError, nearest
from retrievalkit.precision import Precision

Search = Callable[[Sequence[Question], int], Run]
"""Gives the best hits of questions, so many of each, by the id of the question's query."""

_KNOWN = "--from takes bm25, a checkpoint (rkit train), an index (rkit index) or a run file (rkit search)."


@dataclass(frozen=True)
class Sources:
    """What finds passages.

    Attributes:
        names: "bm25", checkpoints, indexes and runs.
        model: For an index whose checkpoint has been moved: where it is.
        indexer_options: Of the indexer `bm25` that is built for "bm25".
        fusion: Of several: how their hits are made one list, as `rkit search` does ("rrf" where not given), and the
            options `weights` and `normalization` of that.
        precision: What a checkpoint computes in.
    """

    names: Sequence[str]
    model: str | None = None
    indexer_options: Mapping[str, Any] = field(default_factory=dict)
    fusion: Mapping[str, Any] = field(default_factory=dict)
    precision: Precision = "auto"

    @property
    def kinds(self) -> list[str]:
        """The kind of each.

        Raises:
            InputError: One is none of these.
        """
        return [source_kind(name) for name in self.names]

    @property
    def kind(self) -> str:
        """One word for what they are."""
        return self.kinds[0] if len(self.names) == 1 else "fusion"

    @property
    def title(self) -> str:
        """What they are called in the audit."""
        return " + ".join(self.names)

    def check(self) -> None:
        """Refuse sources that are none, and options without effect.

        Raises:
            InputError: Names the source, or the option.
        """
        if not self.names:
            msg = f"there is nothing to mine from. {_KNOWN}"
            raise InputError(msg)
        kinds = self.kinds
        if self.indexer_options and "bm25" not in kinds:
            msg = (
                f"indexer options are for --from bm25, and '{self.names[0]}' is of the kind {kinds[0]}. Leave them out."
            )
            raise OptionError(msg)
        if self.model is not None and "index" not in kinds:
            msg = f"model is for an index, and '{self.names[0]}' is of the kind {kinds[0]}. Leave it out."
            raise OptionError(msg)
        if self.fusion and len(self.names) == 1:
            msg = (
                f"{', '.join(self.fusion)} says how several sources are fused, and there is one. Leave it out, or give "
                "another --from."
            )
            raise OptionError(msg)
        if self.model is not None and "run" in kinds and kinds.count("index") > 1:
            msg = f"model '{self.model}' is for one index, and several are searched beside a run. Leave it out."
            raise OptionError(msg)
        if len(set(self.names)) < len(self.names):
            msg = f"a source is given twice ({self.title}). Give each once; --weights says how much it counts."
            raise OptionError(msg)

    def fingerprint(self) -> str:
        """Of all that decides what they find, less the corpus."""
        prints = [self._fingerprint(name, kind) for name, kind in zip(self.names, self.kinds, strict=True)]
        return artifacts.fingerprint_value([prints, self.model, dict(self.fusion), self.precision])

    def _fingerprint(self, name: str, kind: str) -> Any:
        if kind == "bm25":
            return ["bm25", dict(self.indexer_options)]
        if kind == "run":
            return fingerprint(name)
        manifest = artifacts.read_manifest(name, kind)
        return manifest.get("fingerprint") or artifacts.fingerprint_value(manifest)

    def open(self, corpus: Corpus, work: Path, questions: Sequence[Question]) -> Search:
        """Make them ready to be searched; what has to be built goes into the folder, unless it is there already.

        Args:
            corpus: The passages.
            work: The folder.
            questions: All that will be searched for.
        """
        named = dict(zip(self.names, self.kinds, strict=True))
        folders = [str(self._built(name, kind, corpus, work)) for name, kind in named.items() if kind != "run"]
        runs = [_run_search(name, questions) for name, kind in named.items() if kind == "run"]
        if not runs:
            return _index_search(folders, self.model, self.fusion)
        searches = [*runs, *(_index_search([folder], self.model, {}) for folder in folders)]
        return searches[0] if len(searches) == 1 else _fused(self._in_order(searches), self.fusion)

    def _in_order(self, searches: Sequence[Search]) -> list[Search]:
        """Searches of runs and then of the others, in the order of the names, which is that of the weights."""
        kinds = self.kinds
        waiting = iter(searches)
        order = sorted(range(len(kinds)), key=lambda place: kinds[place] != "run")
        return [search for _, search in sorted(zip(order, waiting, strict=True), key=lambda pair: pair[0])]

    def _built(self, name: str, kind: str, corpus: Corpus, work: Path) -> Path:
        if kind == "index":
            return Path(name)
        from retrievalkit.encode import encode
        from retrievalkit.index import build_index

        made_of = [self._fingerprint(name, kind), corpus.fingerprint(), self.precision]
        place = artifacts.fingerprint_value(made_of)[:12]
        index, options = work / f"{kind}-{place}", dict(self.indexer_options) if kind == "bm25" else {}
        if artifacts.kind_of(index) == "index":
            return index
        if kind == "bm25":
            build_index(corpus.source, indexer="bm25", output=index, options=options)
            return index
        vectors = work / f"vectors-{place}"
        if artifacts.kind_of(vectors) is None:
            encode(name, corpus.source, side="document", output=vectors, precision=self.precision)
        build_index(str(vectors), indexer="flat", output=index)
        return index


def source_kind(source: str | Path) -> str:
    """What finds the passages: "bm25", "checkpoint", "index" or "run".

    Raises:
        InputError: The source is none of these.
    """
    path = Path(source)
    if str(source) == "bm25":
        return "bm25"
    if path.is_file():
        return "run"
    kind = artifacts.kind_of(path)
    if kind in ("checkpoint", "index"):
        return str(kind)
    if path.is_dir():
        what = f"a {kind} folder, which is indexed first (rkit index)" if kind else "a folder that rkit did not write"
        msg = f"'{source}' is {what}. {_KNOWN}"
        raise ArtifactError(msg)
    near = [str(one) for one in path.parent.iterdir()] if path.parent.is_dir() else []
    close = nearest(str(path), [*near, "bm25"])
    msg = f"'{source}' does not exist{f'; did you mean {close!r}?' if close else '.'} {_KNOWN}"
    raise InputError(msg)


def _run_search(path: str, questions: Sequence[Question]) -> Search:
    run = read_run(path)
    if questions and not any(name in run for one in questions for name in one.ids):
        msg = (
            f"none of {len(questions)} questions is in the run '{path}': the examples have query ids "
            f"like '{questions[0].query.id}', the run like '{next(iter(run))}'. Is it a run of these examples?"
        )
        raise InputError(msg)

    def search(questions: Sequence[Question], depth: int) -> Run:
        found = {one.query.id: next((run[name] for name in one.ids if name in run), []) for one in questions}
        return {query_id: hits[:depth] for query_id, hits in found.items()}

    return search


def _index_search(folders: Sequence[str], model: str | None, fusion: Mapping[str, Any]) -> Search:
    from retrievalkit import search as program

    def search(questions: Sequence[Question], depth: int) -> Run:
        queries = [one.query for one in questions]
        found: Run = program.search(folders, queries=queries, k=depth, model=model, **fusion)
        return found

    return search


def _fused(searches: Sequence[Search], fusion: Mapping[str, Any]) -> Search:
    from retrievalkit.fusion import fuse
    from retrievalkit.search import FUSION_DEPTH

    options = {("method" if name == "fusion" else name): value for name, value in fusion.items()}

    def search(questions: Sequence[Question], depth: int) -> Run:
        runs = [one(questions, max(depth, FUSION_DEPTH)) for one in searches]
        return fuse(runs, depth=depth, **options)

    return search
