import pytest
from retrievalkit.contracts import Judged

from retrievalkit_my_name.metrics import MyName


@pytest.mark.parametrize(("found", "value"), [([None, 0, 2], 1.0), ([None, 1], 0.0), ([], 0.0)])
def test_a_wanted_grade_counts(found, value):
    assert MyName(grade=2).value(Judged(found, [0, 1, 2])) == value


def test_a_metric_is_named_with_its_options_and_cutoff():
    made = MyName.of("my_name(grade=2)@10")
    assert (made.grade, made.cutoff) == (2, 10)
