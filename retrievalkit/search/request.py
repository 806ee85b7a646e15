"""The arguments of `rkit search` as one object, with the checks that need no index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from retrievalkit.artifacts import check_output_file
from retrievalkit.errors import InputError, OptionError
from retrievalkit.options import convert
from retrievalkit.report.page import PAGES
from retrievalkit.search.fusion import Fusion
from retrievalkit.search.options import HybridOptions
from retrievalkit.search.searcher import Searcher
from retrievalkit.search.sources import Options

if TYPE_CHECKING:
    from retrievalkit.cluster import ClusterOptions
    from retrievalkit.model.precision import Precision


@dataclass(frozen=True)
class Request(HybridOptions):
    """The arguments of `rkit search`; see its --help.

    Attributes:
        places: Index folders and run files.
        queries: Source of the queries, of which `split` selects a part; alternatively a `query`, or `interactive`.
        tune: Source of the judgements to tune by, for the queries in `tune_queries`.
        options: Options of indexers, and `query_length` of encoders.
        cluster: The Ray cluster whose workers search the indexes; None = this process.
    """

    places: Sequence[str]
    queries: str | None = None
    split: str | None = None
    query: str | None = None
    interactive: bool = False
    model: str | None = None
    precision: Precision | None = None
    k: int | None = None
    tune: str | None = None
    tune_queries: str | None = None
    tune_metric: str | None = None
    corpus: str | None = None
    why: bool | None = None
    output: str | None = None
    as_json: bool = False
    options: Options | None = None
    cluster: ClusterOptions | None = None

    @property
    def shows_hits(self) -> bool:
        """Whether hits are printed with their texts, instead of a run."""
        return self.query is not None or self.interactive

    def check(self) -> None:
        """Refuse incompatible options before anything is opened.

        Raises:
            InputError: An option would have no effect, there are no queries, or the output is a folder.
        """
        runs_alone = all(Path(place).is_file() for place in self.places)
        modes = {"--queries": self.queries, "--query": self.query, "--interactive": self.interactive or None}
        given = [name for name, value in modes.items() if value is not None]
        if len(given) > 1:
            msg = f"{' and '.join(given)} exclude each other. Give one of them."
            raise OptionError(msg)
        for place in self.places:
            if not Path(place).exists():
                do = f'Give a text to search for as --query "{place}".' if " " in place else "Give indexes and runs."
                msg = f"'{place}' does not exist. {do}"
                raise InputError(msg)
        if not given and self.tune is None and not runs_alone:
            folder = next(place for place in self.places if not Path(place).is_file())
            msg = f"there is nothing to search for in '{folder}'. Give --queries FILE, --query TEXT or --interactive."
            raise OptionError(msg)
        if self.shows_hits and runs_alone:
            msg = f"{given[0]} needs an index folder to search, but '{self.places[0]}' is a file. Give an index."
            raise OptionError(msg)
        check_effect(
            {"--corpus": self.corpus, "--explain": self.why},
            self.shows_hits,
            "hits to read (--query, --interactive)",
        )
        check_effect({"--ray": self.cluster}, not runs_alone, "an index")
        check_effect({"--split": self.split}, self.queries is not None, "--queries")
        check_effect({"--split": self.split}, not Path(self.queries or "").is_file(), "a folder of --queries")
        check_effect({"--output": self.output}, not self.interactive, "--queries, --query or --tune")
        check_effect({"--tune": self.tune}, not self.shows_hits, "--queries, or stands alone")
        tuned_by = {"--tune-queries": self.tune_queries, "--tune-metric": self.tune_metric}
        check_effect(tuned_by, self.tune is not None, "--tune QRELS")
        if self.output is not None:
            check_output_file(self.output, stream=True)
        if self.output is not None and Path(self.output).suffix in PAGES and self.query is None:
            msg = f"output '{self.output}' is a page, which shows the hits of one query. Give --query TEXT."
            raise OptionError(msg)

    def divided_options(self) -> tuple[Options, int | None]:
        """The options of indexers, and the length of queries that `--set encoder.query_length` gives.

        Raises:
            OptionError: The length is no number, or is that of documents.
        """
        options = dict(self.options or {})
        section = options.get("encoder")
        if not isinstance(section, Mapping):
            return options, None
        if "document_length" in section:
            msg = (
                "encoder.document_length has no effect on a search, whose documents are encoded already. Give it to "
                "rkit encode."
            )
            raise OptionError(msg)
        # An index folder may be called "encoder", too.
        rest = {name: value for name, value in section.items() if name != "query_length"}
        options = {**options, "encoder": rest} if rest else {k: v for k, v in options.items() if k != "encoder"}
        if "query_length" not in section:
            return options, None
        length: int = convert("encoder.query_length", int, section["query_length"])
        return options, length

    def fusion_by_options(self) -> Fusion | None:
        """How the indexes are fused, as far as the options determine it; None for a single index.

        Raises:
            OptionError: The options do not fit.
        """
        tuned = self.tune is not None and len(self.places) > 1
        return (replace(self, fusion=self.fusion or "linear") if tuned else self).fused(len(self.places))

    def fusion_for(self, searcher: Searcher) -> Fusion | None:
        """How the indexes are fused, with the weights of a file written by --tune if --weights names one."""
        tuned = self.tune is not None and len(self.places) > 1
        options = replace(self, fusion=self.fusion or "linear") if tuned else self
        return options.fused(len(self.places), searcher.identities)


def check_effect(options: Mapping[str, object], has_effect: bool, with_: str) -> None:
    """Refuse options that would have no effect.

    Raises:
        OptionError: Names them.
    """
    if not has_effect and (named := [name for name, value in options.items() if value is not None]):
        msg = f"{', '.join(named)} has no effect here: it goes with {with_}."
        raise OptionError(msg)
