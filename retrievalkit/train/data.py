"""The data of a training on examples: training and dev examples, and the passages they name."""

from __future__ import annotations

from dataclasses import dataclass

from retrievalkit import artifacts
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import Examples, check_examples, read_examples
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import InputError


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
    examples = read_examples(source, corpus=corpus, split=split)
    check_examples(examples, corpus)
    if not examples.rows:
        msg = f"'{source}' has no example with a positive passage, so there is nothing to train on."
        raise InputError(msg)
    return examples
