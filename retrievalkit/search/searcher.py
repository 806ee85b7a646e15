"""What is searched together: indexes and runs, opened, and the encoders of their queries.

Each index is given its queries as its own checkpoint encodes them (another one is refused), or as texts. What they find
is put together by query; scores of documents that only another one found are asked for where an index can say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrievalkit import artifacts, registry
from retrievalkit.contracts import Indexer, Representation
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import Run, read_run
from retrievalkit.errors import (
    ArtifactError,
    DataError,
    InputError,
    OptionError,
    RetrievalkitError,
    UnknownNameError,
    UnsupportedError,
    nearest,
    shortlist,
)
from retrievalkit.model.precision import Precision
from retrievalkit.model.retriever import CONFIGURATION, Retriever, checkpoint_fingerprint
from retrievalkit.search.fusion import Candidates, Fusion, Missing, Ranking, as_hits, gather, ranking

FUSION_DEPTH = 1000


Note = Callable[[str], None]

Options = Mapping[str, Any]

Place = str | Path


@dataclass
class OpenIndex:
    """An index folder, opened.

    Attributes:
        folder: Where it is.
        manifest: What its manifest.json holds.
        name: Registered name of its indexer.
        indexer: The indexer, ready to search.
        label: What people call it: the folder's name, unless another one has the same.
    """

    folder: Path
    manifest: Mapping[str, Any]
    name: str
    indexer: Indexer
    label: str = ""

    def __post_init__(self) -> None:
        self.label = self.label or self.folder.name

    @property
    def needs_encoding(self) -> bool:
        """Whether queries are a Representation (else they are texts)."""
        return self.indexer.indexes == "vectors"

    @property
    def checkpoint(self) -> Mapping[str, Any] | None:
        """What encoded the texts: "path", "fingerprint" and, for an untrained model, "description"; None = unknown."""
        found: Mapping[str, Any] | None = self.manifest.get("checkpoint")
        return found

    @property
    def identity(self) -> str:
        """Says what it is an index of, and how."""
        return artifacts.fingerprint_value([self.manifest["indexer"], self.manifest["inputs"]])

    def search(self, queries: Representation | Sequence[str], k: int) -> list[list[tuple[str, float]]]:
        """For each query the ids and scores of the best texts."""
        ids, scores = self.indexer.search(queries, k)
        return [as_hits(one, two) for one, two in zip(ids, scores, strict=True)]

    def rankings(self, asked: Asked, k: int) -> list[Ranking]:
        """For each query the ids and scores of the best texts."""
        ids, scores = self.indexer.search(asked.to(self), k)
        assert len(ids) == len(asked.queries), f"indexer '{self.name}' answered {len(ids)} of {len(asked.queries)}"
        return [(one, np.asarray(two, dtype=np.float32)) for one, two in zip(ids, scores, strict=True)]

    def scores(self, asked: Asked, ids: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """For each query the scores of given texts.

        Raises:
            UnsupportedError: The indexer cannot say.
        """
        return self.indexer.scores(asked.to(self), ids)


@dataclass
class OpenRun:
    """A run file, read, in the place of an index: what was found before.

    Attributes:
        path: Where it is.
        run: What it holds.
        label: What people call it: the file's name, unless another one has the same.
    """

    path: Path
    run: Run
    label: str = ""

    def __post_init__(self) -> None:
        self.label = self.label or self.path.name

    @property
    def identity(self) -> str:
        """Says what it holds."""
        return artifacts.fingerprint_file(self.path)

    def rankings(self, asked: Asked, k: int) -> list[Ranking]:
        """For each query what the run has for it."""
        found = [ranking(self.run, query.id) for query in asked.queries]
        return [(ids[:k], scores[:k]) for ids, scores in found]

    def scores(self, asked: Asked, ids: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Refused: it holds no scores but those of its hits."""
        del asked, ids
        msg = "a run holds no scores but those of its hits."
        raise UnsupportedError(msg)


Source = OpenIndex | OpenRun


@dataclass
class Asked:
    """Some queries, encoded once for each model that an index wants."""

    queries: Sequence[Query]
    encoders: Encoders
    _encoded: dict[str, Representation] = field(default_factory=dict)

    def to(self, index: OpenIndex) -> Representation | list[str]:
        """The queries as an index takes them."""
        texts = [query.text for query in self.queries]
        if not index.needs_encoding:
            return texts
        retriever = self.encoders.of(index)
        if retriever.fingerprint not in self._encoded:
            encoded = retriever.encode([("", text) for text in texts], "query", precision=self.encoders.precision)
            _check_finite(encoded, self.queries)
            self._encoded[retriever.fingerprint] = encoded
        return self._encoded[retriever.fingerprint]


@dataclass(frozen=True)
class Findings:
    """What some queries found.

    Attributes:
        rankings: For each query the ids and scores of its hits, best first.
        candidates: Where several sources were fused, for each query what all of them found.
    """

    rankings: Sequence[Ranking]
    candidates: Sequence[Candidates] | None = None


class Searcher:
    """Indexes and runs, opened.

    Args:
        places: Index folders and run files.
        model: The checkpoint that encodes queries, where it is not the one at the place where the index was made.
        options: Options of indexers that are to be other than when they built their index: for all under "indexer",
            and under the name of an indexer or of an index folder for these alone.
        precision: What queries are encoded in.
        note: Told what a user should know, a sentence at a time.

    Raises:
        InputError: A place is no index and no run, the model did not make the indexes, or nothing takes an option.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        model: Place | None = None,
        options: Options | None = None,
        precision: Precision = "auto",
        note: Note = lambda _: None,
    ) -> None:
        if not places:
            msg = "there is no index to search. Give one or more index folders."
            raise InputError(msg)
        self.sources = _open_all([Path(place) for place in places], options or {})
        self.encoders = Encoders(model, self.indexes, precision)
        self.note = note
        self._unscored: set[int] = set()
        self._unknown: set[int] = set()
        if problem := _different_corpora(self.indexes):
            note(problem)

    @property
    def indexes(self) -> list[OpenIndex]:
        """Those of the sources that are indexes."""
        return [one for one in self.sources if isinstance(one, OpenIndex)]

    @property
    def labels(self) -> list[str]:
        """What the sources are called."""
        return [one.label for one in self.sources]

    @property
    def identities(self) -> list[str]:
        """Say what each source is an index of."""
        return [one.identity for one in self.sources]

    def ask(self, queries: Sequence[Query]) -> Asked:
        """Queries, to be encoded as they are needed."""
        return Asked(queries, self.encoders)

    def search(self, asked: Asked, k: int, fusion: Fusion | None, depth: int | None = None) -> Findings:
        """The best hits of queries.

        Args:
            asked: The queries.
            k: Hits of a query.
            fusion: How what the sources found becomes one; None where there is one source.
            depth: Hits of each source that are fused; 1,000 where not given, or k where that is more.
        """
        if fusion is None:
            return Findings(self.sources[0].rankings(asked, k))
        found = self.candidates(asked, k, fusion, depth)
        return Findings([fusion(one, k) for one in found], found)

    def candidates(self, asked: Asked, k: int, fusion: Fusion, depth: int | None = None) -> list[Candidates]:
        """For each query what all of the sources found, with the scores that fusion wants; see `search`."""
        depth = max(k, FUSION_DEPTH) if depth is None else depth
        lists = [source.rankings(asked, depth) for source in self.sources]
        found = [gather([one[row] for one in lists], query.id) for row, query in enumerate(asked.queries)]
        if fusion.looks_at_scores and fusion.missing in (None, "computed"):
            for number in range(len(self.sources)):
                self._compute(number, asked, found, fusion.missing)
        return found

    def _compute(self, number: int, asked: Asked, found: Sequence[Candidates], missing: Missing | None) -> None:
        """Ask a source for the scores of what only the others found."""
        source = self.sources[number]
        lacking = [one.missing(number) for one in found]
        if number in self._unscored or not any(lacking):
            return
        try:
            scores = source.scores(asked, lacking)
        except UnsupportedError as error:
            if missing is not None:
                msg = f"'{source.label}' cannot compute the scores that are missing: {error} Choose another --missing."
                raise UnsupportedError(msg) from error
            self._unscored.add(number)
            self.note(f"what '{source.label}' did not find has its lowest score of the query: {error}")
            return
        for one, values in zip(found, scores, strict=True):
            one.fill(number, values)
        if number not in self._unknown and any(np.isnan(values).any() for values in scores):
            self._unknown.add(number)
            self.note(f"'{source.label}' lacks documents that others found; there they have its lowest score.")


def _different_corpora(indexes: Sequence[OpenIndex]) -> str:
    """A sentence that says so, or ""."""
    known = [index for index in indexes if "corpus" in index.manifest]
    for index in known[1:]:
        first, second = known[0].manifest["corpus"], index.manifest["corpus"]
        if first["fingerprint"] != second["fingerprint"]:
            return (
                f"'{known[0].label}' and '{index.label}' are indexes of different corpora ('{first['source']}' and "
                f"'{second['source']}', by their fingerprints)."
            )
    return ""


def _open_all(places: Sequence[Path], options: Options) -> list[Source]:
    sources: list[Source] = []
    taken: set[tuple[str, str]] = set()
    names = [place.name for place in places]
    for place in places:
        label = place.name if names.count(place.name) == 1 else str(place)
        if place.is_file():
            sources.append(OpenRun(place, _read_run(place), label))
            continue
        own = _options_of(place, options)
        taken.update(own)
        opened = open_index(place, options={name: options[section][name] for section, name in own})
        opened.label = label
        sources.append(opened)
    for section, values in options.items():
        for name in values if isinstance(values, Mapping) else [""]:
            if (section, name) not in taken:
                raise _no_such_option(section, name, sources)
    return sources


def _read_run(path: Path) -> Run:
    try:
        return read_run(path)
    except DataError as error:
        msg = f"{error} ('{path}' is a file, and so was read as a run; an index is a folder.)"
        raise InputError(msg) from error


def _options_of(folder: Path, options: Options) -> list[tuple[str, str]]:
    """Which of the options an index takes, as section and name; its own folder's come last, and win."""
    if not options or artifacts.kind_of(folder) != "index":
        return []
    made_by = artifacts.read_manifest(folder, "index")["indexer"]
    found = []
    for section in ("indexer", made_by["name"], folder.name):
        values = options.get(section)
        if isinstance(values, Mapping):
            # What is meant for all is for those that have it.
            found += [(section, name) for name in values if section != "indexer" or name in made_by["options"]]
    return list(dict.fromkeys(found))


def _no_such_option(section: str, name: str, sources: Sequence[Source]) -> OptionError:
    given = f"{section}.{name}" if name else section
    indexes = [one for one in sources if isinstance(one, OpenIndex)]
    known = sorted({option for one in indexes for option in one.manifest["indexer"]["options"]})
    close = nearest(name, known)
    offer = f"; did you mean 'indexer.{close}'?" if close and close != name else "."
    listed = ", ".join(f"'{one.label}' ({one.name})" for one in indexes) or "none"
    msg = (
        f"--set {given} is an option of no index that is searched{offer} The indexes: {listed}; their options: "
        f"{shortlist(known)}. Set one by indexer.OPTION=VALUE, or by the name of an indexer or an index."
    )
    return OptionError(msg)


def open_index(folder: str | Path, *, options: Mapping[str, Any] | None = None) -> OpenIndex:
    """Open an index folder.

    Args:
        folder: What `rkit index` wrote.
        options: Options of the indexer that are to be other than when it was built, such as faiss's `parameters`.

    Raises:
        ArtifactError: It is not an index folder, it is damaged, or the plugin that made it is not installed.
    """
    folder = Path(folder)
    _check_kind(folder)
    manifest = artifacts.read_manifest(folder, "index")
    made_by = manifest["indexer"]
    try:
        indexer = registry.create("indexer", made_by["name"], **{**made_by["options"], **(options or {})})
    except UnknownNameError as error:
        distribution, version = made_by["distribution"], made_by["version"]
        msg = (
            f"index '{folder}' was made by the indexer '{made_by['name']}' of {distribution} {version}, which is not "
            f"installed. Install it: pip install {distribution}=={version}"
        )
        raise ArtifactError(msg) from error
    indexer.open(folder)
    return OpenIndex(folder, manifest, made_by["name"], indexer)


def _check_kind(folder: Path) -> None:
    kind = artifacts.kind_of(folder)
    if kind == "vectors":
        msg = f"'{folder}' is a vectors folder. Make an index of it first: rkit index {folder} --output index"
        raise ArtifactError(msg)
    if kind == "checkpoint":
        msg = (
            f"'{folder}' is a checkpoint. Encode a corpus and index it first: "
            f"rkit encode {folder} CORPUS --output vectors, rkit index vectors --output index"
        )
        raise ArtifactError(msg)


@dataclass
class Encoders:
    """The retrievers that encode queries: for each index the one that made it, each loaded once.

    Attributes:
        model: Where the user says that a checkpoint is.
        indexes: All that are searched.
        precision: What queries are encoded in.
    """

    model: str | Path | None
    indexes: Sequence[OpenIndex]
    precision: Precision
    loaded: dict[str, Retriever] = field(default_factory=dict)  # by what it is made of

    def __post_init__(self) -> None:
        """Find the checkpoint of each index now, so that a mistake shows before anything is searched."""
        needing = [index for index in self.indexes if index.needs_encoding]
        if self.model is not None and not needing:
            msg = f"--model {self.model} encodes queries, and none of the indexes needs that. Leave it out."
            raise OptionError(msg)
        self._given = None if self.model is None else _fingerprint_of(self.model)
        if self._given is not None and not any(self._fits(index) for index in needing):
            raise _another(needing[0], str(self.model), self._given)
        self._folders = {str(index.folder): self._locate(index) for index in needing}

    def of(self, index: OpenIndex) -> Retriever:
        """The retriever that made an index.

        Raises:
            ArtifactError: What is loaded is not what made the index.
        """
        folder = self._folders[str(index.folder)]
        # One model that was not trained here can have encoded with several poolers.
        described = (index.checkpoint or {}).get("description")
        key = folder if described is None else artifacts.fingerprint_value([folder, described])
        if key not in self.loaded:
            self.loaded[key] = _load(folder, index)
        retriever = self.loaded[key]
        if index.checkpoint is not None and retriever.fingerprint != index.checkpoint["fingerprint"]:
            raise _another(index, folder, retriever.fingerprint)
        return retriever

    def _fits(self, index: OpenIndex) -> bool:
        if index.checkpoint is None:
            return True
        if "description" in index.checkpoint:
            return self._given == ""
        return bool(index.checkpoint["fingerprint"] == self._given)

    def _locate(self, index: OpenIndex) -> str:
        if self.model is not None and self._fits(index):
            return str(self.model)
        if index.checkpoint is None:
            msg = f"index '{index.folder}' does not say which checkpoint made it. Give it with --model."
            raise ArtifactError(msg)
        if "description" in index.checkpoint:
            return located(index.checkpoint, index.folder) or str(index.checkpoint["description"]["model"])
        found = located(index.checkpoint, index.folder)
        if found is None:
            msg = (
                f"index '{index.folder}' was made with the checkpoint '{index.checkpoint['path']}', which is not there "
                f"any more. Give its new place with --model."
            )
            raise ArtifactError(msg)
        fingerprint = _fingerprint_of(found)
        if fingerprint != index.checkpoint["fingerprint"]:
            raise _another(index, found, fingerprint)
        return found


def _fingerprint_of(model: str | Path) -> str:
    """The fingerprint of a checkpoint; "" for a model that was not trained here, which is known once it is loaded."""
    if (Path(model) / CONFIGURATION).is_file():
        return checkpoint_fingerprint(model)
    kind = artifacts.kind_of(model)
    if kind is not None:
        msg = f"--model '{model}' is of the kind {kind}, and should be a checkpoint (rkit train)."
        raise ArtifactError(msg)
    return ""


def _load(folder: str, index: OpenIndex) -> Retriever:
    if (Path(folder) / CONFIGURATION).is_file() or index.checkpoint is None or "description" not in index.checkpoint:
        return Retriever.load(folder)
    return Retriever.from_description({**index.checkpoint["description"], "model": folder})


def _another(index: OpenIndex, folder: str, fingerprint: str) -> ArtifactError:
    assert index.checkpoint is not None
    path, made = index.checkpoint["path"], index.checkpoint["fingerprint"]
    msg = (
        f"index '{index.folder}' was made with the checkpoint '{path}' (fingerprint {made[:12]}), and '{folder}' is "
        f"another one (fingerprint {fingerprint[:12] or 'unknown'}): their vectors do not compare. "
        f"Give the right one with --model, or encode and index again."
    )
    return ArtifactError(msg)


def located(entry: Mapping[str, Any], folder: Path) -> str | None:
    """Where something is that a manifest names: at its place, or at the same place relative to the index."""
    places = [Path(entry["path"])] if "path" in entry else []
    places += [folder / entry["relative_path"]] if "relative_path" in entry else []
    return next((str(place) for place in places if place.exists()), None)


def _check_finite(encoded: Representation, batch: Sequence[Query]) -> None:
    for tensor in (encoded.vectors, encoded.weights):
        if tensor is None:
            continue
        finite = tensor.isfinite().flatten(1).all(dim=1).tolist()
        if not all(finite):
            query = batch[finite.index(False)].id
            msg = f"the query '{query}' was encoded as numbers that are not finite. Look at the model, or use fp32."
            raise RetrievalkitError(msg)


BATCH_QUERIES = 1024


def to_stderr(note: str) -> None:
    """Tell the user what should be known."""
    sys.stderr.write(f"Note: {note}\n")
