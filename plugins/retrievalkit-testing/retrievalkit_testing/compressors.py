"""The conformance tests of compressors: the remaining vectors and weights of encoded documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from retrievalkit import registry
from retrievalkit.contracts import Compressor, Representation
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults
from retrievalkit_testing.properties import Kit, accepted, expect, tried
from retrievalkit_testing.shared import Subject, share

_DIM, _TERMS = 16, 30
_FORMS = ("vectors", "weights")


class CompressorCase(Subject):
    """A compressor with drawn documents: of several unit vectors, or of weights."""

    kind = "compressor"

    def __init__(self, name: str, form: str, options: dict[str, Any]) -> None:
        super().__init__(name, form, options)
        settings = off_defaults(self, registry.get("compressor", name))
        self.draws = {"documents": sizes(1, 20), "vectors": sizes(1, 70), "equal": (False, True), "options": settings}
        self.draws |= {"seed": SEEDS}
        self.typical = [{"documents": 6, "vectors": 20, "equal": False, "options": {}, "seed": 0}]

    def inputs(self, drawn: Drawn) -> Representation:
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

    def call(self, component: Compressor, inputs: Representation) -> Representation:
        return component.compress(inputs)

    def read(self, inputs: Representation, result: Representation) -> list[dict[str, Any]]:  # noqa: ARG002 - by contract
        """Return the vectors and the weights of each document, without padding."""
        vectors, mask, rows = result.vectors, result.vector_mask, []
        for row in range(len(result)):
            kept = None if vectors is None else vectors[row] if mask is None else vectors[row][mask[row]]
            rows.append({"vectors": kept} if result.weights is None else {"weights": result.weights[row]})
        return rows

    def chosen(self, inputs: Representation, rows: Sequence[int]) -> Representation:
        return inputs.rows(torch.tensor(rows, dtype=torch.long))

    def near(self, inputs: Representation) -> Representation:
        if inputs.weights is not None:
            return replace(inputs, weights=inputs.weights * 1.01)
        assert inputs.vectors is not None
        return replace(inputs, vectors=inputs.vectors.roll(1, dims=-1))

    def check_form(self, inputs: Representation, result: Any) -> None:
        fits = isinstance(result, Representation) and len(result) == len(inputs)
        problem = "`compress` does not return a Representation of the same documents"
        expect(fits, problem, expected=len(inputs), actual=len(result) if hasattr(result, "__len__") else result)
        for name in _FORMS:
            before, after = getattr(inputs, name), getattr(result, name)
            expect((before is None) == (after is None), f"documents lose or gain {name}")
            if before is None:
                continue
            expected, actual = ((one.shape[-1], one.dtype, one.device) for one in (before, after))
            expect(actual == expected, f"{name} have another width, type or device", expected=expected, actual=actual)
            expect(after.isfinite().all(), f"{name} are not finite", actual=after[~after.isfinite()][:3].tolist())
        kept = result.vector_mask is None or result.vector_mask.any(dim=1).all()
        expect(kept, "a document has no vector left")
        expect(result.weights is None or (result.weights >= 0).all(), "a weight is negative")


def _cases(name: str, **options: Any) -> list[CompressorCase]:
    def case(form: str) -> CompressorCase:
        made = CompressorCase(name, form, options)
        return tried(made, lambda one: one.call(one.create(one.options), one.inputs(one.typical[0])))

    return accepted([partial(case, form) for form in _FORMS], none="it compresses neither vectors nor weights.")


COMPRESSORS: Kit[CompressorCase] = Kit(
    "compressor", _cases, method="compress", unchecked="the loss in retrieval quality"
)
share(COMPRESSORS, rows=True, threads=True, options=True)
