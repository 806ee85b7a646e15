"""The properties of a pooler's output: its form, padding, order and size of batches, texts of every length."""

from __future__ import annotations

import torch

from retrievalkit.contracts import SIDES, Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.model.precision import autocast
from retrievalkit.testing.option_effects import expect_typed_keywords
from retrievalkit.testing.pooler_cases import POOLERS, TEXTS, PoolerCase, expect_finite, pooled, values_of
from retrievalkit.testing.properties import expect_close, expect_equal, fail
from retrievalkit.testing.token_states import left_padded, of_one, repeated, selected, widened


@POOLERS.property(once=True)
def options_typed(case: PoolerCase) -> None:
    """Options are keyword-only arguments with types, which the defaults fit."""
    expect_typed_keywords(type(case.pooler()), positional=1)


@POOLERS.property()
def output(case: PoolerCase) -> None:
    """A text has at least one vector, or weights, of the shapes that the contract names."""
    for side in SIDES:
        for training in (False, True):
            pooler, states = case.pooler().train(training), case.states(side, training=training)
            with torch.no_grad():
                found = pooler(states, side)
            problem = _problem_of_form(found, len(TEXTS))
            if problem:
                mode = "training" if training else "eval"
                fail(f"{side} in {mode} mode: {problem[0]}", expected=problem[1], found=problem[2])


def _problem_of_form(found: object, texts: int) -> tuple[str, object, object] | None:
    """What is wrong with the shapes of an output, what is expected, what was found; None if nothing is."""
    if not isinstance(found, Representation):
        return "it returns no Representation", "Representation", type(found).__name__
    if len(found) != texts:
        return "there is not one row for each text", texts, len(found)
    vectors, mask, weights = found.vectors, found.vector_mask, found.weights
    if mask is not None and (vectors is None or mask.shape != vectors.shape[:2] or mask.dtype != torch.bool):
        expected = None if vectors is None else tuple(vectors.shape[:2])
        return "vector_mask does not fit the vectors", f"bool {expected}", f"{mask.dtype} {tuple(mask.shape)}"
    if vectors is not None and (not vectors.shape[1] or (mask is not None and not mask.any(dim=1).all())):
        return "a text has no vector", "at least one", 0
    if weights is not None and weights.dim() != 2:
        return "weights are not (batch, vocabulary)", "2 axes", tuple(weights.shape)
    if found.kept is not None and (vectors is None or not 0 <= found.kept < vectors.shape[1]):
        return "kept is the number of no vector", "less than the number of vectors", found.kept
    ends = [columns.stop for columns in (found.parts or {}).values()]
    if ends and (vectors is None or max(ends) > vectors.shape[2]):
        return "parts go beyond the vectors", "at most their size", max(ends)
    return None


@POOLERS.property(after=("output",))
def states_unchanged(case: PoolerCase) -> None:
    """The states of the encoder are not changed in place."""
    for side in SIDES:
        for training in (False, True):
            before, states = (case.states(side, training=training) for _ in range(2))
            with torch.no_grad():
                case.pooler().train(training)(states, side)
            for number, layer in before.layers.items():
                problem = f"{side}: the states of layer {number} are changed in place"
                expect_equal(problem, states.layers[number], layer, method="forward")
            for name in ("attention_mask", "input_ids", "special_mask"):
                problem = f"{side}: {name} is changed in place"
                expect_equal(problem, getattr(states, name), getattr(before, name), method="forward")


@POOLERS.property(after=("output",))
def no_draws_in_eval(case: PoolerCase) -> None:
    """In eval mode nothing is drawn at random: dropout is off."""
    for side in SIDES:
        seen = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            seen.append(values_of(pooled(case.pooler(), case.states(side), side)))
        problem = f"{side}: another seed changes the output in eval mode (dropout that is left on?)"
        expect_equal(problem, seen[1], seen[0], method="forward")


@POOLERS.property(after=("output", "no_draws_in_eval"))
def same_twice(case: PoolerCase) -> None:
    """The same texts give the same output the second time, in bytes."""
    for side in SIDES:
        pooler = case.pooler()
        first, _, again = (
            values_of(pooled(pooler, case.states(one), one)) for one in (side, SIDES[side == SIDES[0]], side)
        )
        expect_equal(f"{side}: the output is another one the second time", again, first, method="forward")


@POOLERS.property(after=("output",))
def finite(case: PoolerCase) -> None:
    """All values are finite."""
    for side in SIDES:
        expect_finite(side, pooled(case.pooler(), case.states(side), side))


@POOLERS.property(after=("output",))
def sides_agree(case: PoolerCase) -> None:
    """Queries and documents have vectors and weights of the same sizes, so that they can be compared."""
    for training in (False, True):
        found = {
            side: pooled(case.pooler().train(training), case.states(side, training=training), side) for side in SIDES
        }
        for what in ("vectors", "weights"):
            tensors = {side: getattr(found[side], what) for side in SIDES}
            sizes = {side: 0 if one is None else one.shape[-1] for side, one in tensors.items()}
            if sizes["query"] != sizes["document"]:
                problem = f"{what} of queries and documents differ in size, so that no two can be compared"
                fail(
                    problem,
                    expected=f"{sizes['query']} as of queries",
                    found=f"{sizes['document']} of documents",
                    difference=abs(sizes["query"] - sizes["document"]),
                    method="forward",
                )


@POOLERS.property(after=("output", "finite"))
def weights_not_negative(case: PoolerCase) -> None:
    """Weights over a vocabulary are 0 or above."""
    found = {side: pooled(case.pooler(), case.states(side), side).weights for side in SIDES}
    if all(one is None for one in found.values()):
        msg = "it makes no weights."
        raise UnsupportedError(msg)
    for side, weights in found.items():
        if weights is not None and weights.min() < 0:
            least = float(weights.min())
            fail(
                f"{side}: weights are negative", expected="0 or above", found=least, difference=-least, method="forward"
            )


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice"))
def padding(case: PoolerCase) -> None:
    """Padding on the right, whatever its states are, changes nothing."""
    for side in case.padded_sides():
        for row in range(len(TEXTS)):
            text = of_one(case.states(side), row)
            expected, found = (values_of(pooled(case.pooler(), one, side)) for one in (text, widened(text, 3)))
            expect_close(f"{side}: padding on the right changes the output", found, expected, method="forward")


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice", "padding"))
def padding_left(case: PoolerCase) -> None:
    """Padding on the left, as of some decoders, gives what padding on the right gives."""
    for side in case.padded_sides():
        expected = values_of(pooled(case.pooler(), case.states(side), side))
        found = values_of(pooled(case.pooler(), left_padded(widened(case.states(side), 3)), side))
        expect_close(f"{side}: padding on the left changes the output", found, expected, method="forward")


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice"))
def batch_order(case: PoolerCase) -> None:
    """The order of a batch changes nothing."""
    for side in SIDES:
        turned = torch.arange(len(TEXTS)).flip(0)
        expected = pooled(case.pooler(), case.states(side), side)
        found = pooled(case.pooler(), selected(case.states(side), turned), side).rows(turned)
        expect_close(f"{side}: the order of the batch changes the output", values_of(found), values_of(expected))


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice", "batch_order"))
def batch_size(case: PoolerCase) -> None:
    """A text gives the same whatever other texts are in its batch."""
    for side in SIDES:
        together = pooled(case.pooler(), case.states(side), side)
        for row in range(len(TEXTS)):
            one = slice(row, row + 1)
            alone = pooled(case.pooler(), selected(case.states(side), torch.tensor([row])), side)
            problem = f"{side}: the size of the batch changes the output"
            expect_close(problem, values_of(alone), values_of(together.rows(one)), method="forward")


@POOLERS.property(after=("output", "finite", "padding", "batch_order", "batch_size"))
def encoded_alone(case: PoolerCase) -> None:
    """With its encoder a text gives the same alone as in a batch, where it is padded."""
    for side in SIDES:
        retriever = case.retriever()
        together = retriever.encode(TEXTS, side)
        for row, text in enumerate(TEXTS):
            alone = retriever.encode([text], side)
            problem = f"{side}: padding or batch size changes the output"
            expect_close(problem, values_of(alone), values_of(together.rows(slice(row, row + 1))), method="forward")


@POOLERS.property(after=("output", "finite"))
def one_token(case: PoolerCase) -> None:
    """A text of one token has a finite output."""
    for side in SIDES:
        expect_finite(f"{side}, a text of one token", pooled(case.pooler(), case.states(side, [("", "rome")]), side))


@POOLERS.property(after=("output", "finite"))
def empty_text(case: PoolerCase) -> None:
    """A text without words, of special tokens alone or of no token, has a finite output."""
    for side in SIDES:
        found = pooled(case.pooler(), case.states(side, [("", ""), TEXTS[0]]), side)
        expect_finite(f"{side}, a text of special tokens alone", found)


@POOLERS.property(after=("output", "finite"))
def long_text(case: PoolerCase) -> None:
    """A text of 512 tokens has a finite output, in bf16 too."""
    for side in SIDES:
        states = repeated(case.states(side), 512)
        expect_finite(f"{side}, a text of 512 tokens", pooled(case.pooler(), states, side))
        with autocast("bf16", torch.device("cpu")):
            expect_finite(f"{side}, a text of 512 tokens in bf16", pooled(case.pooler(), states, side))


@POOLERS.property(after=("output", "finite", "empty_text"))
def finite_in_bf16(case: PoolerCase) -> None:
    """In bf16 all values are finite."""
    for side in SIDES:
        found = case.retriever().encode([*TEXTS, ("", "")], side, precision="bf16")
        expect_finite(f"{side}, in bf16", found)
