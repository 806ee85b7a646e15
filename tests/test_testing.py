"""The test kit for plugin authors: what it makes, and that its checks catch what is broken."""

from __future__ import annotations

import pytest
import torch

from retrievalkit import testing
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import check_examples, read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries

pytestmark = pytest.mark.precision

BROKEN = """
from dataclasses import replace
import torch
from retrievalkit import hookimpl
from retrievalkit.contracts import Loss, LossValue, Needs, Pooler, Representation
from retrievalkit.score.rule import scores

def first(states):
    return states.last[torch.arange(len(states.last)), states.first][:, None]

class Base(Pooler):
    def __init__(self, info):
        super().__init__()
        self.info = info

class PadsMatter(Base):
    def forward(self, states, side):
        return Representation(states.last.mean(dim=1, keepdim=True))

class OrderMatters(Base):
    def forward(self, states, side):
        return Representation(first(states) * torch.arange(1, len(states.last) + 1)[:, None, None])

class NotFinite(Base):
    def forward(self, states, side):
        return Representation(first(states) / 0)

class Detached(Base):
    def forward(self, states, side):
        return Representation(first(states).detach())

class DeafToTheEncoder(Base):
    def __init__(self, info):
        super().__init__(info)
        self.vector = torch.nn.Parameter(torch.ones(1, 1, 4))
    def forward(self, states, side):
        return Representation(self.vector.expand(len(states.last), 1, 4))

class NotSaved(Base):
    def __init__(self, info):
        super().__init__(info)
        self.register_buffer("scale", torch.rand(1) + 1, persistent=False)
    def forward(self, states, side):
        return Representation(first(states) * self.scale)

def contrastive(queries, documents, positives, ignore):
    logits = scores(queries, documents)
    logits = logits if ignore is None else logits.masked_fill(ignore, float("-inf"))
    return torch.nn.functional.cross_entropy(logits, positives)

class Deaf(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(contrastive(queries, documents, positives, None))

class NoScalar(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(contrastive(queries, documents, positives, ignore).expand(3))

class Infinite(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(contrastive(queries, documents, positives, ignore) / 0)

class WeightsTheFirst(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        rows = torch.ones(len(positives)).index_fill(0, torch.tensor(0), 5.0)
        logits = scores(queries, documents)
        logits = logits if ignore is None else logits.masked_fill(ignore, float("-inf"))
        return LossValue((torch.nn.functional.cross_entropy(logits, positives, reduction="none") * rows).sum())

class GuessesThePositives(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        logits = scores(queries, documents)
        logits = logits if ignore is None else logits.masked_fill(ignore, float("-inf"))
        return LossValue(logits.logsumexp(1).mean())

class ForgetsTheMask(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(contrastive(queries, replace(documents, vector_mask=None), positives, ignore))

class WithoutGraph(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(contrastive(queries, documents, positives, ignore).detach())

class QueriesStay(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(contrastive(queries.detach(), documents, positives, ignore))

class DeafPupil(QueriesStay):
    needs_teacher = True

class LostPupil(Loss):
    needs_teacher = True
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        teacher = torch.zeros(1) if teacher is None else teacher.nan_to_num()
        return LossValue(contrastive(queries, documents, positives, None) + teacher.sum())

def snake(name):
    return "".join("_" + one.lower() if one.isupper() else one for one in name).lstrip("_")

def register_all(register, base):
    for one in list(globals().values()):
        if isinstance(one, type) and issubclass(one, base) and one.__module__ == __name__ and one is not Base:
            register(snake(one.__name__), f"{__name__}:{one.__name__}")

@hookimpl
def register_poolers(register):
    register_all(register, Base)

@hookimpl
def register_losses(register):
    register_all(register, Loss)
"""


@pytest.fixture
def broken(tmp_path, monkeypatch, fresh_registry):
    """Poolers and losses that are wrong in one way each."""
    path = tmp_path / "broken_parts.py"
    path.write_text(BROKEN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(path))


# --- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny_model", "tiny_t5"])
@pytest.mark.parametrize("pooler", ["cls", "mean", "last"])
def test_the_built_in_poolers_keep_the_contract(request, model, pooler):
    testing.check_pooler(pooler, model=request.getfixturevalue(model))


def test_options_are_handed_on(tiny_model):
    testing.check_pooler("mean", model=tiny_model, normalize=True, layer=1)
    testing.check_loss("contrastive", temperature=0.5)


@pytest.mark.parametrize(
    ("pooler", "complaint"),
    [
        ("pads_matter", "query: padding on the right changes the output"),
        ("order_matters", "the order of the batch changes the output"),
        ("not_finite", "query: some values are not finite"),
        ("detached", "query: no gradient reaches layer 2 of the encoder"),
        ("deaf_to_the_encoder", "no gradient reaches the encoder"),
        ("not_saved", "query: saving and loading change the output"),
    ],
)
def test_a_broken_pooler_is_caught(tiny_model, broken, pooler, complaint):
    with pytest.raises(AssertionError, match=complaint):
        testing.check_pooler(pooler, model=tiny_model)


@pytest.mark.parametrize("loss", ["contrastive", "distill_kl", "margin_mse"])
def test_the_built_in_losses_keep_the_contract(loss):
    testing.check_loss(loss)


@pytest.mark.parametrize("loss", ["distill_kl", "margin_mse"])
def test_a_loss_with_a_teacher_may_have_other_terms(loss):
    testing.check_loss(loss, contrastive=1)


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        ("deaf", "`ignore` has no effect"),
        ("no_scalar", r"has shape \(3,\), and must be a scalar"),
        ("infinite", "the total is inf"),
        ("weights_the_first", "the order of queries changes the loss"),
        ("guesses_the_positives", "`positives` has no effect"),
        ("forgets_the_mask", "vectors that are masked change the loss"),
        ("without_graph", "no gradient reaches the vectors of queries"),
        ("queries_stay", "no gradient reaches the vectors of queries"),
        ("deaf_pupil", "`teacher` has no effect"),
        ("lost_pupil", r"without a teacher it does not say what is missing \(InputError\)"),
    ],
)
def test_a_broken_loss_is_caught(broken, loss, complaint):
    with pytest.raises(AssertionError, match=complaint):
        testing.check_loss(loss)


# --- the tiny collection and models --------------------------------------------------------------------------------


def test_the_collection_is_whole(tiny_collection):
    corpus = open_corpus(tiny_collection.corpus)
    queries = {query.id: query for query in read_queries(tiny_collection.queries)}
    assert (len(corpus), len(queries)) == (42, 126)
    train = read_examples(tiny_collection.folder, corpus=corpus)
    check_examples(train, corpus)
    test = read_qrels(tiny_collection.qrels)
    assert len(train) + len(test) == 126
    assert not {row.query_id for row in train} & test.keys()
    for query_id, judged in test.items():
        (document_id,) = judged
        (answer,) = queries[query_id].answers
        assert answer in corpus.get(document_id).text


def test_the_collection_is_the_same_each_time(tiny_collection, tmp_path):
    again = testing.tiny_collection(tmp_path)
    for path in tiny_collection.folder.rglob("*.*"):
        assert path.read_bytes() == (again.folder / path.relative_to(tiny_collection.folder)).read_bytes()


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_the_models_are_the_same_each_time_unless_another_seed_is_given(tmp_path, architecture):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        testing.tiny_model(tmp_path / name, architecture=architecture, seed=seed, width=8)
    one, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other"))
    assert one == same
    assert one != other


def test_making_a_model_leaves_the_random_numbers_as_they_were(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    testing.tiny_model(tmp_path, width=8)
    assert torch.equal(torch.rand(1), expected)


def test_the_tokenizer_knows_the_words_of_the_collection(tiny_collection, tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    for passage in open_corpus(tiny_collection.corpus):
        ids = tokenizer(passage.title, passage.text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert len(ids) < 60
