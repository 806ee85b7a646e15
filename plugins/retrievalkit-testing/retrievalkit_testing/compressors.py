"""The conformance tests of compressors: what becomes of the vectors and weights of encoded documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Compressor, Representation
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults, required_values
from retrievalkit_testing.properties import Kit, accepted, fail
from retrievalkit_testing.shared import Subject, share

_DIM, _TERMS = 16, 30
_FORMS = ("vectors", "weights")


class CompressorCase(Subject):
    """A compressor with drawn documents: of several unit vectors, or of weights."""

    def __init__(self, name: str, form: str, options: dict[str, Any]) -> None:
        self.name, self.label, self.options = name, form, options
        self.draws = {
            "documents": sizes(1, 20),
            "vectors": sizes(1, 70),
            "equal": st.booleans(),
            "options": st.sampled_from(off_defaults(registry.get("compressor", name), options, self.create)),
            "seed": SEEDS,
        }
        self.typical = [{"documents": 6, "vectors": 20, "equal": False, "options": {}, "seed": 0}]

    def create(self, options: Any) -> Compressor:
        """A new compressor with these options."""
        made: Compressor = registry.create("compressor", self.name, **options)
        return made

    def created(self, drawn: Drawn) -> Compressor:
        return self.create({**self.options, **drawn["options"]})

    def given(self, drawn: Drawn) -> Representation:
        """Documents whose numbers of vectors differ, unless `equal`."""
        draw, count = np.random.default_rng(drawn["seed"]), drawn["documents"]
        if self.label == "weights":
            weights = draw.random((count, _TERMS), dtype=np.float32)
            return Representation(weights=torch.from_numpy(weights * (weights > 0.5)))
        vectors = torch.from_numpy(draw.standard_normal((count, drawn["vectors"], _DIM), dtype=np.float32))
        vectors = torch.nn.functional.normalize(vectors, dim=-1)
        if drawn["equal"]:
            return Representation(vectors)
        counts = torch.from_numpy(draw.integers(1, drawn["vectors"] + 1, count))
        counts[0] = drawn["vectors"]
        mask = torch.arange(drawn["vectors"]) < counts[:, None]
        return Representation(vectors * mask[:, :, None], mask)

    def call(self, component: Compressor, given: Representation) -> Representation:
        return component.compress(given)

    def read(self, given: Representation, found: Representation) -> list[dict[str, Any]]:  # noqa: ARG002 - by contract
        """The vectors and the weights of each document, without padding."""
        rows: list[dict[str, Any]] = [{} for _ in range(len(found))]
        for row, one in enumerate(rows):
            if found.vectors is not None:
                one["vectors"] = found.vectors[row] if found.vector_mask is None else (
                    found.vectors[row][found.vector_mask[row]]
                )  # fmt: skip
            if found.weights is not None:
                one["weights"] = found.weights[row]
        return rows

    def chosen(self, given: Representation, rows: Sequence[int]) -> Representation:
        return given.rows(torch.tensor(rows, dtype=torch.long))

    def near(self, given: Representation) -> Representation:
        if given.vectors is None:
            assert given.weights is not None
            return replace(given, weights=given.weights * 1.01)
        return replace(given, vectors=given.vectors.roll(1, dims=-1))

    def check_form(self, given: Representation, found: Any) -> None:
        if not isinstance(found, Representation) or len(found) != len(given):
            kind = f"{len(found)} documents" if isinstance(found, Representation) else type(found).__name__
            fail("`compress` does not return a Representation of the same documents", expected=len(given), found=kind)
        for name in ("vectors", "weights"):
            before, after = getattr(given, name), getattr(found, name)
            if (before is None) != (after is None):
                fail(f"documents lose or gain {name}", expected=name if before is not None else None, found=after)
            if before is None:
                continue
            if after.shape[-1] != before.shape[-1] or after.dtype != torch.float32 or after.device.type != "cpu":
                shown = f"{after.shape[-1]} {after.dtype} on {after.device}"
                fail(f"{name} have another width, type or device", expected=f"{before.shape[-1]} float32", found=shown)
            if not bool(after.isfinite().all()):
                fail(f"{name} are not finite", found=after[~after.isfinite()][:3].tolist())
        if found.vectors is not None and found.vector_mask is not None and not found.vector_mask.any(dim=1).all():
            fail("a document has no vector left", expected="one or more", found=0)
        if found.weights is not None and bool((found.weights < 0).any()):
            fail("a weight is negative", expected="0 or more", found=float(found.weights.min()))


def _cases(name: str, **options: Any) -> list[CompressorCase]:
    options = {**required_values(registry.get("compressor", name), options), **options}
    cases = [CompressorCase(name, form, options) for form in _FORMS]
    none = "it compresses neither vectors nor weights."
    return accepted(cases, lambda case: case.call(case.create(options), case.given(case.typical[0])), none=none,
                    method="compress")  # fmt: skip


def _behaviour(case: CompressorCase, options: Any) -> list[Any]:
    made = case.create(options)
    answers = (case.answer(made, case.given({**case.typical[0], "seed": seed})) for seed in range(3))
    # As lists, because documents with other numbers of vectors cannot be subtracted.
    return [{name: part.tolist() for name, part in row.items()} for rows in answers for row in rows]


COMPRESSORS: Kit[CompressorCase] = Kit(
    "compressor", _cases, method="compress", unchecked="how much worse the documents are found"
)
share(COMPRESSORS, rows=True, threads=True, options=_behaviour)
