"""Mining options, and the result of mining for a question."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from retrievalkit import registry
from retrievalkit.contracts import Filter
from retrievalkit.contracts.declarations import Flag, Named, Reads
from retrievalkit.errors import OptionError
from retrievalkit.registry.component_options import read_call

Share = Annotated[float, Gt(0), Le(1)]
Merge = Literal["concatenate", "pool"]

RECORDED, TITLE = "recorded", "title"


@dataclass(frozen=True, kw_only=True)
class MiningOptions:
    """Selection of negatives from the hits, and merging of the mined examples with another set.

    Args:
        depth: Hits per question to consider, positives included.
        negatives: Negatives per question to keep.
        skip_top: Number of top ranks to drop, as they may be unlabelled positives.
        drop_answers: Drop passages that contain the question's answer (DPR's rule, see `data.answers`).
        drop_positives: Drop the question's known positives, from all examples with its text, and copies of their text.
        same_document: Drop passages of a positive's document: "recorded" if rkit cut the documents, "title" if passages
            of a document share a title (as DPR's do), or a regular expression that matches the document's name at the
            start of an id, such as "(.+)#".
        near_duplicates: Drop passages that share at least this fraction of their word 5-grams with a positive, or with
            a better negative (Jaccard's coefficient, such as 0.8).
        margin_absolute: Keep hits whose score is at least this much below the positive's.
        margin_relative: Keep hits whose score is at most this fraction of the positive's, such as 0.95 (for a negative
            score: lower by the same fraction of its magnitude). With several positives the lowest score counts; a
            positive that is not among the hits gets the score of the last hit.
        reranker: Re-ranker that filters the hits (rkit rerank train, or a Hugging Face cross-encoder), or a run of its
            scores (rkit rerank apply).
        reranker_above: Drop hits that the re-ranker scores above this; the score of a cross-encoder is its logit.
        reranker_margin: Keep hits that the re-ranker scores at least this much below the positive (of several, the
            lowest-scoring positive).
        filters: More filters, registered by plugins: names, with options as in "longer_than(words=5)".
        sample: Keep the "top" of the hits that pass the filters, or a "random" sample of them, in rank order.
        seed: Seed of the random sample, which otherwise depends only on the question's id.
        positives: "keep" the examples' positives; or "retrieved", as in MLR's released code: the best hit with an
            answer is the positive, only hits without an answer are negatives, and a question without a hit with an
            answer is dropped; "keep" applies if no question has answers, but all have positives.
        keep: Negatives per example to keep when merging; None = all.
        merge: "concatenate": the other set's examples, then the mined examples, kept separate; "pool": one example per
            question, with the negatives of both.
    """

    depth: Annotated[int, Ge(1)] = 200
    negatives: Annotated[int, Ge(1)] = 100
    skip_top: Annotated[int, Ge(0)] = 0
    drop_answers: bool = False
    drop_positives: bool = True
    same_document: Annotated[str | None, Flag(metavar="recorded|title|REGEX")] = None
    near_duplicates: Share | None = None
    margin_absolute: float | None = None
    margin_relative: Share | None = None
    reranker: Annotated[str | None, Reads(accepts=("reranker", "run"))] = None
    reranker_above: float | None = None
    reranker_margin: float | None = None
    filters: Annotated[tuple[Annotated[str, Named("filter")], ...], Flag(("--filter",), metavar="NAME")] = ()
    sample: Literal["top", "random"] = "top"
    seed: int = 42
    positives: Literal["keep", "retrieved"] = "keep"
    keep: Annotated[int, Ge(1)] | None = None
    merge: Merge = "concatenate"

    @property
    def needs_answers(self) -> bool:
        """True if hits are checked for the answers."""
        checked = self.drop_answers or self.positives == "retrieved"
        return checked or any(filter_class(text).needs_answers for text in self.filters)

    def as_dict(self) -> dict[str, Any]:
        """Return the options for the audit; `filters` only if there are any."""
        values = {option.name: getattr(self, option.name) for option in fields(MiningOptions)}
        return {name: value for name, value in values.items() if name != "filters" or value}

    def check(self, *, merging: bool) -> None:
        """Refuse invalid combinations; `merging` is True if there is another set to merge with."""
        if self.skip_top >= self.depth:
            msg = f"skip_top {self.skip_top} drops all hits of depth {self.depth}. Raise depth, or lower skip_top."
            raise OptionError(msg)
        thresholds = self.reranker_above is not None or self.reranker_margin is not None
        if self.reranker is not None and not thresholds:
            msg = f"the re-ranker '{self.reranker}' has no threshold. Set reranker_above or reranker_margin too."
            raise OptionError(msg)
        if self.reranker is None and thresholds:
            msg = "reranker_above and reranker_margin need a re-ranker's scores. Set reranker too."
            raise OptionError(msg)
        if self.same_document is not None:
            document_pattern(self.same_document)
        for text in self.filters:
            filter_class(text)
        if not merging and (self.keep is not None or self.merge != "concatenate"):
            msg = "keep and merge apply when two sets are merged, but there is no other set. Give it as merge_with."
            raise OptionError(msg)


def filter_class(text: str) -> type[Filter]:
    """Return the class of a filter that is written like "longer_than(words=5)"."""
    return registry.get("filter", read_call(text)[0])


def document_pattern(text: str) -> re.Pattern[str] | None:
    """Compile the pattern of a document's name in a passage's id; None if its record or title identifies it."""
    if text in (RECORDED, TITLE):
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        msg = f"same_document is '{text}', which is neither '{RECORDED}', '{TITLE}' nor a regular expression ({error})."
        raise OptionError(msg) from None
    if pattern.match(""):
        msg = f"same_document is '{text}', which matches every id. Include the end of the name, as in '(.+)#'."
        raise OptionError(msg)
    return pattern


@dataclass(frozen=True)
class Mined:
    """The result for a question: negatives, best first, and the positive if it was mined as well."""

    negatives: tuple[str, ...]
    positive: str | None = None
    dropped: bool = False
