"""The cases: what is timed against what, when outputs count as equal, and the ratio to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Check = Literal["cosine", "hits", "difference", "none"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pair, or ours alone.

    Attributes:
        name: In ONLY= and of the file of results.
        what: Said to people.
        ours: The function in ours.py.
        peer: Who the peer is, said to people; "" = there is none, and the target is a time.
        theirs: Script in peers/ and its function.
        unit: What is counted.
        amount: The option whose value is how many are done in a round; or the number itself.
        target: The ratio to reach; without a peer the seconds.
        options: Given to both sides.
        only_ours: Given to our side alone.
        only_theirs: Given to the peer alone.
        check: How outputs are compared: the smallest cosine, the share of the same hits, or the largest
            difference of values.
        tolerance: The least cosine or share, the largest difference.
        venv: The peer's environment.
        small: Options of a pair that takes seconds, for the guard.
        guarded: Whether the guard tries it.
        grows: Option -> its values, for the figure of growth.
    """

    name: str
    what: str
    ours: str
    peer: str = ""
    theirs: tuple[str, str] = ("", "")
    unit: str = "texts"
    amount: str | int = "count"
    target: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    only_ours: Mapping[str, Any] = field(default_factory=dict)
    only_theirs: Mapping[str, Any] = field(default_factory=dict)
    check: Check = "none"
    tolerance: float = 0.0
    venv: str = ".venv-bench"
    small: Mapping[str, Any] = field(default_factory=dict)
    guarded: bool = False
    grows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


_ENCODE = {"ours": "encode", "theirs": ("sentence", "encode"), "check": "cosine", "tolerance": 0.9999}
_TRAIN = {
    "ours": "train",
    "theirs": ("sentence", "train"),
    "unit": "examples",
    "check": "difference",
    "tolerance": 0.05,
}

CASES = (
    Case(
        name="encode",
        what="encode passages of mixed length, both at defaults",
        peer="sentence-transformers encode",
        target=4,
        options={"count": 512},
        only_ours={"precision": "auto"},
        **_ENCODE,
        small={"count": 128},
        guarded=True,
        grows={"count": (64, 256, 1024), "length": (8, 32, 128)},
    ),
    Case(
        name="encode_fp32",
        what="the same, both fp32",
        peer="sentence-transformers encode",
        target=1.6,
        options={"count": 512},
        only_ours={"precision": "fp32"},
        **_ENCODE,
    ),
    Case(
        name="encode_command",
        what="`rkit encode`, start-up included, files written",
        ours="encode_command",
        peer="a script of sentence-transformers",
        theirs=("sentence", "encode_command"),
        target=3,
        options={"count": 2000},
        check="cosine",
        tolerance=0.9999,
    ),
    Case(
        name="query",
        what="encode a query, median latency",
        ours="query",
        peer="sentence-transformers encode",
        theirs=("sentence", "query"),
        unit="queries",
        target=1.3,
        options={"count": 100},
        check="cosine",
        tolerance=0.9999,
        small={"count": 50},
        guarded=True,
    ),
    Case(
        name="train",
        what="train with a hard negative, batch 64, length to 256",
        peer="SentenceTransformerTrainer, MultipleNegativesRankingLoss",
        amount=128,
        target=5,
        options={"batch": 64, "steps": 2, "length": 256},
        **_TRAIN,
        small={"batch": 32, "steps": 1},
        guarded=True,
        grows={"batch": (8, 16, 32, 64)},
    ),
    Case(
        name="train_cached",
        what="train, batch 512 in bounded memory, length to 128",
        peer="the same trainer, CachedMultipleNegativesRankingLoss",
        amount=512,
        target=4,
        options={"batch": 512, "steps": 1, "length": 128, "negatives": 0, "micro": 32},
        **_TRAIN,
    ),
)
