"""The audit of mined negatives as a page: hits dropped by the filters, ranks and scores, and questions to check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrievalkit.mining.audit import describe_source
from retrievalkit.reporting.chart import line_chart
from retrievalkit.reporting.page import render

_OPENED = 3
"""How many questions are unfolded initially: enough to show what can be checked."""


def audit_page(audit: Mapping[str, Any], *, title: str) -> str:
    """The page of an audit, as HTML.

    Args:
        audit: The audit that `rkit mine-negatives` writes.
        title: The name of the mined file.
    """
    return render(
        "audit.html.j2",
        title=f"Mined negatives: {title}",
        subtitle=f"from {describe_source(audit['source'])}",
        audit=audit,
        negatives=sum(bucket["count"] for bucket in audit["ranks_of_negatives"]),
        ranks=_ranks(audit),
        chart=_score_chart(audit["scores"]) if audit["scores"] else "",
        options=[[option, str(value)] for option, value in audit["options"].items()],
        opened=_OPENED,
    )


def _ranks(audit: Mapping[str, Any]) -> list[dict[str, int]]:
    """Negatives and best positives side by side, by buckets of ranks; a bucket may be missing on either side."""
    negatives, positives = (
        {bucket["from"]: bucket["count"] for bucket in audit[name]}
        for name in ("ranks_of_negatives", "ranks_of_positives")
    )
    ends = {bucket["from"]: bucket["to"] for bucket in (*audit["ranks_of_positives"], *audit["ranks_of_negatives"])}
    return [
        {"low": low, "high": high, "negatives": negatives.get(low, 0), "positives": positives.get(low, 0)}
        for low, high in sorted(ends.items())
    ]


def _score_chart(scores: Mapping[str, Any]) -> str:
    """The frequency of scores, as one line per kind of passage; each point is the middle of a bin."""
    low, width = scores["from"], scores["bin"]
    series = {
        name: [
            (low + (place + 0.5) * width, 100 * count / scores[name]["count"])
            for place, count in enumerate(scores[name]["bins"])
        ]
        for name in ("positives", "negatives")
        if scores[name]["count"]
    }
    return line_chart(series, x="score", y="share in %")
