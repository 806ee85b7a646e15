"""The filter `my_name`: removes hits of a question that are unsuitable as negatives."""

from retrievalkit.contracts import Filter, FilterInputs, Found, Places


class MyName(Filter):
    """Drops passages of a few words, which teach a retriever little.

    Args:
        words: Minimum number of words of a passage.
    """

    # Keyword-only arguments are the options: typed, documented above, set by --filter "my_name(words=20)".
    def __init__(self, inputs: FilterInputs, *, words: int = 10) -> None:
        super().__init__(inputs)
        self.words = words

    # Hits are identified by their position in the ranking, from 0. The result must depend only on the question, its
    # hits and the passages: a killed mining continues with other questions.
    def keep_of(self, found: Found, left: Places) -> Places:
        """The positions to keep, among those that the previous filters left."""
        return [place for place in left if self._length(found.ids[place]) >= self.words]

    def reason(self, found: Found, place: int) -> str:
        """The reason why a hit was dropped, for the page that shows dropped hits."""
        return f"{self._length(found.ids[place])} words"

    def _length(self, identifier: str) -> int:
        return len(self.inputs.passages(identifier).text.split())
