"""The fusion method `my_name`: the contribution of each run to the score of a document."""

import numpy as np
from numpy.typing import NDArray
from retrievalkit.contracts import Candidates, FusionMethod


class MyName(FusionMethod):
    """Reciprocal rank fusion: adds the reciprocals of the ranks.

    Args:
        shift: Constant added to each rank: the larger it is, the less the first ranks count.
    """

    # Ranks only. With True, `found.scores` also has the scores of documents that only other runs retrieved, if indexes
    # can compute them; the rest are NaN.
    uses_scores = False

    # Keyword-only arguments are the options: typed, documented above, set by --fusion "my_name(shift=10)".
    def __init__(self, *, shift: int = 60) -> None:
        self.shift = shift

    def parts(self, found: Candidates) -> NDArray[np.float64]:
        """(documents, runs): the search weights and adds them up; all must be finite."""
        reciprocals = 1.0 / (self.shift + np.maximum(found.ranks, 1))
        return np.where(found.ranks > 0, reciprocals, 0.0)  # 0: not among the hits of the run
