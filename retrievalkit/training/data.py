"""The data of a training on examples: training and dev examples, and the passages they name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrievalkit import artifacts, oddities
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import Examples, note_dropped
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import DataError, InputError
from retrievalkit.training.examples import hashes_of, open_examples


@dataclass(frozen=True)
class ExampleData:
    """Examples that were read and checked.

    Attributes:
        train: The training examples.
        dev: The held-out examples, or None.
        corpus: The passages that the examples name, or None if they bring their own.
        inputs: Entries for the manifest.
    """

    train: Examples
    dev: Examples | None
    corpus: Corpus | None
    inputs: dict[str, dict[str, str]]

    @classmethod
    def read(cls, examples: str, corpus: str | None, dev: str | None) -> ExampleData:
        """Read and check.

        Raises:
            InputError: A source is missing or broken, names an unknown passage, or has no example.
        """
        opened = open_corpus(corpus) if corpus else None
        train = _read(examples, opened, "train")
        held_out = _read(dev, opened, "dev") if dev else None
        if held_out is not None:
            _check_together(train, held_out)
        sources = {"examples": examples, "corpus": corpus, "dev": dev}
        inputs = {name: artifacts.describe_input(one, fingerprint(one)) for name, one in sources.items() if one}
        return cls(train, held_out, opened, inputs)

    def passage(self, identifier: str) -> Passage:
        """The passage with that id."""
        # The corpus comes first: it is what will be searched.
        if self.corpus is not None and identifier in self.corpus:
            return self.corpus.get(identifier)
        own = self.train.passages
        if self.dev is not None and identifier in self.dev.passages:
            own = self.dev.passages
        return own[identifier]


def _read(source: str, corpus: Corpus | None, split: str) -> Examples:
    examples = open_examples(source, corpus, split)
    note_dropped(examples)
    if not examples.rows:
        msg = f"'{source}' has no example with a positive passage, so there is nothing to train on."
        raise InputError(msg)
    return examples


def _check_together(train: Examples, dev: Examples) -> None:
    """Refuse a passage id with two texts, and note questions that are in both."""
    for identifier, passage in dev.passages.items():
        if (other := train.passages.get(identifier)) is not None and other.text != passage.text:
            msg = (
                f"the passage id '{identifier}' stands for another text in the training examples ('{train.source}'). "
                f"An id must always mean the same."
            )
            raise DataError(msg, file=dev.source)
    if seen := int(np.isin(hashes_of(dev.rows), hashes_of(train.rows)).sum()):
        oddities.note(
            f"{seen:,} of the {len(dev):,} dev questions are training questions too: the state that is best on these "
            f"may not be best on new ones. Hold them out of the training examples."
        )
