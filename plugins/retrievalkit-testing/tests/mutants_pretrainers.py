"""Pretrainers with one fault each, and the property that must find it: masked language modelling, one thing changed."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from torch import nn

from retrievalkit import hookimpl
from retrievalkit.builtin.pretrainers.mlm import MaskedLanguageModel
from retrievalkit.contracts import LossValue
from retrievalkit.data.masking import UNLABELLED, count_labels
from retrievalkit.lexical import token_loss


class TakesNothing(MaskedLanguageModel):
    """No document gives a sample."""

    found_by = "samples"
    says = "a document of twenty sentences gives no sample"

    def samples(self, document):
        return 0


class TakesTheEmpty(MaskedLanguageModel):
    """A document without text gives a sample."""

    found_by = "samples"
    says = "a document without text gives a sample"

    def samples(self, document):
        return max(1, len(document.spans))


class CountsAtRandom(MaskedLanguageModel):
    """The number of samples is drawn."""

    found_by = "samples"
    says = "the number of samples is not always the same"

    def samples(self, document):
        return random.randrange(1, 1 << 30) if document.spans else 0


class HandsOverALength(MaskedLanguageModel):
    """A number in the batch."""

    found_by = "batch"
    says = "'length' of a batch is no tensor and no Batch"

    def collate(self, samples, draw):
        return {**super().collate(samples, draw), "length": len(samples)}


class DrawsElsewhere(MaskedLanguageModel):
    """Masks are drawn from the generator of the process."""

    found_by = "draws_from_generator"
    says = "differs with the same generator"

    def collate(self, samples, draw):
        return super().collate(samples, random)


class SeedIgnored(MaskedLanguageModel):
    """Masks are drawn from a generator that starts anew."""

    found_by = "seed_effective"

    def collate(self, samples, draw):
        return super().collate(samples, random.Random(0))


class NoScalar(MaskedLanguageModel):
    """A term for each text."""

    found_by = "value"
    says = r"the mlm has shape \(2,\), and must be a scalar"

    def forward(self, batch, progress):
        made = super().forward(batch, progress)
        return LossValue(made.total, {"mlm": made.total.expand(2)})


class Infinite(MaskedLanguageModel):
    """A division by zero."""

    found_by = "value"
    says = "the total is inf"

    def forward(self, batch, progress):
        return LossValue(super().forward(batch, progress).total / 0)


class WantsTwo(MaskedLanguageModel):
    """A single sample is divided by zero."""

    found_by = "value"
    says = "the total of a single sample is inf"

    def forward(self, batch, progress):
        return LossValue(super().forward(batch, progress).total / (len(batch["labels"]) - 1))


class ChangesTheLabels(MaskedLanguageModel):
    """The labels are changed in place."""

    found_by = "batch_unchanged"

    def forward(self, batch, progress):
        batch["labels"][batch["labels"] == UNLABELLED] = self.vocabulary.ordinary[0]
        return super().forward(batch, progress)


class Remembers(MaskedLanguageModel):
    """How often it was called counts."""

    found_by = "same_twice"
    says = "the loss is another one the second time"
    times = 0

    def forward(self, batch, progress):
        self.times += 1
        return LossValue(super().forward(batch, progress).total * self.times)


class WeighsTheFirst(MaskedLanguageModel):
    """The first text of a batch counts alone."""

    found_by = "order_of_batch"

    def forward(self, batch, progress):
        labels = torch.cat([batch["labels"][:1], torch.full_like(batch["labels"][1:], UNLABELLED)])
        return super().forward({**batch, "labels": labels}, progress)


class SumOverTokens(MaskedLanguageModel):
    """A sum in place of a mean."""

    found_by = "mean_over_batch"

    def forward(self, batch, progress):
        made = super().forward(batch, progress).total * count_labels(batch["labels"])
        return LossValue(made, {}, {"mlm": made})


class AttendsToPadding(MaskedLanguageModel):
    """The attention mask is forgotten."""

    found_by = "padding"

    def forward(self, batch, progress):
        texts = replace(batch["texts"], attention_mask=torch.ones_like(batch["texts"].attention_mask))
        return super().forward({**batch, "texts": texts}, progress)


class PredictsPadding(MaskedLanguageModel):
    """Labels are padded with a token, which is predicted."""

    found_by = "parts"

    def collate(self, samples, draw):
        made = super().collate(samples, draw)
        padded = made["texts"].attention_mask == 0
        return {**made, "labels": made["labels"].masked_fill(padded, self.vocabulary.ordinary[0])}


class CountsTexts(MaskedLanguageModel):
    """Counts texts, where its loss is a mean over tokens."""

    found_by = "parts"

    def counts(self, batch):
        return {"mlm": len(batch["labels"])}


class DrawsForTheBatch(MaskedLanguageModel):
    """The masks of a text depend on how many there are in its part of the step."""

    found_by = "parts"

    def collate(self, samples, draw):
        return super().collate(samples, random.Random(len(samples) * 1000 + draw.randrange(1000)))


class CountsByAnotherName(MaskedLanguageModel):
    """The count has another name than the addend."""

    found_by = "parts"

    def counts(self, batch):
        return {"tokens": count_labels(batch["labels"])}


class Detached(MaskedLanguageModel):
    """The graph is cut."""

    found_by = "gradient"
    says = "no gradient reaches the encoder"

    def forward(self, batch, progress):
        return LossValue(super().forward(batch, progress).total.detach())


class HeadAlone(MaskedLanguageModel):
    """The states are detached, so that the head alone is trained."""

    found_by = "gradient"

    def forward(self, batch, progress):
        states = self.encoder(batch["texts"], [self.encoder.info.layers])
        return LossValue.weighted({"mlm": token_loss(states.last.detach(), states.head, batch["labels"])}, {})


class UnusedLayer(MaskedLanguageModel):
    """A decoder that is never called."""

    found_by = "parameters_trained"

    def __init__(self, encoder, max_length):
        super().__init__(encoder, max_length)
        self.decoder = nn.Linear(encoder.info.width, encoder.info.width)


class WrongSign(MaskedLanguageModel):
    """Raised where it should fall."""

    found_by = "falls_under_training"

    def forward(self, batch, progress):
        made = -super().forward(batch, progress).total
        return LossValue(made, {}, {"mlm": made})


class ScheduleInAnAttribute(MaskedLanguageModel):
    """What has been trained before is an attribute, which no checkpoint has."""

    found_by = "resumed"
    steps = 0

    def forward(self, batch, progress):
        self.steps += self.training
        made = super().forward(batch, progress).total * (1 + 0.5 * self.steps * self.training)
        return LossValue(made, {}, {"mlm": made})


class SavesAnother(MaskedLanguageModel):
    """The encoder is changed after it was saved, as by weights that are averaged too late."""

    found_by = "saved_and_loaded"
    says = "saving and loading change the encoder"

    def save(self, folder):
        with torch.no_grad():
            self.encoder.model.get_input_embeddings().weight[:, 0] += 1
        super().save(folder)


class OptionIgnored(MaskedLanguageModel):
    """An option that is not passed on."""

    found_by = "options_effective"

    def __init__(self, encoder, max_length, *, mask_ratio: float = 0.3) -> None:
        super().__init__(encoder, max_length)


class UntypedOption(MaskedLanguageModel):
    """An option without a type."""

    found_by = "options_typed"

    def __init__(self, encoder, max_length, *, ratio=0.3) -> None:
        super().__init__(encoder, max_length, mask_ratio=ratio)


MUTANTS = {
    "".join("_" + one.lower() if one.isupper() else one for one in name)[1:]: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and "found_by" in vars(kind)
}


@hookimpl
def register_pretrainers(register):
    for name, kind in MUTANTS.items():
        register(name, f"{__name__}:{kind.__name__}")
