"""Poolers with one fault each, and the property that must find it: most are a built-in one with one thing changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from retrievalkit import hookimpl
from retrievalkit.builtin.poolers.colbert import ColBERT
from retrievalkit.builtin.poolers.single_vector import Cls, Mean, masked_mean
from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates
from retrievalkit.lexical import max_saturated, text_mask


class MeanOverPadding(Mean):
    """The mask is forgotten."""

    found_by = "padding"
    says = "query: padding on the right changes the output"

    def pool(self, hidden, mask):
        return hidden.mean(dim=1)


class MaxOverPadding(Mean):
    """Padding is set to 0, which is above many a maximum."""

    found_by = "padding"

    def pool(self, hidden, mask):
        return torch.cat([hidden * mask[:, :, None], hidden.new_zeros(len(hidden), 1, hidden.shape[2])], 1)[
            :, :-1
        ].amax(1)


class DividesByTheWidth(Mean):
    """The masked sum, divided by the number of tokens with padding."""

    found_by = "padding"

    def pool(self, hidden, mask):
        return masked_mean(hidden, mask) * mask.sum(dim=1, keepdim=True) / mask.shape[1]


class SoftmaxBeforeTheMask(Mean):
    """The weights of tokens are a softmax over padding too, which is masked after it."""

    found_by = "padding"

    def pool(self, hidden, mask):
        weights = hidden.mean(dim=2).softmax(dim=1) * mask
        return (weights[:, :, None] * hidden.masked_fill(mask[:, :, None] == 0, 0.0)).sum(dim=1)


class VectorsOfPadding(ColBERT):
    """The mask of vectors is left out."""

    found_by = "padding"

    def forward(self, states, side):
        return Representation(super().forward(states, side).vectors)


class MaxOverNothing(Mean):
    """The maximum over the words of a text that has none is -inf."""

    found_by = "empty_text"

    def forward(self, states, side):
        hidden = states.last.masked_fill(~text_mask(states)[:, :, None], -torch.inf)
        return Representation(hidden.amax(dim=1, keepdim=True))


class NoVectorWithoutWords(ColBERT):
    """A text without words has no vector at all."""

    found_by = "empty_text"

    def forward(self, states, side):
        return Representation(super().forward(states, side).vectors, text_mask(states))


class AssumesRightPadding(Mean):
    """The first column, which with padding on the left is padding."""

    found_by = "padding_left"

    def pool(self, hidden, mask):
        return hidden[:, 0]


class LastByLength(Mean):
    """The last token by the length of the text, as if padding were on the right."""

    found_by = "padding_left"

    def pool(self, hidden, mask):
        return hidden[torch.arange(len(mask)), (mask.sum(dim=1) - 1).clamp(min=0)]


class WeighsByColumn(Mean):
    """Tokens are weighed by their column, not by their place in the text."""

    found_by = "padding_left"

    def pool(self, hidden, mask):
        weights = torch.arange(1, mask.shape[1] + 1) * mask
        hidden = hidden.masked_fill(mask[:, :, None] == 0, 0.0)
        return (hidden * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


class DropoutLeftOn(Mean):
    """Dropout does not ask for the mode."""

    found_by = "no_draws_in_eval"

    def pool(self, hidden, mask):
        return functional.dropout(super().pool(hidden, mask), 0.1)


class ChangesStates(Mean):
    """The states of the encoder are masked in place."""

    found_by = "states_unchanged"

    def pool(self, hidden, mask):
        return hidden.mul_(mask[:, :, None]).sum(dim=1)


class ChangesTheMask(Mean):
    """The attention mask is changed in place."""

    found_by = "states_unchanged"

    def forward(self, states, side):
        states.attention_mask[:, 0] = 1
        states.special_mask[:, 0] = False
        states.attention_mask[:, -1] = 0
        return super().forward(states, side)


class RemembersTheLast(Mean):
    """Something of the batch before is added."""

    found_by = "same_twice"
    before = 0.0

    def pool(self, hidden, mask):
        pooled = super().pool(hidden, mask)
        self.before, added = float(pooled.mean()), self.before
        return pooled + added


class WrongAxis(Mean):
    """Normalised over the batch."""

    found_by = "batch_size"

    def pool(self, hidden, mask):
        return functional.normalize(super().pool(hidden, mask), dim=0)


class CentredInTheBatch(Mean):
    """The mean of the batch is subtracted."""

    found_by = "batch_size"

    def pool(self, hidden, mask):
        pooled = super().pool(hidden, mask)
        return pooled - pooled.mean(dim=0)


class SqueezesOneText(Mean):
    """A batch of one text loses its axis."""

    found_by = "batch_size"

    def pool(self, hidden, mask):
        return super().pool(hidden, mask).squeeze(0)


class WeighsByRow(Mean):
    """The row of a text in its batch counts."""

    found_by = "batch_order"
    says = "the order of the batch changes the output"

    def pool(self, hidden, mask):
        return super().pool(hidden, mask) * torch.arange(1, len(hidden) + 1)[:, None]


class SpreadOfOne(Mean):
    """The standard deviation of the words, of which a text may have one alone."""

    found_by = "one_token"

    def forward(self, states, side):
        words = text_mask(states)[:, :, None]
        count = words.sum(dim=1)
        hidden = states.last.masked_fill(~words, 0.0)
        mean = hidden.sum(dim=1) / count.clamp(min=1)
        squares = (hidden - mean[:, None]).masked_fill(~words, 0.0).square().sum(dim=1)
        return Representation(torch.where(count > 0, squares / (count - 1), 0.0)[:, None])


class OverflowsInLongTexts(Mean):
    """The n-th token has the weight 2 to the n."""

    found_by = "long_text"

    def pool(self, hidden, mask):
        weights = 2.0 ** mask.cumsum(dim=1) * mask
        hidden = hidden.masked_fill(mask[:, :, None] == 0, 0.0)
        return (hidden * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


class NotFinite(Mean):
    """A division by zero."""

    found_by = "finite"
    says = "query: some values are not finite"

    def pool(self, hidden, mask):
        return super().pool(hidden, mask) / 0


class Detached(Mean):
    """The graph is cut."""

    found_by = "gradient"
    says = "query: no gradient reaches layer 2 of the encoder"

    def pool(self, hidden, mask):
        return super().pool(hidden.detach(), mask)


class DeafToTheEncoder(Mean):
    """A learned vector for every text."""

    found_by = "gradient"
    says = "no gradient reaches the encoder"

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.vector = nn.Parameter(torch.ones(1, info.width))

    def pool(self, hidden, mask):
        return self.vector.expand(len(hidden), -1)


class DetachedQueries(Mean):
    """The graph of one side is cut."""

    found_by = "gradient"

    def forward(self, states, side):
        made = super().forward(states, side)
        return made.detach() if side == "query" else made


class DetachedLayer(Pooler):
    """The graph of one of two layers is cut."""

    found_by = "gradient"
    needs = Needs(layers=(0, -1))

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__()

    def forward(self, states: TokenStates, side: Side) -> Representation:
        layers = [masked_mean(states.last, states.attention_mask)]
        layers.append(masked_mean(states.layers[0].detach(), states.attention_mask))
        return Representation(torch.stack(layers, dim=1)[:, : None if side == "document" else 1])


class UnusedParameter(Mean):
    """A layer that is never called."""

    found_by = "parameters_trained"

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.projection = nn.Linear(info.width, info.width)


class FrozenByNumber(Mean):
    """A parameter is used as a number, which has no gradient."""

    found_by = "parameters_trained"

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.scale = nn.Parameter(torch.ones(1))

    def pool(self, hidden, mask):
        return super().pool(hidden, mask) * self.scale.item()


class SidesDiffer(Mean):
    """Queries are shorter than documents."""

    found_by = "sides_agree"

    def forward(self, states, side):
        vectors = super().forward(states, side).vectors
        return Representation(vectors[..., :8] if side == "query" else vectors)


class NegativeWeights(Pooler):
    """Logits as weights over the vocabulary."""

    found_by = "weights_not_negative"
    needs = Needs(vocabulary_head=True)

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__()

    def forward(self, states: TokenStates, side: Side) -> Representation:
        weights = max_saturated(states.last, states.head, states.attention_mask.bool())
        return Representation(weights=weights - 0.1)


class RunningMean(Mean):
    """Centred by a running mean, which is not saved."""

    found_by = "trained_state_saved"

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.register_buffer("centre", torch.zeros(info.width), persistent=False)

    def pool(self, hidden, mask):
        pooled = super().pool(hidden, mask)
        made = pooled - self.centre
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * pooled.detach().mean(dim=0)
        return made


class CountsInAnAttribute(Mean):
    """How often it was trained is an attribute, and counts."""

    found_by = "trained_state_saved"
    times = 0

    def pool(self, hidden, mask):
        scale = 1 + self.times
        self.times += self.training
        return super().pool(hidden, mask) * scale


class DrawnAndNotSaved(Mean):
    """A random projection that is no part of the state."""

    found_by = "saved_and_loaded"
    says = "query: saving and loading change the output"

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.register_buffer("projection", torch.randn(info.width, 8), persistent=False)

    def pool(self, hidden, mask):
        return super().pool(hidden, mask) @ self.projection


class LayersInAList(Mean):
    """Layers in a plain list, which are neither trained nor saved."""

    found_by = "saved_and_loaded"

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__(info)
        self.projections = [nn.Linear(info.width, info.width)]

    def pool(self, hidden, mask):
        return self.projections[0](super().pool(hidden, mask))


class KeepsAnother(Pooler):
    """In training another layer is marked as kept than the one that is indexed."""

    found_by = "indexed_as_scored"
    needs = Needs(layers=(0, -1))

    def __init__(self, info: EncoderInfo) -> None:
        super().__init__()

    def forward(self, states: TokenStates, side: Side) -> Representation:
        layers = [masked_mean(states.layers[number], states.attention_mask) for number in (max(states.layers), 0)]
        if side == "query" or not self.training:
            return Representation(layers[0][:, None])
        return Representation(torch.stack(layers, dim=1), kept=1)


class NormalisesTheIndex(Mean):
    """Scaled to length 1 in eval mode alone."""

    found_by = "indexed_as_scored"

    def pool(self, hidden, mask):
        pooled = super().pool(hidden, mask)
        return pooled if self.training else functional.normalize(pooled, dim=-1)


class OptionIgnored(Mean):
    """An option that nobody reads."""

    found_by = "options_effective"

    def __init__(self, info: EncoderInfo, *, scale: float = 1.0) -> None:
        super().__init__(info)


class OptionNotPassedOn(Mean):
    """An option of the base that is not passed on."""

    found_by = "options_effective"

    def __init__(self, info: EncoderInfo, *, normalize: bool = False, layer: int = -1) -> None:
        super().__init__(info, normalize=normalize)


class UntypedOption(Mean):
    """An option without a type."""

    found_by = "options_typed"

    def __init__(self, info: EncoderInfo, *, scale=1.0) -> None:
        super().__init__(info)
        self.scale = scale

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return super().pool(hidden, mask) * self.scale


class PositionalOption(Mean):
    """An option that is no keyword."""

    found_by = "options_typed"

    def __init__(self, info: EncoderInfo, scale: float = 1.0) -> None:
        super().__init__(info)
        self.scale = scale

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return super().pool(hidden, mask) * self.scale


class HiddenOptions(Mean):
    """Options that are handed on unseen."""

    found_by = "options_typed"

    def __init__(self, info: EncoderInfo, **options: object) -> None:
        super().__init__(info, **options)


class DefaultOfAnotherType(Mean):
    """A default that its type does not allow."""

    found_by = "options_typed"

    def __init__(self, info: EncoderInfo, *, dimension: int = None) -> None:  # noqa: RUF013 - the fault
        super().__init__(info)
        self.dimension = dimension

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return super().pool(hidden, mask)[:, : self.dimension]


class ReturnsVectors(Cls):
    """Vectors in place of a Representation."""

    found_by = "output"

    def forward(self, states, side):
        return super().forward(states, side).vectors


class DropsTexts(Cls):
    """One row less than there are texts."""

    found_by = "output"

    def forward(self, states, side):
        return super().forward(states, side).rows(slice(1, None))


class Raises(Cls):
    """A name that is not there."""

    found_by = "output"

    def pool(self, hidden, mask):
        return hidden[:, 0] * self.scale


MUTANTS = {
    "".join("_" + one.lower() if one.isupper() else one for one in name)[1:]: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and "found_by" in vars(kind)
}


@hookimpl
def register_poolers(register):
    for name, kind in MUTANTS.items():
        register(name, f"{__name__}:{kind.__name__}")
