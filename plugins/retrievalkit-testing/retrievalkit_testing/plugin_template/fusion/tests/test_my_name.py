import numpy as np
from retrievalkit.contracts import Candidates

from retrievalkit_my_name.fusions import MyName


def test_a_document_counts_by_its_ranks():
    ranks = np.array([[1, 2], [0, 1]], dtype=np.int32)
    found = Candidates(["a", "b"], np.full((2, 2), np.nan), ranks)
    np.testing.assert_allclose(MyName(shift=1).parts(found), [[1 / 2, 1 / 3], [0, 1 / 2]])
