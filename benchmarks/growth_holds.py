"""What each command holds for each row, derived from its data structures: the promise that `growth.py` checks.

Sizes are those of CPython 3.11 on 64 bits, rounded up to the 16 bytes of its allocator. Where one structure is made
while another is still there, both count; a buffer that is full after some rows counts for these rows only.
"""

from __future__ import annotations

from dataclasses import dataclass

ID = 64  # a text of up to 15 ASCII characters: 49 bytes and one for each
TEXT = 144  # ten words
NUMBER = 32  # an integer or a float
SLOT = 9  # a place in a list or an array of 64 bits, which are enlarged by an eighth
ENTRY = 66  # of a dict by strings, just enlarged (16 + 4 * 1.5 bytes, a third filled), and in the one that it replaces
MEMBER = 80  # of a set, just enlarged, and in the one that it replaces
PAIR = 80  # a tuple of two, with its header for the collector
POSITION = 8  # a number of 64 bits in an array
DIM, TERMS, HITS = 32, 40, 10  # of the vectors, weights and runs that are drawn

_HASHES = SLOT + POSITION + 1  # of all ids; sorted, and compared, to find duplicates
_ENDS = POSITION + 2 * POSITION + 1  # where each id ends; of another reader while it joins them and takes differences
_POSITIONS = 3 * SLOT + 4 * POSITION  # hash, start and size of a record while read, their order, and sorted by it
_RUN = ID + ENTRY + NUMBER + SLOT + SLOT + SLOT // 2 + 1  # id -> number; start, size, number and a mark of each query
_JUDGED = ID + ENTRY + (64 + 128 + ID)  # a query, and its dict of one document
_QUERY = 64 + ID + TEXT + SLOT  # an object, its id and text, in a list
_READ_QUERY = _QUERY + ENTRY + PAIR + 96 + 64  # with its record (without fields) until all are known to differ
_EXAMPLE = 80 + ID + (TEXT + 16) + 64 + ID + SLOT + (NUMBER + SLOT)  # an object, id, text, tuple, positive; its line
_QUESTION = 80 + 64 + 64 + 64 + 240 + SLOT  # an object, its query, tuples of ids and examples, a set of one positive
_COPIES = 64 + ENTRY + 90 + 80 + 32 + ID  # a digest, by id and back, in a dict by bytes, with a list of ids


@dataclass(frozen=True)
class Held:
    """Bytes that a command may hold: `row` for each, and `part` for each of the first `rows`.

    Attributes:
        row: Bytes of each row.
        what: What they are.
        part: Bytes of each row in a buffer of limited size.
        rows: How many rows fill the buffer.
    """

    row: int
    what: str
    part: int = 0
    rows: int = 0

    def at(self, size: int) -> int:
        """Bytes at a number of rows."""
        return self.row * size + self.part * min(size, self.rows)


# A query in a batch to evaluate: its number; the grade by rank, in a tuple; in four dicts; what trec_eval returns;
# three values, in dicts by number and by query; pairs of metric and query whose value is missing yet.
_EVALUATED = ID + (64 + 128 + ID) + 80 + 4 * ENTRY + (64 + 128) + 3 * (NUMBER + 2 * ENTRY + PAIR + MEMBER)
_BATCH = 131_072 // (HITS + 1)

HOLDS = {
    # A shard (8,192) is encoded, another waits, a third is tokenised: id, texts, tuples, and what Rust's tokeniser has
    # for each of twelve tokens: seven numbers and a text.
    "encode": Held(_HASHES, "hashes of the ids", 2 * ID + TEXT + 2 * PAIR + 12 * 130, 3 * 8_192),
    "index flat": Held(_ENDS, "where each id ends"),
    # faiss's vector doubles; only what was written is in memory, and a copy while it grows.
    "index faiss": Held(_ENDS + POSITION, "where each id ends", 2 * 4 * DIM, 1_000_000),
    # A part's weights by text and, after that, by term: 4 bytes each for number and value.
    "index sparse": Held(_ENDS + 2 * POSITION, "ends of ids, starts of rows", 2 * (8 * TERMS + 8), 131_072),
    "index dense_sparse": Held(_ENDS + 2 * POSITION, "ends of ids, starts of rows", 2 * (8 * TERMS + 8), 65_536),
    "index bm25": Held(_HASHES, "hashes of the ids (Java's memory is given)"),
    "index impact": Held(_ENDS + POSITION, "ends of ids, starts of rows (Java's memory is given)"),
    "index lucene_hnsw": Held(_ENDS, "where each id ends (the graph is in Java's memory, which is given)"),
    "search": Held(_ENDS, "where each id ends"),
    "search queries": Held(_READ_QUERY + MEMBER, "queries; their ids"),
    "mine-negatives": Held(
        # Examples, their ids and texts while these are compared, a copy without negatives; the corpus; questions, by
        # text and place; copies of positives; the run, and its name of each question.
        (_EXAMPLE + ENTRY + PAIR + 80 + MEMBER)
        + _POSITIONS
        + (_QUESTION + ENTRY + 96 + ENTRY + NUMBER)
        + _COPIES
        + (_RUN + ENTRY),
        "examples, positions in the corpus, questions, the run's ids",
        # Hits of the questions searched at once (10,240 with --depth 200), and the set of their documents.
        HITS * (ID + PAIR + NUMBER + 2 * SLOT + MEMBER) + 400,
        10_240,
    ),
    # Three metrics have a value for each query; the ids of judgements that the run lacks are found in a set.
    "evaluate": Held(_JUDGED + _RUN + 3 * (ENTRY + NUMBER) + MEMBER, "judgements, ids, values", _EVALUATED, _BATCH),
    # Of two runs: a value, in two dicts; the first five hits, as objects with a dict each; where relevant ones are.
    "compare": Held(
        _JUDGED + _RUN + 2 * (2 * ENTRY + NUMBER + 5 * (64 + 152 + ID + NUMBER + SLOT) + 64 + 104 + 2 * 88) + 150,
        "judgements; of each run values and first hits",
        _EVALUATED,
        _BATCH,
    ),
    "convert": Held(_RUN, "the run's ids"),
    "fuse": Held(2 * _RUN + ENTRY + 64 + SLOT, "both runs' ids, and the queries"),
}
"""Command -> what it may hold."""
