"""Encoders that break the contract in one way each. A plugin, by RKIT_PLUGIN_FILES."""

from dataclasses import replace

import torch

from retrievalkit import hookimpl
from retrievalkit.builtin.encoders.transformer import Transformer
from retrievalkit.contracts import Encoder


class Sound(Transformer):
    """A correct one."""

    @classmethod
    def lean(cls, model, **options):
        return cls(model, **options)


class IgnoresTheMask(Sound):
    def forward(self, batch, layers):
        states = super().forward(replace(batch, attention_mask=torch.ones_like(batch.attention_mask)), layers)
        return replace(states, attention_mask=batch.attention_mask)


class OneLayerBelow(Sound):
    def forward(self, batch, layers):
        states = super().forward(batch, range(self.info.layers + 1))
        return replace(states, layers={layer: states.layers[layer - 1] for layer in layers})


class LastIsTheOneBefore(Sound):
    def forward(self, batch, layers):
        states = super().forward(batch, sorted({*layers, self.info.layers - 1}))
        kept = {layer: states.layers[min(layer, self.info.layers - 1)] for layer in layers}
        return replace(states, layers=kept)


class AllLayers(Sound):
    def forward(self, batch, layers):
        return super().forward(batch, range(self.info.layers + 1))


class EmbedsTooMuch(Sound):
    def embed(self, batch):
        return super().embed(batch) * 2


class WordsAreSpecial(Sound):
    def collate(self, token_ids, side):
        batch = super().collate(token_ids, side)
        return replace(batch, special_mask=~batch.special_mask & batch.attention_mask.bool())


class NothingIsSpecial(Sound):
    def collate(self, token_ids, side):
        batch = super().collate(token_ids, side)
        return replace(batch, special_mask=batch.special_mask & False)


class PaddingIsSpecial(Sound):
    def collate(self, token_ids, side):
        batch = super().collate(token_ids, side)
        return replace(batch, special_mask=batch.special_mask | (batch.attention_mask == 0))


class MaskOfTheOtherSide(Sound):
    def collate(self, token_ids, side):
        batch = super().collate(token_ids, side)
        return replace(batch, attention_mask=batch.attention_mask.flip(1))


class CutsTheEndToken(Sound):
    def tokenize(self, texts, side):
        length, self.lengths[side] = self.lengths[side], 512
        try:
            return [ids[:length] for ids in super().tokenize(texts, side)]
        finally:
            self.lengths[side] = length


class NeverCuts(Sound):
    def __init__(self, model, *, query_length: int = 64, document_length: int = 100):
        super().__init__(model)
        self.lengths = {"query": 120, "document": 120}


class ReadsNoTitle(Sound):
    def tokenize(self, texts, side):
        return super().tokenize([("", text) for _, text in texts], side)


class ReadsNoTextAfterATitle(Sound):
    def tokenize(self, texts, side):
        return super().tokenize([("", title or text) for title, text in texts], side)


class DropsOut(Sound):
    def forward(self, batch, layers):
        states = super().forward(batch, layers)
        return replace(states, layers={n: torch.nn.functional.dropout(one, 0.1) for n, one in states.layers.items()})


class Detached(Sound):
    def forward(self, batch, layers):
        states = super().forward(batch, layers)
        return replace(states, layers={n: one.detach() for n, one in states.layers.items()})


class UnusedParameter(Sound):
    def prepare(self, needs):
        super().prepare(needs)
        self.scale = torch.nn.Parameter(torch.ones(()))


class SavesTheStart(Sound):
    def save(self, folder):
        type(self)(self.source).prepared_for(self.needs).save_own(folder)

    def prepared_for(self, needs):
        self.prepare(needs)
        return self

    def save_own(self, folder):
        super().save(folder)


class HalfStates(Sound):
    def forward(self, batch, layers):
        states = super().forward(batch, layers)
        return replace(states, layers={n: one.half() for n, one in states.layers.items()})


class ExtraOneOff(Sound):
    def collate(self, token_ids, side):
        batch = super().collate(token_ids, side)
        return batch if batch.extra is None else replace(batch, extra=batch.extra + 1)


class ExtraBeyondTheLength(Sound):
    def tokenize(self, texts, side):
        count = len(self.extra.ids[side])
        self.lengths[side] += count
        try:
            return super().tokenize(texts, side)
        finally:
            self.lengths[side] -= count


class FillsAttended(Sound):
    def prepare(self, needs):
        super().prepare(replace(needs, fill_attended=bool(needs.mask_filled)))


class NotANumberInBf16(Sound):
    def forward(self, batch, layers):
        states = super().forward(batch, layers)
        large = 3e38 if torch.is_autocast_enabled("cpu") else 1.0
        return replace(states, layers={n: one * large * 10 / large / 10 for n, one in states.layers.items()})


class LeanIsOther(Sound):
    @classmethod
    def lean(cls, model, **options):
        made = cls(model, **options)
        forward = made.forward
        made.forward = lambda batch, layers: (
            lambda states: replace(states, layers={n: one * 1.01 for n, one in states.layers.items()})
        )(forward(batch, layers))
        return made


class FailsOnEmpty(Sound):
    def tokenize(self, texts, side):
        return super().tokenize([(title, text if text.split()[0] else "") for title, text in texts], side)


class OrderMatters(Sound):
    def forward(self, batch, layers):
        states = super().forward(batch, layers)
        factor = 1 + 0.01 * torch.arange(len(batch))[:, None, None]
        return replace(states, layers={n: one * factor for n, one in states.layers.items()})


class NamesTooFew(Sound):
    def tokens(self, ids):
        return super().tokens(ids)[1:-1]


def snake(name):
    return "".join("_" + one.lower() if one.isupper() else one for one in name).lstrip("_")


@hookimpl
def register_encoders(register):
    for one in list(globals().values()):
        if isinstance(one, type) and issubclass(one, Encoder) and one.__module__ == __name__:
            register(snake(one.__name__), f"broken_encoders:{one.__name__}")
