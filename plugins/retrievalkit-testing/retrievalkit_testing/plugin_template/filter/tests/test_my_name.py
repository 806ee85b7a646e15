from retrievalkit.contracts import FilterInputs, Found, Question
from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query

from retrievalkit_my_name.filters import MyName

TEXTS = {"long": "a passage of five words", "short": "two words"}


def test_short_passages_are_dropped_with_a_reason():
    inputs = FilterInputs(lambda identifier: Passage(identifier, "", TEXTS[identifier]))
    found = Found(Question(Query("q", "what?"), ("q",), frozenset()), ["short", "long"], [2.0, 1.0])
    made = MyName(inputs, words=3)
    assert made.keep_of(found, [0, 1]) == [1]
    assert made.reason(found, 0) == "2 words"
