"""The metric `my_name`: a figure for each judged query."""

from retrievalkit.contracts import Judged, Metric


class MyName(Metric):
    """Success: 1 if a document of a wanted grade is among the hits, else 0.

    Args:
        grade: The lowest grade that counts.
    """

    # Keyword-only arguments are the options: typed, documented above, set by --metrics "my_name(grade=2)@10".
    def __init__(self, *, grade: int = 1) -> None:
        self.grade = grade

    # A run's figure is the mean over the queries; override `mean` to change that.
    def value(self, query: Judged) -> float:
        """1 or 0; `query.found` has the grades of the hits, best first, up to the cutoff, None = not judged."""
        return float(any(grade is not None and grade >= self.grade for grade in query.found))
