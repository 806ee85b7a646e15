"""The source `my_name`: data under a prefix, which every command reads like a file."""

from collections.abc import Iterator
from pathlib import Path

from retrievalkit.data.sources import Row, Source
from retrievalkit.errors import DataError


class MyName(Source):
    """The text files of a folder, one passage each: `my_name:FOLDER`."""

    # Override the parts that exist: passages, queries, judgements(split), examples(split).
    # Rows have the keys of any format that retrievalkit reads; ids, texts and duplicates are checked for you.
    def passages(self) -> Iterator[Row]:
        """One row per file, in the same order every time."""
        paths = sorted(Path(self.name).glob("*.txt"))  # self.name is the part after the prefix
        if not paths:
            problem = "there is no .txt file in this folder. Give a folder of text files."
            raise DataError(problem, file=self.address)
        for path in paths:
            yield {"id": path.stem, "title": "", "text": path.read_text(encoding="utf-8")}
