"""The check for authors of pretrainers passes ours, and catches what is broken."""

from __future__ import annotations

import pytest

from retrievalkit import testing

BROKEN = """
import random
import torch
from retrievalkit import hookimpl
from retrievalkit.contracts import LossValue
from retrievalkit.builtin.pretrainers.mlm import MaskedLanguageModel

class TakesNothing(MaskedLanguageModel):
    def samples(self, document):
        return 0

class TakesTheEmpty(MaskedLanguageModel):
    def samples(self, document):
        return max(1, len(document.spans))

class CountsAtRandom(MaskedLanguageModel):
    def samples(self, document):
        return random.randrange(1, 1 << 30)

class DrawsElsewhere(MaskedLanguageModel):
    def collate(self, samples, draw):
        return super().collate(samples, random)

class HandsOverALength(MaskedLanguageModel):
    def collate(self, samples, draw):
        return {**super().collate(samples, draw), "length": len(samples)}

class NoScalar(MaskedLanguageModel):
    def forward(self, batch, progress):
        value = super().forward(batch, progress)
        return LossValue(value.total, {"mlm": value.total.expand(2)})

class Infinite(MaskedLanguageModel):
    def forward(self, batch, progress):
        return LossValue(super().forward(batch, progress).total / 0)

class Detached(MaskedLanguageModel):
    def forward(self, batch, progress):
        return LossValue(super().forward(batch, progress).total.detach())

class WantsTwo(MaskedLanguageModel):
    def forward(self, batch, progress):
        return LossValue(super().forward(batch, progress).total / (len(batch["labels"]) - 1))

class Remembers(MaskedLanguageModel):
    times = 0
    def forward(self, batch, progress):
        self.times += 1
        return LossValue(super().forward(batch, progress).total * self.times)

class SavesAnother(MaskedLanguageModel):
    def save(self, folder):
        super().save(folder)
        with torch.no_grad():
            self.encoder.model.get_input_embeddings().weight[:, 0] += 1

def snake(name):
    return "".join("_" + one.lower() if one.isupper() else one for one in name).lstrip("_")

@hookimpl
def register_pretrainers(register):
    for one in list(globals().values()):
        if isinstance(one, type) and one.__module__ == __name__:
            register(snake(one.__name__), f"{__name__}:{one.__name__}")
"""


@pytest.fixture
def broken(tmp_path, monkeypatch, fresh_registry):
    """Pretrainers that are wrong in one way each."""
    path = tmp_path / "broken_pretrainers.py"
    path.write_text(BROKEN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(path))


@pytest.mark.parametrize("name", ["mlm", "retromae"])
def test_the_built_in_pretrainers_keep_the_contract(tiny_model, name):
    testing.check_pretrainer(name, model=tiny_model)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("takes_nothing", "a document of twenty sentences gives no sample"),
        ("takes_the_empty", "a document without text gives a sample"),
        ("counts_at_random", "the number of samples is not always the same"),
        ("draws_elsewhere", "differs with the same generator"),
        ("hands_over_a_length", "'length' of a batch is no tensor and no Batch"),
        ("no_scalar", r"the mlm has shape \(2,\), and must be a scalar"),
        ("infinite", "the total is inf"),
        ("detached", "no gradient reaches the encoder"),
        ("wants_two", "the total of a single sample is inf"),
        ("remembers", "the loss is another one the second time"),
        ("saves_another", "saving and loading change the encoder"),
    ],
)
def test_a_broken_pretrainer_is_caught(tiny_model, broken, name, complaint):
    with pytest.raises(AssertionError, match=complaint):
        testing.check_pretrainer(name, model=tiny_model)
