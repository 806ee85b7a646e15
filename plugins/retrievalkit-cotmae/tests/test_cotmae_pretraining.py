"""The pre-training: golden numbers, a second implementation of the loss, gradients, and every option."""

from __future__ import annotations

import random

import pytest
import retrievalkit_testing as testing
import torch
from retrievalkit_cotmae.pretraining import project
from torch.nn.functional import cross_entropy, gelu, layer_norm

from retrievalkit import registry
from retrievalkit.contracts import Progress
from retrievalkit.data.tokenized_text import Document, Pieces
from retrievalkit.errors import OptionError, UnsupportedError

TERMS = ("encoder_mlm", "ae_dense", "ae_sparse", "ar_dense", "ar_sparse")
PAIRS = (
    ("The seat of government is the city of Lima.", "People pay with the sol, and the language is Spanish."),
    ("rome peoples of", "which language is spoken in iceland and which currency do people use in the city"),
    ("what is the capital of france", "It is number 7 of this list."),
)


@pytest.fixture
def pretrainer_of(tiny_model):
    """Create the pretrainer in eval mode, without dropout."""

    def pretrainer_of(model=tiny_model, **options):
        torch.manual_seed(0)
        encoder = registry.create("encoder", "transformer", model)
        encoder.prepare(registry.get("pretrainer", "cot_mae_v2").needs)
        return registry.create("pretrainer", "cot_mae_v2", encoder, 24, **options).eval()

    return pretrainer_of


def only(*terms):
    """Return the options for these terms only."""
    return {term: float(term in terms) for term in TERMS}


def samples_of(pretrainer, pairs=PAIRS):
    return [tuple(pieces for pieces, _ in pretrainer.vocabulary.split(list(pair))) for pair in pairs]


def batch_of(pretrainer, seed=0, pairs=PAIRS):
    return pretrainer.collate(samples_of(pretrainer, pairs), random.Random(seed))


def loss_of(pretrainer, batch=None):
    torch.manual_seed(0)
    return pretrainer(batch or batch_of(pretrainer), Progress(0, 0.0, 10))


def shaken(pretrainer):
    """Return it in float64 with larger weights, so that every part affects the loss."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in pretrainer.double().parameters():
            parameter += torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 5
    return pretrainer


def test_weights_become_a_sum_of_words():
    weights = torch.tensor([[0.5, 0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    words = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    projected = project(weights, words)
    assert projected.tolist() == [[-1.5, 2.0]]
    expected = torch.tensor([[-0.599976001, 0.7999680013]], dtype=torch.float64)
    torch.testing.assert_close(project(weights, words, "l1"), expected, rtol=0, atol=1e-9)
    projected.sum().backward()
    assert (weights.grad.tolist(), words.grad) == ([[1.0, 2.0, 0.0]], None)


def linear(part, states):
    return states @ part.weight.T + part.bias


def norm(part, states):
    return layer_norm(states, states.shape[-1:], part.weight, part.bias)


def attended(attention, states, causal):
    """Compute attention for one position and one head at a time."""
    width = states.shape[1]
    size = width // attention.num_heads
    query, key, value = (states @ attention.in_proj_weight.T + attention.in_proj_bias).split(width, dim=1)
    places = []
    for place in range(len(states)):
        seen = slice(0, place + 1) if causal else slice(None)
        heads = []
        for head in range(attention.num_heads):
            part = slice(size * head, size * (head + 1))
            shares = (key[seen, part] @ query[place, part] / size**0.5).softmax(0)
            heads.append(shares @ value[seen, part])
        places.append(torch.cat(heads))
    return linear(attention.out_proj, torch.stack(places))


def decoded(decoder, vector, embeddings):
    """Decode a text without padding."""
    states = torch.stack([vector, *embeddings[1:]])
    for layer in decoder.layers:
        if decoder.causal:
            states = states + attended(layer.self_attn, norm(layer.norm1, states), causal=True)
            states = states + linear(layer.linear2, gelu(linear(layer.linear1, norm(layer.norm2, states))))
        else:
            states = norm(layer.norm1, states + attended(layer.self_attn, states, causal=False))
            states = norm(layer.norm2, states + linear(layer.linear2, gelu(linear(layer.linear1, states))))
    return norm(decoder.norm, states) if decoder.causal else states


def reference(pretrainer, batch, *, l1=False, literal=False):
    """Compute the terms with transformers' model, text by text, without padding, with all logits in memory."""
    model = pretrainer.encoder.model
    words = model.bert.embeddings.word_embeddings.weight.detach()
    losses = {term: [] for term in TERMS}

    def rows(name):
        texts = batch[f"{name}_texts"]
        for ids, mask, labels in zip(texts.input_ids, texts.attention_mask, batch[f"{name}_labels"], strict=True):
            yield ids[mask.bool()], labels[: mask.sum()]

    for (ids, labels), (masked, of_masked), (whole, _) in zip(rows("encoder"), rows("ae"), rows("ar"), strict=True):
        output = model(ids[None], output_hidden_states=True)
        hidden, logits = output.hidden_states[-1][0], output.logits[0]
        losses["encoder_mlm"].append(cross_entropy(logits, labels, reduction="none")[labels != -100])
        if literal:
            logits = hidden @ model.bert.embeddings.word_embeddings.weight.T + model.cls.predictions.bias
        sparse = torch.log(1 + torch.relu(logits[1:-1])).max(dim=0).values
        vector = (sparse / (sparse.sum() + 1e-4) if l1 else sparse) @ words
        for view, compressed in (("dense", hidden[0]), ("sparse", vector)):
            embeddings = model(masked[None], output_hidden_states=True).hidden_states[0][0]
            states = model.cls(decoded(pretrainer.decoders["ae"], compressed, embeddings))
            losses[f"ae_{view}"].append(cross_entropy(states, of_masked, reduction="none")[of_masked != -100])
            embeddings = model(whole[None], output_hidden_states=True).hidden_states[0][0]
            states = model.cls(decoded(pretrainer.decoders["ar"], compressed, embeddings))
            losses[f"ar_{view}"].append(cross_entropy(states[:-1], whole[1:], reduction="none"))
    return {term: torch.cat(values).mean() for term, values in losses.items()}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, {}),
        ({"decoder_layers": 2, "directions": "one"}, {}),
        ({"sparse_normalization": "l1"}, {"l1": True}),
        ({"sparse_head": "projection"}, {"literal": True}),
    ],
    ids=str,
)
def test_the_loss_is_the_equations(pretrainer_of, options, changed):
    weights = dict(zip(TERMS, (0.5, 1.0, 2.0, 3.0, 4.0), strict=True))
    pretrainer = shaken(pretrainer_of(**options, **weights))
    batch = batch_of(pretrainer)
    step_loss, expected = loss_of(pretrainer, batch), reference(pretrainer, batch, **changed)
    assert step_loss.terms.keys() == expected.keys()
    for term, value in expected.items():
        torch.testing.assert_close(
            step_loss.terms[term], value.detach(), msg=f"{term}: {step_loss.terms[term]} {value}"
        )
    total = sum(weights[term] * value for term, value in expected.items())
    torch.testing.assert_close(step_loss.total, total)
    parameters = list(pretrainer.parameters())
    pairs = zip(*(torch.autograd.grad(total_loss, parameters) for total_loss in (step_loss.total, total)), strict=True)
    for (gradient, other), (name, _) in zip(pairs, pretrainer.named_parameters(), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-8, msg=f"gradient of {name}")


def restored(batch, name):
    """Return the texts without masks."""
    ids, labels = batch[f"{name}_texts"].input_ids, batch[f"{name}_labels"]
    return torch.where(labels == -100, ids, labels)


def test_each_span_is_rebuilt_from_its_partner(pretrainer_of):
    pretrainer = pretrainer_of()
    batch = batch_of(pretrainer)
    spans, partners = restored(batch, "encoder").split(3)
    for name in ("ae", "ar"):
        ids = batch["ar_texts"].input_ids if name == "ar" else restored(batch, "ae")
        assert torch.equal(torch.cat([partners, spans]), ids)
    columns = zip(*samples_of(pretrainer), strict=True)
    expected = [pretrainer.vocabulary.wrap(pieces.ids) for column in columns for pieces in column]
    assert [row[: len(own)].tolist() for row, own in zip(restored(batch, "encoder"), expected, strict=True)] == expected
    assert batch["encoder_texts"].attention_mask.sum(dim=1).tolist() == [len(span) for span in expected]


def test_masks_of_encoder_and_decoder_are_independent(pretrainer_of):
    text = " ".join(["people pay with the euro in the city of lima and"] * 2)
    pretrainer = pretrainer_of()
    batch = batch_of(pretrainer, pairs=[(text, text)] * 20)
    masked = {name: batch[f"{name}_labels"] != -100 for name in ("encoder", "ae")}
    length = len(samples_of(pretrainer, [(text, text)])[0][0])
    assert set(masked["encoder"].sum(dim=1).tolist()) == {round(0.3 * length)}
    assert set(masked["ae"].sum(dim=1).tolist()) == {round(0.45 * length)}
    assert not (masked["encoder"].roll(20, dims=0) <= masked["ae"]).all(dim=1).all()
    assert not batch["ar_texts"].input_ids.eq(pretrainer.vocabulary.mask).any()


def document(*lengths):
    """Return a document whose spans have these numbers of sentences, each a numbered token."""
    stops = torch.tensor(lengths).cumsum(0).tolist()
    spans = [range(stop - length, stop) for stop, length in zip(stops, lengths, strict=True)]
    pieces = Pieces(range(stops[-1]), [True] * stops[-1])
    return Document(pieces, range(1, stops[-1] + 1), spans, max(lengths))


def test_a_document_is_one_sample_if_it_has_two_spans(pretrainer_of):
    pretrainer = pretrainer_of()
    assert [pretrainer.samples(document(*lengths)) for lengths in ([3], [3, 3], [3] * 9)] == [0, 1, 1]


@pytest.mark.parametrize(
    ("partners", "gaps"),
    [("nearby", {-1, 1}), (["random_sampled"], {-3, -2, -1, 1, 2, 3}), ("overlap,nearby", {-1, 0, 1})],
)
def test_partners_are_of_the_chosen_kinds(pretrainer_of, partners, gaps):
    pretrainer, text = pretrainer_of(partners=partners), document(4, 4, 4, 4)
    drawn = [pretrainer.sample(text, 0, random.Random(seed)) for seed in range(100)]
    assert {(other.ids[0] - anchor.ids[0]) // 4 for anchor, other in drawn} == gaps
    assert {anchor.ids for anchor, _ in drawn} == {range(4), range(4, 8), range(8, 12), range(12, 16)}, (
        "all are anchors"
    )


def reached(pretrainer, value):
    """Return the names of the parameters that get a gradient."""
    pretrainer.zero_grad()
    value.total.backward()
    return {name for name, weight in pretrainer.named_parameters() if weight.grad is not None and weight.grad.any()}


def test_a_term_of_weight_0_is_not_computed(pretrainer_of, monkeypatch):
    pretrainer = pretrainer_of(**only("ae_dense"))
    assert set(batch_of(pretrainer)) == {"encoder_texts", "encoder_labels", "ae_texts", "ae_labels"}
    everything = loss_of(pretrainer_of())
    monkeypatch.setattr("retrievalkit_cotmae.pretraining.max_saturated", None)
    value = loss_of(pretrainer)
    assert list(value.terms) == ["ae_dense"]
    torch.testing.assert_close(value.total, everything.terms["ae_dense"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (only(), "all terms .encoder_mlm, ae_dense.* have weight 0"),
        ({"partners": ""}, "option .partners. is empty. Set at least one of nearby, random_sampled, overlap"),
        (only("ar_dense") | {"decoder_mask_ratio": 0.3}, "decoder_mask_ratio=0.3 has no effect"),
        (only("encoder_mlm") | {"decoder_layers": 2}, "decoder_layers=2 has no effect"),
        (only("ae_dense") | {"sparse_head": "projection"}, "sparse_head=projection has no effect"),
        (only("ar_dense") | {"sparse_normalization": "l1"}, "sparse_normalization=l1 has no effect"),
    ],
)
def test_wrong_options(pretrainer_of, options, message):
    with pytest.raises(OptionError, match=message):
        pretrainer_of(**options)


@pytest.mark.parametrize("architecture", ["roberta", "distilbert", "mpnet", "modernbert"])
def test_other_architectures_are_supported(pretrainer_of, tmp_path, architecture):
    pretrainer = pretrainer_of(testing.tiny_model(tmp_path, architecture=architecture))
    own = [decoder.positions is not None for decoder in pretrainer.decoders.values()]
    assert own == [architecture == "modernbert"] * 2
    assert reached(pretrainer, loss_of(pretrainer)) == {name for name, _ in pretrainer.named_parameters()}


def test_words_narrower_than_the_states_have_no_sparse_view(pretrainer_of, tmp_path):
    import transformers

    testing.tiny_model(tmp_path)
    sizes = {"embedding_size": 12, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model("electra", vocab_size=264, intermediate_size=64, **sizes)
    transformers.ElectraForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="as wide as the hidden states"):
        pretrainer_of(str(tmp_path))
    pretrainer = pretrainer_of(str(tmp_path), **only("ae_dense", "ar_dense"))
    assert loss_of(pretrainer).total.isfinite()


@pytest.mark.slow
def test_the_contract_is_kept(tiny_model):
    testing.check("pretrainer", "cot_mae_v2", model=tiny_model)
