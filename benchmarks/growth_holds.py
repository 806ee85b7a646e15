"""The memory that each command may hold per row, derived from its data structures and checked by `growth.py`.

Sizes are for 64-bit CPython 3.11, rounded up to the 16 bytes of its allocator. If a structure is created while
another still exists, both count; a buffer of limited size counts only for the rows that fill it.
"""

from __future__ import annotations

from dataclasses import dataclass

ID = 64  # a string of up to 15 ASCII characters: 49 bytes, and a byte per character
TEXT = 144  # ten words
NUMBER = 32  # an integer or a float
SLOT = 9  # an element of a list or an array of 64 bits, which grow by an eighth
ENTRY = 66  # of a dict by strings, just enlarged (16 + 4 * 1.5 bytes, a third filled), and of the dict that it replaces
MEMBER = 80  # of a set, just enlarged, and of the set that it replaces
PAIR = 80  # a tuple of two, with its header for the garbage collector
POSITION = 8  # a number of 64 bits in an array
DIM, TERMS, HITS = 32, 40, 10  # of the generated vectors, weights and runs

_HASHES = SLOT + POSITION + 1  # of all ids; sorted, and compared, to find duplicates
_ENDS = POSITION + 2 * POSITION + 1  # the end of each id, twice while a reader joins ids and computes differences
_POSITIONS = 3 * SLOT + 4 * POSITION  # hash, start and size of a record while read, their order, and sorted by it
_RUN = ID + ENTRY + NUMBER + SLOT + SLOT + SLOT // 2 + 1  # id -> number; start, size, number and a mark of each query
_JUDGED = ID + ENTRY + (64 + 128 + ID)  # a query, and its dict of one document
_QUERY = 64 + ID + TEXT + SLOT  # an object, its id and text, in a list
_READ_QUERY = _QUERY + ENTRY + PAIR + 96 + 64  # with its record (without fields) until all are compared
_EXAMPLE = 80 + ID + (TEXT + 16) + 64 + ID + SLOT + (NUMBER + SLOT)  # an object, id, text, tuple, positive; its line
_QUESTION = 80 + 64 + 64 + 64 + 240 + SLOT  # an object, its query, tuples of ids and examples, a set of one positive
_COPIES = 64 + ENTRY + 90 + 80 + 32 + ID  # a digest, by id and back, in a dict by bytes, with a list of ids


@dataclass(frozen=True)
class Held:
    """Bytes that a command may hold: `row` per row, and `part` for each of the first `rows`.

    Attributes:
        row: Bytes per row.
        what: Description of these bytes.
        part: Bytes per row in a buffer of limited size.
        rows: Number of rows that fill the buffer.
    """

    row: int
    what: str
    part: int = 0
    rows: int = 0

    def at(self, size: int) -> int:
        """The bytes for a number of rows."""
        return self.row * size + self.part * min(size, self.rows)


# A query in a batch to evaluate: its number; the grade by rank, in a tuple; in four dicts; trec_eval's result; three
# values, in dicts by number and by query; pairs of metric and query without a value.
_EVALUATED = ID + (64 + 128 + ID) + 80 + 4 * ENTRY + (64 + 128) + 3 * (NUMBER + 2 * ENTRY + PAIR + MEMBER)
_BATCH = 131_072 // (HITS + 1)

HOLDS = {
    # A shard (8,192) is encoded, another waits, a third is tokenised: id, texts, tuples, and for each of twelve tokens
    # the seven numbers and the string of the Rust tokenizer.
    "encode": Held(_HASHES, "hashes of the ids", 2 * ID + TEXT + 2 * PAIR + 12 * 130, 3 * 8_192),
    "index flat": Held(_ENDS, "ends of ids"),
    # faiss's std::vector doubles; only written pages are in memory, and a copy while it grows.
    "index faiss": Held(_ENDS + POSITION, "ends of ids", 2 * 4 * DIM, 1_000_000),
    # The weights of a part by text and then by term: 4 bytes each for number and value.
    "index sparse": Held(_ENDS + 2 * POSITION, "ends of ids, starts of rows", 2 * (8 * TERMS + 8), 131_072),
    "index dense_sparse": Held(_ENDS + 2 * POSITION, "ends of ids, starts of rows", 2 * (8 * TERMS + 8), 65_536),
    "index bm25": Held(_HASHES, "hashes of the ids (Java's memory is fixed)"),
    "index impact": Held(_ENDS + POSITION, "ends of ids, starts of rows (Java's memory is fixed)"),
    "index lucene_hnsw": Held(_ENDS, "ends of ids (the graph is in Java's memory, which is fixed)"),
    "search": Held(_ENDS, "ends of ids"),
    "search queries": Held(_READ_QUERY + MEMBER, "queries; their ids"),
    "mine-negatives": Held(
        # Examples, their ids and texts during comparison, a copy without negatives; the corpus; questions, by text and
        # position; copies of positives; the run, and its name of each question.
        (_EXAMPLE + ENTRY + PAIR + 80 + MEMBER)
        + _POSITIONS
        + (_QUESTION + ENTRY + 96 + ENTRY + NUMBER)
        + _COPIES
        + (_RUN + ENTRY),
        "examples, positions in the corpus, questions, the run's ids",
        # Hits of the questions searched together (10,240 with --depth 200), and the set of their documents.
        HITS * (ID + PAIR + NUMBER + 2 * SLOT + MEMBER) + 400,
        10_240,
    ),
    # The arrays of token ids of a query and a passage, with their keys.
    "train": Held(_EXAMPLE + _POSITIONS + 2 * (256 + 4 * 12), "examples, positions in the corpus, token ids"),
    "rerank": Held(_READ_QUERY + _RUN + _POSITIONS, "queries, the run's ids, positions in the corpus"),
    # Three metrics have a value per query; a set has the judged ids that are missing in the run.
    "evaluate": Held(_JUDGED + _RUN + 3 * (ENTRY + NUMBER) + MEMBER, "judgements, ids, values", _EVALUATED, _BATCH),
    # For two runs: a value, in two dicts; the first five hits, as objects with a dict each; ranks of relevant hits.
    "compare": Held(
        _JUDGED + _RUN + 2 * (2 * ENTRY + NUMBER + 5 * (64 + 152 + ID + NUMBER + SLOT) + 64 + 104 + 2 * 88) + 150,
        "judgements; values and first hits of each run",
        _EVALUATED,
        _BATCH,
    ),
    "convert": Held(_RUN, "the run's ids"),
    "fuse": Held(2 * _RUN + ENTRY + 64 + SLOT, "both runs' ids, and the queries"),
}
"""The memory that each command may hold."""
