"""Hypothesis strategy for ids: any text that `Record.identifier` accepts."""

from hypothesis import strategies as st

from retrievalkit.data.records import id_problem


def id_texts(length: int) -> st.SearchStrategy[str]:
    """Return a strategy for ids of up to `length` characters."""
    characters = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="\ufeff")
    return st.text(characters, min_size=1, max_size=length).filter(lambda text: id_problem(text) is None)
