"""The filter `my_name`: which hits of a question are no negatives."""

from retrievalkit.contracts import Filter, FilterInputs, Found, Places


class MyName(Filter):
    """Drops passages of a few words, which tell a retriever little.

    Args:
        words: How many words a passage must have.
    """

    # Keyword-only arguments are the options: typed, documented above, set by --filter "my_name(words=20)".
    def __init__(self, inputs: FilterInputs, *, words: int = 10) -> None:
        super().__init__(inputs)
        self.words = words

    # Hits are named by their places in the ranking, from 0 on. The result may depend on nothing but the question, its
    # hits and the passages: a killed mining goes on with other questions.
    def keep_of(self, found: Found, left: Places) -> Places:
        """The places to keep, of those that the filters before have left."""
        return [place for place in left if self._length(found.ids[place]) >= self.words]

    def reason(self, found: Found, place: int) -> str:
        """Why a hit was dropped, for the page that shows what was."""
        return f"{self._length(found.ids[place])} words"

    def _length(self, identifier: str) -> int:
        return len(self.inputs.passages(identifier).text.split())
