"""The properties of an encoder's states: layers, padding, batches, precision, gradients, and what is saved."""

from __future__ import annotations

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from retrievalkit import registry
from retrievalkit.contracts import SIDES, Batch, Encoder, ExtraTokens, Needs
from retrievalkit.errors import UnsupportedError
from retrievalkit.testing.encoder_cases import ENCODERS, WORDS, EncoderCase
from retrievalkit.testing.properties import PropertyError, expect_close, expect_equal

_ALIKE = 0.99
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


@ENCODERS.property(after=["batch_fields"])
def shape_of_states(case: EncoderCase) -> None:
    """There are states of the layers that are asked for, as wide as `info` says, finite and in float32."""
    batch = case.batch(WORDS)
    for asked in (range(case.last + 1), [0], [case.last]):
        states = case.states(batch, asked)
        if sorted(states.layers) != sorted(asked):
            msg = "it gives other layers than were asked for"
            raise PropertyError(msg, expected=sorted(asked), found=sorted(states.layers), method="forward")
        for layer, values in states.layers.items():
            shape = (*batch.input_ids.shape, case.encoder.info.width)
            if tuple(values.shape) != shape or values.dtype != torch.float32:
                found = f"{tuple(values.shape)} {values.dtype}"
                msg = f"the states of layer {layer} have another shape or type"
                raise PropertyError(msg, expected=f"{shape} torch.float32", found=found, method="forward")
            if not values[batch.attention_mask.bool()].isfinite().all():
                msg_0 = f"the states of layer {layer} are not finite"
                raise PropertyError(msg_0, method="forward")
    for field in ("attention_mask", "input_ids", "special_mask"):
        if not torch.equal(getattr(states, field), getattr(batch, field)):
            msg = f"`{field}` of the states is not that of the batch"
            raise PropertyError(msg, method="forward")


@ENCODERS.property(after=["shape_of_states"])
def layer_numbers(case: EncoderCase) -> None:
    """Layer 0 is the embeddings, which know nothing of other tokens; each higher one differs from the one below."""
    one, other = (
        case.batch([("", f"{word} is the capital of france and people speak the language")])
        for word in ("rome", "lima")
    )
    if one.input_ids.shape != other.input_ids.shape:
        msg = "two names of cities have different numbers of tokens."
        raise UnsupportedError(msg)
    same = (one.input_ids == other.input_ids)[0] & ~one.special_mask[0]
    numbers = range(case.last + 1)
    states, turned = case.states(one, numbers).layers, case.states(other, numbers).layers
    for layer in numbers:
        gap = float((states[layer] - turned[layer])[0][same].abs().max())
        if (layer == 0) != (gap == 0):
            has = "depends on other words" if layer == 0 else "knows nothing of other words"
            msg = f"layer {layer} {has}: is it the layer of another number?"
            raise PropertyError(msg, difference=gap, method="forward")
        if layer and torch.equal(states[layer], states[layer - 1]):
            msg_0 = f"layers {layer - 1} and {layer} are equal"
            raise PropertyError(msg_0, method="forward")
        alone = case.states(one, [layer]).layers[layer]
        expect_close(f"layer {layer} differs when it alone is asked for", alone, states[layer], method="forward")
    try:
        embedded = case.encoder.embed(one)
    except UnsupportedError:
        return
    expect_close("`embed` differs from layer 0", embedded.detach(), states[0], method="embed")


@ENCODERS.property(after=["shape_of_states"])
def padding(case: EncoderCase) -> None:
    """Padding, and a batch's size and order, change no state of a real token."""
    for side in SIDES:
        for texts in (WORDS, WORDS[::-1]):
            states = case.states(case.batch(texts, side))
            for row, text in enumerate(texts):
                msg = f"{side} '{text[1][:20]}' has other states in a batch of {len(texts)} than alone"
                expect_close(msg, case.of_text(states, row), case.alone(text, side), **_TOLERANCE, method="forward")  # type: ignore[arg-type]


@ENCODERS.property(after=["shape_of_states"])
def masked_tokens(case: EncoderCase) -> None:
    """What stands where the attention mask is 0 changes no state of a real token."""
    batch = case.batch(WORDS)
    ordinary = int(batch.input_ids[0][(batch.attention_mask[0] == 1) & ~batch.special_mask[0]][0])
    filled = batch.input_ids.masked_fill(batch.attention_mask == 0, ordinary)
    states = case.states(batch)
    others = case.states(Batch(filled, batch.attention_mask, batch.special_mask, batch.extra))
    for row in range(len(WORDS)):
        msg = f"other tokens under the padding of text {row} change its states: the attention mask is ignored"
        expect_close(msg, case.of_text(others, row), case.of_text(states, row), **_TOLERANCE, method="forward")  # type: ignore[arg-type]


@ENCODERS.property(after=["shape_of_states"])
def same_twice(case: EncoderCase) -> None:
    """In eval mode the same batch has the same states twice: dropout is off."""
    batch = case.batch(WORDS)
    again = case.states(batch).last
    expect_equal("the same batch has other states the second time", case.states(batch).last, again, method="forward")


@ENCODERS.property(after=["shape_of_states"])
def bf16(case: EncoderCase) -> str:
    """In bf16 the states are finite, and close to those in fp32."""
    batch = case.batch(WORDS)
    real = batch.attention_mask.bool()
    exact = case.states(batch).last[real]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = case.states(batch).last[real].float()
    alike = float(torch.nn.functional.cosine_similarity(exact, rounded, dim=-1).min())
    if not rounded.isfinite().all() or not alike > _ALIKE:
        msg = "a token's states in bf16 are not finite, or far from those in fp32 (their cosine)"
        raise PropertyError(msg, expected=f"above {_ALIKE}", found=alike, method="forward")
    return f"cosine {alike:.4f} or more"


@ENCODERS.property(after=["shape_of_states"])
def gradients(case: EncoderCase) -> str:
    """Every trainable parameter gets a finite gradient from the last layer."""
    encoder = case.prepared(Needs()).train()
    states = encoder(case.batch(WORDS, encoder=encoder), [encoder.info.layers]).last
    if not states.requires_grad:
        msg = "no gradient reaches the encoder"
        raise PropertyError(msg, method="forward")
    torch.autograd.backward((states * torch.randn(states.shape[-1])).sum())
    trainable = {name: one for name, one in encoder.named_parameters() if one.requires_grad}
    if missing := [name for name, one in trainable.items() if one.grad is None]:
        msg = f"the last layer's states give no gradient to '{missing[0]}'"
        raise PropertyError(msg, expected=len(trainable), found=len(trainable) - len(missing), method="forward")
    if wrong := [name for name, one in trainable.items() if one.grad is None or not one.grad.isfinite().all()]:
        msg_0 = f"the gradient of '{wrong[0]}' is not finite"
        raise PropertyError(msg_0, method="forward")
    return f"{len(trainable)} parameters"


@ENCODERS.property(after=["shape_of_states"])
def vocabulary_head(case: EncoderCase) -> None:
    """The vocabulary head, where it is offered, gives a logit to each entry of the vocabulary."""
    if "vocabulary_head" not in case.encoder.offers:
        msg = "it offers no vocabulary head."
        raise UnsupportedError(msg)
    encoder = case.prepared(Needs(vocabulary_head=True))
    states = case.states(case.batch(WORDS, encoder=encoder), encoder=encoder)
    if states.head is None:
        msg = "a pooler asks for the head and gets none"
        raise PropertyError(msg, method="forward")
    logits = states.head(states.last)
    shape = (*states.last.shape[:2], encoder.info.vocabulary_size)
    if tuple(logits.shape) != shape or not logits.isfinite().all():
        msg = "logits have another shape, or are not finite"
        raise PropertyError(msg, expected=shape, found=tuple(logits.shape), method="forward")


@ENCODERS.property(after=["shape_of_states"])
def saved(case: EncoderCase) -> None:
    """A changed encoder, saved and loaded, has the same tokens and states, bit by bit, and the same files."""
    extra = {"document": ExtraTokens(2, position=None)} if "extra_tokens" in case.encoder.offers else {}
    needs = Needs(extra_tokens=extra)
    encoder = case.prepared(needs)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in encoder.parameters():
            one.add_(0.01 * torch.randn(one.shape, generator=generator))
    # What a tokenizer remembers of its last call should not be saved.
    batch = case.batch(WORDS, encoder=encoder)
    with TemporaryDirectory(prefix="rkit-check-") as place:
        folders = Path(place, "first"), Path(place, "second")
        for folder in folders:
            folder.mkdir()
        encoder.save(folders[0])
        loaded: Encoder = registry.create("encoder", case.name, str(folders[0]), **case.options)
        loaded.prepare(needs)
        loaded.eval()
        loaded.save(folders[1])
        first, second = (_weights(folder) for folder in folders)
    ids, again = (one.tokenize(WORDS, "document") for one in (encoder, loaded))
    if ids != again:
        msg = "texts have other tokens once it was loaded"
        raise PropertyError(msg, expected=ids[0], found=again[0], method="save")
    states = [case.states(batch, encoder=one).last for one in (loaded, encoder)]
    expect_equal("it has other states once it was loaded", *states, method="save")
    if first != second:
        changed = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        msg = "saved again, files have other bytes"
        raise PropertyError(msg, found=changed, method="save")


def _weights(folder: Path) -> dict[str, str]:
    files = sorted(one for one in folder.rglob("*") if one.is_file() and one.suffix != ".json")
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


@ENCODERS.property(after=["shape_of_states"])
def lean(case: EncoderCase) -> None:
    """`lean`, which may start quicker, gives the same states."""
    encoder = type(case.encoder).lean(case.model, **case.options)
    encoder.prepare(Needs())
    encoder.eval()
    for side in SIDES:
        batch = case.batch(WORDS, side, encoder)
        if not torch.equal(batch.input_ids, case.batch(WORDS, side).input_ids):
            msg = f"a lean one gives a {side} other tokens"
            raise PropertyError(msg, method="lean")
        states = case.states(batch, encoder=encoder).last
        real = batch.attention_mask.bool()
        expect_close("a lean one has other states", states[real], case.states(batch).last[real], method="lean")
